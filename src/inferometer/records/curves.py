"""Findings in words on curves with one number per point: growth laws, knees, plateaus.

Points of the curves have no repetitions, so the sentences state what the numbers show, without
confidence. They are predictions at likely step times, or tables of other tools and papers.
(``records.findings`` speaks of repeated measurements.)

The knee of repeated measurements: the time per round, x / throughput(x), is fitted by two straight
segments that meet. They describe a roofline exactly (flat, then rising), and also additive costs
(one straight line). Two segments through the logarithm of throughput would put the knee of additive
costs 50-70 % too high, because that curve has no straight part. The gain of a doubling,
throughput(2x) / throughput(x) = 2 · time(x) / time(2x), is computed from the fit; the interval is a
bootstrap over repeats.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inferometer.records.repetitions import PointRepetitions
from inferometer.stats.estimate import Estimate
from inferometer.stats.quantiles import (
    DEFAULT_CONFIDENCE_FRACTION,
    N_RESAMPLES,
    present_samples,
    resampled_medians,
)
from inferometer.units import format_number

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
    coefficients = np.zeros((n_rows, 3))
    hinges = np.full(n_rows, positions[-1])
    misfits = np.zeros(n_rows)
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


PLATEAU_GAIN_RATIO: Final = 1.05
"""A doubling that gains less than this counts as no gain."""
_FLAT_RATIO: Final = 1.1
_LINEAR: Final = (0.9, 1.1)
"""Exponents of a growth law that is called linear."""
_NEARLY_FLAT: Final = 0.1
_BEND: Final = 0.3
"""Difference of exponents above which a curve's two halves count as different."""
_MIN_SPAN_RATIO: Final = 4.0
WITHOUT_INTERVAL: Final = "one number per point: no interval"


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveFinding:
    """One finding about a curve."""

    code: str
    sentence: str


class Curve(NamedTuple):
    """One number over one axis, with everything else fixed."""

    x: tuple[float, ...]
    """Rising, above 0."""
    y: tuple[float, ...]
    x_name: str
    """Name of the axis: batch, prompt tokens, users."""
    y_name: str
    held: str = ""
    """The fixed values, as the end of a sentence: `` at batch 8``."""

    @property
    def range_words(self) -> str:
        """The first and the last x, in words."""
        return f"from {self.x_name} {format_number(self.x[0])} to {format_number(self.x[-1])}"


def growth(curve: Curve) -> CurveFinding | None:
    """The power law by which y grows with x: flat, linear, or more.

    The exponent is the slope of the least-squares line through the logarithms; of a curve that
    bends, the slopes of its two halves. None with fewer than three points or less than a factor
    of four between the first and the last.
    """
    if not _is_long(curve) or min(curve.y) <= 0:
        return None
    change = max(curve.y) / min(curve.y)
    if change <= _FLAT_RATIO:
        within = max(change - 1, 0.01)
        text = f"{curve.y_name} is flat (within {within:.0%}) {curve.range_words}{curve.held}."
        return CurveFinding(code="FLAT", sentence=text)
    log_x, log_y = np.log(curve.x), np.log(curve.y)
    middle = len(log_x) // 2
    halves = [
        _slope(log_x[: middle + 1], log_y[: middle + 1]),
        _slope(log_x[middle:], log_y[middle:]),
    ]
    verb = "grows" if curve.y[-1] > curve.y[0] else "falls"
    factor = curve.y[-1] / curve.y[0]
    by = f"{format_number(factor if factor > 1 else 1 / factor)}x {curve.range_words}{curve.held}"
    if abs(halves[1] - halves[0]) > _BEND:
        law = (
            f"about as {curve.x_name}^{halves[0]:.2f} up to"
            f" {format_number(curve.x[middle])}, then ^{halves[1]:.2f} ({_law(halves[1])})"
        )
    else:
        slope = _slope(log_x, log_y)
        law = f"as {curve.x_name}^{slope:.2f} ({_law(slope)})"
    return CurveFinding(code="GROWTH", sentence=f"{curve.y_name} {verb} {by}: {law}.")


def _slope(log_x: np.ndarray, log_y: np.ndarray) -> float:
    return float(np.polyfit(log_x, log_y, 1)[0])


def _law(slope: float) -> str:
    if abs(slope) < _NEARLY_FLAT:
        return "nearly flat"
    linear = "linear" if slope > 0 else "in proportion"
    if abs(slope) < _LINEAR[0]:
        return f"less than {linear}"
    return linear if abs(slope) <= _LINEAR[1] else f"more than {linear}"


