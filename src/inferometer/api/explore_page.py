"""What is there to read of a state of the explorer: the answer first, then curves, time and steps?"""

from dataclasses import replace
from typing import Any, Final, NamedTuple

from inferometer import __version__
from inferometer.api.explore import DEFAULT_MODEL, DEFAULTS, command_of, query_of, state_of
from inferometer.api.explored import ExploreAnswer, Explored
from inferometer.api.simulate_page import simulate_page
from inferometer.records.slot_timeline import SlotTimeline
from inferometer.report.charts.decision import limit_cost_chart, pareto_chart
from inferometer.report.charts.load import kv_chart, queue_chart
from inferometer.report.charts.online import timeline_chart
from inferometer.report.charts.plot import Chart
from inferometer.report.charts.rates import (
    throughput_latency_chart,
    tpot_rate_chart,
    ttft_rate_chart,
)
from inferometer.report.html import Chapter
from inferometer.report.page import Number, Page, Section, number_of
from inferometer.report.views import DecisionView, FiveLines, RatePoint, RateView, RequestReportView
from inferometer.units import format_number

CHART_IDS: Final = (
    "ttft-vs-rate",
    "throughput-latency",
    "tpot-vs-rate",
    "pareto",
    "cost-vs-slo",
    "load-queue",
    "load-kv",
    "slot-timeline-0",
    "slot-timeline-1",
)
"""Charts in the order of the page."""
_NO_LINES: Final = FiveLines(answer="", limit="", next="", trust="", report="")


_BOX_RATIO: Final = 1.25
"""Largest ratio of lengths at which a load test's point is shown on the state's curves."""


class Measured(NamedTuple):
    """A load test that is shown as a point on the plots, and its traffic."""

    point: RatePoint
    model: str
    prompt_mean_tokens: float
    output_mean_tokens: float


class Shown(NamedTuple):
    """Contents of the page for a state."""

    page: Page
    charts: tuple[Chart, ...]
    command: str
    simulate_command: str
    query: str


def shown(explored: Explored, measured: tuple[Measured, ...] = ()) -> Shown:
    """The page of a state, its charts, and the commands that give the same numbers."""
    question, answer = explored.question, explored.answer
    beside = tuple(beside_state(one, answer) for one in measured)
    curves = _curves(answer, beside, question.workload.rate)
    charts = (*curves, *_over_time(explored), *_steps(explored.timelines))
    return Shown(
        page=answer_page(answer, charts),
        charts=charts,
        command=answer.command,
        simulate_command=command_of(question, "simulate"),
        query=query_of(state_of(question)),
    )


def beside_state(run: Measured, answer: ExploreAnswer) -> RatePoint:
    """The run's point, and differences from the state where its traffic is another."""
    state = answer.simulation
    lengths = (
        ("prompt", run.prompt_mean_tokens, state.workload.prompt.mean_tokens),
        ("output", run.output_mean_tokens, state.workload.output.mean_tokens),
    )
    differs = [
        f"{format_number(seen)} {name} tokens, the curve {format_number(drawn)}"
        for name, seen, drawn in lengths
        if not drawn / _BOX_RATIO <= seen <= drawn * _BOX_RATIO
    ]
    if run.model != state.deployment.model_id:
        differs.insert(0, f"of {run.model}")
    return replace(run.point, beyond=", ".join(differs))


def answer_page(answer: ExploreAnswer, charts: tuple[Chart, ...] | None = None) -> Page:
    """The page of the simulation, with costs and curves."""
    page = simulate_page(answer.simulation)
    rate_per_s = answer.simulation.workload.rate_per_s
    drawn = _curves(answer, (), rate_per_s) if charts is None else charts
    return replace(
        page,
        numbers=(*page.numbers[:5], *_cost(answer)),
        chart=drawn[0] if drawn else None,
        sections=(
            Section(id="around", title="What lies around it?", nav="Curves", charts=drawn),
            *page.sections,
        ),
    )


def _cost(answer: ExploreAnswer) -> tuple[Number, ...]:
    per_million, hourly = answer.usd_per_million_output_tokens, answer.usd_per_hour
    if per_million is None or hourly is None:
        return ()
    return (number_of("cost of 1M output tok", per_million, "$", note=f"at {hourly:.2f} $/h"),)


