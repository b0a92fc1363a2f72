"""What is a chart: axes, marks in the units of the data, and one sentence that it shows?

Marks are drawn by ``charts.svg``. Colours are names of the page's style (``c0`` to ``c7`` for
series, ``h0`` to ``h7`` for heat), which has them for light, dark and print; a series is told from
others by its label and dash too, never by colour alone.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from inferometer.records.columns import F64
from inferometer.report.tables import has_several_runs, point_label
from inferometer.report.views import PointRow
from inferometer.stats.estimate import Estimate
from inferometer.units import format_duration, format_number

Scale: TypeAlias = Literal["linear", "log", "log2"]
Dash: TypeAlias = Literal["", "dashed", "dotted"]
Tone: TypeAlias = Literal["limit", "capacity", "traffic", "plain"]

N_COLOURS: Final = 8
MAX_TICKS: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis; where an end is None the marks give it."""

    title: str
    scale: Scale = "linear"
    low: float | None = None
    high: float | None = None
    ticks: tuple[float, ...] | None = None
    labels: tuple[str, ...] | None = None
    """Of the ticks; None: the numbers."""
    has_zero: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line through points; a point that is NaN breaks it."""

    xs: Sequence[float]
    ys: Sequence[float]
    name: str = ""
    colour: str = "c0"
    dash: Dash = ""
    is_stepped: bool = False
    is_faint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """An area: an interval around a line."""

    outline: Sequence[tuple[float, float]]
    colour: str = "c0"
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dots:
    """Points, with their intervals as bars; the hollow ones are flagged or out of range."""

    xs: Sequence[float]
    ys: Sequence[float]
    name: str = ""
    colour: str = "c0"
    bars: Sequence[tuple[float, float] | None] = ()
    is_hollow: Sequence[bool] = ()
    tips: Sequence[str] = ()
    """What a point says when it is pointed at."""
    is_small: bool = False
    """Of many points: drawn as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A line across: a limit, a capacity, the user's own traffic."""

    at: float
    text: str
    is_vertical: bool = False
    tone: Tone = "limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """Rectangles of one colour: parts of bars, cells of a map."""

    boxes: Sequence[tuple[float, float, float, float]]
    """x from, x to, y from, y to."""
    name: str = ""
    colour: str = "c0"
    tips: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Words at a place, in the ink of the page."""

    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "middle"
    is_wide_only: bool = False
    """Left out on a phone."""
    looks: Literal["", "on-dark", "on-light"] = ""
    """On a box of this lightness."""


