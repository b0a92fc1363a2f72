"""Which lines does a trace file have, which of the known formats is it, and what is one request of it?"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, NoReturn, TypeVar

import msgspec

from inferometer.errors import SpecError
from inferometer.spec.foreign_bytes import Door
from inferometer.spec.workload.types import TraceFormat

DOOR: Final = Door(noun="trace", allowed="a text file, or one compressed with gzip")
OWN_FORMAT: Final = "inferometer-requests"
_FORMATS: Final = "azure, mooncake, llmservingsim, sharegpt, openai-batch, prompts, inferometer"
_KEYS: Final[tuple[tuple[str, TraceFormat], ...]] = (
    ("input_length", "mooncake"),
    ("input_toks", "llmservingsim"),
    ("custom_id", "openai-batch"),
    ("conversations", "sharegpt"),
    ("prompt", "prompts"),
    ("question", "prompts"),
    ("turns", "prompts"),
)
_Parsed = TypeVar("_Parsed")


class Spoken(NamedTuple):
    """A message: who says it, and the text, or the parts of a message that has several."""

    role: str
    content: str | list[dict[str, object]]


class TraceRow(NamedTuple):
    """One request of a foreign trace."""

    line: int
    arrival_ns: int | None
    """None where the trace has no instants."""
    prompt_tokens: int
    output_tokens: int
    max_tokens: int | None = None
    block_ids: Sequence[int] = ()
    """Ids of the prompt's blocks, equal where the blocks and all before them are."""
    block_tokens: int = 0
    session: int | None = None
    """Rows of one session stand together: each prompt is all that was said before, and something
    new."""
    prompt_is_estimate: bool = False
    output_is_estimate: bool = False
    n_later_turns: int = 0
    """Left out, since the trace does not have the answers between."""
    said: tuple[Spoken, ...] = ()
    """What the prompt adds to that of the session's request before, the answer to it first;
    empty unless asked for."""


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, numbered from 1, one at a time; of a .gz file, those inside.

    Raises
    ------
    SpecError
        The file cannot be read.
    """
    return DOOR.lines_of(path)


def detect_format(path: Path) -> TraceFormat:
    """Which format is the file, going by its beginning?

    Raises
    ------
    SpecError
        None of the known ones.
    """
    found = known_format(path)
    if found is not None:
        return found
    number, first = next(lines(path), (0, b""))
    if not first:
        raise SpecError("the trace is empty", where=str(path), allowed=_FORMATS)
    if first.startswith(b"{"):
        decoded(first, dict[str, msgspec.Raw], path, number)
    raise SpecError(
        "the trace's format is not known", where=str(path), allowed=_FORMATS, try_="--trace-format"
    )


def known_format(path: Path) -> TraceFormat | None:
    """Which format is the file, going by its beginning; None where it is none of the known ones.

    Raises
    ------
    SpecError
        The file cannot be read.
    """
    start = DOOR.start_of(path)
    if start.startswith(b"PAR1") or OWN_FORMAT.encode() in start[:200].partition(b"\n")[0]:
        return "inferometer"
    if start.lower().startswith(b"timestamp,contexttokens,generatedtokens"):
        return "azure"
    if start.startswith(b"["):
        return "sharegpt"
    try:
        keys = DOOR.json(next(lines(path), (0, b""))[1], dict[str, msgspec.Raw], where=str(path))
    except SpecError:
        return None
    for key, name in _KEYS:
        if key in keys:
            return name
    return None


def decoded(line: bytes, kind: type[_Parsed], path: Path, number: int) -> _Parsed:
    """The JSON of a line.

    Raises
    ------
    SpecError
        It is broken or of another kind; the message names file and line.
    """
    try:
        return DOOR.json(line, kind, where=str(path))
    except SpecError as error:
        broken(path, number, error.what)


def ns_from_trace(value: float, unit_ns: int, path: Path, number: int) -> int:
    """An instant of a trace in nanoseconds.

    Raises
    ------
    SpecError
        It is no number of the years that nanoseconds can count.
    """
    if not math.isfinite(value) or abs(value) * unit_ns > 2**62:
        broken(path, number, f"{value} is no instant")
    return round(value * unit_ns)


def broken(
    path: Path, number: int, what: str, *, try_: str = "remove the line, or --trace-format"
) -> NoReturn:
    """Refuse a line by its number.

    Raises
    ------
    SpecError
        Always.
    """
    where, allowed = f"{path}, line {number}", "lines as docs/workloads.md says of each format"
    raise SpecError(f"line {number} is broken: {what}", where=where, allowed=allowed, try_=try_)
