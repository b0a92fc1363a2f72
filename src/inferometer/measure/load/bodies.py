"""What does the body of each request say: model, prompt or messages, and how many tokens are wanted?

In a chat a session's turns become a growing list of messages: what was asked and what was answered in turns. Any other shared prefix is
the beginning of one user message.
"""

import zlib
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from inferometer.errors import SpecError
from inferometer.measure.load.contents import WORDS, Stretch, stretches, token_ids, words
from inferometer.measure.load.local_tokenizer import encoder_of
from inferometer.spec.load_plan import LoadPlan
from inferometer.spec.workload.plan import NONE, RequestPlan

Body: TypeAlias = dict[str, object]

_FEWEST_WORDS: Final = 64


class BodyWriter:
    """Writes the bodies of a plan's requests, each the same whenever it is written."""

    def __init__(self, load: LoadPlan, plan: RequestPlan, seed: int, vocabulary: tuple[str, ...]) -> None:
        self._load = load
        self._plan = plan
        self._seed = seed
        self._vocabulary = vocabulary
        self._encode = msgspec.json.Encoder().encode
        self._fixed: Body = {"model": load.served_model}
        if load.is_streaming:
            self._fixed |= {"stream": True, "stream_options": {"include_usage": True}}
        if load.ignores_eos:
            self._fixed["ignore_eos"] = True
        self._extra: Body = {name: msgspec.Raw(value.encode()) for name, value in load.extra_body}

    def asked_tokens(self, row: int) -> int:
        """``max_tokens``: the workload's output where it is to be reached exactly, else what its client allows."""
        column = self._plan.output_tokens if self._load.ignores_eos else self._plan.max_tokens
        return int(column[row])

    def body(self, row: int) -> bytes:
        """The JSON of a request's body."""
        asked: Body = {"max_tokens": self.asked_tokens(row)}
        if self._load.endpoint == "chat":
            asked["messages"] = self._messages(row)
        elif self._load.prompt_form == "token-ids":
            asked["prompt"] = token_ids(self._seed, stretches(self._plan, row))
        else:
            asked["prompt"] = self._text(stretches(self._plan, row))
        return self._encode(self._fixed | asked | self._extra)

    def _messages(self, row: int) -> list[dict[str, str]]:
        """Turn by turn, the earliest first."""
        said: list[dict[str, str]] = []
        for turn in reversed(self._turns(row)):
            whole, begin = stretches(self._plan, turn), 0
            if said:
                leader = int(self._plan.prefix_request[turn])
                asked = int(self._plan.prompt_tokens[leader])
                begin = asked + int(self._plan.output_tokens[leader])
                said.append({"role": "assistant", "content": self._text(_between(whole, asked, begin))})
            said.append({"role": "user", "content": self._text(_between(whole, begin, int(self._plan.prompt_tokens[turn])))})
        return said

    def _turns(self, row: int) -> list[int]:
        """The request and those whose whole exchange it goes on from, the latest first."""
        plan, turns = self._plan, [row]
        while (leader := int(plan.prefix_request[turns[-1]])) != NONE:
            turn = turns[-1]
            held = int(plan.prompt_tokens[leader]) + int(plan.output_tokens[leader])
            is_next = plan.follows[turn] == leader and plan.prefix_tokens[turn] == held < plan.prompt_tokens[turn]
            if not is_next:
                break
            turns.append(leader)
        return turns

    def _text(self, parts: tuple[Stretch, ...]) -> str:
        return words(self._seed, parts, self._vocabulary)


def body_writer(load: LoadPlan, plan: RequestPlan, run_name: str = "") -> BodyWriter:
    """The writer that the plan's prompt form needs. Where prompts are new in each run, ``run_name`` makes them so.

    Raises
    ------
    SpecError
        Token ids in a chat, no tokenizer where one is needed, or one with which exact lengths cannot be made.
    """
    if load.prompt_form == "token-ids" and load.endpoint == "chat":
        raise SpecError(
            "a chat takes text, not token ids", where="--prompts token-ids", allowed="words, tokenizer", try_="--endpoint completions"
        )
    vocabulary = _single_token_words(load.tokenizer) if load.prompt_form == "tokenizer" else WORDS
    return BodyWriter(load, plan, _seed(load, run_name), vocabulary)


def _seed(load: LoadPlan, run_name: str) -> int:
    seed = load.workload.seed if load.text_seed is None else load.text_seed
    return seed if load.repeats_prompts else zlib.crc32(f"{seed} {run_name}".encode())


def _between(parts: tuple[Stretch, ...], begin: int, end: int) -> tuple[Stretch, ...]:
    cut = (Stretch(part.owner, max(part.begin, begin), min(part.end, end)) for part in parts)
    return tuple(part for part in cut if part.begin < part.end)


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


__all__ = ["BodyWriter", "body_writer"]
