"""Comparison of two sets of repeats: lower, higher, equivalent or undecided.

The ratio of two sets is the Hodges-Lehmann shift of their logarithms: the median of all pairwise
ratios. Its interval inverts the Mann-Whitney test. So it assumes nothing about the shape of the
distribution, only that it is the same in both sets. Source: Hollander, Wolfe and Chicken,
Nonparametric Statistical Methods (3rd ed.), sections 4.2 and 4.3.

If the result is looked at after each pair of measurements, an interval for a fixed sample size errs
far more often than it states. The interval of ``pair_gain`` is valid at all looks together (a
*confidence sequence*): it inverts the Bayes factor of a t-test with right-Haar scale and a normal
prior on the effect, which is a test martingale under the null hypothesis (Ville's inequality). It
assumes that the logarithms of the pairs' ratios are normal. Sources: Wang and Ramdas, Anytime-valid
t-tests and confidence sequences for Gaussian means with unknown variance (2023); Rouder et al.,
Bayesian t tests (2009), equation 3. If the machine is busy with something else for a moment, one
pair is an outlier, and with it no gain would be significant. So values beyond six scaled median
absolute deviations from the median are first set to that limit (Winsorizing; Huber and Ronchetti,
Robust Statistics, 2nd ed., section 1.3). ``bench/bench_tune.py pairs`` measures the effect: error
rates stay below the stated ones.

A second test uses only the signs of the gains (``sign_evidence``). It detects a gain that differs
much between pairs, which the test of the mean does not. Each test gets an equal share of the error
probability.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from inferometer.stats.estimate import Estimate
from inferometer.stats.quantiles import (
    DEFAULT_CONFIDENCE_FRACTION,
    median_estimate,
    present_samples,
)

ComparisonVerdict: TypeAlias = Literal["lower", "higher", "equivalent", "undecided"]

_ORDER_SEED: Final = 0xAB
"""Beside the caller's: who comes first has nothing to do with what is drawn for the requests."""
_MAX_EXACT_PAIRS = 2500
"""For more pairs of samples the normal approximation of the Mann-Whitney distribution is used,
which is accurate to 0.1 % there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Ratio of the new repeats to the old, and the verdict."""

    ratio: Estimate
    """New / old."""
    margin_ratio: float
    """Relative differences up to this one do not matter to the user."""
    verdict: ComparisonVerdict
    """*equivalent*: the whole interval is within the margin. *lower*, *higher*: the interval
    excludes 1 and is not within the margin."""
    n_to_decide: int | None
    """Repeats of each side that would probably decide, if undecided (``repeats_to_decide``)."""


def compare(
    new: ArrayLike,
    old: ArrayLike,
    *,
    margin_ratio: float = 0.02,
    confidence_fraction: float = DEFAULT_CONFIDENCE_FRACTION,
) -> Comparison | None:
    """Compare new repeats with old ones; all samples are positive. None if a side has none.

    Example
    -------
    >>> compare([9.0, 9.1, 9.2, 8.9], [10.0, 10.1, 9.9, 10.2]).verdict
    'lower'
    """
    ratio = ratio_estimate(new, old, confidence_fraction=confidence_fraction)
    if ratio is None:
        return None
    return _compared(ratio, new, old, margin_ratio=margin_ratio, is_paired=False)


