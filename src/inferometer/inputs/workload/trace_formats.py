"""Readers of traces of counts: Mooncake, LLMServingSim and spans; and the row that all readers give."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Final, NamedTuple, NoReturn, TypeVar

import msgspec

from inferometer.errors import RecordError, SpecError
from inferometer.inputs.foreign_bytes import Door
from inferometer.inputs.spans import (
    Span,
    SpanExport,
    SpanTree,
    input_tokens_of,
    is_generation,
    is_one_document,
    output_tokens_of,
    read_spans,
    spans_of,
)
from inferometer.units import NS_PER_S

# Lines of a trace file, their errors, and one request of it.


DOOR: Final = Door(noun="trace", allowed="a text file, or one compressed with gzip")
OWN_FORMAT: Final = "inferometer-requests"
_SINCE_1970: Final = ((1e17, 1), (1e14, 1000), (1e11, 1_000_000), (1e8, NS_PER_S))
"""Limits above which a Unix time is in nanoseconds, microseconds, milliseconds or seconds."""
_Parsed = TypeVar("_Parsed")
CHARACTERS_PER_TOKEN: Final = 4


class Spoken(NamedTuple):
    """A message: its role, and its text or its several parts."""

    role: str
    content: str | list[dict[str, object]]


class TraceRow(NamedTuple):
    """One request of a foreign trace."""

    line: int
    arrival_ns: int | None
    """None if the trace has no times."""
    prompt_tokens: int
    output_tokens: int
    max_tokens: int | None = None
    block_ids: Sequence[int] = ()
    """Ids of the prompt's blocks, equal where the blocks and all before them are."""
    block_tokens: int = 0
    session: int | None = None
    """Rows of one session stand together: each prompt is the whole conversation before, and something
    new, where no ``think_ns`` is there."""
    think_ns: int | None = None
    """Time since the end of the session's previous request; blocks show the shared prefix."""
    prompt_is_estimate: bool = False
    output_is_estimate: bool = False
    assumed_unit_ns: int = 0
    """Assumed unit of the time, where the trace names none."""
    repeats: bool = False
    """Does the prompt begin with the whole conversation before, though there is a ``think_ns``?"""
    cached_column: str = ""
    """Column of cached tokens, which is not read: it does not say whose tokens they are."""
    n_later_turns: int = 0
    """Number of later turns left out, because the trace lacks the answers in between."""
    said: tuple[Spoken, ...] = ()
    """Messages that the prompt adds to the session's last one; empty unless requested."""


def decoded(line: bytes, kind: type[_Parsed], path: Path, number: int) -> _Parsed:
    """The JSON of a line.

    Raises
    ------
    SpecError
        It is malformed or of another kind; the message names file and line.
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
        It is not a number, or beyond what int64 nanoseconds can hold.
    """
    if not math.isfinite(value) or abs(value) * unit_ns > 2**62:
        broken(path, number, f"{value} is no instant")
    return round(value * unit_ns)


def unit_since_1970_ns(value: float) -> int | None:
    """The unit of a Unix time, by its size; None if it is not a Unix time.

    Example
    -------
    >>> unit_since_1970_ns(1.732e12), unit_since_1970_ns(535)
    (1000000, None)
    """
    return next((unit_ns for least, unit_ns in _SINCE_1970 if value > least), None)


def broken(
    path: Path, number: int, what: str, *, try_: str = "remove the line, or --trace-format"
) -> NoReturn:
    """The error for a line, with its number."""
    where, allowed = f"{path}, line {number}", "lines as docs/workloads.md says of each format"
    raise SpecError(f"line {number} is broken: {what}", where=where, allowed=allowed, try_=try_)


_NS_PER_MS: Final = 1_000_000
_SMALL_BLOCK: Final = 16

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Id = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class MooncakeLine(msgspec.Struct, frozen=True):
    """A request of a Mooncake trace, or of Qwen's (``chat_id``); other keys are ignored.

    AIPerf's later lines with a ``session_id`` come ``delay`` ms after the answer to the one before,
    and hold what they add to it (in ``message_array_with_responses`` the whole conversation).
    """

    output_length: Count
    timestamp: float | None = None
    input_length: Count | None = None
    text_input: str | None = None
    hash_ids: tuple[int, ...] = ()
    chat_id: int | None = None
    session_id: str | None = None
    delay: float | None = None
    context_mode: str | None = None


