"""Which unknowns make a simulation say what was seen, and how sure is that?

The search takes damped Gauss-Newton steps along differences over some per cent and keeps what fits
better. A simulation jumps where a request just misses a step: good enough to go downhill, but such
slopes tell far too much certainty. For the doubt slopes are read off an ensemble: draws around the
answer, a linear regression on them; what the line leaves is noise of each misfit, and the noise
that it puts into the slopes is taken out of what they tell. Student weights stand against outliers,
normal beliefs against what the misfits do not tell. Letters of shapes: N misfits, K unknowns.
"""

import math
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from inferometer.records.columns import F64, I64

Misfit: TypeAlias = Callable[[F64], F64]
"""From K unknowns to N misfits in standard deviations."""

_STUDENT_FREEDOM: Final = 4.0
_MOVES: Final = (0.02, 0.1, 0.2)
"""Of the search: least and largest move for a difference, and how much of an unknown's doubt it
is."""
_LARGEST_STEP: Final = 0.7
_MAX_ROUNDS: Final = 20
_MAX_TRIES: Final = 6
_ENOUGH: Final = 2e-3
"""Gain of a round, relative to the cost, below which the search ends."""

_N_DOUBTS: Final = 3
"""Rounds of draws, each as wide as the last one's answer."""
_DRAWS_PER_UNKNOWN: Final = 8
_FIRST_SPREAD: Final = 0.7
_LEAST_SPREAD: Final = 0.2
"""Of the draws, in what was believed at first: narrower ones see jumps only."""
_WIDER: Final = 8.0
"""Draws are so many times as wide as what misfits of variance 1 would leave open: narrower ones
see the scatter only."""
_STRAIGHT: Final = 0.1
"""Logarithms move the misfits along straight lines so far, at the least: where nothing is told,
no draw goes further."""
_LARGEST_MOVE: Final = 1.0
"""Of a step along a line through draws, in their spreads."""
_WALK: Final = 1.2
"""Of a step of a walk among what may be, in its spread: half of the best for normal beliefs,
which these are not."""
_N_WALKED: Final = 2000
_SEED: Final = 20261121


class Unknowns(NamedTuple):
    """K unknowns and what was believed of them: all as logarithms, or on scales of order one."""

    names: tuple[str, ...]
    centre: F64
    deviation: F64
    floor: F64 | None = None
    """What none can be below, such as the times at a device's peaks; None: nothing is known."""

    def possible(self, x: F64) -> F64:
        """The nearest unknowns (..., K) that are not below the floor."""
        return x if self.floor is None else np.maximum(x, self.floor)


class Solution(NamedTuple):
    """The best unknowns, their covariance (K, K), the misfits there (N), and how often the simulation was asked."""

    x: F64
    covariance: F64
    misfit: F64
    n_calls: int


class Found(NamedTuple):
    """Where a search ended: the place, the misfits there (N), and how often the simulation was asked."""

    x: F64
    misfit: F64
    n_calls: int


class _Line(NamedTuple):
    """Misfits around a point.

    At it (N), their slopes by spreads of the draws (N, K), and the variance of what is left (N).
    """

    level: F64
    slopes: F64
    noise: F64
    slope_covariance: F64
    """(K, K) Of each misfit's slopes, for noise of variance 1."""


class _Told(NamedTuple):
    """Of the cost without beliefs, in spreads of the draws: gradient (K), curvature and information (K, K)."""

    gradient: F64
    raw_curvature: F64
    """With the noise of the slopes in it: what a step divides by, lest it goes far where nothing
    is told."""
    curvature: F64
    information: F64


def solve(misfit: Misfit, unknowns: Unknowns, groups: I64, start: F64 | None = None) -> Solution:
    """The unknowns that fit best; ``groups`` (N) says which misfits go together when doubt is counted."""
    x, seen, n_calls = search(misfit, unknowns, start)
    rng = np.random.default_rng(_SEED)
    n_pairs = _DRAWS_PER_UNKNOWN * x.size // 2
    floor = np.diag((_LEAST_SPREAD * unknowns.deviation) ** 2)
    covariance: F64 = np.diag(unknowns.deviation**2)
    spread: F64 = np.diag(np.minimum(unknowns.deviation, _FIRST_SPREAD))
    for _ in range(_N_DOUBTS):
        line = _line(misfit, x, spread, rng.standard_normal((n_pairs, x.size)))
        covariance = np.asarray(
            spread @ _doubt(line, spread, unknowns, groups) @ spread.T, dtype=np.float64
        )
        spread = np.asarray(np.linalg.cholesky(covariance + floor), dtype=np.float64)
    return Solution(
        x=x, covariance=covariance, misfit=seen, n_calls=n_calls + 2 * n_pairs * _N_DOUBTS
    )


