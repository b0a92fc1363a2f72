"""Summaries of a run's requests: latencies and rates, with intervals.

TTFT = first token - intended send (uncorrected: - actual send). TPOT = (last - first token) /
(output tokens - 1), absent for one-token answers. E2E = last token - intended send. Queue = first
time in a batch - actual send. Workflow = end of its synthesis request - intended send of its
planner request. Throughput = tokens or completed requests / (end of the run - first
intended send). Tok/s/user = 1 / TPOT. Goodput: completed requests within every limit, per second.

Requests of one run depend on one another: intervals are those of ``stats.autocorrelated``.

The SLO's verdict: is each percentile below its limit, and the goodput above its own?
"""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from inferometer import suggestions
from inferometer.errors import RecordError
from inferometer.inputs.objectives import ObjectiveSpec, Threshold
from inferometer.inputs.workload.plan import Part, workflow_parts
from inferometer.inputs.workload.types import ClosedArrivals
from inferometer.records import tables
from inferometer.records.columns import F64, I32, Bools
from inferometer.records.latencies import (
    COMPLETED,
    OF_REQUESTS,
    Latency,
    LatencySamples,
    are_beyond,
    began_to_answer_ns,
    delivered_tokens,
    deliveries,
    delivery_gaps,
    end_ns,
    is_one_of,
    latency_samples,
    may_be_beyond,
    samples_of,
)
from inferometer.records.steady_state import SteadyState
from inferometer.records.tables import select
from inferometer.records.types import ABSENT, UNKNOWN_COUNT, RequestStatus, RequestTable, Run
from inferometer.stats.autocorrelated import (
    N_BATCHES,
    Rates,
    closed_loop_rates,
    counted,
    is_closed_loop,
    quantile_rank,
    run_mean_estimate,
    run_quantile_estimates,
    run_share_estimate,
    window_rates,
)
from inferometer.stats.estimate import Estimate, Verdict, judge, judge_share
from inferometer.units import NS_PER_S, format_duration, format_fraction

