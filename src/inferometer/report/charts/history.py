"""Did latency stay the same while the run went on?

Requests one by one, and percentiles of windows of time.
"""

import math
from collections.abc import Sequence
from typing import Final

import altair as alt

from inferometer.report.charts.frame import (
    BAND_OPACITY,
    MUTED,
    PALETTE,
    ChartSpec,
    Row,
    finished,
    log_axis_domain,
    series_channels,
    values,
    y_axis,
)
from inferometer.report.request_views import LatencyHistory, RequestReportView
from inferometer.report.request_words import LATENCY_NAMES
from inferometer.units import format_duration

_NAMES: Final = ("p50", "p90", "p99")


def history_chart(view: RequestReportView) -> ChartSpec | None:
    """TTFT against the time of the intended send; what was sent outside the steady state is shaded."""
    return _chart(view.history)


def tpot_history_chart(view: RequestReportView) -> ChartSpec | None:
    """The same of TPOT."""
    return _chart(view.tpot_history)


def _chart(history: LatencyHistory | None) -> ChartSpec | None:
    if history is None or not (history.lower_s > 0).any():
        return None
    name = LATENCY_NAMES[history.latency]
    dots = _dots(history)
    lines = _lines(history)
    x = alt.X(
        "x:Q",
        axis=alt.Axis(title="intended send, s since the start of the run", tickCount=6, grid=False),
    )
    shades = _shades(history, x)
    y = _latency_axis(history, dots, lines, has_shades=bool(shades))
    layers = [*shades, *_dot_layers(dots, x, y), *_line_layers(lines, x, y)]
    return ChartSpec(
        chart_id=f"{history.latency}-over-time",
        title=f"{name} over the time of the run",
        finding=_finding(history, name),
        spec=finished(layers, height=280),
        header=("sent from, s", "requests", "not done", "p50", "p90", "p99"),
        rows=tuple(
            _cells(history, i)
            for i in range(0, len(history.windows.start_s), 1 + len(history.windows.start_s) // 24)
        ),
    )


def _latency_axis(
    history: LatencyHistory, dots: Sequence[Row], lines: Sequence[Row], *, has_shades: bool
) -> alt.Y:
    """A logarithmic axis whose title says what is drawn."""
    name = LATENCY_NAMES[history.latency]
    scale = alt.Scale(
        type="log", domain=log_axis_domain([row["value"] for row in (*dots, *lines)]), nice=False
    )
    drawn = (
        "each dot is a request"
        if len(dots) == history.n_requests
        else f"dots: {len(dots)} of {history.n_requests} requests"
    )
    shaded = " · shaded: warm-up and drain" if has_shades else ""
    triangles = ", triangles: not done" if any(dot["note"] for dot in dots) else ""
    window = (
        f"lines: percentiles of windows of {format_duration(history.windows.width_s)}"
        if lines
        else ""
    )
    return alt.Y(
        "value:Q",
        scale=scale,
        axis=y_axis(
            f"{name}, ms (log scale)", f"{drawn}{triangles} · {window}{shaded}", tick_count=5
        ),
    )


def _dot_layers(dots: Sequence[Row], x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Requests one by one; triangles are lower bounds."""
    tooltip = [
        alt.Tooltip("x:Q", title="s", format=".2f"),
        alt.Tooltip("value:Q", title="ms", format=".4~r"),
        alt.Tooltip("note:N", title=" "),
    ]
    layers = [
        alt.Chart(values(dots))
        .mark_point(filled=True, size=9, opacity=0.35, color=MUTED)
        .encode(x=x, y=y, tooltip=tooltip),
    ]
    undone = [dot for dot in dots if dot["note"]]
    if undone:
        layers.append(
            alt.Chart(values(undone))
            .mark_point(shape="triangle-up", filled=False, size=36, color=MUTED)
            .encode(x=x, y=y, tooltip=tooltip)
        )
    return layers


def _line_layers(lines: Sequence[Row], x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Percentiles of windows, each with its points."""
    if not lines:
        return []
    channels = series_channels(
        [one for one in _NAMES if any(row["series"] == one for row in lines)]
    )
    base = alt.Chart(values(lines))
    shown = [
        alt.Tooltip("series:N", title="percentile"),
        alt.Tooltip("value:Q", title="ms", format=".4~r"),
        alt.Tooltip("n:Q", title="requests"),
    ]
    return [
        base.mark_line(strokeWidth=1.8).encode(x=x, y=y, color=channels["color"]),
        base.mark_point(filled=True, size=22, opacity=1).encode(
            x=x, y=y, **channels, tooltip=shown
        ),
    ]


def _dots(history: LatencyHistory) -> list[Row]:
    """Requests one by one."""
    columns = (
        history.sent_s.tolist(),
        history.lower_s.tolist(),
        history.is_bounded_below_only.tolist(),
    )
    return [
        {"x": x, "value": 1e3 * value, "note": "not done: at least" if is_bound else ""}
        for x, value, is_bound in zip(*columns, strict=True)
        if value > 0
    ]


def _shades(history: LatencyHistory, x: alt.X) -> list[alt.Chart]:
    """What was sent before and after the steady state."""
    if history.steady_s is None or not len(history.sent_s):
        return []
    first_s, last_s = float(history.sent_s[0]), float(history.sent_s[-1])
    start_s, end_s = history.steady_s
    rows: list[Row] = [
        {"x": a, "x2": b, "note": note}
        for a, b, note in ((first_s, start_s, "warm-up"), (end_s, last_s, "drain"))
        if b > a
    ]
    if not rows:
        return []
    shade = alt.Chart(values(rows)).mark_rect(color=PALETTE[4], opacity=BAND_OPACITY)
    return [shade.encode(x=x, x2="x2:Q", tooltip=[alt.Tooltip("note:N", title=" ")])]


def _lines(history: LatencyHistory) -> list[Row]:
    windows = history.windows
    middles = (windows.start_s + windows.width_s / 2).tolist()
    rows: list[Row] = []
    for name, column in zip(_NAMES, (windows.p50_s, windows.p90_s, windows.p99_s), strict=True):
        for x, value, n in zip(middles, column.tolist(), windows.n_samples.tolist(), strict=True):
            if not math.isnan(value) and value > 0:
                rows.append({"series": name, "x": x, "value": 1e3 * value, "n": n})
    return rows


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
