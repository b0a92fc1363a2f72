"""What does a sizing of groups answer: the number of each, whose requests they get, and how these fare?"""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from inferometer.records.request_summaries import Percentile
from inferometer.stats.estimate import Verdict

Routing: TypeAlias = Literal["rules", "class", "weighted"]
"""What decides the routing: the file's rules, or cost, for whole classes or parts."""
ALL_GROUPS: Final = "all"
"""Name of the row of all groups together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpannedLatency:
    """A percentile at likely step times, and its range over the other plausible servers."""

    seen: Percentile
    least_s: float
    """Lowest end of the percentile's intervals over all servers."""
    most_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FewerRow:
    """Results of a group's requests with one replica less."""

    n_replicas: int
    verdict: Verdict
    """On the server that decides: of the draws the slowest but one, else the likely or slow one."""
    likely_verdict: Verdict
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """One group, or all (``ALL_GROUPS``): its replicas, and results of its own requests."""

    name: str
    rule: str
    """Rule of the group's requests, in words."""
    share_fraction: float
    """Share of all requests."""
    requests_per_s: float | None
    """None of users, who send as they are served."""
    model_id: str
    hardware: str
    parallelism: str
    weights_dtype: str
    n_replicas: int | None
    """None: no number meets the SLO, or none was found in time."""
    n_devices: int | None
    usd_per_hour: float | None
    """None where the price is unknown."""
    verdict: Verdict
    ttft: SpannedLatency | None
    """At the percentile of the SLO, or the 95th."""
    tpot: SpannedLatency | None
    e2e: SpannedLatency | None
    in_flight_load: float | None
    """Requests in one replica on average."""
    weakest: str | None
    """Nearest its limit at the likely step times, or why no number meets the SLO."""
    fewer: FewerRow | None
    """None where there is none less, or time was over."""
    users_load: float | None = None
    """Users of this group; None in an open loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedClass:
    """A class of requests, or a part of one, and the group that gets it."""

    name: str
    group: str
    weight_fraction: float
    """Share of the class's requests that the same groups can take."""
    takers: tuple[str, ...]
    """Groups whose rules accept it and whose contexts are long enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedGroups:
    """Replicas of each group; latencies and verdicts are of all groups together."""

    file: str
    rows: tuple[GroupRow, ...]
    whole: GroupRow
    decided_by: Literal["likely", "draws", "ends"]
    """On which servers the SLO must be met: at the likely step times alone, at these and in 90 %
    of the draws, or at both ends of their interval too."""
    n_servers: int
    """Number of plausible servers that were simulated, the likely one included."""
    n_requests: int
    """Requests of the simulation at likely step times; 0: there was none."""
    next_step: str | None
    routing: Routing = "rules"
    routes: tuple[RoutedClass, ...] = ()
    """Routing of classes where the file's rules do not decide it."""
    n_ways_sized: int = 0
    """Pairs of a group and a set of classes that were sized, to find the cheapest."""
    is_late: bool = False
    """Did the time limit leave out routings that may cost less?"""
    unsplit_usd_per_hour: float | None = None
    """Cost of the cheapest routing without splits, where one with splits costs less."""