PERCENTILES: Final = (0.5, 0.9, 0.95, 0.99)
MEAN_NAME: Final = "mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentile:
    """One percentile of a latency."""

    percentile_fraction: float
    seconds: Estimate
    """Without an interval if n is too small. An infinite upper end: requests that never reached
    this event are among the slowest."""
    is_lower_bound: bool
    """Unfinished requests may lie above: the percentile is at least the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyMean:
    """The mean of a latency."""

    seconds: Estimate
    """Without an interval if n is too small. An infinite upper end: some never finished."""
    is_lower_bound: bool
    """Unfinished requests count with their time so far: the mean is at least the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySummary:
    """One latency of all requests that have it."""

    latency: Latency
    n_samples: int
    n_bounded_below_only: int
    """Requests that were unfinished when last seen: lower bounds only."""
    mean: LatencyMean | None
    """None without samples."""
    percentiles: tuple[Percentile, ...]
    """Empty without samples."""

    def percentile(self, fraction: float) -> Percentile | None:
        """The percentile of that fraction, or None if it was not requested or does not exist."""
        return next(
            (one for one in self.percentiles if abs(one.percentile_fraction - fraction) < 1e-9),
            None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSummary:
    """Numbers of requests by status, latencies and rates."""

    name: str
    """Name of the class or tenant, or of the whole run."""
    n_requests: int
    n_by_status: tuple[tuple[str, int], ...]
    """(status in small letters, requests), those that occur."""
    n_preemptions: int | None
    """None: unknown, as for a client."""
    input_tokens: int
    """Prompt tokens of requests that got a first token."""
    cached_tokens: int | None
    """Prompt tokens found in the prefix cache; None: unknown."""
    output_tokens: int
    """Delivered tokens, including those of unfinished requests."""
    span_s: float
    """Time from the first intended send to the last recorded event."""
    latencies: tuple[LatencySummary, ...]
    output_tokens_per_s: Estimate | None
    total_tokens_per_s: Estimate | None
    """Input and output tokens."""
    completed_requests_per_s: Estimate | None
    offered_requests_per_s: float | None
    """Intended sends / time from the first to the last of them; None of a closed loop."""
    tokens_per_s_per_user: Estimate | None
    """1 / median TPOT."""

    def latency(self, name: Latency) -> LatencySummary:
        """The summary of this latency."""
        return next(one for one in self.latencies if one.latency == name)

    def n_of(self, *statuses: RequestStatus) -> int:
        """The number of requests that ended in one of these ways."""
        names = {status.name.lower() for status in statuses}
        return sum(n for name, n in self.n_by_status if name in names)


def summarise_requests(run: Run, *, percentiles: Sequence[float] = PERCENTILES) -> RequestSummary:
    """Summarise all requests of the run, and its workflows.

    Raises
    ------
    RecordError
        The run has no table of requests, or no request.
    """
    requests, at_ns = _requests_of(run), end_ns(run)
    is_closed = concurrency_of(run) is not None or is_closed_loop(
        requests.intended_send_ns, requests.finished_ns
    )
    summary = _of_traffic(run, _summarise(requests, "all requests", at_ns, percentiles))
    if is_closed and bool(is_one_of(requests, COMPLETED).all()):
        summary = _of_closed_loop(requests, summary, at_ns)
    if run.drawn is None:
        return summary
    samples = samples_of(run, ("workflow",))["workflow"]
    workflow = summarise_latency("workflow", samples, percentiles)
    return replace(summary, latencies=(*summary.latencies, workflow))


def summarise_groups(
    run: Run, group_index: I32, names: Sequence[str]
) -> tuple[RequestSummary, ...]:
    """Summarise the requests of each class (``requests.class_index``) or tenant.

    ``group_index`` (N) points into ``names``. Empty groups are left out.

    Rates are over the span of the whole run, so that those of the groups add up to the run's.
    """
    requests, at_ns = _requests_of(run), end_ns(run)
    span = _Span(int(requests.intended_send_ns.min()), at_ns)
    masks = [(name, group_index == i) for i, name in enumerate(names)]
    return tuple(
        _of_traffic(
            run, _summarise(tables.select(requests, mask), name, at_ns, PERCENTILES, span=span)
        )
        for name, mask in masks
        if bool(mask.any())
    )


def summarise_classes(run: Run, names: Sequence[str]) -> tuple[RequestSummary, ...]:
    """Summarise the requests of each class, and planners, subtasks and syntheses of its workflows.

    None where that is all requests.
    """
    requests = _requests_of(run)
    parts = 0 if run.drawn is None else workflow_parts(run.drawn)[requests.request_index]
    groups = np.asarray(requests.class_index * len(Part) + parts, np.int32)
    known = [*names, *(f"class {i}" for i in range(len(names), requests.class_index.max() + 1))]
    named = [f"{name} {part.name.lower()}" if part else name for name in known for part in Part]
    return summarise_groups(run, groups, named) if len(np.unique(groups)) > 1 else ()


def summarise_steady(run: Run, steady: SteadyState) -> RequestSummary:
    """Summarise the requests of the steady state.

    Latencies of requests sent in it; rates of all tokens between its first and last send.
    """
    requests, at_ns = _requests_of(run), end_ns(run)
    span = _Span(steady.start_ns, max(steady.end_ns, steady.start_ns + 1))
    of_span = _summarise(requests, "steady state", at_ns, PERCENTILES, span=span)
    chosen = _summarise(
        tables.select(requests, steady.holds(requests)), "steady state", at_ns, PERCENTILES
    )
    return replace(
        _of_traffic(run, chosen),
        span_s=of_span.span_s,
        output_tokens_per_s=of_span.output_tokens_per_s,
        total_tokens_per_s=of_span.total_tokens_per_s,
        completed_requests_per_s=of_span.completed_requests_per_s,
    )


def concurrency_of(run: Run) -> int | None:
    """Users of a closed loop; None for other load tests, and where not recorded."""
    arrivals = None if run.manifest.load is None else run.manifest.load.workload.arrivals
    return arrivals.concurrency if isinstance(arrivals, ClosedArrivals) else None


def _of_traffic(run: Run, summary: RequestSummary) -> RequestSummary:
    """The summary with the concurrency of a closed loop, which has no offered rate."""
    return summary if concurrency_of(run) is None else replace(summary, offered_requests_per_s=None)


def _of_closed_loop(requests: RequestTable, summary: RequestSummary, at_ns: int) -> RequestSummary:
    rates = closed_loop_rates(
        requests.intended_send_ns,
        requests.finished_ns,
        requests.prompt_tokens,
        lambda until_ns: delivered_tokens(requests, until_ns, at_ns=at_ns),
        Rates(*(getattr(summary, name) for name in Rates._fields)),
    )
    return replace(summary, **rates._asdict())


def _requests_of(run: Run) -> RequestTable:
    if run.requests is None or not len(run.requests.status):
        is_sweep, command = run.requests is None, run.manifest.command
        raise RecordError(
            "the run has no table of requests" if is_sweep else "the run has no request so far",
            where=run.manifest.run_id,
            allowed="a simulated run or a load test",
            try_=suggestions.command("show", "RUN") if is_sweep else shlex.join(command),
        )
    return run.requests


class _Span(NamedTuple):
    """The part of the run that rates cover."""

    start_ns: int
    end_ns: int


def _summarise(
    requests: RequestTable,
    name: str,
    at_ns: int,
    percentiles: Sequence[float],
    *,
    span: _Span | None = None,
) -> RequestSummary:
    start_ns, until_ns = (int(requests.intended_send_ns.min()), at_ns) if span is None else span
    latencies = tuple(
        summarise_latency(latency, latency_samples(requests, latency, at_ns=at_ns), percentiles)
        for latency in OF_REQUESTS
    )
    edges_ns = np.linspace(start_ns, max(until_ns, start_ns + 1), max(N_BATCHES) + 1)
    output = delivered_tokens(requests, edges_ns.astype(np.int64), at_ns=at_ns)
    began_ns = began_to_answer_ns(requests)
    has_begun = began_ns != ABSENT
    read = counted(began_ns[has_begun], edges_ns, requests.prompt_tokens[has_begun])
    is_done = is_one_of(requests, COMPLETED)
    done = counted(requests.finished_ns[is_done], edges_ns, np.ones(int(is_done.sum())))
    counts = np.bincount(requests.status, minlength=len(RequestStatus))
    between_s = (
        int(requests.intended_send_ns.max()) - int(requests.intended_send_ns.min())
    ) / NS_PER_S
    rates = window_rates(np.diff(output), read, done, edges_ns, between_s)
    tpot = next(one for one in latencies if one.latency == "tpot").percentile(0.5)
    return RequestSummary(
        name=name,
        n_requests=len(requests.status),
        n_by_status=tuple(
            (status.name.lower(), int(counts[status])) for status in RequestStatus if counts[status]
        ),
        n_preemptions=_known_sum(requests.n_preemptions),
        input_tokens=int(requests.prompt_tokens[has_begun].sum(dtype=np.int64)),
        cached_tokens=_known_sum(requests.cached_tokens[has_begun]),
        output_tokens=int(requests.output_tokens.sum(dtype=np.int64)),
        span_s=(until_ns - start_ns) / NS_PER_S,
        latencies=latencies,
        **rates._asdict(),
        offered_requests_per_s=(len(requests.status) - 1) / between_s if between_s > 0 else None,
        tokens_per_s_per_user=tpot.seconds.inverted()
        if tpot is not None and _is_positive(tpot.seconds)
        else None,
    )


def summarise_latency(
    latency: Latency, samples: LatencySamples, percentiles: Sequence[float] = PERCENTILES
) -> LatencySummary:
    """Mean and percentiles of one latency; from NaN-free samples in order of sending."""
    found: list[Percentile] = []
    estimates = run_quantile_estimates(samples.lower_s, percentiles, upper=samples.upper_s)
    for fraction, estimate in zip(percentiles, estimates, strict=False):
        rank = quantile_rank(len(samples.upper_s), fraction)
        above_s = float(np.partition(samples.upper_s, rank)[rank])
        found.append(
            Percentile(
                percentile_fraction=fraction,
                seconds=estimate,
                is_lower_bound=above_s > estimate.value,
            )
        )
    return LatencySummary(
        latency=latency,
        n_samples=len(samples.rows),
        n_bounded_below_only=samples.n_bounded_below_only,
        mean=_mean(samples),
        percentiles=tuple(found),
    )


def latency_mean(estimate: Estimate, *, n_bounded_below_only: int) -> LatencyMean:
    """Mean of a latency; a lower bound where samples are censored.

    No latency is below 0; censored ones have no upper limit.
    """
    if estimate.low is not None and estimate.high is not None:
        high = math.inf if n_bounded_below_only else estimate.high
        estimate = replace(estimate, low=max(estimate.low, 0.0), high=high)
    return LatencyMean(seconds=estimate, is_lower_bound=n_bounded_below_only > 0)


def _mean(samples: LatencySamples) -> LatencyMean | None:
    if not len(samples.lower_s):
        return None
    estimate = run_mean_estimate(samples.lower_s, float(samples.lower_s.mean()), name=MEAN_NAME)
    return latency_mean(estimate, n_bounded_below_only=samples.n_bounded_below_only)


def _known_sum(counts: I32) -> int | None:
    """The sum; None where a count is unknown."""
    return None if bool((counts == UNKNOWN_COUNT).any()) else int(counts.sum(dtype=np.int64))


def _is_positive(estimate: Estimate) -> bool:
    return estimate.value > 0 and (estimate.low is None or estimate.low > 0)


# Inter-token latency: gaps between chunks, and time per token.
# The per-chunk view is what a user sees: one gap for each chunk. In the per-token view each of a
# chunk's k tokens takes a k-th of its gap, so that servers that send several tokens at once
# are comparable with those that do not.


ITL_PERCENTILES: Final = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class GapSummary:
    """Gaps of one view."""

    n_samples: int
    mean_s: float | None
    """None without samples."""
    percentiles: tuple[Percentile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InterTokenSummary:
    """Inter-token latency of a run, in both views."""

    per_chunk: GapSummary
    per_token: GapSummary
    n_chunks: int
    n_chunks_of_several: int
    n_chunks_assumed: int
    """Number of chunks with unknown token counts: their answer's tokens are spread evenly."""
    tokens_per_chunk_ratio: float | None


def inter_token_summary(run: Run) -> InterTokenSummary:
    """Inter-token latency of all answers.

    Raises
    ------
    RecordError
        The run has no times of tokens.
    """
    given = deliveries(run)
    gaps = delivery_gaps(given)
    n_chunks = len(given.n_tokens)
    return InterTokenSummary(
        per_chunk=_summary(gaps.gap_ns / NS_PER_S),
        per_token=_summary(gaps.per_token_s()),
        n_chunks=n_chunks,
        n_chunks_of_several=int((given.n_tokens > 1).sum()),
        n_chunks_assumed=int(given.is_assumed.sum()),
        tokens_per_chunk_ratio=int(given.n_tokens.sum()) / n_chunks if n_chunks else None,
    )


def _summary(samples_s: F64) -> GapSummary:
    estimates = run_quantile_estimates(samples_s, ITL_PERCENTILES)
    return GapSummary(
        n_samples=len(samples_s),
        mean_s=float(np.mean(samples_s)) if len(samples_s) else None,
        percentiles=tuple(
            Percentile(percentile_fraction=fraction, seconds=estimate, is_lower_bound=False)
            for fraction, estimate in zip(ITL_PERCENTILES, estimates, strict=False)
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedThreshold:
    """One limit of an SLO, the measured value, and its verdict."""

    threshold: Threshold
    seen: Percentile | None
    """None if no request has it, too few users stayed, or it is a limit for goodput only."""
    verdict: Verdict
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Verdict of an SLO: the worst of its limits."""

    objective: ObjectiveSpec
    verdict: Verdict
    thresholds: tuple[JudgedThreshold, ...]
    weakest: JudgedThreshold | None
    """The weakest limit: missed before undecided before met; among equals the nearest to (or
    furthest beyond) its limit."""
    n_good: int
    """Number of requests completed within every limit."""
    n_open: int
    """Number of unfinished requests beyond no limit so far; they do not count as good."""
    good: Estimate | None
    """Good requests / all requests, including refused, failed and unfinished ones."""
    good_requests_per_s: float | None
    """Goodput."""


def judge_objective(run: Run, objective: ObjectiveSpec, *, rows: Bools | None = None) -> Judgement:
    """Judge the objective on this run, or on N of its requests, and name the weakest link.

    Limits without a percentile count for goodput alone; without any other the verdict is
    *undecided*. A TTFT or E2E beyond its limit is missed if the queue grows without bound. A server
    that refuses a request misses all limits; those that a gate turns away count by their share.
    """
    requests = run.requests
    if requests is None:
        raise ValueError("a run without requests promises nothing")
    at_ns = end_ns(run)
    samples = samples_of(run, [one.metric for one in objective.thresholds], rows)
    requests = requests if rows is None else select(requests, rows)
    is_growing = any(caution.code == "overload" for caution in run.manifest.cautions)
    rejected = requests.class_index[is_one_of(requests, (RequestStatus.REJECTED,))]
    refusal = run.manifest.refusal_of(np.unique(rejected).tolist()) if rejected.size else ""
    judged = tuple(
        _of_all(requests, _judged(one, samples[one.metric], is_growing=is_growing), refusal)
        for one in objective.thresholds
    )
    with_percentile = [one for one in judged if one.threshold.percentile_fraction is not None]
    weakest = min(with_percentile, key=_strength) if with_percentile else None
    is_broken = are_beyond(requests, objective, samples)
    is_open = may_be_beyond(requests, objective)
    is_good = is_one_of(requests, COMPLETED) & ~is_broken & ~is_open
    is_open |= is_one_of(requests, (RequestStatus.UNFINISHED,))
    span_s = (at_ns - int(requests.intended_send_ns.min(initial=at_ns))) / NS_PER_S
    return Judgement(
        objective=objective,
        verdict="undecided" if weakest is None else weakest.verdict,
        thresholds=judged,
        weakest=weakest,
        n_good=int(is_good.sum()),
        n_open=int((is_open & ~is_broken).sum()),
        good=run_share_estimate(is_good, name="share of requests within every limit"),
        good_requests_per_s=int(is_good.sum()) / span_s if span_s > 0 else None,
    )


def _of_all(requests: RequestTable, judged: JudgedThreshold, refusal: str) -> JudgedThreshold:
    """Rejected requests meet no limit, and aborted ones none that needs the whole answer."""
    limit = judged.threshold
    share, is_whole = limit.percentile_fraction, limit.metric in {"tpot", "e2e"}
    if refusal and share is not None:
        return replace(judged, verdict="missed", why=refusal)
    lost = (RequestStatus.REJECTED, *((RequestStatus.ABORTED,) if is_whole else ()))
    served = run_share_estimate(~is_one_of(requests, lost), name="share of requests with an answer")
    if judged.verdict == "missed" or share is None or served is None or served.value == 1:
        return judged
    verdict, lost_text = judge_share(served, share), format_fraction(1 - served.value)
    left = ", or their users left before the answer was complete" if is_whole else ""
    why = f"{lost_text} of requests were turned away{left}"
    return judged if verdict == "met" else replace(judged, seen=None, verdict=verdict, why=why)


def _judged(threshold: Threshold, samples: LatencySamples, *, is_growing: bool) -> JudgedThreshold:
    if threshold.percentile_fraction is None:
        return JudgedThreshold(
            threshold=threshold,
            seen=None,
            verdict="undecided",
            why="no percentile: it counts for goodput alone",
        )
    seen = summarise_latency(
        threshold.metric, samples, (threshold.percentile_fraction,)
    ).percentile(threshold.percentile_fraction)
    verdict = judge(None if seen is None else seen.seconds, threshold.limit_s)
    within = None
    if verdict == "undecided":
        is_within = samples.lower_s <= threshold.limit_s
        within = _certainly_missed(is_within, threshold.percentile_fraction)
    if seen is not None and within is not None:
        return JudgedThreshold(
            threshold=threshold,
            seen=seen,
            verdict="missed",
            why=_why_missed(threshold, seen, within),
        )
    if seen is not None and is_growing and verdict == "undecided" and _is_beyond(seen, threshold):
        why = f"{format_duration(seen.seconds.value)}, and the queue grows without bound"
        return JudgedThreshold(threshold=threshold, seen=seen, verdict="missed", why=why)
    why = _reason(threshold, seen, verdict)
    return JudgedThreshold(threshold=threshold, seen=seen, verdict=verdict, why=why)


def _is_beyond(seen: Percentile, threshold: Threshold) -> bool:
    """Is the latency beyond its limit? False for TPOT, which does not grow with the queue."""
    return (
        threshold.metric in {"ttft", "e2e", "workflow"} and seen.seconds.value > threshold.limit_s
    )


def _certainly_missed(is_within: Bools, percentile_fraction: float) -> Estimate | None:
    """The share within the limit if it is certainly too small; else None.

    This test needs fewer requests than the percentile's own interval.
    """
    within = run_share_estimate(is_within, name="share of requests within the limit")
    return within if within and judge_share(within, percentile_fraction) == "missed" else None


def _why_missed(threshold: Threshold, seen: Percentile, within: Estimate) -> str:
    share = format_fraction(within.value) + (
        "" if within.high is None else f" (at most {format_fraction(within.high)})"
    )
    at_least = "at least " if seen.is_lower_bound else ""
    those = "workflows" if threshold.metric == "workflow" else "requests"
    return (
        f"{at_least}{format_duration(seen.seconds.value)}; {share} of {those} took less than"
        f" {format_duration(threshold.limit_s)}"
    )


def _reason(threshold: Threshold, seen: Percentile | None, verdict: Verdict) -> str:
    """The percentile with its interval against the limit, or why there is no interval."""
    if seen is None:
        return "no request has this latency"
    estimate, limit = seen.seconds, format_duration(threshold.limit_s)
    at_least = "at least " if seen.is_lower_bound else ""
    if estimate.low is None or estimate.high is None:
        return (
            f"{at_least}{format_duration(estimate.value)}, but {estimate.method.partition('; ')[2]}"
        )
    above = (
        "no upper bound, because the slowest were not done"
        if np.isinf(estimate.high)
        else format_duration(estimate.high)
    )
    interval = (
        f"{at_least}{format_duration(estimate.value)} [{format_duration(estimate.low)}, {above}]"
    )
    return f"{interval} {'lies on both sides of' if verdict == 'undecided' else 'against'} {limit}"


def _strength(judged: JudgedThreshold) -> tuple[int, float]:
    """Sort key: the weakest first."""
    order = {"missed": 0, "undecided": 1, "met": 2}[judged.verdict]
    return (
        order,
        -judged.seen.seconds.value / judged.threshold.limit_s if judged.seen is not None else 0.0,
    )
