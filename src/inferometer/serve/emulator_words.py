"""What does the emulated server say, and which tokens are its words and those of a prompt?

Without a tokenizer a token is what stands between spaces, in prompts and in answers. Answers are
drawn words; those of a request are the same under the same seed.
"""

import zlib
from collections.abc import Hashable, Sequence, Set as AbstractSet
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np

from inferometer.errors import SpecError
from inferometer.measure.load.bodies import tokenizer_of

_ONSETS: Final = ("b", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z")
_RHYMES: Final = (
    "an",
    "ar",
    "ay",
    "ed",
    "en",
    "ill",
    "in",
    "ip",
    "it",
    "ob",
    "od",
    "on",
    "ot",
    "ow",
    "um",
    "un",
)
WORDS: Final = tuple(onset + rhyme for onset in _ONSETS for rhyme in _RHYMES)
"""The vocabulary: 256 words without a meaning."""


class Answer(NamedTuple):
    """The answer to a request: ``n_tokens`` words in an order that two numbers fix."""

    vocabulary: tuple[str, ...]
    n_tokens: int
    start: int
    stride: int
    n_chars: int | None = None
    """Characters that are sent, up to a stop text; None: all."""
    stop_reason: str | int | None = None
    """Text or id of the token at which it stops; None: at neither."""

    def places(self) -> range:
        """Index in the endlessly repeated vocabulary of each token."""
        return range(self.start, self.start + self.n_tokens * self.stride, self.stride)

    def word(self, i_token: int) -> str:
        """Word of the i-th token, with a leading space."""
        return self.vocabulary[(self.start + i_token * self.stride) % len(self.vocabulary)]

    def text(self, first: int, end: int) -> str:
        """The words from one token to before another."""
        text = "".join(" " + self.word(i) for i in range(first, end))
        if self.n_chars is None:
            return text
        n_before = sum(1 + len(self.word(i)) for i in range(first))
        return text[: max(self.n_chars - n_before, 0)]

    def stopped_at(
        self, stops: Sequence[str], least_tokens: int, *, includes_stop: bool = False
    ) -> "Answer":
        """The answer cut at the first stop text after ``least_tokens`` tokens."""
        full = self._replace(n_chars=None).text(0, self.n_tokens)
        n_least = len(self._replace(n_chars=None).text(0, least_tokens))
        found = [(full.find(stop, n_least), stop) for stop in stops if stop]
        hits = [hit for hit in found if hit[0] >= 0]
        if not hits:
            return self
        n_chars, stop_text = min(hits)
        n_tokens = full[: n_chars + len(stop_text)].count(" ")  # each token is led by one
        return self._replace(
            n_tokens=n_tokens,
            n_chars=n_chars + len(stop_text) * includes_stop,
            stop_reason=stop_text,
        )

    def stopped_by(self, i_token: int, token_id: int, *, includes_stop: bool) -> "Answer":
        """The answer up to this token, which counts and is not sent unless ``includes_stop``."""
        sent = self.text(0, i_token + includes_stop)
        return self._replace(n_tokens=i_token + 1, n_chars=len(sent), stop_reason=token_id)


class _Encoding(Protocol):
    @property
    def ids(self) -> list[int]: ...


class _Real(Protocol):
    def encode(self, sequence: str, *, add_special_tokens: bool = True) -> _Encoding: ...
    def decode(self, ids: list[int]) -> str: ...


class Tokenizer:
    """Text to tokens: words, or by a ``tokenizer.json``."""

    def __init__(self, path: Path | None = None) -> None:
        self._real: _Real | None = None if path is None else tokenizer_of(str(path))

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """Words that are one token each, also when the whole answer is encoded."""
        if self._real is None:
            return WORDS
        single = tuple(
            word
            for word in WORDS
            if len(self._real.encode(" " + word, add_special_tokens=False).ids) == 1
        )
        if len(single) < 2:
            raise SpecError(
                "no two of the emulator's words are one token each",
                where="--tokenizer",
                try_="another tokenizer, or none",
            )
        return single

    @cached_property
    def vocabulary_tokens(self) -> tuple[Hashable, ...]:
        """The token of each word."""
        if self._real is None:
            return WORDS
        return tuple(
            self._real.encode(" " + word, add_special_tokens=False).ids[0]
            for word in self.vocabulary
        )

    def spoken(self, answer: Answer) -> list[Hashable]:
        """The tokens of an answer."""
        tokens = self.vocabulary_tokens
        return [tokens[place % len(tokens)] for place in answer.places()]

    def ids(self, tokens: Sequence[Hashable]) -> list[int]:
        """Ids of these tokens; without a tokenizer, sums of their words."""
        return [
            token if isinstance(token, int) else zlib.crc32(str(token).encode()) for token in tokens
        ]

    def tokens(self, text: str) -> Sequence[Hashable]:
        """The tokens of a text: words, or ids."""
        if self._real is None:
            return text.split()
        return self._real.encode(text).ids

    def pieces(self, tokens: Sequence[Hashable]) -> tuple[str, ...]:
        """Text of each of these tokens."""
        if self._real is not None or all(isinstance(token, int) for token in tokens):
            return tuple(self.text([token]) for token in tokens if isinstance(token, int))
        return tuple(f" {token}" if place else str(token) for place, token in enumerate(tokens))

    def text(self, ids: Sequence[int]) -> str:
        """The text of these ids; without a tokenizer, ids are places in the vocabulary."""
        if self._real is None:
            return "".join(" " + WORDS[i % len(WORDS)] for i in ids)
        return self._real.decode(list(ids))


def draw_answer(
    vocabulary: tuple[str, ...],
    mean_tokens: float | None,
    most_tokens: int,
    *,
    seed: int,
    number: int,
    place: int = 0,
) -> Answer:
    """Draw the answer to the request with this number.

    Its length is geometric with this mean, or ``most_tokens``.
    """
    draws = np.random.default_rng((seed, number, place))
    n_tokens = (
        most_tokens
        if mean_tokens is None
        else min(int(draws.geometric(1 / mean_tokens)), most_tokens)
    )
    start, stride = (int(value) for value in draws.integers(0, len(vocabulary), 2))
    return Answer(vocabulary, n_tokens, start, stride | 1)


def stopped(
    answer: Answer,
    tokenizer: Tokenizer,
    *,
    stops: Sequence[str],
    stop_ids: AbstractSet[int],
    least_tokens: int,
    includes_stop: bool,
) -> Answer:
    """The answer cut at the first stop text or token after ``least_tokens`` tokens."""
    if stops:
        answer = answer.stopped_at(stops, least_tokens, includes_stop=includes_stop)
    if stop_ids:
        ids = tokenizer.ids(tokenizer.spoken(answer))
        for i_token in range(least_tokens, answer.n_tokens):
            if ids[i_token] in stop_ids:
                return answer.stopped_by(i_token, ids[i_token], includes_stop=includes_stop)
    return answer


def content_ids(tokens: Sequence[Hashable], block_size: int) -> list[int]:
    """Id of each full block's content: equal if all tokens up to its end are equal."""
    ids, before = list[int](), 0
    for end in range(block_size, len(tokens) + 1, block_size):
        before = hash((before, *tokens[end - block_size : end]))
        ids.append(before)
    return ids
