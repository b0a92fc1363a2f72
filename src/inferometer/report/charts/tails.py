"""How large a share of requests took longer?

Tails of TTFT, TPOT and E2E, both axes logarithmic, each in its interval.
"""

import math
from collections.abc import Sequence

import altair as alt

from inferometer.records.latencies import NAMED_SHARES
from inferometer.report.cells import ABSENT_TEXT
from inferometer.report.charts.frame import (
    BAND_OPACITY,
    ChartSpec,
    Row,
    finished,
    log_axis_domain,
    series_channels,
    values,
    y_axis,
)
from inferometer.report.request_views import LatencyTail, RequestReportView
from inferometer.report.request_words import LATENCY_NAMES
from inferometer.units import format_duration, format_number


def tails_chart(view: RequestReportView) -> ChartSpec | None:
    """1 - F of each latency; hollow marks: requests that were not done can push the value up only."""
    if not view.tails:
        return None
    rows = [row for tail in view.tails for row in _rows(tail)]
    names = [LATENCY_NAMES[tail.latency] for tail in view.tails]
    numbers = [row["value"] for row in rows]
    x_scale = alt.Scale(
        type="log", domain=log_axis_domain(numbers, margin_ratio=1.15), nice=False, clamp=True
    )
    x_axis = alt.Axis(title="latency, ms (log scale)", format=",~r", tickCount=6, grid=False)
    x, x_low = (alt.X(f"{field}:Q", scale=x_scale, axis=x_axis) for field in ("value", "low"))
    lowest = min(row["share"] for row in rows)
    scale = alt.Scale(type="log", domain=[lowest / 1.2, 100], nice=False)
    counts = " · ".join(
        f"{name} n = {tail.n_samples}" for name, tail in zip(names, view.tails, strict=True)
    )
    hollow = " · hollow: at least, some were not done" if any(row["note"] for row in rows) else ""
    axis = y_axis(
        "% of requests that took longer (log scale)",
        f"{counts} · band: 95 % interval{hollow}",
        tick_count=4,
        number_format="~r",
    )
    y = alt.Y("share:Q", scale=scale, axis=axis)
    return ChartSpec(
        chart_id="latency-tails",
        title="Tails of latency",
        finding=_finding(view.tails),
        spec=finished(_layers(rows, names, x, x_low, y), height=320),
        header=(
            "latency",
            "n",
            *(f"{format_number(100 * share)} % took longer than" for share in NAMED_SHARES),
        ),
        rows=tuple(
            (
                LATENCY_NAMES[tail.latency],
                str(tail.n_samples),
                *(_at(tail, share) for share in NAMED_SHARES),
            )
            for tail in view.tails
        ),
    )


def _layers(
    rows: Sequence[Row], names: Sequence[str], x: alt.X, x_low: alt.X, y: alt.Y
) -> list[alt.Chart]:
    """A band from ``x_low`` on, a line, and points, hollow where they are lower bounds."""
    channels = series_channels(names)
    banded = [row for row in rows if "low" in row]
    tooltip = [
        alt.Tooltip("series:N", title="latency"),
        alt.Tooltip("share:Q", title="% took longer", format=".3~r"),
        alt.Tooltip("value:Q", title="ms", format=".4~r"),
        alt.Tooltip("low:Q", title="from", format=".4~r"),
        alt.Tooltip("high:Q", title="to", format=".4~r"),
        alt.Tooltip("note:N", title=" "),
    ]
    layers: list[alt.Chart] = []
    if banded:
        band = alt.Chart(values(banded)).mark_area(orient="horizontal", opacity=BAND_OPACITY)
        layers.append(
            band.encode(
                x=x_low,
                x2="high:Q",
                y=y,
                color=channels["color"],
            )
        )
    line = (
        alt.Chart(values(rows))
        .mark_line(strokeWidth=1.5)
        .encode(x=x, y=y, color=channels["color"], order=alt.Order("share:Q"))
    )
    points = alt.Chart(values([row for row in rows if not row["note"]])).mark_point(
        filled=True, size=26, opacity=1
    )
    layers += [line, points.encode(x=x, y=y, **channels, tooltip=tooltip)]
    bounded = [row for row in rows if row["note"]]
    if bounded:
        layers.append(
            alt.Chart(values(bounded))
            .mark_point(filled=False, size=34)
            .encode(x=x, y=y, **channels, tooltip=tooltip)
        )
    return layers


def _rows(tail: LatencyTail) -> list[Row]:
    rows: list[Row] = []
    largest_ms = float(tail.tail.value_s.max()) * 1e3
    for share, value_s, low_s, high_s, is_bound in zip(
        *(column.tolist() for column in tail.tail), strict=True
    ):
        if value_s <= 0:
            continue
        row: Row = {
            "series": LATENCY_NAMES[tail.latency],
            "share": 100 * share,
            "value": 1e3 * value_s,
        }
        if not math.isnan(low_s) and low_s > 0:
            row |= {"low": 1e3 * low_s, "high": largest_ms if math.isinf(high_s) else 1e3 * high_s}
        rows.append(row | {"note": "at least: some were not done" if is_bound else ""})
    return rows


def _at(tail: LatencyTail, share: float) -> str:
    """The value at this height; absent where the run has too few requests."""
    for found, value_s, is_bound in zip(*(tail.tail[i].tolist() for i in (0, 1, 4)), strict=True):
        if math.isclose(found, share, rel_tol=1e-9):
            return f"{'≥ ' if is_bound else ''}{format_duration(value_s)}"
    return ABSENT_TEXT


def _finding(tails: tuple[LatencyTail, ...]) -> str:
    parts = [
        f"{LATENCY_NAMES[tail.latency]} exceeds {_at(tail, 0.5)} in half and {_at(tail, 0.05)} in 5"
        f" % of {tail.n_samples} requests"
        for tail in tails
    ]
    return f"{'; '.join(parts)}."
