"""From when to when was a run of requests in a steady state, and did it stay the same meanwhile?

Requests sent before are its warm-up: a start-up burst, caches that fill, code that compiles. Those
sent last meet a server that empties: its drain. Each is found from the latencies in order of
sending, and cut only where it differs by more than chance. Nothing is thrown away: the whole run
and its steady part are both summarised.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from inferometer.records.columns import F64, I64, Bools
from inferometer.records.latencies import Latency, end_ns, latency_samples
from inferometer.records.types import RequestTable, Run
from inferometer.stats.autocorrelated import MIN_SAMPLES
from inferometer.stats.warm_up import Trend, trend, warm_up

_TOLD_BY: Final[tuple[Latency, ...]] = ("ttft", "tpot")
"""What a queue and a full batch show in."""
_MOST_CUT_FRACTION: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyTrend:
    """Did this latency change in the steady state?"""

    latency: Latency
    trend: Trend


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """The steady part of a run."""

    start_ns: int
    """Requests that were meant to be sent from here on ..."""
    end_ns: int
    """... and up to here are of the steady state."""
    n_warm_up: int
    n_steady: int
    n_drain: int
    warm_up_shown_by: Latency | None
    """Latency with the longest warm-up; None without one."""
    is_reached: bool
    """False where half of the run or more would have to be cut: then nothing is."""
    trends: tuple[LatencyTrend, ...]

    @property
    def drifting(self) -> tuple[LatencyTrend, ...]:
        """The latencies that went on changing."""
        return tuple(one for one in self.trends if one.trend.is_drifting)

    def holds(self, requests: RequestTable) -> Bools:
        """(N) Is the request in the steady state?"""
        sent_ns = requests.intended_send_ns
        return (sent_ns >= self.start_ns) & (sent_ns <= self.end_ns)


def steady_state(run: Run) -> SteadyState | None:
    """The steady part of the run; None where it has too few requests to tell."""
    requests = run.requests
    if requests is None or len(requests.status) < MIN_SAMPLES:
        return None
    at_ns = end_ns(run)
    sent_ns = requests.intended_send_ns
    starts: list[tuple[int, Latency | None]] = [(int(sent_ns[0]), None)]
    ends = [int(sent_ns[-1])]
    for latency in _TOLD_BY:
        samples = latency_samples(requests, latency, at_ns=at_ns)
        if len(samples.rows) >= MIN_SAMPLES:
            n_first, n_last = _unlike(samples.lower_s)
            starts.append(_start(sent_ns[samples.rows], n_first, latency))
            ends.append(int(sent_ns[samples.rows][len(samples.rows) - 1 - n_last]))
    (start_ns, informed_by), last_ns = max(starts, key=lambda start: start[0]), min(ends)
    n_steady = int(((sent_ns >= start_ns) & (sent_ns <= last_ns)).sum())
    is_reached = n_steady > _MOST_CUT_FRACTION * len(sent_ns)
    if not is_reached:
        start_ns = int(sent_ns[0])
        informed_by = None
        last_ns = int(sent_ns[-1])
        n_steady = len(sent_ns)
    return SteadyState(
        start_ns=start_ns,
        end_ns=last_ns,
        n_warm_up=int((sent_ns < start_ns).sum()),
        n_steady=n_steady,
        n_drain=int((sent_ns > last_ns).sum()),
        warm_up_shown_by=informed_by,
        is_reached=is_reached,
        trends=_trends(requests, start_ns, last_ns, at_ns),
    )


def _unlike(lower_s: F64) -> tuple[int, int]:
    """The number of samples at the start, and at the end, that differ from the rest.

    Either would hide the other, or look like it.
    """
    n_first = warm_up(lower_s)
    n_last = warm_up(lower_s[n_first:][::-1])
    return warm_up(lower_s[: len(lower_s) - n_last]), n_last


def _start(sent_ns: I64, n_cut: int, latency: Latency) -> tuple[int, Latency | None]:
    return int(sent_ns[n_cut]), latency if n_cut else None


def _trends(
    requests: RequestTable, start_ns: int, last_ns: int, at_ns: int
) -> tuple[LatencyTrend, ...]:
    found: list[LatencyTrend] = []
    for latency in _TOLD_BY:
        samples = latency_samples(requests, latency, at_ns=at_ns)
        sent_ns = requests.intended_send_ns[samples.rows]
        seen = trend(samples.lower_s[np.asarray((sent_ns >= start_ns) & (sent_ns <= last_ns))])
        if seen is not None:
            found.append(LatencyTrend(latency=latency, trend=seen))
    return tuple(found)
