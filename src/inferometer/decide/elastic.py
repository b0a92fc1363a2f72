"""What does changing traffic cost if replicas come and go with it, and how often is the SLO met?

Every policy's replicas are simulated whole, with all requests at their instants. Replicas that come
and go are a cluster whose router sends the requests of each window to the least loaded of those
that are ready in it (the simulator's class-aware router, a window being a class): one that goes
gets no more requests and finishes those that it has, queues outlast their window, nothing is
stationary. What is simplified: replicas change at the edges of windows, and one that comes back
finds its prefix cache as it left it.

Time falls into windows. A policy says for each window how many replicas are paid for; one is ready
when it has been paid for as long as a start takes. So *ready in window i* is the least that was
paid for in window i and the windows of a start before it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from inferometer.decide.probing import fleet_by_class, locate, probe_of, run_plan
from inferometer.decide.sizing_types import SizedKind, SizingQuestion
from inferometer.errors import SpecError
from inferometer.inputs.workload.plan import NONE, RequestPlan
from inferometer.records import latencies
from inferometer.records.columns import I64
from inferometer.records.request_summaries import Judgement, judge_objective
from inferometer.records.types import RequestTable, Run
from inferometer.units import NS_PER_S, format_duration

MOST_WINDOWS: Final = 96
_SHORTEST_WINDOW_S: Final = 30.0
_LEAST_SPAN_S: Final = 1e-3
"""Least span, for requests that all arrive at once."""
_LAST_GAP_RATIO: Final = 1.1
"""Gap of the last request to the end of the traffic, in mean gaps."""
_MOST_STATED_WINDOWS: Final = 10_080
"""A week in minutes."""
_HOLD_S: Final = 300.0
"""Delay before a reactive policy stops replicas: the Kubernetes autoscaler's default."""
_FIRST_SIZES: Final = 4
_SIZE_RATIO: Final = 1.5
_LEAST_SHARE: Final = 1 / 16
"""Share of the guess that is used where no load was shown to meet the SLO."""
_MOST_ROUNDS: Final = 12
_S_PER_HOUR: Final = 3600.0


class Course(NamedTuple):
    """Requests with the window of their arrival.

    Those that follow another are counted with the first of their session.
    """

    plan: RequestPlan
    window_s: float
    window_index: I64
    """(N) Of each request."""
    n_windows: int

    @property
    def rates_per_s(self) -> tuple[float, ...]:
        """Request rate of each window."""
        counts = np.bincount(self.window_index, minlength=self.n_windows)
        return tuple((counts / self.window_s).tolist())

    @property
    def span_s(self) -> float:
        """Length of all windows."""
        return self.n_windows * self.window_s


