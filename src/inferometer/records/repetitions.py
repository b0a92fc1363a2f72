"""What did each repetition of each sweep point take?

The repetition is the unit of replication: one number of each kind from each.

Letters of shapes: R repetitions of a point that ended OK, warm-ups left out.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inferometer.inputs.types import SweepPoint
from inferometer.records import tables
from inferometer.records.columns import F64, I64
from inferometer.records.types import Phase, PointStatus, Run, StepTable, SweepTable

_NS_PER_S: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRepetitions:
    """One point's repetitions, in the order in which they ran.

    Each array has R entries, NaN where nobody could tell.
    """

    point_index: int
    point: SweepPoint
    status: PointStatus
    """The worst of any repetition, warm-ups included: a point that ran out of memory once is out
    of memory."""
    started_ns: I64
    prefill_s: F64
    decode_s: F64
    """All decode steps together."""
    n_decode_steps: F64
    decode_step_s: F64
    """The median of the repetition's decode steps where steps were recorded, else decode time /
    steps."""
    reserved_bytes: F64
    allocated_bytes: F64
    cpu_fraction: F64
    device_fraction: F64
    energy_joule: F64
    power_watt: F64

    @property
    def n_reps(self) -> int:
        """How many repetitions ended OK?"""
        return len(self.started_ns)

    @property
    def total_s(self) -> F64:
        """Prefill and decode together."""
        return self.prefill_s + np.where(
            self.point.gen_tokens > 1, self.decode_s, np.nan_to_num(self.decode_s)
        )

    @property
    def tpot_s(self) -> F64:
        """Decode time per step: the time per output token of each sequence of the static batch."""
        return _per(self.decode_s, self.n_decode_steps)

    @property
    def decode_tokens_per_s(self) -> F64:
        """Tokens that the decode steps yielded / decode time."""
        return _per(self.point.batch_size * self.n_decode_steps, self.decode_s)

    @property
    def total_tokens_per_s(self) -> F64:
        """(batch · prompt + batch · generated) / (prefill + decode)."""
        n_tokens = self.point.batch_size * (self.point.prompt_tokens + self.point.gen_tokens)
        return _per(np.full(self.n_reps, float(n_tokens)), self.total_s)

    @property
    def output_tokens_per_s(self) -> F64:
        """Batch · generated / (prefill + decode): output tokens over the whole time."""
        n_tokens = self.point.batch_size * self.point.gen_tokens
        return _per(np.full(self.n_reps, float(n_tokens)), self.total_s)

    def at_speed(self, speed_ratio: F64) -> "PointRepetitions":
        """The repetitions on a machine of speed 1, each having run at ``speed_ratio`` (R)."""
        return replace(
            self,
            prefill_s=self.prefill_s * speed_ratio,
            decode_s=self.decode_s * speed_ratio,
            decode_step_s=self.decode_step_s * speed_ratio,
        )


def repetitions_of(run: Run) -> tuple[PointRepetitions, ...]:
    """Each measured point's repetitions, points ordered by prompt, batch and generated tokens.

    Empty without a sweep.
    """
    if run.sweep is None:
        return ()
    steps = _DecodeSteps.of(run.steps)
    found = [_point(run.sweep, int(index), steps) for index in np.unique(run.sweep.point_index)]
    return tuple(sorted(found, key=lambda point: point.point))


def _point(sweep: SweepTable, point_index: int, steps: "_DecodeSteps") -> PointRepetitions:
    rows = tables.select(sweep, sweep.point_index == point_index)
    kept = tables.select(rows, ~rows.is_warmup & (rows.status == PointStatus.OK))
    decode_s = _positive_s(kept.decode_ns)
    n_decode_steps = np.where(kept.n_decode_steps > 0, kept.n_decode_steps, np.nan)
    step_s = np.array(
        [steps.median_s(point_index, int(repetition)) for repetition in kept.repetition],
        dtype=np.float64,
    )
    return PointRepetitions(
        point_index=point_index,
        point=SweepPoint(
            prompt_tokens=int(rows.prompt_tokens[0]),
            batch_size=int(rows.batch_size[0]),
            gen_tokens=int(rows.gen_tokens[0]),
        ),
        status=_worst_status(rows),
        started_ns=kept.started_ns,
        prefill_s=_positive_s(kept.prefill_ns),
        decode_s=decode_s,
        n_decode_steps=n_decode_steps,
        decode_step_s=np.where(np.isnan(step_s), _per(decode_s, n_decode_steps), step_s),
        reserved_bytes=tables.optional_ns(kept.reserved_bytes),
        allocated_bytes=tables.optional_ns(kept.allocated_bytes),
        cpu_fraction=kept.cpu_fraction,
        device_fraction=kept.device_fraction,
        energy_joule=kept.energy_joule,
        power_watt=kept.power_watt,
    )


def _worst_status(rows: SweepTable) -> PointStatus:
    for status in (PointStatus.OUT_OF_MEMORY, PointStatus.FAILED):
        if bool((rows.status == status).any()):
            return status
    return PointStatus.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecodeSteps:
    """Decode step durations sorted by (point, repetition), and where each begins."""

    starts: dict[tuple[int, int], tuple[int, int]]
    duration_ns: I64

    @classmethod
    def of(cls, steps: StepTable | None) -> "_DecodeSteps":
        if steps is None:
            return cls(starts={}, duration_ns=np.empty(0, np.int64))
        kept = tables.select(steps, (steps.phase == Phase.DECODE) & ~steps.is_warmup)
        order = np.lexsort((kept.repetition, kept.point_index))
        keys: NDArray[np.int64] = np.stack(
            (kept.point_index[order], kept.repetition[order]), axis=1
        ).astype(np.int64)
        is_first = np.ones(len(keys), dtype=bool)
        is_first[1:] = (keys[1:] != keys[:-1]).any(axis=1)
        begins = np.flatnonzero(is_first)
        ends = [*begins[1:].tolist(), len(keys)]
        starts = {
            (int(keys[i][0]), int(keys[i][1])): (int(i), end)
            for i, end in zip(begins, ends, strict=True)
        }
        return cls(starts=starts, duration_ns=kept.duration_ns[order])

    def median_s(self, point_index: int, repetition: int) -> float:
        """The median decode step of one repetition, NaN where none was recorded."""
        begin, end = self.starts.get((point_index, repetition), (0, 0))
        return (
            float(np.median(self.duration_ns[begin:end])) / _NS_PER_S
            if end > begin
            else float("nan")
        )


def _positive_s(duration_ns: I64) -> F64:
    """Seconds; absent where absent, and where a clock did not move: nothing takes no time."""
    return np.where(duration_ns > 0, duration_ns / _NS_PER_S, np.nan)


def _per(numerator: F64, denominator: F64) -> F64:
    """A quotient that is absent where the denominator is absent or not positive."""
    is_positive = denominator > 0
    return np.where(is_positive, numerator / np.where(is_positive, denominator, 1.0), np.nan)
