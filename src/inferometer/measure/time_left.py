"""How far is a sweep, and how long will the rest take?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from inferometer.spec.types import SweepPlan, SweepPoint

_PREFILL_TOKEN_WEIGHT: Final = 0.02
_SEQUENCE_WEIGHT: Final = 0.05
"""A prefilled token and another sequence of a batch, in decode steps of batch 1: middling values of small models on a CPU
and of large ones on a GPU. They only apportion time that was measured, so they cancel once points of all sizes are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a sweep stands: before each point, and once after the last."""

    n_done: int
    n_points: int
    point: SweepPoint | None
    """What is measured now; None when all is done."""
    left_s: float | None
    """None as long as nothing was measured in this session."""


OnProgress: TypeAlias = Callable[[Progress], None]


class TimeLeft:
    """Extrapolates from the points measured so far, by the work in each."""

    def __init__(self, plan: SweepPlan) -> None:
        self._n_runs = plan.n_warmup + plan.n_reps
        self._done_work = 0.0
        self._done_s = 0.0

    def measured(self, point: SweepPoint, duration_s: float) -> None:
        """A point took this long."""
        self._done_work += self._work(point)
        self._done_s += duration_s

    def estimate_s(self, rest: Sequence[SweepPoint]) -> float | None:
        """How long will these points take? None before the first was measured."""
        if not self._done_work:
            return None
        return self._done_s / self._done_work * sum(self._work(point) for point in rest)

    def _work(self, point: SweepPoint) -> float:
        steps = (point.gen_tokens - 1) * (1 + _SEQUENCE_WEIGHT * point.batch_size)
        return self._n_runs * (1 + steps + _PREFILL_TOKEN_WEIGHT * point.batch_size * point.prompt_tokens)


__all__ = ["OnProgress", "Progress", "TimeLeft"]
