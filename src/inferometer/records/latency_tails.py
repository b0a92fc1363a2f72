"""How large a share of requests took longer than this?

The tail of a latency, with its interval at each height.
"""

from typing import Final, NamedTuple

import numpy as np

from inferometer.records.columns import F64
from inferometer.records.latencies import LatencySamples
from inferometer.stats.autocorrelated import run_quantile_estimate

N_HEIGHTS: Final = 32
NAMED_SHARES: Final = (0.5, 0.1, 0.05, 0.01, 0.001)
"""Heights at which a tail is quoted: they are among its heights, so that the p95 of a tail is
that of every table."""


class Tail(NamedTuple):
    """H heights, from all requests down to the slowest.

    NaN in ``low_s`` and ``high_s`` where n is too small for an interval.
    """

    share_fraction: F64
    """1 - F: of the requests, this share took longer."""
    value_s: F64
    low_s: F64
    high_s: F64
    """Infinite where requests that were not done are among the slowest."""
    is_lower_bound: F64
    """1 where requests that were not done may lie above the value, else 0."""


def tail_of(samples: LatencySamples, *, n_heights: int = N_HEIGHTS) -> Tail | None:
    """The tail of a latency at heights that are evenly spaced in logarithms; None below two samples."""
    n = len(samples.lower_s)
    if n < 2:
        return None
    named = [share for share in NAMED_SHARES if share > 0.5 / n]
    shares = np.unique(
        np.concatenate([np.geomspace(0.5 / n, 0.5, n_heights), named, [0.75, 0.9, 1 - 0.5 / n]])
    )[::-1]
    rows: list[tuple[float, float, float, float, float]] = []
    sorted_upper = np.sort(samples.upper_s)
    for share in shares.tolist():
        estimate = run_quantile_estimate(samples.lower_s, 1 - share, upper=samples.upper_s)
        if estimate is not None:
            low, high = (np.nan if end is None else end for end in (estimate.low, estimate.high))
            above = sorted_upper[min(n - 1, max(0, int(np.ceil((1 - share) * n)) - 1))]
            rows.append((share, estimate.value, low, high, float(above > estimate.value)))
    return Tail._make(np.array(column) for column in zip(*rows, strict=True))
