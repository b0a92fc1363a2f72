"""In which regime is a running server, and when does it change?

Idle, healthy, or one or more conditions: each has a criterion over the last seconds, begins when it
is met and ends when it was not for a while, so that one line is printed for each change.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
import scipy

from inferometer.decide.watching.drift import Alarm, Drifts
from inferometer.decide.watching.intervals import Interval
from inferometer.records.columns import F64

Condition: TypeAlias = Literal[
    "idle",
    "overloaded",
    "kv_full",
    "max_num_seqs_full",
    "preempting",
    "restarted",
    "unreachable",
    "several_servers",
    "slower",
    "faster",
    "cache_hits_lost",
    "acceptance_dropped",
]
WORDS: Final[dict[Condition, str]] = {
    "idle": "idle: nothing to do",
    "overloaded": "overloaded: the queue grows",
    "kv_full": "KV cache full: requests wait for blocks",
    "max_num_seqs_full": "batch full (max_num_seqs): requests wait for a place",
    "preempting": "preempting: requests give up their KV blocks and are computed again",
    "restarted": "restarted: counters began anew",
    "unreachable": "unreachable: its metrics are not answered",
    "several_servers": "several servers: they answer at this address in turn; watch each at its own",
    "slower": "slower than it was at this load",
    "faster": "faster than it was at this load",
    "cache_hits_lost": "prefix cache hits lost",
    "acceptance_dropped": "fewer drafted tokens accepted",
}

_HOLD_S: Final = 10.0
_MOST_FRACTION: Final = 0.8
"""Share of the time in which a condition must hold."""
_SEEN_FRACTION: Final = 0.4
"""Of the time, where the requests that ended say so too ..."""
_N_WAITING: Final = 2.0
"""... in the mean."""
_IDLE_S: Final = 20.0
_OVER_S: Final = 15.0
"""A condition whose criterion was not met for so long has ended."""
_GROWTH_S: Final = (20.0, 60.0, 180.0)
_GROWTH_SIGMAS: Final = 4.0
_KV_FULL_FRACTION: Final = 0.9
_PLATEAU_RATIO: Final = 0.05
_N_PREEMPTED: Final = 3
_N_MISSED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A condition that began or ended."""

    at_s: float
    """Since the watching began."""
    condition: Condition
    has_begun: bool
    residual_ratio: float | None = None
    """For a drift: measured / expected - 1 of step times, measured - expected of shares."""
    since_s: float | None = None
    """For a drift: its start by the cumulative sum, which is known only later."""


