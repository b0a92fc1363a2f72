"""Which unknowns make a simulation say what was seen, and how sure is that?

The search takes damped Gauss-Newton steps along differences over some per cent and keeps what fits better. A simulation jumps where
a request just misses a step: good enough to go downhill, but such slopes tell far too much certainty. For the doubt slopes are read
off an ensemble: draws around the answer, a linear regression on them; what the line leaves is noise of each misfit, and the noise
that it puts into the slopes is taken out of what they tell. Student weights stand against outliers, normal beliefs against what the
misfits do not tell. Letters of shapes: N misfits, K unknowns.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from inferometer.records.types import F64, I64

Misfit: TypeAlias = Callable[[F64], F64]
"""From K unknowns to N misfits in standard deviations."""

_STUDENT_FREEDOM: Final = 4.0
_MOVES: Final = (0.02, 0.1, 0.2)
"""Of the search: least and largest move for a difference, and how much of an unknown's doubt it is."""
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
_SEED: Final = 20261121


class Unknowns(NamedTuple):
    """K unknowns and what was believed of them: all as logarithms, or on scales of order one."""

    names: tuple[str, ...]
    centre: F64
    deviation: F64


class Solution(NamedTuple):
    """The best unknowns, their covariance (K, K), the misfits there (N), and how often the simulation was asked."""

    x: F64
    covariance: F64
    misfit: F64
    n_calls: int


class _Line(NamedTuple):
    """Misfits around a point: at it (N), their slopes by spreads of the draws (N, K), and the variance of what is left (N)."""

    level: F64
    slopes: F64
    noise: F64
    slope_covariance: F64
    """(K, K) Of each misfit's slopes, for noise of variance 1."""


def solve(misfit: Misfit, unknowns: Unknowns, groups: I64) -> Solution:
    """The unknowns that fit best; ``groups`` (N) says which misfits go together when doubt is counted."""
    x, seen, n_calls = _search(misfit, unknowns)
    rng = np.random.default_rng(_SEED)
    n_pairs = _DRAWS_PER_UNKNOWN * x.size // 2
    floor = np.diag((_LEAST_SPREAD * unknowns.deviation) ** 2)
    covariance: F64 = np.diag(unknowns.deviation**2)
    spread: F64 = np.diag(np.minimum(unknowns.deviation, _FIRST_SPREAD))
    for _ in range(_N_DOUBTS):
        line = _line(misfit, x, spread, rng.standard_normal((n_pairs, x.size)))
        covariance = np.asarray(spread @ _doubt(line, spread, unknowns, groups) @ spread.T, dtype=np.float64)
        spread = np.asarray(np.linalg.cholesky(covariance + floor), dtype=np.float64)
    return Solution(x=x, covariance=covariance, misfit=seen, n_calls=n_calls + 2 * n_pairs * _N_DOUBTS)


def _search(misfit: Misfit, unknowns: Unknowns) -> tuple[F64, F64, int]:
    """Downhill from what was believed: the place, the misfits there, and how often was asked."""
    x, damping, n_calls = unknowns.centre.copy(), 1e-2, 1
    seen = misfit(x)
    cost = _cost(seen, x, unknowns)
    for _ in range(_MAX_ROUNDS):
        slopes = _differences(misfit, x, unknowns)
        n_calls += 2 * x.size
        weight = (_STUDENT_FREEDOM + 1) / (_STUDENT_FREEDOM + seen**2)
        gradient = slopes.T @ (weight * seen) + (x - unknowns.centre) / unknowns.deviation**2
        curvature = (slopes * weight[:, None]).T @ slopes + np.diag(1 / unknowns.deviation**2)
        before = cost
        for _ in range(_MAX_TRIES):
            step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), -gradient)
            step = np.clip(step, -_LARGEST_STEP, _LARGEST_STEP)
            tried = misfit(x + step)
            n_calls += 1
            if _cost(tried, x + step, unknowns) < cost:
                x, seen, damping = x + step, tried, max(damping / 5, 1e-4)
                cost = _cost(seen, x, unknowns)
                break
            damping *= 5
        if before - cost < _ENOUGH * max(before, 1.0):
            break
    return x, seen, n_calls


def _differences(misfit: Misfit, x: F64, unknowns: Unknowns) -> F64:
    least, largest, share = _MOVES
    sizes = np.clip(share * unknowns.deviation, least, largest)
    moves = np.diag(sizes)
    return np.stack([(misfit(x + move) - misfit(x - move)) / (2 * size) for move, size in zip(moves, sizes, strict=True)], axis=1)


def _cost(misfit: F64, x: F64, unknowns: Unknowns) -> float:
    strayed = (x - unknowns.centre) / unknowns.deviation
    student = 0.5 * (_STUDENT_FREEDOM + 1) * np.sum(np.log1p(misfit**2 / _STUDENT_FREEDOM))
    return float(student + 0.5 * strayed @ strayed)


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

    Noise in slopes looks like information: its expectation is taken out of the curvature. What a group's misfits say together counts
    as one voice: a sandwich around the curvature, and what was believed before beside it, which no misfit makes less certain.
    """
    precision = 1 / (1 + line.noise)
    weight = precision * (_STUDENT_FREEDOM + 1) / (_STUDENT_FREEDOM + line.level**2 * precision)
    curvature = (line.slopes * weight[:, None]).T @ line.slopes - float(weight @ line.noise) * line.slope_covariance
    values, vectors = np.linalg.eigh(curvature)
    told = vectors @ np.diag(np.maximum(values, 0.0)) @ vectors.T
    scores = line.slopes * (weight * line.level)[:, None]
    totals = np.stack([scores[groups == name].sum(axis=0) for name in np.unique(groups)])
    off = totals - totals.mean(axis=0)
    information = told @ np.linalg.pinv(told + off.T @ off) @ told
    believed = spread.T @ np.diag(1 / unknowns.deviation**2) @ spread
    return np.asarray(np.linalg.inv(information + believed), dtype=np.float64)


__all__ = ["Misfit", "Solution", "Unknowns", "solve"]
