"""How does traffic change over time, and how many replicas are there for it.

Under a policy, with replicas that take time to start?

Time falls into windows. A policy says for each window how many replicas are paid for; one is ready
when it has been paid for as long as a start takes. So *ready in window i* is the least that was
paid for in window i and the windows of a start before it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from inferometer.inputs.workload.plan import I64, NONE, RequestPlan
from inferometer.units import NS_PER_S

MOST_WINDOWS: Final = 96
_SHORTEST_WINDOW_S: Final = 30.0
_HOLD_S: Final = 300.0
"""How long a policy that reacts waits before it lets replicas go: the Kubernetes autoscaler's
default stabilisation."""


class Course(NamedTuple):
    """Requests, each in the window in which it comes.

    Those that follow another are counted with the first of their session.
    """

    plan: RequestPlan
    window_s: float
    window_index: I64
    """(N) Of each request."""
    n_windows: int

    @property
    def rates_per_s(self) -> tuple[float, ...]:
        """Of the requests of each window."""
        counts = np.bincount(self.window_index, minlength=self.n_windows)
        return tuple((counts / self.window_s).tolist())

    @property
    def span_s(self) -> float:
        """Of all windows."""
        return self.n_windows * self.window_s


def course_of(plan: RequestPlan, window_s: float | None = None) -> Course:
    """The course of these requests, in windows of this length, or of one that gives at most ``MOST_WINDOWS``."""
    arrival_ns = plan.arrival_ns.astype(np.int64)
    span_s = int(arrival_ns.max()) / NS_PER_S
    width_s = window_s or max(span_s / MOST_WINDOWS, _SHORTEST_WINDOW_S)
    n_windows = max(1, math.ceil(span_s / width_s))
    window = np.minimum(arrival_ns // round(width_s * NS_PER_S), n_windows - 1)
    for row in np.flatnonzero(plan.follows != NONE).tolist():
        window[row] = window[plan.follows[row]]
    return Course(plan, width_s, window, n_windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What a policy knows and may do."""

    capacities_per_s: tuple[float, ...]
    """The highest rate that 1, 2, … replicas carry within the promise."""
    target_fraction: float = 0.7
    """Of what replicas carry: a policy that reacts keeps them below it."""
    start_up_s: float = 180.0
    window_s: float

    @property
    def n_most(self) -> int:
        """As many as there can be."""
        return len(self.capacities_per_s)

    @property
    def n_start_windows(self) -> int:
        """A start takes so many windows."""
        return math.ceil(self.start_up_s / self.window_s)

    def needed(self, rate_per_s: float) -> int:
        """The fewest replicas that carry this rate; all there are where none do."""
        enough = (
            n for n, capacity in enumerate(self.capacities_per_s, start=1) if capacity >= rate_per_s
        )
        return next(enough, self.n_most)


class Schedule(NamedTuple):
    """How many replicas are paid for, and ready, in each window?"""

    paid: tuple[int, ...]
    ready: tuple[int, ...]


Policy = Callable[[Sequence[float], Scaling], Schedule]
"""(rate of each window, what may be done) -> replicas"""


def static_peak(rates_per_s: Sequence[float], scaling: Scaling) -> Schedule:
    """As many as the busiest window needs, always."""
    n_replicas = scaling.needed(max(rates_per_s))
    return _schedule([n_replicas] * len(rates_per_s), scaling)


def scheduled(rates_per_s: Sequence[float], scaling: Scaling) -> Schedule:
    """As many as each window needs, started in time.

    For traffic that is known beforehand, as a day that is like the last one.
    """
    need = [scaling.needed(rate) for rate in rates_per_s]
    ahead = scaling.n_start_windows
    return _schedule([max(need[i : i + ahead + 1]) for i in range(len(need))], scaling)


def target_utilization(rates_per_s: Sequence[float], scaling: Scaling) -> Schedule:
    """As many as would have carried the last window's rate at the target share of their capacity."""
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
    """The most that was wanted within the time for which replicas are held."""
    n_windows = max(math.ceil(_HOLD_S / scaling.window_s), 1)
    return [max(wanted[max(i - n_windows + 1, 0) : i + 1]) for i in range(len(wanted))]


def _schedule(paid: Sequence[int], scaling: Scaling) -> Schedule:
    """Before the first window there were as many as in it."""
    n_before = scaling.n_start_windows
    return Schedule(
        tuple(paid), tuple(min(paid[max(i - n_before, 0) : i + 1]) for i in range(len(paid)))
    )
