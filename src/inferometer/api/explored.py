"""Computations of the explorer: a coarse answer first, then its curves and bounds.

The random numbers are the same in every state, and loads of a curve do not depend on the load that
is requested: a move of one slider moves one thing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from inferometer.api import (
    cluster,
    explore,
    fleet as fleets,
    progress,
    server as servers_,
    simulate,
    simulation,
)
from inferometer.api.answer import Answer
from inferometer.api.explore import Explore
from inferometer.api.workload import workload_of
from inferometer.decide import curves
from inferometer.errors import ModelError, SpecError
from inferometer.inputs import objectives
from inferometer.measure.executors.local import Executor
from inferometer.records import latencies, request_summaries, run_series, slot_timeline
from inferometer.records.request_summaries import Percentile, RequestSummary
from inferometer.report import views
from inferometer.simulate.deployment import Case
from inferometer.stats.estimate import Estimate, Verdict
from inferometer.units import NS_PER_S, format_number

CURVE_REQUESTS: Final = 500
"""Requests of each point of a curve."""
_RATIOS: Final = (0.08, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.6)
"""Loads of a curve, relative to the server's full rate."""
_USERS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_OTHER_TP: Final = (1, 2, 4, 8)
_TRADED: Final = (0.1, 0.4, 0.7, 0.9)
_BURST_PER_S: Final = 1e6
_BURST_REQUESTS: Final = 1500
_FEWEST: Final = 20


class Load(NamedTuple):
    """One point of a curve: its question, and a plausible server."""

    question: simulate.Simulate
    case: Case


class Seen(NamedTuple):
    """Result of one point."""

    summary: RequestSummary
    judgement: request_summaries.Judgement | None

    @property
    def limit_ratio(self) -> float:
        """Factor on the SLO's limits that its percentiles reach, without the noise."""
        judged = [] if self.judgement is None else self.judgement.thresholds
        reached = [
            one.seen.seconds.value / one.threshold.limit_s for one in judged if one.seen is not None
        ]
        return max(reached, default=math.inf)


def loads_of(question: Explore, executor: Executor) -> tuple[float, ...]:
    """Loads from idle to beyond capacity, independent of the requested load."""
    if question.workload.concurrency is not None:
        return tuple(float(one) for one in _USERS)
    full_per_s = _full_per_s(question, executor)
    return tuple(float(f"{full_per_s * ratio:.2g}") for ratio in _RATIOS)


def _full_per_s(question: Explore, executor: Executor) -> float:
    """Requests per second while the server is full."""
    requested = question.at_load(_BURST_PER_S, _BURST_REQUESTS)
    bare = replace(requested, given=frozenset(), slo=None)
    return executor.map(_burst_per_s, [bare])[0]


@lru_cache(maxsize=64)
def _burst_per_s(question: simulate.Simulate) -> float:
    """Throughput of a burst of all requests, between its first and its last quarter."""
    requests = simulator_at(question).at(simulation.OneCase("likely")).run.requests
    if requests is None:
        raise ValueError("a simulation has requests")
    ended_ns = requests.finished_ns[latencies.is_one_of(requests, latencies.COMPLETED)]
    if len(ended_ns) < _FEWEST:
        raise ModelError(
            f"{len(ended_ns)} of {len(requests.status)} requests end",
            where="--workload, --max-model-len",
            allowed="requests that this server can hold",
            try_="shorter prompts and answers, or more memory",
        )
    first_ns, last_ns = np.quantile(ended_ns, (0.25, 0.75))
    return 0.5 * len(ended_ns) * NS_PER_S / max(1.0, float(last_ns - first_ns))


@lru_cache(maxsize=64)
def servers_at(server: servers_.Server, fleet: fleets.FleetOptions) -> cluster.Servers:
    """The servers of these options, cached."""
    fleet = fleets.with_dense_ranks(fleet, server)
    n_sharing = fleet.cluster.data_parallel_size
    return fleets.servers_of(fleet, servers_.deployment_of(server, n_sharing=n_sharing))


