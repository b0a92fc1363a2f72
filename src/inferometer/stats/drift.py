"""Did the thing being measured change while it was measured?

The last third of the samples against the first.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from inferometer.stats.comparison import ComparisonVerdict, compare
from inferometer.stats.estimate import Estimate
from inferometer.stats.quantiles import present_samples

_N_PARTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How did the samples change from their first to their last third?"""

    ratio: Estimate
    """Last third / first third."""
    verdict: ComparisonVerdict
    """*equivalent*: any drift is within the margin. *undecided*: too few or too noisy samples to
    tell."""


def drift(samples: ArrayLike, *, margin_ratio: float = 0.02) -> Drift | None:
    """Did positive samples, in the order in which they were taken, drift? None below three samples.

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
    """How much does a sample tell of the next (-1 to 1)? Intervals assume 0.

    None below 8 samples or where nothing varies.
    """
    present = present_samples(samples)
    centred = present - present.mean() if present.size else present
    scale = float((centred**2).sum())
    if present.size < 8 or scale == 0:
        return None
    return float(np.dot(centred[1:], centred[:-1])) / scale
