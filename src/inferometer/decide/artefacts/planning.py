"""The fleet that a sizing decided on, and its operating range.

It is simulated again, to see how full its replicas run.
"""

from typing import Final, NamedTuple

import msgspec
import numpy as np

from inferometer.decide import probing
from inferometer.decide.artefacts.packaging import Fleet, OperatingPoint, Promise
from inferometer.decide.candidates import Offer
from inferometer.decide.sizing_types import ServedBy, SizedKind, SizingQuestion
from inferometer.errors import SizingError
from inferometer.fit.published.efficiencies import has_stated_links
from inferometer.inputs.gate import OTHERS, GateSpec
from inferometer.inputs.types import Caution
from inferometer.inputs.workload.types import ClosedArrivals, WorkloadSpec
from inferometer.records.columns import F64, I64
from inferometer.records.latencies import Latency, end_ns, latency_samples
from inferometer.records.request_summaries import JudgedThreshold
from inferometer.records.types import RequestTable, Run, StepTable
from inferometer.simulate import deployment as replicas, scheduler_config
from inferometer.units import NS_PER_S

_HIGH_FRACTION: Final = 0.99


def fleet_of(
    question: SizingQuestion,
    kind: SizedKind,
    *,
    utilization_fraction: float,
    cautions: tuple[Caution, ...],
    tool_version: str,
) -> Fleet:
    """The fleet that a sizing chose, simulated again for the load on its replicas.

    Raises
    ------
    SizingError
        The sizing was of an engine that is not vLLM: what follows is made of vLLM's flags and
        metrics.
    """
    deployment, served = kind.candidate.deployment, kind.sized_at.served
    most = _most(question, kind)
    n_served = max(served.summary.n_requests, 1)
    return Fleet(
        model=deployment.model,
        hardware=kind.candidate.offer.hardware,
        engine=deployment.engine,
        scheduler=_vllm_config(kind),
        utilization_fraction=utilization_fraction,
        n_replicas=kind.n_replicas,
        n_replicas_if_one_fails=kind.n_replicas_if_one_fails,
        workload=one_by_one(as_sent(question.spec, question.fleets.gate), kind.requests_per_s),
        rate_per_s=kind.requests_per_s,
        users=round(question.offered_load) if kind.is_of_users else None,
        objective=question.objective,
        router=question.fleets.router,
        gate=question.fleets.gate,
        sized_for=kind.asked_pace,
        verdict=kind.verdict,
        promises=tuple(_promise(one) for one in served.judgement.thresholds),
        weakest=_weakest(served),
        breaks_first=kind.sized_at.capacity.weakest,
        prompt_mean_tokens=served.summary.input_tokens / n_served,
        output_mean_tokens=served.summary.output_tokens / n_served,
        e2e_high_s=_e2e_high_s(served),
        kept_requests_per_s=most.kept_per_s,
        broken_requests_per_s=most.broken_per_s,
        planned=_planned(question, kind),
        fullest=most.at,
        step_times_basis=deployment.step_times.basis,
        step_times_from=deployment.step_times.origin,
        has_stated_links=_are_links_stated(kind),
        kv_origin=deployment.kv_origin,
        usd_per_hour=kind.usd_per_hour,
        price_from=_price_from(kind.candidate.offer),
        is_eager=deployment.step_times.likely.singly_s > 0,
        cautions=cautions,
        tool_version=tool_version,
    )


class _Most(NamedTuple):
    """Highest load that meets the SLO; rates of a replica there, and where the SLO is missed."""

    at: OperatingPoint
    kept_per_s: float | None
    broken_per_s: float | None


def _most(question: SizingQuestion, kind: SizedKind) -> _Most:
    capacity = kind.sized_at.capacity
    met, missed = capacity.met_load or capacity.located_load, capacity.missed_load
    at = operating_point(question, kind, kind.asked_pace, met or question.offered_load)
    if kind.is_of_users:  # a rate is what they make; that of too many of them was not simulated
        return _Most(at, None if met is None else at.requests_per_s, None)
    n_replicas = kind.n_replicas
    return _Most(
        at,
        None if met is None else met / n_replicas,
        None if missed is None else missed / n_replicas,
    )


def as_sent(workload: WorkloadSpec, gate: GateSpec | None) -> WorkloadSpec:
    """The workload with the priorities that the gate gives its classes, which clients are to send."""
    given = {} if gate is None else {one.name: one.priority for one in gate.classes}
    classes = [
        one if priority is None else msgspec.structs.replace(one, priority=priority)
        for one in workload.classes
        for priority in [given.get(one.name, given.get(OTHERS))]
    ]
    return msgspec.structs.replace(workload, classes=tuple(classes))


def one_by_one(workload: WorkloadSpec, rate_per_s: float) -> WorkloadSpec:
    """The workload with users who start one after another at this rate, not all at once."""
    users = workload.arrivals
    if not isinstance(users, ClosedArrivals) or users.start_over_s > 0:
        return workload
    over_s = float(f"{users.concurrency / rate_per_s:.3g}")
    arrivals = msgspec.structs.replace(users, start_over_s=over_s)
    return msgspec.structs.replace(workload, arrivals=arrivals)


