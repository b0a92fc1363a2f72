"""Where does the time to the first token go, in one run or from rate to rate?"""

from collections.abc import Sequence
from typing import Final

import altair as alt

from inferometer.records.ttft_parts import TtftParts
from inferometer.report.cells import ABSENT_TEXT
from inferometer.report.charts.bars import MAX_ROWS, label_axis, rows_height, stacked_layers
from inferometer.report.charts.frame import ChartSpec, Row, finished
from inferometer.report.decision_views import RateView
from inferometer.report.request_views import RequestReportView
from inferometer.report.server_tables import largest_part, named_parts
from inferometer.units import format_duration, format_number

COLOURS: Final = {
    "client": "#000000",
    "network": "#999999",
    "queue": "#d55e00",
    "prefill": "#0072b2",
    "hand-over": "#cc79a7",
}
_SHOWN_PERCENT: Final = 135
"""Room for the whole's duration at the right of each bar."""


def ttft_parts_chart(view: RequestReportView) -> ChartSpec | None:
    """The parts of the run's mean TTFT, as shares."""
    return None if view.ttft_parts is None else _parts_chart([("all requests", view.ttft_parts)])


def ttft_parts_rate_chart(view: RateView) -> ChartSpec | None:
    """The parts of each run's mean TTFT, by offered rate or concurrency."""
    return _parts_chart(
        [(point.label, point.ttft_parts) for point in view.points if point.ttft_parts is not None]
    )


def _parts_chart(bars: Sequence[tuple[str, TtftParts]]) -> ChartSpec | None:
    positive = [(label, parts) for label, parts in bars if parts.total_s > 0]
    shown = positive[:MAX_ROWS]
    if not shown:
        return None
    known = {name for _, parts in shown for name, value in named_parts(parts) if value is not None}
    names = [name for name in COLOURS if name in known]
    labels = [label for label, _ in shown]
    scale = alt.Scale(domain=[0, _SHOWN_PERCENT], nice=False)
    x = alt.X(
        "from:Q",
        scale=scale,
        axis=alt.Axis(title="% of the mean TTFT", values=[0, 20, 40, 60, 80, 100]),
    )
    y = label_axis(
        labels,
        "mean TTFT, part by part",
        n_all=len(positive),
        rows="rows: runs by their traffic" if len(shown) > 1 else "",
    )
    rows = [row for label, parts in shown for row in _rows(label, parts)]
    totals: list[Row] = [
        {"label": label, "from": 100, "text": format_duration(parts.total_s)}
        for label, parts in shown
    ]
    ends = shown if len(shown) == 1 else (shown[0], shown[-1])
    return ChartSpec(
        chart_id="ttft-parts",
        title="Where the time to the first token goes",
        finding=f"{'; '.join(_finding(label, parts) for label, parts in ends)}.",
        spec=finished(
            stacked_layers(rows, totals, x, y, {name: COLOURS[name] for name in names}),
            height=rows_height(labels, row_height=28),
        ),
        header=("run", "requests", "mean TTFT, ms", *(f"{name}, ms" for name in names)),
        rows=tuple(_cells(label, parts, names) for label, parts in shown),
    )


def _rows(label: str, parts: TtftParts) -> list[Row]:
    """One bar for each part that takes time; a difference of means below 0 is in the table only."""
    found: list[Row] = []
    start = 0.0
    for name, value_s in named_parts(parts):
        if value_s is not None and value_s > 0:
            share = 100 * value_s / parts.total_s
            time = format_duration(value_s)
            found.append(
                {
                    "label": label,
                    "part": name,
                    "share": share,
                    "from": start,
                    "to": start + share,
                    "time": time,
                }
            )
            start += share
    return found


def _finding(label: str, parts: TtftParts) -> str:
    return f"{largest_part(parts)} ({format_duration(parts.total_s)}, {label})"


def _cells(label: str, parts: TtftParts, names: Sequence[str]) -> tuple[str, ...]:
    known = dict(named_parts(parts))
    found = (known[name] for name in names)
    cells = (ABSENT_TEXT if value_s is None else format_number(1e3 * value_s) for value_s in found)
    return (label, f"{parts.n_requests:,}", format_number(1e3 * parts.total_s), *cells)
