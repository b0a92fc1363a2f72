"""Charts over offered load: latency, goodput, and throughput against TTFT; a point per run.

Points whose run is not VALID are hollow. Closed loops go with their concurrency. Beside runs with a
rate they stand in throughput against latency alone, as a line of their own.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import altair as alt

from inferometer.inputs.objectives import parse_objective
from inferometer.records.request_summaries import Percentile
from inferometer.report.charts.frame import (
    MUTED,
    PAPER,
    POINT_SIZE,
    ChartSpec,
    Row,
    ends,
    finished,
    interval_fields,
    log_axis_domain,
    measured_lines,
    series_channels,
    values,
    y_axis,
)
from inferometer.report.decision_views import RatePoint, RateView
from inferometer.report.request_words import duration_cell, rate_text
from inferometer.units import format_number

_HOLLOW = "hollow: not VALID"


class _Traffic(NamedTuple):
    """What curves go with."""

    words: str
    axis: str
    header: str
    unit: str


_RATE: Final = _Traffic("the offered rate", "offered requests/s", "offered/s", "requests/s offered")
_CONCURRENCY: Final = _Traffic(
    "concurrency",
    "concurrency (users who wait for their answers)",
    "concurrency",
    "concurrent requests",
)


_Pick: TypeAlias = tuple[str, Callable[[RatePoint], Percentile | None]]
"""A percentile's name, and where a run has it."""


def ttft_rate_chart(view: RateView) -> ChartSpec | None:
    """TTFT p50 and p95 against the offered rate, or the concurrency."""
    return _latency_chart(
        view, "TTFT", (("p50", lambda point: point.ttft_p50), ("p95", lambda point: point.ttft_p95))
    )


def tpot_rate_chart(view: RateView) -> ChartSpec | None:
    """TPOT p50 and p95 against the offered rate, or the concurrency."""
    return _latency_chart(
        view, "TPOT", (("p50", lambda point: point.tpot_p50), ("p95", lambda point: point.tpot_p95))
    )


def goodput_rate_chart(view: RateView) -> ChartSpec | None:
    """Goodput against the offered rate (dashed: all requests are good), or against concurrency."""
    traffic = _traffic(view)
    shown = [point for point in _placed(view) if point.good_requests_per_s is not None]
    if not shown:
        return None
    rows: list[Row] = [
        {
            "x": _place(point),
            "value": point.good_requests_per_s,
            "flags": _flag(point),
            "series": "goodput",
            "run": point.label,
        }
        for point in shown
    ]
    best = max(shown, key=lambda point: point.good_requests_per_s or 0.0)
    return ChartSpec(
        chart_id="goodput-vs-rate",
        title=f"Goodput against {traffic.words}",
        finding=(
            f"Goodput is at most {format_number(best.good_requests_per_s or 0.0)} requests/s, "
            f"at {format_number(_place(best))} {traffic.unit}."
        ),
        spec=finished(_goodput_layers(rows, traffic, is_closed=view.is_closed), height=260),
        header=("run", traffic.header, "good/s", "verdict"),
        rows=tuple(
            (row["run"], format_number(row["x"]), format_number(row["value"]), row["flags"])
            for row in rows
        ),
    )


def _goodput_layers(rows: Sequence[Row], traffic: _Traffic, *, is_closed: bool) -> list[alt.Chart]:
    """Goodput, and behind it the line on which all offered requests are good."""
    end = max(max(row["x"], row["value"]) for row in rows) * 1.05
    x_end, y_end = (
        (max(row["x"] for row in rows) * 1.05, max(row["value"] for row in rows) * 1.05)
        if is_closed
        else (end, end)
    )
    x = alt.X("x:Q", axis=_traffic_axis(traffic), scale=alt.Scale(domain=[0, x_end], nice=False))
    dashed = "" if is_closed else "dashed: all that were offered"
    axis = y_axis("requests/s within every limit", dashed, _hollow(rows), tick_count=5)
    y = alt.Y("value:Q", axis=axis, scale=alt.Scale(domain=[0, y_end], nice=False))
    ideal = alt.Chart(values([{"x": 0, "value": 0}, {"x": end, "value": end}])).mark_line(
        strokeDash=[4, 3], color=MUTED, strokeWidth=1
    )
    behind = [] if is_closed else [ideal.encode(x=x, y=y)]
    tooltip = [
        alt.Tooltip("run:N"),
        alt.Tooltip("x:Q", title=traffic.header, format=".3~r"),
        alt.Tooltip("value:Q", title="good/s", format=".3~r"),
    ]
    return [*behind, *measured_lines(rows, x, y, tooltip=tooltip, has_curve=False)]


