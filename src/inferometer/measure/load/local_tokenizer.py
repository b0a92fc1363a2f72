"""Which tokens does a local tokenizer see in a text?

Through the library ``tokenizers``, which the core does not need.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from inferometer.errors import SpecError


class Encoding(Protocol):
    """The tokens of a text."""

    @property
    def ids(self) -> Sequence[int]:
        """One for each token."""
        ...

    @property
    def offsets(self) -> Sequence[tuple[int, int]]:
        """From which to which character each of them reaches."""
        ...


def encoder_of(path: str | None) -> Callable[[str], Encoding]:
    """The tokenizer of this folder or file, without special tokens.

    Raises
    ------
    SpecError
        No path, no such file, or the library is not installed.
    """
    tokenizer = _opened(path)

    def encode(text: str) -> Encoding:
        encoding: Encoding = tokenizer.encode(text, add_special_tokens=False)
        return encoding

    return encode


def _opened(path: str | None) -> Any:  # noqa: ANN401 -- the library's own type
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
    """How many tokens have the texts, and how long does it take to find and to write them?"""

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
    tokenizer = _opened(path)
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
    """After how many characters of a text does each of its tokens end?"""
    encode = encoder_of(path)
    return lambda text: [end for _, end in encode(text).offsets]
