"""Types of a sizing: its question, its results, and costs per token."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from inferometer.decide.candidates import Alike, Candidate, Fleets
from inferometer.decide.capacity import Capacity, Reading, TimeLeft, no_limit
from inferometer.decide.traffic import Traffic, are_in_step
from inferometer.inputs.objectives import ObjectiveSpec
from inferometer.inputs.prices import ApiPrice
from inferometer.inputs.types import Source
from inferometer.inputs.workload.types import OpenArrivals, WorkloadSpec
from inferometer.perfmodel.steptime_terms import StepTimeArrays, shape_duration_s
from inferometer.perfmodel.types import decode_shape, prefill_shape
from inferometer.records import request_summaries
from inferometer.simulate import deployment
from inferometer.stats.estimate import Verdict


def unlimited() -> TimeLeft:
    """No limit of time."""
    return no_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingQuestion:
    """The SLO and the traffic."""

    spec: WorkloadSpec
    offered_load: float
    """Requests per second; of a closed loop its users: ``traffic.kind`` says which."""
    objective: ObjectiveSpec
    n_requests: int = 1000
    """Requests of a probe at the lowest effort."""
    resolution_ratio: float = 0.05
    """Resolution of the capacities."""
    fleets: Fleets = field(default_factory=Alike)
    """Settings of all fleets that are tried: router, gate, prefill replicas."""
    pace: deployment.Pace = "likely"
    """Step times at which the SLO must be met."""
    requests_cap: int | None = None
    """Most requests of a simulation; None: as many as decide, within the traffic's own limit."""
    time_limit: Callable[[], TimeLeft] = unlimited
    """Called where the work on a device begins: from then on it counts the seconds that are
    left."""

    @property
    def traffic(self) -> Traffic:
        """The requests, at any load."""
        return Traffic(spec=self.spec, n_requests=self.n_requests, requests_cap=self.requests_cap)

    @property
    def is_of_users(self) -> bool:
        """Is it a closed loop?"""
        return self.traffic.kind == "users"

    @property
    def are_users_in_step(self) -> bool:
        """Do users of a closed loop stay together, so that more replicas may do worse?"""
        return self.is_of_users and are_in_step(self.spec, self.offered_load)

    @property
    def is_dealt_alike(self) -> bool:
        """Is a random share of this traffic like the whole at a lower rate?"""
        arrivals = self.spec.arrivals
        is_poisson = not isinstance(arrivals, OpenArrivals) or arrivals.process == "poisson"
        return is_poisson and self.fleets.is_plain


