"""What do all charts share: result type, colour-blind-safe colours, axes, error bars?

Colours are Okabe–Ito in the order of most distance; shape and dash repeat what colour says. The
page turns INK, MUTED and PAPER (each a colour that nothing else uses) into its own colours, so that
one drawing serves light, dark and print.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import altair as alt

from inferometer.stats.estimate import Estimate

Row: TypeAlias = dict[str, Any]

INK: Final = "#1b1f23"
MUTED: Final = "#5b6570"
GRID: Final = "#e3e6e9"
PAPER: Final = "#fffffe"
PALETTE: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#000000")
SHAPES: Final = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
FONT: Final = (
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'Liberation Sans', 'DejaVu Sans',"
    " sans-serif"
)
WIDTH: Final = 680
HEIGHT: Final = 300
POINT_SIZE: Final = 64
MAX_TITLE_LETTERS: Final = 50
MAX_LEGEND_LETTERS: Final = 22
"""Longer names stand in one column: two would be cut on a phone."""
BAND_OPACITY: Final = 0.16
PREDICTED_DASH: Final = (6, 3)
BEYOND_DASH: Final = (1, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSpec:
    """A chart, what it says in one sentence, and the numbers that it draws."""

    chart_id: str
    title: str
    finding: str
    """Alternative text and caption: one sentence, computed from the view."""
    spec: Mapping[str, Any]
    """Vega-Lite."""
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def values(rows: Sequence[Row]) -> alt.Data:
    """The rows as inline data."""
    return alt.Data(values=list(rows))


def interval_fields(estimate: Estimate, factor_ratio: float) -> Row:
    """``value``, ``low``, ``high`` in the display unit, and ``interval`` as text for the tooltip.

    Ends are absent where n is too small.
    """
    fields: Row = {"value": estimate.value * factor_ratio, "n": estimate.n_samples}
    if estimate.low is not None and estimate.high is not None:
        fields |= {"low": estimate.low * factor_ratio, "high": estimate.high * factor_ratio}
    return fields


def ends(row: Row) -> tuple[float, float]:
    """The ends of a row's interval; its value twice where it has none."""
    value = float(row["value"])
    return (float(row["low"]), float(row["high"])) if "low" in row else (value, value)


def phone_lines(lines: Sequence[str]) -> list[str]:
    """The lines of a title, broken at `` · `` where a phone would cut them; empty ones left out."""
    broken: list[str] = []
    for line in lines:
        current = ""
        for part in line.split(" · "):
            joined = f"{current} · {part}" if current else part
            if current and len(joined) > MAX_TITLE_LETTERS:
                broken.append(current)
                current = part
            else:
                current = joined
        broken += [current] if current else []
    return broken


def y_axis(
    *title: str, tick_count: int, number_format: str = ",~r", counts: bool = False
) -> alt.Axis:
    """A vertical axis with a flat title above it (fits a phone); ``counts`` are whole numbers."""
    lines = phone_lines(title)
    return alt.Axis(
        title=lines,
        titleAngle=0,
        titleAlign="left",
        titleAnchor="end",
        titleBaseline="bottom",
        titleX=-38,
        titleY=-10 - 15 * (len(lines) - 1),
        tickCount=tick_count,
        tickMinStep=1 if counts else 0,
        format=number_format,
    )


def log_axis_domain(numbers: Sequence[float], *, margin_ratio: float = 1.25) -> list[float]:
    """A logarithmic axis that holds all numbers with a margin at both ends."""
    positive = [number for number in numbers if number > 0]
    return [min(positive) / margin_ratio, max(positive) * margin_ratio]


def tested_axis(title: str, tested: Sequence[int]) -> alt.Axis:
    """A horizontal axis with a tick at each value that was tested."""
    return alt.Axis(
        title=title, values=sorted(set(tested)), format="d", labelOverlap="greedy", grid=False
    )


def log2_x(field: str, title: str, tested: Sequence[int], shown: Sequence[int]) -> alt.X:
    """A doubling is a step to the right; ticks where something was tested, room for all that is shown."""
    scale = alt.Scale(type="log", base=2, domain=[min(shown) / 1.12, max(shown) * 1.15], nice=False)
    return alt.X(f"{field}:Q", scale=scale, axis=tested_axis(title, tested))


def series_channels(labels: Sequence[str], *, title: str | None = None) -> dict[str, Any]:
    """Colour and shape of each series, said twice so that colour alone carries nothing."""
    domain = list(labels)
    colours = [PALETTE[index % len(PALETTE)] for index in range(len(domain))]
    shapes = [SHAPES[(index + index // len(PALETTE)) % len(SHAPES)] for index in range(len(domain))]
    legend = alt.Legend(title=title, columns=legend_columns(domain)) if len(domain) > 1 else None
    return {
        "color": alt.Color(
            "series:N", scale=alt.Scale(domain=domain, range=colours), legend=legend, sort=domain
        ),
        "shape": alt.Shape(
            "series:N", scale=alt.Scale(domain=domain, range=shapes), legend=legend, sort=domain
        ),
    }


def legend_columns(names: Sequence[str]) -> int:
    """How many columns of names fit on a phone?"""
    return 2 if max(len(name) for name in names) <= MAX_LEGEND_LETTERS else 1


def finished(layers: Sequence[alt.Chart], *, height: float = HEIGHT) -> dict[str, Any]:
    """The Vega-Lite of these layers in our looks, as wide as their box."""
    dressed = alt.layer(*layers).properties(
        width=WIDTH, height=height, autosize=alt.AutoSizeParams(type="fit-x", contains="padding")
    )
    dressed = (
        dressed.configure(background="transparent", font=FONT, padding=4, aria=False)
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=MUTED,
            titleColor=INK,
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
            gridColor=GRID,
            domainColor=MUTED,
            tickColor=MUTED,
            titlePadding=8,
        )
        .configure_legend(
            orient="bottom",
            direction="horizontal",
            columns=2,
            labelColor=INK,
            titleColor=INK,
            labelFontSize=12,
            symbolSize=80,
            symbolOpacity=1,
            labelLimit=300,
            title=None,
            offset=8,
            columnPadding=16,
        )
        .configure_text(color=INK, fontSize=12, font=FONT)
    )
    spec: dict[str, Any] = dressed.to_dict()
    spec.pop("$schema", None)
    return spec


# How is a measured line drawn: points with error bars, hollow where flagged, the model's curve
# dashed in its band?


def measured_lines(
    rows: Sequence[Row], x: alt.X, y: alt.Y, *, tooltip: Sequence[alt.Tooltip], has_curve: bool
) -> list[alt.Chart]:
    """Layers of a measured line: line, 95 % bars, points; flagged points are hollow."""
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
