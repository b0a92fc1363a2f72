"""How is a measured line drawn: points with error bars, hollow where flagged, the model's curve dashed in its band?"""

from collections.abc import Sequence

import altair as alt

from inferometer.report.charts.frame import (
    BAND_OPACITY,
    BEYOND_DASH,
    PAPER,
    POINT_SIZE,
    PREDICTED_DASH,
    Row,
    log2_x,
    series_channels,
    values,
)


def measured_lines(
    rows: Sequence[Row], x: alt.X, y: alt.Y, *, tooltip: Sequence[alt.Tooltip], has_curve: bool
) -> list[alt.Chart]:
    """Layers of a measured line: line (faint beside a curve), 95 % bars, points; flagged points are hollow."""
    names = list(dict.fromkeys(row["series"] for row in rows))
    channels = series_channels(names)
    data = alt.Chart(values(rows))
    with_bar = [row for row in rows if "low" in row]
    layers = [
        data.mark_line(strokeWidth=1.5, opacity=0.3 if has_curve else 0.8).encode(
            x=x, y=y, color=channels["color"]
        )
    ]
    if with_bar:
        bars = alt.Chart(values(with_bar)).mark_rule(strokeWidth=2)
        layers.append(bars.encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=channels["color"]))
    points = data.mark_point(filled=True, size=POINT_SIZE, opacity=1)
    layers.append(points.encode(x=x, y=y, **channels, tooltip=list(tooltip)))
    flagged = [row for row in rows if row["flags"]]
    if flagged:
        hollow = alt.Chart(values(flagged)).mark_point(
            filled=True, size=POINT_SIZE * 0.3, opacity=1, color=PAPER
        )
        layers.append(hollow.encode(x=x, y=y, shape=channels["shape"], tooltip=list(tooltip)))
    return layers


def predicted_lines(
    rows: Sequence[Row], names: Sequence[str], x: alt.X, y: alt.Y
) -> list[alt.Chart]:
    """Layers of the fitted curves: band, then dashes inside the checked box and dots beyond it."""
    if not rows:
        return []
    colour = series_channels(names)["color"]
    layers: list[alt.Chart] = []
    with_band = [row for row in rows if "low" in row]
    if with_band:
        area = alt.Chart(values(with_band)).mark_area(opacity=BAND_OPACITY)
        layers.append(
            area.encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=colour, detail="part:N")
        )
    for part, dash in (("inside", PREDICTED_DASH), ("beyond", BEYOND_DASH)):
        chosen = [row for row in rows if row["part"] == part]
        if chosen:
            line = alt.Chart(values(chosen)).mark_line(strokeDash=list(dash), strokeWidth=2)
            layers.append(line.encode(x=x, y=y, color=colour))
    return layers


def shared_x(rows: Sequence[Row], curve: Sequence[Row], title: str) -> alt.X:
    """A log2 axis that holds points and curves, with ticks where points were measured."""
    tested = [row["x"] for row in rows]
    shown = tested + [row["x"] for row in curve]
    return log2_x("x", title, tested, shown)