def _curves(
    answer: ExploreAnswer, measured: tuple[RatePoint, ...], rate_per_s: float | None
) -> tuple[Chart, ...]:
    """Curves over the load, then trade-offs."""
    judgement = answer.simulation.levels[0].judgement
    objective = "" if judgement is None else judgement.objective.text
    view = RateView(
        title="",
        subtitle="",
        answer="",
        objective=objective,
        points=answer.points,
        traffic_per_s=rate_per_s,
        measured=measured,
        interval=(
            "95 % interval of few requests"
            if answer.is_coarse
            else "few requests, and what step times leave open"
        ),
        files=(),
        tool_version=__version__,
    )
    decision = DecisionView(
        trades=answer.trades,
        limit_costs=answer.limit_costs,
        objective=objective,
        traffic_per_s=rate_per_s,
    )
    built = (
        *(
            (ttft_rate_chart(view), throughput_latency_chart(view), tpot_rate_chart(view))
            if answer.points
            else ()
        ),
        pareto_chart(decision),
        limit_cost_chart(decision),
    )
    return tuple(chart for chart in built if chart is not None)


def _over_time(explored: Explored) -> tuple[Chart, ...]:
    view = RequestReportView(
        title="",
        subtitle="",
        five_lines=_NO_LINES,
        summaries=(explored.answer.simulation.levels[0].summary,),
        load=explored.series,
    )
    return tuple(chart for chart in (queue_chart(view), kv_chart(view)) if chart is not None)


def _steps(timelines: tuple[tuple[str, SlotTimeline], ...]) -> tuple[Chart, ...]:
    charts = (
        timeline_chart(one, chart_id=f"slot-timeline-{rank}", who=f"{name} batching")
        for rank, (name, one) in enumerate(timelines)
    )
    return tuple(chart for chart in charts if chart is not None)


def numbers_of(page: Page) -> list[dict[str, Any]]:
    """The quoted numbers, for a page that sets two states side by side."""
    return [
        {
            "name": one.name,
            "text": one.text,
            "unit": one.unit,
            "value": one.value,
            "interval": one.interval,
        }
        for one in page.numbers
    ]


def _state(**changes: str) -> str:
    """The start of the page with some fields changed; '' leaves a field out."""
    state = {"model": DEFAULT_MODEL, **DEFAULTS, **changes}
    return query_of({name: value for name, value in state.items() if value})


CHAPTERS: Final = (
    Chapter(
        title="1 · Prefill and decode",
        text=(
            "A prompt is computed in one go (prefill, C in the slot timeline): that takes arithmetic,"
            " and its time is the time to the first token. Then each step gives one token for every"
            " request of the batch (decode, g): that takes memory bandwidth, since all weights are"
            " read for each step, whether for one request or for fifty."
        ),
        try_=(
            "drag the prompt's length and watch TTFT; drag the output's length and watch E2E alone"
            " move."
        ),
        query=_state(workload="prompt=2048,output=128", rate="2"),
    ),
    Chapter(
        title="2 · The KV cache",
        text=(
            "Every token of every running request keeps its keys and values in memory. When the"
            " blocks run out, requests wait, or are preempted and computed again. Long contexts fill"
            " the cache; formats of fewer bits and more devices enlarge it."
        ),
        try_=(
            "look at KV blocks over time, then set the KV cache to 8 bits, or give the engine less"
            " memory."
        ),
        query=_state(
            workload="prompt=4096..16384,output=256..1024", rate="2", gpu_memory_utilization="0.5"
        ),
    ),
    Chapter(
        title="3 · Batching",
        text=(
            "Static batches start together and wait for the longest answer: slots stand idle (·)."
            " Continuous batching fills a slot in the step after it is free. The timelines below"
            " show both for the same requests."
        ),
        try_="step through both timelines, then change max_num_seqs and count the idle slots.",
        query=_state(workload="prompt=128..1024,output=16..256", rate="20", max_num_seqs="8"),
    ),
    Chapter(
        title="4 · Head-of-line blocking",
        text=(
            "A long prompt that is computed in one step makes every running request wait for that"
            " step: tokens come in jerks. Chunked prefill splits it over steps of at most the step"
            " budget."
        ),
        try_=(
            "make the step budget larger and smaller: TPOT p95 and TTFT p95 move against one"
            " another."
        ),
        query=_state(
            workload="prompt=256..16384,output=128", rate="6", max_num_batched_tokens="2048"
        ),
    ),
    Chapter(
        title="5 · The knee",
        text=(
            "Up to some load latency hardly changes; beyond it the queue grows without end and"
            " latency depends on how long one waits to look. The highest load within the SLO lies"
            " before the knee, and a closed loop, whose users wait, never shows it."
        ),
        try_=(
            "drag the rate past the knee, then switch to a closed loop with as many users: it looks"
            " fine."
        ),
        query=_state(rate="30"),
    ),
)
