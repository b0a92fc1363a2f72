"""What is there to read of several runs of requests side by side?"""

from typing import Final

from inferometer.report import online_tables, request_tables
from inferometer.report.charts.first_token import ttft_parts_rate_chart
from inferometer.report.charts.plot import Chart
from inferometer.report.charts.rates import (
    goodput_rate_chart,
    rate_cells,
    throughput_latency_chart,
    tpot_rate_chart,
    ttft_rate_chart,
)
from inferometer.report.decision_views import RateView
from inferometer.report.page import Page, Section
from inferometer.report.tables import TextTable

RATE_CHARTS: Final = (
    ttft_rate_chart,
    tpot_rate_chart,
    ttft_parts_rate_chart,
    goodput_rate_chart,
    throughput_latency_chart,
)
_HEADER: Final = (
    "run",
    "verdict",
    "traffic",
    "completed req/s",
    "good req/s",
    "output tok/s",
    "TTFT p50",
    "TTFT p95",
    "TPOT p50",
    "TPOT p95",
)


def rate_charts_of(view: RateView) -> tuple[Chart, ...]:
    """The charts that these runs have data for, in the order of the page."""
    return tuple(chart for build in RATE_CHARTS if (chart := build(view)) is not None)


def rate_page_of(view: RateView) -> Page:
    """The sections of a report on several runs of requests: curves, then the table that they draw."""
    charts = rate_charts_of(view)
    by = "concurrency" if view.is_closed else "offered rate"
    header = tuple(
        {"traffic": "concurrency" if view.is_closed else "offered req/s"}.get(name, name)
        for name in _HEADER
    )
    within = f"; good: within {view.objective}" if view.objective else ""
    table = TextTable(
        caption=f"Runs by {by}{within}",
        header=header,
        rows=tuple(rate_cells(point) for point in view.points),
    )
    sections = (
        Section(
            id="rates",
            title=f"What happens as the {by} grows?",
            nav=by.capitalize(),
            tables=(table,),
            charts=charts,
        ),
        Section(
            id="method",
            title="What do the words mean?",
            nav="Method",
            definitions=request_tables.DEFINITIONS + online_tables.ONLINE_DEFINITIONS,
        ),
        Section(id="data", title="Which runs are these?", nav="Data", files=view.files),
    )
    return Page(
        title=f"{view.title}: {view.answer.rstrip('.')}",
        subtitle=view.subtitle,
        tool_version=view.tool_version,
        table=table,
        chart=charts[0] if charts else None,
        sections=sections,
    )
