"""What do a server's metrics show without a simulation: pitfalls, and counts that disagree?

None of a number is a server that does not report it, or a window to which it does not apply.

Little's law (J. D. C. Little, Operations Research 9, 1961): requests in the server = requests/s times
the seconds that each stays. Of a window it holds but for the requests that are in the server at its
two ends. Where it fails the page is not of one server: gauges of one engine beside counters of all,
or each rank counted for itself.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

from inferometer.decide.diagnosis.window import ServerWindow
from inferometer.errors import ModelError
from inferometer.records.latencies import COMPLETED, is_one_of
from inferometer.records.pitfalls import CheckRow, PitfallName, empty_share, judged_all
from inferometer.records.server_names import Counter
from inferometer.records.server_series import counter_series, gauge_series, series_of
from inferometer.records.server_summaries import ServerSummary, ttft_parts
from inferometer.records.types import RequestTable
from inferometer.units import NS_PER_S

_FAR_OUTSIDE_S: Final = 0.05
"""Below it a connection over a wide area explains it: round trips take tens of milliseconds."""
_LEAST_PER_ENGINE: Final = 2.0
"""Running requests of each engine, on average: below it one request more or less is uneven."""
_OPEN_FRACTION: Final = 0.01
_NO_WAIT_S: Final = 1e-3
"""A bucket of times of 0 (SGLang has one) ends here."""
_BUSY_CACHE_HITS: Final = 0.5
"""Hit share of looked-up prompt tokens above which eviction is no concern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideRow:
    """A mean latency as the clients of a load test measured it, against the server's own."""

    latency: Literal["ttft", "e2e"]
    client_s: float
    """Time from the intended send."""
    outside_s: float | None
    """Time beyond the server's own: client, proxy, network; None: the server reports none."""

    @property
    def share(self) -> float | None:
        """Share of the client's latency; None: a wide-area connection alone explains it."""
        is_far = self.outside_s is not None and self.outside_s > _FAR_OUTSIDE_S
        return self.outside_s / self.client_s if is_far and self.outside_s is not None else None


def outside_rows(requests: RequestTable, server: ServerSummary) -> tuple[OutsideRow, ...]:
    """TTFT, and E2E of what was completed, in the summary's window."""
    rows, parts = list[OutsideRow](), ttft_parts(requests, server)
    if parts is not None:
        around_s = None if parts.network_s is None else parts.client_s + parts.network_s
        rows.append(OutsideRow(latency="ttft", client_s=parts.total_s, outside_s=around_s))
    ended_s = requests.finished_ns / NS_PER_S
    is_within = is_one_of(requests, COMPLETED) & (ended_s >= server.start_s)
    is_within &= ended_s <= server.end_s
    if is_within.any():
        own = server.time("e2e")
        client_s = float((ended_s - requests.intended_send_ns / NS_PER_S)[is_within].mean())
        outside_s = None if own is None else client_s - own.mean_s
        rows.append(OutsideRow(latency="e2e", client_s=client_s, outside_s=outside_s))
    return tuple(rows)


def checked(
    window: ServerWindow,
    outside: Sequence[OutsideRow] = (),
    local: Mapping[PitfallName, float | None] | None = None,
) -> tuple[CheckRow, ...]:
    """All pitfalls that metrics and the client of a load test show, in the order of the table.

    ``local`` is what the server's own machine shows.
    """
    share = max((one.share for one in outside if one.share is not None), default=None)
    seen: dict[PitfallName, float | None] = {
        name: measure(window) for name, measure in _MEASURES.items()
    }
    return judged_all({**seen, "outside": share, **(local or {})})


def _grown(window: ServerWindow, counter: Counter) -> float | None:
    series = counter_series(window.record, counter)
    return None if series is None else float(series.value[-1] - series.value[0])


def _per_request(counter: Counter) -> Callable[[ServerWindow], float | None]:
    def measure(window: ServerWindow) -> float | None:
        n = _grown(window, counter)
        n_ended = float(window.finished[-1])
        if counter == "rejected" and n is not None:
            n_ended += n
        return None if n is None or n_ended <= 0 else n / n_ended

    return measure


def _idle_fraction(window: ServerWindow) -> float:
    return float((window.running + window.waiting == 0).mean())


def _deferred(window: ServerWindow) -> float | None:
    series = gauge_series(window.record, "deferred")
    return None if series is None else float(np.nanmean(series.value))


