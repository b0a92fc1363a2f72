"""What does the body of each request say: model, prompt or messages, and how many tokens are wanted?

Requests are written before they are due, off the hot path and in bounded memory: as many as fit
before the run begins, later some in each pause between two instants.
What is not ready when it is due (a follower, whose turn nobody can know) is written then.
"""

import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.errors import SpecError
from inferometer.inputs.plans import LoadPlan
from inferometer.inputs.spans import SpanIds
from inferometer.inputs.workload.plan import NONE, RequestPlan
from inferometer.inputs.workload.trace_formats import Spoken, text_of_parts
from inferometer.inputs.workload.traces import read_texts
from inferometer.inputs.workload.types import TraceSource

# Which tokens does a local tokenizer see in a text?
#
# Through the library `tokenizers`, which the core does not need.


class Encoding(Protocol):
    """The tokens of a text."""

    @property
    def ids(self) -> Sequence[int]:
        """Id of each token."""
        ...

    @property
    def offsets(self) -> Sequence[tuple[int, int]]:
        """First and last character of each token."""
        ...


def encoder_of(path: str | None) -> Callable[[str], Encoding]:
    """The tokenizer of this folder or file, without special tokens.

    Raises
    ------
    SpecError
        No path, no such file, or the library is not installed.
    """
    tokenizer = tokenizer_of(path)

    def encode(text: str) -> Encoding:
        encoding: Encoding = tokenizer.encode(text, add_special_tokens=False)
        return encoding

    return encode


def tokenizer_of(path: str | None) -> Any:  # noqa: ANN401 -- the library's own type
    """The tokenizer of this folder or file.

    Raises
    ------
    SpecError
        No such tokenizer, or the library is not installed.
    """
    if path is None:
        raise SpecError(
            "no tokenizer", where="--prompts tokenizer", try_="--tokenizer FOLDER or tokenizer.json"
        )
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 -- an engine's library
    except ImportError as error:
        raise SpecError(
            "the library tokenizers is not installed",
            where="--tokenizer",
            try_="pip install tokenizers",
        ) from error
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise SpecError(
            "no such tokenizer",
            where=f"--tokenizer {path}",
            allowed="a tokenizer.json, or a folder with one",
        )
    return Tokenizer.from_file(str(file))


class TokenPace(NamedTuple):
    """Number of tokens in the texts, and times of encoding and decoding them."""

    n_tokens: int
    encode_s: float
    decode_s: float


def token_pace(path: str, texts: Sequence[str]) -> TokenPace:
    """Tokenise and detokenise all texts once, on one core, after a first text that warms up.

    Raises
    ------
    SpecError
        No such tokenizer, or the library is not installed.
    """
    tokenizer = tokenizer_of(path)
    for text in texts[:1]:
        tokenizer.encode(text, add_special_tokens=False)
    started = time.perf_counter()
    encoded = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    between = time.perf_counter()
    for ids in encoded:
        tokenizer.decode(ids, skip_special_tokens=False)
    ended = time.perf_counter()
    n_tokens = sum(len(ids) for ids in encoded)
    return TokenPace(n_tokens=n_tokens, encode_s=between - started, decode_s=ended - between)


def token_ends_of(path: str) -> Callable[[str], Sequence[int]]:
    """A function that returns the end (in characters) of each token of a text."""
    encode = encoder_of(path)
    return lambda text: [end for _, end in encode(text).offsets]


# Which tokens, or words, does each prompt hold, so that the plan's shared prefixes are true token
# by token?
# Token p of request r is a hash of (seed, r, p) unless it lies in the prefix that r shares: then
# it is its owner's token p. The answers of earlier turns are such invented tokens too, of the
# asked length, not what the server said: prompts are then the same in every run and on every
# server, and a server's prefix cache finds in a later turn all but the answers of the turn just
# before.


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
_MOST_BYTES: Final = 64 * 1024 * 1024
_MOST_AHEAD: Final = 100_000
_PAUSE_NS: Final = 2_000_000
"""A pause must last so long for something to be written in it."""
_PART_NS: Final = 500_000
"""So much of it is used: answers come in pauses too."""


