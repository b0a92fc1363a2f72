"""What is said of replicas that come and go with the traffic: each policy, its cost, and how much of the time it keeps the promise?"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from inferometer.decide.course import Course, Scaling
from inferometer.decide.elastic import Elastic, PolicyOutcome, capacities_of
from inferometer.decide.sizing_types import SizedKind, SizingQuestion
from inferometer.stats.estimate import Estimate, Verdict
from inferometer.units import format_duration, format_number


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


def over_time(question: SizingQuestion, kind: SizedKind, course: Course, *, start_up_s: float, target_fraction: float) -> OverTime:
    """Every policy of the pick under this course."""
    capacities = capacities_of(question, kind, max(course.rates_per_s) / target_fraction)
    scaling = Scaling(capacities_per_s=capacities, target_fraction=target_fraction, start_up_s=start_up_s, window_s=course.window_s)
    outcomes = Elastic(question=question, kind=kind, course=course, scaling=scaling).outcomes()
    return OverTime(
        window_s=course.window_s,
        start_up_s=start_up_s,
        target_fraction=target_fraction,
        rates_per_s=course.rates_per_s,
        capacities_per_s=capacities,
        policies=tuple(_row(one) for one in sorted(outcomes, key=lambda one: one.replica_s)),
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


def over_time_text(said: OverTime) -> list[RenderableType]:
    """The table of policies, and how they were simulated."""
    span_s = said.window_s * len(said.rates_per_s)
    rates = f"{format_number(min(said.rates_per_s))} to {format_number(max(said.rates_per_s))} requests/s"
    head = f"OVER   {format_duration(span_s)} at {rates}, {len(said.rates_per_s)} windows of {format_duration(said.window_s)}"
    table = Table("policy", "replicas", "$", "kept, time", "requests in limits", "verdict", box=None, pad_edge=False)
    for row in said.policies:
        table.add_row(
            row.name + ("" if row.is_settled else " (not settled)"),
            _span(row.n_replicas),
            "–" if row.usd is None else f"{row.usd:.2f}",
            f"{row.kept_fraction:.1%}",
            "–" if row.good is None else f"{row.good.value:.2%}",
            row.verdict,
        )
    how = f"a start takes {format_duration(said.start_up_s)}, policies that react aim at {said.target_fraction:.0%} of what replicas carry"
    return [Text(head), table, Text(f"       all requests at their instants on the replicas that are ready; {how}"), Text("")]


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low}–{high}"


__all__ = ["OverTime", "PolicyRow", "over_time", "over_time_text"]
