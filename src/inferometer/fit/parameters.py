"""A posterior as fitted parameters: value, 90 % interval, and whether data or prior decided it."""

import math
from typing import Final

from inferometer.perfmodel.steptime import ToldBy
from inferometer.stats.estimate import Z_90, Estimate

LINEAR: Final = frozenset({"sag_ratio"})
"""Parameters that are normal themselves; of all others the logarithm is."""
_DATA_SHARE, _PRIOR_SHARE = 0.3, 0.8


def informed_by(sd: float, prior_sd: float) -> ToldBy:
    """Data or prior, by the share of the prior's standard deviation that is left."""
    if prior_sd == 0:
        return "fixed"
    share = sd / prior_sd
    return "data" if share < _DATA_SHARE else "data and prior" if share < _PRIOR_SHARE else "prior"


def plain_value(name: str, place: float) -> float:
    """The parameter in its own unit, from its place on the scale on which it is normal."""
    return place if name in LINEAR else math.exp(place)


def parameter_estimate(
    name: str,
    place: float,
    sd: float,
    *,
    n_samples: int,
    method: str,
    lower: float = -math.inf,
    upper: float = math.inf,
) -> Estimate:
    """Value and 90 % interval, bounded by ``lower`` and ``upper`` on the scale of ``place``."""
    return Estimate(
        value=plain_value(name, place),
        low=plain_value(name, max(place - Z_90 * sd, lower)),
        high=plain_value(name, min(place + Z_90 * sd, upper)),
        confidence_fraction=0.9,
        n_samples=n_samples,
        method=method,
    )