def search(misfit: Misfit, unknowns: Unknowns, start: F64 | None = None) -> Found:
    """Downhill from ``start``, or from what was believed."""
    x, damping, n_calls = (
        unknowns.possible(unknowns.centre if start is None else start).copy(),
        1e-2,
        1,
    )
    seen = misfit(x)
    cost = _cost(seen, x, unknowns)
    for _ in range(_MAX_ROUNDS):
        slopes = differences(misfit, x, unknowns)
        n_calls += 2 * x.size
        gradient, curvature = downhill(seen, slopes, x, unknowns)
        before = cost
        for _ in range(_MAX_TRIES):
            step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), -gradient)
            moved = unknowns.possible(x + np.clip(step, -_LARGEST_STEP, _LARGEST_STEP))
            tried = misfit(moved)
            n_calls += 1
            if _cost(tried, moved, unknowns) < cost:
                x, seen, damping = moved, tried, max(damping / 5, 1e-4)
                cost = _cost(seen, x, unknowns)
                break
            damping *= 5
        if before - cost < _ENOUGH * max(before, 1.0):
            break
    return Found(x, seen, n_calls)


def downhill(seen: F64, slopes: F64, x: F64, unknowns: Unknowns) -> tuple[F64, F64]:
    """Gradient and curvature of the cost, where the misfits are ``seen`` and have these slopes."""
    weight = (_STUDENT_FREEDOM + 1) / (_STUDENT_FREEDOM + seen**2)
    gradient = slopes.T @ (weight * seen) + (x - unknowns.centre) / unknowns.deviation**2
    curvature = (slopes * weight[:, None]).T @ slopes + np.diag(1 / unknowns.deviation**2)
    return gradient, curvature


def costs(misfit: F64) -> F64:
    """Of each misfit: its surprise under a Student distribution, less that of none."""
    return np.asarray(
        0.5 * (_STUDENT_FREEDOM + 1) * np.log1p(misfit**2 / _STUDENT_FREEDOM), dtype=np.float64
    )


def differences(misfit: Misfit, x: F64, unknowns: Unknowns) -> F64:
    """(N, K) Slopes of the misfits around a place, by central differences wide enough to see beyond single jumps."""
    least, largest, share = _MOVES
    sizes = np.clip(share * unknowns.deviation, least, largest)
    moves = np.diag(sizes)
    return np.stack(
        [
            (misfit(x + move) - misfit(x - move)) / (2 * size)
            for move, size in zip(moves, sizes, strict=True)
        ],
        axis=1,
    )


def refine(misfit: Misfit, unknowns: Unknowns, groups: I64, found: Found) -> Solution:
    """The same answer where much more is told than was believed.

    Draws as narrow as what is told, and steps along their slopes.

    A simulation scatters at the least change: slopes between two points are as much noise as slope.
    A line through many draws is not, so its minimum is nearer the truth than what a search can
    find.
    """
    x, seen, rng = found.x, found.misfit, np.random.default_rng(_SEED)
    believed = np.diag(1 / unknowns.deviation**2)
    _, curvature = downhill(found.misfit, differences(misfit, x, unknowns), x, unknowns)
    curvature = np.asarray(curvature - believed, dtype=np.float64)
    covariance: F64 = np.diag(unknowns.deviation**2)
    n_pairs = _DRAWS_PER_UNKNOWN * x.size // 2
    for _ in range(_N_DOUBTS):
        spread = np.linalg.cholesky(
            np.linalg.inv(
                curvature / _WIDER**2
                + np.diag(1 / np.minimum(_FIRST_SPREAD * unknowns.deviation, _STRAIGHT) ** 2)
            )
        )
        line = _line(
            misfit, x, np.asarray(spread, dtype=np.float64), rng.standard_normal((n_pairs, x.size))
        )._replace(level=seen)
        told, back = _told(line, groups), np.linalg.inv(spread)
        pull = told.gradient + spread.T @ believed @ (x - unknowns.centre)
        step = -np.linalg.solve(told.raw_curvature + spread.T @ believed @ spread, pull)
        tried = unknowns.possible(x + spread @ np.clip(step, -_LARGEST_MOVE, _LARGEST_MOVE))
        tried_seen = misfit(tried)
        if _cost(tried_seen, tried, unknowns) < _cost(seen, x, unknowns):
            x, seen = tried, tried_seen
        curvature = np.asarray(back.T @ told.curvature @ back, dtype=np.float64)
        covariance = np.asarray(
            np.linalg.inv(back.T @ told.information @ back + believed), dtype=np.float64
        )
    n_calls = found.n_calls + 2 * x.size + 2 * n_pairs * _N_DOUBTS + 1
    return Solution(x=x, covariance=covariance, misfit=seen, n_calls=n_calls)