def compare_pairs(
    new: ArrayLike,
    old: ArrayLike,
    *,
    margin_ratio: float = 0.02,
    confidence_fraction: float = DEFAULT_CONFIDENCE_FRACTION,
) -> Comparison | None:
    """Compare pairs of repeats that were measured one right after the other: shared effects cancel.

    The ratio is the median of the pairs' ratios with the interval of the sign test, which assumes
    nothing about their distribution. It has no interval below 6 pairs at 95 %. Pairs with an absent
    value (NaN) are dropped.

    Example
    -------
    >>> compare_pairs([9.0, 18.1, 27.2, 8.9, 9.1, 9.05], [10.0, 20.1, 29.9, 10.2, 10, 10.1]).verdict
    'lower'
    """
    pairs = np.column_stack([np.asarray(new, np.float64), np.asarray(old, np.float64)])
    pairs = pairs[np.isfinite(pairs).all(axis=1)]
    if len(pairs) == 0:
        return None
    if pairs.min() <= 0:
        raise ValueError("a ratio needs positive samples")
    ratio = median_estimate(pairs[:, 0] / pairs[:, 1], confidence_fraction=confidence_fraction)
    if ratio is None:
        return None
    ratio = replace(ratio, method=f"median of the ratios of {len(pairs)} pairs; {ratio.method}")
    return _compared(ratio, *pairs.T, margin_ratio=margin_ratio, is_paired=True)


def _compared(
    ratio: Estimate, new: ArrayLike, old: ArrayLike, *, margin_ratio: float, is_paired: bool
) -> Comparison:
    """The comparison with this ratio: its verdict, and how many repeats would decide."""
    verdict, n_to_decide = _verdict(ratio, margin_ratio), None
    if verdict == "undecided":
        n_to_decide = repeats_to_decide(
            new,
            old,
            margin_ratio=margin_ratio,
            confidence_fraction=ratio.confidence_fraction,
            is_paired=is_paired,
        )
    return Comparison(
        ratio=ratio, margin_ratio=margin_ratio, verdict=verdict, n_to_decide=n_to_decide
    )


def ratio_estimate(
    new: ArrayLike, old: ArrayLike, *, confidence_fraction: float = DEFAULT_CONFIDENCE_FRACTION
) -> Estimate | None:
    """Ratio of the new repeats to the old; no interval for too few (below 4 and 4 at 95 %)."""
    new_present, old_present = present_samples(new), present_samples(old)
    if new_present.size == 0 or old_present.size == 0:
        return None
    if new_present.min() <= 0 or old_present.min() <= 0:
        raise ValueError("a ratio needs positive samples")
    ratios = np.sort(
        (np.log(new_present)[:, np.newaxis] - np.log(old_present)[np.newaxis, :]).ravel()
    )
    rank = _low_rank(new_present.size, old_present.size, confidence_fraction=confidence_fraction)
    name = "median of pairwise ratios (Hodges-Lehmann)"
    n = min(new_present.size, old_present.size)
    value = float(np.exp(np.median(ratios)))
    if rank is None:
        method = (
            f"{name}; {new_present.size} against {old_present.size} repeats are too few for a"
            f" {confidence_fraction * 100:g} % interval"
        )
        return Estimate(
            value=value,
            low=None,
            high=None,
            confidence_fraction=confidence_fraction,
            n_samples=n,
            method=method,
        )
    return Estimate(
        value=value,
        low=min(value, float(np.exp(ratios[rank - 1]))),
        high=max(value, float(np.exp(ratios[-rank]))),
        confidence_fraction=confidence_fraction,
        n_samples=n,
        method=f"{name}; Mann-Whitney interval of {new_present.size} against {old_present.size}",
    )


def _verdict(ratio: Estimate, margin_ratio: float) -> ComparisonVerdict:
    """The verdict on a ratio by its interval (see ``Comparison.verdict``)."""
    if ratio.low is None or ratio.high is None:
        return "undecided"
    if ratio.low >= 1 / (1 + margin_ratio) and ratio.high <= 1 + margin_ratio:
        return "equivalent"
    if ratio.high < 1:
        return "lower"
    return "higher" if ratio.low > 1 else "undecided"


