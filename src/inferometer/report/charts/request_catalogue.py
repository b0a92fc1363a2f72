"""Which charts does a report on a run of requests draw, in which order?"""

from collections.abc import Callable
from typing import Final, TypeAlias

from inferometer.report.charts.frame import ChartSpec
from inferometer.report.charts.history import history_chart
from inferometer.report.charts.load import kv_chart, preemption_chart, queue_chart
from inferometer.report.charts.slots import slots_chart
from inferometer.report.charts.tails import tails_chart
from inferometer.report.request_views import RequestReportView

RequestChartBuilder: TypeAlias = Callable[[RequestReportView], ChartSpec | None]

REQUEST_CHARTS: Final[tuple[RequestChartBuilder, ...]] = (
    tails_chart,
    history_chart,
    queue_chart,
    kv_chart,
    preemption_chart,
    slots_chart,
)


def request_charts_of(view: RequestReportView) -> tuple[ChartSpec, ...]:
    """The charts that this view has data for, in the order of the report."""
    return tuple(chart for build in REQUEST_CHARTS if (chart := build(view)) is not None)


__all__ = ["REQUEST_CHARTS", "RequestChartBuilder", "request_charts_of"]
