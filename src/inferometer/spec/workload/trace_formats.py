"""What do the lines of traces of token counts say: Azure's, Mooncake's, LLMServingSim's?"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Annotated, Final

import msgspec

from inferometer.spec.workload.trace_lines import TraceRow, broken, decoded, lines, ns_from_trace
from inferometer.units import NS_PER_S

_INSTANT: Final = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:\+00:00|Z)?")
_NS_PER_MS: Final = 1_000_000
_LLMSERVINGSIM_BLOCK: Final = 16

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Id = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class MooncakeLine(msgspec.Struct, frozen=True):
    """A request of a Mooncake trace; other keys are passed over."""

    timestamp: float
    input_length: Count
    output_length: Count
    hash_ids: tuple[int, ...] = ()


class LlmServingSimLine(msgspec.Struct, frozen=True):
    """A request of an LLMServingSim workload; ``hash_runs`` are [first id, how many]."""

    arrival_time_ns: int
    input_toks: Count
    output_toks: Count
    hash_runs: tuple[tuple[Id, Count], ...] = ()


def azure_rows(path: Path) -> Iterator[TraceRow]:
    """Requests of an Azure LLM inference trace: instants of the wall clock, prompt and output tokens."""
    for number, line in lines(path):
        if number == 1:
            continue
        fields = line.decode("utf-8", errors="replace").split(",")
        match = _INSTANT.fullmatch(fields[0])
        if len(fields) != 3 or match is None:
            broken(
                path,
                number,
                f"{line.decode(errors='replace')!r} is not TIMESTAMP,ContextTokens,GeneratedTokens",
            )
        if not all(field.isdecimal() and len(field) < 10 for field in fields[1:]):
            broken(path, number, f"{fields[1]!r}, {fields[2]!r} are no counts of tokens")
        at_ns = _wall_ns(match[1], match[2] or "", path, number)
        yield TraceRow(number, at_ns, int(fields[1]), int(fields[2]))


def mooncake_rows(path: Path, block_tokens: int) -> Iterator[TraceRow]:
    """Requests of a Mooncake trace: milliseconds, lengths, and ids of blocks of ``block_tokens`` with all before them."""
    for number, line in lines(path):
        row = decoded(line, MooncakeLine, path, number)
        at_ns = ns_from_trace(row.timestamp, _NS_PER_MS, path, number)
        _check_blocks(len(row.hash_ids), row.input_length, block_tokens, path, number)
        yield TraceRow(
            number,
            at_ns,
            row.input_length,
            row.output_length,
            block_ids=row.hash_ids,
            block_tokens=block_tokens,
        )


def llmservingsim_rows(path: Path) -> Iterator[TraceRow]:
    """Requests of an LLMServingSim workload.

    Nanoseconds, lengths, runs of ids of blocks of 16 tokens with all before them.
    """
    for number, line in lines(path):
        row = decoded(line, LlmServingSimLine, path, number)
        _check_blocks(
            sum(count for _, count in row.hash_runs),
            row.input_toks,
            _LLMSERVINGSIM_BLOCK,
            path,
            number,
        )
        ids = tuple(
            chain.from_iterable(range(first, first + count) for first, count in row.hash_runs)
        )
        yield TraceRow(
            number,
            row.arrival_time_ns,
            row.input_toks,
            row.output_toks,
            block_ids=ids,
            block_tokens=_LLMSERVINGSIM_BLOCK,
        )


def _check_blocks(
    n_ids: int, prompt_tokens: int, block_tokens: int, path: Path, number: int
) -> None:
    n_full, n_touched = prompt_tokens // block_tokens, -(-prompt_tokens // block_tokens)
    if n_ids and not n_full <= n_ids <= n_touched:
        fitting = -(-prompt_tokens // n_ids)
        what = (
            f"{n_ids} block ids for {prompt_tokens} tokens, which are {n_touched} blocks of"
            f" {block_tokens}"
        )
        broken(path, number, f"{what} (hash_block_tokens = {fitting} would fit)")


def _wall_ns(seconds: str, fraction: str, path: Path, number: int) -> int:
    try:
        whole = datetime.fromisoformat(seconds).replace(tzinfo=UTC)
    except ValueError as error:
        broken(path, number, str(error))
    return round(whole.timestamp()) * NS_PER_S + int(fraction.ljust(9, "0"))
