"""Decoding of a load test's raw logs into the tables of a run.

A request that a later session sent again counts once, with that session's results. Errors keep the
message of the server or of the network. Letters of shapes: N requests.
"""

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from inferometer.errors import RecordError
from inferometer.inputs.foreign_bytes import Door, shortened
from inferometer.inputs.workload.plan import RequestPlan
from inferometer.records import exchange_errors, raw_log, run_folder, tables
from inferometer.records.answers import Answer, TokenEnds, answer_of, events_of
from inferometer.records.columns import I32, I64
from inferometer.records.raw_log import RequestFrame
from inferometer.records.types import (
    ABSENT,
    UNKNOWN_COUNT,
    ChunkTable,
    ClockReading,
    ExchangeTable,
    HostClock,
    LagTable,
    RequestStatus,
    RequestTable,
)

# Clock offset of each sending host, and conversion of its times to the driver's clock.
#
# Each host uses its own CLOCK_MONOTONIC. Before and after a run the driver reads it repeatedly: a
# reading taken between `begin` and `end` of the driver bounds the offset by `there - end` and
# `there - begin`, and all bounds hold at once. Source: Cristian,
# Probabilistic clock synchronization, Distributed Computing 3 (1989).
#
# Beside the raw logs of a session lies `session-000-clocks.json`, the clocks of its hosts.


_MOST_NS: Final = 2**61
_MOST_DRIFT_RATIO: Final = 0.1
"""Largest drift that is accepted; clocks of machines drift by less than a thousandth of it."""
_DOOR: Final = Door(
    noun="file of the hosts' clocks", allowed="the file as it was written", refusal=RecordError
)


def reading_from(exchanges: Iterable[tuple[int, int, int]]) -> ClockReading:
    """A clock reading from at least one exchange (begin, remote clock, end).

    Example
    -------
    >>> reading = reading_from([(100, 1160, 200), (300, 1330, 340)])
    >>> reading.offset_ns, reading.doubt_ns
    (1010, 20)
    """
    listed = tuple(exchanges)
    low = max(there - end for _, there, end in listed)
    high = min(there - begin for begin, there, _ in listed)
    return ClockReading(
        at_ns=listed[-1][2],
        offset_ns=(low + high) // 2,
        doubt_ns=max(high - low + 1, 0) // 2,
        n_exchanges=len(listed),
    )


def write_clocks(folder: Path, session_index: int, clocks: Sequence[HostClock]) -> None:
    """Store the clocks of a session's hosts.

    Raises
    ------
    RecordError
        The folder cannot be written.
    """
    run_folder.make_folder(folder / raw_log.RAW_FOLDER)
    run_folder.replace_file(
        _path(folder, session_index),
        msgspec.json.format(msgspec.json.encode(clocks), indent=2) + b"\n",
    )


def clock_of(folder: Path, raw_path: Path) -> HostClock | None:
    """The clock of this raw log's times; None: the driver's own.

    Raises
    ------
    RecordError
        The file is damaged.
    """
    session_index, process_index = raw_log.indices_of(raw_path)
    path = _path(folder, session_index)
    if not path.exists():
        return None
    clocks = _DOOR.json(_DOOR.bytes_of(path), tuple[HostClock, ...], where=str(path))
    for clock in clocks:
        for reading in (clock.before, clock.after):
            if (
                reading is not None
                and max(abs(reading.at_ns), abs(reading.offset_ns), abs(reading.doubt_ns))
                > _MOST_NS
            ):
                raise RecordError(
                    f"a clock reads {shortened(reading.offset_ns)} ns",
                    where=str(path),
                    allowed=f"{_MOST_NS} ns",
                )
        if abs(clock.drift_ratio) > _MOST_DRIFT_RATIO:
            raise RecordError(
                f"a clock drifts by {clock.drift_ratio:g}",
                where=str(path),
                allowed=f"{_MOST_DRIFT_RATIO:g}",
            )
    return next((clock for clock in clocks if clock.process_index == process_index), None)


