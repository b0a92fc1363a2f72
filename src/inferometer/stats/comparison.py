"""Is one set of repeats faster than another, the same, or undecided?

The ratio of two sets is the Hodges-Lehmann shift of their logarithms: the median of all pairwise
ratios. Its interval inverts the Mann-Whitney test, so it assumes nothing of the distribution's
shape, only that both have the same. Source: Hollander, Wolfe and Chicken, Nonparametric
Statistical Methods (3rd ed.), sections 4.2 and 4.3.

Pairs that are looked at after each one need another interval: one of a fixed size errs far more
often than it states. That of ``pair_gain`` holds at all looks together (a *confidence sequence*):
it inverts the Bayes factor of a t-test with right-Haar scale and a normal prior on the effect,
which is a test martingale under the null hypothesis (Ville's inequality). It assumes that the
logarithms of the pairs' ratios are normal. Sources: Wang and Ramdas, Anytime-valid t-tests and
confidence sequences for Gaussian means with unknown variance (2023); Rouder et al., Bayesian t
tests (2009), equation 3. A machine that does something else for a moment makes one pair an outlier,
beside which no gain is sure: what lies further than six scaled median absolute deviations from the
median is drawn in to there first (Winsorizing; Huber and Ronchetti, Robust Statistics, 2nd ed.,
section 1.3). ``bench/bench_tune.py pairs`` shows what this costs: errors stay below the stated ones.

Beside it, signs alone are bet on (``sign_evidence``): it sees a gain that differs much between
pairs, which a mean does not. Each test gets an equal share of the error.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtrc, ndtr, ndtri

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
"""Above this many pairs the normal approximation of the Mann-Whitney distribution is used: exact
within 0.1 % there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Ratio of the new repeats to the old, and the verdict."""

    ratio: Estimate
    """New / old."""
    margin_ratio: float
    """Differences up to this share do not matter to the user."""
    verdict: ComparisonVerdict
    """*equivalent*: the whole interval lies within the margin. *lower*, *higher*: it excludes 1,
    and does not lie within the margin."""
    n_to_decide: int | None
    """Repeats of each side that would decide, if undecided (``repeats_to_decide``)."""


def compare(
    new: ArrayLike,
    old: ArrayLike,
    *,
    margin_ratio: float = 0.02,
    confidence_fraction: float = DEFAULT_CONFIDENCE_FRACTION,
) -> Comparison | None:
    """Are the new repeats lower, higher or equivalent, or is that undecided?

    All samples positive; None where a side has none.

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
    """As ``compare``, for pairs made next to each other: shared effects cancel.

    The ratio is the median of the pairs' ratios with the interval of the sign test, which
    assumes nothing of their distribution: no interval below 6 pairs at 95 %. A pair of which one
    is absent (NaN) does not count.

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
    if ratio.low is None or ratio.high is None:
        return "undecided"
    if ratio.low >= 1 / (1 + margin_ratio) and ratio.high <= 1 + margin_ratio:
        return "equivalent"
    if ratio.high < 1:
        return "lower"
    return "higher" if ratio.low > 1 else "undecided"


def _low_rank(n_new: int, n_old: int, *, confidence_fraction: float) -> int | None:
    """Rank of the sorted pairwise difference that bounds the shift from below.

    The largest rank r with P(U <= r - 1) <= tail.
    """
    tail = (1 - confidence_fraction) / 2
    n_pairs = n_new * n_old
    if n_pairs > _MAX_EXACT_PAIRS:
        spread = math.sqrt(n_pairs * (n_new + n_old + 1) / 12)
        return max(1, math.floor(n_pairs / 2 + 0.5 + float(ndtri(tail)) * spread))
    counts = np.array(_mann_whitney_counts(min(n_new, n_old), max(n_new, n_old)), dtype=np.float64)
    rank = int(np.count_nonzero(np.cumsum(counts) / counts.sum() <= tail))
    return rank or None


@cache
def _mann_whitney_counts(n_few: int, n_many: int) -> tuple[int, ...]:
    """Number of orders of n_few + n_many samples with U = 0, 1, …

    Coefficients of the Gaussian binomial.
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
"""Probability that the suggested number of repeats decides, at the observed scatter."""
_LEAST_OF_SCATTER: Final = 4
"""Fewer show too little of how they scatter."""
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
    """Repeats of each side that would decide four times in five.

    As many as it takes until the interval is expected to leave out 1, or to lie within the margin,
    whichever takes fewer: where the logarithms scatter, and differ, as they do here.

    Parameters
    ----------
    new, old
        (N,) and (M,) positive samples, NaN where a repeat has none; with ``is_paired`` as many.

    Returns
    -------
    None where a side has fewer than 4 repeats, or where 10,000 would not decide.

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
    if n_now < _LEAST_OF_SCATTER:
        return None
    shift = abs(float(np.median(_finite(gaps))))
    scatter = math.sqrt(sum(float(side.var(ddof=1)) for side in sides))
    tail = float(ndtri((1 + confidence_fraction) / 2))
    room = math.log1p(margin_ratio) - shift
    # To lie within the margin, both ends of the interval must: each has half of what may fail.
    needed = min(
        _n_repeats(far, scatter, tail + float(ndtri(power)), is_paired=is_paired)
        for far, power in ((shift, POWER_FRACTION), (room, (1 + POWER_FRACTION) / 2))
    )
    return None if needed > _MOST_REPEATS else max(math.ceil(needed), n_now + 1)


def _n_repeats(far: float, scatter: float, errors: float, *, is_paired: bool) -> float:
    """Noether's sample sizes of the sign test and of the Mann-Whitney test."""
    if far <= 0:
        return math.inf
    more_often = (float(ndtr(far / scatter)) if scatter else 1.0) - 0.5
    return (errors / more_often) ** 2 / (4 if is_paired else 6)


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[np.isfinite(values)]


