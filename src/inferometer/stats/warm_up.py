"""Where does a run's warm-up end, and is the run steady after it?

Warm-up: the truncation that minimises the standard error of the rest (MSER-5), accepted only if
the samples before it differ from the rest significantly and by `MATTERS_RATIO`. Logarithms are
compared, so that one slow request is no warm-up. Trend: Kendall's test on means of consecutive
batches, which are made longer until they are independent; the remaining correlation widens the
null distribution. In `FALSE_ALARM_FRACTION` of steady runs one of all the tests raises a false
alarm.

Source: White, An Effective Truncation Heuristic for Bias Reduction in Simulation Output,
Simulation 69 (1997); MSER-5 after White, Cobb and Spratt, A Comparison of Five Steady-State
Truncation Heuristics for Simulation, Winter Simulation Conference (2000). Trend of
autocorrelated samples: Hamed and Rao, A Modified Mann-Kendall Trend Test for Autocorrelated
Data, Journal of Hydrology 204 (1998).
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from inferometer.stats.autocorrelated import (
    MIN_INDEPENDENT_SAMPLES,
    MIN_SAMPLES,
    independent_samples,
)

_Floats = NDArray[np.float64]

MSER_BATCH: Final = 5
"""Samples in a batch of MSER-5."""
_MOST_CUT_FRACTION: Final = 0.5
"""Only cuts in the first half are tried: a best cut beyond it means that no steady state was
reached (White 1997)."""
FALSE_ALARM_FRACTION: Final = 0.03
"""Share of steady runs in which any of the tests below raises a false alarm (Bonferroni)."""
_TREND_CHANCE_FRACTION: Final = FALSE_ALARM_FRACTION / 3
"""Significance level of each trend test (TTFT and TPOT): a third of the false alarms each."""
_CUT_CHANCE_FRACTION: Final = FALSE_ALARM_FRACTION / 3 / 4
"""Significance level of each of the four tests of warm-up and drain in TTFT and TPOT: the remaining
third."""
MATTERS_RATIO: Final = 1.1
"""Smaller ratios of means are ignored, even if significant."""
_N_TREND_BATCHES: Final = 20
_MIN_TREND_BATCHES: Final = 8
_MAX_BATCH_CORRELATION_RATIO: Final = 0.4
"""Batches with a smaller lag-1 correlation count as independent: two standard errors at 20 batches.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """Trend of positive samples, in the order in which they were taken."""

    ratio: float
    """Geometric mean of the last third of the samples / of the first third."""
    chance_fraction: float
    """p-value: probability of such a trend in samples without one."""
    is_drifting: bool
    """Is the trend significant, and larger than ``MATTERS_RATIO``?"""