def on_driver_clock(frame: raw_log.Frame, clock: HostClock) -> raw_log.Frame:
    """The frame with its times converted to the driver's clock.

    The host's schedule began at the offset measured before the run; growth of the offset since
    then is the clock's drift.
    """
    drift = clock.drift_ratio
    if not drift:
        return frame

    def at(instant_ns: int) -> int:
        return instant_ns - round(drift * (instant_ns - clock.before.at_ns))

    def packed(instants: bytes) -> bytes:
        there: I64 = raw_log.int64s(instants)
        here: I64 = there - np.rint(drift * (there - clock.before.at_ns)).astype(np.int64)
        return here.astype("<i8").tobytes()

    return _moved(frame, at, packed)


def _moved(
    frame: raw_log.Frame, at: Callable[[int], int], packed: Callable[[bytes], bytes]
) -> raw_log.Frame:
    match frame:
        case raw_log.RequestFrame():
            there = {
                name: getattr(frame, name)
                for name in ("intended_ns", "sent_ns", "connected_ns", "head_ns", "finished_ns")
            }
            known = {
                name: at(instant_ns) for name, instant_ns in there.items() if instant_ns is not None
            }
            return msgspec.structs.replace(frame, **known, read_ns=packed(frame.read_ns))
        case raw_log.LagFrame():
            return msgspec.structs.replace(frame, due_ns=packed(frame.due_ns))
        case raw_log.EndFrame():
            return msgspec.structs.replace(frame, ended_ns=at(frame.ended_ns))
        case raw_log.SessionFrame():
            return frame


def _path(folder: Path, session_index: int) -> Path:
    return folder / raw_log.RAW_FOLDER / f"session-{session_index:03d}-clocks.json"


_HTTP_OK: Final = range(200, 300)
_ERROR: Final = b'"error"'
_MOST_LETTERS: Final = 200
_NO_WORDS: Final = re.compile(r"[\x00-\x20\x7f-\x9f]+")
_LENGTH: Final = "length"


class _Error(msgspec.Struct):
    message: str


class _Body(msgspec.Struct):
    """An error body: an object with a message (OpenAI), or text under one of these names."""

    error: _Error | str | None = None
    message: str | None = None
    detail: str | None = None


_decoder: Final = msgspec.json.Decoder(_Body)


def words_of_error(frame: RequestFrame, code: str) -> str:
    """The client's note on the error, else the text of the error response or event.

    '' if there is neither.

    Example
    -------
    >>> _of_body(b'{"error": {"message": "no model m", "code": 404}}')
    'no model m'
    """
    text = frame.detail or _of_body(_refusal(frame, code))
    one_line = _NO_WORDS.sub(" ", text).strip()
    return one_line if len(one_line) <= _MOST_LETTERS else one_line[:_MOST_LETTERS] + " …"