class Searched(NamedTuple):
    """The fewest replicas of one kind."""

    candidate: Candidate
    n_replicas: int | None
    """None: no number meets the SLO, or it was not searched."""
    why: str
    n_probes: int
    margin_ratio: float | None = None
    """Last value of the nearest latency / its limit."""
    is_examined: bool = True
    """False: the time was over."""
    least_devices: int | None = None
    """Least number of devices, for a kind that was not examined."""
    is_decided: bool = True
    """False: noise leaves open whether it meets the SLO."""

    @property
    def usd_per_hour(self) -> float:
        """Price of all replicas; infinite where there are none or the price is unknown."""
        known = None if self.n_replicas is None else self.candidate.usd_per_hour_of(self.n_replicas)
        return math.inf if known is None else known

    @property
    def n_devices(self) -> float:
        """Devices of all replicas; infinite where there are none."""
        return math.inf if self.n_replicas is None else self.candidate.devices_of(self.n_replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBy:
    """Results of a long simulation of all replicas behind their router."""

    n_replicas: int
    verdict: Verdict
    summary: request_summaries.RequestSummary
    judgement: request_summaries.Judgement
    in_flight_load: float
    """Requests that are in one replica on average, waiting or running."""
    users_requests_per_s: float | None = None
    """Completed rate of a closed loop while all users are active; None in an open loop."""
    nearest: Reading | None = None
    """Reading nearest to its limit, classes' own included; None: no class has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedAnswer:
    """The answer at one pace of step times."""

    step_times: deployment.Pace
    served: ServedBy
    capacity: Capacity
    """Capacity of all replicas together."""
    n_replicas: int | None
    """Replicas that this pace needs, by the capacity; None where no load meets the SLO."""


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
    """Whole traffic: requests per second, or users."""
    without_one: ServedBy | None
    """Results with one replica less under the same traffic; None with one replica."""
    met_counts: tuple[int, ...] = ()
    missed_counts: tuple[int, ...] = ()
    """Numbers of replicas whose long runs meet the SLO, and miss it."""

    @property
    def is_of_users(self) -> bool:
        """Is the load a number of users?"""
        return self.sized_at.capacity.kind == "users"

    @property
    def requests_per_s(self) -> float:
        """Rate of the whole traffic; in a closed loop, the completed rate."""
        of_users = self.sized_at.served.users_requests_per_s
        return self.offered_load if of_users is None else of_users

    @property
    def sized_at(self) -> PacedAnswer:
        """Answer at the step times for which the replicas were counted."""
        return self.paces[self.asked_pace]

    @property
    def n_replicas_if_one_fails(self) -> int:
        """Replicas that still meet the SLO when one fails: one more than needed."""
        can_lose_one = self.without_one is not None and self.without_one.verdict == "met"
        return self.n_replicas if can_lose_one else self.n_replicas + 1

    @property
    def verdict(self) -> Verdict:
        """Met or missed where all three paces agree, else undecided."""
        verdicts: set[Verdict] = {answer.served.verdict for answer in self.paces.values()}
        return verdicts.pop() if len(verdicts) == 1 else "undecided"


Map = Callable[[Callable[["Task"], "Done"], Iterable["Task"]], Iterable["Done"]]
"""``map``, in this process or in many."""


class Task(NamedTuple):
    """All candidates of one device."""

    question: SizingQuestion
    candidates: tuple[Candidate, ...]


class Done(NamedTuple):
    """Results of a task."""

    best: SizedKind | None
    searched: tuple[Searched, ...]


class Bound(NamedTuple):
    """Upper bound on the load of a kind of replica, its latency aside."""

    most_load: float
    n_replicas: int
    n_devices: int


_S_PER_HOUR: Final = 3600.0
_MILLION: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiComparison:
    """The same traffic at an API's price."""

    price: ApiPrice
    usd_per_hour: float
    break_even_requests_per_s: float | None
    """Rate above which these replicas cost less; None: the API charges nothing."""
    is_carried: bool | None
    """Can they serve that rate? None: capacity unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs of the best replicas of a device under this traffic (not at capacity).

    None where a price or a power is unknown.
    """

    usd_per_million_output_tokens: float | None
    """If output alone paid for everything, as is usual."""
    usd_per_million_tokens: float | None
    """If each token, in or out, paid the same."""
    input_usd_per_million_tokens: float | None
    """If prompts pay for the time that they take by themselves, and …"""
    output_usd_per_million_tokens: float | None
    """… output for the time that it takes in a batch of the usual size: what a price list with
    two prices would say."""
    prompt_time_fraction: float
    output_joule_per_token: float | None
    power_from: Source | None
    apis: tuple[ApiComparison, ...]


def costs_of(kind: SizedKind, apis: tuple[ApiPrice, ...] = ()) -> Costs:
    """Costs of the traffic on these replicas."""
    served, offer = kind.sized_at.served, kind.candidate.offer
    arrays = getattr(kind.candidate.deployment.step_times, kind.asked_pace)
    share = prompt_time_fraction(arrays, served)
    tokens_in, tokens_out = mean_tokens(served)
    in_per_s, out_per_s = kind.requests_per_s * tokens_in, kind.requests_per_s * tokens_out
    power = offer.power or offer.hardware.power_watt
    return Costs(
        usd_per_million_output_tokens=_per_million(kind.usd_per_hour, out_per_s),
        usd_per_million_tokens=_per_million(kind.usd_per_hour, in_per_s + out_per_s),
        input_usd_per_million_tokens=_per_million(kind.usd_per_hour, in_per_s, share),
        output_usd_per_million_tokens=_per_million(kind.usd_per_hour, out_per_s, 1 - share),
        prompt_time_fraction=share,
        output_joule_per_token=None
        if power is None or not out_per_s
        else power.value * kind.n_devices / out_per_s,
        power_from=None if power is None else power.source,
        apis=()
        if kind.usd_per_hour is None
        else tuple(_compared(kind, kind.usd_per_hour, served, api) for api in apis),
    )


def mean_tokens(served: ServedBy) -> tuple[float, float]:
    """Tokens of a request: of its prompt, and of its output."""
    n_requests = max(served.summary.n_requests, 1)
    return served.summary.input_tokens / n_requests, served.summary.output_tokens / n_requests


def prompt_time_fraction(arrays: StepTimeArrays, served: ServedBy) -> float:
    """Share of a mean request's device time that its prompt takes.

    Its prompt takes the time of a step of its own; each token of its output takes the time of a
    step of the usual batch, shared by all in it: ``P / (P + n_out · D / batch)``.
    """
    tokens_in, tokens_out = (max(round(tokens), 1) for tokens in mean_tokens(served))
    batch = max(round(served.in_flight_load), 1)
    prompt_s = shape_duration_s(arrays, prefill_shape(batch_size=1, prompt_tokens=tokens_in))
    usual = decode_shape(batch_size=batch, context_tokens=tokens_in + tokens_out // 2)
    output_s = tokens_out * shape_duration_s(arrays, usual) / batch
    return prompt_s / (prompt_s + output_s)


def _per_million(
    usd_per_hour: float | None, tokens_per_s: float, share_fraction: float = 1.0
) -> float | None:
    if usd_per_hour is None or not tokens_per_s:
        return None
    return usd_per_hour * share_fraction / _S_PER_HOUR / tokens_per_s * _MILLION


def _compared(
    kind: SizedKind, own_usd_per_hour: float, served: ServedBy, api: ApiPrice
) -> ApiComparison:
    tokens_in, tokens_out = mean_tokens(served)
    usd_per_request = (
        tokens_in * api.input_usd_per_million_tokens
        + tokens_out * api.output_usd_per_million_tokens
    ) / _MILLION
    break_even = own_usd_per_hour / _S_PER_HOUR / usd_per_request if usd_per_request else None
    kept = kind.sized_at.capacity.met_load
    if kept is not None and kind.is_of_users:
        kept *= kind.requests_per_s / kind.offered_load
    return ApiComparison(
        price=api,
        usd_per_hour=kind.requests_per_s * usd_per_request * _S_PER_HOUR,
        break_even_requests_per_s=break_even,
        is_carried=None if kept is None or break_even is None else break_even <= kept,
    )
