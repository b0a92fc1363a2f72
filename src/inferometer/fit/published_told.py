"""What do published loads tell of each parameter, and how far did the others miss each load?"""

import math
from typing import Final, NamedTuple

import numpy as np

from inferometer.fit.device_beliefs import UNKNOWNS, DeviceBelief
from inferometer.fit.from_published import Misses, PublishedFit
from inferometer.perfmodel.steptime import FittedParameter, HeldOutError, ToldBy
from inferometer.perfmodel.steptime_limits import PhaseName
from inferometer.perfmodel.steptime_terms import PARAMETERS
from inferometer.records.columns import F64
from inferometer.stats.estimate import Z_90, Estimate

PHASES: Final[tuple[PhaseName, ...]] = ("decode", "prefill")
"""Whose steps TPOT and TTFT tell of."""
_METHOD: Final = "published loads, simulated; covariance of the parameters"


class Told(NamedTuple):
    """Of one device."""

    parameters: tuple[FittedParameter, ...]
    front_end_s: Estimate
    prompt_token_s: Estimate
    free: tuple[str, ...]
    covariance: tuple[tuple[float, ...], ...]
    """Of the free ones."""

    def outside_s(self, prompt_tokens: float) -> Estimate:
        """What a request with such a prompt spends outside of the engine."""
        return self.front_end_s.scaled(
            1 + self.prompt_token_s.value * prompt_tokens / self.front_end_s.value
        )


def told_of(fit: PublishedFit, device: int, belief: DeviceBelief) -> Told:
    """What the fit tells of its device of this number."""
    covariance = fit.covariance[device]
    deviations = np.sqrt(np.diag(covariance))
    estimates = [
        _interval(name, float(value), float(deviation), fit.n_seen)
        for name, value, deviation in zip(UNKNOWNS, fit.unknowns[device], deviations, strict=True)
    ]
    free = [k for k, name in enumerate(UNKNOWNS) if name in PARAMETERS and belief.deviation[k] > 0]
    return Told(
        parameters=tuple(
            FittedParameter(
                name=name, estimate=estimate, told_by=_told_by(float(left), float(before))
            )
            for name, estimate, left, before in zip(
                PARAMETERS, estimates, deviations, belief.deviation, strict=False
            )
        ),
        front_end_s=estimates[UNKNOWNS.index("front_end_s")],
        prompt_token_s=estimates[UNKNOWNS.index("prompt_token_s")],
        free=tuple(UNKNOWNS[k] for k in free),
        covariance=tuple(tuple(row) for row in covariance[np.ix_(free, free)].tolist()),
    )


def held_out_errors(misses: Misses) -> tuple[HeldOutError, ...]:
    """Of whole loads, each foretold by the others: *decode* of TPOT, *prefill* of TTFT."""
    return tuple(
        _error(phase, misses.log_miss[:, k], misses.half_width[:, k])
        for k, phase in enumerate(PHASES)
    )


def _interval(name: str, place: float, deviation: float, n_samples: int) -> Estimate:
    low, high = place - Z_90 * deviation, place + Z_90 * deviation
    value, low, high = (
        (place, low, high)
        if name == "sag_ratio"
        else (math.exp(place), math.exp(low), math.exp(high))
    )
    return Estimate(
        value=value,
        low=low,
        high=high,
        confidence_fraction=0.9,
        n_samples=n_samples,
        method=_METHOD,
    )


def _told_by(left: float, before: float) -> ToldBy:
    if before == 0:
        return "fixed"
    return "data" if left < 0.3 * before else "data and prior" if left < 0.8 * before else "prior"


def _error(phase: PhaseName, log_miss: F64, half_width: F64) -> HeldOutError:
    errors = np.abs(np.expm1(-log_miss))
    return HeldOutError(
        phase=phase,
        n_points=len(errors),
        n_folds=len(errors),
        median_fraction=float(np.median(errors)),
        p95_fraction=float(np.percentile(errors, 95)),
        coverage_fraction=float(np.mean(np.abs(log_miss) <= half_width)),
    )