def most_frequent(words: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The most frequent message of each error code; of equally frequent ones, the first."""
    counts = Counter(one for one in words if one[1])
    texts: dict[str, str] = {}
    for (code, text), _ in counts.most_common():
        texts.setdefault(code, text)
    return texts


def _refusal(frame: RequestFrame, code: str) -> bytes:
    """The part of a body that concerns the error: all, one stream event, or nothing."""
    if code == "error_event":
        return next(
            (event.data for event in reversed(events_of(frame.body)) if _ERROR in event.data), b""
        )
    return frame.body if frame.http_status not in _HTTP_OK else b""


def _of_body(body: bytes) -> str:
    try:
        answer = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return body[: 4 * _MOST_LETTERS].decode("utf-8", "replace")
    text = answer.error.message if isinstance(answer.error, _Error) else answer.error
    return text or answer.message or answer.detail or body.decode("utf-8", "replace")


class DecodedLoad(NamedTuple):
    """Content of the raw logs of a load test."""

    requests: RequestTable
    exchanges: ExchangeTable
    chunks: ChunkTable
    lags: LagTable
    sessions: tuple[raw_log.SessionFrame, ...]
    ends: tuple[raw_log.EndFrame, ...]
    """End frames; a killed process has none."""
    n_left_bytes: int
    """Bytes of incomplete frames."""
    error_words: dict[str, str]
    """Most frequent message of each error code."""
    clocks: tuple[HostClock, ...] = ()
    """Clocks of the processes on other hosts."""


class _Row(NamedTuple):
    frame: raw_log.RequestFrame
    answer: Answer
    error_words: str


def decode_load(
    folder: Path, plan: RequestPlan, token_ends: TokenEnds | None = None
) -> DecodedLoad:
    """The tables of a run's raw logs; requests refer to rows of ``plan``, the workload's.

    Raises
    ------
    RecordError
        There is no raw log, or a log has a request that is not in the plan.
    """
    paths = raw_log.raw_logs(folder)
    if not paths:
        raise RecordError(
            "there is no raw log", where=str(folder), allowed="the folder of a load test"
        )
    readers = [raw_log.RawLogReader(path) for path in paths]
    clocks = [clock_of(folder, path) for path in paths]
    frames = (
        frame if clock is None else on_driver_clock(frame, clock)
        for reader, clock in zip(readers, clocks, strict=True)
        for frame in reader
    )
    with raw_log.DOOR.refusing(
        str(folder)
    ):  # a wrongly packed field, or a count too large for its column
        decoded = decode_frames(frames, plan, token_ends)
    known = tuple(clock for clock in clocks if clock is not None)
    return decoded._replace(
        n_left_bytes=sum(reader.n_left_bytes for reader in readers), clocks=known
    )


def decode_frames(
    frames: Iterable[raw_log.Frame], plan: RequestPlan, token_ends: TokenEnds | None = None
) -> DecodedLoad:
    """Decode frames that are in memory, by session."""
    rows: dict[int, _Row] = {}
    lags: list[LagTable] = []
    sessions: list[raw_log.SessionFrame] = []
    ends: list[raw_log.EndFrame] = []
    for frame in frames:
        match frame:
            case raw_log.RequestFrame():
                rows[frame.request_index] = _row(frame, token_ends)
            case raw_log.LagFrame():
                lags.append(_lags(frame))
            case raw_log.SessionFrame():
                sessions.append(frame)
            case raw_log.EndFrame():
                ends.append(frame)
    ordered = sorted(
        rows.values(), key=lambda row: (row.frame.intended_ns, row.frame.request_index)
    )
    lag = tables.concat(LagTable, lags)
    return DecodedLoad(
        requests=_requests(ordered, plan),
        exchanges=_exchanges(ordered),
        chunks=_chunks(ordered),
        lags=tables.select(lag, np.argsort(lag.due_ns, kind="stable")),
        sessions=tuple(sessions),
        ends=tuple(ends),
        n_left_bytes=0,
        error_words=most_frequent((row.answer.error, row.error_words) for row in ordered),
    )


def _row(frame: raw_log.RequestFrame, token_ends: TokenEnds | None) -> _Row:
    # The body is far larger than what is decoded from it.
    answer = answer_of(frame, token_ends)
    return _Row(
        msgspec.structs.replace(frame, body=b"", read_bytes=b""),
        answer,
        words_of_error(frame, answer.error) if answer.error else "",
    )


def _status(row: _Row) -> RequestStatus:
    frame, answer = row.frame, row.answer
    if answer.error:
        known = exchange_errors.EXCHANGE_ERRORS.get(answer.error)
        return RequestStatus.FAILED if known is None else known.status
    is_cut = answer.finish_reason == _LENGTH or (
        not answer.finish_reason and answer.output_tokens >= frame.asked_output_tokens
    )
    return RequestStatus.LENGTH if is_cut else RequestStatus.STOPPED


def _finished_ns(row: _Row, status: RequestStatus) -> int:
    if status == RequestStatus.UNFINISHED:
        return ABSENT
    is_done = status in {RequestStatus.STOPPED, RequestStatus.LENGTH}
    last_ns = row.answer.last_token_ns
    return last_ns if is_done and last_ns != ABSENT else row.frame.finished_ns


def _requests(rows: list[_Row], plan: RequestPlan) -> RequestTable:
    index = np.array([row.frame.request_index for row in rows], np.int32)
    n_planned = len(plan.class_index)
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < n_planned:
        raise RecordError(
            f"the raw log has request {int(index.max())}",
            allowed=f"requests 0 to {n_planned - 1} of the plan",
        )
    statuses = [_status(row) for row in rows]
    usages = [row.answer.usage for row in rows]
    columns = {
        "intended_send_ns": [row.frame.intended_ns for row in rows],
        "sent_ns": [_or_absent(row.frame.sent_ns) for row in rows],
        "admitted_ns": np.full(len(rows), ABSENT),
        "first_token_ns": [row.answer.first_token_ns for row in rows],
        "finished_ns": [
            _finished_ns(row, status) for row, status in zip(rows, statuses, strict=True)
        ],
        "prompt_tokens": [
            row.frame.asked_prompt_tokens if usage.prompt_tokens == ABSENT else usage.prompt_tokens
            for row, usage in zip(rows, usages, strict=True)
        ],
        "cached_tokens": [
            UNKNOWN_COUNT if usage.cached_tokens == ABSENT else usage.cached_tokens
            for usage in usages
        ],
        "output_tokens": [row.answer.output_tokens for row in rows],
        "n_preemptions": np.full(len(rows), UNKNOWN_COUNT, np.int32),
        "status": [int(status) for status in statuses],
        "priority": _of_plan(plan.priority, index),
        "class_index": _of_plan(plan.class_index, index),
        "request_index": index,
    }
    return tables.from_columns(RequestTable, columns)


def _exchanges(rows: list[_Row]) -> ExchangeTable:
    frames, answers = [row.frame for row in rows], [row.answer for row in rows]
    columns = {
        "request_index": [frame.request_index for frame in frames],
        "process_index": [frame.process_index for frame in frames],
        "connection_index": [frame.connection_index for frame in frames],
        "is_reused": [frame.is_reused for frame in frames],
        "connected_ns": [_or_absent(frame.connected_ns) for frame in frames],
        "head_ns": [_or_absent(frame.head_ns) for frame in frames],
        "last_byte_ns": [
            int(raw_log.int64s(frame.read_ns)[-1]) if frame.read_ns else ABSENT for frame in frames
        ],
        "http_status": [_or_absent(frame.http_status) for frame in frames],
        "error": [answer.error for answer in answers],
        "finish_reason": [answer.finish_reason for answer in answers],
        "asked_output_tokens": [frame.asked_output_tokens for frame in frames],
        "sent_bytes": [frame.sent_bytes for frame in frames],
        "received_bytes": [frame.received_bytes for frame in frames],
        "n_chunks": [len(answer.chunks) for answer in answers],
        "n_coalesced_chunks": [answer.n_coalesced for answer in answers],
        "usage_prompt_tokens": [answer.usage.prompt_tokens for answer in answers],
        "usage_cached_tokens": [answer.usage.cached_tokens for answer in answers],
        "usage_output_tokens": [answer.usage.output_tokens for answer in answers],
        "token_source": [answer.token_source for answer in answers],
        "retry_after_s": [_seconds(frame.retry_after) for frame in frames],
    }
    return tables.from_columns(ExchangeTable, columns)


def _chunks(rows: list[_Row]) -> ChunkTable:
    arrived, n_tokens, n_characters, kind = array("q"), array("q"), array("i"), array("b")
    for row in rows:
        for chunk in row.answer.chunks:
            arrived.append(chunk.arrived_ns)
            n_tokens.append(chunk.n_tokens)
            n_characters.append(chunk.n_characters)
            kind.append(chunk.kind)
    lengths = [len(row.answer.chunks) for row in rows]
    columns = {
        "request_index": np.repeat(
            np.array([row.frame.request_index for row in rows], np.int32), lengths
        ),
        "arrived_ns": np.frombuffer(arrived, np.int64) if arrived else np.empty(0, np.int64),
        "n_tokens": np.frombuffer(n_tokens, np.int64) if n_tokens else np.empty(0, np.int64),
        "n_characters": (
            np.frombuffer(n_characters, np.int32) if n_characters else np.empty(0, np.int32)
        ),
        "kind": np.frombuffer(kind, np.int8) if kind else np.empty(0, np.int8),
    }
    return tables.from_columns(ChunkTable, columns)


def _lags(frame: raw_log.LagFrame) -> LagTable:
    due_ns = raw_log.int64s(frame.due_ns)
    return LagTable(
        process_index=np.full(len(due_ns), frame.process_index, np.int32),
        due_ns=due_ns.astype(np.int64),
        lag_ns=raw_log.int64s(frame.lag_ns).astype(np.int64),
        n_in_flight=raw_log.int32s(frame.n_in_flight).astype(np.int32),
    )


def _of_plan(column: I32, index: I32) -> I32:
    return column[index].astype(np.int32)


def _or_absent(instant_ns: int | None) -> int:
    return ABSENT if instant_ns is None else instant_ns


def _seconds(retry_after: str) -> float:
    """The header's seconds; NaN for a date."""
    return float(retry_after) if retry_after.isascii() and retry_after.isdigit() else float("nan")