def warm_up(samples: ArrayLike) -> int:
    """The number of samples at the start of a run that belong to its warm-up.

    They differ from the rest significantly. 0 if none do, or if there are too few samples. Samples
    are positive.

    Example
    -------
    >>> rng = np.random.default_rng(1)
    >>> warm_up(np.concatenate([5 * rng.lognormal(size=40) ** 0.2, rng.lognormal(size=400) ** 0.2]))
    45
    """
    logs = _logs(samples)
    if logs.size < MIN_SAMPLES:
        return 0
    n_cut = mser(logs)
    return (
        n_cut
        if n_cut and _differ(logs[:n_cut], logs[n_cut:], n_tried=_n_tried(logs.size // MSER_BATCH))
        else 0
    )


def mser(samples: ArrayLike) -> int:
    """The number of samples that MSER-5 cuts off at the start: a multiple of 5, at most half."""
    array = np.asarray(samples, dtype=np.float64)
    n_batches = array.size // MSER_BATCH
    if n_batches < 2:
        return 0
    means = array[: n_batches * MSER_BATCH].reshape(n_batches, MSER_BATCH).mean(axis=1)
    left = np.arange(n_batches, 0, -1)
    sums = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum((means**2)[::-1])[::-1]
    errors = (squares - sums**2 / left) / left.astype(np.float64) ** 2
    return int(np.argmin(errors[: _n_tried(n_batches)])) * MSER_BATCH


def _n_tried(n_batches: int) -> int:
    """The number of positions among which the best cut is chosen."""
    return max(1, math.floor(n_batches * _MOST_CUT_FRACTION) + 1)


def trend(samples: ArrayLike) -> Trend | None:
    """Trend of positive samples, by Kendall's test on independent batches; None: too few samples.

    Example
    -------
    >>> trend(np.linspace(1, 2, 400)).is_drifting
    True
    """
    logs = _logs(samples)
    n_third = logs.size // 3
    if logs.size < MIN_SAMPLES:
        return None
    batches = _independent_batches(logs)
    ratio = math.exp(float(logs[-n_third:].mean() - logs[:n_third].mean()))
    chance = _chance_of_trend(batches)
    matters = max(ratio, 1 / ratio) > MATTERS_RATIO
    return Trend(
        ratio=ratio, chance_fraction=chance, is_drifting=matters and chance < _TREND_CHANCE_FRACTION
    )


class _Batches(NamedTuple):
    """Means of consecutive batches, as many as are independent of one another."""

    means: _Floats
    n_each: int
    correlation_ratio: float
    """Lag-1 correlation after removing a linear trend; 0 for the fewest batches, where correlation
    cannot be distinguished from a drift."""


def _independent_batches(logs: _Floats) -> _Batches:
    """Divide samples into the largest number of batches that are independent.

    If there is none, into the smallest number: the samples drift, or the run is too short to
    distinguish a drift from long autocorrelation.
    """
    n_batches = min(_N_TREND_BATCHES, logs.size // MSER_BATCH)
    while n_batches - 4 >= _MIN_TREND_BATCHES:
        means = _means(logs, n_batches)
        seen = _correlation_ratio(means)
        if seen < _MAX_BATCH_CORRELATION_RATIO:
            return _Batches(means, logs.size // n_batches, max(seen, 0.0))
        n_batches -= 4
    return _Batches(_means(logs, n_batches), logs.size // n_batches, 0.0)


def _correlation_ratio(means: _Floats) -> float:
    """Lag-1 correlation of the means after removing a linear trend."""
    place = np.arange(means.size) - (means.size - 1) / 2
    rest = means - means.mean() - place * float(place @ means) / float(place @ place)
    scale = float(rest @ rest)
    return float(rest[1:] @ rest[:-1]) / scale if scale > 0 else 0.0


def _chance_of_trend(batches: _Batches) -> float:
    """p-value of Kendall's trend test (1938): normal approximation, accurate from 8 batches on."""
    means, n = batches.means, batches.means.size
    concordant = float(np.sign(means[None, :] - means[:, None])[np.triu_indices(n, 1)].sum())
    memory_ratio = (1 + batches.correlation_ratio) / (1 - batches.correlation_ratio)
    deviation = math.sqrt(memory_ratio * n * (n - 1) * (2 * n + 5) / 18)
    return min(1.0, 2 * float(scipy.special.ndtr(-max(abs(concordant) - 1, 0) / deviation)))


def _differ(first: _Floats, rest: _Floats, *, n_tried: int) -> bool:
    """Do the means before and after a cut differ significantly, and by ``MATTERS_RATIO`` or more?

    Autocorrelation is estimated from the samples after the cut. The cut is the best of ``n_tried``
    positions, so the p-value is multiplied by their number (Bonferroni). That is conservative for
    neighbouring cuts, which are almost the same; but the best cut also leaves the rest with the
    least variance, which makes the p-value too small.
    """
    gap = abs(float(first.mean() - rest.mean()))
    is_long = independent_samples(rest <= float(np.median(rest))) >= MIN_INDEPENDENT_SAMPLES
    if gap < math.log(MATTERS_RATIO) or not is_long:
        return False
    batches = _independent_batches(rest)
    memory_ratio = (1 + batches.correlation_ratio) / (1 - batches.correlation_ratio)
    variance_of_one = float(batches.means.var(ddof=1)) * batches.n_each * memory_ratio
    error = math.sqrt(
        max(variance_of_one, float(rest.var(ddof=1))) * (1 / first.size + 1 / rest.size)
    )
    if error == 0:
        return True
    return (
        2 * float(scipy.special.stdtr(batches.means.size - 1, -gap / error)) * n_tried
        < _CUT_CHANCE_FRACTION
    )


def _means(samples: _Floats, n_batches: int) -> _Floats:
    n_each = samples.size // n_batches
    return np.asarray(
        samples[samples.size - n_each * n_batches :].reshape(n_batches, n_each).mean(axis=1),
        dtype=np.float64,
    )


def _logs(samples: ArrayLike) -> _Floats:
    array = np.asarray(samples, dtype=np.float64)
    return np.asarray(np.log(np.maximum(array, np.finfo(np.float64).tiny)), dtype=np.float64)
