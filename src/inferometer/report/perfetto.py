"""What happened in a run, as a trace for ui.perfetto.dev.

The client's requests and what they waited for, the router's choices, and for each replica a track
for each slot of the batch and counters for queue, KV cache and tokens. The index of the request
stands in each of them.

Source: Trace Event Format (Google, 2016), the JSON that Chrome and Perfetto read: complete events
(X), asynchronous ones that nest by their id (b, e), counters (C) and metadata (M); times in
microseconds. Compressed with gzip where the name ends in .gz.
"""

import gzip
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.errors import RecordError
from inferometer.records import tables
from inferometer.records.columns import I64
from inferometer.records.run_folder import make_folder, replace_file
from inferometer.records.slot_timeline import SlotTimeline, slices_of, slot_timeline
from inferometer.records.types import ABSENT, RequestStatus, Run, StepTable
from inferometer.report.request_tables import STATE_NAMES

MAX_EVENTS: Final = 400_000
"""About 60 MB of JSON, 4 MB compressed: what the page of Perfetto still opens at once."""

_MAX_CELLS: Final = 20_000_000
_CLIENT: Final = 1
_ROUTER: Final = 2
_FIRST_REPLICA: Final = 10
"""Process of its slots; that of its counters follows."""
_NS_PER_US: Final = 1000

Event: TypeAlias = dict[str, Any]


def write_perfetto(run: Run, path: Path) -> int:
    """Write the trace of these steps and say of how many: as many as ``MAX_EVENTS`` allow.

    Without parts of steps there are no slots, without requests no client.

    Raises
    ------
    RecordError
        The run has no steps, or the file cannot be written.
    """
    trace, n_written = perfetto_trace(run)
    content = json.dumps(trace, separators=(",", ":"), allow_nan=False).encode()
    make_folder(path.parent)
    replace_file(
        path, gzip.compress(content, compresslevel=6, mtime=0) if path.suffix == ".gz" else content
    )
    return n_written


