"""Which tokens, or words, does each prompt hold, so that the plan's shared prefixes are true token by token?

Token p of request r is a hash of (seed, r, p) unless it lies in the prefix that r shares: then it
is its owner's token p. The answers of earlier turns are such invented tokens too, of the asked
length, not what the server said: prompts are then the same in every run and on every server, and a
server's prefix cache finds in a later turn all but the answers of the turn just before.
"""

from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.spec.workload.plan import NONE, RequestPlan

U64: TypeAlias = NDArray[np.uint64]

FIRST_TOKEN_ID: Final = 100
N_TOKEN_IDS: Final = 8000
"""Ids 100 to 8,099: below them stand special tokens, and vocabularies are larger."""
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)

_TEXT: Final = (
    "about above after again age air all also and any area art ask away back bad ball bank bar base"
    " bed best big bill bit black blood blue board body book both box boy break bring build bus but"
    " buy call can car card care case cause cell chair check child city class clear close cold come"
    " cost could country cup cut dark data day deal dear death deep did die dog door down draw"
    " drive drop each early earth east easy eat edge else end even event ever eye face fact fall"
    " far farm fast father fear feel feet few field fight fill film find fine fire first fish five"
    " floor fly food foot for force form four free friend from front full fund game garden gas get"
    " girl give glass goal gold good great green ground group grow gun hair half hall hand happy"
    " hard hat have head hear heart heat heavy help her here high hill him his hit hold home hope"
    " horse hot hotel hour house how human hurt idea image into iron issue its job join just keep"
    " key kid kill kind king know lack lake land large last late law lay lead learn leave left leg"
    " less let letter level lie life light like line list little live local long look lose loss lot"
    " love low main make man many map mark market may mean meet men mile milk mind mine miss money"
    " month moon more most mother mouth move much music must name near neck need never new news"
    " next nice night nine nor north nose not note now off office oil old one only open order other"
    " our out over own page pain paper part party pass past path pay peace people per phone pick"
    " piece place plan plant play point poor post power price pull put queen quick quiet race rain"
    " raise range rate reach read real record red rest result rich ride right ring rise river road"
    " rock role room rose rule run safe said sale same save say scene school sea seat second see"
    " sell send set seven shape share she ship shop short should shot show side sign since sing sit"
    " six size skin sky sleep slow small snow some son song soon sort sound south space speak"
    " spring staff stage stand star start state stay step still stock stone stop store story street"
    " strong study such summer sun sure table take talk tax teach team tell ten term test than that"
    " them then there they thing think this those three time title today told too top total touch"
    " town trade train tree trip true try turn two type under unit until use very view visit voice"
    " wait walk wall want war warm watch water way weak wear week well west what when where which"
    " white who whole why wide wife will win wind window winter wish with woman wood word work"
    " world would write wrong year yes yet you young"
)
WORDS: Final = tuple(_TEXT.split())


class Stretch(NamedTuple):
    """Tokens ``begin`` to ``end`` of a prompt: those that request ``owner`` holds at the same positions."""

    owner: int
    begin: int
    end: int


def stretches(plan: RequestPlan, row: int) -> tuple[Stretch, ...]:
    """Whose tokens does the prompt of ``row`` hold, from its begin to its end?

    Example
    -------
    >>> from inferometer.spec.workload.plan import request_plan
    >>> lengths = {"prompt_tokens": [6, 12, 9], "output_tokens": [2, 1, 1]}
    >>> plan = request_plan("here", arrival_ns=[0, 1, 2], **lengths, prefix_request=[-1, 0, 1], prefix_tokens=[0, 8, 3])
    >>> [tuple(one) for one in stretches(plan, 1)], [tuple(one) for one in stretches(plan, 2)]
    ([(0, 0, 8), (1, 8, 12)], [(0, 0, 3), (2, 3, 9)])
    """
    found: list[Stretch] = []
    owner, end = row, int(plan.prompt_tokens[row])
    while end > 0:
        begin = (
            min(int(plan.prefix_tokens[owner]), end) if plan.prefix_request[owner] != NONE else 0
        )
        if begin < end:
            found.append(Stretch(owner, begin, end))
        owner, end = int(plan.prefix_request[owner]), begin
    return tuple(reversed(found))


def token_ids(seed: int, parts: tuple[Stretch, ...]) -> list[int]:
    """The ids of the tokens of these stretches."""
    ids: list[int] = (
        _hashes(seed, parts) % np.uint64(N_TOKEN_IDS) + np.uint64(FIRST_TOKEN_ID)
    ).tolist()
    return ids


def words(seed: int, parts: tuple[Stretch, ...], vocabulary: tuple[str, ...] = WORDS) -> str:
    """A word for each token of these stretches, with blanks between."""
    picks = (_hashes(seed, parts) % np.uint64(len(vocabulary))).tolist()
    return " ".join([vocabulary[pick] for pick in picks])


def _hashes(seed: int, parts: tuple[Stretch, ...]) -> U64:
    """A number for each token.

    Source
    ------ Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators":
    SplitMix64's output function, of a position counted on from a point of its own for each owner.
    """
    pieces = [
        np.arange(part.begin, part.end, dtype=np.uint64) + _start(seed, part.owner)
        for part in parts
    ]
    return _mixed(np.concatenate(pieces) * _ODD) if pieces else np.empty(0, np.uint64)


def _start(seed: int, owner: int) -> np.uint64:
    with np.errstate(over="ignore"):
        key = np.array([np.uint64(seed) * _ODD + np.uint64(owner + 1)], np.uint64)
        start: np.uint64 = _mixed(_mixed(key * _ODD))[0]
    return start


def _mixed(values: U64) -> U64:
    z = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: U64 = z ^ (z >> np.uint64(31))
    return mixed
