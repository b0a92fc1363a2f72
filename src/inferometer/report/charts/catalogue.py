"""Which charts does a report draw, in which order?"""

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from inferometer.report.charts.ceilings import ceilings_chart
from inferometer.report.charts.frame import ChartSpec
from inferometer.report.charts.latency import step_chart, ttft_chart
from inferometer.report.charts.memory import memory_chart
from inferometer.report.charts.predicted import predicted_chart
from inferometer.report.charts.roofline import roofline_chart
from inferometer.report.charts.throughput import throughput_chart
from inferometer.report.charts.time_parts import decode_time_chart, prefill_time_chart
from inferometer.report.charts.utilisation import utilisation_chart
from inferometer.report.views import SweepReportView

ChartBuilder: TypeAlias = Callable[[SweepReportView], ChartSpec | None]

CHARTS: Final[tuple[ChartBuilder, ...]] = (
    roofline_chart,
    utilisation_chart,
    ttft_chart,
    partial(ttft_chart, axis="batch_size"),
    step_chart,
    partial(step_chart, axis="prompt_tokens"),
    throughput_chart,
    partial(throughput_chart, axis="prompt_tokens"),
    decode_time_chart,
    prefill_time_chart,
    memory_chart,
    predicted_chart,
    ceilings_chart,
)


def charts_of(view: SweepReportView) -> tuple[ChartSpec, ...]:
    """The charts that this view has data for, in the order of the report."""
    return tuple(chart for build in CHARTS if (chart := build(view)) is not None)
