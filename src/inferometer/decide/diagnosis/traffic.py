"""Which requests did a server get in a window: when did each come, and how long was it?

Requests come as they were counted between scrapes. The histogram of lengths gives the lengths of
their prompts, the order of the counters who had which: a scheduler that takes requests as they come
gives first tokens in that order, so the prompt tokens counted between two scrapes belong to the
requests whose first tokens were counted there. Letters of shapes: N requests, B buckets, T scrapes.
"""

import heapq
import math
from typing import Final

import numpy as np

from inferometer.decide.diagnosis.missing_counts import Clients
from inferometer.decide.diagnosis.window import Lengths, ServerWindow
from inferometer.inputs.workload.plan import NONE, RequestPlan, request_plan
from inferometer.records.columns import F64, I64
from inferometer.units import NS_PER_S

_LONGEST_BEFORE: Final = 2.0
"""For how many times the window there was such traffic before it, at most."""
_STAYS: Final = 2.0
"""Mean stays of a request after which an empty server is as full as ever."""
_SHORTEST_BEFORE_S: Final = 2.0
_NOTHING_BEFORE_S: Final = 0.1
"""Before the window of a server that is empty when it begins."""
_GROWTH_SPREAD: Final = 0.2
"""Spread of the logarithm of how long a queue has grown. An assumption."""
_LEAST_SHARED_FRACTION: Final = 0.02
_BLOCK_S: Final = 5.0
"""Requests come in bursts: blocks of a window that are drawn again hold a few scrapes each."""
_FASTER: Final = 4
"""Rounds of a closed loop whose clients are answered sooner than in the window."""
_UNTIMED_FRACTION: Final = 0.02
"""Of prompt tokens that are counted where no first token is: more, and the server counts them at
another time, such as when a request ends."""


def drawn_requests(window: ServerWindow, rng: np.random.Generator) -> tuple[RequestPlan, float]:
    """Draw requests like those of the window; also the seconds of such traffic before the window."""
    clients = window.clients
    if clients is not None and not window.is_closed_loop:
        before_s = _before_s(clients)
        follows = np.full(len(clients.came_s), NONE, dtype=np.int64)
        came_s = clients.came_s + before_s
        return _plan(
            window, came_s, follows, clients.prompt_tokens, clients.output_tokens
        ), before_s
    before_s, n_burst = _before(window, rng)
    came_s, follows = _arrivals(window, before_s, n_burst, rng)
    n = len(came_s)
    prompts = lengths_of(window.prompt_lengths, n, rng)
    n_waited = round(float(window.waiting[0]))
    n_before = n - int(window.arrivals.sum())
    _as_counted(window, prompts, max(n_before - n_waited, 0), rng)
    outputs = lengths_of(window.output_lengths, n, rng)
    return _plan(window, came_s, follows, prompts, outputs), before_s


def _plan(
    window: ServerWindow, came_s: F64, follows: I64, prompts: F64, outputs: F64
) -> RequestPlan:
    arrival_ns = np.rint(came_s * NS_PER_S).astype(np.int64)
    plan = request_plan(
        "the window",
        arrival_ns=np.where(follows == NONE, arrival_ns, NONE),
        prompt_tokens=prompts.astype(np.int32),
        output_tokens=outputs.astype(np.int32),
        follows=follows,
        think_ns=np.where(follows == NONE, NONE, 0),
    )
    return sharing(plan, window.hit_fraction)


def fresh_requests(window: ServerWindow, rng: np.random.Generator) -> tuple[RequestPlan, float]:
    """Requests of another window of the same traffic, and for how many seconds they came before it.

    Blocks of the window are drawn with replacement (block bootstrap; Künsch, Ann. Statist. 17,
    1989), and lengths likewise; twice, since neither the window nor the next one shows the mean.
    """
    n = len(window.at_s) - 1
    n_block = max(round(_BLOCK_S * n / window.duration_s), 1)
    n_before = _intervals_before(window)
    seen = _resampled(np.arange(n), n, n_block, rng)
    rows = _resampled(seen, n_before + n, n_block, rng)
    lengths_s, counts = np.diff(window.at_s)[rows], window.arrivals.astype(np.int64)[rows]
    starts_s = np.cumsum(lengths_s) - lengths_s
    starts, spread = np.repeat(starts_s, counts), np.repeat(lengths_s, counts)
    came_s = np.sort(starts + spread * rng.random(len(starts)))
    if window.is_closed_loop:
        came_s = np.resize(came_s, _FASTER * len(came_s))
    follows = np.full(len(came_s), NONE, dtype=np.int64)
    _follow(window, came_s, follows)
    lengths: list[F64] = []
    for one in (window.prompt_lengths, window.output_lengths):
        known = rng.choice(lengths_of(one, max(one.seen.n, 1), rng), max(one.seen.n, 1))
        lengths.append(rng.choice(known, len(came_s)))
    return _plan(window, came_s, follows, *lengths), float(lengths_s[:n_before].sum())