_N_PARTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Change of the samples from their first to their last third."""

    ratio: Estimate
    """Last third / first third."""
    verdict: ComparisonVerdict
    """*equivalent*: any drift is within the margin. *undecided*: too few or too noisy samples to
    tell."""


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
    """Correlation of neighbours (intervals assume 0); None below 8 samples or without variance."""
    present = present_samples(samples)
    centred = present - present.mean() if present.size else present
    scale = float((centred**2).sum())
    if present.size < 8 or scale == 0:
        return None
    return float(np.dot(centred[1:], centred[:-1])) / scale


PairDecision: TypeAlias = Literal["keep", "drop", "go on"]

_PRIOR_VARIANCE: Final = 8.0
"""Prior variance of effect / scatter: intervals are narrowest after 3 to 8 pairs."""
_LEAST_PAIRS: Final = 3
_LEAST_DRAWN_IN: Final = 5
_FAR_RATIO: Final = 6.0
_NORMAL_MAD_RATIO: Final = 1.4826
"""Standard deviation of a normal distribution / its median absolute deviation."""
_HOPE_RATIO: Final = 2.0
"""Standard errors by which the gain may be better than it looks. One and a half ended one in 25 true
gains of 5 % (``bench/bench_tune.py pairs``)."""
_LEAST_FUTILE: Final = 4
"""Fewest pairs: one outlier in three hides any gain."""
_WINS: Final = (0.95, 0.9)
"""Shares of pairs that gain which are bet on: 5 of 5, or 9 of 10, are then worth 20 to 1."""
_N_TESTS: Final = 2
"""Tests of each series of logarithms: of their mean, and of their signs."""


def pair_gain(log_ratios: Sequence[float], *, confidence_fraction: float) -> Estimate | None:
    """The gain (ratio - 1) of B over A, with an interval that is valid at every look.

    Parameters
    ----------
    log_ratios
        (N,) Logarithms of score of B / score of A.
    confidence_fraction
        Of both sides together, over all looks.

    Returns
    -------
    The geometric mean of the ratios less 1, outliers drawn in from 5 pairs on; None of no pair; no
    interval below 3 pairs.

    Example
    -------
    >>> gain = pair_gain([0.05, 0.06, 0.04, 0.05], confidence_fraction=0.9)
    >>> round(gain.value, 3), gain.low > 0
    (0.051, True)
    """
    if not log_ratios:
        return None
    logs = _drawn_in(log_ratios)
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


def _drawn_in(log_ratios: Sequence[float]) -> NDArray[np.float64]:
    """(N,) Without outliers; 3 or 4 pairs do not show how far the others scatter."""
    logs = np.asarray(log_ratios, np.float64)
    middle, scale = _robust(logs)
    if logs.size < _LEAST_DRAWN_IN or scale == 0:
        return logs
    return np.clip(logs, middle - _FAR_RATIO * scale, middle + _FAR_RATIO * scale)


def _robust(logs: NDArray[np.float64]) -> tuple[float, float]:
    """The median, and the scaled median absolute deviation from it."""
    middle = float(np.median(logs))
    return middle, _NORMAL_MAD_RATIO * float(np.median(np.abs(logs - middle)))


def _half_width_ratio(n: int, error_fraction: float) -> float | None:
    """Half the width of the interval of a mean of n / their standard deviation; None: the whole line."""
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
    """Would no gain be sure after ``n_most`` pairs either, were it two standard errors better?

    By mean and standard deviation, and by median and median absolute deviation. Pairs that end for
    this take nothing, so that no error becomes more frequent.

    Example
    -------
    >>> limits = {"n_most": 10, "least_gain_ratio": 0.02, "confidence_fraction": 0.9}
    >>> is_futile([0.01, -0.01, 0.0, 0.0], **limits), is_futile([0.05, 0.02, 0.08], **limits)
    (True, False)
    """
    width = _half_width_ratio(n_most, 1 - confidence_fraction)
    if len(log_ratios) < _LEAST_FUTILE or width is None:
        return False
    logs = _drawn_in(log_ratios)
    return all(
        middle + _HOPE_RATIO * scale / math.sqrt(logs.size)
        < max(width * scale, math.log1p(least_gain_ratio))
        for middle, scale in ((float(logs.mean()), float(logs.std(ddof=1))), _robust(logs))
    )


def decide_pairs(gain: Estimate | None, *, least_gain_ratio: float) -> PairDecision:
    """Stop when the gain is certainly worth a change, or certainly not.

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
    """Gain of the series with the narrowest interval, which holds for all series together."""


