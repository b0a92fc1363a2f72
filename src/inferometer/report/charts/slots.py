"""Is the batch full, and who blocks whom? What each seat did in each step of a window."""

from collections.abc import Sequence
from typing import Final

import altair as alt

from inferometer.records.slot_timeline import (
    CellState,
    Slice,
    SlotTimeline,
    slices_of,
    state_shares,
)
from inferometer.report.charts.frame import GRID, INK, WIDTH, ChartSpec, Row, finished, values
from inferometer.report.request_views import RequestReportView
from inferometer.report.request_words import (
    STATE_COLOURS,
    STATE_LETTERS,
    STATE_NAMES,
    slot_time_text,
)
from inferometer.units import format_fraction

MAX_SEATS: Final = 48
MAX_SLICES: Final = 1500
"""As many marks as a page can carry; seats beyond them are left to the trace."""
_LETTER_WIDTH: Final = 9
_ROW_HEIGHT: Final = 17
_MAX_TABLE_ROWS: Final = 60


def slots_chart(view: RequestReportView) -> ChartSpec | None:
    """Seats against steps, where the run says who did what."""
    return None if view.timeline is None else timeline_chart(view.timeline)


def timeline_chart(
    timeline: SlotTimeline, *, chart_id: str = "slot-timeline", who: str = ""
) -> ChartSpec | None:
    """Seats against steps; letters repeat the colours, white is idle.

    ``who`` stands before the title where there are several.
    """
    if not timeline.states.size:
        return None
    slices = slices_of(timeline)
    n_seats = _n_drawn(timeline, slices)
    drawn = [one for one in slices if one.seat < n_seats]
    states = [state for state in STATE_COLOURS if any(one.state == state for one in drawn)]
    if not states:
        return None
    n_steps = timeline.states.shape[1]
    last = timeline.first_step + n_steps
    rows = [_row(timeline, one, cell_width=WIDTH / n_steps) for one in drawn]
    return ChartSpec(
        chart_id=chart_id,
        title=(
            f"{f'{who}: what' if who else 'What'} each seat did, steps {timeline.first_step} to"
            f" {last - 1}"
        ),
        finding=_finding(timeline, n_seats),
        spec=finished(
            _layers(timeline, rows, states, n_seats), height=max(60, _ROW_HEIGHT * n_seats)
        ),
        header=("seat", "did", "request", "steps", "tokens", "from", "for"),
        rows=tuple(_cells(timeline, one) for one in drawn[:_MAX_TABLE_ROWS]),
    )


def _layers(
    timeline: SlotTimeline, rows: Sequence[Row], states: Sequence[CellState], n_seats: int
) -> list[alt.Chart]:
    """A row for each seat, a bar for each slice, letters on the bars."""
    last = timeline.first_step + timeline.states.shape[1]
    x_scale = alt.Scale(domain=[timeline.first_step, last], nice=False)
    x = alt.X(
        "x:Q",
        scale=x_scale,
        axis=alt.Axis(
            title="step of the engine", tickCount=10, format="d", grid=False, tickMinStep=1
        ),
    )
    names = [f"seat {seat}" for seat in range(n_seats)]
    y = alt.Y(
        "seat:N",
        sort=names,
        scale=alt.Scale(domain=names, padding=0.08),
        axis=alt.Axis(title=None, grid=False),
    )
    domain = [_legend_name(state) for state in states]
    colour = alt.Color(
        "state:N",
        sort=domain,
        scale=alt.Scale(domain=domain, range=[STATE_COLOURS[state] for state in states]),
    )
    tooltip = ["state:N", "request:N", "seat:N", "steps:N", alt.Tooltip("tokens:Q"), "time:N"]
    whole = [{"seat": name, "x": timeline.first_step, "to": last} for name in names]
    layers = [
        alt.Chart(values(whole)).mark_bar(fill=GRID, fillOpacity=0.35).encode(x=x, x2="to:Q", y=y),
        alt.Chart(values(rows))
        .mark_bar(stroke="white", strokeWidth=0.6)
        .encode(x=x, x2="to:Q", y=y, color=colour, tooltip=tooltip),
    ]
    for state in states:
        labelled = [row for row in rows if row["label"] and row["state"] == _legend_name(state)]
        if labelled:
            ink = INK if state is CellState.CONTEXT else "white"
            text = alt.Chart(values(labelled)).mark_text(fontSize=9, color=ink)
            layers.append(text.encode(x=alt.X("middle:Q", scale=x_scale), y=y, text="label:N"))
    return layers


def _n_drawn(timeline: SlotTimeline, slices: Sequence[Slice]) -> int:
    """How many seats are drawn? As many as do not make the page heavy."""
    n_seats: int = min(timeline.states.shape[0], MAX_SEATS)
    while n_seats > 1 and sum(one.seat < n_seats for one in slices) > MAX_SLICES:
        n_seats -= 1
    return n_seats


def _legend_name(state: CellState) -> str:
    return f"{STATE_LETTERS[state]}  {STATE_NAMES[state]}"


def _row(timeline: SlotTimeline, one: Slice, *, cell_width: float) -> Row:
    letter = STATE_LETTERS[one.state]
    room = one.n_steps * cell_width
    long = f"{letter} {one.request_index}"
    label = long if room >= 7 * len(long) else letter if room >= _LETTER_WIDTH else ""
    last = one.first_step + one.n_steps - 1
    return {
        "seat": f"seat {one.seat}",
        "x": one.first_step,
        "to": one.first_step + one.n_steps,
        "middle": one.first_step + one.n_steps / 2,
        "state": _legend_name(one.state),
        "request": str(one.request_index),
        "steps": str(one.first_step) if one.n_steps == 1 else f"{one.first_step} to {last}",
        "tokens": one.n_tokens,
        "time": slot_time_text(timeline, one.duration_ns),
        "label": label,
    }


def _finding(timeline: SlotTimeline, n_seats: int) -> str:
    shares = state_shares(timeline)
    parts = [
        f"{STATE_NAMES[state]} {format_fraction(shares[state])}"
        for state in (*STATE_COLOURS, CellState.IDLE)
    ]
    took = slot_time_text(
        timeline, int(timeline.start_ns[-1] + timeline.duration_ns[-1] - timeline.start_ns[0])
    )
    n_all, n_steps = timeline.states.shape
    left_out = f"; the first {n_seats} of them are drawn" if n_seats < n_all else ""
    return f"Of {n_all} seats over {n_steps} steps ({took}): {', '.join(parts)}{left_out}."


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