def knee(curve: Curve) -> CurveFinding | None:
    """The x from which doubling gains less than 1.5x, and from which it gains nothing.

    Gains per doubling are those between neighbouring points, to the power of one doubling. None
    with fewer than three points, or less than a factor of four between the first and the last.
    """
    if not _is_long(curve) or min(curve.y) <= 0:
        return None
    gains = _doubling_gains(curve)
    bent = _first(gains < KNEE_GAIN_RATIO)
    full = _first(gains < PLATEAU_GAIN_RATIO)
    if bent is None:
        text = (
            f"No knee: each doubling of {curve.x_name} up to {format_number(curve.x[-1])} gains more"
            f" than {KNEE_GAIN_RATIO:g}x {curve.y_name}{curve.held}."
        )
    else:
        text = (
            f"From {curve.x_name} {format_number(curve.x[bent])} on another doubling gains less than"
            f" {KNEE_GAIN_RATIO:g}x {curve.y_name}{curve.held}"
        )
        text += (
            "."
            if full is None
            else f", from {format_number(curve.x[full])} on less than {PLATEAU_GAIN_RATIO:g}x:"
            " a plateau."
        )
    return CurveFinding(code="KNEE", sentence=text)


def knee_at(curve: Curve) -> float | None:
    """The x from which another doubling gains less than 1.5x; None without one."""
    if not _is_long(curve) or min(curve.y) <= 0:
        return None
    bent = _first(_doubling_gains(curve) < KNEE_GAIN_RATIO)
    return None if bent is None else curve.x[bent]


def _doubling_gains(curve: Curve) -> np.ndarray:
    x, y = np.asarray(curve.x), np.asarray(curve.y)
    return np.asarray((y[1:] / y[:-1]) ** (1 / np.log2(x[1:] / x[:-1])))


def peak(curve: Curve) -> CurveFinding | None:
    """The highest y, if y falls by more than a tenth after it."""
    best = int(np.argmax(curve.y))
    if len(curve.y) < _MIN_POINTS or curve.y[-1] * _FLAT_RATIO > curve.y[best]:
        return None
    unit = " tok/s" if curve.y_name.endswith("throughput") else ""
    text = (
        f"{curve.y_name} is highest at {curve.x_name} {format_number(curve.x[best])}"
        f" ({format_number(curve.y[best])}{unit}){curve.held}, and falls to"
        f" {format_number(curve.y[-1])}{unit} at {format_number(curve.x[-1])}."
    )
    return CurveFinding(code="PEAK", sentence=text)


def cheapest(curve: Curve) -> CurveFinding | None:
    """The lowest y, and whether y falls again at a larger x."""
    if not _is_long(curve) or min(curve.y) <= 0:
        return None
    best = int(np.argmin(curve.y))
    text = f"{curve.y_name} is least at {curve.x_name} {format_number(curve.x[best])}{curve.held}"
    if best:
        text += f" ({curve.y[0] / curve.y[best]:.2g}x less than at {format_number(curve.x[0])})"
    rises = curve.y[-1] / curve.y[best]
    text += (
        f"; longer makes it no cheaper ({rises:.2g}x at {format_number(curve.x[-1])})."
        if best < len(curve.y) - 1
        else ", the last: it falls all the way."
    )
    return CurveFinding(code="CHEAPEST", sentence=text)


def share(curve: Curve) -> CurveFinding | None:
    """How a phase's share of the time changes, and where it passes one half."""
    if len(curve.y) < 2:
        return None
    first, last = curve.y[0], curve.y[-1]
    text = f"{curve.y_name} takes {first:.0%} of the time at {curve.x_name} {format_number(curve.x[0])}"
    text += f" and {last:.0%} at {format_number(curve.x[-1])}{curve.held}"
    above = [value > 0.5 for value in curve.y]
    if above[0] != above[-1]:
        at = next(i for i, value in enumerate(above) if value != above[0])
        text += f"; it passes one half by {format_number(curve.x[at])}"
    return CurveFinding(code="PHASES", sentence=f"{text}.")


def jumps(curve: Curve, *, factor_ratio: float = 2.0) -> CurveFinding | None:
    """Points at which y per x rises by this factor over the point before."""
    worst, where = 0.0, 0
    for i in range(1, len(curve.y)):
        ratio = curve.y[i] / curve.y[i - 1] if curve.y[i - 1] > 0 else 0.0
        if ratio > worst:
            worst, where = ratio, i
    if worst < factor_ratio:
        return None
    text = (
        f"{curve.y_name} jumps {worst:.1f}x between {curve.x_name}"
        f" {format_number(curve.x[where - 1])} and {format_number(curve.x[where])}{curve.held}."
    )
    return CurveFinding(code="COLLAPSE", sentence=text)


def _is_long(curve: Curve) -> bool:
    return len(curve.x) >= _MIN_POINTS and curve.x[-1] >= _MIN_SPAN_RATIO * curve.x[0]


