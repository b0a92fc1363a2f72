"""What is there to show of a decision.

What devices trade, what a promise costs, how replicas follow traffic, where a capacity lies?
"""

from dataclasses import dataclass

from inferometer.records.types import Caution
from inferometer.report.rate_views import RatePoint
from inferometer.report.tables import TextTable
from inferometer.stats.estimate import Estimate, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class TradePoint:
    """The replicas of one device at one load."""

    device: str
    offered_requests_per_s: float
    tokens_per_s_per_user: Estimate
    device_tokens_per_s: Estimate
    """Output, per device."""
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitCost:
    """What the traffic costs on one device under limits of this strictness."""

    device: str
    limit_ratio: float
    objective: str
    n_replicas: int
    usd_per_hour: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCourse:
    """The replicas of one policy over time."""

    name: str
    n_replicas: tuple[int, ...]
    """Ready in each window."""
    usd: float | None
    kept_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CourseView:
    """Traffic that changes, and who follows it how."""

    window_s: float
    rates_per_s: tuple[float, ...]
    policies: tuple[PolicyCourse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePoint:
    """One question of a search for a capacity, in order."""

    offered_load: float
    effort: int
    verdict: Verdict
    margin_ratio: float | None
    """None where the server cannot keep up: beyond all limits."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionView:
    """All that a page on a decision shows; what a decision does not have is empty."""

    title: str
    subtitle: str
    answers: tuple[tuple[str, str], ...]
    tables: tuple[TextTable, ...] = ()
    trades: tuple[TradePoint, ...] = ()
    limit_costs: tuple[LimitCost, ...] = ()
    rates: tuple[RatePoint, ...] = ()
    """Of the pick."""
    objective: str = ""
    course: CourseView | None = None
    probes: tuple[ProbePoint, ...] = ()
    unit: str = "requests/s"
    """Of the probes' loads."""
    kept_load: float | None = None
    broken_load: float | None = None
    facts: tuple[tuple[str, str], ...] = ()
    cautions: tuple[Caution, ...] = ()
    tool_version: str
