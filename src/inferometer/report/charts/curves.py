"""How do numbers change over an option, a line for each combination of the others?"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from inferometer.report.charts.plot import (
    MAX_ROWS,
    Axis,
    Boxes,
    Chart,
    Dots,
    Line,
    Mark,
    Plot,
    Rule,
    Text,
    band_of,
    box_of,
    colours_of,
    rows_plot,
    tip,
)
from inferometer.report.charts.predicted import short_label
from inferometer.units import format_number

_MOST_BANDS = 3
"""Of more lines bands would hide one another."""


class CurvePoint(NamedTuple):
    """A point of a curve, in the units of the axes."""

    x: float
    y: float
    low: float | None
    high: float | None
    label: str
    """Its place in words: shown when it is pointed at."""


class NamedCurve(NamedTuple):
    """The points of one line, in order."""

    name: str
    points: tuple[CurvePoint, ...]


class Beside(NamedTuple):
    """What a chart of curves needs besides the curves."""

    rules: Sequence[Rule] = ()
    names: Sequence[str] = ()
    """Names of all lines of the page: each has one colour in every chart."""
    intervals: str = "90 % intervals"
    """What the bands and bars are."""


_ALONE: Final = Beside()


def curve_chart(
    chart_id: str,
    title: str,
    finding: str,
    curves: Sequence[NamedCurve],
    *,
    x: Axis,
    y: Axis,
    beside: Beside = _ALONE,
) -> Chart:
    """Lines with their intervals as bands, or as bars where there are many lines, and limits."""
    colours = colours_of([*beside.names, *(curve.name for curve in curves)])
    has_bands = len(curves) <= _MOST_BANDS
    marks = [mark for curve in curves for mark in _marks(curve, colours, y, has_bands=has_bands)]
    return Chart(
        chart_id=chart_id,
        title=title,
        finding=finding or title,
        plots=(
            Plot(
                x=x,
                y=y,
                marks=(
                    *beside.rules,
                    *sorted(marks, key=lambda mark: isinstance(mark, Line | Dots)),
                ),
                height=380,
                legend=_legend(curves, beside.intervals, has_bands=has_bands),
            ),
        ),
        header=("curve", x.title, y.title, "from", "to"),
        rows=tuple(
            (
                curve.name or "–",
                format_number(point.x),
                format_number(point.y),
                "–" if point.low is None else format_number(point.low),
                "–" if point.high is None else format_number(point.high),
            )
            for curve in curves
            for point in curve.points
        ),
    )


def _legend(curves: Sequence[NamedCurve], intervals: str, *, has_bands: bool) -> str:
    """What bands or bars are; '' where there are none."""
    if not any(point.high is not None for curve in curves for point in curve.points):
        return ""
    return f"{'bands' if has_bands else 'bars'}: {intervals}"


class Ranked(NamedTuple):
    """A row of a ranking."""

    label: str
    value: float
    low: float | None
    high: float | None


def ranked_chart(
    chart_id: str, title: str, finding: str, rows: Sequence[Ranked], *, x: Axis, intervals: str
) -> Chart:
    """A bar for each row, in the order given, its interval as a thin line."""
    shown, marks = rows[:MAX_ROWS], list[Mark]()
    most = max((max(one.value, one.high or 0.0) for one in shown), default=1.0) or 1.0
    boxes = [box_of(place, 0.0, one.value) for place, one in enumerate(shown)]
    tips = [
        tip((one.label, ""), (x.title, format_number(one.value)), ("interval", _interval(one)))
        for one in shown
    ]
    marks.append(Boxes(boxes=boxes, tips=tips))
    for one, (_, _, top, bottom) in zip(shown, boxes, strict=True):
        middle = (top + bottom) / 2
        if one.low is not None and one.high is not None:
            marks.append(Line(xs=(one.low, one.high), ys=(middle, middle), colour="c1"))
        right = max(one.value, one.high or 0.0)
        words = format_number(one.value)
        marks.append(Text(x=right + 0.01 * most, y=middle, text=words, anchor="start"))
    has_lines = any(one.low is not None for one in shown)
    return Chart(
        chart_id=chart_id,
        title=title,
        finding=finding or title,
        plots=(
            rows_plot(
                [short_label(one.label) for one in shown],
                Axis(title=x.title, low=0.0, high=1.12 * most),
                marks,
                f"lines: {intervals}" if has_lines else "",
                n_all=len(rows),
                rows="",
            ),
        ),
        header=("point", x.title, "from", "to"),
        rows=tuple(
            (
                one.label,
                format_number(one.value),
                "–" if one.low is None else format_number(one.low),
                "–" if one.high is None else format_number(one.high),
            )
            for one in rows
        ),
    )


def _marks(curve: NamedCurve, colours: dict[str, str], y: Axis, *, has_bands: bool) -> list[Mark]:
    colour, points = colours[curve.name], curve.points
    xs, ys = [point.x for point in points], [point.y for point in points]
    ends = [
        (point.low, point.high)
        for point in points
        if point.low is not None and point.high is not None
    ]
    is_whole = len(ends) == len(points) > 1
    marks = list[Mark]()
    if has_bands and is_whole:
        marks.append(band_of(xs, ends, colour=colour))
    return [
        *marks,
        Line(xs=xs, ys=ys, name=curve.name, colour=colour),
        Dots(
            xs=xs,
            ys=ys,
            colour=colour,
            bars=ends if is_whole and not has_bands else (),
            tips=[
                tip(
                    (curve.name or point.label, point.label if curve.name else ""),
                    (y.title, format_number(point.y)),
                    ("interval", _interval(point)),
                )
                for point in points
            ],
        ),
    ]


def _interval(point: CurvePoint | Ranked) -> str:
    if point.low is None or point.high is None:
        return ""
    return f"[{format_number(point.low)}, {format_number(point.high)}]"
