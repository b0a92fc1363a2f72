"""What did a server do between two scrapes, and how sure is a percentile of it?

Observations of a histogram are in buckets, and ordered by the scrapes between which they came;
requests that meet the same queue are late together, so that the effective sample size is that of
``stats.autocorrelated``, of "at most the percentile's bucket". What came between two scrapes is
taken to be spread evenly: a dependence that is shorter is not seen.
"""

import math
from typing import Final, NamedTuple

import numpy as np

from inferometer.records.columns import F64, Bools
from inferometer.records.server_names import Counter, Gauge
from inferometer.records.server_series import (
    ServerRecord,
    counter_series,
    gauge_series,
    histogram_series,
    n_restarts,
)
from inferometer.stats import autocorrelated
from inferometer.stats.estimate import Verdict
from inferometer.stats.quantiles import low_rank, min_samples
from inferometer.units import NS_PER_S


class Interval(NamedTuple):
    """Counters by their growth, gauges as they are at its end; None where the server has none."""

    at_s: float
    """End of the interval, since the watch began."""
    took_s: float
    running: float
    waiting: float
    kv_usage: float | None
    """From 0 to 1."""
    kv_held_tokens: float
    """Tokens in the KV cache; 0 where the server does not report its size."""
    n_finished: float
    n_preempted: float | None
    n_prompts: float
    """Requests that got their first token."""
    prompt_tokens: float
    hit_tokens: float | None
    queried_tokens: float | None
    output_tokens: float
    n_steps: float | None
    n_gaps: float
    """Tokens after the first of their answers."""
    gaps_s: float
    """Seconds between those and the tokens before, together."""
    draft_tokens: float | None
    accepted_tokens: float | None
    is_restarted: bool = False
    queued_s: float = 0.0
    """Total queue time of the requests that ended; 0 where not reported."""


def last_interval(record: ServerRecord) -> Interval:
    """Changes between the last two scrapes of a record.

    A counter that the server lacks is 0 where it only weighs what is judged, None where it is
    judged itself.
    """
    start_ns, end_ns = record.scraped_ns[-2:].tolist()
    blocks, block_tokens = _gauge(record, "n_blocks"), _gauge(record, "block_tokens")
    usage = _gauge(record, "kv_usage")
    (n_prompts, _), (n_steps, _), (n_gaps, gaps_s), (_, queued_s) = (
        _gained(record, name) for name in ("ttft", "step_tokens", "itl", "queue")
    )
    return Interval(
        at_s=end_ns / NS_PER_S,
        took_s=(end_ns - start_ns) / NS_PER_S,
        running=_gauge(record, "running") or 0.0,
        waiting=_gauge(record, "waiting") or 0.0,
        kv_usage=usage,
        kv_held_tokens=(usage or 0.0) * (blocks or 0.0) * (block_tokens or 0.0),
        n_finished=_grown(record, "finished") or 0.0,
        n_preempted=_grown(record, "preemptions"),
        n_prompts=n_prompts or 0.0,
        prompt_tokens=_grown(record, "prompt_tokens") or 0.0,
        hit_tokens=_grown(record, "prefix_hits_tokens"),
        queried_tokens=_grown(record, "prefix_queries_tokens"),
        output_tokens=_grown(record, "output_tokens") or 0.0,
        n_steps=n_steps,
        n_gaps=n_gaps or 0.0,
        gaps_s=gaps_s or 0.0,
        draft_tokens=_grown(record, "draft_tokens"),
        accepted_tokens=_grown(record, "accepted_tokens"),
        is_restarted=n_restarts(record) > 0,
        queued_s=queued_s or 0.0,
    )


def _gauge(record: ServerRecord, gauge: Gauge) -> float | None:
    series = gauge_series(record, gauge)
    value = None if series is None else float(series.value[-1])
    return None if value is None or value != value else value  # noqa: PLR0124 -- NaN: not on this page


def _grown(record: ServerRecord, counter: Counter) -> float | None:
    series = counter_series(record, counter)
    return None if series is None else float(series.value[-1] - series.value[-2])


def _gained(record: ServerRecord, name: str) -> tuple[float | None, float | None]:
    """Observations and their sum."""
    found = histogram_series(record, name)  # type: ignore[arg-type]
    if found is None:
        return None, None
    n, total = (float(one.value[-1] - one.value[-2]) for one in found)
    return n, total


