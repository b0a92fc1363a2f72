"""Maximum a posteriori: from residuals and a prior to an estimate, its covariance and draws.

The likelihood is Student's t, against outliers; the prior is normal. There are three
kinds of problems, which differ in how the posterior is found:

- *smooth* (a closed form): ``smooth_map`` reweights scipy's least squares;
- *linear* (a simulation that was linearised): ``conditional`` conditions a normal prior on normal
  data, in the space of the data;
- *simulated*: the residuals jump where a request just misses a step. ``maximise`` goes downhill
  along differences over some per cent. Such slopes are as much noise as slope and claim far too
  much certainty, so ``posterior_of`` and ``refined`` regress the residuals on an ensemble of draws
  instead, and take the noise of those slopes out of the information.

Letters of shapes: N residuals, K unknowns.
"""

import math
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias, cast

import numpy as np
import scipy

from inferometer.perfmodel.steptime import InformedBy
from inferometer.records.columns import F64, I64

Residuals: TypeAlias = Callable[[F64], F64]
"""From K unknowns to N residuals in standard deviations."""

WeightedResiduals: TypeAlias = Callable[[F64, F64], F64]
"""The same, or its Jacobian, with a weight for each residual; rows of the prior follow."""

STUDENT_FREEDOM: Final = 4.0
AT_BOUND: Final = 1e-3
"""A logarithm this close to its upper bound counts as at it."""
_N_REWEIGHTINGS: Final = 2
_TOLERANCE: Final = 1e-5

_MOVES: Final = (0.02, 0.1, 0.2)
"""Least and largest move for a difference, and its share of the prior's standard deviation."""
_LARGEST_STEP: Final = 0.7
_MAX_ROUNDS: Final = 20
_MAX_TRIES: Final = 6
_ENOUGH: Final = 2e-3
"""The search ends when a round lowers the loss by less than this share."""

_N_ENSEMBLES: Final = 3
"""Ensembles of draws, each as wide as the last posterior."""
_DRAWS_PER_UNKNOWN: Final = 8
_FIRST_SPREAD: Final = 0.7
_LEAST_SPREAD: Final = 0.2
"""Least spread of the draws, in the prior's: narrower ones see only the jumps."""
_WIDER: Final = 8.0
"""Spread of the draws, in that of the posterior of residuals of variance 1: narrower ones see only
the scatter."""
_STRAIGHT: Final = 0.1
"""The residuals are straight lines over this range of a logarithm, at the least; no draw goes
further where the data say nothing."""
_LARGEST_MOVE: Final = 1.0
"""Largest step along a line through draws, in their spreads."""
_WALK: Final = 1.2
"""Step of the random walk, in the posterior's spread: half of what is best for a normal posterior,
which this is not."""
_N_WALKED: Final = 2000
_SEED: Final = 20261121
_DATA_SHARE = 0.3
_PRIOR_SHARE = 0.8


class Prior(NamedTuple):
    """Normal prior of K unknowns, which are logarithms or on scales of order one."""

    names: tuple[str, ...]
    mean: F64
    sd: F64
    lower: F64 | None = None
    """Lower bounds, such as the times at a device's peaks; None: no bound."""

    def clipped(self, x: F64) -> F64:
        """The unknowns (..., K), raised to the lower bounds."""
        return x if self.lower is None else np.maximum(x, self.lower)


class Optimum(NamedTuple):
    """End of a search, its residuals (N), and its number of simulations."""

    x: F64
    residuals: F64
    n_simulations: int


class Posterior(NamedTuple):
    """Estimate (K), covariance (K, K), residuals (N), and how many simulations it took."""

    x: F64
    covariance: F64
    residuals: F64
    n_simulations: int


class _Ensemble(NamedTuple):
    """Linear regression of the residuals on draws around a point."""

    level: F64
    """(N) Residuals at the point."""
    slopes: F64
    """(N, K) By spreads of the draws."""
    noise: F64
    """(N) Variance of what the lines leave."""
    slope_covariance: F64
    """(K, K) Of each residual's slopes, for noise of variance 1."""


class _Information(NamedTuple):
    """Gradient (K) and information (K, K) of the likelihood, in spreads of the draws."""

    gradient: F64
    raw_curvature: F64
    """Includes the slopes' noise; dividing steps by it keeps them short where data say nothing."""
    curvature: F64
    information: F64


def student_loss(residuals: F64) -> F64:
    """Negative log likelihood of each residual under Student's t, less that of a residual of 0."""
    return np.asarray(
        0.5 * (STUDENT_FREEDOM + 1) * np.log1p(residuals**2 / STUDENT_FREEDOM), dtype=np.float64
    )


