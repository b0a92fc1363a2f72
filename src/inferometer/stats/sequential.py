"""How much better is B than A in pairs that are looked at after each one, and may the pairs end?

A fixed-size interval that is looked at after every pair errs far more often than it states. The
interval here holds at all looks together (a *confidence sequence*): it inverts the Bayes factor of
a t-test with right-Haar scale and a normal prior on the effect, which is a test martingale under
the null hypothesis (Ville's inequality). It assumes that the logarithms of the pairs' ratios are
normal. Sources: Wang and Ramdas, Anytime-valid t-tests and confidence sequences for Gaussian means
with unknown variance (2023); Rouder et al., Bayesian t tests (2009), equation 3.
"""

import math
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import numpy as np

from inferometer.stats.estimate import Estimate

PairDecision: TypeAlias = Literal["keep", "drop", "go on"]

_PRIOR_VARIANCE: Final = 8.0
"""Of effect / scatter of a pair: intervals are narrowest after 3 to 8 pairs."""
_LEAST_PAIRS: Final = 3


def pair_gain(log_ratios: Sequence[float], *, confidence_fraction: float) -> Estimate | None:
    """The gain (ratio - 1) of B over A, with an interval that holds however often it is looked at.

    Parameters
    ----------
    log_ratios
        (N,) Logarithms of score of B / score of A.
    confidence_fraction
        Of both sides together, over all looks.

    Returns
    -------
    The geometric mean of the ratios less 1; None of no pair; no interval below 3 pairs.

    Example
    -------
    >>> gain = pair_gain([0.05, 0.06, 0.04, 0.05], confidence_fraction=0.9)
    >>> round(gain.value, 3), gain.low > 0
    (0.051, True)
    """
    logs = np.asarray(log_ratios, np.float64)
    n = int(logs.size)
    if n == 0:
        return None
    mean = float(logs.mean())
    half = _half_width(logs, 1 - confidence_fraction)
    return Estimate(
        value=math.expm1(mean),
        low=None if half is None else math.expm1(mean - half),
        high=None if half is None else math.expm1(mean + half),
        confidence_fraction=confidence_fraction,
        n_samples=n,
        method=f"geometric mean of {n} pairs; interval valid at every look (t confidence sequence)",
    )


def _half_width(logs: np.ndarray, error_fraction: float) -> float | None:
    """Of the interval of the mean; None where it is the whole line."""
    n = int(logs.size)
    if n < _LEAST_PAIRS:
        return None
    shrunk = 1 + n * _PRIOR_VARIANCE
    bound = (shrunk / error_fraction**2) ** (1 / n)
    if bound >= shrunk:
        return None
    t = math.sqrt((n - 1) * (bound - 1) / (1 - bound / shrunk))
    return t * float(logs.std(ddof=1)) / math.sqrt(n)


def decide_pairs(gain: Estimate | None, *, least_gain_ratio: float) -> PairDecision:
    """May the pairs end: is it a gain for sure, or for sure not one that is worth a change?

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