Mark: TypeAlias = Line | Band | Dots | Rule | Boxes | Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Axes and marks; where ``rows`` are named, y counts them from the top."""

    x: Axis
    y: Axis
    marks: tuple[Mark, ...]
    height: int = 300
    rows: tuple[str, ...] = ()
    has_brush: bool = False
    """A part of x can be looked at closer."""
    legend: str = ""
    """What marks mean beside the named ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One plot or several, with their finding and their numbers."""

    chart_id: str
    title: str
    """Names the chart; where the finding is one sentence, it stands above it."""
    finding: str
    """The finding in one sentence, computed from the data: title and alternative text."""
    plots: tuple[Plot, ...]
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: tuple[str, ...] = field(default=())
    """Of the plots, where there are several."""


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """A colour for each series, in the order of most distance."""
    return {name: f"c{i % N_COLOURS}" for i, name in enumerate(dict.fromkeys(names))}


def band_of(
    xs: Sequence[float],
    ends: Sequence[tuple[float, float]],
    *,
    colour: str = "c0",
    name: str = "",
) -> Band:
    """The area between the lower and the upper ends."""
    up = [(x, high) for x, (_, high) in zip(xs, ends, strict=True)]
    down = [(x, low) for x, (low, _) in zip(xs, ends, strict=True)]
    return Band(outline=(*up, *reversed(down)), colour=colour, name=name)


def held_line(starts: Sequence[float], width: float, values: Sequence[float]) -> Line:
    """The value of each window from its start to its end, of the last one too."""
    return Line(xs=(*starts, starts[-1] + width), ys=(*values, values[-1]), is_stepped=True)


def held_band(
    starts: Sequence[float],
    width: float,
    ends: Sequence[tuple[float, float]],
    *,
    colour: str = "c0",
    name: str = "",
) -> Band:
    """The area between the lower and the upper ends of each window, from its start to its end."""
    edges = [
        (edge, both)
        for start, both in zip(starts, ends, strict=True)
        for edge in (start, start + width)
    ]
    xs, spans = [x for x, _ in edges], [both for _, both in edges]
    return band_of(xs, spans, colour=colour, name=name)


def bar_of(estimate: Estimate, factor: float = 1.0) -> tuple[float, float] | None:
    """The interval as a bar; None where an end is missing or has no place on an axis."""
    if estimate.low is None or estimate.high is None or not math.isfinite(estimate.high):
        return None
    return estimate.low * factor, estimate.high * factor


def tip(head: tuple[str, str], *parts: tuple[str, str]) -> str:
    """Tooltip of a point: its name, then a line for each value that is known."""
    return "\n".join(
        f"{name}\t{value}" for name, value in (head, *parts) if value or name == head[0]
    )


def ends_of(axis: Axis, values: Iterable[float]) -> tuple[float, float]:
    """The ends of an axis that holds all values; where both are given, the first may be the higher."""
    if axis.low is not None and axis.high is not None:
        return axis.low, axis.high
    shown = [one for one in values if math.isfinite(one) and (axis.scale == "linear" or one > 0)]
    low, high = min(shown, default=1.0), max(shown, default=2.0)
    if axis.scale == "linear":
        room = 0.04 * ((high - low) or abs(high) or 1.0)
        low = 0.0 if axis.has_zero or 0 <= low < 0.5 * high else low - room
        high += room if high > 0 or not axis.has_zero else 0.0
    else:
        room = max((high / low) ** 0.05, 1.05)
        low, high = low / room, high * room
    low, high = (low if axis.low is None else axis.low), (high if axis.high is None else axis.high)
    return (low, high) if low < high else (low, low + (abs(low) or 1.0))


def place(axis: Axis, ends: tuple[float, float], value: float) -> float:
    """Position of a value between the ends: 0 to 1."""
    low, high = ends
    if axis.scale == "linear":
        return (value - low) / (high - low)
    if value <= 0:
        return 0.0
    return math.log(value / low) / math.log(high / low)


def places(axis: Axis, ends: tuple[float, float], values: F64) -> F64:
    """Positions of many values between the ends: 0 to 1."""
    low, high = ends
    if axis.scale == "linear":
        return (values - low) / (high - low)
    is_shown = values > 0
    return np.where(
        is_shown, np.log(np.where(is_shown, values, low) / low) / math.log(high / low), 0.0
    )


def ticks_of(axis: Axis, ends: tuple[float, float]) -> list[tuple[float, str]]:
    """Positions and labels of the axis."""
    if axis.ticks is not None:
        labels = axis.labels or tuple(tick_text(one) for one in axis.ticks)
        pairs = sorted(zip(axis.ticks, labels, strict=True))
        room = 0.035 if axis.labels is None else 0.0
        shown = list[tuple[float, str]]()
        for value, label in pairs:
            at = place(axis, ends, value)
            if -1e-9 <= at <= 1 + 1e-9 and (
                not shown or abs(at - place(axis, ends, shown[-1][0])) > room
            ):
                shown.append((value, label))
        return shown
    values = linear_ticks(*ends) if axis.scale == "linear" else log_ticks(*ends)
    return [(one, tick_text(one)) for one in values]


def linear_ticks(low: float, high: float) -> list[float]:
    """Round numbers between the ends."""
    raw = (high - low) / 5
    size = 10 ** math.floor(math.log10(raw))
    step = next(k * size for k in (1, 2, 2.5, 5, 10) if k * size >= raw * 0.999)
    return [
        step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers between the ends, as many as are easy to read."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = list[float]()
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        values = [k * 10.0**e for e in exponents for k in digits if low <= k * 10.0**e <= high]
        if len(values) <= MAX_TICKS or not found:
            found = values
    while len(found) > MAX_TICKS:
        found = found[::2]
    return found if len(found) > 1 else linear_ticks(low, high)


def tick_text(value: float) -> str:
    """``20,000``; ``3M``."""
    for size, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.3g}{sign}"
    return f"{value:,.0f}" if abs(value) >= 1000 else format_number(value)


# What do charts with one row per point share: the order of rows, their labels, the height of the chart?


MAX_ROWS: Final = 40
"""More rows than this are in the table only: bars thinner than a letter tell nothing."""
_ROW_HEIGHT: Final = 34
_FROM: Final = 0.46
_TO: Final = 0.92
"""Where the bars of a row lie: its label stands above them."""


class Part(NamedTuple):
    """A part of a bar, in percent of the whole."""

    name: str
    start: float
    end: float
    duration_s: float


def labelled(points: Sequence[PointRow]) -> tuple[tuple[str, PointRow], ...]:
    """Each point with its label, in the order of the view."""
    has_runs = has_several_runs(row.run_label for row in points)
    return tuple((point_label(row, has_runs=has_runs), row) for row in points)


def box_of(
    row: int, start: float, end: float, *, rank: int = 0, n_of: int = 1
) -> tuple[float, float, float, float]:
    """The box of a bar in its row; where a row has several, this is number ``rank`` of ``n_of``."""
    height = (_TO - _FROM) / n_of
    top = row + _FROM + rank * height
    return start, end, top, top + height * 0.92


def rows_plot(
    labels: Sequence[str],
    x: Axis,
    marks: Sequence[Mark],
    *notes: str,
    n_all: int,
    rows: str = "rows: prompt × batch",
    row_height: int = _ROW_HEIGHT,
) -> Plot:
    """A row for each label in order; says so where not all of ``n_all`` are drawn."""
    left_out = (
        f"the first {len(labels)} of {n_all} rows, the table has all" if n_all > len(labels) else ""
    )
    return Plot(
        x=x,
        y=Axis(title=" · ".join(one for one in (*notes, rows, left_out) if one)),
        marks=tuple(marks),
        rows=tuple(labels),
        height=row_height * len(labels),
    )


def stacked(
    rows: Sequence[tuple[str, Sequence[Part], float]], colours: Mapping[str, str]
) -> list[Mark]:
    """Bars made of parts, each in its colour, with the whole's duration at the right.

    Each row is a label, its parts, and the whole in seconds.
    """
    marks = list[Mark]()
    for name, colour in colours.items():
        chosen = [
            (rank, label, part)
            for rank, (label, parts, _) in enumerate(rows)
            for part in parts
            if part.name == name
        ]
        tips = [
            tip(
                (label, ""),
                (name, format_duration(part.duration_s)),
                ("share", f"{format_number(abs(part.end - part.start))} %"),
            )
            for _, label, part in chosen
        ]
        boxes = [box_of(rank, part.start, part.end) for rank, _, part in chosen]
        marks.append(Boxes(boxes=boxes, name=name, colour=colour, tips=tips))
    for rank, (_, parts, whole_s) in enumerate(rows):
        right = max((max(part.start, part.end) for part in parts), default=0.0)
        place = box_of(rank, 0, 0)
        marks.append(
            Text(
                x=right + 1,
                y=(place[2] + place[3]) / 2,
                text=format_duration(whole_s),
                anchor="start",
            )
        )
    return marks