def _out_of_order(window: ServerWindow) -> float | None:
    """The longest time in the queue relative to the longest that an order of arrival allows.

    Or the shortest that it allows relative to the shortest time, whichever is more: where the less
    urgent never come to an end, only the others' times are counted. Requests that were in the
    server at the window's begin may have waited before it: as many of the longest and the shortest
    times are left out, and one in a hundred of all, such as those that their clients gave up. None
    where preempted or deferred requests pass others, or engines are added up.
    """
    seen = window.spreads.get("queue")
    passes = (window.summary.n_preemptions or 0) > 0 or (_deferred(window) or 0.0) > 0
    if seen is None or passes or window.n_added_up > 1:
        return None
    n_open = float(window.running[0] + window.waiting[0]) + _OPEN_FRACTION * seen.n
    if seen.counts.sum() <= 2 * n_open:
        return None
    last = np.flatnonzero(np.cumsum(seen.counts[::-1])[::-1] > n_open)[-1]
    first = np.flatnonzero(np.cumsum(seen.counts) > n_open)[0]
    longest_s = 0.0 if last == 0 else float(seen.edges[last - 1])
    shortest_s, most_s = _waits_in_order_s(window)
    return max(longest_s / most_s, shortest_s / max(float(seen.edges[first]), _NO_WAIT_S))


def _waits_in_order_s(window: ServerWindow) -> tuple[float, float]:
    """Bounds on the shortest and the longest time in the queue, in an order of arrival (FCFS).

    Of the requests that came and were admitted in the window: by the counts alone the n-th that
    came is the n-th that is admitted. Scrapes tell to an interval when either was.
    """
    began = np.maximum.accumulate(window.finished + window.running)
    came = np.maximum.accumulate(window.finished + window.running + window.waiting)
    is_admitted = (np.diff(came) > 0) & (came[:-1] < began[-1])
    slack_s = 2 * float(np.diff(window.at_s).max())
    if not is_admitted.any():
        return 0.0, slack_s
    until = np.minimum(np.searchsorted(began, came[1:]), len(began) - 1)
    since = np.searchsorted(began, came[:-1] + 1) - 1
    longest_s = (window.at_s[until] - window.at_s[:-1])[is_admitted].max()
    shortest_s = (window.at_s[np.maximum(since, 0)] - window.at_s[1:])[is_admitted].min()
    return max(float(shortest_s) - slack_s, 0.0), max(float(longest_s), slack_s)


def _front_end_fraction(window: ServerWindow) -> float | None:
    """Share of the mean request time that passes neither in the queue nor in the engine."""
    means = [window.summary.time(name) for name in ("e2e", "queue", "inference")]
    if any(one is None for one in means):
        return None
    whole_s, *parts_s = [one.mean_s for one in means if one is not None]
    return max(whole_s - sum(parts_s), 0.0) / max(whole_s, 1e-9)


def _accepted_length(window: ServerWindow) -> float | None:
    """Tokens per step and request: accepted draft tokens plus one.

    A server that speculates and never finds a draft (no n-gram comes again) pays for the search.
    """
    drafts, accepted = _grown(window, "drafts"), _grown(window, "accepted_tokens")
    if drafts is not None and accepted is not None and window.output_tokens[-1] > 0:
        return 1 + accepted / drafts if drafts else 1.0
    series = gauge_series(window.record, "accepted_length")
    if series is None:
        return None
    used = series.value[series.value > 0]
    return float(used.mean()) if used.size else None


def _unevenness(window: ServerWindow) -> float | None:
    """Running requests of the fullest engine relative to the mean."""
    series = series_of(window.record, "running")
    means = [float(np.nanmean(one.value)) for one in series]
    if window.replica is not None:
        means = list(window.replica.mean_running)
    if len(means) < 2 or np.mean(means) < _LEAST_PER_ENGINE:
        return None
    return max(means) / float(np.mean(means))


def _times_overwritten(window: ServerWindow) -> float | None:
    """How often the whole KV cache was overwritten in the window.

    None where the server does not report it, or most prompts are found in the cache: then what was
    evicted was not missed.
    """
    summary = window.summary
    if window.is_cache_off or summary.prefix_hit_fraction is None:
        return None
    if not summary.n_kv_blocks or not summary.kv_block_tokens:
        return None
    if summary.prefix_hit_fraction > _BUSY_CACHE_HITS:
        return None
    written = float(window.prompt_tokens[-1]) * (1 - window.hit_fraction)
    written += float(window.output_tokens[-1])
    return written / (summary.n_kv_blocks * summary.kv_block_tokens)