def operating_point(
    question: SizingQuestion, kind: SizedKind, pace: replicas.Pace, load: float
) -> OperatingPoint:
    """The state of a replica when all replicas together get this load."""
    deployment, n_replicas = kind.candidate.deployment, kind.n_replicas
    probe = probing.probe_of(question, kind.candidate, pace, n_replicas)
    n_requests = question.n_requests * probing.EFFORT_RATIO
    run = probe.run_of(load, n_requests, record_steps=True)
    users = probe.users_at_work(run, load, n_requests)
    requests, steps = run.requests, run.steps
    if requests is None or steps is None:
        raise ValueError("a simulated run has requests and steps")
    n_simulated = probe.fleet.replicas.n_replicas
    span_ns = max(end_ns(run) - int(requests.intended_send_ns.min()), 1) * n_simulated
    stayed_s = float(latency_samples(requests, "e2e", at_ns=end_ns(run)).lower_s.sum())
    kv_used = steps.kv_blocks_used / deployment.config.n_kv_blocks
    n_ended = max(int((requests.finished_ns >= requests.intended_send_ns).sum()), 1)
    return OperatingPoint(
        step_times=pace,
        requests_per_s=(load if users is None else users.requests_per_s) / n_replicas,
        in_flight_load=(
            stayed_s * NS_PER_S / span_ns if users is None else users.in_flight_load / n_replicas
        ),
        n_waiting_high=round(_high(steps.n_waiting_requests.astype(np.float64), steps, span_ns)),
        kv_used_mean_fraction=float((kv_used * steps.duration_ns).sum()) / span_ns,
        kv_used_high_fraction=_high(kv_used, steps, span_ns),
        preemptions_per_request_ratio=int(steps.n_preempted_requests.sum()) / n_ended,
        ttft_mean_s=_mean_s(run, requests, "ttft"),
        tpot_mean_s=_mean_s(run, requests, "tpot"),
    )


def _high(values: F64, steps: StepTable, span_ns: int) -> float:
    """Below which the values are for 99 % of the time of all replicas (``span_ns``); between steps they are 0."""
    order = np.argsort(values)
    lasted_ns: I64 = steps.duration_ns[order]
    idle_ns = max(span_ns - int(lasted_ns.sum()), 0)
    reached = np.searchsorted(
        idle_ns + np.cumsum(lasted_ns), _HIGH_FRACTION * (idle_ns + int(lasted_ns.sum()))
    )
    return float(values[order][min(int(reached), len(order) - 1)])


def _mean_s(run: Run, requests: RequestTable, latency: Latency) -> float | None:
    samples = latency_samples(requests, latency, at_ns=end_ns(run)).lower_s
    return float(samples.mean()) if len(samples) else None


def _vllm_config(kind: SizedKind) -> scheduler_config.SchedulerConfig:
    config = kind.candidate.deployment.config
    if not isinstance(config, scheduler_config.SchedulerConfig):
        raise SizingError(
            f"deployment files cannot be written for {config.engine}",
            where="--out",
            allowed="a sizing of vLLM",
            try_="--json",
        )
    return config


def _promise(one: JudgedThreshold) -> Promise:
    seen = None if one.seen is None else one.seen.seconds
    return Promise(
        text=one.threshold.text,
        verdict=one.verdict,
        seen_s=None if seen is None else seen.value,
        low_s=None if seen is None else seen.low,
        high_s=None if seen is None or seen.high == float("inf") else seen.high,
    )


def _e2e_high_s(served: ServedBy) -> float | None:
    high = served.summary.latency("e2e").percentile(_HIGH_FRACTION)
    return None if high is None else high.seconds.value


def _planned(question: SizingQuestion, kind: SizedKind) -> tuple[OperatingPoint, ...]:
    return tuple(
        operating_point(question, kind, pace, question.offered_load) for pace in replicas.PACES
    )


def _are_links_stated(kind: SizedKind) -> bool:
    """Is the time of an all-reduce known, from the catalogue or from the options?"""
    is_asked = kind.candidate.deployment.step_times.all_reduce_s is not None
    return is_asked or has_stated_links(kind.candidate.offer.hardware)


def _weakest(served: ServedBy) -> str | None:
    weakest = served.judgement.weakest
    return None if weakest is None else f"{weakest.threshold.text}: {weakest.why}"


def _price_from(offer: Offer) -> str | None:
    """Source of the price that counts: the cheaper of rent and ownership."""
    known = [one for one in (offer.price, offer.owned) if one is not None]
    if not known:
        return None
    cheaper = min(known, key=lambda one: one.usd_per_hour)
    return f"{cheaper.basis}, {cheaper.date_utc or 'undated'} ({cheaper.source.where})"