@lru_cache(maxsize=32)
def simulator_at(
    question: simulate.Simulate, *, record_steps: bool = False
) -> simulation.Simulator:
    """The servers, and their requests drawn."""
    objective = (
        None
        if question.slo is None
        else objectives.parse_objective(question.slo, has_workflows=True)
    )
    with progress.heard_by(lambda _: None):  # of each point of a curve there is nothing to say
        return simulate.simulator_of(
            workload_of(question.workload),
            servers_at(question.server, question.fleet),
            objective,
            None,
            cluster.gate_of(question.fleet.gate),
            record_steps=record_steps,
        )


def load_of(question: Explore, load: float, case: Case) -> Load:
    """The point at this load, independent of the requested load, so that results are reused."""
    requested = question.at_load(load, CURVE_REQUESTS)
    return Load(replace(requested, given=frozenset()), case)


@lru_cache(maxsize=4000)
def seen_at(part: Load) -> Seen:
    """Simulate one point; short, since the user waits for all of them."""
    level = simulator_at(part.question).at(simulation.OneCase(part.case)).level
    return Seen(level.summary, level.judgement)


def ends_of(answer: simulation.SimulateAnswer) -> tuple[Case, ...]:
    """The two plausible servers whose TTFT is least and most: the ends of a curve's band."""
    others = answer.levels[1:]
    if not others:
        return ()
    if all(level.step_times != "draw" for level in others):
        return ("fast", "slow")
    ttft_s = [
        math.inf if (found := level.summary.latency("ttft").percentile(0.95)) is None
        else found.seconds.value
        for level in others
    ]  # fmt: skip
    return ttft_s.index(min(ttft_s)), ttft_s.index(max(ttft_s))


def point_of(load: float, group: Sequence[Seen], *, is_closed: bool) -> views.RatePoint:
    """One point of a curve: the likely case, with intervals that cover the other cases."""
    likely, *others = group
    summary = likely.summary
    judgement = likely.judgement

    def spanned(latency: str, fraction: float) -> Percentile | None:
        found = summary.latency(latency).percentile(fraction)  # type: ignore[arg-type]
        ends = [
            other.seconds.value
            for one in others
            if (other := one.summary.latency(latency).percentile(fraction)) is not None  # type: ignore[arg-type]
        ]
        return None if found is None else replace(found, seconds=_spanning(found.seconds, ends))

    return views.RatePoint(
        label=f"{format_number(load)} {'users' if is_closed else 'requests/s'}",
        concurrency=round(load) if is_closed else None,
        offered_requests_per_s=None if is_closed else load,
        ttft_p50=spanned("ttft", 0.5),
        ttft_p95=spanned("ttft", 0.95),
        tpot_p50=spanned("tpot", 0.5),
        tpot_p95=spanned("tpot", 0.95),
        output_tokens_per_s=summary.output_tokens_per_s,
        completed_requests_per_s=summary.completed_requests_per_s,
        good_requests_per_s=None if judgement is None else judgement.good_requests_per_s,
        ttft_parts=None,
        verdict=None,
    )


def _spanning(estimate: Estimate, ends: Sequence[float]) -> Estimate:
    known = [one for one in (estimate.low, estimate.value, estimate.high) if one is not None]
    if not ends:
        return estimate
    return replace(estimate, low=min(*known, *ends), high=max(*known, *ends))


def trades_of(
    answer: simulation.SimulateAnswer, loads: Sequence[float], seen: Sequence[Seen]
) -> list[views.TradePoint]:
    """Speed per user against output per device, of one layout."""
    where, points = answer.deployment, list[views.TradePoint]()
    n_devices = where.n_devices * where.n_replicas
    for load, one in zip(loads, seen, strict=True):
        per_user, rate = one.summary.tokens_per_s_per_user, one.summary.output_tokens_per_s
        if per_user is None or rate is None:
            continue
        verdict: Verdict = "undecided"
        if one.judgement is not None:
            verdict = "met" if one.limit_ratio < 1 else "missed"
        points.append(
            views.TradePoint(
                device=f"TP {where.tensor_parallel_size}",
                offered_requests_per_s=load,
                tokens_per_s_per_user=per_user,
                device_tokens_per_s=rate.scaled(1 / n_devices),
                verdict=verdict,
            )
        )
    return points


