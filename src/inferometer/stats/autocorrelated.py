"""Intervals of quantiles, means and shares of one run, whose samples are autocorrelated.

Requests that meet the same queue are late together, so n of them carry less information than n
independent ones. The share of samples below the quantile is computed in consecutive batches. Its
variance between batches, divided by that of independent samples, is the *inflation*; n divided by
the inflation is the effective sample size. The interval is the binomial one of ``estimate`` for
that many samples. Batches of three lengths are tried and the largest inflation is used, since
batches that are too short hide correlation. A run with a small effective sample size has no
interval, however many requests it has.

Source: batch means, Law and Kelton, Simulation Modeling and Analysis (3rd ed.), sections 9.5.2
and 9.5.3; of the indicator for quantiles, Heidelberger and Lewis, Quantile Estimation in
Dependent Sequences, Operations Research 32 (1984).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, ndtr, stdtr, stdtrit

from inferometer.stats.estimate import (
    DEFAULT_CONFIDENCE_FRACTION,
    Estimate,
    interval_ranks,
    min_samples,
)

N_BATCHES: Final = (40, 20, 10)
"""Numbers of batches that are tried; with fewer than ten the variance between batches is itself
uncertain."""
MIN_SAMPLES: Final = 40
"""Fewest samples from which autocorrelation is estimated."""
MIN_INDEPENDENT_SAMPLES: Final = 10
"""Smallest effective sample size for an interval; below it, the size itself is too uncertain."""
MIN_SAMPLES_OF_A_BATCH: Final = 4
TABLED_FRACTIONS: Final = (0.5, 0.9, 0.95, 0.99, 0.999)
"""Quantiles that are shown in tables; their intervals must be in the order of the quantiles."""

_Floats = NDArray[np.float64]


class IntervalPlan(NamedTuple):
    """Ranks (from 0) of the samples that bound a quantile, and the method; None: too few."""

    low_rank: int | None
    high_rank: int | None
    method: str


def run_quantile_estimate(
    samples: ArrayLike,
    quantile_fraction: float,
    *,
    upper: ArrayLike | None = None,
) -> Estimate | None:
    """A quantile of one run; ``samples`` are in the order in which they were taken.

    None without samples. See ``run_quantile_estimates`` for the interval.

    Example
    -------
    >>> estimate = run_quantile_estimate(range(1000), 0.5)
    >>> estimate.method
    'quantile 0.5; n = 1000 is worth 6 independent samples; too small for a 95 % interval, which needs 10'
    """
    return next(iter(run_quantile_estimates(samples, (quantile_fraction,), upper=upper)), None)


def run_quantile_estimates(
    samples: ArrayLike,
    quantile_fractions: Sequence[float],
    *,
    upper: ArrayLike | None = None,
) -> tuple[Estimate, ...]:
    """Quantiles of one run; ``samples`` are in the order in which they were taken.

    Empty without samples. If ``samples`` are lower bounds (censored requests), ``upper`` has the
    upper bounds, infinite for a request that was never seen to end: the values and lower ends are
    computed from the lower bounds, the upper ends from the upper bounds.

    Each quantile has its own effective sample size, so that the interval of a higher quantile could
    begin or end below that of a lower one. Such intervals are widened until neither end decreases
    from quantile to quantile. ``TABLED_FRACTIONS`` are always included in this, so that a single
    quantile has the same interval as in a table.
    """
    lower = np.asarray(samples, dtype=np.float64)
    if lower.size == 0:
        return ()
    above = lower if upper is None else np.asarray(upper, dtype=np.float64)
    tabled = (
        fraction
        for fraction in TABLED_FRACTIONS
        if lower.size >= max(MIN_SAMPLES, min_samples(fraction))
    )
    sorted_lower, sorted_above = np.sort(lower), np.sort(above)
    estimates = {
        fraction: _quantile_alone(lower, sorted_lower, sorted_above, fraction)
        for fraction in sorted({*quantile_fractions, *tabled})
    }
    in_order = dict(zip(estimates, _in_order(list(estimates.values())), strict=True))
    return tuple(in_order[fraction] for fraction in quantile_fractions)


def _quantile_alone(
    lower: _Floats, sorted_lower: _Floats, sorted_above: _Floats, quantile_fraction: float
) -> Estimate:
    """A quantile with the interval of its own effective sample size, before any widening."""
    value = float(sorted_lower[quantile_rank(lower.size, quantile_fraction)])
    worth = independent_samples(lower <= value)
    plan = interval_plan(lower.size, worth, quantile_fraction)
    low = high = None
    if plan.low_rank is not None and plan.high_rank is not None:
        low, high = (
            min(float(sorted_lower[plan.low_rank]), value),
            max(float(sorted_above[plan.high_rank]), value),
        )
    return Estimate(
        value=value,
        low=low,
        high=high,
        confidence_fraction=DEFAULT_CONFIDENCE_FRACTION,
        n_samples=lower.size,
        method=plan.method,
    )


def _in_order(estimates: Sequence[Estimate]) -> list[Estimate]:
    """Estimates of ascending quantiles, with intervals widened so that no end decreases."""
    lows = [math.inf if estimate.low is None else estimate.low for estimate in estimates]
    highs = [-math.inf if estimate.high is None else estimate.high for estimate in estimates]
    least = np.minimum.accumulate(lows[::-1])[::-1].tolist()
    most = np.maximum.accumulate(highs).tolist()
    return [
        estimate
        if estimate.low is None or (low, high) == (estimate.low, estimate.high)
        else replace(
            estimate, low=low, high=high, method=f"{estimate.method}, widened to other quantiles'"
        )
        for estimate, low, high in zip(estimates, least, most, strict=True)
    ]


def quantile_rank(n_samples: int, quantile_fraction: float) -> int:
    """Rank (from 0) of a quantile: of the least sample that this share of all do not exceed.

    Example
    -------
    >>> quantile_rank(4, 0.5), quantile_rank(100, 0.95), quantile_rank(1, 0.99)
    (1, 94, 0)
    """
    return min(max(math.ceil(quantile_fraction * n_samples - 1e-9) - 1, 0), n_samples - 1)


def interval_plan(n_samples: int, worth: int, quantile_fraction: float) -> IntervalPlan:
    """Ranks that bound a quantile of ``n_samples`` samples with effective sample size ``worth``."""
    needed = max(MIN_INDEPENDENT_SAMPLES, min_samples(quantile_fraction))
    ranks = interval_ranks(
        worth, quantile_fraction, confidence_fraction=DEFAULT_CONFIDENCE_FRACTION
    )
    n_text = (
        f"n = {n_samples}"
        if worth == n_samples
        else f"n = {n_samples} is worth {worth} independent samples"
    )
    name = f"quantile {quantile_fraction:g}; {n_text}"
    if ranks is None or worth < needed or n_samples < MIN_SAMPLES:
        needed = max(needed, MIN_SAMPLES) if worth == n_samples else needed
        percent = f"{DEFAULT_CONFIDENCE_FRACTION * 100:g}"
        method = f"{name}; too small for a {percent} % interval, which needs {needed}"
        return IntervalPlan(None, None, method)
    low_rank = math.floor((ranks.low - 1) / worth * n_samples)
    high_rank = min(math.ceil(ranks.high / worth * n_samples) - 1, n_samples - 1)
    method = f"{name}, order statistics {ranks.low} and {ranks.high} of those"
    return IntervalPlan(low_rank, high_rank, method)


def run_mean_estimate(
    batch_means: ArrayLike,
    value: float,
    *,
    name: str,
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
            confidence_fraction=DEFAULT_CONFIDENCE_FRACTION,
            n_samples=max(means.size, 1),
            method=method,
        )
    halves: list[float] = []
    for n_batches in N_BATCHES:
        merged = _batch_means(means, n_batches)
        quantile = float(stdtrit(merged.size - 1, 0.5 + DEFAULT_CONFIDENCE_FRACTION / 2))
        halves.append(quantile * float(merged.std(ddof=1)) / math.sqrt(merged.size))
    half = max(halves)
    tried = f"{', '.join(str(n) for n in N_BATCHES[:-1])} and {N_BATCHES[-1]}"
    return Estimate(
        value=value,
        low=value - half,
        high=value + half,
        confidence_fraction=DEFAULT_CONFIDENCE_FRACTION,
        n_samples=means.size,
        method=f"{name}; batch means, widest of {tried} batches",
    )


def run_share_estimate(is_good: ArrayLike, *, name: str) -> Estimate | None:
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
            confidence_fraction=DEFAULT_CONFIDENCE_FRACTION,
            n_samples=good.size,
            method=method,
        )
    z = float(stdtrit(math.inf, 0.5 + DEFAULT_CONFIDENCE_FRACTION / 2))
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
        confidence_fraction=DEFAULT_CONFIDENCE_FRACTION,
        n_samples=good.size,
        method=method,
    )


def grouped_share(
    groups: Sequence[Sequence[bool]], *, confidence_fraction: float = 0.9
) -> Estimate:
    """Share of all members of G groups, whose members are correlated.

    Clopper and Pearson's interval at the effective sample size of Korn and Graubard (Survey
    Methodology 24, 1998); groups that do not differ count as one sample each. No interval of one
    group.

    Example
    -------
    >>> found = grouped_share([[True, True], [True, True], [False, False]])
    >>> round(found.low, 2), round(found.value, 2), round(found.high, 2)
    (0.01, 0.67, 1.0)
    """
    n = np.array([len(group) for group in groups], dtype=np.float64)
    good = np.array([sum(group) for group in groups], dtype=np.float64)
    value, n_all, n_groups = float(good.sum() / n.sum()), int(n.sum()), len(groups)
    method = f"share of {n_all} in {n_groups} groups"
    low = high = None
    if n_groups > 1:
        residual = float(np.square(good - value * n).sum())
        variance = n_groups / (n_groups - 1) * residual / n_all**2
        worth = float(n_groups)
        if variance > 0:
            wide, narrow = stdtrit((n_groups - 1, n_all - 1), 0.5 + confidence_fraction / 2)
            worth = value * (1 - value) / variance * float(narrow / wide) ** 2
            worth = min(max(worth, 1.0), float(n_all))
        tail = (1 - confidence_fraction) / 2
        low = float(betaincinv(value * worth, (1 - value) * worth + 1, tail)) if value else 0.0
        high = 1.0
        if value < 1:
            high = float(betaincinv(value * worth + 1, (1 - value) * worth, 1 - tail))
        method += f"; Clopper and Pearson's interval of {worth:.3g} independent samples"
    return Estimate(
        value=value,
        low=low,
        high=high,
        confidence_fraction=confidence_fraction,
        n_samples=n_all,
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
    """Effective sample size of a share, from its values in consecutive batches.

    ``means``: one array of batch means for each number of batches that is tried.
    """
    if share_fraction in {0.0, 1.0}:
        return n_samples
    inflation = 1.0
    for batch_means in means:
        array = np.asarray(batch_means, dtype=np.float64)
        # the variance of few batches is uncertain: widen as Student's t does the normal
        widening = (float(stdtrit(array.size - 1, 0.975)) / float(stdtrit(math.inf, 0.975))) ** 2
        n_each = n_samples // array.size
        inflation = max(
            inflation,
            widening * float(array.var(ddof=1)) * n_each / (share_fraction * (1 - share_fraction)),
        )
    return max(1, math.floor(n_samples / inflation))


def _batch_means(samples: _Floats, n_batches: int) -> _Floats:
    """Means of ``n_batches`` consecutive batches of equal length.

    The first samples, which are left over, are dropped: a run warms up there.
    """
    n_each = samples.size // n_batches
    means: _Floats = (
        samples[samples.size - n_each * n_batches :].reshape(n_batches, n_each).mean(axis=1)
    )
    return means


# The end of a run's warm-up, and whether the run is steady after it.
#
# Warm-up: the truncation that minimises the standard error of the rest (MSER-5), accepted only if
# the samples before it differ from the rest significantly and by `MATTERS_RATIO`. Logarithms are
# compared, so that one slow request is no warm-up. Trend: Kendall's test on means of consecutive
# batches, which are made longer until they are independent; the remaining correlation widens the
# null distribution. In `FALSE_ALARM_FRACTION` of steady runs one of all the tests raises a false
# alarm.
#
# Source: White, An Effective Truncation Heuristic for Bias Reduction in Simulation Output,
# Simulation 69 (1997); MSER-5 after White, Cobb and Spratt, A Comparison of Five Steady-State
# Truncation Heuristics for Simulation, Winter Simulation Conference (2000). Trend of
# autocorrelated samples: Hamed and Rao, A Modified Mann-Kendall Trend Test for Autocorrelated
# Data, Journal of Hydrology 204 (1998).


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
    return min(1.0, 2 * float(ndtr(-max(abs(concordant) - 1, 0) / deviation)))


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
    return 2 * float(stdtr(batches.means.size - 1, -gap / error)) * n_tried < _CUT_CHANCE_FRACTION


def _means(samples: _Floats, n_batches: int) -> _Floats:
    n_each = samples.size // n_batches
    return np.asarray(
        samples[samples.size - n_each * n_batches :].reshape(n_batches, n_each).mean(axis=1),
        dtype=np.float64,
    )


def _logs(samples: ArrayLike) -> _Floats:
    array = np.asarray(samples, dtype=np.float64)
    return np.asarray(np.log(np.maximum(array, np.finfo(np.float64).tiny)), dtype=np.float64)
