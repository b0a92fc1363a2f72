"""Is the batch full, and who blocks whom? What each slot of the batch did in each step of a window."""

from collections.abc import Sequence
from typing import Final

from inferometer.records.slot_timeline import (
    CellState,
    Slice,
    SlotTimeline,
    slices_of,
    state_shares,
)
from inferometer.report.charts.plot import Axis, Boxes, Chart, Mark, Plot, Text, tip
from inferometer.report.request_tables import (
    STATE_COLOURS,
    STATE_LETTERS,
    STATE_NAMES,
    slot_time_text,
)
from inferometer.report.views import RequestReportView
from inferometer.units import format_fraction

MAX_SLOTS: Final = 48
MAX_SLICES: Final = 1500
"""As many marks as a page can carry; slots beyond them are left to the trace."""
_ROW_HEIGHT: Final = 17
_MAX_TABLE_ROWS: Final = 60
_WIDTH: Final = 1000
"""Of a usual screen: letters that have no room there are left out."""
_COLOURS: Final = {
    CellState.CONTEXT: "context",
    CellState.GENERATION: "generation",
    CellState.END: "end",
}


def slots_chart(view: RequestReportView) -> Chart | None:
    """Slots against steps, for runs with recorded parts."""
    return None if view.timeline is None else timeline_chart(view.timeline)


def timeline_chart(
    timeline: SlotTimeline, *, chart_id: str = "slot-timeline", who: str = ""
) -> Chart | None:
    """Slots against steps; letters repeat the colours, white is idle.

    ``who`` stands before the title where there are several.
    """
    if not timeline.states.size:
        return None
    slices = slices_of(timeline)
    n_slots = _n_drawn(timeline, slices)
    drawn = [one for one in slices if one.seat < n_slots]
    states = [state for state in STATE_COLOURS if any(one.state == state for one in drawn)]
    if not states:
        return None
    n_steps = timeline.states.shape[1]
    last = timeline.first_step + n_steps
    return Chart(
        chart_id=chart_id,
        title=(
            f"{f'{who}: what' if who else 'What'} each slot did, steps {timeline.first_step} to"
            f" {last - 1}"
        ),
        finding=_finding(timeline, n_slots),
        plots=(
            Plot(
                x=Axis(
                    title="step of the engine",
                    low=timeline.first_step,
                    high=timeline.first_step + n_steps,
                ),
                y=Axis(
                    title="slot, from the top",
                    low=n_slots,
                    high=0,
                    ticks=tuple(slot + 0.5 for slot in range(n_slots)),
                    labels=tuple(str(slot) for slot in range(n_slots)),
                ),
                marks=tuple(_marks(timeline, drawn, states, n_slots)),
                height=max(60, _ROW_HEIGHT * n_slots),
            ),
        ),
        header=("slot", "did", "request", "steps", "tokens", "from", "for"),
        rows=tuple(_cells(timeline, one) for one in drawn[:_MAX_TABLE_ROWS]),
    )


def _marks(
    timeline: SlotTimeline, drawn: Sequence[Slice], states: Sequence[CellState], n_slots: int
) -> list[Mark]:
    """A row for each slot, a bar for each slice, letters on the bars."""
    first, n_steps = timeline.first_step, timeline.states.shape[1]
    idle = [(first, first + n_steps, slot + 0.06, slot + 0.94) for slot in range(n_slots)]
    marks: list[Mark] = [Boxes(boxes=idle, colour="idle")]
    for state in states:
        chosen = [one for one in drawn if one.state == state]
        marks.append(
            Boxes(
                boxes=[
                    (
                        one.first_step + 0.04,
                        one.first_step + one.n_steps - 0.04,
                        one.seat + 0.06,
                        one.seat + 0.94,
                    )
                    for one in chosen
                ],
                name=f"{STATE_LETTERS[state]}  {STATE_NAMES[state]}",
                colour=_COLOURS[state],
                tips=[_tip(timeline, one) for one in chosen],
            )
        )
        marks += [
            Text(
                x=one.first_step + one.n_steps / 2,
                y=one.seat + 0.5,
                text=label,
                is_wide_only=True,
                looks="on-light" if state is CellState.CONTEXT else "on-dark",
            )
            for one in chosen
            if (label := _label(one, cell_width=_WIDTH / n_steps))
        ]
    return marks


def _label(one: Slice, *, cell_width: float) -> str:
    letter = STATE_LETTERS[one.state]
    long, room = f"{letter} {one.request_index}", one.n_steps * cell_width
    return long if room >= 7 * len(long) else letter if room >= 9 else ""


def _tip(timeline: SlotTimeline, one: Slice) -> str:
    last = one.first_step + one.n_steps - 1
    return tip(
        (STATE_NAMES[one.state], f"request {one.request_index}"),
        ("slot", str(one.seat)),
        ("steps", str(last) if one.n_steps == 1 else f"{one.first_step} to {last}"),
        ("tokens", str(one.n_tokens)),
        ("for", slot_time_text(timeline, one.duration_ns)),
    )


def _n_drawn(timeline: SlotTimeline, slices: Sequence[Slice]) -> int:
    """Number of slots to draw, limited by the page's size."""
    n_slots: int = min(timeline.states.shape[0], MAX_SLOTS)
    while n_slots > 1 and sum(one.seat < n_slots for one in slices) > MAX_SLICES:
        n_slots -= 1
    return n_slots


def _finding(timeline: SlotTimeline, n_slots: int) -> str:
    shares = state_shares(timeline)
    parts = [
        f"{STATE_NAMES[state]} {format_fraction(shares[state])}"
        for state in (*STATE_COLOURS, CellState.IDLE)
    ]
    took = slot_time_text(
        timeline, int(timeline.start_ns[-1] + timeline.duration_ns[-1] - timeline.start_ns[0])
    )
    n_all, n_steps = timeline.states.shape
    left_out = f"; the first {n_slots} of them are drawn" if n_slots < n_all else ""
    return f"Of {n_all} slots over {n_steps} steps ({took}): {', '.join(parts)}{left_out}."


def _cells(timeline: SlotTimeline, one: Slice) -> tuple[str, ...]:
    return (
        str(one.seat),
        STATE_NAMES[one.state],
        str(one.request_index),
        str(one.n_steps),
        str(one.n_tokens),
        slot_time_text(timeline, one.start_ns),
        slot_time_text(timeline, one.duration_ns),
    )
