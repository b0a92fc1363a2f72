"""How many repeats would decide a comparison that some repeats leave open?"""

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

POWER_FRACTION: Final = 0.8
"""How often the repeats that are named decide, where repeats scatter as those at hand."""
_MIN_REPEATS: Final = 4
"""Fewer show too little of how they scatter."""
MOST_REPEATS: Final = 10_000


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
    At most 10,000, which is more than anybody makes. None where a side has fewer than 4 repeats.

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
    if n_now < _MIN_REPEATS:
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
    return max(math.ceil(min(needed, MOST_REPEATS)), n_now + 1)


def _n_repeats(far: float, scatter: float, errors: float, *, is_paired: bool) -> float:
    """Noether's numbers of the sign test and of the Mann-Whitney test with as many on each side."""
    if far <= 0:
        return math.inf
    more_often = (float(ndtr(far / scatter)) if scatter else 1.0) - 0.5
    return (errors / more_often) ** 2 / (4 if is_paired else 6)


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[np.isfinite(values)]