def throughput_latency_chart(view: RateView) -> ChartSpec | None:
    """Output tokens per second against TTFT p95."""
    shown = [
        point
        for point in view.points
        if point.output_tokens_per_s is not None and point.ttft_p95 is not None
    ]
    if len(shown) < 2:
        return None
    rows = [row for point in shown if (row := _traded(point)) is not None]
    most = max(rows, key=lambda row: float(row["value"]))
    return ChartSpec(
        chart_id="throughput-latency",
        title="Throughput against TTFT",
        finding=(
            f"The most output is {format_number(most['value'])} tok/s, at a TTFT p95 of"
            f" {format_number(most['x'])} ms."
        ),
        spec=finished(_trade_layers(rows), height=280),
        header=("run", "TTFT p95, ms", "output tok/s", "verdict"),
        rows=tuple(
            (row["run"], format_number(row["x"]), format_number(row["value"]), row["flags"])
            for row in rows
        ),
    )


def _trade_layers(rows: Sequence[Row]) -> list[alt.Chart]:
    """A line through the runs in the order of their traffic; flagged runs are hollow."""
    x_scale = alt.Scale(type="log", domain=log_axis_domain([row["x"] for row in rows]), nice=False)
    x = alt.X(
        "x:Q",
        scale=x_scale,
        axis=alt.Axis(title="TTFT p95, ms (log scale)", format=",~r", tickCount=5, grid=False),
    )
    y = alt.Y(
        "value:Q",
        scale=alt.Scale(zero=True),
        axis=y_axis("output tok/s", _hollow(rows), tick_count=5),
    )
    channels = series_channels(list(dict.fromkeys(row["series"] for row in rows)))
    tooltip = [
        alt.Tooltip("run:N"),
        alt.Tooltip("x:Q", title="TTFT p95, ms", format=".4~r"),
        alt.Tooltip("value:Q", title="tok/s", format=".4~r"),
    ]
    data = alt.Chart(values(rows))
    layers = [
        data.mark_line(strokeWidth=1.2, opacity=0.5).encode(
            x=x, y=y, color=channels["color"], order=alt.Order("place:Q")
        ),
        data.mark_point(filled=True, size=POINT_SIZE, opacity=1).encode(
            x=x, y=y, **channels, tooltip=tooltip
        ),
    ]
    flagged = [row for row in rows if row["flags"]]
    if flagged:
        hollow = alt.Chart(values(flagged)).mark_point(
            filled=True, size=POINT_SIZE * 0.3, opacity=1, color=PAPER
        )
        layers.append(hollow.encode(x=x, y=y, shape=channels["shape"]))
    return layers


def _latency_chart(view: RateView, name: str, picks: Sequence[_Pick]) -> ChartSpec | None:
    traffic = _traffic(view)
    rows = _latency_rows(view, picks)
    if len({row["run"] for row in rows}) < 2:
        return None
    x_scale = alt.Scale(nice=False, zero=False, padding=12)
    x = alt.X("x:Q", axis=_traffic_axis(traffic), scale=x_scale)
    promised = _promised_rows(view, name)
    shown = [end for row in rows for end in ends(row)] + [row["value"] for row in promised]
    scale = alt.Scale(type="log", domain=log_axis_domain(shown))
    y = alt.Y(
        "value:Q",
        scale=scale,
        axis=y_axis(f"{name}, ms (log scale)", "bars: 95 % interval", _hollow(rows), tick_count=5),
    )
    tooltip = [
        alt.Tooltip("run:N"),
        alt.Tooltip("series:N", title=" "),
        alt.Tooltip("value:Q", title="ms", format=".4~r"),
    ]
    shown_last = [row for row in rows if row["series"] == picks[-1][0]]
    first, last = shown_last[0], shown_last[-1]
    lines = measured_lines(rows, x, y, tooltip=tooltip, has_curve=False)
    return ChartSpec(
        chart_id=f"{name.lower()}-vs-rate",
        title=f"{name} against {traffic.words}",
        finding=(
            f"{name} {picks[-1][0]} goes from {format_number(first['value'])} ms at"
            f" {format_number(first['x'])} {traffic.unit} to {format_number(last['value'])} ms at"
            f" {format_number(last['x'])}."
        ),
        spec=finished([*_promised_lines(promised, y), *lines], height=260),
        header=("run", traffic.header, *(f"{name} {series}" for series, _ in picks), "verdict"),
        rows=tuple(
            (
                point.label,
                format_number(_place(point)),
                *(
                    duration_cell(None if (found := pick(point)) is None else found.seconds)
                    for _, pick in picks
                ),
                _flag(point),
            )
            for point in _placed(view)
        ),
    )


