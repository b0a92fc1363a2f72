"""How many tokens per second does a batch yield, and where does doubling it stop paying?"""

import altair as alt

from inferometer.report.cells import ABSENT_TEXT, estimate_cell, notes_text, statistic_text
from inferometer.report.charts.frame import ChartSpec, ends, finished, log_axis_domain, y_axis
from inferometer.report.charts.lines import measured_lines, shared_x
from inferometer.report.charts.series import SeriesPoints, has_flags, point_rows, series_along, tested_values
from inferometer.report.views import PointRow, SweepReportView
from inferometer.stats.estimate import Estimate
from inferometer.units import format_number


def throughput_chart(view: SweepReportView) -> ChartSpec | None:
    """Output tokens per second against the batch, both in doublings."""
    lines = series_along(view, "batch_size", _output)
    if not lines:
        return None
    rows = point_rows(lines, "batch_size", _output, 1.0)
    numbers = [end for row in rows for end in ends(row)]
    scale = alt.Scale(type="log", base=2, domain=log_axis_domain(numbers), nice=False)
    estimates = [_output(row) for points in lines.values() for row in points]
    title = ("output tok/s of decode (log scale)", statistic_text(estimates), notes_text(estimates, has_flags=has_flags(lines)))
    y = alt.Y("value:Q", scale=scale, axis=y_axis(*title, number_format=",~r", tick_count=6))
    x = shared_x(rows, (), "batch (log scale)")
    tooltip = [
        alt.Tooltip("series:N", title="line"),
        alt.Tooltip("x:Q", title="batch", format="d"),
        alt.Tooltip("value:Q", title="output tok/s", format=",.3~r"),
        alt.Tooltip("low:Q", title="from", format=",.3~r"),
        alt.Tooltip("high:Q", title="to", format=",.3~r"),
        alt.Tooltip("n:Q", title="repetitions"),
        alt.Tooltip("flags:N", title="flags"),
    ]
    return ChartSpec(
        chart_id="throughput-vs-batch",
        title="Throughput against batch",
        finding=_finding(lines),
        spec=finished(measured_lines(rows, x, y, tooltip=tooltip, has_curve=False)),
        header=("batch", *(f"{name} output tok/s [95 %]" if len(lines) > 1 else "output tok/s [95 %]" for name in lines)),
        rows=_rows(lines),
    )


def _output(row: PointRow) -> Estimate | None:
    return row.decode_tokens_per_s


def _finding(lines: SeriesPoints) -> str:
    parts: list[str] = []
    for name, rows in lines.items():
        first, last = _output(rows[0]), _output(rows[-1])
        if first is None or last is None:
            continue
        prefix = f"{name}: " if len(lines) > 1 else ""
        if rows[0].batch_size == rows[-1].batch_size:
            parts.append(f"{prefix}{format_number(first.value)} output tok/s at batch {rows[0].batch_size}")
            continue
        batches = f"batch {rows[0].batch_size} → {rows[-1].batch_size}"
        gain = format_number(last.value / first.value)
        growth = f"{format_number(rows[-1].batch_size / rows[0].batch_size)} times the batch yields {gain} times"
        ends = f"{format_number(first.value)} → {format_number(last.value)} output tok/s, {batches}"
        parts.append(f"{prefix}{growth} the throughput ({ends})")
    text = "; ".join(parts)
    return f"{text[0].upper() if len(lines) == 1 else text[0]}{text[1:]}."


def _rows(lines: SeriesPoints) -> tuple[tuple[str, ...], ...]:
    found = {(row.batch_size, name): estimate_cell(_output(row)) for name, rows in lines.items() for row in rows}
    return tuple((str(batch), *(found.get((batch, name), ABSENT_TEXT) for name in lines)) for batch in tested_values(lines, "batch_size"))


__all__ = ["throughput_chart"]