_TOGETHER: Final = 4
"""Requests that are taken for one, where there are too few to show how they depend."""


class Certainty(NamedTuple):
    """The 95 % interval of a percentile, widened to the edges of buckets."""

    low_s: float | None
    """None: too few requests; the lower end is known from fewer than the upper one."""
    high_s: float | None
    """None: too few requests; infinite in the last bucket."""
    n_needed: int | None
    """Requests, as dependent as these, that have both ends; None: there are as many."""


def certainty_of(edges: F64, gained: F64, percentile_fraction: float) -> Certainty | None:
    """The interval of a percentile of this window.

    Parameters
    ----------
    edges
        (B) Upper edges of the buckets in seconds, the last infinite.
    gained
        (T, B) Observations in each bucket since the first scrape.
    percentile_fraction
        0.95 of p95.

    Returns
    -------
    None where nothing was observed.

    Example
    -------
    >>> certainty_of(np.array([0.1, np.inf]), np.array([[0.0, 0.0], [12.0, 0.0]]), 0.95)
    Certainty(low_s=0.0, high_s=None, n_needed=72)
    """
    each = np.maximum(np.diff(gained, axis=0), 0.0)
    upto = np.cumsum(each.sum(axis=0))
    n = round(float(upto[-1])) if len(upto) else 0
    if n <= 0:
        return None
    middle = _bucket(upto, autocorrelated.quantile_rank(n, percentile_fraction))
    worth = autocorrelated.independent_samples(_within(each, middle))
    plan = autocorrelated.interval_plan(n, worth, percentile_fraction)
    low_s = _low_s(edges, upto, middle, worth, percentile_fraction)
    if plan.high_rank is not None:
        return Certainty(low_s, float(edges[max(_bucket(upto, plan.high_rank), middle)]), None)
    least = max(min_samples(percentile_fraction), autocorrelated.MIN_INDEPENDENT_SAMPLES)
    return Certainty(low_s, None, max(autocorrelated.MIN_SAMPLES, math.ceil(least * n / worth)))


def _low_s(
    edges: F64, upto: F64, middle: int, worth: int, percentile_fraction: float
) -> float | None:
    """The lower end; of few requests four are taken for one."""
    n = round(float(upto[-1]))
    if n < autocorrelated.MIN_SAMPLES:
        worth = n // _TOGETHER
    lowest = low_rank(worth, percentile_fraction)
    if not lowest:
        return None
    bucket = min(_bucket(upto, math.floor((lowest - 1) / worth * n)), middle)
    return 0.0 if bucket == 0 else float(edges[bucket - 1])


def verdict_of(certain: Certainty | None, limit_s: float) -> Verdict:
    """Verdict of a percentile against its limit.

    A bucket's observations lie above its lower edge: an interval that begins at the limit is above it.

    Example
    -------
    >>> verdict_of(Certainty(0.5, None, 72), 0.5), verdict_of(Certainty(0.0, 0.5, None), 0.5)
    ('missed', 'met')
    """
    if certain is None:
        return "undecided"
    if certain.low_s is not None and certain.low_s >= limit_s:
        return "missed"
    return "met" if certain.high_s is not None and certain.high_s <= limit_s else "undecided"


def _bucket(upto: F64, rank: int) -> int:
    """Index of the bucket that holds the observation of this rank (from 0)."""
    return min(int(np.searchsorted(upto, rank + 0.5)), len(upto) - 1)


def _within(each: F64, bucket: int) -> Bools:
    """For each observation in order: is it in this bucket or a lower one?

    Those of one scrape are spread evenly.
    """
    n_each = each.sum(axis=1).round().astype(np.int64)
    n_within = each[:, : bucket + 1].sum(axis=1).round().astype(np.int64)
    of = np.repeat(np.arange(len(n_each)), n_each)
    place = np.arange(len(of)) - np.repeat(np.cumsum(n_each) - n_each, n_each)
    before, after = ((place + step) * n_within[of] // np.maximum(n_each[of], 1) for step in (0, 1))
    return np.asarray(after > before, dtype=np.bool_)
