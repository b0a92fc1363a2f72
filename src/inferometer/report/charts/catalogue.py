"""Which charts does a report draw, in which order?"""

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from inferometer.report.charts.latency import step_chart, throughput_chart, ttft_chart
from inferometer.report.charts.load import (
    holes_chart,
    kv_chart,
    preemption_chart,
    queue_chart,
    swap_chart,
)
from inferometer.report.charts.online import (
    gap_chart,
    history_chart,
    in_flight_chart,
    lateness_chart,
    slots_chart,
    tpot_history_chart,
)
from inferometer.report.charts.plot import Chart
from inferometer.report.charts.predicted import predicted_chart
from inferometer.report.charts.roofline import (
    ceilings_chart,
    energy_chart,
    memory_chart,
    roofline_chart,
    utilisation_chart,
)
from inferometer.report.charts.tails import tails_chart
from inferometer.report.charts.time_parts import (
    decode_time_chart,
    prefill_time_chart,
    step_shares_chart,
    ttft_parts_chart,
)
from inferometer.report.views import RequestReportView, SweepReportView

ChartBuilder: TypeAlias = Callable[[SweepReportView], Chart | None]

CHARTS: Final[tuple[ChartBuilder, ...]] = (
    roofline_chart,
    utilisation_chart,
    ttft_chart,
    partial(ttft_chart, axis="batch_size"),
    step_chart,
    partial(step_chart, axis="prompt_tokens"),
    throughput_chart,
    partial(throughput_chart, axis="prompt_tokens"),
    step_shares_chart,
    decode_time_chart,
    prefill_time_chart,
    memory_chart,
    energy_chart,
    predicted_chart,
    ceilings_chart,
)


def charts_of(view: SweepReportView) -> tuple[Chart, ...]:
    """The charts that this view has data for, in the order of the report."""
    return tuple(chart for build in CHARTS if (chart := build(view)) is not None)


# Which charts does a report on a run of requests draw, in which order?


RequestChartBuilder: TypeAlias = Callable[[RequestReportView], Chart | None]

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


def request_charts_of(view: RequestReportView) -> tuple[Chart, ...]:
    """The charts that this view has data for, in the order of the report."""
    return tuple(
        chart
        for build in (*REQUEST_CHARTS, *MEMORY_CHARTS, *ONLINE_CHARTS)
        if (chart := build(view)) is not None
    )
