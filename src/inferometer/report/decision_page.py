"""Charts and tables of capacities and sizings."""

from typing import Final

from inferometer.report.charts.decision import decision_charts
from inferometer.report.charts.plot import Chart
from inferometer.report.charts.rates import goodput_rate_chart, tpot_rate_chart, ttft_rate_chart
from inferometer.report.page import Section, method_section
from inferometer.report.tables import TextTable
from inferometer.report.views import DecisionView, RateView

_DEFINITIONS: Final = (
    (
        "TTFT",
        "first output token − intended send; where it is simulated, at the server: no network.",
    ),
    ("TPOT", "(last token − first token) / (output tokens − 1), per request."),
    ("Goodput", "requests within every limit, per second."),
    (
        "Met, missed",
        (
            "a load is shown to meet the SLO, or to miss it, where the 95 % interval of a long run"
            " lies on that side."
        ),
    ),
    ("Headroom", "how much more traffic is shown to meet the SLO."),
    (
        "N+1",
        (
            "as many replicas as meet the SLO without any one of them: one less was simulated under"
            " the same traffic."
        ),
    ),
    (
        "$/1M in, out",
        (
            "prompts pay for the time that they take by themselves, output for its part of a step"
            " at the usual batch."
        ),
    ),
    (
        "Step times",
        (
            "likely, and both ends of what is known of them; a verdict stands where it is the same"
            " at all three."
        ),
    ),
)


def decision_sections(
    view: DecisionView,
    tables: tuple[TextTable, ...] = (),
    searched: tuple[TextTable, ...] = (),
) -> tuple[Section, ...]:
    """The sections of a page on a decision; those without data are left out.

    ``tables`` stand beside what else could be bought, ``searched`` beside the search.
    """

    def drawn(*names: str) -> tuple[Chart, ...]:
        return decision_charts(view, names)

    return (
        Section(
            id="choice",
            title="What else could be bought?",
            nav="Alternatives",
            tables=tables,
            charts=drawn("pareto", "cost"),
        ),
        Section(
            id="load",
            title="What if there is more or less traffic?",
            nav="Load curve",
            charts=rate_charts(view),
        ),
        Section(
            id="over-time",
            title="What if replicas follow the traffic?",
            nav="Over time",
            charts=drawn("traffic", "replicas"),
        ),
        Section(
            id="search",
            title="How was the capacity found?",
            nav="Search",
            tables=searched,
            charts=drawn("probes"),
        ),
        method_section(_DEFINITIONS),
    )


def rate_charts(view: DecisionView) -> tuple[Chart, ...]:
    """Latency and goodput of the pick against the offered rate, with its capacity and the traffic."""
    rates = RateView(
        title="",
        subtitle="",
        answer="",
        objective=view.objective,
        points=view.rates,
        capacity_per_s=view.met_load,
        traffic_per_s=view.traffic_per_s,
        files=(),
    )
    builders = (ttft_rate_chart, tpot_rate_chart, goodput_rate_chart) if view.rates else ()
    return tuple(chart for build in builders if (chart := build(rates)) is not None)
