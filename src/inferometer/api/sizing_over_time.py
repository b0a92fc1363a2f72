"""What is said of replicas that come and go with the traffic.

Each policy, its cost, and how much of the time it keeps the promise?
"""

from dataclasses import dataclass

from inferometer.decide.course import Course, Scaling
from inferometer.decide.elastic import Elastic, PolicyOutcome, capacities_of
from inferometer.decide.sizing_types import SizedKind, SizingQuestion
from inferometer.stats.estimate import Estimate, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow:
    """One policy under the whole traffic, simulated."""

    name: str
    verdict: Verdict
    """Of all requests."""
    kept_fraction: float
    """Share of the windows whose requests kept the promise, as it was seen in them."""
    good: Estimate | None
    """Share of the requests within every limit."""
    weakest: str | None
    usd: float | None
    replica_s: float
    """Paid for."""
    n_replicas: tuple[int, ...]
    """Ready in each window."""
    is_settled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OverTime:
    """The pick under traffic that changes."""

    window_s: float
    start_up_s: float
    target_fraction: float
    rates_per_s: tuple[float, ...]
    """Of each window."""
    capacities_per_s: tuple[float, ...]
    """What 1, 2, … replicas carry."""
    policies: tuple[PolicyRow, ...]
    """The cheapest first."""


def over_time(
    question: SizingQuestion,
    kind: SizedKind,
    course: Course,
    *,
    start_up_s: float,
    target_fraction: float,
) -> OverTime:
    """Every policy of the pick under this course."""
    capacities = capacities_of(question, kind, max(course.rates_per_s) / target_fraction)
    scaling = Scaling(
        capacities_per_s=capacities,
        target_fraction=target_fraction,
        start_up_s=start_up_s,
        window_s=course.window_s,
    )
    outcomes = Elastic(question=question, kind=kind, course=course, scaling=scaling).outcomes()
    return OverTime(
        window_s=course.window_s,
        start_up_s=start_up_s,
        target_fraction=target_fraction,
        rates_per_s=course.rates_per_s,
        capacities_per_s=capacities,
        policies=tuple(
            _row(one)
            for one in sorted(
                outcomes, key=lambda one: one.replica_s if one.usd is None else one.usd
            )
        ),
    )


def _row(outcome: PolicyOutcome) -> PolicyRow:
    weakest = outcome.judgement.weakest
    return PolicyRow(
        name=outcome.name,
        verdict=outcome.judgement.verdict,
        kept_fraction=outcome.kept_fraction,
        good=outcome.judgement.good,
        weakest=None if weakest is None else f"{weakest.threshold.text}: {weakest.why}",
        usd=outcome.usd,
        replica_s=outcome.replica_s,
        n_replicas=outcome.schedule.ready,
        is_settled=outcome.is_settled,
    )