def other_layouts(
    question: Explore, answer: simulation.SimulateAnswer, loads: Sequence[float], executor: Executor
) -> list[views.TradePoint]:
    """Points on other numbers of tensor-parallel devices, where the model fits and a device is named."""
    own = answer.deployment.tensor_parallel_size
    if question.server.hardware is None or question.server.fit is not None:
        return []
    full, points = loads[-3], list[views.TradePoint]()
    for n_tensor in _OTHER_TP:
        other = replace(question, server=replace(question.server, tp=n_tensor))
        if n_tensor == own or answer.disaggregation is not None:
            continue
        try:
            servers = servers_at(other.server, other.fleet)
            wide = max(1.0, n_tensor / own)
            tried = tuple(
                dict.fromkeys(float(f"{max(1, full * ratio * wide):.2g}") for ratio in _TRADED)
            )
            seen = executor.map(seen_at, [load_of(other, load, "likely") for load in tried])
        except (SpecError, ModelError):
            # This layout cannot be: heads that do not divide, or no memory for a KV cache.
            continue
        deployment = replace(
            answer.deployment, tensor_parallel_size=n_tensor, n_devices=servers.deployment.n_devices
        )
        points += trades_of(replace(answer, deployment=deployment), tried, seen)
    return points


def limit_costs(
    question: Explore,
    answer: simulation.SimulateAnswer,
    usd_per_hour: float | None,
    loads: Sequence[float],
    seen: Sequence[Seen],
) -> tuple[views.LimitCost, ...]:
    """Dollars per hour for this traffic under stricter and laxer limits, by whole replicas."""
    rate_per_s, slo = question.workload.rate, question.slo
    if rate_per_s is None or slo is None or usd_per_hour is None:
        return ()
    objective, where = objectives.parse_objective(slo, has_workflows=True), answer.deployment
    costs = list[views.LimitCost]()
    for ratio in curves.LIMIT_RATIOS:
        within = [load for load, one in zip(loads, seen, strict=True) if one.limit_ratio < ratio]
        if not within:
            continue
        n_replicas = math.ceil(rate_per_s * where.n_replicas / max(within) * (1 - 1e-9))
        costs.append(
            views.LimitCost(
                device=where.hardware or "this device",
                limit_ratio=ratio,
                objective=curves.with_limits(objective, ratio).text,
                n_replicas=n_replicas,
                usd_per_hour=usd_per_hour / where.n_replicas * n_replicas,
            )
        )
    return tuple(costs)


