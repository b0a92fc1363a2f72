"""What did each slot of the batch do in each step: context, generation, end of sequence, or nothing?

Letters of shapes: B slots, S steps of the window.
"""

from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer import suggestions
from inferometer.errors import RecordError
from inferometer.records import tables
from inferometer.records.columns import I32, I64
from inferometer.records.latencies import COMPLETED, is_one_of
from inferometer.records.types import PartKind, Run, StepPartTable, StepTable

Cells: TypeAlias = NDArray[np.int8]

NOBODY: Final = -1
DEFAULT_STEPS: Final = 120


class CellState(IntEnum):
    """Activity of a slot in a step."""

    IDLE = 0
    CONTEXT = 1
    """Computed (a chunk of) a prompt: prefill."""
    GENERATION = 2
    """Computed an output token: decode."""
    END = 3
    """Computed an answer's last token, or was still held by an ended request."""


def made_by() -> str:
    """The command that makes a run whose slots are known."""
    return suggestions.command("simulate", "MODEL", "--hardware", "ID", "--parts", "--out", "RUN")


class SlotTimeline(NamedTuple):
    """A window of steps of a run."""

    first_step: int
    n_steps_of_run: int
    start_ns: I64
    """(S)"""
    duration_ns: I64
    """(S)"""
    states: Cells
    """(B, S) A ``CellState``."""
    requests: I32
    """(B, S) ``request_index``, NOBODY where the slot is idle."""
    tokens: I32
    """(B, S) Tokens computed."""
    tick_ns: int | None = None
    """Length of a tick in these columns; None: real time."""


class Slice(NamedTuple):
    """Steps that follow one another in which a slot did the same for the same request."""

    slot: int
    state: CellState
    request_index: int
    first_step: int
    n_steps: int
    start_ns: int
    duration_ns: int
    n_tokens: int


def slot_timeline(
    run: Run,
    *,
    first_step: int = 0,
    n_steps: int = DEFAULT_STEPS,
    tick_ns: int | None = None,
    needs_parts: bool = True,
) -> SlotTimeline:
    """Activity of each slot in these steps.

    Unused slots below a used one are included.

    ``tick_ns`` is that of a run of ticks: how long a tick is in its tables. Without
    ``needs_parts`` a run whose parts were not recorded has no slots.

    Raises
    ------
    RecordError
        Nobody recorded who did what in each step, or the run has no such step.
    """
    steps, parts = _recorded(run, needs_parts=needs_parts)
    n_steps_of_run = len(steps.start_ns)
    if not 0 <= first_step < n_steps_of_run or n_steps < 1:
        raise _no_window(run, first_step, n_steps, n_steps_of_run)
    last_step = min(first_step + n_steps, n_steps_of_run)
    begin, end = np.searchsorted(parts.step_index, [first_step, last_step])
    window = StepPartTable._make(column[begin:end] for column in parts)
    shape = (int(window.slot.max(initial=-1)) + 1, last_step - first_step)
    states = np.zeros(shape, np.int8)
    requests = np.full(shape, NOBODY, np.int32)
    tokens = np.zeros(shape, np.int32)
    place = (window.slot, window.step_index - first_step)
    states[place] = np.array([CellState.CONTEXT, CellState.GENERATION, CellState.END], np.int8)[
        window.kind
    ]
    requests[place] = window.request_index
    tokens[place] = window.n_computed_tokens
    ends = _last_generations(run, parts, begin, end)
    states[window.slot[ends], window.step_index[ends] - first_step] = CellState.END
    return SlotTimeline(
        first_step=first_step,
        n_steps_of_run=n_steps_of_run,
        start_ns=steps.start_ns[first_step:last_step],
        duration_ns=steps.duration_ns[first_step:last_step],
        states=states,
        requests=requests,
        tokens=tokens,
        tick_ns=tick_ns,
    )


def slices_of(timeline: SlotTimeline) -> tuple[Slice, ...]:
    """Non-idle cells, equal neighbours joined; by slot, then by time."""
    n_slots, n_steps = timeline.states.shape
    changes = np.ones((n_slots, n_steps), np.bool_)
    same_state = timeline.states[:, 1:] == timeline.states[:, :-1]
    changes[:, 1:] = ~(same_state & (timeline.requests[:, 1:] == timeline.requests[:, :-1]))
    end_ns = timeline.start_ns + timeline.duration_ns
    found: list[Slice] = []
    for slot in range(n_slots):
        starts = np.flatnonzero(changes[slot])
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), n_steps], strict=True):
            if timeline.states[slot, start] != CellState.IDLE:
                found.append(
                    Slice(
                        slot=slot,
                        state=CellState(int(timeline.states[slot, start])),
                        request_index=int(timeline.requests[slot, start]),
                        first_step=timeline.first_step + start,
                        n_steps=stop - start,
                        start_ns=int(timeline.start_ns[start]),
                        duration_ns=int(end_ns[stop - 1] - timeline.start_ns[start]),
                        n_tokens=int(timeline.tokens[slot, start:stop].sum()),
                    )
                )
    return tuple(found)


def state_shares(timeline: SlotTimeline) -> dict[CellState, float]:
    """Share of all cells of the window in each state."""
    n_cells = max(timeline.states.size, 1)
    return {state: float((timeline.states == state).sum()) / n_cells for state in CellState}


def _no_window(run: Run, first_step: int, n_steps: int, n_steps_of_run: int) -> RecordError:
    return RecordError(
        f"a window of {n_steps} steps from step {first_step}",
        where=run.manifest.run_id,
        allowed=f"steps 0 to {n_steps_of_run - 1}",
        try_="the first steps",
    )


def _recorded(run: Run, *, needs_parts: bool) -> tuple[StepTable, StepPartTable]:
    if run.steps is not None and run.parts is None and not needs_parts:
        return run.steps, tables.from_rows(StepPartTable, [])
    if run.steps is None or run.parts is None:
        raise RecordError(
            "who did what in each step was not recorded",
            where=run.manifest.run_id,
            allowed="a simulated run with its step parts",
            try_=made_by(),
        )
    return run.steps, run.parts


def _last_generations(run: Run, parts: StepPartTable, begin: int, end: int) -> NDArray[np.intp]:
    """Parts of the window (from ``begin``) that computed the last token of a completed answer."""
    if run.requests is None:
        return np.empty(0, np.intp)
    is_completed = np.zeros(
        int(max(run.requests.request_index.max(initial=0), parts.request_index.max(initial=0))) + 1,
        np.bool_,
    )
    is_completed[run.requests.request_index] = is_one_of(run.requests, COMPLETED)
    last = np.full(is_completed.size, -1, np.int64)
    computing = np.flatnonzero(parts.kind != PartKind.ENDED)
    last[parts.request_index[computing]] = computing  # of parts in order, the last one stays
    rows = np.arange(begin, end)
    requests = parts.request_index[begin:end]
    is_last = (
        (last[requests] == rows)
        & is_completed[requests]
        & (parts.kind[begin:end] == PartKind.GENERATION)
    )
    return np.flatnonzero(is_last)
