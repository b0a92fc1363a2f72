"""What lies around a state of the explorer: the same server at other loads, layouts, and limits?"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from inferometer.api import (
    cluster,
    fleet as fleets,
    progress,
    server as servers_,
    simulate,
    simulation,
)
from inferometer.api.explore import Explore
from inferometer.api.simulate import Simulate
from inferometer.api.workload import workload_of
from inferometer.decide.curves import LIMIT_RATIOS, with_limits
from inferometer.errors import ModelError, SpecError
from inferometer.inputs import objectives
from inferometer.measure.executors.local import Executor
from inferometer.records import latencies, request_summaries
from inferometer.records.request_summaries import Percentile, RequestSummary
from inferometer.report.decision_views import LimitCost, RatePoint, TradePoint
from inferometer.simulate.deployment import Case
from inferometer.stats.estimate import Estimate, Verdict
from inferometer.units import NS_PER_S, format_number

CURVE_REQUESTS: Final = 500
"""Of each point of a curve."""
_RATIOS: Final = (0.08, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.6)
"""Of the rate at which the server is full."""
_USERS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_OTHER_TP: Final = (1, 2, 4, 8)
_TRADED: Final = (0.1, 0.4, 0.7, 0.9)
_BURST_PER_S: Final = 1e6
_BURST_REQUESTS: Final = 1500
_FEWEST: Final = 20


class Load(NamedTuple):
    """One point of a curve: which question, which of the servers that may be the one."""

    question: Simulate
    case: Case


class Seen(NamedTuple):
    """What came of it."""

    summary: RequestSummary
    judgement: request_summaries.Judgement | None

    @property
    def limit_ratio(self) -> float:
        """The limits, times those of the SLO, that its percentiles reach, the noise aside."""
        judged = [] if self.judgement is None else self.judgement.thresholds
        reached = [
            one.seen.seconds.value / one.threshold.limit_s for one in judged if one.seen is not None
        ]
        return max(reached, default=math.inf)


def loads_of(question: Explore, executor: Executor) -> tuple[float, ...]:
    """Loads from idle to more than the server carries, whatever load is requested for."""
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
def _burst_per_s(question: Simulate) -> float:
    """All requests come at once: how many end in a second between the first and the last quarter?"""
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
    """The servers of these options; what was built of them stays."""
    n_sharing = fleet.cluster.data_parallel_size
    return fleets.servers_of(fleet, servers_.deployment_of(server, n_sharing=n_sharing))


@lru_cache(maxsize=32)
def simulator_at(question: Simulate, *, record_steps: bool = False) -> simulation.Simulator:
    """The servers, and their requests drawn."""
    objective = None if question.slo is None else objectives.parse_objective(question.slo)
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
    """The point, whatever load is requested for: what was computed of it stays."""
    requested = question.at_load(load, CURVE_REQUESTS)
    return Load(replace(requested, given=frozenset()), case)


@lru_cache(maxsize=4000)
def seen_at(part: Load) -> Seen:
    """One point; it is short, for somebody waits for all of them."""
    level = simulator_at(part.question).at(simulation.OneCase(part.case)).level
    return Seen(level.summary, level.judgement)


def ends_of(answer: simulation.SimulateAnswer) -> tuple[Case, ...]:
    """The two servers that may be the one whose TTFT is least and most: the ends of a curve's band."""
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


def point_of(load: float, group: Sequence[Seen], *, is_closed: bool) -> RatePoint:
    """One point of a curve: the likely case, its intervals widened to hold the other cases."""
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

    return RatePoint(
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
) -> list[TradePoint]:
    """Speed per user against output per device, of one layout."""
    where, points = answer.deployment, list[TradePoint]()
    n_devices = where.n_devices * where.n_replicas
    for load, one in zip(loads, seen, strict=True):
        per_user, rate = one.summary.tokens_per_s_per_user, one.summary.output_tokens_per_s
        if per_user is None or rate is None:
            continue
        verdict: Verdict = "undecided"
        if one.judgement is not None:
            verdict = "met" if one.limit_ratio < 1 else "missed"
        points.append(
            TradePoint(
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
) -> list[TradePoint]:
    """The same on another number of tensor-parallel devices, where the model fits and a device is named."""
    own = answer.deployment.tensor_parallel_size
    if question.server.hardware is None or question.server.fit is not None:
        return []
    full, points = loads[-3], list[TradePoint]()
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
) -> tuple[LimitCost, ...]:
    """Dollars per hour for this traffic under stricter and laxer limits, by whole replicas."""
    rate_per_s, slo = question.workload.rate, question.slo
    if rate_per_s is None or slo is None or usd_per_hour is None:
        return ()
    objective, where = objectives.parse_objective(slo), answer.deployment
    costs = list[LimitCost]()
    for ratio in LIMIT_RATIOS:
        within = [load for load, one in zip(loads, seen, strict=True) if one.limit_ratio < ratio]
        if not within:
            continue
        n_replicas = math.ceil(rate_per_s * where.n_replicas / max(within) * (1 - 1e-9))
        costs.append(
            LimitCost(
                device=where.hardware or "this device",
                limit_ratio=ratio,
                objective=with_limits(objective, ratio).text,
                n_replicas=n_replicas,
                usd_per_hour=usd_per_hour / where.n_replicas * n_replicas,
            )
        )
    return tuple(costs)