def _low_rank(n_new: int, n_old: int, *, confidence_fraction: float) -> int | None:
    """Rank (from 1) of the pairwise difference that bounds the shift from below; None: too few.

    The largest rank r with P(U <= r - 1) <= (1 - confidence) / 2.
    """
    tail = (1 - confidence_fraction) / 2
    n_pairs = n_new * n_old
    if n_pairs > _MAX_EXACT_PAIRS:
        spread = math.sqrt(n_pairs * (n_new + n_old + 1) / 12)
        return max(1, math.floor(n_pairs / 2 + 0.5 + float(scipy.special.ndtri(tail)) * spread))
    counts = np.array(_mann_whitney_counts(min(n_new, n_old), max(n_new, n_old)), dtype=np.float64)
    rank = int(np.count_nonzero(np.cumsum(counts) / counts.sum() <= tail))
    return rank or None


@cache
def _mann_whitney_counts(n_few: int, n_many: int) -> tuple[int, ...]:
    """The numbers of orders of n_few + n_many samples with the Mann-Whitney statistic U = 0, 1, …

    They are the coefficients of the Gaussian binomial.
    """
    n_pairs = n_few * n_many
    counts = [1] + [0] * n_pairs
    for i in range(1, n_few + 1):
        above, below = n_many + i, i
        for u in range(n_pairs, above - 1, -1):
            counts[u] -= counts[u - above]
        for u in range(below, n_pairs + 1):
            counts[u] += counts[u - below]
    return tuple(counts)


POWER_FRACTION: Final = 0.8
"""Probability that the suggested number of repeats decides, if they scatter like the observed."""
_LEAST_REPEATS: Final = 4
"""Fewest repeats from which the scatter is estimated."""
_MOST_REPEATS: Final = 10_000
"""Larger numbers of repeats are not suggested."""


def repeats_to_decide(
    new: ArrayLike,
    old: ArrayLike,
    *,
    margin_ratio: float,
    confidence_fraction: float,
    is_paired: bool,
) -> int | None:
    """Repeats of each side that would decide the comparison with a probability of 80 %.

    That is the number from which on the interval is expected to exclude 1, or to be within the
    margin, whichever is smaller; if the true difference and scatter are the observed ones.

    Parameters
    ----------
    new, old
        (N,) and (M,) positive samples, NaN where a repeat has none; with ``is_paired`` as many.

    Returns
    -------
    None if a side has fewer than 4 repeats, or if 10,000 would not decide.

    Source
    ------
    Noether, Sample size determination for some common nonparametric tests (1987).

    Example
    -------
    >>> rule = {"margin_ratio": 0.02, "confidence_fraction": 0.95, "is_paired": False}
    >>> repeats_to_decide([0.98, 1.02, 1.1, 1.06], [0.95, 1.0, 1.05, 1.02], **rule)
    32
    """
    logs_new, logs_old = (np.log(np.asarray(side, np.float64)) for side in (new, old))
    gaps = (
        logs_new - logs_old
        if is_paired
        else (logs_new[:, np.newaxis] - logs_old[np.newaxis, :]).ravel()
    )
    sides = [_finite(gaps)] if is_paired else [_finite(logs_new), _finite(logs_old)]
    n_now = min(side.size for side in sides)
    if n_now < _LEAST_REPEATS:
        return None
    shift = abs(float(np.median(_finite(gaps))))
    scatter = math.sqrt(sum(float(side.var(ddof=1)) for side in sides))
    tail = float(scipy.special.ndtri((1 + confidence_fraction) / 2))
    room = math.log1p(margin_ratio) - shift
    # Both ends of the interval must be within the margin: each may fail with half of 1 - power.
    needed = min(
        _n_repeats(far, scatter, tail + float(scipy.special.ndtri(power)), is_paired=is_paired)
        for far, power in ((shift, POWER_FRACTION), (room, (1 + POWER_FRACTION) / 2))
    )
    return None if needed > _MOST_REPEATS else max(math.ceil(needed), n_now + 1)


