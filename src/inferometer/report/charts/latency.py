"""How long do the first token and a decode step take, and how many tokens come, as prompts or batches grow?"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from inferometer.report.cells import estimate_cell, notes_text, statistic_text
from inferometer.report.charts.plot import Axis as PlotAxis, Chart, Plot, Scale
from inferometer.report.charts.series import (
    AXIS_IDS,
    AXIS_WORDS,
    Axis,
    PickEstimate,
    SeriesPoints,
    along,
    chart_title,
    curve_marks,
    drawn_lines,
    has_flags,
    left_out_text,
    line_marks,
    place_text,
    series_along,
    swept_axis,
    tested_values,
)
from inferometer.report.views import PhaseName, PointRow, SweepReportView
from inferometer.stats.estimate import Estimate
from inferometer.units import format_duration, format_number


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A number of points that is drawn against what was swept."""

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
    """TTFT against what was swept: prompt tokens, a line for each batch, or the other way round."""
    return _chart(view, axis, _TTFT)


def step_chart(view: SweepReportView, axis: Axis = "batch_size") -> Chart | None:
    """Median decode step against the batch, a line per prompt length, or the other way round."""
    return _chart(view, axis, _STEP)


def throughput_chart(view: SweepReportView, axis: Axis = "batch_size") -> Chart | None:
    """Output tokens per second of decode against what was swept, both in doublings."""
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
