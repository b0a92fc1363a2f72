"""What is computed for a state of the explorer: first a coarse answer, then its curves and bounds.

The random numbers are the same in every state, and loads of a curve do not depend on the load that
is requested: a move of one slider moves one thing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from inferometer.api import explore, explored_curves as around, simulation
from inferometer.api.answer import Answer
from inferometer.api.explore import Explore
from inferometer.api.simulate import Simulate
from inferometer.api.simulation import SimulateAnswer
from inferometer.errors import ModelError, SpecError
from inferometer.measure.executors.local import Executor
from inferometer.records import run_series, slot_timeline
from inferometer.report.decision_views import LimitCost, RatePoint, TradePoint
from inferometer.simulate.deployment import Case
from inferometer.stats.estimate import Estimate

_TOKENS: Final = 1e6
_SECONDS_PER_HOUR: Final = 3600.0
_WINDOWS: Final = 120
"""Of the charts over time, which are half as wide as those of a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExploreAnswer(Answer):
    """The simulation of one state, and what lies around it."""

    table: ClassVar[str | None] = "points"

    command: str
    simulation: SimulateAnswer
    """What ``inferometer simulate`` answers; of a coarse answer the likely step times alone."""
    is_coarse: bool
    usd_per_hour: float | None
    """Of all devices; None where no price is known."""
    usd_per_million_output_tokens: Estimate | None
    points: tuple[RatePoint, ...]
    """The same server at other loads, each by few requests; intervals span step times, too."""
    requests_per_point: int
    trades: tuple[TradePoint, ...]
    limit_costs: tuple[LimitCost, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """The answer, and what is drawn beside it."""

    question: Explore
    answer: ExploreAnswer
    series: run_series.StepSeries | None
    timelines: tuple[tuple[str, slot_timeline.SlotTimeline], ...] = ()
    """Who did what in each step: of this server, and of static batching."""


def coarse(question: Explore, executor: Executor) -> Explored:
    """The likely run: every number of the final answer, without the interval of step times."""
    simulated = _simulate(question.simulated, executor, is_likely_alone=True)
    return _explored(question, simulated, is_coarse=True)


def sketched(question: Explore, executor: Executor) -> Explored:
    """The likely run and the curves around it, at likely step times."""
    found = coarse(question, executor)
    return _around(found, around.loads_of(question, executor), executor)


def refined(question: Explore, executor: Executor) -> Explored:
    """The whole answer: the interval of step times, curves, other layouts, and costs.

    Raises
    ------
    SpecError, ModelError
        The question cannot be answered as it is requested.
    """
    simulated = _simulate(question.simulated, executor)
    found = _explored(question, simulated, is_coarse=False)
    loads = around.loads_of(question, executor)
    found = _around(found, loads, executor, *around.ends_of(found.answer.simulation))
    others = around.other_layouts(question, found.answer.simulation, loads, executor)
    answer = replace(found.answer, trades=(*found.answer.trades, *others))
    return replace(found, answer=answer, timelines=_timelines(question, executor))


def _around(found: Explored, loads: Sequence[float], executor: Executor, *ends: Case) -> Explored:
    """The answer with the points of its curves, each at the likely case and these ends."""
    question, answer = found.question, found.answer
    parts = [around.load_of(question, load, case) for load in loads for case in ("likely", *ends)]
    seen, width = executor.map(around.seen_at, parts), 1 + len(ends)
    groups = [seen[i : i + width] for i in range(0, len(seen), width)]
    is_closed = question.workload.concurrency is not None
    likely = [group[0] for group in groups]
    answer = replace(
        answer,
        points=tuple(
            around.point_of(load, group, is_closed=is_closed)
            for load, group in zip(loads, groups, strict=True)
        ),
        trades=tuple(around.trades_of(answer.simulation, loads, likely)),
        limit_costs=around.limit_costs(
            question, answer.simulation, answer.usd_per_hour, loads, likely
        ),
    )
    return replace(found, answer=answer)


def _simulate(
    question: Simulate, executor: Executor, *, is_likely_alone: bool = False
) -> simulation.Simulated:
    return simulation.simulate_workload(
        around.simulator_at(question, record_steps=True),
        executor,
        record_steps=True,
        is_likely_alone=is_likely_alone,
    )


def _explored(question: Explore, simulated: simulation.Simulated, *, is_coarse: bool) -> Explored:
    answer, run = simulated.answer, simulated.run
    # Steps are recorded for the plots alone: without them `simulate` has no summary of memory.
    has_memory = any(name in simulation.MEMORY_KNOBS for name in _own_knobs(question))
    answer = answer if has_memory else replace(answer, memory=None)
    hourly = _usd_per_hour(question, answer)
    rate = answer.levels[0].summary.output_tokens_per_s
    return Explored(
        question=question,
        answer=ExploreAnswer(
            command=explore.command_of(question),
            simulation=answer,
            is_coarse=is_coarse,
            usd_per_hour=hourly,
            usd_per_million_output_tokens=None
            if hourly is None or rate is None or rate.value <= 0
            else _per_million(hourly, rate),
            points=(),
            requests_per_point=around.CURVE_REQUESTS,
            trades=(),
            limit_costs=(),
        ),
        series=None if run.steps is None else run_series.step_series(run.steps, n_windows=_WINDOWS),
    )


def _own_knobs(question: Explore) -> list[str]:
    return [text.partition("=")[0].strip() for text in question.server.set]


def _per_million(usd_per_hour: float, rate: Estimate) -> Estimate:
    """Dollars per million tokens, of tokens per second: what is more of one is less of the other."""
    of_one = usd_per_hour / _SECONDS_PER_HOUR * _TOKENS
    has_ends = rate.low is not None and rate.high is not None and rate.low > 0
    return replace(
        rate,
        value=of_one / rate.value,
        low=of_one / rate.high if has_ends and rate.high else None,
        high=of_one / rate.low if has_ends and rate.low else None,
    )


def _usd_per_hour(question: Explore, answer: SimulateAnswer) -> float | None:
    """Of all devices that serve: the price that was given, else the catalogue's first."""
    servers = around.servers_at(question.server, question.fleet)
    device = servers.deployment.hardware
    one = question.usd_per_hour
    if one is None and device is not None and device.prices:
        one = device.prices[0].usd_per_hour
    if one is None:
        return None
    prefill = answer.disaggregation
    n_devices = answer.deployment.n_devices * answer.deployment.n_replicas
    n_devices += 0 if prefill is None else prefill.prefill.n_devices * prefill.prefill.n_replicas
    return one * n_devices


_WINDOW: Final = 60
_BEFORE: Final = 0.5
"""Of the run's steps: there the batch is as full as it gets."""


def _timelines(
    question: Explore, executor: Executor
) -> tuple[tuple[str, slot_timeline.SlotTimeline], ...]:
    """The middle of the run step by step, and the same requests in static batches."""
    requested = question.simulated
    requested = replace(
        requested,
        workload=replace(requested.workload, requests=around.CURVE_REQUESTS, duration=None),
    )
    own = requested.server.policy or "vllm"
    other = "static" if own != "static" else "vllm"
    within = replace(requested.server, policy=other, set=(), max_num_batched_tokens=None)
    cases = [(own, requested), (other, replace(requested, server=within))]

    def timeline(case: tuple[str, Simulate]) -> slot_timeline.SlotTimeline | None:
        try:
            run = (
                around.simulator_at(case[1], record_steps=True)
                .at(simulation.OneCase("likely", record_steps=True, record_parts=True))
                .run
            )
            if run.steps is None or run.parts is None:
                return None
            first = max(0, int(len(run.steps.phase) * _BEFORE) - _WINDOW)
            return slot_timeline.slot_timeline(run, first_step=first, n_steps=_WINDOW)
        except (SpecError, ModelError):
            # Static batches know fewer settings, or this server's fit is of its engine alone.
            return None

    found = executor.map(timeline, cases)
    names = {"vllm": "continuous"}
    return tuple(
        (names.get(name, name), one)
        for (name, _), one in zip(cases, found, strict=True)
        if one is not None
    )
