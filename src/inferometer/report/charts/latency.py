"""How do latencies and rates of tokens change as prompts or batches grow?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from inferometer.report.charts.plot import (
    Axis as PlotAxis,
    Chart,
    Dots,
    Line,
    Mark,
    Plot,
    Scale,
    band_of,
    bar_of,
    colours_of,
    tip,
)
from inferometer.report.tables import estimate_cell, has_several_runs, notes_text, statistic_text
from inferometer.report.views import Curve, CurvePoint, PhaseName, PointRow, SweepReportView
from inferometer.stats.estimate import Estimate
from inferometer.units import format_duration, format_number

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
    """A note on lines that the chart does not draw; '' where it draws all."""
    n_left_out = len(lines) - MAX_SERIES
    return (
        f"{MAX_SERIES} of {len(lines)} lines are drawn, the table has all" if n_left_out > 0 else ""
    )


def chart_title(what: str, axis: Axis) -> str:
    """Title such as ``Throughput against batch``."""
    return f"{what} against {_TITLES[axis]}"


def place_text(value: int, axis: Axis) -> str:
    """Text such as ``128 prompt tokens`` or ``batch 4``."""
    return f"{value} prompt tokens" if axis == "prompt_tokens" else f"batch {value}"


def series_name(run_label: str, other: int, axis: Axis, *, has_runs: bool) -> str:
    """Name of a line: its fixed value, and its run where there are several."""
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
        if curve.phase != phase or len({along(point, axis) for point in curve.points}) < 2:
            continue
        first = curve.points[0]
        other = first.batch_size if axis == "prompt_tokens" else first.prompt_tokens
        name = series_name(curve.run_label, other, axis, has_runs=has_runs)
        if name in lines:
            marks += _marks_of_curve(curve, axis, name, colours[name], factor_ratio)
    return marks


def swept_axis(lines: SeriesPoints, axis: Axis) -> PlotAxis:
    """Log-scaled axis of the swept variable, with ticks at the measured values."""
    return PlotAxis(
        title=f"{AXIS_WORDS[axis]} (log scale)",
        scale="log2",
        ticks=tuple(float(one) for one in tested_values(lines, axis)),
    )


def tested_values(lines: SeriesPoints, axis: Axis) -> tuple[int, ...]:
    """Measured values on the axis."""
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
        xs = [float(along(point, axis)) for point in whole]
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
                xs=[float(along(point, axis)) for point in part],
                ys=[point.duration_s.value * factor_ratio for point in part],
                name=name,
                colour=colour,
                dash="dashed" if is_inside else "dotted",
            )
        )
    return marks


def _spread(names: Sequence[str], n_kept: int) -> list[str]:
    """Names spread evenly over the list, both ends included."""
    if len(names) <= n_kept:
        return list(names)
    return [names[round(index * (len(names) - 1) / (n_kept - 1))] for index in range(n_kept)]


def along(row: PointRow | CurvePoint, axis: Axis) -> int:
    """Value of the point on the axis."""
    return row.prompt_tokens if axis == "prompt_tokens" else row.batch_size


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A quantity of points to draw against the swept axis."""

    chart_id: str
    title: str
    axis_title: str
    unit: str
    column: str
    pick: PickEstimate
    factor_ratio: float
    scale: Scale
    usual_axis: Axis
    phase: PhaseName | None
    """Whose fitted curve is drawn beside."""
    finding: Callable[[SeriesPoints, Axis], str]


def ttft_chart(view: SweepReportView, axis: Axis = "prompt_tokens") -> Chart | None:
    """TTFT against the swept axis: prompt tokens with a line per batch, or vice versa."""
    return _chart(view, axis, _TTFT)


def step_chart(view: SweepReportView, axis: Axis = "batch_size") -> Chart | None:
    """Median decode step against the batch, a line per prompt length, or the other way round."""
    return _chart(view, axis, _STEP)


def throughput_chart(view: SweepReportView, axis: Axis = "batch_size") -> Chart | None:
    """Decode throughput against the swept axis, both in doublings."""
    return _chart(view, axis, _THROUGHPUT)


def _chart(view: SweepReportView, axis: Axis, kind: _Kind) -> Chart | None:
    lines = series_along(view, axis, kind.pick, usual_axis=kind.usual_axis)
    if not lines:
        return None
    drawn = drawn_lines(lines)
    curve = (
        [] if kind.phase is None else curve_marks(view, drawn, kind.phase, axis, kind.factor_ratio)
    )
    points = line_marks(drawn, axis, kind.pick, kind.factor_ratio, kind.unit)
    estimates = [kind.pick(row) for rows in lines.values() for row in rows]
    notes = (
        statistic_text(estimates),
        notes_text(estimates, has_curve=bool(curve), has_flags=has_flags(lines)),
        left_out_text(lines),
    )
    header, cells = _table(lines, axis, kind)
    return Chart(
        chart_id=f"{kind.chart_id}-vs-{AXIS_IDS[axis]}",
        title=chart_title(kind.title, axis),
        finding=kind.finding(lines, axis),
        plots=(
            Plot(
                x=swept_axis(lines, axis),
                y=PlotAxis(
                    title=kind.axis_title, scale=kind.scale, has_zero=kind.scale == "linear"
                ),
                marks=(*curve, *points),
                legend=" · ".join(note for note in notes if note),
            ),
        ),
        header=header,
        rows=cells,
    )


