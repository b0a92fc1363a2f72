"""How long until an SLO's limit is missed, if a latency goes on changing as it does now?

The slope is that of the latency's means in parts of the window, by least squares with Student's
interval; the percentile moves with the mean. A lower bound: percentiles of a growing queue grow at
least as fast.
"""

from typing import Final, NamedTuple

import numpy as np
from scipy.stats import t as student

from inferometer.records.columns import F64

_N_PARTS: Final = 6
_CONFIDENCE: Final = 0.95


class Breach(NamedTuple):
    """Seconds until the limit is missed: at the steepest and at the flattest likely slope."""

    soonest_s: float
    latest_s: float
    """Infinite where the flattest likely slope is 0 or falls."""


def part_means(at_s: F64, n: F64, total_s: F64) -> tuple[F64, F64]:
    """Middles and means of the window's parts that have observations; of cumulated counts."""
    edges = np.linspace(at_s[0], at_s[-1], _N_PARTS + 1)
    rows = np.unique(np.searchsorted(at_s, edges))
    rows = rows[rows < len(at_s)]
    counts, totals = np.diff(n[rows]), np.diff(total_s[rows])
    middles = (at_s[rows][1:] + at_s[rows][:-1]) / 2
    known = counts > 0
    return middles[known], totals[known] / counts[known]


def time_to_breach(at_s: F64, means_s: F64, now_s: float, limit_s: float) -> Breach | None:
    """From the present percentile ``now_s``; None: no slope is above 0 beyond chance.

    Example
    -------
    >>> at_s = np.arange(6.0) * 10
    >>> time_to_breach(at_s, 0.1 + at_s / 100, 0.7, 1.2)
    Breach(soonest_s=50.0, latest_s=50.0)
    """
    if now_s > limit_s:
        return Breach(0.0, 0.0)
    if len(at_s) < 4:
        return None
    slope, half = _slope(at_s, means_s)
    if slope - half <= 0:
        return None
    left_s = limit_s - now_s
    return Breach(round(left_s / (slope + half), 3), round(left_s / (slope - half), 3))


def _slope(at_s: F64, means_s: F64) -> tuple[float, float]:
    """By least squares, and half the width of its interval."""
    x, y = at_s - at_s.mean(), means_s - means_s.mean()
    slope = float(x @ y / (x @ x))
    rest, freedom = y - slope * x, len(x) - 2
    spread = float(rest @ rest / freedom / (x @ x)) ** 0.5
    return slope, float(student.ppf(0.5 + _CONFIDENCE / 2, freedom)) * spread
