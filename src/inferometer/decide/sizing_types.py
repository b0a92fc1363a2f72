"""What is asked of a sizing, and what does it answer?"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from inferometer.decide.candidates import Alike, Candidate, Fleets
from inferometer.decide.capacity import Capacity, TimeLeft, no_limit
from inferometer.decide.traffic import Traffic
from inferometer.inputs.objectives import ObjectiveSpec
from inferometer.inputs.workload.types import OpenArrivals, WorkloadSpec
from inferometer.records import request_summaries, slo_verdicts
from inferometer.simulate import deployment
from inferometer.stats.estimate import Verdict


def unlimited() -> TimeLeft:
    """No limit of time."""
    return no_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingQuestion:
    """What is promised under which traffic?"""

    spec: WorkloadSpec
    offered_load: float
    """Requests per second; of a closed loop its users: ``traffic.kind`` says which."""
    objective: ObjectiveSpec
    n_requests: int = 1000
    """Of a probe at the lowest effort."""
    resolution_ratio: float = 0.05
    """Of the capacities that are shown."""
    fleets: Fleets = field(default_factory=Alike)
    """What holds for all fleets that are tried: their router, a gate, prefill replicas."""
    pace: deployment.Pace = "likely"
    """At which step times the SLO is to be met."""
    requests_cap: int | None = None
    """Of a simulation; None: as many as decide it, within the traffic's own limit."""
    time_limit: Callable[[], TimeLeft] = unlimited
    """Called where the work on a device begins: from then on it counts the seconds that are
    left."""

    @property
    def traffic(self) -> Traffic:
        """The requests, at any load."""
        return Traffic(spec=self.spec, n_requests=self.n_requests, requests_cap=self.requests_cap)

    @property
    def is_of_users(self) -> bool:
        """Do users wait for an answer before they send the next request (closed loop)?"""
        return self.traffic.kind == "users"

    @property
    def is_dealt_alike(self) -> bool:
        """Is a part of this traffic, dealt at random, like the whole at a lower rate?"""
        arrivals = self.spec.arrivals
        is_poisson = not isinstance(arrivals, OpenArrivals) or arrivals.process == "poisson"
        return is_poisson and self.fleets.is_plain


class Searched(NamedTuple):
    """The fewest replicas of one kind."""

    candidate: Candidate
    n_replicas: int | None
    """None: no number keeps the promise, or it was not searched."""
    why: str
    n_probes: int
    margin_ratio: float | None = None
    """What was seen of the weakest link / its limit, last."""
    is_examined: bool = True
    """False: the time was over."""

    @property
    def usd_per_hour(self) -> float:
        """Of all replicas; infinite where there are none or nobody knows the price."""
        known = None if self.n_replicas is None else self.candidate.usd_per_hour_of(self.n_replicas)
        return math.inf if known is None else known

    @property
    def n_devices(self) -> float:
        """Of all replicas; infinite where there are none."""
        return math.inf if self.n_replicas is None else self.candidate.devices_of(self.n_replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBy:
    """All replicas behind their router under the whole traffic, simulated at length."""

    n_replicas: int
    verdict: Verdict
    summary: request_summaries.RequestSummary
    judgement: slo_verdicts.Judgement
    in_flight_load: float
    """Requests that are in one replica on average, waiting or running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedAnswer:
    """The answer at one pace of step times."""

    step_times: deployment.Pace
    served: ServedBy
    capacity: Capacity
    """Of all replicas together."""
    n_replicas: int | None
    """As many as would be needed at this pace, from the capacity; None where no load keeps the
    promise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedKind:
    """The best replicas of one device, and how sure they are."""

    hardware_id: str
    hardware: str
    layout: str
    candidate: Candidate
    n_replicas: int
    n_devices: int
    usd_per_hour: float | None
    paces: Mapping[deployment.Pace, PacedAnswer]
    asked_pace: deployment.Pace
    offered_load: float
    """Of the whole traffic: requests per second, or users."""
    without_one: ServedBy | None
    """What is left when one replica is lost, under the same traffic; None where nothing is left."""

    @property
    def is_of_users(self) -> bool:
        """Is the load users, or requests per second?"""
        return self.sized_at.capacity.kind == "users"

    @property
    def requests_per_s(self) -> float:
        """Of the whole traffic; users send as many as they are served."""
        done = self.sized_at.served.summary.completed_requests_per_s
        return self.offered_load if not self.is_of_users or done is None else done.value

    @property
    def sized_at(self) -> PacedAnswer:
        """At the step times at which the promise is to be kept."""
        return self.paces[self.asked_pace]

    @property
    def n_replicas_if_one_fails(self) -> int:
        """One more than were shown to keep the promise."""
        can_lose_one = self.without_one is not None and self.without_one.verdict == "met"
        return self.n_replicas if can_lose_one else self.n_replicas + 1

    @property
    def verdict(self) -> Verdict:
        """Met or missed where it is so at all three paces."""
        verdicts: set[Verdict] = {answer.served.verdict for answer in self.paces.values()}
        return verdicts.pop() if len(verdicts) == 1 else "undecided"

    @property
    def headroom_fraction(self) -> float | None:
        """How much more traffic it carries at the step times that it was sized for.

        None where its capacity is not known.
        """
        kept = self.sized_at.capacity.met_load
        return None if kept is None else kept / self.offered_load - 1


Map = Callable[[Callable[["Task"], "Done"], Iterable["Task"]], Iterable["Done"]]
"""``map``, in this process or in many."""


class Task(NamedTuple):
    """All candidates of one device."""

    question: SizingQuestion
    candidates: tuple[Candidate, ...]


class Done(NamedTuple):
    """What was found of them."""

    best: SizedKind | None
    searched: tuple[Searched, ...]


class Bound(NamedTuple):
    """What a kind of replica can do at most, its latency aside."""

    most_load: float
    n_replicas: int
    n_devices: int
