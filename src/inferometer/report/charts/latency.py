"""How long does the first token take as prompts grow, and a decode step as batches grow?"""

from collections.abc import Sequence

import altair as alt

from inferometer.report.cells import estimate_cell, notes_text, statistic_text
from inferometer.report.charts.frame import ChartSpec, ends, finished, log_axis_domain, y_axis
from inferometer.report.charts.lines import measured_lines, predicted_lines, shared_x
from inferometer.report.charts.series import (
    Axis,
    PickEstimate,
    SeriesPoints,
    curve_rows,
    has_flags,
    point_rows,
    series_along,
    tested_values,
)
from inferometer.report.views import PointRow, SweepReportView
from inferometer.stats.estimate import Estimate
from inferometer.units import format_duration, format_number

MS_PER_S = 1e3


def ttft_chart(view: SweepReportView) -> ChartSpec | None:
    """TTFT against prompt tokens, a line for each batch."""
    lines = series_along(view, "prompt_tokens", _ttft)
    if not lines:
        return None
    rows = point_rows(lines, "prompt_tokens", _ttft, MS_PER_S)
    curve = curve_rows(view, lines, "prefill", MS_PER_S)
    numbers = [end for row in (*rows, *curve) for end in ends(row)]
    x = shared_x(rows, curve, "prompt tokens (log scale)")
    scale = alt.Scale(type="log", domain=log_axis_domain(numbers), nice=False)
    title = ("TTFT, ms (log scale)", *_statistic(lines, _ttft, has_curve=bool(curve)))
    y = alt.Y("value:Q", scale=scale, axis=y_axis(*title, number_format=",~r", tick_count=5))
    tooltip = _tooltip("prompt tokens", "TTFT, ms")
    layers = [*predicted_lines(curve, list(lines), x, y), *measured_lines(rows, x, y, tooltip=tooltip, has_curve=bool(curve))]
    header, cells = _table(lines, "prompt_tokens", _ttft, ("prompt tokens", "TTFT ms [95 %]"))
    return ChartSpec(
        chart_id="ttft-vs-prompt",
        title="Time to first token against prompt length",
        finding=_growth(lines, "prompt_tokens", _ttft, "Time to first token", "{} prompt tokens"),
        spec=finished(layers),
        header=header,
        rows=cells,
    )


def step_chart(view: SweepReportView) -> ChartSpec | None:
    """Median decode step against the batch, a line for each prompt length."""
    lines = series_along(view, "batch_size", _step)
    if not lines:
        return None
    rows = point_rows(lines, "batch_size", _step, MS_PER_S)
    curve = curve_rows(view, lines, "decode", MS_PER_S)
    x = shared_x(rows, curve, "batch (log scale)")
    title = ("median decode step, ms", *_statistic(lines, _step, has_curve=bool(curve)))
    y = alt.Y("value:Q", scale=alt.Scale(zero=True, nice=True), axis=y_axis(*title, tick_count=5))
    tooltip = _tooltip("batch", "median step, ms")
    layers = [*predicted_lines(curve, list(lines), x, y), *measured_lines(rows, x, y, tooltip=tooltip, has_curve=bool(curve))]
    header, cells = _table(lines, "batch_size", _step, ("batch", "median step ms [95 %]"))
    return ChartSpec(
        chart_id="step-vs-batch",
        title="Decode step against batch",
        finding=_growth(lines, "batch_size", _step, "A decode step", "batch {}"),
        spec=finished(layers),
        header=header,
        rows=cells,
    )


def _ttft(row: PointRow) -> Estimate | None:
    return row.ttft_s


def _step(row: PointRow) -> Estimate | None:
    return row.decode_step_s


def _statistic(lines: SeriesPoints, pick: PickEstimate, *, has_curve: bool) -> tuple[str, str]:
    estimates = [pick(row) for rows in lines.values() for row in rows]
    return statistic_text(estimates), notes_text(estimates, has_curve=has_curve, has_flags=has_flags(lines))


def _tooltip(x_title: str, y_title: str) -> list[alt.Tooltip]:
    return [
        alt.Tooltip("series:N", title="line"),
        alt.Tooltip("x:Q", title=x_title, format="d"),
        alt.Tooltip("value:Q", title=y_title, format=".3~r"),
        alt.Tooltip("low:Q", title="from", format=".3~r"),
        alt.Tooltip("high:Q", title="to", format=".3~r"),
        alt.Tooltip("n:Q", title="repetitions"),
        alt.Tooltip("flags:N", title="flags"),
    ]


def _growth(lines: SeriesPoints, axis: Axis, pick: PickEstimate, what: str, where: str) -> str:
    """The ends of each line in words."""
    parts: list[str] = []
    for name, rows in lines.items():
        ends = [(row, pick(row)) for row in (rows[0], rows[-1])]
        (first, at_first), (last, at_last) = ends
        if at_first is None or at_last is None:
            continue
        prefix = f"{name}: " if len(lines) > 1 else ""
        x_first, x_last = (row.prompt_tokens if axis == "prompt_tokens" else row.batch_size for row in (first, last))
        if x_first == x_last:
            parts.append(f"{prefix}{format_duration(at_first.value)} at {where.format(x_first)}")
            continue
        ratio = format_number(at_last.value / at_first.value)
        start = f"{format_duration(at_first.value)} at {where.format(x_first)}"
        end = f"{format_duration(at_last.value)} at {where.format(x_last)}"
        parts.append(f"{prefix}{start}, {end} ({ratio} times as long)")
    return f"{what}: {'; '.join(parts)}."


def _table(
    lines: SeriesPoints, axis: Axis, pick: PickEstimate, names: Sequence[str]
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """A row for each tested value, a column for each line."""
    x_name, y_name = names
    header = (x_name, *(y_name if len(lines) == 1 else f"{line} {y_name}" for line in lines))
    found: dict[tuple[int, str], str] = {}
    for name, rows in lines.items():
        for row in rows:
            x = row.prompt_tokens if axis == "prompt_tokens" else row.batch_size
            found[x, name] = " ".join((estimate_cell(pick(row), MS_PER_S), *row.flags))
    body = tuple((str(x), *(found.get((x, name), "–") for name in lines)) for x in tested_values(lines, axis))
    return header, body


__all__ = ["MS_PER_S", "step_chart", "ttft_chart"]
