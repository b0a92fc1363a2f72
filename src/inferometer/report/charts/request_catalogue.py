"""Which charts does a report on a run of requests draw, in which order?"""

from collections.abc import Callable
from typing import Final, TypeAlias

from inferometer.report.charts.first_token import ttft_parts_chart
from inferometer.report.charts.frame import ChartSpec
from inferometer.report.charts.history import history_chart, tpot_history_chart
from inferometer.report.charts.load import (
    holes_chart,
    kv_chart,
    preemption_chart,
    queue_chart,
    swap_chart,
)
from inferometer.report.charts.online import gap_chart, in_flight_chart, lateness_chart
from inferometer.report.charts.slots import slots_chart
from inferometer.report.charts.tails import tails_chart
from inferometer.report.request_views import RequestReportView

RequestChartBuilder: TypeAlias = Callable[[RequestReportView], ChartSpec | None]

REQUEST_CHARTS: Final[tuple[RequestChartBuilder, ...]] = (
    tails_chart,
    ttft_parts_chart,
    history_chart,
    queue_chart,
    kv_chart,
    preemption_chart,
    slots_chart,
    gap_chart,
)
ONLINE_CHARTS: Final[tuple[RequestChartBuilder, ...]] = (
    tpot_history_chart,
    in_flight_chart,
    lateness_chart,
)
"""Of load tests beside."""

MEMORY_CHARTS: Final[tuple[RequestChartBuilder, ...]] = (holes_chart, swap_chart)
"""Of runs whose KV cache is not paged, or that swap."""


def request_charts_of(view: RequestReportView) -> tuple[ChartSpec, ...]:
    """The charts that this view has data for, in the order of the report."""
    return tuple(
        chart
        for build in (*REQUEST_CHARTS, *MEMORY_CHARTS, *ONLINE_CHARTS)
        if (chart := build(view)) is not None
    )
