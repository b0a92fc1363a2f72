"""How far is a sweep, and how long will the rest take?"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from inferometer.inputs.types import SweepPlan, SweepPoint, SweepVisit

_PREFILL_TOKEN_WEIGHT: Final = 0.02
_SEQUENCE_WEIGHT: Final = 0.05
"""A prefilled token and another sequence of a batch, in decode steps of batch 1: middling values
of small models on a CPU and of large ones on a GPU. They only apportion time that was measured,
so they cancel once points of all sizes are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a sweep: before each visit to a point, and after the last."""

    n_done: int
    n_visits: int
    point: SweepPoint | None
    """Point being measured; None when all are done."""
    left_s: float | None
    """None as long as nothing was measured in this session."""


OnProgress: TypeAlias = Callable[[Progress], None]


class TimeLeft:
    """Extrapolates from the visits made so far, by the work in each."""

    def __init__(self, plan: SweepPlan) -> None:
        self._points = plan.points
        self._done_work = 0.0
        self._done_s = 0.0

    def measured(self, visit: SweepVisit, duration_s: float) -> None:
        """A visit took this long."""
        self._done_work += self._work(visit)
        self._done_s += duration_s

    def estimate_s(self, rest: Sequence[SweepVisit]) -> float | None:
        """How long will these visits take? None before the first was measured."""
        if not self._done_work:
            return None
        return self._done_s / self._done_work * sum(self._work(visit) for visit in rest)

    def within_s(self, rest: Sequence[SweepVisit], until_s: float | None) -> float | None:
        """How long these visits take (``estimate_s``) without points that would end after this instant."""
        estimate_s = self.estimate_s(rest)
        if until_s is None or estimate_s is None:
            return estimate_s
        return min(estimate_s, max(until_s - time.monotonic(), 0.0))

    def is_over(self, rest: Sequence[SweepVisit], until_s: float | None) -> bool:
        """Would these visits end after this instant of the monotonic clock? None: there is no limit."""
        late_s = time.monotonic() + (self.estimate_s(rest) or 0.0)
        return until_s is not None and late_s > until_s

    def _work(self, visit: SweepVisit) -> float:
        point = self._points[visit.point_index]
        steps = (point.gen_tokens - 1) * (1 + _SEQUENCE_WEIGHT * point.batch_size)
        return (visit.n_warmup + visit.n_reps) * (
            1 + steps + _PREFILL_TOKEN_WEIGHT * point.batch_size * point.prompt_tokens
        )