class Stretch(NamedTuple):
    """Tokens ``begin`` to ``end`` of a prompt: the same as request ``owner``'s there."""

    owner: int
    begin: int
    end: int


def stretches(plan: RequestPlan, row: int) -> tuple[Stretch, ...]:
    """Parts of the prompt of ``row``, each with the content that it is from.

    Example
    -------
    >>> from inferometer.inputs.workload.plan import request_plan
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
    ------
    Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators":
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


# What does each request ask: invented words of the plan's lengths, or what a file of texts says?
# In a chat a session's turns become a growing list of messages: what was asked and what was
# answered in turns. Any other shared prefix is the beginning of one user message.


Message: TypeAlias = dict[str, object]


class Prompts(Protocol):
    """The text of each request; the same on every call."""

    def messages(self, row: int) -> list[Message]:
        """Messages of a chat, earliest turn first."""
        ...

    def prompt(self, row: int) -> str | list[int]:
        """Prompt of a completion."""
        ...


class InventedPrompts:
    """Words, or ids of tokens, of the plan's lengths."""

    def __init__(self, plan: RequestPlan, seed: int, vocabulary: tuple[str, ...] | None) -> None:
        self._plan = plan
        self._seed = seed
        self._vocabulary = vocabulary
        """None for ids."""

    def prompt(self, row: int) -> str | list[int]:
        """The whole prompt, shared prefixes included."""
        parts = stretches(self._plan, row)
        return token_ids(self._seed, parts) if self._vocabulary is None else self._text(parts)

    def messages(self, row: int) -> list[Message]:
        """The turns of the session; the answers in between are invented too."""
        messages: list[Message] = []
        for turn in reversed(self._turns(row)):
            whole, begin = stretches(self._plan, turn), 0
            if messages:
                leader = int(self._plan.prefix_request[turn])
                n_prompt = int(self._plan.prompt_tokens[leader])
                begin = n_prompt + int(self._plan.output_tokens[leader])
                messages.append(
                    {"role": "assistant", "content": self._text(_between(whole, n_prompt, begin))}
                )
            messages.append(
                {
                    "role": "user",
                    "content": self._text(
                        _between(whole, begin, int(self._plan.prompt_tokens[turn]))
                    ),
                }
            )
        return messages

    def _turns(self, row: int) -> list[int]:
        """The request and those whose exchange it continues, latest first."""
        plan, turns = self._plan, [row]
        while (leader := int(plan.prefix_request[turns[-1]])) != NONE:
            turn = turns[-1]
            held = int(plan.prompt_tokens[leader]) + int(plan.output_tokens[leader])
            is_next = (
                plan.follows[turn] == leader
                and plan.prefix_tokens[turn] == held < plan.prompt_tokens[turn]
            )
            if not is_next:
                break
            turns.append(leader)
        return turns

    def _text(self, parts: tuple[Stretch, ...]) -> str:
        return words(self._seed, parts, self._vocabulary or WORDS)


class TracePrompts:
    """Texts from a file, with its answers between the turns."""

    def __init__(self, plan: RequestPlan, texts: Sequence[tuple[Spoken, ...]]) -> None:
        self._plan = plan
        self._texts = texts

    def messages(self, row: int) -> list[Message]:
        """The file's messages before this request's answer."""
        return [{"role": message.role, "content": message.content} for message in self._said(row)]

    def prompt(self, row: int) -> str | list[int]:
        """Their texts, a line each."""
        return "\n".join(text_of_parts(message.content) for message in self._said(row))

    def _said(self, row: int) -> Iterator[Spoken]:
        turns = [row]
        while (leader := int(self._plan.prefix_request[turns[-1]])) != NONE:
            turns.append(leader)
        return chain.from_iterable(self._texts[turn] for turn in reversed(turns))


def _between(parts: tuple[Stretch, ...], begin: int, end: int) -> tuple[Stretch, ...]:
    cut = (Stretch(part.owner, max(part.begin, begin), min(part.end, end)) for part in parts)
    return tuple(part for part in cut if part.begin < part.end)