def course_of(plan: RequestPlan, window_s: float | None = None) -> Course:
    """The course of these requests, in windows of this length, or of one that gives at most ``MOST_WINDOWS``.

    Raises
    ------
    SpecError
        A window is longer than the traffic, whose rate it would dilute, or one of too many.
    """
    arrival_ns = plan.arrival_ns.astype(np.int64)
    span_s = max(int(arrival_ns.max()) / NS_PER_S, _LEAST_SPAN_S)
    least_s = span_s / _MOST_STATED_WINDOWS
    if window_s is not None and not least_s <= window_s <= _LAST_GAP_RATIO * span_s:
        raise SpecError(
            f"windows of {format_duration(window_s)} in traffic of {format_duration(span_s)}",
            where="--window",
            allowed=f"{format_duration(least_s)} to {format_duration(span_s)}",
            try_="the same command without --window",
        )
    width_s = min(window_s or max(span_s / MOST_WINDOWS, _SHORTEST_WINDOW_S), span_s)
    n_windows = max(1, math.ceil(span_s / width_s))
    window = np.minimum(arrival_ns // round(width_s * NS_PER_S), n_windows - 1)
    for row in np.flatnonzero(plan.follows != NONE).tolist():
        window[row] = window[plan.follows[row]]
    return Course(plan, width_s, window, n_windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Capacities, start-up time and limits that a scaling policy works with."""

    capacities_per_s: tuple[float, ...]
    """Capacity within the SLO of 1, 2, … replicas."""
    target_fraction: float = 0.7
    """Share of the capacity below which a reactive policy holds the load."""
    start_up_s: float = 180.0
    window_s: float

    @property
    def n_most(self) -> int:
        """The largest number of replicas."""
        return len(self.capacities_per_s)

    @property
    def n_start_windows(self) -> int:
        """The number of windows that a start takes."""
        return math.ceil(self.start_up_s / self.window_s)

    def needed(self, rate_per_s: float) -> int:
        """The fewest replicas with this capacity; all where none suffice."""
        enough = (
            n for n, capacity in enumerate(self.capacities_per_s, start=1) if capacity >= rate_per_s
        )
        return next(enough, self.n_most)


class Schedule(NamedTuple):
    """Replicas that are paid for, and that are ready, in each window."""

    paid: tuple[int, ...]
    ready: tuple[int, ...]


Policy = Callable[[Sequence[float], Scaling], Schedule]
"""(rate of each window, scaling) -> replicas"""


def static_peak(rates_per_s: Sequence[float], scaling: Scaling) -> Schedule:
    """A constant number of replicas: what the busiest window needs."""
    n_replicas = scaling.needed(max(rates_per_s))
    return _schedule([n_replicas] * len(rates_per_s), scaling)


def scheduled(rates_per_s: Sequence[float], scaling: Scaling) -> Schedule:
    """The replicas that each window needs, started ahead of it.

    For traffic that is known beforehand, as a day that is like the last one.
    """
    need = [scaling.needed(rate) for rate in rates_per_s]
    ahead = scaling.n_start_windows
    return _schedule([max(need[i : i + ahead + 1]) for i in range(len(need))], scaling)


def target_utilization(rates_per_s: Sequence[float], scaling: Scaling) -> Schedule:
    """Replicas for the last window's rate at the target share of their capacity."""
    seen = [rates_per_s[0], *rates_per_s[:-1]]
    return _schedule(
        _held([scaling.needed(rate / scaling.target_fraction) for rate in seen], scaling), scaling
    )


def target_in_flight(
    in_flight: Sequence[float], most_each_load: float, scaling: Scaling
) -> Schedule:
    """The replicas that bring requests per replica to the target share, as of the last window.

    What was in flight depends on the replicas that there were: ask again with what came of it until
    nothing changes.
    """
    seen = [in_flight[0], *in_flight[:-1]]
    each = scaling.target_fraction * most_each_load
    wanted = [min(max(math.ceil(load / each), 1), scaling.n_most) for load in seen]
    return _schedule(_held(wanted, scaling), scaling)


def _held(wanted: Sequence[int], scaling: Scaling) -> list[int]:
    """The largest number wanted within the stabilisation time."""
    n_windows = max(math.ceil(_HOLD_S / scaling.window_s), 1)
    return [max(wanted[max(i - n_windows + 1, 0) : i + 1]) for i in range(len(wanted))]


def _schedule(paid: Sequence[int], scaling: Scaling) -> Schedule:
    """A schedule; before the first window it is as in the first."""
    n_before = scaling.n_start_windows
    return Schedule(
        tuple(paid), tuple(min(paid[max(i - n_before, 0) : i + 1]) for i in range(len(paid)))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOutcome:
    """Cost and SLO attainment of a scaling policy."""

    name: str
    schedule: Schedule
    judgement: Judgement
    """Judgement of all requests."""
    kept: tuple[bool, ...]
    """Do the requests of each window meet the SLO (also where there are none)?"""
    replica_s: float
    """Paid for: from the start of a replica until the last request that it had is done."""
    usd: float | None
    has_converged: bool
    """False where a policy that depends on what came of it did not settle: its numbers are of
    the last round."""

    @property
    def slo_met_fraction(self) -> float:
        """Share of the time in which the SLO is met."""
        return sum(self.kept) / len(self.kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """Replicas of one kind under traffic that changes."""

    question: SizingQuestion
    kind: SizedKind
    course: Course
    scaling: Scaling

    def outcomes(self) -> tuple[PolicyOutcome, ...]:
        """The outcome of each policy."""
        rates = self.course.rates_per_s
        planned = {
            "static peak": static_peak,
            "scheduled": scheduled,
            "target utilisation": target_utilization,
        }
        found = tuple(
            self._outcome(name, schedule := policy(rates, self.scaling), self.run(schedule))
            for name, policy in planned.items()
        )
        return (*found, self._settled(found[-1].schedule))

    def run(self, schedule: Schedule) -> Run:
        """Simulate all requests on the replicas that are ready when they arrive."""
        ready = tuple(tuple(range(n)) for n in schedule.ready)
        plan = self.course.plan._replace(class_index=self.course.window_index.astype(np.int32))
        return run_plan(fleet_by_class(self.question, self.kind.candidate, ready), plan)

    def _settled(self, first: Schedule) -> PolicyOutcome:
        """The outcome of the policy that reacts to requests in flight.

        Asked again with what came of it until its replicas are those that it saw.
        """
        most_each = self.kind.sized_at.served.in_flight_load
        schedule, has_converged = first, False
        for _ in range(_MOST_ROUNDS):
            run = self.run(schedule)
            following = target_in_flight(
                _in_flight_at_ends(run, self.course), most_each, self.scaling
            )
            has_converged = following == schedule
            if has_converged:
                break
            schedule = following
        return replace(
            self._outcome("target in flight", schedule, self.run(schedule)),
            has_converged=has_converged,
        )

    def _outcome(self, name: str, schedule: Schedule, run: Run) -> PolicyOutcome:
        replica_s = _paid_s(run, schedule, self.course)
        return PolicyOutcome(
            name=name,
            schedule=schedule,
            judgement=judge_objective(run, self.question.objective),
            kept=kept_windows(run, self.question, self.course),
            replica_s=replica_s,
            usd=_usd(self.kind, max(schedule.paid), replica_s, self.course.span_s),
            has_converged=True,
        )


def capacities_of(
    question: SizingQuestion, kind: SizedKind, peak_per_s: float
) -> tuple[float, ...]:
    """Capacity within the SLO of 1, 2, … replicas, up to the peak's need and the sized number.

    Located by short runs of some numbers, per replica straight between them; scaled by what long
    runs left of the sized number's.
    """
    sizes, found = list[int](), list[float]()
    proof = kind.sized_at.capacity
    sure = (
        min(1.0, (proof.met_load or 0.0) / proof.located_load)
        if proof.located_load and proof.met_load
        else 1.0
    )
    size, guess_per_s = 1, question.offered_load / kind.n_replicas
    while not found or (found[-1] * sure < peak_per_s or sizes[-1] < kind.n_replicas):
        located = (
            locate(probe_of(question, kind.candidate, question.pace, size), guess_per_s * size)
            or guess_per_s * size * _LEAST_SHARE
        )
        sizes.append(size)
        found.append(located)
        guess_per_s = located / size
        size = max(size + 1, round(size * _SIZE_RATIO)) if size >= _FIRST_SIZES else size + 1
    numbers = np.arange(1, sizes[-1] + 1)
    each = np.interp(numbers, sizes, np.array(found) / np.array(sizes))
    return tuple((np.maximum.accumulate(each * numbers) * sure).tolist())


def kept_windows(run: Run, question: SizingQuestion, course: Course) -> tuple[bool, ...]:
    """For each window: is each percentile within its limit?"""
    requests = run.requests
    if requests is None:
        return ()
    window = course.window_index[requests.request_index]
    kept = list[bool]()
    for index in range(course.n_windows):
        rows = window == index
        judged = (
            judge_objective(run, question.objective, rows=rows).thresholds if rows.any() else ()
        )
        kept.append(
            all(
                one.seen is None or one.seen.seconds.value <= one.threshold.limit_s
                for one in judged
            )
        )
    return tuple(kept)


def _in_flight_at_ends(run: Run, course: Course) -> list[float]:
    """Requests in flight at the end of each window."""
    requests = run.requests
    if requests is None:
        return [0.0] * course.n_windows
    ends_ns = _edges_ns(course)[1:]
    is_done = latencies.is_one_of(requests, latencies.COMPLETED)
    came = np.searchsorted(np.sort(requests.intended_send_ns[is_done]), ends_ns, side="right")
    left = np.searchsorted(np.sort(requests.finished_ns[is_done]), ends_ns, side="right")
    return [float(n) for n in (came - left).tolist()]


def _paid_s(run: Run, schedule: Schedule, course: Course) -> float:
    """Paid seconds of all replicas: from start to the end of windows or of the last request."""
    requests, edges_ns = run.requests, _edges_ns(course)
    total_ns = 0
    for replica in range(max(schedule.paid)):
        is_paid = np.array([n > replica for n in schedule.paid])
        for first, last in _stretches(is_paid):
            busy_until_ns = (
                0
                if requests is None
                else _last_end_ns(run, requests, replica, edges_ns[first], edges_ns[last + 1])
            )
            total_ns += max(int(edges_ns[last + 1]), busy_until_ns) - int(edges_ns[first])
    return total_ns / NS_PER_S


def _usd(kind: SizedKind, n_most: int, replica_s: float, span_s: float) -> float | None:
    """Rented replicas cost while they are there.

    Bought devices always cost their capital, for the largest number used, and power while on.
    """
    offer, n_devices = kind.candidate.offer, kind.candidate.n_devices
    if offer.usd_per_hour is None:
        return None
    if offer.owned is None or offer.usd_per_hour != offer.owned.usd_per_hour:
        return offer.usd_per_hour * n_devices * replica_s / _S_PER_HOUR
    capital_usd_per_hour = offer.owned.usd_per_hour - offer.owned.power_usd_per_hour
    spent_usd = capital_usd_per_hour * n_most * span_s + offer.owned.power_usd_per_hour * replica_s
    return n_devices * spent_usd / _S_PER_HOUR


def _last_end_ns(run: Run, requests: RequestTable, replica: int, from_ns: int, to_ns: int) -> int:
    """End of the last request that the replica got in this time."""
    came_ns, ended_ns = requests.intended_send_ns, requests.finished_ns
    is_own = (came_ns >= from_ns) & (came_ns < to_ns)
    if run.visits is not None:
        is_own &= np.isin(
            requests.request_index, run.visits.request_index[run.visits.replica == replica]
        )
    return int(ended_ns[is_own].max(initial=0))


def _stretches(is_on: Sequence[bool] | np.ndarray) -> list[tuple[int, int]]:
    """The first and the last of each run of True."""
    padded = np.concatenate([[False], np.asarray(is_on, np.bool_), [False]]).astype(np.int8)
    change = np.diff(padded)
    return list(
        zip(
            np.flatnonzero(change == 1).tolist(),
            (np.flatnonzero(change == -1) - 1).tolist(),
            strict=True,
        )
    )


def _edges_ns(course: Course) -> I64:
    edges_ns: I64 = np.rint(np.arange(course.n_windows + 1) * course.window_s * NS_PER_S).astype(
        np.int64
    )
    return edges_ns