def _n_repeats(far: float, scatter: float, errors: float, *, is_paired: bool) -> float:
    """Noether's sample size of the sign test (``is_paired``) or of the Mann-Whitney test."""
    if far <= 0:
        return math.inf
    more_often = (float(scipy.special.ndtr(far / scatter)) if scatter else 1.0) - 0.5
    return (errors / more_often) ** 2 / (4 if is_paired else 6)


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[np.isfinite(values)]


_N_PARTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Change of the samples from the first third to the last third of a run."""

    ratio: Estimate
    """Last third / first third."""
    verdict: ComparisonVerdict
    """*equivalent*: any drift is within the margin. *undecided*: too few or too noisy samples."""


def drift(samples: ArrayLike, *, margin_ratio: float = 0.02) -> Drift | None:
    """Drift of positive samples, in the order in which they were taken; None below three samples.

    Example
    -------
    >>> drift([10, 10.1, 9.9, 10.05, 10.5, 10.6, 10.7, 10.6, 12, 12.1, 12.2, 12.05]).verdict
    'higher'
    """
    present = present_samples(samples)
    n_third = present.size // _N_PARTS
    if n_third == 0:
        return None
    compared = compare(present[-n_third:], present[:n_third], margin_ratio=margin_ratio)
    return None if compared is None else Drift(ratio=compared.ratio, verdict=compared.verdict)


def lag_1_correlation_ratio(samples: ArrayLike) -> float | None:
    """Lag-1 autocorrelation (intervals assume 0); None below 8 samples or without variance."""
    present = present_samples(samples)
    centred = present - present.mean() if present.size else present
    scale = float((centred**2).sum())
    if present.size < 8 or scale == 0:
        return None
    return float(np.dot(centred[1:], centred[:-1])) / scale


PairDecision: TypeAlias = Literal["keep", "drop", "go on"]

_PRIOR_VARIANCE: Final = 8.0
"""Prior variance of effect / scatter, chosen so that intervals are narrow after 3 to 8 pairs."""
_LEAST_PAIRS: Final = 2
"""The t-test needs a scatter. Of two pairs the interval is finite for confidences below 76 % alone,
and 16 standard deviations wide there: it shows a gain that is far above the scatter."""
_LEAST_WINSORIZED: Final = 5
_FAR_RATIO: Final = 6.0
_NORMAL_MAD_RATIO: Final = 1.4826
"""Standard deviation of a normal distribution / its median absolute deviation."""
_OPTIMISM_RATIO: Final = 2.0
"""Standard errors by which the true gain is assumed to be better than the observed one before a
trial counts as futile. With 1.5, one in 25 true gains of 5 % was dropped (``bench/bench_tune.py
pairs``)."""
_LEAST_FUTILE: Final = 4
"""Fewest pairs after which a trial can be futile: one outlier in three pairs hides any gain."""
_BET_SHARES: Final = (0.95, 0.9)
"""Shares of pairs with a gain that the sign test bets on: with them 5 of 5 pairs, or 9 of 10, are
evidence of 20 to 1."""
_N_TESTS: Final = 2
"""Tests of each series of log ratios: one of the mean, one of the signs."""


def pair_gain(log_ratios: Sequence[float], *, confidence_fraction: float) -> Estimate | None:
    """The gain (ratio - 1) of B over A, with an interval that is valid at every look.

    Parameters
    ----------
    log_ratios
        (N,) Logarithms of score of B / score of A.
    confidence_fraction
        Confidence of the two-sided interval, over all looks together.

    Returns
    -------
    The geometric mean of the ratios minus 1, with outliers limited from 5 pairs on. None without
    pairs; no interval of one pair, nor of two with a confidence of 76 % or more.

    Example
    -------
    >>> gain = pair_gain([0.05, 0.06, 0.04, 0.05], confidence_fraction=0.9)
    >>> round(gain.value, 3), gain.low > 0
    (0.051, True)
    """
    if not log_ratios:
        return None
    logs = _winsorized(log_ratios)
    n, mean = int(logs.size), float(logs.mean())
    width = _half_width_ratio(n, 1 - confidence_fraction)
    half = None if width is None else width * float(logs.std(ddof=1))
    return Estimate(
        value=math.expm1(mean),
        low=None if half is None else math.expm1(mean - half),
        high=None if half is None else math.expm1(mean + half),
        confidence_fraction=confidence_fraction,
        n_samples=n,
        method=f"geometric mean of {n} pairs; interval valid at every look (t confidence sequence)",
    )


def _winsorized(log_ratios: Sequence[float]) -> NDArray[np.float64]:
    """(N,) The log ratios with outliers limited to six scaled median absolute deviations.

    Fewer than 5 are returned unchanged: their scatter is not known well enough.
    """
    logs = np.asarray(log_ratios, np.float64)
    middle, scale = _robust(logs)
    if logs.size < _LEAST_WINSORIZED or scale == 0:
        return logs
    return np.clip(logs, middle - _FAR_RATIO * scale, middle + _FAR_RATIO * scale)


def _robust(logs: NDArray[np.float64]) -> tuple[float, float]:
    """The median, and the median absolute deviation scaled to a standard deviation."""
    middle = float(np.median(logs))
    return middle, _NORMAL_MAD_RATIO * float(np.median(np.abs(logs - middle)))


def _half_width_ratio(n: int, error_fraction: float) -> float | None:
    """Half width of a mean's interval / the n values' standard deviation; None: infinite."""
    if n < _LEAST_PAIRS:
        return None
    shrunk = 1 + n * _PRIOR_VARIANCE
    bound = (shrunk / error_fraction**2) ** (1 / n)
    if bound >= shrunk:
        return None
    return math.sqrt((n - 1) * (bound - 1) / (1 - bound / shrunk) / n)


def first_sides(n_pairs: int, *seeds: int) -> tuple[int, ...]:
    """Side (0 or 1) that comes first in each pair: each in half of them, in random order."""
    rng = np.random.default_rng([_ORDER_SEED, *seeds])
    begins = int(rng.integers(2))
    return tuple(map(int, rng.permutation([(begins + pair) % 2 for pair in range(n_pairs)])))


def is_futile(
    log_ratios: Sequence[float],
    *,
    n_most: int,
    least_gain_ratio: float,
    confidence_fraction: float,
) -> bool:
    """Is it unlikely that ``n_most`` pairs would show a gain, so that the trial can stop?

    True if the gain would not be significant after ``n_most`` pairs even if it were two standard
    errors larger than observed: both by mean and standard deviation, and by median and median
    absolute deviation. A trial that stops for this accepts no change, so errors do not increase.

    Example
    -------
    >>> limits = {"n_most": 10, "least_gain_ratio": 0.02, "confidence_fraction": 0.9}
    >>> is_futile([0.01, -0.01, 0.0, 0.0], **limits), is_futile([0.05, 0.02, 0.08], **limits)
    (True, False)
    """
    width = _half_width_ratio(n_most, 1 - confidence_fraction)
    if len(log_ratios) < _LEAST_FUTILE or width is None:
        return False
    logs = _winsorized(log_ratios)
    return all(
        middle + _OPTIMISM_RATIO * scale / math.sqrt(logs.size)
        < max(width * scale, math.log1p(least_gain_ratio))
        for middle, scale in ((float(logs.mean()), float(logs.std(ddof=1))), _robust(logs))
    )


def decide_pairs(gain: Estimate | None, *, least_gain_ratio: float) -> PairDecision:
    """Decide whether to keep a change, drop it, or go on measuring, by the interval of its gain.

    Example
    -------
    >>> decide_pairs(pair_gain([0.0, 0.01, -0.01, 0.0], confidence_fraction=0.9), least_gain_ratio=0.05)
    'drop'
    """
    if gain is None or gain.low is None or gain.high is None:
        return "go on"
    if gain.high < max(least_gain_ratio, 0):
        return "drop"
    return "keep" if gain.low > 0 and gain.value >= least_gain_ratio else "go on"


class PairJudgement(NamedTuple):
    """Decision and gain by pairs."""

    decision: PairDecision
    gain: Estimate | None
    """Gain of the series with the narrowest interval, which is valid for all series together."""


def judge_pairs(
    series: Sequence[Sequence[float]], *, least_gain_ratio: float, confidence_fraction: float
) -> PairJudgement:
    """Decide on a change by several series of pairs, whose tests share the error (Bonferroni).

    Parameters
    ----------
    series
        (K, N) Log ratios of the same N pairs: as measured, and corrected for known effects.
    confidence_fraction
        Confidence over all tests and looks together, two-sided.

    Example
    -------
    >>> skewed = [0.02, 0.9, 0.05, 0.4, 1.4, 0.03, 0.1]
    >>> limits = {"least_gain_ratio": 0.02, "confidence_fraction": 0.9}
    >>> judge_pairs([skewed], **limits).decision
    'keep'
    >>> decide_pairs(pair_gain(skewed, confidence_fraction=0.9), least_gain_ratio=0.02)
    'go on'
    """
    share = (1 - confidence_fraction) / 2 / (_N_TESTS * len(series))
    gains = [pair_gain(logs, confidence_fraction=1 - 2 * share) for logs in series]
    decisions = [decide_pairs(gain, least_gain_ratio=least_gain_ratio) for gain in gains]
    decisions += [
        _decide_signs(logs, gain, least_gain_ratio, 1 / share)
        for logs, gain in zip(series, gains, strict=True)
    ]
    decision: PairDecision = "go on"
    if "keep" in decisions:
        decision = "keep"
    elif "drop" in decisions:
        decision = "drop"
    return PairJudgement(decision, min(gains, key=_width))


def _width(gain: Estimate | None) -> float:
    """Width of the gain's interval; infinite without one."""
    return (
        math.inf if gain is None or gain.high is None or gain.low is None else gain.high - gain.low
    )