def draw(solution: Solution, unknowns: Unknowns, n_draws: int) -> F64:
    """(n_draws, K) Unknowns that may as well be the ones, by what is told, along straight lines in the numbers themselves, and believed.

    A number that is too small to be told has no slope in its logarithm; ten times as large it would
    have shown. Random walks of Metropolis.
    """
    rng = np.random.default_rng(_SEED)
    believed = 1 / unknowns.deviation**2
    told = np.linalg.inv(solution.covariance) - np.diag(believed)
    pull = believed * (solution.x - unknowns.centre)

    def surprise(x: F64) -> F64:
        moved = np.exp(x - solution.x) - 1
        strayed = np.einsum("ni,ij,nj->n", moved, told, moved) + np.sum(
            believed * (x - unknowns.centre) ** 2, axis=1
        )
        return np.asarray(0.5 * strayed - moved @ pull, dtype=np.float64)

    stride = _WALK / math.sqrt(len(solution.x)) * np.linalg.cholesky(solution.covariance).T
    x = np.tile(solution.x, (n_draws, 1))
    now = surprise(x)
    for _ in range(_N_WALKED):
        tried = x + rng.standard_normal(x.shape) @ stride
        then = surprise(tried)
        goes = (np.log(rng.random(n_draws)) < now - then) & np.all(
            tried == unknowns.possible(tried), axis=1
        )
        x, now = np.where(goes[:, None], tried, x), np.where(goes, then, now)
    return x


def _cost(misfit: F64, x: F64, unknowns: Unknowns) -> float:
    strayed = (x - unknowns.centre) / unknowns.deviation
    return float(np.sum(costs(misfit)) + 0.5 * strayed @ strayed)


def _line(misfit: Misfit, x: F64, spread: F64, half: F64) -> _Line:
    """Draws come in pairs on either side, so that curvature does not pass for a slope."""
    draws = np.concatenate([half, -half])
    seen = np.stack([misfit(x + spread @ draw) for draw in draws])
    design = np.column_stack([np.ones(len(draws)), draws])
    inverse: F64 = np.asarray(np.linalg.inv(design.T @ design), dtype=np.float64)
    told = inverse @ design.T @ seen
    left = seen - design @ told
    noise = np.sum(left**2, axis=0) / (len(draws) - design.shape[1])
    return _Line(level=told[0], slopes=told[1:].T, noise=noise, slope_covariance=inverse[1:, 1:])


def _doubt(line: _Line, spread: F64, unknowns: Unknowns, groups: I64) -> F64:
    """The covariance of what is known after all, in spreads of the draws.

    What misfits do not tell stays as it was believed.
    """
    believed = spread.T @ np.diag(1 / unknowns.deviation**2) @ spread
    return np.asarray(np.linalg.inv(_told(line, groups).information + believed), dtype=np.float64)


def _told(line: _Line, groups: I64) -> _Told:
    """What the misfits tell, in spreads of the draws.

    Noise in slopes looks like information: its expectation is taken out of the curvature. What a
    group's misfits say together counts as one voice: a sandwich around the curvature.
    """
    precision = 1 / (1 + line.noise)
    weight = precision * (_STUDENT_FREEDOM + 1) / (_STUDENT_FREEDOM + line.level**2 * precision)
    raw: F64 = np.asarray((line.slopes * weight[:, None]).T @ line.slopes, dtype=np.float64)
    curvature = raw - float(weight @ line.noise) * line.slope_covariance
    values, vectors = np.linalg.eigh(curvature)
    told = np.asarray(vectors @ np.diag(np.maximum(values, 0.0)) @ vectors.T, dtype=np.float64)
    scores = line.slopes * (weight * line.level)[:, None]
    totals = np.stack([scores[groups == name].sum(axis=0) for name in np.unique(groups)])
    off = totals - totals.mean(axis=0)
    information = np.asarray(told @ np.linalg.pinv(told + off.T @ off) @ told, dtype=np.float64)
    return _Told(
        gradient=totals.sum(axis=0), raw_curvature=raw, curvature=told, information=information
    )