class LlmServingSimCall(msgspec.Struct, frozen=True):
    """A request of an LLMServingSim workload, with its prompt tokens if the file has them.

    ``hash_runs`` ([first id, count] of blocks) replace them in workloads without texts.
    """

    input_toks: Count
    output_toks: Count
    hash_runs: tuple[tuple[Id, Count], ...] = ()
    input_tok_ids: tuple[int, ...] = ()
    tool_duration_ns: Id = 0
    """Time from this request's end to the next request of its session."""


class LlmServingSimLine(msgspec.Struct, frozen=True):
    """Arrival time of a request, or of the first request of a session."""

    arrival_time_ns: int
    sub_requests: tuple[LlmServingSimCall, ...] = ()


def mooncake_rows(path: Path, block_tokens: int) -> Iterator[TraceRow]:
    """Requests of a Mooncake trace: ms, lengths, hash ids of ``block_tokens``-token blocks.

    Qwen's traces have the same names, but seconds and blocks of 16 tokens. The unit of Unix times
    follows from their size; Mooncake's own times are integers, and fractions may be seconds.
    Sessions (AIPerf's) come in the order of their first lines, each with its lines together.
    """
    since_1970_ns: int | None = None
    sessions: dict[str | int, list[TraceRow]] = {}
    for index, (number, line) in enumerate(items(path)):
        row = decoded(line, MooncakeLine, path, number)
        before = sessions.setdefault(index if row.session_id is None else row.session_id, [])
        if before:
            before.append(_later_turn(row, before[-1], block_tokens, path, number))
            continue
        instant = row.timestamp
        if instant is not None and not index:
            since_1970_ns = unit_since_1970_ns(instant)
        unit_ns = since_1970_ns or _NS_PER_MS
        if row.chat_id is not None:
            unit_ns, block_tokens = NS_PER_S, _SMALL_BLOCK
        is_whole = instant is None or instant.is_integer()
        is_assumed = unit_ns == _NS_PER_MS and not (since_1970_ns or is_whole)
        prompt_tokens = _added_tokens(row, path, number)
        _check_blocks(len(row.hash_ids), prompt_tokens, block_tokens, path, number)
        before.append(
            TraceRow(
                number,
                None if instant is None else ns_from_trace(instant, unit_ns, path, number),
                prompt_tokens,
                row.output_length,
                block_ids=row.hash_ids,
                block_tokens=block_tokens,
                session=None if row.session_id is None else index,
                assumed_unit_ns=unit_ns if is_assumed else 0,
                prompt_is_estimate=row.input_length is None,
            )
        )
    check_instants((rows[0] for rows in sessions.values()), path)
    yield from chain.from_iterable(sessions.values())


def _later_turn(
    row: MooncakeLine, last: TraceRow, block_tokens: int, path: Path, number: int
) -> TraceRow:
    """A later line of a session: the conversation before, its answer, and what the line adds."""
    own = _added_tokens(row, path, number)
    is_whole = row.context_mode == "message_array_with_responses"
    _check_blocks(len(row.hash_ids), own, block_tokens, path, number)
    return TraceRow(
        number,
        last.arrival_ns,
        own if is_whole else last.prompt_tokens + last.output_tokens + own,
        row.output_length,
        block_ids=row.hash_ids if is_whole else (),
        block_tokens=block_tokens,
        session=last.session,
        think_ns=delay_ns(row.delay, row.timestamp, path, number),
        repeats=not is_whole,
        prompt_is_estimate=last.prompt_is_estimate or row.input_length is None,
    )


def delay_ns(delay: float | None, timestamp: float | None, path: Path, number: int) -> int:
    """Time from the answer before to a later turn of AIPerf's; both are in milliseconds.

    Raises
    ------
    SpecError
        Only its instant is known, and so not how long its user thinks.
    """
    if delay is None and timestamp is not None:
        broken(
            path,
            number,
            "a later turn of a session has a timestamp, but no delay",
            try_="delay: milliseconds from the answer before to this turn",
        )
    return ns_from_trace(delay or 0.0, _NS_PER_MS, path, number)


