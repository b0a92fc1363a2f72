"""What does a sizing of groups answer: the number of each, whose requests they get, and how these fare?"""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from inferometer.records.request_summaries import Percentile
from inferometer.stats.estimate import Verdict

Routing: TypeAlias = Literal["rules", "class", "weighted"]
"""Who says which group gets a request: the file's rules, or what it costs, of whole classes or of parts."""
ALL_GROUPS: Final = "all"
"""Name of the row of all groups together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpannedLatency:
    """A percentile at the likely step times, and what it may be on the other servers."""

    seen: Percentile
    least_s: float
    """Of the interval that the noise leaves, and of the percentile on every server."""
    most_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FewerRow:
    """What one replica of a group less does with the group's requests."""

    n_replicas: int
    verdict: Verdict
    """On the server that decides: of the draws the slowest but one, else the likely or slow one."""
    likely_verdict: Verdict
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """One group of replicas, or (``ALL_GROUPS``) all of them: how many, and how its own requests fare."""

    name: str
    rule: str
    """Which requests go there, in words."""
    share_fraction: float
    """Of all requests."""
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
    """None where nobody knows a price."""
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
    """Who wait for the answers of this group; None of requests that come at a rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedClass:
    """A class of requests, or a part of one, and the group that gets it."""

    name: str
    group: str
    weight_fraction: float
    """Of the requests of this class that the same groups can take."""
    takers: tuple[str, ...]
    """These groups: their rules let it in, and their contexts are long enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedGroups:
    """How many replicas of each group; latencies and verdicts are those of all groups together."""

    file: str
    rows: tuple[GroupRow, ...]
    whole: GroupRow
    decided_by: Literal["likely", "draws", "ends"]
    """On which servers the SLO must be met: at the likely step times alone, at these and in 90 %
    of the draws, or at both ends of their interval too."""
    n_servers: int
    """Number of plausible servers that were simulated, the likely one included."""
    n_requests: int
    """Of the simulation at likely step times; 0: there was none."""
    next_step: str | None
    routing: Routing = "rules"
    routes: tuple[RoutedClass, ...] = ()
    """Who gets what, where the file's rules do not say it."""
    n_ways_sized: int = 0
    """Pairs of a group and a set of classes that were sized, to find the cheapest."""
    is_late: bool = False
    """Did the time limit leave out ways that may cost less?"""
    unsplit_usd_per_hour: float | None = None
    """Of the cheapest way that splits no class, where a split one was found to cost less."""
