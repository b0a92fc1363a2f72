"""Which lines does a chart over prompts or batches draw, and what is each called?

The x-axis of a chart is what was swept: prompt lengths, batch sizes, or both, in a chart of each. A
line along one axis has at least two points; a point that has no neighbour along this axis belongs
to the chart of the other one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from inferometer.report.cells import estimate_cell, has_several_runs
from inferometer.report.charts.plot import (
    Axis as PlotAxis,
    Dots,
    Line,
    Mark,
    band_of,
    bar_of,
    colours_of,
    tip,
)
from inferometer.report.views import Curve, CurvePoint, PhaseName, PointRow, SweepReportView
from inferometer.stats.estimate import Estimate

Axis: TypeAlias = Literal["prompt_tokens", "batch_size"]
PickEstimate: TypeAlias = Callable[[PointRow], Estimate | None]
SeriesPoints: TypeAlias = Mapping[str, tuple[PointRow, ...]]

MAX_SERIES: Final = 6
"""As many as the palette tells apart."""

AXIS_WORDS: Final[Mapping[Axis, str]] = {"prompt_tokens": "prompt tokens", "batch_size": "batch"}
AXIS_IDS: Final[Mapping[Axis, str]] = {"prompt_tokens": "prompt", "batch_size": "batch"}
_TITLES: Final[Mapping[Axis, str]] = {"prompt_tokens": "prompt length", "batch_size": "batch"}


def series_along(
    view: SweepReportView, axis: Axis, pick: PickEstimate, *, usual_axis: Axis
) -> SeriesPoints:
    """The measured points of each line along ``axis``; empty if it was not swept.

    Where nothing was swept at all, the lone points stand along ``usual_axis``.
    """
    lines = _lines_along(view, axis, pick)
    long = {name: rows for name, rows in lines.items() if _is_line(rows, axis)}
    other: Axis = "batch_size" if axis == "prompt_tokens" else "prompt_tokens"
    if (
        not long
        and axis == usual_axis
        and not any(_is_line(rows, other) for rows in _lines_along(view, other, pick).values())
    ):
        long = lines
    return {
        name: tuple(sorted(rows, key=lambda row: along(row, axis))) for name, rows in long.items()
    }


def drawn_lines(lines: SeriesPoints) -> SeriesPoints:
    """The lines that a chart draws: all of them, or MAX_SERIES spread over them.

    Its table holds all.
    """
    return {name: lines[name] for name in _spread(list(lines), MAX_SERIES)}


def left_out_text(lines: SeriesPoints) -> str:
    """What the chart says of lines that it does not draw; '' where it draws all."""
    n_left_out = len(lines) - MAX_SERIES
    return (
        f"{MAX_SERIES} of {len(lines)} lines are drawn, the table has all" if n_left_out > 0 else ""
    )


def chart_title(what: str, axis: Axis) -> str:
    """Such as ``Throughput against batch``."""
    return f"{what} against {_TITLES[axis]}"


def place_text(value: int, axis: Axis) -> str:
    """Such as ``128 prompt tokens`` or ``batch 4``."""
    return f"{value} prompt tokens" if axis == "prompt_tokens" else f"batch {value}"


def series_name(run_label: str, other: int, axis: Axis, *, has_runs: bool) -> str:
    """The name of a line: what is held fixed, and the run where there are several."""
    fixed = f"batch {other}" if axis == "prompt_tokens" else f"prompt {other}"
    return f"{run_label} · {fixed}" if has_runs else fixed


def line_marks(
    lines: SeriesPoints, axis: Axis, pick: PickEstimate, factor_ratio: float, unit: str
) -> list[Mark]:
    """Each line with its points, in the display unit; flagged points are hollow."""
    marks = list[Mark]()
    colours = colours_of(lines)
    for name, points in lines.items():
        known = [(row, found) for row in points if (found := pick(row)) is not None]
        xs = [float(along(row, axis)) for row, _ in known]
        ys = [found.value * factor_ratio for _, found in known]
        marks.append(Line(xs=xs, ys=ys, name=name, colour=colours[name], is_faint=True))
        marks.append(
            Dots(
                xs=xs,
                ys=ys,
                name=name,
                colour=colours[name],
                bars=[bar_of(found, factor_ratio) for _, found in known],
                is_hollow=[bool(row.flags) for row, _ in known],
                tips=[
                    tip(
                        (name, ""),
                        (AXIS_WORDS[axis], str(along(row, axis))),
                        (unit, estimate_cell(found, factor_ratio)),
                        ("repetitions", str(found.n_samples)),
                        ("flags", " ".join(row.flags)),
                    )
                    for row, found in known
                ],
            )
        )
    return marks


def curve_marks(
    view: SweepReportView, lines: SeriesPoints, phase: PhaseName, axis: Axis, factor_ratio: float
) -> list[Mark]:
    """The fitted curves of the drawn lines: dashed inside the checked box, dotted beyond it."""
    has_runs = has_several_runs(row.run_label for row in view.points)
    colours, marks = colours_of(lines), list[Mark]()
    for curve in view.curves:
        if curve.phase != phase or len({_place(point, axis) for point in curve.points}) < 2:
            continue
        first = curve.points[0]
        other = first.batch_size if axis == "prompt_tokens" else first.prompt_tokens
        name = series_name(curve.run_label, other, axis, has_runs=has_runs)
        if name in lines:
            marks += _marks_of_curve(curve, axis, name, colours[name], factor_ratio)
    return marks


def swept_axis(lines: SeriesPoints, axis: Axis) -> PlotAxis:
    """A doubling is a step to the right; ticks where something was measured."""
    return PlotAxis(
        title=f"{AXIS_WORDS[axis]} (log scale)",
        scale="log2",
        ticks=tuple(float(one) for one in tested_values(lines, axis)),
    )


def tested_values(lines: SeriesPoints, axis: Axis) -> tuple[int, ...]:
    """Where on the axis were points measured?"""
    return tuple(sorted({along(row, axis) for rows in lines.values() for row in rows}))


def has_flags(lines: SeriesPoints) -> bool:
    """Is any drawn point flagged, so that hollow marks need a word?"""
    return any(row.flags for rows in lines.values() for row in rows)


def _marks_of_curve(
    curve: Curve, axis: Axis, name: str, colour: str, factor_ratio: float
) -> list[Mark]:
    marks = list[Mark]()
    whole = [point for point in curve.points if bar_of(point.duration_s) is not None]
    if len(whole) > 1:
        ends = [bar_of(point.duration_s, factor_ratio) or (0.0, 0.0) for point in whole]
        xs = [float(_place(point, axis)) for point in whole]
        marks.append(band_of(xs, ends, colour=colour, name=name))
    parts = list[list[CurvePoint]]()
    for point in curve.points:
        if not parts or parts[-1][-1].is_inside_box != point.is_inside_box:
            # The border belongs to both parts, so that the line has no gap.
            parts.append(parts[-1][-1:] if parts else [])
        parts[-1].append(point)
    for part in parts:
        is_inside = part[-1].is_inside_box and part[0].is_inside_box
        marks.append(
            Line(
                xs=[float(_place(point, axis)) for point in part],
                ys=[point.duration_s.value * factor_ratio for point in part],
                name=name,
                colour=colour,
                dash="dashed" if is_inside else "dotted",
            )
        )
    return marks


def _spread(names: Sequence[str], n_kept: int) -> list[str]:
    """Evenly spread over the list, both ends kept."""
    if len(names) <= n_kept:
        return list(names)
    return [names[round(index * (len(names) - 1) / (n_kept - 1))] for index in range(n_kept)]


def along(row: PointRow, axis: Axis) -> int:
    """Where does the point stand along the axis?"""
    return row.prompt_tokens if axis == "prompt_tokens" else row.batch_size


def _place(point: CurvePoint, axis: Axis) -> int:
    return point.prompt_tokens if axis == "prompt_tokens" else point.batch_size


def _lines_along(
    view: SweepReportView, axis: Axis, pick: PickEstimate
) -> dict[str, list[PointRow]]:
    has_runs = has_several_runs(row.run_label for row in view.points)
    lines: dict[str, list[PointRow]] = {}
    for row in view.points:
        if pick(row) is not None:
            lines.setdefault(
                series_name(row.run_label, _other(row, axis), axis, has_runs=has_runs), []
            ).append(row)
    return lines


def _is_line(rows: Sequence[PointRow], axis: Axis) -> bool:
    return len({along(row, axis) for row in rows}) > 1


def _other(row: PointRow, axis: Axis) -> int:
    return row.batch_size if axis == "prompt_tokens" else row.prompt_tokens
