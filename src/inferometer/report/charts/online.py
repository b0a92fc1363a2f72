"""Did stalls line up across users, how many requests were in flight, and how late was the client?

All over the time of the run.
"""

import math
from collections.abc import Mapping, Sequence

import altair as alt
import numpy as np

from inferometer.records.columns import F64
from inferometer.records.load_series import GapMap
from inferometer.report.charts.frame import (
    BAND_OPACITY,
    PALETTE,
    ChartSpec,
    Row,
    finished,
    log_axis_domain,
    series_channels,
    values,
    y_axis,
)
from inferometer.report.request_views import RequestReportView
from inferometer.units import format_duration, format_number

_N_TABLE_ROWS = 24
_LEAST_MS = 0.01
"""Below, a logarithmic axis has no room for what is 0."""


def gap_chart(view: RequestReportView) -> ChartSpec | None:
    """Mean gap between chunks, by time and by request in order of sending.

    A bright column is a stall of many users at once.
    """
    gaps = view.gaps
    if gaps is None:
        return None
    rows = _gap_rows(gaps)
    colour = alt.Color(
        "value:Q",
        scale=alt.Scale(
            type="log",
            scheme="cividis",
            domain=log_axis_domain([row["value"] for row in rows], margin_ratio=1.0),
        ),
        legend=alt.Legend(
            title="mean gap, ms (log scale)", format=".3~r", gradientLength=240, tickCount=4
        ),
    )
    tooltip = [
        alt.Tooltip("x:Q", title="s", format=".2f"),
        alt.Tooltip("y:Q", title="request"),
        alt.Tooltip("value:Q", title="mean gap, ms", format=".3~r"),
        alt.Tooltip("n:Q", title="gaps"),
    ]
    cells = alt.Chart(values(rows)).mark_rect()
    x = alt.X("x:Q", axis=_time_axis(), scale=alt.Scale(nice=False, zero=False))
    y = alt.Y(
        "y:Q",
        axis=y_axis("request, in order of sending", tick_count=5, counts=True),
        scale=alt.Scale(reverse=True, nice=False),
    )
    worst = int(np.argmax(gaps.gap_s))
    mean_s = float((gaps.gap_s * gaps.n_gaps).sum() / gaps.n_gaps.sum())
    where = f"at {gaps.time_s[worst]:.1f} s, of requests from {gaps.request[worst]} on"
    return ChartSpec(
        chart_id="itl-map",
        title="Gaps between chunks",
        finding=(
            f"Chunks came {format_duration(mean_s)} apart on average; slowest are"
            f" {format_duration(gaps.gap_s[worst])} {where}."
        ),
        spec=finished(
            [cells.encode(x=x, x2="x2:Q", y=y, y2="y2:Q", color=colour, tooltip=tooltip)],
            height=300,
        ),
        header=("from, s", "gaps", "mean gap", "slowest cell"),
        rows=_by_time(gaps.time_s, gaps.gap_s, gaps.n_gaps.astype(np.float64)),
    )


def _gap_rows(gaps: GapMap) -> list[Row]:
    """One rectangle for each cell of the map."""
    return [
        {
            "x": x,
            "x2": x + gaps.width_s,
            "y": y,
            "y2": y + gaps.n_requests_of_row,
            "value": max(1e3 * gap_s, _LEAST_MS),
            "n": n,
        }
        for x, y, gap_s, n in zip(
            gaps.time_s.tolist(),
            gaps.request.tolist(),
            gaps.gap_s.tolist(),
            gaps.n_gaps.tolist(),
            strict=True,
        )
    ]