class Regimes:
    """One server's conditions, interval by interval."""

    def __init__(self) -> None:
        self.drifts = Drifts()
        self.conditions: dict[Condition, float] = {}
        """Those that are on, and since when."""
        self._recent = deque[Interval]()
        self._met_s: dict[Condition, float] = {}
        self._most_running = 0.0
        self._n_missed = 0

    def take(self, interval: Interval) -> tuple[Change, ...]:
        """Add an interval; the conditions that begin or end with it."""
        at_s = interval.at_s
        changes: list[Change] = []
        self._n_missed = 0
        changes += self._set("unreachable", at_s, is_on=False)
        changes += self._set("several_servers", at_s, is_on=False)
        if interval.is_restarted:
            changes += self._all_over(at_s)
            changes.append(Change(at_s=at_s, condition="restarted", has_begun=True))
            self._recent.clear()
            self._most_running = 0.0
        changes += [self._drifted(alarm, at_s) for alarm in self.drifts.take(interval)]
        if interval.is_restarted:
            return tuple(changes)
        self._recent.append(interval)
        while self._recent[-1].at_s - self._recent[0].at_s > _GROWTH_S[-1]:
            self._recent.popleft()
        self._most_running = max(self._most_running, interval.running)
        for condition, is_met in self._criteria().items():
            if is_met:
                self._met_s[condition] = at_s
            is_over = at_s - self._met_s.get(condition, -_OVER_S) >= _OVER_S
            if is_met or is_over or condition == "idle":
                changes += self._set(condition, at_s, is_on=is_met)
        return tuple(changes)

    def miss(self, at_s: float) -> tuple[Change, ...]:
        """There was no answer."""
        self._n_missed += 1
        if self._n_missed < _N_MISSED or "unreachable" in self.conditions:
            return ()
        self._recent.clear()
        return (
            *self._all_over(at_s),
            *self._set("unreachable", at_s, is_on=True),
        )

    def mix(self, at_s: float) -> tuple[Change, ...]:
        """Pages of several servers alternate, so that no regime is known."""
        if "several_servers" in self.conditions:
            return ()
        self._recent.clear()
        self.drifts = Drifts()
        return (
            *self._all_over(at_s),
            *self._set("several_servers", at_s, is_on=True),
        )

    def _criteria(self) -> dict[Condition, bool]:
        last = self._within(_HOLD_S)
        waited = [one for one in last if one.waiting >= 1]
        is_waiting = self._spans(last, _HOLD_S) and _do_wait(last, waited)
        is_kv_high = _is_kv_high(waited)
        preempted = [one.n_preempted or 0.0 for one in last]
        most = (1 - _PLATEAU_RATIO) * self._most_running
        is_plateau = _shared_s(waited, lambda one: one.running >= most) >= _MOST_FRACTION
        is_preempting = sum(preempted) >= _N_PREEMPTED and sum(map(bool, preempted)) > 1
        return {
            "idle": self._is_idle(),
            "preempting": is_preempting,
            "kv_full": is_waiting and is_kv_high,
            "max_num_seqs_full": is_waiting and is_plateau and not is_kv_high and not is_preempting,
            "overloaded": is_waiting and any(self._is_growing(span_s) for span_s in _GROWTH_S),
        }

    def _is_idle(self) -> bool:
        last = self._within(_IDLE_S)
        return self._spans(last, _IDLE_S) and not any(
            one.running or one.waiting or one.output_tokens for one in last
        )

    def _is_growing(self, span_s: float) -> bool:
        """Did the queue grow beyond chance, for independent arrivals and departures?"""
        last = self._within(span_s)
        grown = last[-1].waiting - last[0].waiting
        moved = sum(2 * one.n_finished for one in last) + abs(grown)
        return self._spans(last, span_s) and grown > max(5.0, _GROWTH_SIGMAS * moved**0.5)

    def _within(self, span_s: float) -> list[Interval]:
        since_s = self._recent[-1].at_s - span_s
        return [one for one in self._recent if one.at_s >= since_s]

    @staticmethod
    def _spans(last: list[Interval], span_s: float) -> bool:
        """Do these intervals cover the span, up to one interval?"""
        return last[-1].at_s - last[0].at_s + last[0].took_s >= span_s

    def _drifted(self, alarm: Alarm, at_s: float) -> Change:
        if alarm.is_on:
            self.conditions[alarm.name] = alarm.since_s
        else:
            self.conditions.pop(alarm.name, None)
        return Change(
            at_s=at_s,
            condition=alarm.name,
            has_begun=alarm.is_on,
            residual_ratio=alarm.residual_ratio,
            since_s=alarm.since_s,
        )

    def _set(self, condition: Condition, at_s: float, *, is_on: bool) -> list[Change]:
        if is_on == (condition in self.conditions):
            return []
        if is_on:
            self.conditions[condition] = at_s
        else:
            del self.conditions[condition]
        return [Change(at_s=at_s, condition=condition, has_begun=is_on)]

    def _all_over(self, at_s: float) -> list[Change]:
        """End all conditions, since the state is unknown."""
        return [
            change
            for condition in tuple(self.conditions)
            for change in self._set(condition, at_s, is_on=False)
        ]


def _shared_s(intervals: list[Interval], is_met: Callable[[Interval], bool]) -> float:
    """Share of the intervals' time in which the condition holds; 0 without intervals.

    By time and not by number: a watcher that is late looks again at once to catch up.
    """
    took_s = sum(one.took_s for one in intervals)
    return sum(one.took_s for one in intervals if is_met(one)) / took_s if took_s else 0.0