def _latency_rows(view: RateView, picks: Sequence[_Pick]) -> list[Row]:
    rows: list[Row] = []
    for series, pick in picks:
        for point in _placed(view):
            found = pick(point)
            if found is not None and found.seconds.value > 0:
                bounded = interval_fields(found.seconds, 1e3)
                # An end that nobody saw, and one at 0, have no place on a logarithmic axis.
                if not 0 < bounded.get("low", 1.0) <= bounded.get("high", 1.0) < float("inf"):
                    bounded = {"value": bounded["value"], "n": bounded["n"]}
                rows.append(
                    {
                        "series": series,
                        "x": _place(point),
                        "flags": _flag(point),
                        "run": point.label,
                    }
                    | bounded
                )
    return rows


def _promised_rows(view: RateView, name: str) -> list[Row]:
    """The limits of this latency."""
    limits = parse_objective(view.objective).thresholds if view.objective else ()
    return [
        {"value": limit.limit_s * 1e3, "text": f"promised: {limit.text}"}
        for limit in limits
        if limit.metric == name.lower()
    ]


def _promised_lines(rows: Sequence[Row], y: alt.Y) -> list[alt.Chart]:
    """A dashed line across for each limit, which says which it is."""
    if not rows:
        return []
    data = alt.Chart(values(rows))
    words = data.mark_text(align="left", baseline="bottom", dx=4, dy=-2, color=MUTED, fontSize=11)
    return [
        data.mark_rule(strokeDash=[4, 3], color=MUTED, strokeWidth=1).encode(y=y),
        words.encode(y=y, x=alt.value(0), text="text:N"),
    ]


def _traded(point: RatePoint) -> Row | None:
    if (
        point.output_tokens_per_s is None
        or point.ttft_p95 is None
        or point.ttft_p95.seconds.value <= 0
    ):
        return None
    return {
        "series": "open loop" if point.concurrency is None else "closed loop",
        "x": 1e3 * point.ttft_p95.seconds.value,
        "value": point.output_tokens_per_s.value,
        "place": _place(point) or point.output_tokens_per_s.value,
        "flags": _flag(point),
        "run": point.label,
    }


def _traffic(view: RateView) -> _Traffic:
    return _CONCURRENCY if view.is_closed else _RATE


def _placed(view: RateView) -> list[RatePoint]:
    """The points that have a place on the axis."""
    return [
        point
        for point in view.points
        if (point.concurrency is None) != view.is_closed and _place(point) > 0
    ]


def _place(point: RatePoint) -> float:
    """Its rate or its concurrency; 0 where neither is known."""
    return (
        float(point.offered_requests_per_s or 0.0)
        if point.concurrency is None
        else float(point.concurrency)
    )


def _flag(point: RatePoint) -> str:
    return "" if point.verdict in {None, "VALID"} else str(point.verdict)


def _hollow(rows: Sequence[Row]) -> str:
    return _HOLLOW if any(row["flags"] for row in rows) else ""


def _traffic_axis(traffic: _Traffic) -> alt.Axis:
    return alt.Axis(title=traffic.axis, tickCount=6, grid=False)


def rate_cells(point: RatePoint) -> tuple[str, ...]:
    """One row of the table of runs."""
    place = _place(point)
    traffic = (
        "–"
        if not place
        else f"{format_number(place)}{'' if point.concurrency is None else ' concurrent'}"
    )
    good = "–" if point.good_requests_per_s is None else format_number(point.good_requests_per_s)
    latencies = (point.ttft_p50, point.ttft_p95, point.tpot_p50, point.tpot_p95)
    return (
        point.label,
        point.verdict or "",
        traffic,
        rate_text(point.completed_requests_per_s, "").strip(),
        good,
        rate_text(point.output_tokens_per_s, "").strip(),
        *(duration_cell(None if one is None else one.seconds) for one in latencies),
    )
