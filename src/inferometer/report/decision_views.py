"""Data of the pages of capacities and sizings.

What devices trade, what an SLO costs, how replicas follow traffic, where a capacity lies?
"""

from dataclasses import dataclass

from inferometer import __version__
from inferometer.inputs.types import Caution
from inferometer.records.request_summaries import Percentile
from inferometer.records.server_summaries import TtftParts
from inferometer.records.types import ValidityVerdict
from inferometer.stats.estimate import Estimate, Verdict

# What is there to show of several runs of requests side by side, one for each rate or number of
# users?


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint:
    """One run."""

    label: str
    concurrency: int | None
    """Users of a closed loop; None in an open loop."""
    offered_requests_per_s: float | None
    """None of a closed loop, which offers what the server takes."""
    ttft_p50: Percentile | None
    ttft_p95: Percentile | None
    tpot_p50: Percentile | None
    tpot_p95: Percentile | None
    output_tokens_per_s: Estimate | None
    completed_requests_per_s: Estimate | None
    good_requests_per_s: float | None
    """None where no objective was given."""
    ttft_parts: TtftParts | None
    """Parts of its mean TTFT; None where unknown."""
    verdict: ValidityVerdict | None
    """None for runs that are no load tests."""
    beyond: str = ""
    """For a measured point beside a curve: why its traffic is not the curve's."""
    server: str = ""
    """Which of several servers answered; '' where all runs are of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateView:
    """Data of a report on several runs of requests."""

    title: str
    subtitle: str
    answer: str
    objective: str
    """'' where none was given."""
    points: tuple[RatePoint, ...]
    """Sorted by offered rate, or by concurrency."""
    capacity_per_s: float | None = None
    traffic_per_s: float | None = None
    """The user's own."""
    measured: tuple[RatePoint, ...] = ()
    """Load tests beside simulated points."""
    interval: str = "95 % interval"
    """Meaning of bars and bands."""
    files: tuple[tuple[str, str], ...]
    tool_version: str = __version__
    cautions: tuple[Caution, ...] = ()

    @property
    def is_closed(self) -> bool:
        """Are all runs closed loops, so that the x-axis is the concurrency?"""
        return all(point.concurrency is not None for point in self.points)


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
    """Cost of the traffic on one device under limits of this strictness."""

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
    slo_met_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CourseView:
    """Varying traffic, and the policies that follow it."""

    window_s: float
    rates_per_s: tuple[float, ...]
    policies: tuple[PolicyCourse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRow:
    """One load that a search for a capacity tried, in order."""

    offered_load: float
    effort: int
    n_requests: int
    took_s: float
    """Simulated or measured."""
    verdict: Verdict
    margin_ratio: float | None
    """Nearest latency / its limit; None where the server cannot keep up, or refuses requests."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionView:
    """Data of a decision's charts; empty where there are none."""

    trades: tuple[TradePoint, ...] = ()
    limit_costs: tuple[LimitCost, ...] = ()
    rates: tuple[RatePoint, ...] = ()
    """Points of the pick."""
    objective: str = ""
    course: CourseView | None = None
    probes: tuple[ProbeRow, ...] = ()
    unit: str = "requests/s"
    """Unit of the probes' loads."""
    met_load: float | None = None
    missed_load: float | None = None
    traffic_per_s: float | None = None
    """The user's own, where loads are rates."""