def _fragmentation(window: ServerWindow) -> float | None:
    """Unused share of the KV blocks of running sequences, at half of each answer."""
    block_tokens, n = window.summary.kv_block_tokens, float(window.finished[-1])
    if not block_tokens or n <= 0:
        return None
    held = float(window.prompt_tokens[-1]) + float(window.output_tokens[-1]) / 2
    return empty_share(block_tokens, held / n)


_MEASURES: Final[dict[PitfallName, Callable[[ServerWindow], float | None]]] = {
    "refused": _per_request("rejected"),
    "aborted": _per_request("aborted"),
    "failed": _per_request("failed"),
    "preemption_thrash": _per_request("preemptions"),
    "deferred": _deferred,
    "out_of_order": _out_of_order,
    "front_end_bound": _front_end_fraction,
    "speculation_not_paying": _accepted_length,
    "uneven_engines": _unevenness,
    "prefix_cache_evicted": _times_overwritten,
    "too_little_load": _idle_fraction,
    "kv_fragmentation": _fragmentation,
}
CHECKED: Final[tuple[PitfallName, ...]] = (*_MEASURES, "outside")
"""Pitfalls that ``checked`` judges."""


_ALLOWED_FRACTION: Final = 0.1
_SDS: Final = 3.0


class Balance(NamedTuple):
    """Requests in the server, on average over the window."""

    counted: float
    by_times: float
    """Requests that ended times the seconds that each stayed, over the window's length."""
    allowed: float
    """Largest allowed difference of the two."""

    @property
    def holds(self) -> bool:
        """Do both sides of Little's law agree?"""
        return abs(self.counted - self.by_times) <= self.allowed


def balance(window: ServerWindow) -> Balance | None:
    """Both counts; None where the server does not report how long requests stay.

    By how many more there are at the end than at the beginning the times of the ended ones miss up
    to the whole window, or nothing: a growing queue is judged by nothing but its own size. Else each
    that is there at an end was there for a part of its stay. Requests whose clients went away
    together, as at the end of a load test, leave no time behind: they count like those that stay.
    """
    stay = _stay(window)
    if stay is None:
        return None
    n_ended, stay_s = stay
    inside = window.running + window.waiting
    counted = float(np.trapezoid(inside, window.at_s)) / window.duration_s
    by_times = n_ended * stay_s / window.duration_s
    # Looked at now and then, requests that stay a moment are many or none by chance (Poisson).
    by_looks = _SDS * math.sqrt(max(counted, by_times) / len(inside))
    at_ends = float(inside[0] + inside[-1])
    longest_s = min(stay_s, window.duration_s)
    chance = _SDS * math.sqrt(at_ends) * longest_s / window.duration_s
    allowed = _ALLOWED_FRACTION * max(counted, by_times) + chance + by_looks
    gone = max(float((-np.diff(inside) - np.diff(window.finished)).max()), 0.0)
    return Balance(counted, by_times, allowed + abs(float(inside[-1] - inside[0]) + gone))


def check_balanced(window: ServerWindow) -> None:
    """Refuse a page that cannot be of one whole server.

    Raises
    ------
    ModelError
        Its counts and its times contradict each other.
    """
    found = balance(window)
    if found is not None and not found.holds:
        raise ModelError(
            f"inconclusive: {found.counted:.3g} requests are in the server by its gauges, and"
            f" {found.by_times:.3g} by how many end and how long each stays (Little's law)",
            where="its metrics",
            allowed=f"both within {found.allowed:.2g} of each other, as of one whole server",
            try_="the page of one server: its own port, with all its engines and one rank of each",
        )


def _stay(window: ServerWindow) -> tuple[float, float] | None:
    """Number of requests that ended, and their mean time in queue and batch (seconds).

    Where both parts are reported (vLLM) what passes before the scheduler does not count, as its
    gauges do not count it.
    """
    whole, queue, inference = (window.summary.time(name) for name in ("e2e", "queue", "inference"))
    if whole is None:
        return None
    if queue is None or inference is None:
        return float(whole.n), whole.mean_s
    return float(inference.n), queue.mean_s + inference.mean_s
