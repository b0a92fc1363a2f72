"""Seats, memory or compute?

Requests that run and wait, KV blocks and preemptions over time: three panels, one time axis.
"""

import math
from collections.abc import Mapping

import altair as alt

from inferometer.records.columns import F64
from inferometer.records.run_series import StepSeries
from inferometer.report.charts.frame import (
    BAND_OPACITY,
    MUTED,
    PALETTE,
    ChartSpec,
    Row,
    finished,
    series_channels,
    values,
    y_axis,
)
from inferometer.report.request_views import RequestReportView
from inferometer.units import format_duration, format_fraction, format_number


def queue_chart(view: RequestReportView) -> ChartSpec | None:
    """Requests in the batch and waiting: mean of each window of time, and up to its largest."""
    load = view.load
    if load is None:
        return None
    lines = {
        "running": (load.n_running_mean, load.n_running_max),
        "waiting": (load.n_waiting_mean, load.n_waiting_max),
    }
    peak = int(_peak(load.n_waiting_max))
    return ChartSpec(
        chart_id="load-queue",
        title="Requests running and waiting",
        finding=(
            f"At most {int(_peak(load.n_running_max))} requests ran and {peak} waited at once;"
            f" {_means(lines, load)}."
        ),
        spec=finished(_layers(load, lines, "requests"), height=170),
        header=(
            "from, s",
            "steps",
            "running, mean",
            "running, most",
            "waiting, mean",
            "waiting, most",
        ),
        rows=_table(load, lines),
    )


def kv_chart(view: RequestReportView) -> ChartSpec | None:
    """KV blocks used, of how many."""
    load = view.load
    if load is None or not any(not math.isnan(value) for value in load.kv_blocks_max.tolist()):
        return None
    lines = {"KV blocks used": (load.kv_blocks_mean, load.kv_blocks_max)}
    layers = _layers(
        load, lines, "KV blocks used" + (f" of {view.n_kv_blocks:,}" if view.n_kv_blocks else "")
    )
    peak = _peak(load.kv_blocks_max)
    share = ""
    if view.n_kv_blocks:
        limit = alt.Chart(values([{"value": view.n_kv_blocks}])).mark_rule(
            color=MUTED, strokeDash=[4, 3]
        )
        layers.append(limit.encode(y="value:Q"))
        share = f" of {view.n_kv_blocks:,} ({format_fraction(peak / view.n_kv_blocks)})"
    return ChartSpec(
        chart_id="load-kv",
        title="KV blocks used",
        finding=f"At most {int(peak):,} KV blocks{share} were in use at once.",
        spec=finished(layers, height=150),
        header=("from, s", "steps", "KV blocks, mean", "KV blocks, most"),
        rows=_table(load, lines),
    )


def holes_chart(view: RequestReportView) -> ChartSpec | None:
    """Free KV cache memory and its largest piece, where each request has one piece."""
    load, holes = view.load, view.holes
    if load is None or holes is None:
        return None
    lines = {
        "free": (holes.free.mean, holes.free.most),
        "in the largest hole": (holes.largest.mean, holes.largest.most),
    }
    free, largest = (
        sum(value for value in column.mean.tolist() if not math.isnan(value))
        for column in holes[:2]
    )
    share = (
        f"{format_fraction(1 - largest / free)} of the free blocks"
        if free
        else "None of the free blocks"
    )
    debt = int(_peak(holes.debt.most))
    return ChartSpec(
        chart_id="load-holes",
        title="Free KV blocks, and the largest hole",
        finding=(
            f"{share} lay outside the largest hole on average; at most {debt:,} had to be moved for"
            " the largest request that waited."
        ),
        spec=finished(_layers(load, lines, "KV blocks"), height=150),
        header=(
            "from, s",
            "steps",
            "free, mean",
            "free, most",
            "largest hole, mean",
            "largest hole, most",
        ),
        rows=_table(load, lines),
    )


def swap_chart(view: RequestReportView) -> ChartSpec | None:
    """Where blocks are swapped: how many before a step."""
    load, swapped = view.load, view.swapped_blocks
    if load is None or swapped is None:
        return None
    lines = {"swapped": (swapped.mean, swapped.most)}
    return ChartSpec(
        chart_id="load-swaps",
        title="KV blocks swapped before a step",
        finding=(
            f"At most {int(_peak(swapped.most)):,} blocks were copied to the host or back before"
            " one step."
        ),
        spec=finished(_layers(load, lines, "KV blocks a step"), height=110),
        header=("from, s", "steps", "swapped, mean", "swapped, most"),
        rows=_table(load, lines),
    )