def perfetto_trace(run: Run) -> tuple[dict[str, Any], int]:
    """The trace as JSON will hold it, and how many steps it covers."""
    steps = run.steps
    if steps is None or not len(steps.start_ns):
        raise RecordError(
            "the run has no steps",
            where=run.manifest.run_id,
            allowed="a simulated run, or a sweep with its steps",
        )
    n_all = len(steps.start_ns)
    n_slots = 1 if run.parts is None else int(run.parts.slot.max(initial=0)) + 1
    n_steps = max(1, min(n_all, _MAX_CELLS // n_slots))
    while True:
        events = _events(run, steps, n_steps)
        if len(events) <= MAX_EVENTS or n_steps == 1:
            break
        n_steps = max(1, min(n_steps - 1, n_steps * MAX_EVENTS // len(events)))
    about = {
        "run": run.manifest.run_id,
        "origin": run.manifest.origin,
        "made_by": f"inferometer {run.manifest.tool_version}",
        "first_step": 0,
        "n_steps": n_steps,
        "n_steps_of_run": n_all,
    }
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}, n_steps


class _Window(NamedTuple):
    """The first steps of a run, and from when to when they are."""

    n_steps: int
    start_ns: int
    end_ns: int


def _events(run: Run, steps: StepTable, n_steps: int) -> list[Event]:
    start_ns = steps.start_ns[:n_steps]
    ends_ns = start_ns + np.maximum(steps.duration_ns[:n_steps], 0)
    window = _Window(n_steps, int(start_ns.min()), int(ends_ns.max()))
    replicas = np.unique(steps.replica).tolist()
    names = {replica: f", replica {replica}" if len(replicas) > 1 else "" for replica in replicas}
    events = list[Event]()
    for replica in replicas:
        events.append(
            _named(
                "process_name",
                _process(replica) + 1,
                0,
                f"{run.manifest.run_id}: engine{names[replica]}",
            )
        )
    if run.parts is not None:
        events += _slot_events(run, steps, window, names)
    for replica in replicas:
        events += _replica_counters(steps, n_steps, replica)
    return [*events, *_client_events(run, window), *_router_events(run, window)]


def _process(replica: int) -> int:
    return _FIRST_REPLICA + 2 * max(replica, 0)


def _replica_counters(steps: StepTable, n_steps: int, replica: int) -> list[Event]:
    """Counters of one replica's steps: its queue, its KV cache, its tokens."""
    own = np.flatnonzero(steps.replica[:n_steps] == replica)
    if not own.size:
        return []
    counters = {
        "requests running": steps.n_prefill_requests + steps.n_decode_requests,
        "requests waiting": steps.n_waiting_requests,
        "KV blocks used": steps.kv_blocks_used,
        "prefill tokens of a step": steps.prefill_tokens,
        "decode tokens of a step": steps.n_decode_requests,
        "preempted by a step": steps.n_preempted_requests,
    }
    start_ns = steps.start_ns[own]
    end_ns = int(start_ns[-1] + max(int(steps.duration_ns[own[-1]]), 0))
    return [
        event
        for name, column in counters.items()
        for event in _counter_events(
            name, start_ns, column[own].astype(np.int64), end_ns, _process(replica) + 1
        )
    ]


def _slot_events(run: Run, steps: StepTable, window: _Window, names: dict[int, str]) -> list[Event]:
    """A track for each used slot, by the steps of its replica."""
    parts, events = run.parts, list[Event]()
    if parts is None:
        return events
    for replica, name in names.items():
        own = np.flatnonzero(steps.replica == replica)
        n_own = int(np.searchsorted(own, window.n_steps))
        computed = np.flatnonzero(steps.replica[parts.step_index] == replica)
        if not n_own or not computed.size:
            continue
        mine = tables.select(parts, computed)
        mine = mine._replace(
            step_index=np.searchsorted(own, mine.step_index).astype(np.int32),
            slot=mine.slot - (mine.slot.min() if len(names) > 1 else 0),
        )
        timeline = slot_timeline(
            replace(run, steps=tables.select(steps, own), parts=mine),
            n_steps=n_own,
        )
        events.append(
            _named("process_name", _process(replica), 0, f"{run.manifest.run_id}: slots{name}")
        )
        events += _slices(timeline, _process(replica), own)
    return events


def _slices(timeline: SlotTimeline, process: int, step_of: NDArray[np.intp]) -> list[Event]:
    slices = slices_of(timeline)
    starts_ns = [one.start_ns for one in slices]
    ends_ns = [one.start_ns + one.duration_ns for one in slices]
    for i, (one, after) in enumerate(pairwise(slices)):
        if one.slot == after.slot:
            ends_ns[i] = min(
                ends_ns[i], after.start_ns
            )  # steps of an engine that schedules ahead overlap, slices of a track may not
    events = list[Event]()
    for slot in sorted({one.slot for one in slices}):
        events.append(_named("thread_name", process, slot + 1, f"slot {slot}"))
        events.append(
            {
                "ph": "M",
                "name": "thread_sort_index",
                "pid": process,
                "tid": slot + 1,
                "args": {"sort_index": slot},
            }
        )
    return events + [
        {
            "ph": "X",
            "name": STATE_NAMES[one.state],
            "cat": "slot",
            "pid": process,
            "tid": one.slot + 1,
            "ts": start_ns / _NS_PER_US,
            "dur": (end_ns - start_ns) / _NS_PER_US,
            "args": {
                "request": one.request_index,
                "first_step": int(step_of[one.first_step]),
                "n_steps": one.n_steps,
                "tokens": one.n_tokens,
            },
        }
        for one, start_ns, end_ns in zip(slices, starts_ns, ends_ns, strict=True)
    ]


def _client_events(run: Run, window: _Window) -> list[Event]:
    """Each request of the window as its client saw it, with its waits."""
    requests = run.requests
    if requests is None or not len(requests.status):
        return []
    events = [_named("process_name", _CLIENT, 0, f"{run.manifest.run_id}: client")]
    rows = zip(
        requests.request_index.tolist(),
        requests.intended_send_ns.tolist(),
        requests.sent_ns.tolist(),
        requests.admitted_ns.tolist(),
        requests.first_token_ns.tolist(),
        requests.finished_ns.tolist(),
        requests.prompt_tokens.tolist(),
        requests.output_tokens.tolist(),
        requests.status.tolist(),
        strict=True,
    )
    for index, due, sent, admitted, first, finished, n_prompt, n_output, status in rows:
        about = {
            "request": index,
            "prompt_tokens": n_prompt,
            "output_tokens": n_output,
            "status": RequestStatus(status).name.lower(),
        }
        stages = (
            ("schedule delay", due),
            ("until the first token" if admitted == ABSENT else "queue", sent),
            ("prefill", admitted),
            ("decode", first),
        )
        begun = [(name, at_ns) for name, at_ns in stages if at_ns != ABSENT]
        whose = (_CLIENT, index)
        whole = _spanned("request", (due, finished), window, whose, about)
        inside = list[Event]()
        for (name, start_ns), (_, end_ns) in pairwise([*begun, ("", finished)]):
            if end_ns == ABSENT or end_ns > start_ns:
                inside += _spanned(name, (start_ns, end_ns), window, whose, {"request": index})
        events += [*whole[:1], *inside, *whole[1:]]  # what ends at one instant ends inside first
    return events


def _router_events(run: Run, window: _Window) -> list[Event]:
    """Each request's replica, and the number of requests of each replica."""
    visits = run.visits
    if visits is None or not len(visits.replica):
        return []
    events = [_named("process_name", _ROUTER, 0, f"{run.manifest.run_id}: router")]
    rows = zip(*(column.tolist() for column in visits), strict=True)
    for index, replica, arrived_ns, left_ns in rows:
        about = {"request": index, "replica": replica}
        name, whose = f"to replica {replica}", (_ROUTER, index)
        events += _spanned(name, (arrived_ns, left_ns), window, whose, about)
    for replica in np.unique(visits.replica).tolist():
        own = visits.replica == replica
        left_ns = visits.left_ns[own]
        at_ns = np.concatenate([visits.arrived_ns[own], left_ns[left_ns != ABSENT]])
        change = np.concatenate(
            [np.ones(int(own.sum()), np.int64), -np.ones(len(at_ns) - int(own.sum()), np.int64)]
        )
        order = np.argsort(at_ns, kind="stable")
        at_ns, n_there = at_ns[order], np.cumsum(change[order])
        is_last = np.append(at_ns[1:] != at_ns[:-1], True)
        shown = is_last & (at_ns >= window.start_ns) & (at_ns <= window.end_ns)
        name = f"requests at replica {replica}"
        if shown.any():
            events += _counter_events(name, at_ns[shown], n_there[shown], window.end_ns, _ROUTER)
    return events


def _spanned(
    name: str,
    ends_ns: tuple[int, int],
    window: _Window,
    whose: tuple[int, int],
    about: dict[str, Any],
) -> list[Event]:
    """Begin and end on the track of this process and request, cut to the window.

    An end that is absent is the window's.
    """
    start_ns = max(ends_ns[0], window.start_ns)
    end_ns = window.end_ns if ends_ns[1] == ABSENT else min(ends_ns[1], window.end_ns)
    if end_ns < start_ns:
        return []
    process, index = whose
    both = {"name": name, "cat": "request", "pid": process, "tid": 0, "id": index}
    return [
        {**both, "ph": "b", "ts": start_ns / _NS_PER_US, "args": about},
        {**both, "ph": "e", "ts": end_ns / _NS_PER_US},
    ]


def _counter_events(
    name: str, start_ns: I64, column: I64, end_ns: int, process: int
) -> list[Event]:
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
            "pid": process,
            "tid": 0,
            "ts": instant / _NS_PER_US,
            "args": {"value": value},
        }
        for instant, value in points
    ]


def _named(what: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}
