"""Intervals of one run's numbers, whose samples are autocorrelated.

Requests that meet the same queue are late together, so n of them carry less information than n
independent ones. The share of samples below the quantile is taken in consecutive batches; its
variance between batches over that of independent samples (*inflation*) gives the effective
sample size. Samples of that number carry the binomial interval of ``quantiles``. Of batches of
three lengths the largest inflation counts, since batches that are too short hide correlation. A
run with a small effective sample size has no interval, however many requests it has.

Source: batch means, Law and Kelton, Simulation Modeling and Analysis (3rd ed.), sections 9.5.2
and 9.5.3; of the indicator for quantiles, Heidelberger and Lewis, Quantile Estimation in
Dependent Sequences, Operations Research 32 (1984).
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from inferometer.stats.estimate import Estimate
from inferometer.stats.quantiles import DEFAULT_CONFIDENCE_FRACTION, interval_ranks, min_samples

N_BATCHES: Final = (40, 20, 10)
"""Numbers of batches that are tried; with fewer than ten the variance between them is itself
uncertain."""
MIN_SAMPLES: Final = 40
"""With fewer, their dependence cannot be estimated."""
MIN_INDEPENDENT_SAMPLES: Final = 10
"""A run with a smaller effective sample size is too short to know that size."""
MIN_SAMPLES_OF_A_BATCH: Final = 4

_Floats = NDArray[np.float64]


class IntervalPlan(NamedTuple):
    """Order statistics (from 0) that bound a quantile, and the method; None if n is too small."""

    low_rank: int | None
    high_rank: int | None
    method: str
    confidence_fraction: float


def run_quantile_estimate(
    samples: ArrayLike,
    quantile_fraction: float,
    *,
    upper: ArrayLike | None = None,
    confidence_fraction: float = DEFAULT_CONFIDENCE_FRACTION,
) -> Estimate | None:
    """A quantile of one run's samples, in the order in which they were taken.

    None without samples. ``upper`` bounds each sample from above where ``samples`` are lower
    bounds (infinite for one that was never seen to end): the value is that of the lower bounds,
    the interval's upper end that of the upper ones.

    Example
    -------
    >>> estimate = run_quantile_estimate(range(1000), 0.5)
    >>> estimate.method
    'quantile 0.5; n = 1000 is worth 6 independent samples; too small for a 95 % interval, which needs 10'
    """
    lower = np.asarray(samples, dtype=np.float64)
    if lower.size == 0:
        return None
    value = _order_statistic(lower, quantile_rank(lower.size, quantile_fraction))
    worth = independent_samples(lower <= value)
    plan = interval_plan(
        lower.size, worth, quantile_fraction, confidence_fraction=confidence_fraction
    )
    low = high = None
    if plan.low_rank is not None and plan.high_rank is not None:
        above = lower if upper is None else np.asarray(upper, dtype=np.float64)
        low, high = (
            min(_order_statistic(lower, plan.low_rank), value),
            max(_order_statistic(above, plan.high_rank), value),
        )
    return Estimate(
        value=value,
        low=low,
        high=high,
        confidence_fraction=confidence_fraction,
        n_samples=lower.size,
        method=plan.method,
    )


def quantile_rank(n_samples: int, quantile_fraction: float) -> int:
    """Rank (from 0) of this quantile: the least sample below or at which that share of them lies.

    Example
    -------
    >>> quantile_rank(4, 0.5), quantile_rank(100, 0.95), quantile_rank(1, 0.99)
    (1, 94, 0)
    """
    return min(max(math.ceil(quantile_fraction * n_samples - 1e-9) - 1, 0), n_samples - 1)


def interval_plan(
    n_samples: int,
    worth: int,
    quantile_fraction: float,
    *,
    confidence_fraction: float = DEFAULT_CONFIDENCE_FRACTION,
) -> IntervalPlan:
    """Order statistics of ``n_samples`` that bound a quantile, at this effective sample size."""
    needed = max(
        MIN_INDEPENDENT_SAMPLES,
        min_samples(quantile_fraction, confidence_fraction=confidence_fraction),
    )
    ranks = interval_ranks(worth, quantile_fraction, confidence_fraction=confidence_fraction)
    n_text = (
        f"n = {n_samples}"
        if worth == n_samples
        else f"n = {n_samples} is worth {worth} independent samples"
    )
    name = f"quantile {quantile_fraction:g}; {n_text}"
    if ranks is None or worth < needed or n_samples < MIN_SAMPLES:
        needed = max(needed, MIN_SAMPLES) if worth == n_samples else needed
        method = (
            f"{name}; too small for a {confidence_fraction * 100:g} % interval, which needs"
            f" {needed}"
        )
        return IntervalPlan(None, None, method, confidence_fraction)
    low_rank = math.floor((ranks.low - 1) / worth * n_samples)
    high_rank = min(math.ceil(ranks.high / worth * n_samples) - 1, n_samples - 1)
    return IntervalPlan(
        low_rank,
        high_rank,
        f"{name}, order statistics {ranks.low} and {ranks.high} of those",
        confidence_fraction,
    )


def run_mean_estimate(
    batch_means: ArrayLike,
    value: float,
    *,
    name: str,
    confidence_fraction: float = DEFAULT_CONFIDENCE_FRACTION,
) -> Estimate:
    """The mean of a run, from the means of its consecutive batches.

    ``value`` is the mean of the whole run.

    Example
    -------
    >>> run_mean_estimate([9.0, 11.0] * 20, 10.0, name="rate").method
    'rate; batch means, widest of 40, 20 and 10 batches'
    """
    means = np.asarray(batch_means, dtype=np.float64)
    if means.size < max(N_BATCHES):
        method = f"{name}; {means.size} batches are too few for an interval"
        return Estimate(
            value=value,
            low=None,
            high=None,
            confidence_fraction=confidence_fraction,
            n_samples=max(means.size, 1),
            method=method,
        )
    merged = [_batch_means(means, n_batches) for n_batches in N_BATCHES]
    return mean_of_batches(
        merged, value, n_samples=means.size, name=name, confidence_fraction=confidence_fraction
    )


def mean_of_batches(
    means: Sequence[ArrayLike],
    value: float,
    *,
    n_samples: int,
    name: str,
    confidence_fraction: float = DEFAULT_CONFIDENCE_FRACTION,
) -> Estimate:
    """The same from the means of batches, an array for each number of batches."""
    halves: list[float] = []
    for of_batches in means:
        array = np.asarray(of_batches, dtype=np.float64)
        quantile = float(stdtrit(array.size - 1, 0.5 + confidence_fraction / 2))
        halves.append(quantile * float(array.std(ddof=1)) / math.sqrt(array.size))
    half = max(halves)
    tried = f"{', '.join(str(n) for n in N_BATCHES[:-1])} and {N_BATCHES[-1]}"
    return Estimate(
        value=value,
        low=value - half,
        high=value + half,
        confidence_fraction=confidence_fraction,
        n_samples=n_samples,
        method=f"{name}; batch means, widest of {tried} batches",
    )


def run_share_estimate(
    is_good: ArrayLike, *, name: str, confidence_fraction: float = DEFAULT_CONFIDENCE_FRACTION
) -> Estimate | None:
    """A share of a run's samples: Wilson's interval at the effective sample size."""
    good = np.asarray(is_good, dtype=np.bool_)
    if good.size == 0:
        return None
    value = float(good.mean())
    worth = independent_samples(good)
    if good.size < MIN_SAMPLES or worth < MIN_INDEPENDENT_SAMPLES:
        method = f"{name}; n = {good.size} is too small for an interval"
        return Estimate(
            value=value,
            low=None,
            high=None,
            confidence_fraction=confidence_fraction,
            n_samples=good.size,
            method=method,
        )
    z = float(stdtrit(math.inf, 0.5 + confidence_fraction / 2))
    centre = (value + z * z / (2 * worth)) / (1 + z * z / worth)
    half = (
        z
        / (1 + z * z / worth)
        * math.sqrt(value * (1 - value) / worth + z * z / (4 * worth * worth))
    )
    method = f"{name}; Wilson's interval of {worth} independent samples, of n = {good.size}"
    return Estimate(
        value=value,
        low=max(0.0, min(value, centre - half)),
        high=min(1.0, max(value, centre + half)),
        confidence_fraction=confidence_fraction,
        n_samples=good.size,
        method=method,
    )


def independent_samples(is_below: NDArray[np.bool_]) -> int:
    """Effective sample size of a share in this sequence: at least 1, at most all of them.

    Example
    -------
    >>> independent_samples(np.arange(400) % 2 == 0)
    400
    """
    if is_below.size < MIN_SAMPLES:
        return is_below.size
    below = is_below.astype(np.float64)
    means = [
        _batch_means(below, n_batches)
        for n_batches in N_BATCHES
        if is_below.size // n_batches >= MIN_SAMPLES_OF_A_BATCH
    ]
    return worth_of_batches(is_below.size, float(is_below.mean()), means)


def worth_of_batches(n_samples: int, share_fraction: float, means: Sequence[ArrayLike]) -> int:
    """The same from the means of consecutive batches, in several numbers of batches."""
    if share_fraction in {0.0, 1.0}:
        return n_samples
    inflation = 1.0
    for batch_means in means:
        array = np.asarray(batch_means, dtype=np.float64)
        doubt = (float(stdtrit(array.size - 1, 0.975)) / float(stdtrit(math.inf, 0.975))) ** 2
        n_each = n_samples // array.size
        inflation = max(
            inflation,
            doubt * float(array.var(ddof=1)) * n_each / (share_fraction * (1 - share_fraction)),
        )
    return max(1, math.floor(n_samples / inflation))


def _batch_means(samples: _Floats, n_batches: int) -> _Floats:
    """Means of consecutive batches of one length.

    What does not fill a batch is left out at the start, where a run warms up.
    """
    n_each = samples.size // n_batches
    means: _Floats = (
        samples[samples.size - n_each * n_batches :].reshape(n_batches, n_each).mean(axis=1)
    )
    return means


def _order_statistic(samples: _Floats, rank: int) -> float:
    """The sample of this rank, from 0."""
    return float(np.partition(samples, rank)[rank])