def _first(flags: np.ndarray) -> int | None:
    """The first index from which all flags hold; None where the last one does not."""
    if not flags[-1]:
        return None
    others = np.flatnonzero(~flags)
    return int(others[-1]) + 1 if others.size else 0


Rule = Callable[[Curve], CurveFinding | None]


def findings_of_curve(curve: Curve, rules: Sequence[Rule]) -> list[CurveFinding]:
    """Findings of these rules for the curve."""
    return [found for rule in rules if (found := rule(curve)) is not None]


def _total_tokens_per_s(point: PointRepetitions) -> float:
    tokens = point.point.batch_size * (point.point.prompt_tokens + point.point.gen_tokens)
    return float(tokens / point.total_s[0])


Number = Callable[[PointRepetitions], float]
_NUMBERS: Final[tuple[tuple[str, Number, dict[str, tuple[Rule, ...]]], ...]] = (
    (
        "prefill time",
        lambda point: float(point.prefill_s[0]),
        {"prompt": (growth,), "batch": (growth,)},
    ),
    (
        "decode time per token",
        lambda point: float(point.tpot_s[0]),
        {"prompt": (growth,), "batch": (growth,)},
    ),
    (
        "decode throughput",
        lambda point: float(point.decode_tokens_per_s[0]),
        {"prompt": (), "batch": (knee, peak)},
    ),
    (
        "total throughput",
        _total_tokens_per_s,
        {"prompt": (peak,), "batch": (knee, peak)},
    ),
    (
        "prefill",
        lambda point: float(point.prefill_s[0] / point.total_s[0]),
        {"prompt": (share,), "batch": (share,)},
    ),
    (
        "reserved memory",
        lambda point: float(point.reserved_bytes[0]),
        {"prompt": (growth,), "batch": (growth,)},
    ),
)
"""Name, accessor on a point, and the rules to apply over each axis."""


def has_single_numbers(points: Sequence[PointRepetitions]) -> bool:
    """Does each point have one repetition?"""
    return bool(points) and all(point.n_reps == 1 for point in points)


def single_number_findings(points: Sequence[PointRepetitions]) -> tuple[CurveFinding, ...]:
    """Growth laws, knees, peaks, phases and equal tokens, of points that differ in one axis."""
    found = [
        finding
        for name, number, rules in _NUMBERS
        for axis in ("prompt", "batch")
        for curve in _lines(points, axis, name, number)
        for finding in findings_of_curve(curve, rules[axis])
    ]
    return tuple(
        CurveFinding(code=one.code, sentence=f"{capital(one.sentence[:-1])} ({WITHOUT_INTERVAL}).")
        for one in (*found, *_same_tokens(points))
    )


def capital(text: str) -> str:
    """The sentence with a capital letter at its beginning."""
    return text[0].upper() + text[1:]


def _lines(points: Sequence[PointRepetitions], axis: str, name: str, number: Number) -> list[Curve]:
    """The curves over the axis, one for each value of the other that has two points or more."""
    groups = dict[tuple[int, int], list[tuple[float, float]]]()
    for one in points:
        spec = one.point
        x, held = (
            (spec.prompt_tokens, spec.batch_size)
            if axis == "prompt"
            else (spec.batch_size, spec.prompt_tokens)
        )
        y = number(one)
        if np.isfinite(y):
            groups.setdefault((held, spec.gen_tokens), []).append((float(x), y))
    other = "batch" if axis == "prompt" else "prompt"
    found = list[Curve]()
    for (held, _), pairs in groups.items():
        if len(pairs) > 1:
            xs, ys = zip(*sorted(pairs), strict=True)
            found.append(Curve(xs, ys, axis, name, f" at {other} {held}"))
    return found


def _same_tokens(points: Sequence[PointRepetitions]) -> list[CurveFinding]:
    """Compare a long prompt with a large batch of the same number of prompt tokens."""
    groups = dict[int, list[PointRepetitions]]()
    for one in points:
        if np.isfinite(one.total_s[0]):
            tokens = one.point.prompt_tokens * one.point.batch_size
            groups.setdefault(tokens, []).append(one)
    most = max(groups, key=lambda tokens: (len(groups[tokens]), tokens), default=0)
    group = groups.get(most, [])
    if len(group) < 2:
        return []
    ordered = sorted(group, key=lambda one: one.point.batch_size)
    ends = [
        f"prompt {one.point.prompt_tokens} x batch {one.point.batch_size} takes"
        f" {format_number(float(one.total_s[0]))} s for"
        f" {one.point.batch_size * one.point.gen_tokens} tokens of output"
        for one in (ordered[0], ordered[-1])
    ]
    text = f"The same prompt tokens, different outcomes: {ends[0]}, {ends[1]}."
    return [CurveFinding(code="SAME_TOKENS", sentence=text)]