Body: TypeAlias = dict[str, object]

_FEWEST_WORDS: Final = 64
_LENGTH_KEYS: Final = ("max_completion_tokens", "max_tokens")
_MOST_TOKENS: Final = 2**31 - 1
LEAST_ANSWER_BYTES: Final = 1024 * 1024
"""Bytes of any answer that are accepted; more by the requested tokens."""


class BodyWriter:
    """Writes the body of each request; the same on every call."""

    def __init__(self, load: LoadPlan, plan: RequestPlan, prompts: Prompts) -> None:
        self._load = load
        self._plan = plan
        self._prompts = prompts
        self._encode = msgspec.json.Encoder().encode
        self._fixed = _fixed(load)
        self._extra = _extra(load)

    def max_tokens(self, row: int) -> int:
        """``max_tokens``: the workload's output length if exact, else the request's limit."""
        column = self._plan.output_tokens if self._load.ignores_eos else self._plan.max_tokens
        return int(column[row])

    def asked_tokens(self, row: int) -> int:
        """Most output tokens of all choices, with the changes by ``--body``."""
        most = next(
            (self._extra[name] for name in _LENGTH_KEYS if name in self._extra),
            self.max_tokens(row),
        )
        n_choices = self._extra.get("n", 1)
        return min(
            (most if isinstance(most, int) else 0)
            * (n_choices if isinstance(n_choices, int) else 1),
            _MOST_TOKENS,
        )

    def body(self, row: int) -> bytes:
        """The JSON of a request's body."""
        is_chat = self._load.endpoint == "chat"
        content: Body = (
            {"messages": self._prompts.messages(row)}
            if is_chat
            else {"prompt": self._prompts.prompt(row)}
        )
        # before the prompt, for routers that read the beginning of a body
        urgency: Body = (
            {"priority": int(self._plan.priority[row])} if self._load.sends_priorities else {}
        )
        asked = urgency | self._fixed | {"max_tokens": self.max_tokens(row)}
        return self._encode(asked | content | self._extra)


def body_writer(
    load: LoadPlan, plan: RequestPlan, run_name: str = "", session_index: int = 0
) -> BodyWriter:
    """The writer that the plan's prompt form needs.

    Where prompts are new in each run, ``run_name`` makes them so.

    A run that goes on after a seam (``session_index`` above 0) sends new words in any case: what
    was in flight at the seam is sent again, and a prefix cache would remember it.

    Raises
    ------
    SpecError
        Token ids in a chat; no tokenizer where one is needed, or one with which exact lengths
        cannot be made; no trace, or one without texts, where it is to be sent.
    """
    if load.prompt_form == "token-ids" and load.endpoint == "chat":
        raise SpecError(
            "a chat takes text, not token ids",
            where="--prompts token-ids",
            allowed="words, tokenizer",
            try_="--endpoint completions",
        )
    return BodyWriter(load, plan, _prompts(load, plan, _seed(load, run_name, session_index)))


def probe_body(load: LoadPlan) -> bytes:
    """JSON of a minimal request of the test's kind."""
    content: Body = {"prompt": [FIRST_TOKEN_ID] if load.prompt_form == "token-ids" else WORDS[0]}
    if load.endpoint == "chat":
        content = {"messages": [{"role": "user", "content": WORDS[0]}]}
    least = next(
        (int(value) for name, value in load.extra_body if name == "min_tokens" and value.isdigit()),
        1,
    )
    return msgspec.json.encode(
        _fixed(load) | {"max_tokens": max(least, 1)} | content | _extra(load)
    )


def _fixed(load: LoadPlan) -> Body:
    """Fields that all requests have in common."""
    fixed: Body = {"model": load.served_model}
    if load.is_streaming:
        fixed |= {"stream": True, "stream_options": {"include_usage": True}}
    return fixed | {"ignore_eos": True} if load.ignores_eos else fixed


def _extra(load: LoadPlan) -> Body:
    return {name: msgspec.Raw(value.encode()) for name, value in load.extra_body}


