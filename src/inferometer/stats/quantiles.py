"""Distribution-free intervals of quantiles, from order statistics of independent samples.

Source: David and Nagaraja, Order Statistics (3rd ed.), section 7.1: the number of samples below
the q-quantile is binomial(n, q), so X(l) <= x_q <= X(u) holds with probability >= P(l <= B <= u
- 1), for continuous x exactly.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from inferometer.stats.estimate import Estimate

DEFAULT_CONFIDENCE_FRACTION = 0.95

_MAD_TO_SIGMA_RATIO = 1.4826
"""1 / Phi^-1(3/4): the median absolute deviation of a normal sample times this estimates its
standard deviation."""


class Ranks(NamedTuple):
    """Ranks (from 1) of the sorted samples that bound a quantile."""

    low: int
    high: int


def median_estimate(
    samples: ArrayLike, *, confidence_fraction: float = DEFAULT_CONFIDENCE_FRACTION
) -> Estimate | None:
    """The median over repeats; None without samples; no interval below 6 samples at 95 %.

    Example
    -------
    >>> estimate = median_estimate([5.0, 3.0, 4.0, 9.0, 4.5, 4.2, 4.1])
    >>> estimate.value, estimate.low, estimate.high
    (4.2, 3.0, 9.0)
    """
    return quantile_estimate(samples, 0.5, confidence_fraction=confidence_fraction)


def quantile_estimate(
    samples: ArrayLike,
    quantile_fraction: float,
    *,
    confidence_fraction: float = DEFAULT_CONFIDENCE_FRACTION,
) -> Estimate | None:
    """A quantile of the distribution of independent samples; None without samples.

    NaN is no sample. If there are too few samples to bound the quantile on both sides, the estimate
    has no interval, and its ``method`` says why.
    """
    present = present_samples(samples)
    if present.size == 0:
        return None
    ranks = interval_ranks(present.size, quantile_fraction, confidence_fraction=confidence_fraction)
    value = float(np.quantile(present, quantile_fraction))
    percent = f"{confidence_fraction * 100:g} %"
    if ranks is None:
        needed = min_samples(quantile_fraction, confidence_fraction=confidence_fraction)
        method = (
            f"quantile {quantile_fraction:g}; n = {present.size} is too small for a {percent}"
            f" interval, which needs {needed}"
        )
        return Estimate(
            value=value,
            low=None,
            high=None,
            confidence_fraction=confidence_fraction,
            n_samples=present.size,
            method=method,
        )
    ordered = np.sort(present)
    low, high = float(ordered[ranks.low - 1]), float(ordered[ranks.high - 1])
    return Estimate(
        value=min(max(value, low), high),
        low=low,
        high=high,
        confidence_fraction=confidence_fraction,
        n_samples=present.size,
        method=(
            f"quantile {quantile_fraction:g}; order statistics {ranks.low} and {ranks.high} of"
            f" {present.size}"
        ),
    )


@lru_cache(4096)  # a summary wants the same few: of runs with as many requests, or effective ones
def interval_ranks(
    n_samples: int,
    quantile_fraction: float,
    *,
    confidence_fraction: float = DEFAULT_CONFIDENCE_FRACTION,
) -> Ranks | None:
    """Ranks that bound a quantile, with an error of at most (1 - confidence) / 2 on each side.

    None if there are too few samples.

    Example
    -------
    >>> interval_ranks(7, 0.5), interval_ranks(5, 0.5)
    (Ranks(low=1, high=7), None)
    """
    _check_fraction("quantile_fraction", quantile_fraction)
    _check_fraction("confidence_fraction", confidence_fraction)
    tail = (1 - confidence_fraction) / 2
    # Both conditions are monotone in the rank, so bisection finds it among a million ranks.
    n_low = low_rank(n_samples, quantile_fraction, confidence_fraction=confidence_fraction)
    n_high = bisect_right(
        range(n_samples),
        tail,
        key=lambda rank: float(
            scipy.special.bdtrc(n_samples - 1 - rank, n_samples, quantile_fraction)
        ),
    )
    return Ranks(n_low, n_samples + 1 - n_high) if n_low and n_high else None


def low_rank(
    n_samples: int,
    quantile_fraction: float,
    *,
    confidence_fraction: float = DEFAULT_CONFIDENCE_FRACTION,
) -> int:
    """Rank (from 1) of the sample that bounds a quantile from below (one-sided); 0: none does.

    Few samples suffice for a lower bound of a high quantile; an upper bound takes far more.

    Example
    -------
    >>> [low_rank(n, 0.95) for n in (1, 2, 10, 100)]
    [0, 1, 8, 90]
    """
    tail = (1 - confidence_fraction) / 2
    return bisect_right(
        range(n_samples),
        tail,
        key=lambda rank: float(scipy.special.bdtr(rank, n_samples, quantile_fraction)),
    )


def min_samples(
    quantile_fraction: float, *, confidence_fraction: float = DEFAULT_CONFIDENCE_FRACTION
) -> int:
    """The fewest samples for a two-sided interval of this quantile.

    Example
    -------
    >>> [min_samples(q) for q in (0.5, 0.9, 0.95, 0.99)]
    [6, 36, 72, 368]
    """
    _check_fraction("quantile_fraction", quantile_fraction)
    tail = (1 - confidence_fraction) / 2
    return math.ceil(math.log(tail) / math.log(max(quantile_fraction, 1 - quantile_fraction)))


def relative_spread_ratio(samples: ArrayLike) -> float | None:
    """Robust relative standard deviation: 1.4826 · MAD / median; None below 3 samples."""
    present = present_samples(samples)
    middle = float(np.median(present)) if present.size else 0.0
    if present.size < 3 or middle == 0:
        return None
    return _MAD_TO_SIGMA_RATIO * float(np.median(np.abs(present - middle))) / abs(middle)


def present_samples(samples: ArrayLike) -> NDArray[np.float64]:
    """The samples without absent ones (NaN), as floats."""
    array = np.asarray(samples, dtype=np.float64).ravel()
    return array[~np.isnan(array)]


def _check_fraction(name: str, fraction: float) -> None:
    if not 0 < fraction < 1:
        raise ValueError(f"{name} = {fraction} is not between 0 and 1")


# Bootstrap intervals, always seeded. Source: Efron and Tibshirani, An Introduction to the Bootstrap
# (1993), chapter 13.


N_RESAMPLES: Final = 2000


def resampled_medians(
    groups: Sequence[NDArray[np.float64]], *, seed: int, n_resamples: int = N_RESAMPLES
) -> NDArray[np.float64]:
    """(B, groups) Bootstrap medians: each group is resampled within itself."""
    rng = np.random.default_rng(seed)
    return np.stack(
        [
            np.median(group[rng.integers(0, group.size, size=(n_resamples, group.size))], axis=1)
            for group in groups
        ],
        axis=1,
    )
