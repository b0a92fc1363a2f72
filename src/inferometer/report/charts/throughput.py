"""Decode tokens per second against batch or prompt, and where doubling stops paying."""

import altair as alt

from inferometer.report.cells import ABSENT_TEXT, estimate_cell, notes_text, statistic_text
from inferometer.report.charts.frame import (
    ChartSpec,
    ends,
    finished,
    log_axis_domain,
    measured_lines,
    shared_x,
    y_axis,
)
from inferometer.report.charts.series import (
    AXIS_IDS,
    AXIS_WORDS,
    Axis,
    SeriesPoints,
    along,
    chart_title,
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
from inferometer.units import format_number


def throughput_chart(view: SweepReportView, axis: Axis = "batch_size") -> ChartSpec | None:
    """Output tokens per second of decode against what was swept, both in doublings."""
    lines = series_along(view, axis, _output, usual_axis="batch_size")
    if not lines:
        return None
    rows = point_rows(drawn_lines(lines), axis, _output, 1.0)
    numbers = [end for row in rows for end in ends(row)]
    scale = alt.Scale(type="log", base=2, domain=log_axis_domain(numbers), nice=False)
    estimates = [_output(row) for points in lines.values() for row in points]
    notes = (
        statistic_text(estimates),
        notes_text(estimates, has_flags=has_flags(lines)),
        left_out_text(lines),
    )
    y = alt.Y(
        "value:Q",
        scale=scale,
        axis=y_axis(
            "output tok/s of decode (log scale)", *notes, number_format=",~r", tick_count=6
        ),
    )
    x = shared_x(rows, (), f"{AXIS_WORDS[axis]} (log scale)")
    tooltip = [
        alt.Tooltip("series:N", title="line"),
        alt.Tooltip("x:Q", title=AXIS_WORDS[axis], format="d"),
        alt.Tooltip("value:Q", title="output tok/s", format=",.3~r"),
        alt.Tooltip("low:Q", title="from", format=",.3~r"),
        alt.Tooltip("high:Q", title="to", format=",.3~r"),
        alt.Tooltip("n:Q", title="repetitions"),
        alt.Tooltip("flags:N", title="flags"),
    ]
    return ChartSpec(
        chart_id=f"throughput-vs-{AXIS_IDS[axis]}",
        title=chart_title("Throughput", axis),
        finding=_finding(lines, axis),
        spec=finished(measured_lines(rows, x, y, tooltip=tooltip, has_curve=False)),
        header=(
            AXIS_WORDS[axis],
            *(
                f"{name} output tok/s [95 %]" if len(lines) > 1 else "output tok/s [95 %]"
                for name in lines
            ),
        ),
        rows=_rows(lines, axis),
    )


def _output(row: PointRow) -> Estimate | None:
    return row.decode_tokens_per_s


def _finding(lines: SeriesPoints, axis: Axis) -> str:
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


def _rows(lines: SeriesPoints, axis: Axis) -> tuple[tuple[str, ...], ...]:
    found = {
        (along(row, axis), name): estimate_cell(_output(row))
        for name, rows in lines.items()
        for row in rows
    }
    return tuple(
        (str(x), *(found.get((x, name), ABSENT_TEXT) for name in lines))
        for x in tested_values(lines, axis)
    )