def student_weights(residuals: F64) -> F64:
    """Weight of each squared residual in reweighted least squares (Lange, Little, Taylor 1989)."""
    return np.asarray((STUDENT_FREEDOM + 1) / (STUDENT_FREEDOM + residuals**2), dtype=np.float64)


def smooth_map(
    residuals: WeightedResiduals, jacobian: WeightedResiduals, start: F64, n_data: int, upper: F64
) -> "scipy.optimize.OptimizeResult":
    """MAP estimate of a smooth problem by iteratively reweighted least squares (scipy).

    The first ``n_data`` residuals are the data's, the others the prior's, which keep their weight.
    """
    weights = np.ones(n_data)
    found = _least_squares(residuals, jacobian, start, weights, upper)
    for _ in range(_N_REWEIGHTINGS):
        plain = residuals(found.x, np.ones(n_data))[:n_data]
        weights = np.minimum(np.sqrt(student_weights(plain)), 1.0)
        found = _least_squares(residuals, jacobian, found.x, weights, upper)
    return found


def _least_squares(
    residuals: WeightedResiduals, jacobian: WeightedResiduals, start: F64, weights: F64, upper: F64
) -> "scipy.optimize.OptimizeResult":
    """Levenberg-Marquardt; where that exceeds a bound, the trust region reflective method.

    Source: Branch, Coleman and Li 1999, as scipy has it.
    """
    derivative = cast("str", jacobian)  # scipy's jac takes a callable, which its signature denies
    found = scipy.optimize.least_squares(
        residuals,
        start,
        derivative,
        args=(weights,),
        method="lm",
        xtol=_TOLERANCE,
        ftol=_TOLERANCE,
    )
    if (found.x <= upper).all():
        return found
    inside = np.minimum(found.x, upper - AT_BOUND)
    return scipy.optimize.least_squares(
        residuals,
        inside,
        derivative,
        args=(weights,),
        bounds=(-np.inf, upper),
        xtol=_TOLERANCE,
        ftol=_TOLERANCE,
    )


def maximise(residuals: Residuals, prior: Prior, start: F64 | None = None) -> Optimum:
    """MAP estimate of a simulated problem, from ``start`` or the prior's mean.

    Levenberg-Marquardt (Marquardt 1963) with slopes by wide differences. It ends when a round
    gains little, because a jumping loss has no exact minimum. Scipy's trust-region method, on
    the same slopes, took 1,462 simulations instead of 933 for one server of
    ``tests/fit/black_boxes.py`` and 956 instead of 829 for another, and was no nearer to the
    truth.
    """
    x = prior.clipped(prior.mean if start is None else start).copy()
    seen = residuals(x)
    n_simulations, damping = 1, 1e-2
    loss = _loss(seen, x, prior)
    for _ in range(_MAX_ROUNDS):
        slopes = central_differences(residuals, x, prior)
        n_simulations += 2 * x.size
        gradient, curvature = gradient_and_curvature(seen, slopes, x, prior)
        before = loss
        for _ in range(_MAX_TRIES):
            step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), -gradient)
            moved = prior.clipped(x + np.clip(step, -_LARGEST_STEP, _LARGEST_STEP))
            tried = residuals(moved)
            n_simulations += 1
            if _loss(tried, moved, prior) < loss:
                x, seen, damping = moved, tried, max(damping / 5, 1e-4)
                loss = _loss(seen, x, prior)
                break
            damping *= 5
        if before - loss < _ENOUGH * max(before, 1.0):
            break
    return Optimum(x, seen, n_simulations)


def central_differences(residuals: Residuals, x: F64, prior: Prior) -> F64:
    """(N, K) Slopes of the residuals, by differences wide enough to see beyond single jumps."""
    least, largest, share = _MOVES
    sizes = np.clip(share * prior.sd, least, largest)
    return np.stack(
        [
            (residuals(x + move) - residuals(x - move)) / (2 * size)
            for move, size in zip(np.diag(sizes), sizes, strict=True)
        ],
        axis=1,
    )


def gradient_and_curvature(seen: F64, slopes: F64, x: F64, prior: Prior) -> tuple[F64, F64]:
    """Gradient and Gauss-Newton curvature of the negative log posterior."""
    weight = student_weights(seen)
    gradient = slopes.T @ (weight * seen) + (x - prior.mean) / prior.sd**2
    curvature = (slopes * weight[:, None]).T @ slopes + np.diag(1 / prior.sd**2)
    return gradient, curvature