def preemption_chart(view: RequestReportView) -> ChartSpec | None:
    """Preemptions in each window of time."""
    load = view.load
    if load is None:
        return None
    total = int(load.n_preempted.sum())
    rows = [
        {"x": x, "value": n}
        for x, n in zip(load.start_s.tolist(), load.n_preempted.tolist(), strict=True)
    ]
    end_s = float(load.start_s[-1]) + load.width_s
    x = alt.X(
        "x:Q",
        scale=alt.Scale(domain=[float(load.start_s[0]), end_s], nice=False),
        axis=_time_axis(),
    )
    highest = max(1.0, float(load.n_preempted.max()))
    axis = y_axis(f"preemptions per {format_duration(load.width_s)}", tick_count=3, counts=True)
    y = alt.Y("value:Q", scale=alt.Scale(domain=[0, highest], nice=True), axis=axis)
    area = alt.Chart(values(rows)).mark_area(
        interpolate="step-after", color=PALETTE[1], opacity=0.6, line={"color": PALETTE[1]}
    )
    when = [row["x"] for row in rows if row["value"]]
    text = (
        f"{total} preemptions, the first after {format_duration(max(0.0, when[0]))}"
        if when
        else "No request was preempted"
    )
    return ChartSpec(
        chart_id="load-preemptions",
        title="Preemptions",
        finding=f"{text}.",
        spec=finished([area.encode(x=x, y=y)], height=110),
        header=("windows", "length", "preemptions", "most in a window"),
        rows=(
            (
                str(len(rows)),
                format_duration(load.width_s),
                str(total),
                str(int(load.n_preempted.max())),
            ),
        ),
    )


def _layers(load: StepSeries, lines: Mapping[str, tuple[F64, F64]], unit: str) -> list[alt.Chart]:
    rows: list[Row] = []
    for name, (mean, most) in lines.items():
        for x, value, high in zip(load.start_s.tolist(), mean.tolist(), most.tolist(), strict=True):
            missing = math.isnan(value)
            rows.append(
                {
                    "series": name,
                    "x": x,
                    "value": None if missing else round(value, 2),
                    "high": None if missing else high,
                }
            )
    channels = series_channels(list(lines))
    end_s = float(load.start_s[-1]) + load.width_s
    x = alt.X(
        "x:Q",
        scale=alt.Scale(domain=[float(load.start_s[0]), end_s], nice=False),
        axis=_time_axis(),
    )
    axis = y_axis(
        unit,
        f"line: mean of {format_duration(load.width_s)} · shade: up to the most",
        tick_count=4,
        counts=True,
    )
    y = alt.Y("value:Q", scale=alt.Scale(zero=True, nice=True), axis=axis)
    tooltip = [
        alt.Tooltip("series:N", title=" "),
        alt.Tooltip("x:Q", title="s", format=".2f"),
        alt.Tooltip("value:Q", title="mean", format=".3~r"),
        alt.Tooltip("high:Q", title="most", format="d"),
    ]
    base = alt.Chart(values(rows))
    dash = alt.StrokeDash(
        "series:N",
        scale=alt.Scale(domain=list(lines), range=[[1, 0], [5, 2]][: len(lines)]),
        legend=None,
    )
    return [
        base.mark_area(opacity=BAND_OPACITY, interpolate="step-after").encode(
            x=x, y=y, y2="high:Q", color=channels["color"]
        ),
        base.mark_line(strokeWidth=1.6, interpolate="step-after").encode(
            x=x, y=y, color=channels["color"], strokeDash=dash, tooltip=tooltip
        ),
    ]


def _time_axis() -> alt.Axis:
    return alt.Axis(title="s since the start of the run", tickCount=6, grid=False)


def _peak(column: F64) -> float:
    return max((value for value in column.tolist() if not math.isnan(value)), default=0.0)


def _means(lines: Mapping[str, tuple[F64, F64]], load: StepSeries) -> str:
    """Means over the windows in which steps ran."""
    parts: list[str] = []
    for name, (mean, _) in lines.items():
        present = [value for value in mean.tolist() if not math.isnan(value)]
        parts.append(f"{format_number(sum(present) / len(present))} {name}")
    idle = int((load.n_steps == 0).sum())
    rest = f"; no step began in {idle} of {len(load.n_steps)} windows" if idle else ""
    return f"on average {' and '.join(parts)}{rest}"


def _table(load: StepSeries, lines: Mapping[str, tuple[F64, F64]]) -> tuple[tuple[str, ...], ...]:
    """Some two dozen of the windows."""
    rows: list[tuple[str, ...]] = []
    for i in range(0, len(load.start_s), 1 + len(load.start_s) // 24):
        numbers = [float(column[i]) for pair in lines.values() for column in pair]
        shown = ("–" if math.isnan(number) else format_number(number) for number in numbers)
        rows.append((f"{load.start_s[i]:.2f}", str(load.n_steps[i]), *shown))
    return tuple(rows)
