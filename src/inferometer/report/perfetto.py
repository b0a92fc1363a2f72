"""What happened in a run, as a trace for ui.perfetto.dev.

A track for each slot of the batch, counters for queue, KV cache and tokens.

Source: Trace Event Format (Google, 2016), the JSON that Chrome and Perfetto read: complete events
(X), counters (C) and metadata (M); times in microseconds. Compressed with gzip where the name ends
in .gz.
"""

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from inferometer.errors import RecordError
from inferometer.records.columns import I64
from inferometer.records.durability import make_folder, replace_file
from inferometer.records.slot_timeline import SlotTimeline, slices_of, slot_timeline
from inferometer.records.types import ABSENT, Run, StepTable
from inferometer.report.request_words import STATE_NAMES

MAX_EVENTS: Final = 400_000
"""About 60 MB of JSON, 4 MB compressed: what the page of Perfetto still opens at once."""

_MAX_CELLS: Final = 20_000_000
_SEATS: Final = 1
_COUNTERS: Final = 2
_NS_PER_US: Final = 1000

Event: TypeAlias = dict[str, Any]


def write_perfetto(
    run: Run,
    path: Path,
    *,
    first_step: int = 0,
    n_steps: int | None = None,
    max_events: int = MAX_EVENTS,
) -> int:
    """Write the trace of these steps and say of how many: as many as ``max_events`` allow.

    Without parts of steps: counters alone.

    Raises
    ------
    RecordError
        The run has no steps, or no such step, or the file cannot be written.
    """
    trace, n_written = perfetto_trace(
        run, first_step=first_step, n_steps=n_steps, max_events=max_events
    )
    content = json.dumps(trace, separators=(",", ":"), allow_nan=False).encode()
    make_folder(path.parent)
    replace_file(
        path, gzip.compress(content, compresslevel=6, mtime=0) if path.suffix == ".gz" else content
    )
    return n_written


def perfetto_trace(
    run: Run, *, first_step: int = 0, n_steps: int | None = None, max_events: int = MAX_EVENTS
) -> tuple[dict[str, Any], int]:
    """The trace as JSON will hold it, and how many steps it covers."""
    steps = run.steps
    if steps is None or not len(steps.start_ns):
        raise RecordError(
            "the run has no steps",
            where=run.manifest.run_id,
            allowed="a simulated run, or a sweep with its steps",
        )
    n_all = len(steps.start_ns)
    if not 0 <= first_step < n_all:
        raise RecordError(
            f"there is no step {first_step}", where=run.manifest.run_id, allowed=f"0 to {n_all - 1}"
        )
    n_left = min(n_all - first_step, n_all if n_steps is None else max(n_steps, 1))
    n_seats = 1 if run.parts is None else int(run.parts.seat.max(initial=0)) + 1
    n_left = max(1, min(n_left, _MAX_CELLS // n_seats))
    while True:
        events = _events(run, steps, first_step, n_left)
        if len(events) <= max_events or n_left == 1:
            break
        n_left = max(1, min(n_left - 1, n_left * max_events // len(events)))
    about = {
        "run": run.manifest.run_id,
        "origin": run.manifest.origin,
        "made_by": f"inferometer {run.manifest.tool_version}",
        "first_step": first_step,
        "n_steps": n_left,
        "n_steps_of_run": n_all,
    }
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}, n_left


def _events(run: Run, steps: StepTable, first_step: int, n_steps: int) -> list[Event]:
    events = [_named("process_name", _COUNTERS, 0, f"{run.manifest.run_id}: engine")]
    if run.parts is not None:
        events += _seat_events(
            slot_timeline(run, first_step=first_step, n_steps=n_steps), run.manifest.run_id
        )
    window = slice(first_step, first_step + n_steps)
    counters = {
        "requests running": (steps.n_prefill_requests + steps.n_decode_requests)[window],
        "requests waiting": steps.n_waiting_requests[window],
        "KV blocks used": steps.kv_blocks_used[window],
        "prefill tokens of a step": steps.prefill_tokens[window],
        "decode tokens of a step": steps.n_decode_requests[window],
        "preempted by a step": steps.n_preempted_requests[window],
    }
    start_ns = steps.start_ns[window]
    end_ns = int(start_ns[-1] + max(int(steps.duration_ns[window][-1]), 0))
    for name, column in counters.items():
        events += _counter_events(name, start_ns, column.astype(np.int64), end_ns)
    return events


def _seat_events(timeline: SlotTimeline, run_id: str) -> list[Event]:
    events = [_named("process_name", _SEATS, 0, f"{run_id}: slots")]
    for seat in range(timeline.states.shape[0]):
        events += [
            _named("thread_name", _SEATS, seat + 1, f"slot {seat}"),
            {
                "ph": "M",
                "name": "thread_sort_index",
                "pid": _SEATS,
                "tid": seat + 1,
                "args": {"sort_index": seat},
            },
        ]
    slices = slices_of(timeline)
    starts_ns = [one.start_ns for one in slices]
    ends_ns = [one.start_ns + one.duration_ns for one in slices]
    for i, (one, after) in enumerate(pairwise(slices)):
        if one.seat == after.seat:
            ends_ns[i] = min(
                ends_ns[i], after.start_ns
            )  # steps of an engine that schedules ahead overlap, slices of a track may not
    events += [
        {
            "ph": "X",
            "name": STATE_NAMES[one.state],
            "cat": "slot",
            "pid": _SEATS,
            "tid": one.seat + 1,
            "ts": start_ns / _NS_PER_US,
            "dur": (end_ns - start_ns) / _NS_PER_US,
            "args": {
                "request": one.request_index,
                "first_step": one.first_step,
                "n_steps": one.n_steps,
                "tokens": one.n_tokens,
            },
        }
        for one, start_ns, end_ns in zip(slices, starts_ns, ends_ns, strict=True)
    ]
    return events


def _counter_events(name: str, start_ns: I64, column: I64, end_ns: int) -> list[Event]:
    """A counter at its changes, and its last value; steps where it is unknown are left out."""
    known = np.flatnonzero(column != ABSENT)
    if not known.size:
        return []
    values = column[known]
    changes = known[np.concatenate([[True], values[1:] != values[:-1]])]
    points = [
        *zip(start_ns[changes].tolist(), column[changes].tolist(), strict=True),
        (end_ns, int(values[-1])),
    ]
    return [
        {
            "ph": "C",
            "name": name,
            "pid": _COUNTERS,
            "tid": 0,
            "ts": instant / _NS_PER_US,
            "args": {"value": value},
        }
        for instant, value in points
    ]


def _named(what: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}
