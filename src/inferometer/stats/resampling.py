"""How sure is a number that has no closed interval? By resampling, always seeded.

Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993): percentile interval, chapter
13; BCa, chapter 14.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from inferometer.stats.estimate import Estimate
from inferometer.stats.quantiles import DEFAULT_CONFIDENCE_FRACTION, present_samples

N_RESAMPLES: Final = 2000
MIN_SAMPLES: Final = 8
"""Below this a bootstrap interval is too narrow to be shown (its coverage is simulated in the
tests)."""

Statistic: TypeAlias = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Maps resamples (B, n) to one number each (B)."""


def bootstrap_estimate(
    samples: ArrayLike,
    statistic: Statistic,
    *,
    name: str,
    seed: int,
    confidence_fraction: float = DEFAULT_CONFIDENCE_FRACTION,
    n_resamples: int = N_RESAMPLES,
) -> Estimate | None:
    """What is ``statistic`` of what the samples were drawn from (BCa interval)?

    For smooth statistics, such as means and ratios.

    For medians and other quantiles take ``quantiles``: the bootstrap does not do well on them with
    few samples.
    """
    present = present_samples(samples)
    n = present.size
    if n == 0:
        return None
    value = float(statistic(present[np.newaxis])[0])
    no_interval = (
        f"{name}; n = {n} is too small for a bootstrap interval, which needs {MIN_SAMPLES}"
    )
    if n < MIN_SAMPLES:
        return Estimate(
            value=value,
            low=None,
            high=None,
            confidence_fraction=confidence_fraction,
            n_samples=n,
            method=no_interval,
        )
    rng = np.random.default_rng(seed)
    resampled = np.sort(statistic(present[rng.integers(0, n, size=(n_resamples, n))]))
    jackknife = statistic(np.stack([np.delete(present, i) for i in range(n)]))
    low, high = (
        float(np.quantile(resampled, fraction))
        for fraction in _bca_fractions(
            value, resampled, jackknife, confidence_fraction=confidence_fraction
        )
    )
    return Estimate(
        value=value,
        low=min(low, value),
        high=max(high, value),
        confidence_fraction=confidence_fraction,
        n_samples=n,
        method=f"{name}; BCa bootstrap, {n_resamples} resamples, seed {seed}",
    )


def resampled_medians(
    groups: Sequence[NDArray[np.float64]], *, seed: int, n_resamples: int = N_RESAMPLES
) -> NDArray[np.float64]:
    """Medians of resampled groups, each group resampled within itself: (B, number of groups)."""
    rng = np.random.default_rng(seed)
    return np.stack(
        [
            np.median(group[rng.integers(0, group.size, size=(n_resamples, group.size))], axis=1)
            for group in groups
        ],
        axis=1,
    )


def _bca_fractions(
    value: float,
    resampled: NDArray[np.float64],
    jackknife: NDArray[np.float64],
    *,
    confidence_fraction: float,
) -> tuple[float, float]:
    """Which quantiles of the resamples bound the statistic, corrected for bias and skew (Efron and Tibshirani, eq. 14.10)."""
    tail = (1 - confidence_fraction) / 2
    share_below = (
        np.count_nonzero(resampled < value) + 0.5 * np.count_nonzero(resampled == value)
    ) / resampled.size
    differences = jackknife.mean() - jackknife
    scale = float((differences**2).sum()) ** 1.5
    if not 0 < share_below < 1 or scale == 0:
        return tail, 1 - tail
    bias = float(ndtri(share_below))
    skew = float((differences**3).sum()) / (6 * scale)
    low, high = (
        float(ndtr(bias + (bias + z) / (1 - skew * (bias + z))))
        for z in (float(ndtri(tail)), float(ndtri(1 - tail)))
    )
    return low, high
