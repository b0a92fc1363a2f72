"""What is asked of a sizing, and what does it answer?"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from inferometer.decide.candidates import Candidate
from inferometer.decide.capacity import Capacity
from inferometer.decide.probing import Traffic
from inferometer.records.promises import Judgement
from inferometer.records.request_summaries import RequestSummary
from inferometer.spec.objectives import ObjectiveSpec
from inferometer.spec.workload.types import WorkloadSpec
from inferometer.stats.estimate import Verdict

Pace: TypeAlias = Literal["likely", "fast", "slow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingQuestion:
    """What is promised under which traffic?"""

    spec: WorkloadSpec
    rate_per_s: float
    objective: ObjectiveSpec
    n_requests: int = 1000
    """Of a probe at the lowest effort."""
    resolution_ratio: float = 0.05
    """Of the capacities that are shown."""

    @property
    def traffic(self) -> Traffic:
        """The requests, at any load."""
        return Traffic(spec=self.spec, n_requests=self.n_requests)


class Searched(NamedTuple):
    """The fewest replicas of one kind."""

    candidate: Candidate
    n_replicas: int | None
    """None: no number keeps the promise, or it was not searched."""
    why: str
    n_probes: int

    @property
    def usd_per_hour(self) -> float:
        """Of all replicas; infinite where there are none or nobody knows the price."""
        each = self.candidate.usd_per_hour
        return math.inf if each is None or self.n_replicas is None else each * self.n_replicas

    @property
    def n_devices(self) -> float:
        """Of all replicas; infinite where there are none."""
        return math.inf if self.n_replicas is None else self.n_replicas * self.candidate.n_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedAnswer:
    """One replica of the answer at one pace of step times."""

    step_times: Pace
    verdict: Verdict
    summary: RequestSummary
    judgement: Judgement
    capacity: Capacity
    n_replicas: int | None
    """As many as would be needed at this pace, from the capacity; None where no load keeps the promise."""


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
    likely: PacedAnswer
    fast: PacedAnswer
    slow: PacedAnswer
    rate_per_s: float
    """Of the whole traffic."""
    n_replicas_if_one_fails: int
    """One more, so that the promise is kept without any one of them."""
    output_tokens_per_s: float | None
    """Of all replicas, under this traffic."""

    @property
    def verdict(self) -> Verdict:
        """Met or missed where it is so at all three paces."""
        verdicts: set[Verdict] = {answer.verdict for answer in (self.likely, self.fast, self.slow)}
        return verdicts.pop() if len(verdicts) == 1 else "undecided"

    @property
    def headroom_fraction(self) -> float | None:
        """How much more traffic it carries at likely step times; None where its capacity is not known."""
        kept = self.likely.capacity.kept_load
        return None if kept is None else kept * self.n_replicas / self.rate_per_s - 1

    @property
    def usd_per_million_output_tokens(self) -> float | None:
        """Under this traffic, not at capacity."""
        if self.usd_per_hour is None or not self.output_tokens_per_s:
            return None
        return self.usd_per_hour / 3600 / self.output_tokens_per_s * 1e6


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

    requests_per_s: float
    n_replicas: int
    n_devices: int


__all__ = ["Bound", "Done", "Map", "Pace", "PacedAnswer", "Searched", "SizedKind", "SizingQuestion", "Task"]
