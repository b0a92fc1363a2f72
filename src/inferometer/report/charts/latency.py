"""How long do the first token and a decode step take as prompts or batches grow?"""

from collections.abc import Sequence
from typing import Any

import altair as alt

from inferometer.report.cells import estimate_cell, notes_text, statistic_text
from inferometer.report.charts.frame import (
    ChartSpec,
    Row,
    ends,
    finished,
    log_axis_domain,
    measured_lines,
    predicted_lines,
    shared_x,
    y_axis,
)
from inferometer.report.charts.series import (
    AXIS_IDS,
    AXIS_WORDS,
    Axis,
    PickEstimate,
    SeriesPoints,
    along,
    chart_title,
    curve_rows,
    drawn_lines,
    has_flags,
    left_out_text,
    place_text,
    point_rows,
    series_along,
    tested_values,
)
from inferometer.report.views import PointRow, SweepReportView
from inferometer.stats.estimate import Estimate
from inferometer.units import format_duration, format_number

MS_PER_S = 1e3


def ttft_chart(view: SweepReportView, axis: Axis = "prompt_tokens") -> ChartSpec | None:
    """TTFT against what was swept: prompt tokens, a line for each batch, or the other way round."""
    lines = series_along(view, axis, _ttft, usual_axis="prompt_tokens")
    if not lines:
        return None
    drawn = drawn_lines(lines)
    rows = point_rows(drawn, axis, _ttft, MS_PER_S)
    curve = curve_rows(view, drawn, "prefill", axis, MS_PER_S)
    numbers = [end for row in (*rows, *curve) for end in ends(row)]
    scale = alt.Scale(type="log", domain=log_axis_domain(numbers), nice=False)
    title = ("TTFT, ms (log scale)", *_statistic(lines, _ttft, has_curve=bool(curve)))
    y = alt.Y("value:Q", scale=scale, axis=y_axis(*title, number_format=",~r", tick_count=5))
    header, cells = _table(lines, axis, _ttft, "TTFT ms [95 %]")
    return ChartSpec(
        chart_id=f"ttft-vs-{AXIS_IDS[axis]}",
        title=chart_title("Time to first token", axis),
        finding=_growth(lines, axis, _ttft, "Time to first token"),
        spec=_drawn(rows, curve, list(drawn), axis, y, "TTFT, ms"),
        header=header,
        rows=cells,
    )


def step_chart(view: SweepReportView, axis: Axis = "batch_size") -> ChartSpec | None:
    """Median decode step against the batch, a line per prompt length, or the other way round."""
    lines = series_along(view, axis, _step, usual_axis="batch_size")
    if not lines:
        return None
    drawn = drawn_lines(lines)
    rows = point_rows(drawn, axis, _step, MS_PER_S)
    curve = curve_rows(view, drawn, "decode", axis, MS_PER_S)
    title = ("median decode step, ms", *_statistic(lines, _step, has_curve=bool(curve)))
    y = alt.Y("value:Q", scale=alt.Scale(zero=True, nice=True), axis=y_axis(*title, tick_count=5))
    header, cells = _table(lines, axis, _step, "median step ms [95 %]")
    return ChartSpec(
        chart_id=f"step-vs-{AXIS_IDS[axis]}",
        title=chart_title("Decode step", axis),
        finding=_growth(lines, axis, _step, "A decode step"),
        spec=_drawn(rows, curve, list(drawn), axis, y, "median step, ms"),
        header=header,
        rows=cells,
    )


def _drawn(
    rows: Sequence[Row],
    curve: Sequence[Row],
    names: Sequence[str],
    axis: Axis,
    y: alt.Y,
    y_title: str,
) -> dict[str, Any]:
    x = shared_x(rows, curve, f"{AXIS_WORDS[axis]} (log scale)")
    tooltip = _tooltip(AXIS_WORDS[axis], y_title)
    return finished(
        [
            *predicted_lines(curve, names, x, y),
            *measured_lines(rows, x, y, tooltip=tooltip, has_curve=bool(curve)),
        ]
    )


def _ttft(row: PointRow) -> Estimate | None:
    return row.ttft_s


def _step(row: PointRow) -> Estimate | None:
    return row.decode_step_s


def _statistic(lines: SeriesPoints, pick: PickEstimate, *, has_curve: bool) -> tuple[str, str, str]:
    estimates = [pick(row) for rows in lines.values() for row in rows]
    return (
        statistic_text(estimates),
        notes_text(estimates, has_curve=has_curve, has_flags=has_flags(lines)),
        left_out_text(lines),
    )


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


def _table(
    lines: SeriesPoints, axis: Axis, pick: PickEstimate, column: str
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """A row for each tested value, a column for each line."""
    header = (
        AXIS_WORDS[axis],
        *(column if len(lines) == 1 else f"{line} {column}" for line in lines),
    )
    found: dict[tuple[int, str], str] = {}
    for name, rows in lines.items():
        for row in rows:
            found[along(row, axis), name] = " ".join(
                (estimate_cell(pick(row), MS_PER_S), *row.flags)
            )
    body = tuple(
        (str(x), *(found.get((x, name), "–") for name in lines)) for x in tested_values(lines, axis)
    )
    return header, body
