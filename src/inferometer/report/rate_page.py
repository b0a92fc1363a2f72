"""What is there to read of several runs of requests side by side?"""

from typing import Final

from inferometer.report import online_tables, request_tables
from inferometer.report.charts.plot import Chart
from inferometer.report.charts.rates import (
    goodput_rate_chart,
    rate_cells,
    throughput_latency_chart,
    tpot_rate_chart,
    ttft_rate_chart,
)
from inferometer.report.charts.time_parts import ttft_parts_rate_chart
from inferometer.report.decision_views import RateView
from inferometer.report.page import (
    Chip,
    Number,
    Page,
    Section,
    duration_number,
    lines_of,
    rate_number,
)
from inferometer.report.tables import TextTable

_MOST_NAMED: Final = 3
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
        title=f"{view.title}: {view.answer}",
        subtitle=view.subtitle,
        tool_version=view.tool_version,
        chips=_validity(view),
        numbers=_numbers(view),
        table=table,
        chart=charts[0] if charts else None,
        lines=lines_of(
            ("WHY", "\n".join(chart.finding for chart in charts[1:4])),
            ("TRUST", "numbers are of the steady state where a run has one, else of the whole run"),
        ),
        sections=sections,
    )


def _validity(view: RateView) -> tuple[Chip, ...]:
    """Are all runs VALID; which are not?"""
    known = [point for point in view.points if point.verdict is not None]
    doubtful = [point for point in known if point.verdict != "VALID"]
    if not known:
        return ()
    if not doubtful:
        return (Chip(verdict="VALID", text=f"all {len(known)} runs are VALID"),)
    verdict = "INVALID" if any(one.verdict == "INVALID" for one in doubtful) else "SUSPECT"
    named = ", ".join(f"{one.label} is {one.verdict}" for one in doubtful[:_MOST_NAMED])
    more = f" and {len(doubtful) - _MOST_NAMED} more" if len(doubtful) > _MOST_NAMED else ""
    return (Chip(verdict=verdict, text=f"{named}{more}"),)


def _numbers(view: RateView) -> tuple[Number, ...]:
    """The most output and goodput, and TTFT and TPOT at the least and at the most traffic."""
    most = max(
        view.points, key=lambda one: one.output_tokens_per_s.value if one.output_tokens_per_s else 0
    )
    good = max(view.points, key=lambda one: one.good_requests_per_s or 0.0)
    goodput = good.good_requests_per_s
    ends = dict.fromkeys((view.points[0], view.points[-1]))
    return (
        *rate_number("most output", most.output_tokens_per_s, "tok/s", note=most.label),
        *(
            (Number(name="most goodput", value=goodput, unit="requests/s", note=good.label),)
            if goodput is not None
            else ()
        ),
        *(
            number
            for name, pick in (("TTFT", "ttft_p95"), ("TPOT", "tpot_p95"))
            for one in ends
            for number in duration_number(f"{name} p95", getattr(one, pick), note=one.label)
        ),
    )
