"""Which steps did a server make, by its own record of them, and how long did each take?

Read are Forward Pass Metrics (Dynamo's schema 1, ``components/src/dynamo/common/
forward_pass_metrics.py``; SGLang's, ``sglang/srt/observability/forward_pass_metrics.py``, which has
no version and whose messages have a number of their own), vLLM's iteration log
(``--enable-logging-iteration-details``, ``vllm/v1/metrics/loggers.py``), our own scheduler log, and
the steps of a run. Letters of shapes: S steps.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Never

import msgspec
import numpy as np

from inferometer import suggestions
from inferometer.errors import RecordError
from inferometer.inputs.foreign_bytes import Door
from inferometer.records.columns import F64
from inferometer.records.types import StepTable
from inferometer.units import NS_PER_S

FPM_VERSION: Final = 1
FPM: Final = "Forward Pass Metrics"
_MOST_MESSAGE_BYTES: Final = 2**16
"""A message has about 300 bytes."""
_N_COLUMNS: Final = 9
"""Columns of a ``StepLog``."""
_KINDS: Final = (
    "vLLM's log with --enable-logging-iteration-details, Forward Pass Metrics as JSON lines, a"
    " scheduler log of inferometer export, or a run with steps"
)
_ITERATION: Final = re.compile(
    r"(?:Engine (\d{1,6}): )?Iteration\((\d{1,15})\): (\d{1,9}) context requests, (\d{1,12}) context"
    r" tokens, (\d{1,9}) generation requests, (\d{1,12}) generation tokens, iteration elapsed time:"
    r" (\d{1,12}(?:\.\d{1,9})?) ms( \(dummy\))?(?:, \w* ?KV cache usage: (\d{1,3}(?:\.\d{1,9})?)%)?"
)
_AVERAGES: Final = {
    b"Avg generation throughput:": "vLLM's averages over some seconds",
    b"Decode batch": "SGLang's averages over 40 decode steps or so",
}
"""What a server's ordinary log has in place of steps."""
_LOOK_BYTES: Final = 2**22
"""The start of a log, which has no step in it, is no longer."""
_SCHEDULER_COLUMNS: Final = frozenset(
    {"event", "duration_s", "prefill_requests", "decode_requests", "prefill_tokens"}
)
DOOR: Final = Door(noun="step log", allowed=_KINDS, refusal=RecordError)
MESSAGES: Final = Door(
    noun="message",
    allowed="a ForwardPassMetrics of Dynamo or SGLang in MessagePack",
    refusal=RecordError,
    max_bytes=_MOST_MESSAGE_BYTES,
)


class StepLog(NamedTuple):
    """Steps of a server in order; NaN where not recorded."""

    source: str
    """``Forward Pass Metrics``, ``vLLM's iteration log``, …"""
    duration_s: F64
    """(S)"""
    prefill_requests: F64
    """(S)"""
    prefill_tokens: F64
    """(S) Computed in the step."""
    decode_requests: F64
    """(S)"""
    decode_tokens: F64
    """(S) Rows of decoding requests: one each, and drafts that are verified."""
    held_tokens: F64
    """(S) Context of the decoding requests, all together."""
    cached_tokens: F64
    """(S) Context of the prefilling requests, all together."""
    kv_usage_fraction: F64
    """(S)"""
    waiting_requests: F64
    """(S)"""
    n_lost: int = 0
    """Steps that were published and did not arrive, by their numbers."""
    n_restarts: int = 0
    """How often the step numbers started again."""
    n_refused: int = 0
    """Messages of another version, or that are damaged."""

    @property
    def rows(self) -> F64:
        """(S) Tokens that went through the model."""
        return self.prefill_tokens + self.decode_tokens

    @property
    def sequences(self) -> F64:
        """(S) Requests in the step."""
        return self.prefill_requests + self.decode_requests