def _decide_signs(
    logs: Sequence[float], gain: Estimate | None, least_gain_ratio: float, enough: float
) -> PairDecision:
    """Keep a change that gains in nearly every pair, and enough in the median and the mean."""
    if gain is None or sign_evidence(logs) < enough:
        return "go on"
    middle = math.expm1(float(np.median(logs)))
    return "keep" if min(gain.value, middle) >= least_gain_ratio else "go on"


def sign_evidence(log_ratios: Sequence[float]) -> float:
    """Evidence that more than half of the pairs gain: the growth of a stake that is bet on it.

    Of two equal servers, either gains in half of the pairs, whatever the distribution. So at even
    odds at most one in E such series ever reaches a factor of E (a test martingale: Ville's
    inequality; Shafer, Testing by betting, 2021).

    Example
    -------
    >>> round(sign_evidence([0.1] * 5), 1), round(sign_evidence([0.1, 0.2, -0.1]), 1)
    (21.8, 0.5)
    """
    n_gains = sum(one > 0 for one in log_ratios)
    n_others = len(log_ratios) - n_gains
    bets = [(2 * share) ** n_gains * (2 * (1 - share)) ** n_others for share in _BET_SHARES]
    return sum(bets) / len(bets)


def chance_of_more(n_hits: int, n: int, n_hits_before: int, n_before: int) -> float:
    """p-value of the binomial test that the first of two groups has a higher rate of hits.

    Given the hits of both groups together (Przyborowski and Wilenski, 1940).

    Example
    -------
    >>> round(chance_of_more(7, 200, 0, 200), 4), chance_of_more(0, 200, 0, 200)
    (0.0078, 1.0)
    """
    if not n_hits:
        return 1.0
    return float(scipy.special.bdtrc(n_hits - 1, n_hits + n_hits_before, n / (n + n_before)))
