"""What does the body of each request say: model, prompt or messages, and how many tokens are wanted?"""

import zlib
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from inferometer.errors import SpecError
from inferometer.measure.load.contents import FIRST_TOKEN_ID, WORDS
from inferometer.measure.load.local_tokenizer import encoder_of
from inferometer.measure.load.prompts import InventedPrompts, Prompts, TracePrompts
from inferometer.spec.load_plan import LoadPlan
from inferometer.spec.workload.plan import RequestPlan
from inferometer.spec.workload.traces import read_texts
from inferometer.spec.workload.types import TraceSource

Body: TypeAlias = dict[str, object]

_FEWEST_WORDS: Final = 64
_LENGTH_KEYS: Final = ("max_completion_tokens", "max_tokens")
_MOST_TOKENS: Final = 2**31 - 1
LEAST_ANSWER_BYTES: Final = 1024 * 1024
"""Of any answer so much is taken; more by the tokens that were asked for."""


class BodyWriter:
    """Writes the bodies of a plan's requests, each the same whenever it is written."""

    def __init__(self, load: LoadPlan, plan: RequestPlan, prompts: Prompts) -> None:
        self._load = load
        self._plan = plan
        self._prompts = prompts
        self._encode = msgspec.json.Encoder().encode
        self._fixed = _fixed(load)
        self._extra = _extra(load)

    def max_tokens(self, row: int) -> int:
        """``max_tokens``: the workload's output where it is to be reached exactly, else what its client allows."""
        column = self._plan.output_tokens if self._load.ignores_eos else self._plan.max_tokens
        return int(column[row])

    def asked_tokens(self, row: int) -> int:
        """The most output tokens of all choices together, with what ``--body`` changes of them."""
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
        said: Body = (
            {"messages": self._prompts.messages(row)}
            if is_chat
            else {"prompt": self._prompts.prompt(row)}
        )
        return self._encode(self._fixed | {"max_tokens": self.max_tokens(row)} | said | self._extra)


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
    """The JSON of a request that asks as the test's will, for as little as can be."""
    said: Body = {"prompt": [FIRST_TOKEN_ID] if load.prompt_form == "token-ids" else WORDS[0]}
    if load.endpoint == "chat":
        said = {"messages": [{"role": "user", "content": WORDS[0]}]}
    least = next(
        (int(value) for name, value in load.extra_body if name == "min_tokens" and value.isdigit()),
        1,
    )
    return msgspec.json.encode(_fixed(load) | {"max_tokens": max(least, 1)} | said | _extra(load))


def _fixed(load: LoadPlan) -> Body:
    """What all requests ask alike."""
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
    """The words that are one token of this tokenizer wherever they stand, so that n of them are n tokens."""
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