def _prompts(load: LoadPlan, plan: RequestPlan, seed: int) -> Prompts:
    if load.prompt_form == "trace":
        source = load.workload.replay
        if not isinstance(source, TraceSource):
            raise SpecError(
                "no trace is replayed",
                where="--prompts trace",
                allowed="a file of texts",
                try_="--trace conversations.json",
            )
        return TracePrompts(plan, read_texts(source))
    vocabulary = _single_token_words(load.tokenizer) if load.prompt_form == "tokenizer" else WORDS
    return InventedPrompts(plan, seed, None if load.prompt_form == "token-ids" else vocabulary)


def _seed(load: LoadPlan, run_name: str, session_index: int) -> int:
    seed = load.workload.seed if load.text_seed is None else load.text_seed
    own = seed if load.repeats_prompts else zlib.crc32(f"{seed} {run_name}".encode())
    return own if not session_index else zlib.crc32(f"{own} session {session_index}".encode())


def _single_token_words(path: str | None) -> tuple[str, ...]:
    """Words that are one token of this tokenizer in any position."""
    count = _counter(path)
    one = tuple(word for word in WORDS if count(f"a {word}") - count("a") == 1)
    is_exact = len(one) >= _FEWEST_WORDS and count(" ".join(one)) - count(one[0]) == len(one) - 1
    if not is_exact:
        raise SpecError(
            f"only {len(one)} plain words are single tokens of this tokenizer",
            where="--tokenizer",
            allowed=f"{_FEWEST_WORDS} or more, which stay so side by side",
            try_="--prompts words, or --prompts token-ids with --endpoint completions",
        )
    return one


def _counter(path: str | None) -> Callable[[str], int]:
    encode = encoder_of(path)
    return lambda text: len(encode(text).ids)


class MessagesAhead:
    """The messages (head and body) of requests in the order of their instants."""

    def __init__(
        self,
        bodies: BodyWriter,
        head: tuple[bytes, bytes],
        id_prefix: str,
        rows: Sequence[int],
        *,
        span_ids: SpanIds | None = None,
    ) -> None:
        self._bodies = bodies
        self._before_id, self._before_length = head
        self._id_prefix = id_prefix
        self._rows = rows
        self._span_ids = span_ids
        self._next = 0
        self._ready: dict[int, bytes] = {}
        self._n_ready_bytes = 0

    def take(self, row: int) -> bytes:
        """The message of a request, which is then forgotten."""
        message = self._ready.pop(row, None)
        if message is None:
            return self._written(row)
        self._n_ready_bytes -= len(message)
        return message

    def prepare_for(self, at_most_ns: int) -> None:
        """Write messages until so much time is gone, or enough are ready."""
        until_ns = time.monotonic_ns() + at_most_ns
        while self._has_room() and time.monotonic_ns() < until_ns:
            self._prepare_one()

    def prepare(self, next_due_ns: int | None) -> None:
        """Use the pause until something is due."""
        if next_due_ns is None or next_due_ns - time.monotonic_ns() >= _PAUSE_NS:
            self.prepare_for(_PART_NS)

    def skip_to(self, n_sent: int) -> None:
        """Skip the requests that were already sent."""
        self._next = max(self._next, n_sent)

    def _has_room(self) -> bool:
        return (
            self._next < len(self._rows)
            and len(self._ready) < _MOST_AHEAD
            and self._n_ready_bytes < _MOST_BYTES
        )

    def _prepare_one(self) -> None:
        row = self._rows[self._next]
        self._next += 1
        message = self._written(row)
        self._ready[row] = message
        self._n_ready_bytes += len(message)

    def _written(self, row: int) -> bytes:
        body = self._bodies.body(row)
        trace = (
            b""
            if self._span_ids is None
            else b"\r\ntraceparent: %b" % self._span_ids.traceparent(row).encode("ascii")
        )
        return b"%b%b-%d%b%b%d\r\n\r\n%b" % (
            self._before_id,
            self._id_prefix.encode(),
            row,
            trace,
            self._before_length,
            len(body),
            body,
        )