def judge_pairs(
    series: Sequence[Sequence[float]], *, least_gain_ratio: float, confidence_fraction: float
) -> PairJudgement:
    """Decide whether to stop; the tests of all series share the error (Bonferroni).

    Parameters
    ----------
    series
        (K, N) Logarithms of the same pairs: as measured, and less what is known of each pair.
    confidence_fraction
        Of both sides together, over all tests and looks.

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
    return (
        math.inf if gain is None or gain.high is None or gain.low is None else gain.high - gain.low
    )


def _decide_signs(
    logs: Sequence[float], gain: Estimate | None, least_gain_ratio: float, enough: float
) -> PairDecision:
    """Accept a change that gains in nearly every pair, and enough in the median and the mean."""
    if gain is None or sign_evidence(logs) < enough:
        return "go on"
    middle = math.expm1(float(np.median(logs)))
    return "keep" if min(gain.value, middle) >= least_gain_ratio else "go on"


def sign_evidence(log_ratios: Sequence[float]) -> float:
    """Factor by which bets at even odds have grown that most pairs gain.

    Two equal servers gain in half of the pairs whatever the distribution is, so that no more than
    one in E of such series ever reaches E (a test martingale: Ville's inequality; Shafer, Testing by
    betting, 2021).

    Example
    -------
    >>> round(sign_evidence([0.1] * 5), 1), round(sign_evidence([0.1, 0.2, -0.1]), 1)
    (21.8, 0.5)
    """
    n_gains = sum(one > 0 for one in log_ratios)
    n_others = len(log_ratios) - n_gains
    bets = [(2 * share) ** n_gains * (2 * (1 - share)) ** n_others for share in _WINS]
    return sum(bets) / len(bets)


def chance_of_more(n_hits: int, n: int, n_hits_before: int, n_before: int) -> float:
    """Probability of as many hits among these ``n``, if all are equally likely to be hit.

    The binomial test of two rates, given the hits of both together (Przyborowski and Wilenski, 1940).

    Example
    -------
    >>> round(chance_of_more(7, 200, 0, 200), 4), chance_of_more(0, 200, 0, 200)
    (0.0078, 1.0)
    """
    if not n_hits:
        return 1.0
    return float(bdtrc(n_hits - 1, n_hits + n_hits_before, n / (n + n_before)))
