"""Which lines does a chart over prompts or batches draw, and what is each called?

A sweep keeps its two axes apart: many prompt lengths at one batch, many batches at one prompt. A line along one axis has at least two
points; the single points of the other axis belong to the other chart.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from inferometer.report.cells import has_several_runs
from inferometer.report.charts.frame import Row, interval_fields
from inferometer.report.views import Curve, PhaseName, PointRow, SweepReportView
from inferometer.stats.estimate import Estimate

Axis: TypeAlias = Literal["prompt_tokens", "batch_size"]
PickEstimate: TypeAlias = Callable[[PointRow], Estimate | None]
SeriesPoints: TypeAlias = Mapping[str, tuple[PointRow, ...]]

MAX_SERIES: Final = 6
"""As many as the palette tells apart."""


def series_along(view: SweepReportView, axis: Axis, pick: PickEstimate) -> SeriesPoints:
    """The measured points of each line along ``axis``, by the line's name; at most MAX_SERIES lines, spread over what there is."""
    has_runs = has_several_runs(row.run_label for row in view.points)
    lines: dict[str, list[PointRow]] = {}
    for row in view.points:
        if pick(row) is not None:
            lines.setdefault(series_name(row.run_label, _other(row, axis), axis, has_runs=has_runs), []).append(row)
    long = {name: rows for name, rows in lines.items() if len({_along(row, axis) for row in rows}) > 1} or lines
    kept = _spread(list(long), MAX_SERIES)
    return {name: tuple(sorted(long[name], key=lambda row: _along(row, axis))) for name in kept}


def series_name(run_label: str, other: int, axis: Axis, *, has_runs: bool) -> str:
    """The name of a line: what is held fixed, and the run where there are several."""
    fixed = f"batch {other}" if axis == "prompt_tokens" else f"prompt {other}"
    return f"{run_label} · {fixed}" if has_runs else fixed


def point_rows(lines: SeriesPoints, axis: Axis, pick: PickEstimate, factor_ratio: float) -> list[Row]:
    """One row for each measured point, in the display unit."""
    rows: list[Row] = []
    for name, points in lines.items():
        for row in points:
            estimate = pick(row)
            if estimate is not None:
                rows.append(
                    {"series": name, "x": _along(row, axis), "flags": " ".join(row.flags)} | interval_fields(estimate, factor_ratio)
                )
    return rows


def curve_rows(view: SweepReportView, lines: SeriesPoints, phase: PhaseName, factor_ratio: float) -> list[Row]:
    """One row for each point of the fitted curves that belong to a drawn line; ``part`` tells inside the checked box from beyond."""
    axis: Axis = "prompt_tokens" if phase == "prefill" else "batch_size"
    has_runs = has_several_runs(row.run_label for row in view.points)
    rows: list[Row] = []
    for curve in view.curves:
        if curve.phase != phase or not curve.points:
            continue
        first = curve.points[0]
        other = first.batch_size if axis == "prompt_tokens" else first.prompt_tokens
        name = series_name(curve.run_label, other, axis, has_runs=has_runs)
        if name in lines:
            rows += _rows_of_curve(curve, axis, name, factor_ratio)
    return rows


def tested_values(lines: SeriesPoints, axis: Axis) -> tuple[int, ...]:
    """Where on the axis were points measured?"""
    return tuple(sorted({_along(row, axis) for rows in lines.values() for row in rows}))


def has_flags(lines: SeriesPoints) -> bool:
    """Is any drawn point flagged, so that hollow marks need a word?"""
    return any(row.flags for rows in lines.values() for row in rows)


def _rows_of_curve(curve: Curve, axis: Axis, name: str, factor_ratio: float) -> list[Row]:
    rows: list[Row] = []
    was_inside = curve.points[0].is_inside_box
    for point in curve.points:
        x = point.prompt_tokens if axis == "prompt_tokens" else point.batch_size
        row = {"series": name, "x": x} | interval_fields(point.duration_s, factor_ratio)
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


def _along(row: PointRow, axis: Axis) -> int:
    return row.prompt_tokens if axis == "prompt_tokens" else row.batch_size


def _other(row: PointRow, axis: Axis) -> int:
    return row.batch_size if axis == "prompt_tokens" else row.prompt_tokens


__all__ = [
    "MAX_SERIES",
    "Axis",
    "PickEstimate",
    "SeriesPoints",
    "curve_rows",
    "has_flags",
    "point_rows",
    "series_along",
    "series_name",
    "tested_values",
]