def _loss(residuals: F64, x: F64, prior: Prior) -> float:
    from_prior = (x - prior.mean) / prior.sd
    return float(np.sum(student_loss(residuals)) + 0.5 * from_prior @ from_prior)


def posterior_of(residuals: Residuals, prior: Prior, groups: I64) -> Posterior:
    """Estimate and covariance of a simulated problem.

    ``groups`` (N) names residuals that are correlated: the sandwich counts each group once.
    """
    x, seen, n_simulations = maximise(residuals, prior)
    rng = np.random.default_rng(_SEED)
    n_pairs = _DRAWS_PER_UNKNOWN * x.size // 2
    floor = np.diag((_LEAST_SPREAD * prior.sd) ** 2)
    covariance: F64 = np.diag(prior.sd**2)
    spread: F64 = np.diag(np.minimum(prior.sd, _FIRST_SPREAD))
    for _ in range(_N_ENSEMBLES):
        ensemble = _ensemble(residuals, x, spread, rng.standard_normal((n_pairs, x.size)))
        precision = spread.T @ np.diag(1 / prior.sd**2) @ spread
        scaled = np.linalg.inv(_information(ensemble, groups).information + precision)
        covariance = np.asarray(spread @ scaled @ spread.T, dtype=np.float64)
        spread = np.asarray(np.linalg.cholesky(covariance + floor), dtype=np.float64)
    n_simulations += 2 * n_pairs * _N_ENSEMBLES
    return Posterior(x, covariance, seen, n_simulations)


def refined(residuals: Residuals, prior: Prior, groups: I64, found: Optimum) -> Posterior:
    """Posterior near an optimum where the data are much more informative than the prior.

    A simulation scatters at the least change, so a slope between two points is as much noise as
    slope. A line through many draws is not: the minimum along it is nearer to the truth than a
    search can get, and the draws are as narrow as the posterior.
    """
    x, seen, rng = found.x, found.residuals, np.random.default_rng(_SEED)
    precision = np.diag(1 / prior.sd**2)
    slopes = central_differences(residuals, x, prior)
    curvature = np.asarray(
        gradient_and_curvature(seen, slopes, x, prior)[1] - precision, dtype=np.float64
    )
    covariance: F64 = np.diag(prior.sd**2)
    n_pairs = _DRAWS_PER_UNKNOWN * x.size // 2
    for _ in range(_N_ENSEMBLES):
        widest = np.diag(1 / np.minimum(_FIRST_SPREAD * prior.sd, _STRAIGHT) ** 2)
        spread = np.asarray(
            np.linalg.cholesky(np.linalg.inv(curvature / _WIDER**2 + widest)), dtype=np.float64
        )
        draws = rng.standard_normal((n_pairs, x.size))
        ensemble = _ensemble(residuals, x, spread, draws)._replace(level=seen)
        data, back = _information(ensemble, groups), np.linalg.inv(spread)
        pull = data.gradient + spread.T @ precision @ (x - prior.mean)
        step = -np.linalg.solve(data.raw_curvature + spread.T @ precision @ spread, pull)
        tried = prior.clipped(x + spread @ np.clip(step, -_LARGEST_MOVE, _LARGEST_MOVE))
        tried_seen = residuals(tried)
        if _loss(tried_seen, tried, prior) < _loss(seen, x, prior):
            x, seen = tried, tried_seen
        curvature = np.asarray(back.T @ data.curvature @ back, dtype=np.float64)
        covariance = np.asarray(
            np.linalg.inv(back.T @ data.information @ back + precision), dtype=np.float64
        )
    n_simulations = found.n_simulations + 2 * x.size + 2 * n_pairs * _N_ENSEMBLES + 1
    return Posterior(x, covariance, seen, n_simulations)


def _ensemble(residuals: Residuals, x: F64, spread: F64, half: F64) -> _Ensemble:
    """Regress on draws in pairs to either side, so that curvature does not pass for a slope."""
    draws = np.concatenate([half, -half])
    seen = np.stack([residuals(x + spread @ draw) for draw in draws])
    design = np.column_stack([np.ones(len(draws)), draws])
    inverse: F64 = np.asarray(np.linalg.inv(design.T @ design), dtype=np.float64)
    coefficients = inverse @ design.T @ seen
    left = seen - design @ coefficients
    noise = np.sum(left**2, axis=0) / (len(draws) - design.shape[1])
    return _Ensemble(
        level=coefficients[0],
        slopes=coefficients[1:].T,
        noise=noise,
        slope_covariance=inverse[1:, 1:],
    )