def _added_tokens(row: MooncakeLine, path: Path, number: int) -> int:
    if row.input_length is None and row.text_input is None:
        broken(path, number, "Object missing required field `input_length`")
    return estimated_tokens(row.text_input or "") if row.input_length is None else row.input_length


def check_instants(first_rows: Iterable[TraceRow], path: Path) -> None:
    """Check that every first request has an instant, or none has one.

    Raises
    ------
    SpecError
        Some have none; the message names the line.
    """
    first_rows = tuple(first_rows)
    if not any(row.arrival_ns is not None for row in first_rows):
        return
    for row in first_rows:
        if row.arrival_ns is None:
            broken(path, row.line, "no timestamp, while other lines have one")


def llmservingsim_rows(path: Path) -> Iterator[TraceRow]:
    """Requests of an LLMServingSim workload, and sessions of them.

    Times in nanoseconds, lengths, and the prompt's full blocks of 16 tokens, as it caches them.
    """
    id_of: dict[tuple[int, ...], int] = {}
    for number, line in items(path):
        row = decoded(line, LlmServingSimLine, path, number)
        calls = row.sub_requests or (decoded(line, LlmServingSimCall, path, number),)
        think_ns: int | None = None
        for call in calls:
            n_ids = sum(count for _, count in call.hash_runs)
            _check_blocks(n_ids, call.input_toks, _SMALL_BLOCK, path, number)
            runs = (range(first, first + count) for first, count in call.hash_runs)
            blocks = zip(*[iter(call.input_tok_ids)] * _SMALL_BLOCK, strict=False)
            yield TraceRow(
                number,
                row.arrival_time_ns,
                call.input_toks,
                call.output_toks,
                block_ids=tuple(chain.from_iterable(runs))
                or tuple(id_of.setdefault(block, len(id_of)) for block in blocks),
                block_tokens=_SMALL_BLOCK,
                session=number if len(calls) > 1 else None,
                think_ns=think_ns,
            )
            think_ns = call.tool_duration_ns


def otel_rows(path: Path) -> Iterator[TraceRow]:
    """Requests of spans with GenAI names, in order of their starts.

    A client's span and the server's below it are one request, with the client's numbers.
    """
    found = list(_numbered_spans(path))
    spans = SpanTree(span for _, span in found)
    for number, span in sorted(found, key=lambda one: (one[1].start_ns, one[0])):
        if is_generation(span) and spans.ancestor(span, is_generation) is None:
            prompt, output = input_tokens_of(span), output_tokens_of(span)
            yield TraceRow(number, span.start_ns, _count(prompt), _count(output))


def _numbered_spans(path: Path) -> Iterator[tuple[int, Span]]:
    """Spans with their lines; those of one document (Jaeger's, or indented) with their places."""
    if is_one_document(path):
        try:
            yield from enumerate(read_spans(path), start=1)
        except RecordError as error:
            raise SpecError(
                error.what, where=error.where, allowed=error.allowed, try_=error.try_
            ) from error
        return
    for number, line in DOOR.lines_of(path):
        export = decoded(line, SpanExport, path, number)
        try:
            yield from ((number, span) for span in spans_of(export))
        except ValueError as error:
            broken(path, number, str(error))


def _count(tokens: float | None) -> int:
    return 0 if tokens is None else min(max(int(tokens), 0), 2**31 - 1)


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


def estimated_tokens(text: str) -> int:
    """Estimated tokens of a text: one for each four characters, rounded up."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def text_of_parts(content: str | list[dict[str, object]]) -> str:
    """Text of a message; other parts (images) are ignored."""
    if isinstance(content, str):
        return content
    return "\n".join(text for part in content if isinstance(text := part.get("text"), str))


def items(path: Path) -> Iterator[tuple[int, bytes]]:
    """The requests of a JSON list or of JSON lines, each with its first line's number.

    Raises
    ------
    SpecError
        The file cannot be read, or its list is malformed.
    """
    if not DOOR.start_of(path).startswith(b"["):
        yield from DOOR.lines_of(path)
        return
    text = DOOR.bytes_of(path).removeprefix(b"\xef\xbb\xbf")
    raws = DOOR.json(text, list[msgspec.Raw], where=str(path))
    at, line = 0, 1
    for raw in raws:
        item = bytes(raw)
        begin = text.index(item, at)
        line += text.count(b"\n", at, begin)
        at = begin
        yield line, item