def in_flight_chart(view: RequestReportView) -> ChartSpec | None:
    """Requests between sending and the last byte."""
    flying = None if view.online is None else view.online.in_flight
    if flying is None:
        return None
    rows: list[Row] = [
        {"x": x, "value": round(mean, 3), "high": most}
        for x, mean, most in zip(
            flying.start_s.tolist(), flying.mean.tolist(), flying.most.tolist(), strict=True
        )
    ]
    peak = int(np.argmax(flying.most))
    when = f"after {format_duration(max(0.0, float(flying.start_s[peak])))}"
    mean = format_number(float(flying.mean.mean()))
    return ChartSpec(
        chart_id="in-flight",
        title="Requests in flight",
        finding=(
            f"{mean} requests were in flight on average, at most {flying.most.max():.0f}, first"
            f" {when}."
        ),
        spec=finished(_in_flight_layers(rows, flying.width_s), height=170),
        header=("from, s", "mean", "most"),
        rows=tuple(
            (f"{row['x']:.1f}", format_number(row["value"]), f"{row['high']:.0f}")
            for row in rows[:: 1 + len(rows) // _N_TABLE_ROWS]
        ),
    )


def _in_flight_layers(rows: Sequence[Row], width_s: float) -> list[alt.Chart]:
    """The mean of each window as a line, and a shade up to its largest."""
    axis = y_axis(
        "requests in flight",
        f"line: mean of {format_duration(width_s)} · shade: up to the most",
        tick_count=4,
        counts=True,
    )
    x, y = (
        alt.X("x:Q", axis=_time_axis()),
        alt.Y("value:Q", scale=alt.Scale(zero=True, nice=True), axis=axis),
    )
    base = alt.Chart(values(rows))
    tooltip = [
        alt.Tooltip("x:Q", title="s", format=".2f"),
        alt.Tooltip("value:Q", title="mean"),
        alt.Tooltip("high:Q", title="most"),
    ]
    return [
        base.mark_area(opacity=BAND_OPACITY, interpolate="step-after", color=PALETTE[0]).encode(
            x=x, y=y, y2="high:Q"
        ),
        base.mark_line(interpolate="step-after", strokeWidth=1.5, color=PALETTE[0]).encode(
            x=x, y=y, tooltip=tooltip
        ),
    ]


def lateness_chart(view: RequestReportView) -> ChartSpec | None:
    """How late the client sent, and how late its own timer was: the largest of each window."""
    late = None if view.online is None else view.online.lateness
    if late is None:
        return None
    lines = {"sending": late.send_s, "its timer": late.loop_s}
    rows = _lines(
        late.start_s, {name: line for name, line in lines.items() if not bool(np.isnan(line).all())}
    )
    names = list(dict.fromkeys(row["series"] for row in rows))
    channels = series_channels(names)
    scale = alt.Scale(
        type="log", domain=log_axis_domain([row["value"] for row in rows]), nice=False
    )
    axis = y_axis(
        "late by, ms (log scale)", f"the most of {format_duration(late.width_s)}", tick_count=4
    )
    x, y = alt.X("x:Q", axis=_time_axis()), alt.Y("value:Q", scale=scale, axis=axis)
    tooltip = [
        alt.Tooltip("series:N", title=" "),
        alt.Tooltip("x:Q", title="s", format=".2f"),
        alt.Tooltip("value:Q", title="ms", format=".3~r"),
    ]
    dash = alt.StrokeDash(
        "series:N", scale=alt.Scale(domain=names, range=[[1, 0], [5, 2]][: len(names)]), legend=None
    )
    line = alt.Chart(values(rows)).mark_line(interpolate="step-after", strokeWidth=1.5)
    worst = " and ".join(
        f"{name} at most {format_duration(max(0.0, float(np.nanmax(lines[name]))))} late"
        for name in names
    )
    return ChartSpec(
        chart_id="client-lateness",
        title="How late the client itself was",
        finding=f"Of the client, {worst}.",
        spec=finished(
            [line.encode(x=x, y=y, color=channels["color"], strokeDash=dash, tooltip=tooltip)],
            height=170,
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


def _lines(start_s: F64, lines: Mapping[str, F64]) -> list[Row]:
    return [
        {"series": name, "x": x, "value": max(1e3 * value, _LEAST_MS)}
        for name, line in lines.items()
        for x, value in zip(start_s.tolist(), line.tolist(), strict=True)
        if not math.isnan(value)
    ]


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


def _time_axis() -> alt.Axis:
    return alt.Axis(title="s since the start of the run", tickCount=6, grid=False)