def _do_wait(last: list[Interval], waited: list[Interval]) -> bool:
    """Is there a queue, other than between the end of a batch and its users' next requests?

    Scrapes may miss a queue, so the queue time of ended requests counts: seconds waited per second
    are the mean number of waiting requests (Little's law).
    """
    took_s = sum(one.took_s for one in last)
    seen = sum(one.took_s for one in waited) / took_s
    n_mean = sum(one.queued_s for one in last) / took_s
    return seen >= _MOST_FRACTION or (seen >= _SEEN_FRACTION and n_mean >= _N_WAITING)


def _is_kv_high(waited: list[Interval]) -> bool:
    """Is the KV cache full while requests wait?"""
    known = [one for one in waited if one.kv_usage is not None]
    if not known:
        return False
    mean = sum(one.took_s * (one.kv_usage or 0.0) for one in known) / sum(
        one.took_s for one in known
    )
    often = _shared_s(known, lambda one: (one.kv_usage or 0.0) >= _KV_FULL_FRACTION)
    return mean >= _KV_FULL_FRACTION or often >= _MOST_FRACTION


# How long until a limit is missed, if a latency goes on changing as it does now?
# The slope is that of its means in parts of the window; the percentile moves with the mean, which
# is a lower bound: percentiles of a growing queue grow at least as fast. A queue is a random walk
# with a drift: how it goes on is as uncertain as how it came here, and least squares, which take
# the parts for independent, gave intervals that held 60 % of what happened.


_N_PARTS: Final = 10
_CONFIDENCE: Final = 0.9


class Breach(NamedTuple):
    """Seconds until the limit is missed: a 90 % interval."""

    soonest_s: float
    latest_s: float


def part_means(at_s: F64, n: F64, total_s: F64) -> tuple[F64, F64]:
    """Middles and means of the window's parts that have observations; of cumulated counts."""
    edges = np.linspace(at_s[0], at_s[-1], _N_PARTS + 1)
    rows = np.unique(np.searchsorted(at_s, edges))
    rows = rows[rows < len(at_s)]
    counts, totals = np.diff(n[rows]), np.diff(total_s[rows])
    middles = (at_s[rows][1:] + at_s[rows][:-1]) / 2
    known = counts > 0
    return middles[known], totals[known] / counts[known]


def time_to_breach(at_s: F64, means_s: F64, now_s: float, limit_s: float) -> Breach | None:
    """Time until the percentile reaches its limit; None: no significant slope above 0.

    Example
    -------
    >>> at_s = np.arange(6.0) * 10
    >>> time_to_breach(at_s, 0.1 + at_s / 100, 0.7, 1.2)
    Breach(soonest_s=50.0, latest_s=50.0)
    """
    if now_s > limit_s:
        return Breach(0.0, 0.0)
    if len(at_s) < 4:
        return None
    return _first_passage(at_s, means_s, limit_s - now_s)


def _first_passage(at_s: F64, means_s: F64, left_s: float) -> Breach | None:
    """Time when a random walk with drift reaches ``left_s`` above now, with its bounds.

    After t it has moved by drift * t, give or take q * sd * sqrt(t + t^2 / span): by the steps to
    come, and by the drift, which those of the ``span`` seen tell. Both bounds solve
    (left - drift t)^2 = q^2 sd^2 (t + t^2 / span).
    """
    took_s = np.diff(at_s)
    span_s = float(took_s.sum())
    drift = float(means_s[-1] - means_s[0]) / span_s
    freedom = took_s.size - 1
    variance = float(((np.diff(means_s) - drift * took_s) ** 2 / took_s).sum()) / freedom
    scaled = float(scipy.special.stdtrit(freedom, 0.5 + _CONFIDENCE / 2)) ** 2 * variance
    square, linear = drift**2 - scaled / span_s, 2 * left_s * drift + scaled
    if drift <= 0 or square <= 0:  # a drift of 0 is inside its interval
        return None
    root = (linear**2 - 4 * square * left_s**2) ** 0.5
    soonest_s, latest_s = ((linear + sign * root) / (2 * square) for sign in (-1, 1))
    return Breach(round(soonest_s, 3), round(latest_s, 3))