class Scheduled(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one step, in Forward Pass Metrics."""

    num_prefill_requests: int = 0
    sum_prefill_tokens: int = 0
    sum_prefill_kv_tokens: int = 0
    num_decode_requests: int = 0
    sum_decode_kv_tokens: int = 0


class Queued(msgspec.Struct, frozen=True, kw_only=True):
    """Waiting requests, in Forward Pass Metrics."""

    num_prefill_requests: int = 0
    num_decode_requests: int = 0


class ForwardPass(msgspec.Struct, frozen=True, kw_only=True):
    """One message of Forward Pass Metrics; a ``wall_time`` of 0: the server is idle."""

    version: int = FPM_VERSION
    worker_id: str = ""
    dp_rank: int = 0
    counter_id: int = 0
    wall_time: float = 0.0
    scheduled_requests: Scheduled = Scheduled()
    queued_requests: Queued = Queued()


class Numbered(NamedTuple):
    """A message with its sender's number; None in a file, which has it inside."""

    number: int | None
    message: ForwardPass


def step_log_of(steps: StepTable) -> StepLog:
    """Steps of a run without warm-ups."""
    rows = np.flatnonzero(~steps.is_warmup & (steps.duration_ns > 0))

    def column(name: str) -> F64:
        values = getattr(steps, name)[rows].astype(np.float64)
        found: F64 = np.where(values < 0, math.nan, values)
        return found

    prefill, tokens = column("n_prefill_requests"), column("prefill_tokens")
    product = column("prefill_context_product_tokens2")
    # q · (c + (q + 1) / 2) of requests that all have the mean chunk q.
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_context = product / tokens - (tokens / prefill + 1) / 2
    cached = np.where(tokens > 0, np.maximum(mean_context, 0) * prefill, 0.0)
    return StepLog(
        source="steps of a run",
        duration_s=steps.duration_ns[rows] / NS_PER_S,
        prefill_requests=prefill,
        prefill_tokens=tokens,
        decode_requests=column("n_decode_requests"),
        decode_tokens=column("n_decode_requests"),
        held_tokens=column("decode_context_tokens"),
        cached_tokens=cached,
        kv_usage_fraction=np.full(len(rows), math.nan),
        waiting_requests=column("n_waiting_requests"),
    )


def read_step_log(path: Path) -> StepLog:
    """Read the steps of a file; its first lines show its format.

    Raises
    ------
    RecordError
        The file has no steps.
    """
    head = DOOR.start_of(path, _LOOK_BYTES)
    first = head.partition(b"\n")[0]
    if first.startswith(b"{") and b'"scheduled_requests"' in first:
        return forward_passes(_fpm_lines(path))
    if _SCHEDULER_COLUMNS.issubset(first.decode("utf-8", "replace").strip().split(",")):
        return _scheduler_log(path)
    found = _iteration_log(path)
    if not len(found.duration_s):
        kind = averages_in(head)
        raise RecordError(
            "no steps are in this file" + (f": it has {kind}" if kind else ""),
            where=str(path),
            allowed=_KINDS,
            try_=_live() if kind else None,
        )
    return found


def averages_in(log: bytes) -> str | None:
    """What a server's ordinary log has in place of steps; None if this is no such log."""
    return next((words for mark, words in _AVERAGES.items() if mark in log), None)


def is_server_log(text: str) -> bool:
    """Is this a server's ordinary log?"""
    return averages_in(text.encode("utf-8", "replace")) is not None


def refuse_averages(path: Path) -> Never:
    """Refuse a server's log where results of a load test are wanted."""
    raise RecordError(
        "this is a server's own log, not the result of a load test",
        where=str(path),
        try_=f"{_live()}; its limits: "
        + suggestions.command("fit", "RUN", "--load", "--server-log", path),
    )


def forward_passes(messages: Iterable[Numbered]) -> StepLog:
    """Steps of Forward Pass Metrics; checks versions, allows numbers to restart.

    Each worker's data-parallel ranks number their messages by themselves.
    """
    rows: list[tuple[float, ...]] = []
    last: dict[tuple[str, int], int] = {}
    n_lost = n_restarts = n_refused = 0
    for number, one in messages:
        if one.version != FPM_VERSION or not _is_sound(one):
            n_refused += 1
            continue
        counted = one.counter_id if number is None else number
        key = one.worker_id, one.dp_rank
        before = last.get(key)
        if before is not None and counted < before:
            n_restarts += 1
        elif before is not None and counted > before + 1:
            n_lost += counted - before - 1
        last[key] = counted
        if one.wall_time > 0:
            rows.append(_fpm_row(one))
    return _logged(FPM, rows, n_lost, n_restarts, n_refused)


def _logged(source: str, rows: list[tuple[float, ...]], *counts: int) -> StepLog:
    """Rows in the column order of a ``StepLog``; ``counts`` of lost ones."""
    columns = np.array(rows, dtype=np.float64).reshape(len(rows), _N_COLUMNS).T
    return StepLog._make([source, *columns, *counts, *([0] * (3 - len(counts)))])


def _is_sound(one: ForwardPass) -> bool:
    now, queued = one.scheduled_requests, one.queued_requests
    counts = (
        *(getattr(now, name) for name in now.__struct_fields__),
        *(getattr(queued, name) for name in queued.__struct_fields__),
    )
    return min(counts) >= 0 and math.isfinite(one.wall_time) and one.wall_time >= 0


def _fpm_row(one: ForwardPass) -> tuple[float, ...]:
    now, queued = one.scheduled_requests, one.queued_requests
    return (
        one.wall_time,
        now.num_prefill_requests,
        now.sum_prefill_tokens,
        now.num_decode_requests,
        now.num_decode_requests,
        now.sum_decode_kv_tokens,
        now.sum_prefill_kv_tokens,
        math.nan,
        queued.num_prefill_requests + queued.num_decode_requests,
    )


def _fpm_lines(path: Path) -> Iterator[Numbered]:
    for number, line in DOOR.lines_of(path):
        yield Numbered(None, DOOR.json(line, ForwardPass, where=f"{path}, line {number}"))


def _scheduler_log(path: Path) -> StepLog:
    rows = [
        _scheduled_row(one, f"{path}, line {number}")
        for number, one in enumerate(
            DOOR.csv_records(DOOR.text_of(path).splitlines(), where=str(path)), start=2
        )
        if one["event"] == "step"
    ]
    return _logged("a scheduler log", [row for row in rows if row[0] > 0])


def _scheduled_row(one: Mapping[str, str], where: str) -> tuple[float, ...]:
    duration_s, prefill, tokens, decode = (
        DOOR.number(one[name], name, where=where)
        for name in ("duration_s", "prefill_requests", "prefill_tokens", "decode_requests")
    )
    waiting = one.get("waiting_requests", "")
    n_waiting = DOOR.number(waiting, "waiting_requests", where=where) if waiting else math.nan
    unknown = (math.nan, math.nan, math.nan)
    return duration_s, prefill, tokens, decode, decode, *unknown, n_waiting


def _iteration_log(path: Path) -> StepLog:
    rows: list[tuple[float, ...]] = []
    last: dict[str, int] = {}
    n_restarts = 0
    for _, line in DOOR.lines_of(path):
        found = _ITERATION.search(line.decode("utf-8", "replace"))
        if found is None:
            continue
        engine, index = found[1] or "", int(found[2])
        n_restarts += index < last.get(engine, -1)
        last[engine] = index
        if found[8] or float(found[7]) <= 0:  # a dummy step of a rank that has nothing to do
            continue
        usage = math.nan if found[9] is None else float(found[9]) / 100
        prefill, tokens, decode, drafted = (float(found[at]) for at in (3, 4, 5, 6))
        seconds = float(found[7]) / 1000
        unknown = (math.nan, math.nan)
        rows.append((seconds, prefill, tokens, decode, drafted, *unknown, usage, math.nan))
    return _logged("vLLM's iteration log", rows, 0, n_restarts)


def _live() -> str:
    return suggestions.command("diagnose", "http://127.0.0.1:8000") + ", which reads its metrics"
