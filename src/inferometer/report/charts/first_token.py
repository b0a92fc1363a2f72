"""Where does the time to the first token go, in one run or from rate to rate?"""

from collections.abc import Sequence
from typing import Final

from inferometer.records.server_summaries import TtftParts
from inferometer.report.cells import ABSENT_TEXT
from inferometer.report.charts.bars import MAX_ROWS, Part, rows_plot, stacked
from inferometer.report.charts.plot import Axis, Chart
from inferometer.report.decision_views import RateView
from inferometer.report.request_views import RequestReportView
from inferometer.report.server_tables import largest_part, named_parts
from inferometer.units import format_duration, format_number

COLOURS: Final = {
    "client": "c6",
    "network": "c5",
    "queue": "c1",
    "prefill": "c0",
    "hand-over": "c3",
}
SHARES: Final = (0.0, 20.0, 40.0, 60.0, 80.0, 100.0)


def ttft_parts_chart(view: RequestReportView) -> Chart | None:
    """The parts of the run's mean TTFT, as shares."""
    return None if view.ttft_parts is None else _parts_chart([("all requests", view.ttft_parts)])


def ttft_parts_rate_chart(view: RateView) -> Chart | None:
    """The parts of each run's mean TTFT, by offered rate or concurrency."""
    return _parts_chart(
        [(point.label, point.ttft_parts) for point in view.points if point.ttft_parts is not None]
    )


def _parts_chart(bars: Sequence[tuple[str, TtftParts]]) -> Chart | None:
    positive = [(label, parts) for label, parts in bars if parts.total_s > 0]
    shown = positive[:MAX_ROWS]
    if not shown:
        return None
    known = {name for _, parts in shown for name, value in named_parts(parts) if value is not None}
    names = [name for name in COLOURS if name in known]
    ends = shown if len(shown) == 1 else (shown[0], shown[-1])
    plot = rows_plot(
        [label for label, _ in shown],
        Axis(title="% of the mean TTFT", low=0, high=112, ticks=SHARES),
        stacked(
            [(label, _parts(parts), parts.total_s) for label, parts in shown],
            {name: COLOURS[name] for name in names},
        ),
        "mean TTFT, part by part",
        n_all=len(positive),
        rows="rows: runs by their traffic" if len(shown) > 1 else "",
    )
    return Chart(
        chart_id="ttft-parts",
        title="Where the time to the first token goes",
        finding=f"{'; '.join(_finding(label, parts) for label, parts in ends)}.",
        plots=(plot,),
        header=("run", "requests", "mean TTFT, ms", *(f"{name}, ms" for name in names)),
        rows=tuple(_cells(label, parts, names) for label, parts in shown),
    )


def _parts(parts: TtftParts) -> list[Part]:
    """Each part that takes time; a difference of means below 0 is in the table only."""
    found, start = list[Part](), 0.0
    for name, value_s in named_parts(parts):
        if value_s is not None and value_s > 0:
            end = start + 100 * value_s / parts.total_s
            found.append(Part(name, start, end, value_s))
            start = end
    return found


def _finding(label: str, parts: TtftParts) -> str:
    return f"{largest_part(parts)} ({format_duration(parts.total_s)}, {label})"


def _cells(label: str, parts: TtftParts, names: Sequence[str]) -> tuple[str, ...]:
    known = dict(named_parts(parts))
    found = (known[name] for name in names)
    cells = (ABSENT_TEXT if value_s is None else format_number(1e3 * value_s) for value_s in found)
    return (label, f"{parts.n_requests:,}", format_number(1e3 * parts.total_s), *cells)