def _growth_of(pick: PickEstimate, what: str) -> Callable[[SeriesPoints, Axis], str]:
    return lambda lines, axis: _growth(lines, axis, pick, what)


def _growth(lines: SeriesPoints, axis: Axis, pick: PickEstimate, what: str) -> str:
    """The ends of each drawn line in words."""
    parts: list[str] = []
    for name, rows in drawn_lines(lines).items():
        (first, at_first), (last, at_last) = [
            (along(row, axis), pick(row)) for row in (rows[0], rows[-1])
        ]
        if at_first is None or at_last is None:
            continue
        prefix = f"{name}: " if len(lines) > 1 else ""
        if first == last:
            parts.append(f"{prefix}{format_duration(at_first.value)} at {place_text(first, axis)}")
            continue
        ratio = format_number(at_last.value / at_first.value)
        start = f"{format_duration(at_first.value)} at {place_text(first, axis)}"
        end = f"{format_duration(at_last.value)} at {place_text(last, axis)}"
        parts.append(f"{prefix}{start}, {end} ({ratio} times as long)")
    parts += [text] if (text := left_out_text(lines)) else []
    return f"{what}: {'; '.join(parts)}."


def _gain(lines: SeriesPoints, axis: Axis) -> str:
    parts: list[str] = []
    what = "prompt length" if axis == "prompt_tokens" else "batch"
    for name, rows in drawn_lines(lines).items():
        first, last = _output(rows[0]), _output(rows[-1])
        if first is None or last is None:
            continue
        prefix = f"{name}: " if len(lines) > 1 else ""
        x_first, x_last = along(rows[0], axis), along(rows[-1], axis)
        if x_first == x_last:
            parts.append(
                f"{prefix}{format_number(first.value)} output tok/s at {place_text(x_first, axis)}"
            )
            continue
        gain = format_number(last.value / first.value)
        growth = f"{format_number(x_last / x_first)} times the {what} yields {gain} times"
        ends = (
            f"{format_number(first.value)} → {format_number(last.value)} output tok/s, {what}"
            f" {x_first} → {x_last}"
        )
        parts.append(f"{prefix}{growth} the throughput ({ends})")
    parts += [text] if (text := left_out_text(lines)) else []
    text = "; ".join(parts)
    return f"{text[0].upper() if len(lines) == 1 else text[0]}{text[1:]}."


def _table(
    lines: SeriesPoints, axis: Axis, kind: _Kind
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """A row for each tested value, a column for each line."""
    column = kind.column
    header = (
        AXIS_WORDS[axis],
        *(column if len(lines) == 1 else f"{line} {column}" for line in lines),
    )
    found: dict[tuple[int, str], str] = {}
    for name, rows in lines.items():
        for row in rows:
            found[along(row, axis), name] = " ".join(
                (estimate_cell(kind.pick(row), kind.factor_ratio), *row.flags)
            )
    body = tuple(
        (str(x), *(found.get((x, name), "–") for name in lines)) for x in tested_values(lines, axis)
    )
    return header, body


def _ttft(row: PointRow) -> Estimate | None:
    return row.ttft_s


def _step(row: PointRow) -> Estimate | None:
    return row.decode_step_s


def _output(row: PointRow) -> Estimate | None:
    return row.decode_tokens_per_s


_TTFT: Final = _Kind(
    chart_id="ttft",
    title="Time to first token",
    axis_title="TTFT, ms (log scale)",
    unit="TTFT, ms",
    column="TTFT ms [95 %]",
    pick=_ttft,
    factor_ratio=1e3,
    scale="log",
    usual_axis="prompt_tokens",
    phase="prefill",
    finding=_growth_of(_ttft, "Time to first token"),
)
_STEP: Final = _Kind(
    chart_id="step",
    title="Decode step",
    axis_title="median decode step, ms",
    unit="median step, ms",
    column="median step ms [95 %]",
    pick=_step,
    factor_ratio=1e3,
    scale="linear",
    usual_axis="batch_size",
    phase="decode",
    finding=_growth_of(_step, "A decode step"),
)
_THROUGHPUT: Final = _Kind(
    chart_id="throughput",
    title="Throughput",
    axis_title="output tok/s of decode (log scale)",
    unit="output tok/s",
    column="output tok/s [95 %]",
    pick=_output,
    factor_ratio=1.0,
    scale="log",
    usual_axis="batch_size",
    phase=None,
    finding=_gain,
)
