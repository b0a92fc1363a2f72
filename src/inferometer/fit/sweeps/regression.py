"""Which parameters explain these step times, how sure is that, and how strong may the staircase be?

Maximum a posteriori: least squares on the logarithm of time, each observation with the variance of
its median plus the model's own spread, Student weights against outliers, log-normal priors as
further residuals. The knots of the staircase are a Gaussian process over the logarithm of the rows.
Its strength and the spreads of the two phases maximise the Laplace evidence. Letters of shapes: N
observations, K free parameters and knots.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, cast

import numpy as np
from scipy.optimize import OptimizeResult, least_squares

from inferometer.fit.sweeps.priors import Priors
from inferometer.perfmodel.steptime_limits import moved
from inferometer.perfmodel.steptime_terms import PARAMETERS, Staircase, WorkColumns, term_columns
from inferometer.records.columns import F64, Bools

_OCTAVES: Final = 1.5
"""Correlation length of the staircase: row counts within a factor of 2^1.5 behave alike."""

_STUDENT_FREEDOM: Final = 4.0
_STEP: Final = 1e-5
AT_BOUND: Final = 1e-3
"""A logarithm as close as this to its upper bound counts as at it."""
_MAX_ROUNDS: Final = 3
_SPREADS: Final = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16)
_USUAL_SPREAD: Final = (0.02, 0.8)
"""Log-normal prior of a phase's spread around the model, so that three points that fit exactly
do not claim certainty."""


_Residuals: TypeAlias = Callable[[F64, F64], F64]


class Data(NamedTuple):
    """N observations as arrays."""

    work: WorkColumns
    log_s: F64
    noise: F64
    is_prefill: Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class Strengths:
    """Spread of the two phases around the model and of the staircase's knots, as standard deviations of log time."""

    prefill_ratio: float
    decode_ratio: float
    staircase_ratio: float


class Posterior(NamedTuple):
    """The best parameters, their covariance (K, K) in the order of ``free``, and the evidence for the strengths."""

    vector: F64
    staircase: Staircase
    free: tuple[str, ...]
    covariance: F64
    strengths: Strengths
    log_evidence: float


def knots_of(work: WorkColumns) -> F64:
    """At which row counts does the staircase get knots: at all that matrix products were seen with."""
    rows = np.unique(np.concatenate([work.n_rows, work.n_logit_positions]))
    return np.asarray(rows[rows > 0], dtype=np.float64)


def regress(data: Data, priors: Priors, start: Strengths | None = None) -> Posterior:
    """The best parameters under the strengths that the data make most likely.

    Steps along one strength at a time, from ``start``.
    """
    choices = {
        "staircase_ratio": priors.staircase_ratios,
        "prefill_ratio": _SPREADS,
        "decode_ratio": _SPREADS,
    }
    if start is None:
        start = Strengths(
            prefill_ratio=_SPREADS[2],
            decode_ratio=_SPREADS[2],
            staircase_ratio=priors.staircase_ratios[1],
        )
    best = _solve(data, priors, start)
    for _ in range(_MAX_ROUNDS):
        before = best
        for name, values in choices.items():
            best = _improved(data, priors, best, name, values)
        if best is before:
            break
    return best


def _improved(
    data: Data, priors: Priors, best: Posterior, name: str, values: tuple[float, ...]
) -> Posterior:
    """The best posterior that is reached by stepping one strength up or down while the evidence grows."""
    for direction in (1, -1):
        place = values.index(getattr(best.strengths, name)) + direction
        moved_once = False
        while 0 <= place < len(values):
            candidate = _solve(
                data, priors, _changed(best.strengths, name, values[place]), near=best
            )
            if candidate.log_evidence <= best.log_evidence:
                break
            best, moved_once, place = candidate, True, place + direction
        if moved_once:
            break
    return best


def _changed(strengths: Strengths, name: str, value: float) -> Strengths:
    values = {
        field: getattr(strengths, field)
        for field in ("prefill_ratio", "decode_ratio", "staircase_ratio")
    }
    return Strengths(**(values | {name: value}))


