"""The knee: the batch size (or rate) from which another doubling gains less than 1.5x throughput.

The time per round, x / throughput(x), is fitted by two straight segments that meet. They describe a
roofline exactly (flat, then rising), and also additive costs (one straight line). Two segments
through the logarithm of throughput would put the knee of additive costs 50-70 % too high, because
that curve has no straight part. The gain of a doubling, throughput(2x) / throughput(x) =
2 · time(x) / time(2x), is computed from the fit; the interval is a bootstrap over repeats.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inferometer.stats.estimate import (
    DEFAULT_CONFIDENCE_FRACTION,
    N_RESAMPLES,
    Estimate,
    present_samples,
    resampled_medians,
)

KNEE_GAIN_RATIO: Final = 1.5
"""A doubling that multiplies throughput by less than this is beyond the knee."""

KneeStatus: TypeAlias = Literal["found", "before", "beyond", "undecided"]
_Floats: TypeAlias = NDArray[np.float64]

_MIN_POINTS: Final = 3
_MIN_POINTS_OF_TWO_SEGMENTS: Final = 5
"""With fewer points one line is fitted: two segments have four parameters, and fit any four."""
_MIN_REPEATS: Final = 5
_MAX_MISFIT_RATIO: Final = 0.05
_N_HINGES: Final = 160
_N_STEPS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """The knee of throughput, or why there is none.

    Status *before*: already the first measured doubling gains less than ``KNEE_GAIN_RATIO``;
    *beyond*: the last one still gains more.
    """

    status: KneeStatus
    at: Estimate | None
    """The knee in the unit of x; None unless it is within the measured range."""
    why: str


def find_knee(
    x: ArrayLike,
    throughputs: Sequence[ArrayLike],
    *,
    seed: int,
) -> Knee:
    """The knee of throughput over x (P values); ``throughputs`` has the repeats at each x.

    The status is *undecided* if the data do not support an answer.
    """
    groups = [_positive(samples) for samples in throughputs]
    seen = sorted(
        (float(place), i)
        for i, place in enumerate(np.asarray(x, dtype=np.float64))
        if groups[i].size
    )
    positions = np.array([place for place, _ in seen])
    times = [place / groups[i] for place, i in seen]
    if positions.size < _MIN_POINTS or positions[-1] < 2 * positions[0]:
        return Knee(
            status="undecided",
            at=None,
            why=f"{positions.size} points; a knee needs {_MIN_POINTS} over more than one doubling",
        )
    medians = np.array([np.median(group) for group in times])
    value, misfit = (float(array[0]) for array in _knees(positions, medians[np.newaxis], medians))
    n_repeats = min(group.size for group in times)
    if n_repeats < _MIN_REPEATS or misfit > _MAX_MISFIT_RATIO:
        why = f"{n_repeats} repeats; an interval needs {_MIN_REPEATS}"
        why = f"the fit misses a point by {misfit:.0%}" if misfit > _MAX_MISFIT_RATIO else why
        at = None if not np.isfinite(value) else _estimate(value, None, n_repeats, why)
        return Knee(status="undecided", at=at, why=why)
    resampled, _ = _knees(positions, resampled_medians(times, seed=seed), medians)
    return _judge(value, resampled, positions, n_repeats)


def _positive(samples: ArrayLike) -> _Floats:
    present = present_samples(samples)
    return present[present > 0]


def _judge(value: float, resampled: _Floats, positions: _Floats, n_repeats: int) -> Knee:
    """The knee with its interval, from knees of resampled data.

    In ``resampled``, -inf means before the first point, +inf beyond the last one.
    """
    tail = (1 - DEFAULT_CONFIDENCE_FRACTION) / 2
    low, high = (
        float(np.quantile(resampled, fraction, method="inverted_cdf"))
        for fraction in (tail, 1 - tail)
    )
    how = (
        f"{'two segments' if positions.size >= _MIN_POINTS_OF_TWO_SEGMENTS else 'one line'} through"
        " the time per round; "
    )
    how += f"{N_RESAMPLES} resamples of {n_repeats} repeats"
    first, last = positions[0], positions[-1]
    if high == -np.inf:
        return Knee(
            status="before", at=None, why=f"already the doubling from {first:g} buys less; {how}"
        )
    if low == np.inf:
        return Knee(
            status="beyond", at=None, why=f"the doubling to {last:g} still buys more; {how}"
        )
    if np.isinf(low) or np.isinf(high):
        at = _estimate(value, None, n_repeats, how) if np.isfinite(value) else None
        return Knee(
            status="undecided",
            at=at,
            why=f"the interval reaches past what was measured ({first:g} to {last:g}); {how}",
        )
    return Knee(
        status="found",
        at=_estimate(value, (low, high), n_repeats, how),
        why=how,
    )


def _estimate(
    value: float,
    interval: tuple[float, float] | None,
    n_repeats: int,
    method: str,
) -> Estimate:
    return Estimate(
        value=value,
        low=None if interval is None else min(interval[0], value),
        high=None if interval is None else max(interval[1], value),
        confidence_fraction=DEFAULT_CONFIDENCE_FRACTION,
        n_samples=n_repeats,
        method=method,
    )


def _knees(positions: _Floats, times: _Floats, scale: _Floats) -> tuple[_Floats, _Floats]:
    """(B) Knee and (B) worst relative misfit, one for each row of ``times`` (B, P)."""
    coefficients, hinges, misfits = _fit(positions, times, scale)
    grid = np.geomspace(positions[0], positions[-1] / 2, _N_STEPS)

    def time_at(x: _Floats) -> _Floats:
        return (
            coefficients[:, :1]
            + coefficients[:, 1:2] * x
            + coefficients[:, 2:3] * np.maximum(x - hinges[:, np.newaxis], 0)
        )

    gains = 2 * time_at(grid) / time_at(2 * grid)
    is_past = gains < KNEE_GAIN_RATIO
    i_first = np.argmax(is_past, axis=1)
    rows = np.arange(len(times))
    above, below = gains[rows, np.maximum(i_first - 1, 0)], gains[rows, i_first]
    share = np.clip((above - KNEE_GAIN_RATIO) / np.where(above > below, above - below, 1.0), 0, 1)
    crossing = grid[np.maximum(i_first - 1, 0)] ** (1 - share) * grid[i_first] ** share
    knees = np.where(is_past[:, 0], -np.inf, np.where(is_past.any(axis=1), crossing, np.inf))
    return knees, misfits


def _fit(positions: _Floats, times: _Floats, scale: _Floats) -> tuple[_Floats, _Floats, _Floats]:
    """The best two segments for each row of ``times`` (B, P).

    Returns coefficients (B, 3): constant, slope, change of slope at the hinge; the hinge (B); and
    the worst relative misfit (B).
    """
    n_rows = len(times)
    best = np.full(n_rows, np.inf)
    coefficients, hinges, misfits = (
        np.zeros((n_rows, 3)),
        np.full(n_rows, positions[-1]),
        np.zeros(n_rows),
    )
    # The hinge is between the second and the last but one point, so that each segment has two.
    candidates = positions[-1:]
    if positions.size >= _MIN_POINTS_OF_TWO_SEGMENTS:
        candidates = np.concatenate(
            (positions[1:-1], np.geomspace(positions[1], positions[-2], _N_HINGES))
        )
    for hinge in candidates:
        columns = [np.ones_like(positions), positions, np.maximum(positions - hinge, 0)]
        design = np.stack(columns, axis=1) / scale[:, np.newaxis]
        solved = (times / scale) @ np.linalg.pinv(design).T
        residuals = solved @ design.T - times / scale
        squares = (residuals**2).sum(axis=1)
        is_better = squares < best
        best[is_better] = squares[is_better]
        coefficients[is_better], hinges[is_better] = solved[is_better], hinge
        misfits[is_better] = np.abs(residuals[is_better]).max(axis=1)
    return coefficients, hinges, misfits