def _intervals_before(window: ServerWindow) -> int:
    """Intervals between scrapes in the time before another window like this one.

    Another load test begins with an empty server, too: an overloaded one is as full as it was, not
    fuller. Of other traffic nothing tells when it began: as long before as the window is.
    """
    n = len(window.at_s) - 1
    if window.clients is None or window.is_closed_loop:
        return n
    return round(n * _before_s(window.clients) / window.duration_s)


def _before_s(clients: Clients) -> float:
    """Seconds from the first request of a load test to the window."""
    return max(-float(clients.came_s.min()), 0.0)


def _resampled(rows: I64, n: int, n_block: int, rng: np.random.Generator) -> I64:
    """``n`` rows in blocks with random starts (circular block bootstrap)."""
    starts = rng.integers(0, len(rows), -(-n // n_block))
    places = (starts[:, None] + np.arange(n_block)).ravel()[:n] % len(rows)
    found: I64 = rows[places]
    return found


def _as_counted(
    window: ServerWindow, prompts: F64, n_before: int, rng: np.random.Generator
) -> None:
    """Put the prompts (N, changed in place) into the order in which their tokens were counted.

    ``n_before`` got their first token before the window. The longest prompt goes to the interval
    that lacks most tokens, and so on; the longest of each interval takes what is left over.
    """
    if window.first_tokens is None:
        return
    counts = np.rint(np.diff(window.first_tokens)).astype(np.int64)
    tokens = np.diff(window.step_prompt_tokens)
    if tokens[counts == 0].sum() > _UNTIMED_FRACTION * tokens.sum():
        return
    n = min(int(counts.sum()), len(prompts) - n_before)
    owners = np.repeat(np.arange(len(counts)), counts)[:n]
    rows = n_before + np.arange(n)
    free = [rng.permutation(rows[owners == k]).tolist() for k in range(len(counts))]
    lacking = [(-float(tokens[k]), k) for k in range(len(counts)) if free[k]]
    heapq.heapify(lacking)
    longest = np.full(len(counts), NONE)
    for length in np.sort(prompts[rows])[::-1].tolist():
        lack, k = heapq.heappop(lacking)
        row = free[k].pop()
        prompts[row] = length
        longest[k] = row if longest[k] == NONE else longest[k]
        if free[k]:
            heapq.heappush(lacking, (lack + length, k))
    over = tokens - np.bincount(owners, prompts[rows], minlength=len(counts))
    is_whole = (longest != NONE) & (np.bincount(owners, minlength=len(counts)) == counts)
    top = longest[is_whole]
    prompts[top] = np.clip(prompts[top] + over[is_whole], 1.0, window.prompt_lengths.most_tokens)


def _before(window: ServerWindow, rng: np.random.Generator) -> tuple[float, int]:
    """Seconds of such traffic before the window, and requests of a burst at their end.

    A queue that grows has grown as fast before, and so has a batch that grows by a good part of the
    requests that come; a queue that does not grow was left by a burst.
    """
    waiting = float(window.waiting[:3].mean())
    running = float(window.running[:3].mean())
    rate_per_s = max(float(window.arrivals.sum()) / window.duration_s, 1e-6)
    in_batch_per_s, growth_per_s = window.growths_per_s
    longest_s = _LONGEST_BEFORE * window.duration_s
    if window.is_batch_growing:
        grown_s = (waiting + running) / (in_batch_per_s + max(growth_per_s, 0.0))
        grown_s *= math.exp(rng.normal(0.0, _GROWTH_SPREAD))
        return min(max(grown_s, _NOTHING_BEFORE_S), longest_s), 0
    # By Little's law a request stays as long as this before the window, whatever came of the
    # queue in it.
    stay_s = running / rate_per_s
    fill_s = max(_STAYS * stay_s if waiting < 1 else 0.0, _SHORTEST_BEFORE_S)
    if running + waiting == 0:
        fill_s = _NOTHING_BEFORE_S
    if waiting < 1 or window.is_closed_loop:
        return min(fill_s, longest_s), 0
    if growth_per_s * longest_s > waiting:
        grown_s = waiting / growth_per_s * math.exp(rng.normal(0.0, _GROWTH_SPREAD))
        return min(grown_s + running / rate_per_s, longest_s), 0
    return min(fill_s + (waiting + running) / rate_per_s, longest_s), round(waiting)


def _arrivals(
    window: ServerWindow, before_s: float, n_burst: int, rng: np.random.Generator
) -> tuple[F64, I64]:
    """Arrival of each request, and the one it follows (in a closed loop: its user's last one)."""
    counts = window.arrivals.astype(np.int64)
    starts, lengths = np.repeat(window.at_s[:-1], counts), np.repeat(np.diff(window.at_s), counts)
    within_s = starts + lengths * rng.random(len(starts))
    # Before the window, requests come as in a part of it that begins anywhere.
    n_rounds = math.ceil(before_s / window.duration_s)
    rounds = [within_s + k * window.duration_s for k in range(n_rounds)]
    offset_s = rng.random() * window.duration_s
    earlier_s = np.concatenate(
        [(one + offset_s) % (n_rounds * window.duration_s) for one in rounds]
    )
    earlier_s = earlier_s[earlier_s < before_s]
    burst_s = before_s * (1 - 0.1 * rng.random(n_burst))
    came_s = np.sort(np.concatenate([earlier_s, burst_s, before_s + within_s]))
    follows = np.full(len(came_s), NONE, dtype=np.int64)
    _follow(window, came_s, follows)
    return came_s, follows


def _follow(window: ServerWindow, came_s: F64, follows: I64) -> None:
    """In a closed loop, let each request follow the last one of its user (changed in place)."""
    if window.is_closed_loop:
        inside = float(np.median(window.running + window.waiting))
        n_users = window.n_users or max(round(inside), 1)
        follows[n_users:] = np.arange(len(came_s) - n_users)
        came_s[:n_users] = 0.0


def lengths_of(lengths: Lengths, n: int, rng: np.random.Generator) -> F64:
    """``n`` lengths (tokens) as a histogram has them, with its mean, in any order.

    Each bucket gets its part of ``n``, up to one. Within a bucket from l to h they are
    ``l + (h - l) · u^g`` with u even from 0 to 1: ``g`` is such that the mean is the bucket's own.

    Example
    -------
    >>> from inferometer.records.server_series import Growth
    >>> seen = Growth(4, 2000.0, np.array([200.0, 500.0, np.inf]), np.array([0.0, 4.0, 0.0]))
    >>> lengths = Lengths(seen, np.array([100.0, 500.0, 600.0]))
    >>> lengths_of(lengths, 3, np.random.default_rng(1)).tolist()
    [500.0, 500.0, 500.0]
    """
    low, high = lengths.bounds
    bounds = np.cumsum(lengths.seen.counts) / lengths.seen.counts.sum()
    places = (rng.random() + np.arange(n)) / n
    buckets = np.searchsorted(bounds, places, side="right").clip(0, len(bounds) - 1)
    place = np.clip((lengths.means - low) / np.maximum(high - low, 1e-9), 1e-3, 1.0)[buckets]
    drawn = low[buckets] + (high - low)[buckets] * rng.random(n) ** (1 / place - 1)
    found: F64 = rng.permutation(np.maximum(np.rint(drawn), 1.0))
    return found


def sharing(plan: RequestPlan, hit_fraction: float) -> RequestPlan:
    """The requests with a shared prefix of the length that the cache hits show."""
    if hit_fraction < _LEAST_SHARED_FRACTION:
        return plan
    begins = np.minimum(np.rint(hit_fraction * plan.prompt_tokens), plan.prompt_tokens[0])
    begins[0] = 0
    return plan._replace(
        prefix_request=np.where(begins > 0, 0, NONE).astype(np.int32),
        prefix_tokens=begins.astype(np.int32),
    )