def _solve(
    data: Data, priors: Priors, strengths: Strengths, near: Posterior | None = None
) -> Posterior:
    centre, deviation = priors.centre(), priors.deviation()
    is_free = deviation > 0
    n_free = int(is_free.sum())
    knots = knots_of(data.work) if strengths.staircase_ratio > 0 else np.empty(0)
    whitener = _whitener(knots, strengths.staircase_ratio)
    log_knots = np.log(knots)
    sigma = np.sqrt(
        data.noise**2
        + np.where(data.is_prefill, strengths.prefill_ratio, strengths.decode_ratio) ** 2
    )

    names = tuple(name for name, keep in zip(PARAMETERS, is_free, strict=True) if keep) + tuple(
        f"rows {knot:.0f}" for knot in knots
    )
    prior_rows = np.zeros((n_free + knots.size, n_free + knots.size))
    prior_rows[:n_free, :n_free] = np.diag(1 / deviation[is_free])
    prior_rows[n_free:, n_free:] = whitener

    def unpacked(x: F64) -> tuple[F64, Staircase]:
        vector = centre.copy()
        vector[is_free] = x[:n_free]
        return vector, Staircase(log_rows=log_knots, log_ratio=x[n_free:])

    def misfit(x: F64) -> F64:
        vector, staircase = unpacked(x)
        return np.asarray(
            (np.log(term_columns(vector, staircase, data.work).total_s) - data.log_s) / sigma,
            dtype=np.float64,
        )

    def residuals(x: F64, weight: F64) -> F64:
        return np.concatenate(
            [
                weight * misfit(x),
                (x[:n_free] - centre[is_free]) / deviation[is_free],
                whitener @ x[n_free:],
            ]
        )

    def jacobian(x: F64, weight: F64) -> F64:
        vectors, staircases = moved(*unpacked(x), names, _STEP)
        ahead = np.log(term_columns(vectors, staircases, data.work).total_s)
        vectors, staircases = moved(*unpacked(x), names, -_STEP)
        behind = np.log(term_columns(vectors, staircases, data.work).total_s)
        return np.vstack([((ahead - behind) / (2 * _STEP) * (weight / sigma)).T, prior_rows])

    x = np.concatenate([(centre if near is None else near.vector)[is_free], np.zeros(knots.size)])
    if near is not None and near.staircase.log_ratio.size == knots.size:
        x[n_free:] = near.staircase.log_ratio
    weight = np.ones_like(sigma)
    highest = np.concatenate([priors.highest()[is_free], np.full(knots.size, np.inf)])
    solution = _least_squares(residuals, jacobian, x, weight, highest)
    for _ in range(2):
        weight = np.minimum(
            np.sqrt((_STUDENT_FREEDOM + 1) / (_STUDENT_FREEDOM + misfit(solution.x) ** 2)), 1.0
        )
        solution = _least_squares(residuals, jacobian, solution.x, weight, highest)
    x = solution.x
    precision = solution.jac.T @ solution.jac
    vector, staircase = unpacked(x)
    log_likelihood = -0.5 * (_STUDENT_FREEDOM + 1) * np.sum(
        np.log1p(misfit(x) ** 2 / _STUDENT_FREEDOM)
    ) - np.sum(np.log(sigma))
    prior_misfit = residuals(x, weight)[sigma.size :]
    log_prior = (
        -0.5 * prior_misfit @ prior_misfit
        - np.sum(np.log(deviation[is_free]))
        + np.sum(np.log(np.diag(whitener)))
    )
    log_evidence = (
        log_likelihood
        + log_prior
        - 0.5 * np.linalg.slogdet(precision)[1]
        + _log_prior_of(strengths)
    )
    return Posterior(
        vector, staircase, names, np.linalg.inv(precision), strengths, float(log_evidence)
    )


def _least_squares(
    residuals: _Residuals, jacobian: _Residuals, start: F64, weight: F64, highest: F64
) -> OptimizeResult:
    """Levenberg-Marquardt.

    Where that exceeds a peak, the trust region reflective method below it (Branch, Coleman and Li
    1999).
    """
    derivative = cast("str", jacobian)  # scipy's jac takes a callable, which its signature denies
    found = least_squares(
        residuals, start, derivative, args=(weight,), method="lm", xtol=1e-5, ftol=1e-5
    )
    if (found.x <= highest).all():
        return found
    inside, bounds = np.minimum(found.x, highest - AT_BOUND), (-np.inf, highest)
    return least_squares(
        residuals, inside, derivative, args=(weight,), bounds=bounds, xtol=1e-5, ftol=1e-5
    )


def _whitener(knots: F64, staircase_ratio: float) -> F64:
    """The matrix that makes knots of a Gaussian process independent and of unit variance."""
    if knots.size == 0:
        return np.empty((0, 0))
    octaves = np.log2(knots)
    correlation = np.exp(-np.abs(octaves[:, None] - octaves[None, :]) / _OCTAVES) + 1e-6 * np.eye(
        knots.size
    )
    return np.asarray(
        np.linalg.inv(np.linalg.cholesky(staircase_ratio**2 * correlation)), dtype=np.float64
    )


def _log_prior_of(strengths: Strengths) -> float:
    centre, width = _USUAL_SPREAD
    return -0.5 * sum(
        (math.log(value / centre) / width) ** 2
        for value in (strengths.prefill_ratio, strengths.decode_ratio)
    )