_TOKENS: Final = 1e6
_SECONDS_PER_HOUR: Final = 3600.0
_WINDOWS: Final = 120
"""Windows of charts over time, which are half as wide as a report's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExploreAnswer(Answer):
    """The simulation of one state, and points around it."""

    table = "points"

    command: str
    simulation: simulation.SimulateAnswer
    """As of ``inferometer simulate``; for a coarse answer at likely step times only."""
    is_coarse: bool
    usd_per_hour: float | None
    """Price of all devices; None where it is unknown."""
    usd_per_million_output_tokens: Estimate | None
    points: tuple[views.RatePoint, ...]
    """The same server at other loads, each by few requests; intervals span step times, too."""
    requests_per_point: int
    trades: tuple[views.TradePoint, ...]
    limit_costs: tuple[views.LimitCost, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """The answer with its curves and timelines."""

    question: Explore
    answer: ExploreAnswer
    series: run_series.StepSeries | None
    timelines: tuple[tuple[str, slot_timeline.SlotTimeline], ...] = ()
    """Activity of each slot in each step: of this server, and of static batching."""


def coarse(question: Explore, executor: Executor) -> Explored:
    """The likely run: all numbers of the final answer, without the uncertainty of step times."""
    simulated = _simulate(question.simulated, executor, is_likely_alone=True)
    return _explored(question, simulated, is_coarse=True)


def sketched(question: Explore, executor: Executor) -> Explored:
    """The likely run and the curves around it, at likely step times."""
    found = coarse(question, executor)
    return _around(found, loads_of(question, executor), executor)


def refined(question: Explore, executor: Executor) -> Explored:
    """The whole answer: the interval of step times, curves, other layouts, and costs.

    Raises
    ------
    SpecError, ModelError
        The question cannot be answered as it is requested.
    """
    simulated = _simulate(question.simulated, executor)
    found = _explored(question, simulated, is_coarse=False)
    loads = loads_of(question, executor)
    found = _around(found, loads, executor, *ends_of(found.answer.simulation))
    others = other_layouts(question, found.answer.simulation, loads, executor)
    answer = replace(found.answer, trades=(*found.answer.trades, *others))
    return replace(found, answer=answer, timelines=_timelines(question, executor))


def _around(found: Explored, loads: Sequence[float], executor: Executor, *ends: Case) -> Explored:
    """The answer with its curves, each point at the likely case and these ends."""
    question, answer = found.question, found.answer
    parts = [load_of(question, load, case) for load in loads for case in ("likely", *ends)]
    seen, width = executor.map(seen_at, parts), 1 + len(ends)
    groups = [seen[i : i + width] for i in range(0, len(seen), width)]
    is_closed = question.workload.concurrency is not None
    likely = [group[0] for group in groups]
    answer = replace(
        answer,
        points=tuple(
            point_of(load, group, is_closed=is_closed)
            for load, group in zip(loads, groups, strict=True)
        ),
        trades=tuple(trades_of(answer.simulation, loads, likely)),
        limit_costs=limit_costs(question, answer.simulation, answer.usd_per_hour, loads, likely),
    )
    return replace(found, answer=answer)


def _simulate(
    question: simulate.Simulate, executor: Executor, *, is_likely_alone: bool = False
) -> simulation.Simulated:
    return simulation.simulate_workload(
        simulator_at(question, record_steps=True),
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
            requests_per_point=CURVE_REQUESTS,
            trades=(),
            limit_costs=(),
        ),
        series=None if run.steps is None else run_series.step_series(run.steps, n_windows=_WINDOWS),
    )


def _own_knobs(question: Explore) -> list[str]:
    return [text.partition("=")[0].strip() for text in question.server.set]


def _per_million(usd_per_hour: float, rate: Estimate) -> Estimate:
    """Dollars per million tokens at this many tokens per second; ends are swapped."""
    of_one = usd_per_hour / _SECONDS_PER_HOUR * _TOKENS
    has_ends = rate.low is not None and rate.high is not None and rate.low > 0
    return replace(
        rate,
        value=of_one / rate.value,
        low=of_one / rate.high if has_ends and rate.high else None,
        high=of_one / rate.low if has_ends and rate.low else None,
    )


def _usd_per_hour(question: Explore, answer: simulation.SimulateAnswer) -> float | None:
    """Price of all devices: by the given price, else the catalogue's first."""
    servers = servers_at(question.server, question.fleet)
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
"""Position in the run's steps at which the batch is as full as it gets."""


def _timelines(
    question: Explore, executor: Executor
) -> tuple[tuple[str, slot_timeline.SlotTimeline], ...]:
    """The middle of the run step by step, and the same requests in static batches."""
    requested = question.simulated
    requested = replace(
        requested,
        workload=replace(requested.workload, requests=CURVE_REQUESTS, duration=None),
    )
    own = requested.server.policy or "vllm"
    other = "static" if own != "static" else "vllm"
    within = replace(requested.server, policy=other, set=(), max_num_batched_tokens=None)
    cases = [(own, requested), (other, replace(requested, server=within))]

    def timeline(case: tuple[str, simulate.Simulate]) -> slot_timeline.SlotTimeline | None:
        try:
            run = (
                simulator_at(case[1], record_steps=True)
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
