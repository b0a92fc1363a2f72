"""Which lines does a chart over prompts or batches draw, and what is each called?

The x-axis of a chart is what was swept: prompt lengths, batch sizes, or both, in a chart of each. A
line along one axis has at least two points; a point that has no neighbour along this axis belongs
to the chart of the other one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from inferometer.report.cells import has_several_runs
from inferometer.report.charts.frame import Row, interval_fields
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


def point_rows(
    lines: SeriesPoints, axis: Axis, pick: PickEstimate, factor_ratio: float
) -> list[Row]:
    """One row for each measured point, in the display unit."""
    rows: list[Row] = []
    for name, points in lines.items():
        for row in points:
            estimate = pick(row)
            if estimate is not None:
                rows.append(
                    {"series": name, "x": along(row, axis), "flags": " ".join(row.flags)}
                    | interval_fields(estimate, factor_ratio)
                )
    return rows


def curve_rows(
    view: SweepReportView, lines: SeriesPoints, phase: PhaseName, axis: Axis, factor_ratio: float
) -> list[Row]:
    """One row for each point of the fitted curves that belong to a drawn line.

    ``part`` tells inside the checked box from beyond.
    """
    has_runs = has_several_runs(row.run_label for row in view.points)
    rows: list[Row] = []
    for curve in view.curves:
        if curve.phase != phase or len({_place(point, axis) for point in curve.points}) < 2:
            continue
        first = curve.points[0]
        other = first.batch_size if axis == "prompt_tokens" else first.prompt_tokens
        name = series_name(curve.run_label, other, axis, has_runs=has_runs)
        if name in lines:
            rows += _rows_of_curve(curve, axis, name, factor_ratio)
    return rows


def tested_values(lines: SeriesPoints, axis: Axis) -> tuple[int, ...]:
    """Where on the axis were points measured?"""
    return tuple(sorted({along(row, axis) for rows in lines.values() for row in rows}))


def has_flags(lines: SeriesPoints) -> bool:
    """Is any drawn point flagged, so that hollow marks need a word?"""
    return any(row.flags for rows in lines.values() for row in rows)


def _rows_of_curve(curve: Curve, axis: Axis, name: str, factor_ratio: float) -> list[Row]:
    rows: list[Row] = []
    was_inside = curve.points[0].is_inside_box
    for point in curve.points:
        row = {"series": name, "x": _place(point, axis)} | interval_fields(
            point.duration_s, factor_ratio
        )
        if point.is_inside_box != was_inside and rows:
            # The border belongs to both parts, so that the line has no gap.
            rows.append((row if point.is_inside_box else rows[-1]) | {"part": "beyond"})
        rows.append(row | {"part": "inside" if point.is_inside_box else "beyond"})
        was_inside = point.is_inside_box
    return rows


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
