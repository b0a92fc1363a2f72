"""Where does a token suddenly cost a multiple of what it cost at the previous point?

A point's *previous* point is the next smaller one that was measured on the same axis: the shorter
prompt at the same batch, the smaller batch at the same prompt; generated tokens alike. On a grid a
point has one on each axis. A point without times (out of memory) is nobody's previous point.

What is compared is the time per token that the batch processed: prefill / (batch · prompt), decode
step / batch. A decode *step* grows with the batch by nature while each token gets cheaper (T1 of
the tests: 31.3 ms at batch 16, 64.2 ms at 64, yet twice the throughput), so comparing steps along
the batch axis would flag healthy points. Along the prompt axis the batch is the same and both
definitions agree.

The factor's interval holds whether or not the machine changed its speed between the two points
(``ceilings.steady_views``).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Final, Literal, TypeAlias

import numpy as np

from inferometer.inputs.types import SweepPoint
from inferometer.records.ceilings import steady_views
from inferometer.records.columns import F64
from inferometer.records.repetitions import PointRepetitions
from inferometer.records.types import Run
from inferometer.stats.comparison import ratio_estimate
from inferometer.stats.estimate import Estimate, envelope

DEFAULT_COLLAPSE_FACTOR_RATIO: Final = 2.0

Axis: TypeAlias = Literal["prompt", "batch"]
SweepPhase: TypeAlias = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCostChange:
    """By which factor does a token cost more at ``point`` than at ``previous``?"""

    point_index: int
    point: SweepPoint
    previous: SweepPoint
    axis: Axis
    phase: SweepPhase
    ratio: Estimate
    factor_ratio: float
    """From here on it is a collapse."""

    @property
    def is_collapse(self) -> bool:
        """Does the median reach the factor?

        ``ratio``'s interval tells whether the repeats support that.
        """
        return self.ratio.value >= self.factor_ratio

    @property
    def flag(self) -> str:
        """Such as ``COLLAPSE_PREFILL(x3.4)``."""
        return f"COLLAPSE_{self.phase.upper()}(x{self.ratio.value:.1f})"


def collapses(run: Run, *, factor_ratio: float | None = None) -> tuple[TokenCostChange, ...]:
    """Where does the run collapse? The factor is that of the run's plan unless it is given."""
    return tuple(
        change
        for change in token_cost_changes(run, factor_ratio=factor_ratio)
        if change.is_collapse
    )


def token_cost_changes(
    run: Run, *, factor_ratio: float | None = None
) -> tuple[TokenCostChange, ...]:
    """Every pair of neighbouring points of a run, on both axes, prefill and decode apart."""
    planned = (
        run.manifest.plan.collapse_factor_ratio
        if run.manifest.plan
        else DEFAULT_COLLAPSE_FACTOR_RATIO
    )
    factor_ratio = planned if factor_ratio is None else factor_ratio
    views = [_changes_of(list(points), factor_ratio) for points in steady_views(run)]
    changes = [_steady(same) for same in zip(*views, strict=True)]
    return tuple(
        sorted(changes, key=lambda change: (change.point, change.phase != "prefill", change.axis))
    )


def flag_text(changes: Iterable[TokenCostChange], point_index: int) -> str:
    """What the flag column says of a point: its worst collapse in each phase, or nothing."""
    worst: dict[SweepPhase, TokenCostChange] = {}
    for change in changes:
        if change.point_index == point_index and change.is_collapse:
            known = worst.get(change.phase)
            worst[change.phase] = (
                change if known is None or change.ratio.value > known.ratio.value else known
            )
    return " ".join(worst[phase].flag for phase in sorted(worst, reverse=True))


def _steady(same: tuple[TokenCostChange, ...]) -> TokenCostChange:
    """A change as measured, its interval wide enough to hold at steady machine speeds too."""
    measured = same[0]
    if len(same) == 1:
        return measured
    method = f"{measured.ratio.method}; widest of {len(same)} views of the machine's speed"
    return replace(measured, ratio=envelope([change.ratio for change in same], method=method))


def _changes_of(points: list[PointRepetitions], factor_ratio: float) -> list[TokenCostChange]:
    changes: list[TokenCostChange] = []
    for previous, point in _neighbours(points, "prompt"):
        changes += _changes(previous, point, "prompt", factor_ratio)
    for previous, point in _neighbours(points, "batch"):
        changes += _changes(previous, point, "batch", factor_ratio)
    return changes


def _neighbours(
    points: list[PointRepetitions], axis: Axis
) -> list[tuple[PointRepetitions, PointRepetitions]]:
    def line(point: PointRepetitions) -> tuple[int, int]:
        return (
            point.point.batch_size if axis == "prompt" else point.point.prompt_tokens,
            point.point.gen_tokens,
        )

    def place(point: PointRepetitions) -> int:
        return point.point.prompt_tokens if axis == "prompt" else point.point.batch_size

    ordered = sorted(points, key=lambda point: (line(point), place(point)))
    return [pair for _, group in groupby(ordered, key=line) for pair in pairwise(group)]


def _changes(
    previous: PointRepetitions, point: PointRepetitions, axis: Axis, factor_ratio: float
) -> list[TokenCostChange]:
    found: list[TokenCostChange] = []
    phases: tuple[tuple[SweepPhase, F64, F64], ...] = (
        ("prefill", _prefill_s_per_token(previous), _prefill_s_per_token(point)),
        ("decode", _decode_s_per_token(previous), _decode_s_per_token(point)),
    )
    for phase, before_s, after_s in phases:
        ratio = ratio_estimate(after_s, before_s)
        if ratio is not None:
            found.append(
                TokenCostChange(
                    point_index=point.point_index,
                    point=point.point,
                    previous=previous.point,
                    axis=axis,
                    phase=phase,
                    ratio=ratio,
                    factor_ratio=factor_ratio,
                )
            )
    return found


def _prefill_s_per_token(point: PointRepetitions) -> F64:
    return np.asarray(point.prefill_s / (point.point.batch_size * point.point.prompt_tokens))


def _decode_s_per_token(point: PointRepetitions) -> F64:
    return np.asarray(point.tpot_s / point.point.batch_size)
