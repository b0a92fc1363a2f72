"""What happened over the time of a run of requests, and in each slot of the batch?

Stalls across users, requests in flight, how late the client was; requests one by one, and
percentiles of windows of time.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from inferometer.records.columns import F64
from inferometer.records.request_summaries import Judgement
from inferometer.records.run_series import GapMap
from inferometer.records.slot_timeline import (
    CellState,
    Slice,
    SlotTimeline,
    slices_of,
    state_shares,
)
from inferometer.report.charts.plot import (
    Axis,
    Boxes,
    Chart,
    Dots,
    Line,
    Mark,
    Plot,
    Rule,
    Text,
    held_band,
    held_line,
    tip,
)
from inferometer.report.request_tables import (
    LATENCY_NAMES,
    STATE_COLOURS,
    STATE_LETTERS,
    STATE_NAMES,
    slot_time_text,
)
from inferometer.report.views import LatencyHistory, RequestReportView
from inferometer.units import format_duration, format_fraction, format_number

_NAMES: Final = ("p50", "p90", "p99")


def history_chart(view: RequestReportView) -> Chart | None:
    """TTFT against the intended send; time outside the steady state is shaded."""
    return _chart(view.history, view.judgement)


def tpot_history_chart(view: RequestReportView) -> Chart | None:
    """TPOT against the intended send; time outside the steady state is shaded."""
    return _chart(view.tpot_history, view.judgement)


def _chart(history: LatencyHistory | None, judgement: Judgement | None) -> Chart | None:
    if history is None or not (history.lower_s > 0).any():
        return None
    name = LATENCY_NAMES[history.latency]
    plot = Plot(
        x=Axis(title="intended send, s since the start of the run"),
        y=Axis(title=f"{name}, ms (log scale)", scale="log"),
        marks=(*_limits(history, judgement), *_marks(history)),
        height=280,
        has_brush=True,
        legend=_legend(history),
    )
    return Chart(
        chart_id=f"{history.latency}-over-time",
        title=f"{name} over the time of the run",
        finding=_finding(history, name),
        plots=(plot,),
        header=("sent from, s", "requests", "not done", "p50", "p90", "p99"),
        rows=tuple(
            _cells(history, i)
            for i in range(0, len(history.windows.start_s), 1 + len(history.windows.start_s) // 24)
        ),
    )


def _limits(history: LatencyHistory, judgement: Judgement | None) -> list[Mark]:
    thresholds = () if judgement is None else judgement.thresholds
    return [
        Rule(at=1e3 * one.threshold.limit_s, text=f"SLO: {one.threshold.text}")
        for one in thresholds
        if one.threshold.metric == history.latency
    ]


def _legend(history: LatencyHistory) -> str:
    n_drawn = int((history.lower_s > 0).sum())
    drawn = (
        "each small dot is a request"
        if n_drawn == history.n_requests
        else f"small dots: {n_drawn} of {history.n_requests} requests"
    )
    parts = [
        drawn,
        "orange: not done, at least" if history.is_bounded_below_only.any() else "",
        f"lines: percentiles of windows of {format_duration(history.windows.width_s)}"
        if not np.isnan(history.windows.p50_s).all()
        else "",
        "shaded: warm-up and drain" if history.steady_s is not None else "",
    ]
    return " · ".join(part for part in parts if part)


def _marks(history: LatencyHistory) -> list[Mark]:
    """Single requests, percentiles of windows, and time outside the steady state."""
    is_shown = history.lower_s > 0
    undone = is_shown & history.is_bounded_below_only
    marks = list[Mark]()
    for chosen, colour in ((is_shown & ~undone, "c5"), (undone, "c1")):
        if chosen.any():
            xs, ys = history.sent_s[chosen].tolist(), (1e3 * history.lower_s[chosen]).tolist()
            marks.append(Dots(xs=xs, ys=ys, colour=colour, is_small=True))
    windows = history.windows
    middles = windows.start_s + windows.width_s / 2
    columns = (windows.p50_s, windows.p90_s, windows.p99_s)
    for rank, (name, column) in enumerate(zip(_NAMES, columns, strict=True)):
        values = np.where(column > 0, 1e3 * column, np.nan)
        if not np.isnan(values).all():
            marks.append(
                Line(xs=middles.tolist(), ys=values.tolist(), name=name, colour=f"c{rank}")
            )
    if history.steady_s is not None and len(history.sent_s):
        first_s, last_s = float(history.sent_s[0]), float(history.sent_s[-1])
        start_s, end_s = history.steady_s
        shown = 1e3 * history.lower_s[is_shown]
        low, high = float(shown.min()) / 1.05, float(shown.max()) * 1.05
        boxes = [(a, b, low, high) for a, b in ((first_s, start_s), (end_s, last_s)) if b > a]
        marks += [Boxes(boxes=boxes, colour="shade")] if boxes else []
    return marks


def _finding(history: LatencyHistory, name: str) -> str:
    """The median in the first and in the last window that have one."""
    found = [value for value in history.windows.p50_s.tolist() if not math.isnan(value)]
    undone = int(history.windows.n_bounded_below_only.sum())
    rest = (
        f"; {undone} of {history.n_requests} requests were not that far when the run ended"
        if undone
        else ""
    )
    if len(found) < 2:
        return (
            f"{name} of {history.n_requests} requests, too few to compare the beginning with the"
            f" end{rest}."
        )
    return (
        f"Median {name} is {format_duration(found[0])} in the first window and"
        f" {format_duration(found[-1])} in the last{rest}."
    )


def _cells(history: LatencyHistory, i: int) -> tuple[str, ...]:
    windows = history.windows
    values_s = (float(windows.p50_s[i]), float(windows.p90_s[i]), float(windows.p99_s[i]))
    return (
        f"{windows.start_s[i]:.1f}",
        str(windows.n_samples[i]),
        str(windows.n_bounded_below_only[i]),
        *("–" if math.isnan(value_s) else format_duration(value_s) for value_s in values_s),
    )


_N_TABLE_ROWS: Final = 24
_LEAST_MS: Final = 0.01
"""Below, a logarithmic axis has no room for what is 0."""
_N_HEATS: Final = 8
_TIME: Final = Axis(title="s since the start of the run")


def gap_chart(view: RequestReportView) -> Chart | None:
    """Mean gap between chunks, by time and by request in order of sending.

    A bright column is a stall of many users at once.
    """
    gaps = view.gaps
    if gaps is None:
        return None
    worst = int(np.argmax(gaps.gap_s))
    mean_s = float((gaps.gap_s * gaps.n_gaps).sum() / gaps.n_gaps.sum())
    where = f"at {gaps.time_s[worst]:.1f} s, of requests from {gaps.request[worst]} on"
    return Chart(
        chart_id="itl-map",
        title="Gaps between chunks",
        finding=(
            f"Chunks came {format_duration(mean_s)} apart on average; slowest are"
            f" {format_duration(gaps.gap_s[worst])} {where}."
        ),
        plots=(
            Plot(
                x=_TIME,
                y=Axis(
                    title="request, in order of sending: the first at the bottom",
                    low=0,
                    high=float(gaps.request.max()) + gaps.n_requests_of_row,
                ),
                marks=tuple(_heat(gaps)),
                has_brush=True,
                legend="mean gap, from dark (short) to bright (long)",
            ),
        ),
        header=("from, s", "gaps", "mean gap", "slowest cell"),
        rows=_by_time(gaps.time_s, gaps.gap_s, gaps.n_gaps.astype(np.float64)),
    )


def _heat(gaps: GapMap) -> list[Mark]:
    """The cells of the map in eight classes of gaps, equal in ratio; the scale is Cividis."""
    gap_ms = np.maximum(1e3 * gaps.gap_s, _LEAST_MS)
    low, high = float(gap_ms.min()), float(gap_ms.max()) * 1.0001
    ratio = (high / low) ** (1 / _N_HEATS)
    heat = np.minimum((np.log(gap_ms / low) / math.log(ratio)).astype(int), _N_HEATS - 1)
    marks = list[Mark]()
    for rank in range(_N_HEATS):
        chosen = np.flatnonzero(heat == rank)
        if len(chosen):
            boxes = [
                (
                    float(gaps.time_s[i]),
                    float(gaps.time_s[i]) + gaps.width_s,
                    float(gaps.request[i]),
                    float(gaps.request[i]) + gaps.n_requests_of_row,
                )
                for i in chosen
            ]
            name = f"{format_number(low * ratio**rank)} to {format_number(low * ratio ** (rank + 1))} ms"
            marks.append(Boxes(boxes=boxes, name=name, colour=f"h{rank}"))
    return marks


def in_flight_chart(view: RequestReportView) -> Chart | None:
    """Requests between sending and the last byte."""
    flying = None if view.online is None else view.online.in_flight
    if flying is None:
        return None
    starts, means, peaks = (
        column.tolist() for column in (flying.start_s, flying.mean, flying.most)
    )
    peak = int(np.argmax(flying.most))
    when = f"after {format_duration(max(0.0, float(flying.start_s[peak])))}"
    mean = format_number(float(flying.mean.mean()))
    return Chart(
        chart_id="in-flight",
        title="Requests in flight",
        finding=(
            f"{mean} requests were in flight on average, at most {flying.most.max():.0f}, first"
            f" {when}."
        ),
        plots=(
            Plot(
                x=_TIME,
                y=Axis(title="requests in flight", has_zero=True),
                marks=(
                    held_band(starts, flying.width_s, list(zip(means, peaks, strict=True))),
                    held_line(starts, flying.width_s, means),
                ),
                height=180,
                has_brush=True,
                legend=(f"line: mean of {format_duration(flying.width_s)} · shade: up to the most"),
            ),
        ),
        header=("from, s", "mean", "most"),
        rows=tuple(
            (f"{starts[i]:.1f}", format_number(means[i]), f"{peaks[i]:.0f}")
            for i in range(0, len(starts), 1 + len(starts) // _N_TABLE_ROWS)
        ),
    )


def lateness_chart(view: RequestReportView) -> Chart | None:
    """Delays of sends and of the client's own timer: the largest of each window."""
    late = None if view.online is None else view.online.lateness
    if late is None:
        return None
    lines = {"sending": late.send_s, "its timer": late.loop_s}
    names = [name for name, line in lines.items() if not bool(np.isnan(line).all())]
    marks = [
        replace(
            held_line(
                late.start_s.tolist(),
                late.width_s,
                np.maximum(1e3 * lines[name], _LEAST_MS).tolist(),
            ),
            name=name,
            colour=f"c{rank}",
            dash="dashed" if rank else "",
        )
        for rank, name in enumerate(names)
    ]
    worst = " and ".join(
        f"{name} at most {format_duration(max(0.0, float(np.nanmax(lines[name]))))} late"
        for name in names
    )
    return Chart(
        chart_id="client-lateness",
        title="How late the client itself was",
        finding=f"Of the client, {worst}.",
        plots=(
            Plot(
                x=_TIME,
                y=Axis(title="late by, ms (log scale)", scale="log"),
                marks=tuple(marks),
                height=180,
                has_brush=True,
                legend=f"the most of {format_duration(late.width_s)}",
            ),
        ),
        header=("from, s", *names),
        rows=tuple(
            (
                f"{late.start_s[i]:.1f}",
                *(
                    "–" if math.isnan(lines[name][i]) else format_duration(max(0.0, lines[name][i]))
                    for name in names
                ),
            )
            for i in range(0, len(late.start_s), 1 + len(late.start_s) // _N_TABLE_ROWS)
        ),
    )


def _by_time(time_s: F64, gap_s: F64, weights: F64) -> tuple[tuple[str, ...], ...]:
    """Cells of one window together, of some windows."""
    times, place = np.unique(time_s, return_inverse=True)
    total = np.bincount(place, weights)
    mean = np.bincount(place, weights * gap_s) / total
    most = np.zeros(len(times))
    np.maximum.at(most, place, gap_s)
    return tuple(
        (f"{times[i]:.1f}", f"{total[i]:.0f}", format_duration(mean[i]), format_duration(most[i]))
        for i in range(0, len(times), 1 + len(times) // _N_TABLE_ROWS)
    )


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
    drawn = [one for one in slices if one.slot < n_slots]
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
        finding=_slot_finding(timeline, n_slots),
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
                marks=tuple(_slot_marks(timeline, drawn, states, n_slots)),
                height=max(60, _ROW_HEIGHT * n_slots),
            ),
        ),
        header=("slot", "did", "request", "steps", "tokens", "from", "for"),
        rows=tuple(_slot_cells(timeline, one) for one in drawn[:_MAX_TABLE_ROWS]),
    )


def _slot_marks(
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
                        one.slot + 0.06,
                        one.slot + 0.94,
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
                y=one.slot + 0.5,
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
        ("slot", str(one.slot)),
        ("steps", str(last) if one.n_steps == 1 else f"{one.first_step} to {last}"),
        ("tokens", str(one.n_tokens)),
        ("for", slot_time_text(timeline, one.duration_ns)),
    )


def _n_drawn(timeline: SlotTimeline, slices: Sequence[Slice]) -> int:
    """Number of slots to draw, limited by the page's size."""
    n_slots: int = min(timeline.states.shape[0], MAX_SLOTS)
    while n_slots > 1 and sum(one.slot < n_slots for one in slices) > MAX_SLICES:
        n_slots -= 1
    return n_slots


def _slot_finding(timeline: SlotTimeline, n_slots: int) -> str:
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


def _slot_cells(timeline: SlotTimeline, one: Slice) -> tuple[str, ...]:
    return (
        str(one.slot),
        STATE_NAMES[one.state],
        str(one.request_index),
        str(one.n_steps),
        str(one.n_tokens),
        slot_time_text(timeline, one.start_ns),
        slot_time_text(timeline, one.duration_ns),
    )
