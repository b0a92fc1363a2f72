"""What does a decision look like as one file that opens anywhere?"""

from typing import Final

from inferometer.report.charts.decision import decision_charts
from inferometer.report.charts.rates import goodput_rate_chart, tpot_rate_chart, ttft_rate_chart
from inferometer.report.decision_views import DecisionView, RateView
from inferometer.report.sections import Figure, Page, Section, figure_of
from inferometer.report.views import FactGroup

_DEFINITIONS: Final = (
    (
        "TTFT",
        "first output token − intended send; where it is simulated, at the server: no network.",
    ),
    ("TPOT", "(last token − first token) / (output tokens − 1), per request."),
    ("Goodput", "requests within every limit, per second."),
    (
        "Kept, broken",
        (
            "a load is shown to keep the promise, or to break it, where the 95 % interval of a long"
            " run lies on that side."
        ),
    ),
    ("Headroom", "how much more traffic is shown to keep the promise."),
    (
        "N+1",
        (
            "so many replicas keep the promise without any one of them: one less was simulated"
            " under the same traffic."
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


def decision_page_of(view: DecisionView) -> Page:
    """The sections of a page on a decision."""

    def drawn(*names: str) -> tuple[Figure, ...]:
        return tuple(figure_of(chart) for chart in decision_charts(view, names))

    sections = (
        Section(
            id="choice",
            title="What there is to choose",
            nav="Choice",
            tables=view.tables,
            figures=drawn("pareto", "cost"),
        ),
        Section(
            id="load",
            title="The pick under more and less traffic",
            nav="Load",
            figures=_rate_figures(view),
        ),
        Section(
            id="over-time",
            title="Replicas that follow the traffic",
            nav="Over time",
            figures=drawn("traffic", "replicas"),
        ),
        Section(
            id="search", title="The search for the capacity", nav="Search", figures=drawn("probes")
        ),
        Section(
            id="doubts",
            title="What makes this less good than it looks",
            nav="Doubts",
            cautions=view.cautions,
        ),
        Section(
            id="method", title="Method and definitions", nav="Method", definitions=_DEFINITIONS
        ),
        Section(id="rests-on", title="What it rests on", nav="Rests on", groups=_facts(view)),
    )
    return Page(
        title=view.title,
        subtitle=view.subtitle,
        tool_version=view.tool_version,
        answers=view.answers,
        sections=sections,
    )


def _rate_figures(view: DecisionView) -> tuple[Figure, ...]:
    rates = RateView(
        title=view.title,
        subtitle=view.subtitle,
        answer="",
        objective=view.objective,
        points=view.rates,
        files=(),
        tool_version=view.tool_version,
    )
    builders = (goodput_rate_chart, ttft_rate_chart, tpot_rate_chart) if view.rates else ()
    return tuple(figure_of(chart) for build in builders if (chart := build(rates)) is not None)


def _facts(view: DecisionView) -> tuple[FactGroup, ...]:
    return (FactGroup(title="Assumptions", facts=view.facts),) if view.facts else ()
