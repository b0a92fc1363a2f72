"""What does a sweep with one number per point say in words?

Such tables come from other tools and papers. They carry no interval, and each sentence says so.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from inferometer.records import curves
from inferometer.records.curves import Curve, CurveFinding, Rule
from inferometer.records.repetitions import PointRepetitions
from inferometer.units import format_number

WITHOUT_INTERVAL: Final = "one number per point: no interval"


def _total_tokens_per_s(point: PointRepetitions) -> float:
    tokens = point.point.batch_size * (point.point.prompt_tokens + point.point.gen_tokens)
    return float(tokens / point.total_s[0])


Number = Callable[[PointRepetitions], float]
_NUMBERS: Final[tuple[tuple[str, Number, dict[str, tuple[Rule, ...]]], ...]] = (
    (
        "prefill time",
        lambda point: float(point.prefill_s[0]),
        {"prompt": (curves.growth,), "batch": (curves.growth,)},
    ),
    (
        "decode time per token",
        lambda point: float(point.tpot_s[0]),
        {"prompt": (curves.growth,), "batch": (curves.growth,)},
    ),
    (
        "decode throughput",
        lambda point: float(point.decode_tokens_per_s[0]),
        {"prompt": (), "batch": (curves.knee, curves.peak)},
    ),
    (
        "total throughput",
        _total_tokens_per_s,
        {"prompt": (curves.peak,), "batch": (curves.knee, curves.peak)},
    ),
    (
        "prefill",
        lambda point: float(point.prefill_s[0] / point.total_s[0]),
        {"prompt": (curves.share,), "batch": (curves.share,)},
    ),
    (
        "reserved memory",
        lambda point: float(point.reserved_bytes[0]),
        {"prompt": (curves.growth,), "batch": (curves.growth,)},
    ),
)
"""Name, how it is read from a point, and the rules that speak of it over each axis."""


def has_single_numbers(points: Sequence[PointRepetitions]) -> bool:
    """Has each point one repetition?"""
    return bool(points) and all(point.n_reps == 1 for point in points)


def single_number_findings(points: Sequence[PointRepetitions]) -> tuple[CurveFinding, ...]:
    """Growth laws, knees, peaks, phases and equal tokens, of points that differ in one axis."""
    found = [
        finding
        for name, number, rules in _NUMBERS
        for axis in ("prompt", "batch")
        for curve in _lines(points, axis, name, number)
        for finding in curves.findings_of_curve(curve, rules[axis])
    ]
    return tuple(
        CurveFinding(code=one.code, sentence=f"{_capital(one.sentence[:-1])} ({WITHOUT_INTERVAL}).")
        for one in (*found, *_same_tokens(points))
    )


def _capital(text: str) -> str:
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
    """The widest pair of a long prompt and a large batch with as many prompt tokens: which is faster?"""
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