def _information(ensemble: _Ensemble, groups: I64) -> _Information:
    """Information of the data: a sandwich estimate over groups (Liang and Zeger 1986).

    Noise in the slopes looks like information, so its expectation is taken out of the curvature.
    """
    precision = 1 / (1 + ensemble.noise)
    weight = precision * (STUDENT_FREEDOM + 1) / (STUDENT_FREEDOM + ensemble.level**2 * precision)
    slopes = ensemble.slopes
    raw: F64 = np.asarray((slopes * weight[:, None]).T @ slopes, dtype=np.float64)
    values, vectors = np.linalg.eigh(
        raw - float(weight @ ensemble.noise) * ensemble.slope_covariance
    )
    curvature = np.asarray(vectors @ np.diag(np.maximum(values, 0.0)) @ vectors.T, dtype=np.float64)
    scores = slopes * (weight * ensemble.level)[:, None]
    totals = np.stack([scores[groups == name].sum(axis=0) for name in np.unique(groups)])
    off = totals - totals.mean(axis=0)
    information = np.asarray(
        curvature @ np.linalg.pinv(curvature + off.T @ off) @ curvature, dtype=np.float64
    )
    return _Information(totals.sum(axis=0), raw, curvature, information)


def draws_of(posterior: Posterior, prior: Prior, n_draws: int) -> F64:
    """(n_draws, K) Draws from the posterior, by random-walk Metropolis (Metropolis et al. 1953).

    The likelihood is taken as normal in the numbers themselves, not in their logarithms: a number
    too small to matter has no slope in its logarithm, though ten times as large it would show.
    """
    rng = np.random.default_rng(_SEED)
    precision = 1 / prior.sd**2
    information = np.linalg.inv(posterior.covariance) - np.diag(precision)
    pull = precision * (posterior.x - prior.mean)

    def negative_log_density(x: F64) -> F64:
        moved = np.exp(x - posterior.x) - 1
        squares = np.einsum("ni,ij,nj->n", moved, information, moved) + np.sum(
            precision * (x - prior.mean) ** 2, axis=1
        )
        return np.asarray(0.5 * squares - moved @ pull, dtype=np.float64)

    stride = _WALK / math.sqrt(len(posterior.x)) * np.linalg.cholesky(posterior.covariance).T
    x = np.tile(posterior.x, (n_draws, 1))
    now = negative_log_density(x)
    for _ in range(_N_WALKED):
        tried = x + rng.standard_normal(x.shape) @ stride
        then = negative_log_density(tried)
        is_accepted = (np.log(rng.random(n_draws)) < now - then) & np.all(
            tried == prior.clipped(tried), axis=1
        )
        x, now = np.where(is_accepted[:, None], tried, x), np.where(is_accepted, then, now)
    return x


class Conditional(NamedTuple):
    """Normal data to condition on: their precision (N, N), and that times their residuals (N).

    Residuals are data less prior mean, and the precision is that of the data under the prior.
    Source: Rasmussen and Williams 2006, equations 2.25, 2.26 and 5.12.
    """

    precision: F64
    weights: F64

    def shift(self, shared: F64) -> F64:
        """(M) Posterior less prior mean of M targets.

        ``shared`` (M, N) is their prior covariance with the data.
        """
        return np.asarray(shared @ self.weights, dtype=np.float64)

    def variance_drop(self, shared: F64) -> F64:
        """(M) Prior less posterior variance of the targets."""
        drop = np.einsum("ij,jk,ik->i", shared, self.precision, shared)
        return np.asarray(drop, dtype=np.float64)

    def covariance_drop(self, shared: F64) -> F64:
        """(M, M) Prior less posterior covariance of the targets."""
        return np.asarray(shared @ self.precision @ shared.T, dtype=np.float64)

    def left_out_variances(self) -> F64:
        """(N) Variance of each datum when the others predict it."""
        return np.asarray(1 / np.diag(self.precision), dtype=np.float64)

    def left_out_errors(self) -> F64:
        """(N) Residual of each datum against its prediction by the others."""
        return np.asarray(self.weights / np.diag(self.precision), dtype=np.float64)


def conditional(covariance: F64, residuals: F64) -> Conditional:
    """Condition on data of these residuals and this covariance under the prior."""
    precision = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
    return Conditional(precision, precision @ residuals)


def information_source(sd: float, prior_sd: float) -> InformedBy:
    """Data or prior, by the share of the prior's standard deviation that is left."""
    if prior_sd == 0:
        return "fixed"
    share = sd / prior_sd
    return "data" if share < _DATA_SHARE else "data and prior" if share < _PRIOR_SHARE else "prior"
