"""Was the SLO met: each percentile below its limit, and the goodput?"""

from dataclasses import dataclass

import numpy as np

from inferometer.inputs.objectives import ObjectiveSpec, Threshold
from inferometer.records.columns import Bools
from inferometer.records.latencies import COMPLETED, end_ns, is_one_of, latency_samples
from inferometer.records.request_summaries import Percentile, summarise_latency
from inferometer.records.tables import select
from inferometer.records.types import RequestStatus, RequestTable, Run
from inferometer.stats.autocorrelated import run_share_estimate
from inferometer.stats.estimate import Estimate, Verdict, judge
from inferometer.units import NS_PER_S, format_duration, format_fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedThreshold:
    """One limit of an SLO, what was measured, and whether it was met."""

    threshold: Threshold
    seen: Percentile | None
    """None where no request has this latency, or where the limit counts for goodput alone."""
    verdict: Verdict
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Was the objective met? Its verdict is that of its weakest link."""

    objective: ObjectiveSpec
    verdict: Verdict
    thresholds: tuple[JudgedThreshold, ...]
    weakest: JudgedThreshold | None
    """The first to break: missed before undecided before met, and of those the nearest to (or
    furthest beyond) its limit."""
    n_good: int
    """Completed, and within every limit."""
    n_open: int
    """Unfinished and beyond no limit so far; they are not counted as good."""
    good: Estimate | None
    """Share of all requests that are good: of the refused, the failed and the unfinished too."""
    good_requests_per_s: float | None
    """Goodput."""


def judge_objective(run: Run, objective: ObjectiveSpec, *, rows: Bools | None = None) -> Judgement:
    """Judge the objective on this run, or on N of its requests, and name the weakest link.

    Limits without a percentile count for goodput alone; where no threshold has one, the verdict is
    *undecided*.
    """
    requests = run.requests
    if requests is None:
        raise ValueError("a run without requests promises nothing")
    requests = requests if rows is None else select(requests, rows)
    at_ns = end_ns(run)
    judged = tuple(_judged(threshold, requests, at_ns) for threshold in objective.thresholds)
    with_percentile = [one for one in judged if one.threshold.percentile_fraction is not None]
    weakest = min(with_percentile, key=_strength) if with_percentile else None
    is_broken = _broken(requests, objective, at_ns)
    is_good = is_one_of(requests, COMPLETED) & ~is_broken
    span_s = (at_ns - int(requests.intended_send_ns.min(initial=at_ns))) / NS_PER_S
    return Judgement(
        objective=objective,
        verdict="undecided" if weakest is None else weakest.verdict,
        thresholds=judged,
        weakest=weakest,
        n_good=int(is_good.sum()),
        n_open=int((is_one_of(requests, (RequestStatus.UNFINISHED,)) & ~is_broken).sum()),
        good=run_share_estimate(is_good, name="share of requests within every limit"),
        good_requests_per_s=int(is_good.sum()) / span_s if span_s > 0 else None,
    )


def _judged(threshold: Threshold, requests: RequestTable, at_ns: int) -> JudgedThreshold:
    if threshold.percentile_fraction is None:
        return JudgedThreshold(
            threshold=threshold,
            seen=None,
            verdict="undecided",
            why="no percentile: it counts for goodput alone",
        )
    samples = latency_samples(requests, threshold.metric, at_ns=at_ns)
    seen = summarise_latency(
        threshold.metric, samples, (threshold.percentile_fraction,)
    ).percentile(threshold.percentile_fraction)
    verdict = judge(None if seen is None else seen.seconds, threshold.limit_s)
    within = (
        _certainly_missed(samples.lower_s <= threshold.limit_s, threshold.percentile_fraction)
        if verdict == "undecided"
        else None
    )
    if seen is not None and within is not None:
        return JudgedThreshold(
            threshold=threshold,
            seen=seen,
            verdict="missed",
            why=_why_missed(threshold, seen, within),
        )
    return JudgedThreshold(
        threshold=threshold, seen=seen, verdict=verdict, why=_why(threshold, seen, verdict)
    )


def _certainly_missed(is_within: Bools, percentile_fraction: float) -> Estimate | None:
    """The share within the limit, where it is certainly too small.

    That needs fewer requests than the percentile's own interval.
    """
    within = run_share_estimate(is_within, name="share of requests within the limit")
    return (
        within
        if within is not None and within.high is not None and within.high < percentile_fraction
        else None
    )


def _why_missed(threshold: Threshold, seen: Percentile, within: Estimate) -> str:
    share = format_fraction(within.value) + (
        "" if within.high is None else f" (at most {format_fraction(within.high)})"
    )
    at_least = "at least " if seen.is_lower_bound else ""
    return (
        f"{at_least}{format_duration(seen.seconds.value)}; {share} of requests took less than"
        f" {format_duration(threshold.limit_s)}"
    )


def _why(threshold: Threshold, seen: Percentile | None, verdict: Verdict) -> str:
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
    """Sorts the weakest first."""
    order = {"missed": 0, "undecided": 1, "met": 2}[judged.verdict]
    return (
        order,
        -judged.seen.seconds.value / judged.threshold.limit_s if judged.seen is not None else 0.0,
    )


def _broken(requests: RequestTable, objective: ObjectiveSpec, at_ns: int) -> Bools:
    """Which requests (N) are known to lie beyond one of the limits?

    One without the latency lies beyond none.
    """
    is_broken = np.zeros(len(requests.status), np.bool_)
    for threshold in objective.thresholds:
        samples = latency_samples(requests, threshold.metric, at_ns=at_ns)
        is_broken[samples.rows[samples.lower_s > threshold.limit_s]] = True
    return is_broken
