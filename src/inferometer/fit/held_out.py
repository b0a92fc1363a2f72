"""How wrong were models on configurations that they had not seen, and how wide must an interval be to hold nine in ten?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from inferometer.fit.observations import Observations
from inferometer.perfmodel.steptime import HeldOutError, StepTimeModel
from inferometer.perfmodel.steptime_limits import PhaseName
from inferometer.records.columns import F64
from inferometer.stats.estimate import Z_90

PHASES: Final[tuple[PhaseName, ...]] = ("prefill", "decode")

_MIN_FOR_CALIBRATION: Final = 12

MAX_NOISE_RATIO: Final = 0.05
"""A point that is not known better than this does not judge a model; it is counted apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutPoint:
    """One observation, and what a model that had not seen its configuration said."""

    phase: PhaseName
    prompt_tokens: int
    batch_size: int
    measured_s: float
    predicted_s: float
    log_deviation_ratio: float
    """Standard deviation of the logarithm that the model claimed."""
    noise_ratio: float
    """Standard deviation of the logarithm of ``measured_s``: what repetitions leave open."""
    n_folds: int

    @property
    def error_fraction(self) -> float:
        """Signed error relative to what was measured."""
        return self.predicted_s / self.measured_s - 1

    @property
    def standardised_ratio(self) -> float:
        """Log error in claimed standard deviations."""
        return float(np.log(self.predicted_s / self.measured_s)) / self.log_deviation_ratio


def is_judged(point: HeldOutPoint) -> bool:
    """Do its repetitions agree well enough to judge a model by it?"""
    return point.noise_ratio <= MAX_NOISE_RATIO


def held_out_errors(points: Sequence[HeldOutPoint]) -> tuple[HeldOutError, ...]:
    """Errors by phase, and how many points lie in the interval claimed for them.

    Points that are themselves unsure are left out.

    Each point is judged by an interval that was calibrated without it.
    """
    errors: list[HeldOutError] = []
    for phase in PHASES:
        mine = [point for point in points if point.phase == phase and is_judged(point)]
        if not mine:
            continue
        absolute = np.abs([point.error_fraction for point in mine])
        standardised = np.abs([point.standardised_ratio for point in mine])
        inside = [
            score <= interval_ratio(np.delete(standardised, i))
            for i, score in enumerate(standardised)
        ]
        errors.append(
            HeldOutError(
                phase=phase,
                n_points=len(mine),
                n_noisy=sum(point.phase == phase for point in points) - len(mine),
                n_folds=mine[0].n_folds,
                median_fraction=float(np.median(absolute)),
                p95_fraction=float(np.quantile(absolute, 0.95)),
                coverage_fraction=float(np.mean(inside)),
            )
        )
    return tuple(errors)


def interval_ratio(standardised: F64) -> float:
    """How many claimed standard deviations hold 90 % of the held-out errors?

    Conformal where points suffice, else normal.
    """
    n = standardised.size
    if n < _MIN_FOR_CALIBRATION:
        return Z_90
    return float(np.quantile(standardised, min(1.0, 0.9 * (n + 1) / n)))


def claimed_deviation(model: StepTimeModel, test: Observations, half_widths: F64) -> F64:
    """Standard deviation of the logarithm of what will be measured: the model's, and the noise of the measured median."""
    ratios = {doubt.phase: doubt.interval_ratio for doubt in model.doubts}
    scale = np.array([ratios.get(row.phase, Z_90) for row in test.rows])
    noise = np.array([row.noise_ratio for row in test.rows])
    return np.asarray(np.sqrt((half_widths / scale) ** 2 + noise**2), dtype=np.float64)
