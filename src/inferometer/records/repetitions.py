"""How long did each repetition of each sweep point take, and with which ceiling is it compared?

The repetition is the unit of replication: one number of each kind from each.

Letters of shapes: R repetitions of a point that ended OK, warm-ups left out.

Ceilings are probed between repetitions, because a shared machine drifts. The ceiling that judges a
repetition is the larger of the last probe before it and the first after it: what the machine could
do at that time, at least.

Points are measured at different times, so a difference between two of them may be the machine's.
How far a step's time follows the machine's memory or its matmul rate is not known here, but it
follows neither more than in proportion: what holds of the times as measured, of the times at steady
memory and of the times at steady matmul rate does not rest on drift.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inferometer.inputs.types import SweepPoint
from inferometer.records import tables
from inferometer.records.columns import F64, I64
from inferometer.records.types import (
    CeilingTable,
    Phase,
    PointStatus,
    ProbeKind,
    Run,
    StepTable,
    SweepTable,
)

_NS_PER_S: Final = 1e9
_SAME_FOOTPRINT_RATIO: Final = 0.5
"""Probes that touch less than this share of the largest footprint may live in a cache, and are
no ceiling of the memory."""


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
    minor_faults: F64
    major_faults: F64

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
    ended_ok = tables.select(rows, ~rows.is_warmup & (rows.status == PointStatus.OK))
    decode_s = _positive_s(ended_ok.decode_ns)
    n_decode_steps = np.where(ended_ok.n_decode_steps > 0, ended_ok.n_decode_steps, np.nan)
    step_s = np.array(
        [steps.median_s(point_index, int(repetition)) for repetition in ended_ok.repetition],
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
        started_ns=ended_ok.started_ns,
        prefill_s=_positive_s(ended_ok.prefill_ns),
        decode_s=decode_s,
        n_decode_steps=n_decode_steps,
        decode_step_s=np.where(np.isnan(step_s), _per(decode_s, n_decode_steps), step_s),
        reserved_bytes=tables.optional_ns(ended_ok.reserved_bytes),
        allocated_bytes=tables.optional_ns(ended_ok.allocated_bytes),
        cpu_fraction=ended_ok.cpu_fraction,
        device_fraction=ended_ok.device_fraction,
        energy_joule=ended_ok.energy_joule,
        power_watt=ended_ok.power_watt,
        minor_faults=ended_ok.minor_faults,
        major_faults=ended_ok.major_faults,
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
        ended_ok = tables.select(steps, (steps.phase == Phase.DECODE) & ~steps.is_warmup)
        order = np.lexsort((ended_ok.repetition, ended_ok.point_index))
        keys: NDArray[np.int64] = np.stack(
            (ended_ok.point_index[order], ended_ok.repetition[order]), axis=1
        ).astype(np.int64)
        is_first = np.ones(len(keys), dtype=bool)
        is_first[1:] = (keys[1:] != keys[:-1]).any(axis=1)
        begins = np.flatnonzero(is_first)
        ends = [*begins[1:].tolist(), len(keys)]
        starts = {
            (int(keys[i][0]), int(keys[i][1])): (int(i), end)
            for i, end in zip(begins, ends, strict=True)
        }
        return cls(starts=starts, duration_ns=ended_ok.duration_ns[order])

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


def steady_views(run: Run) -> tuple[tuple[PointRepetitions, ...], ...]:
    """The points that have repetitions.

    As measured, then (where it was probed throughout) at steady memory and at steady matmul rate.
    """
    points = tuple(point for point in repetitions_of(run) if point.n_reps)
    views = [points]
    for probes in (probes_of(run.ceilings, ProbeKind.READ), matmul_probes_of(run)):
        ceilings = [judging_ceilings_per_s(point, probes) for point in points]
        if probes is not None and ceilings and not np.isnan(np.concatenate(ceilings)).any():
            usual_per_s = float(np.median(np.concatenate(ceilings)))
            views.append(
                tuple(
                    point.at_speed(per_s / usual_per_s)
                    for point, per_s in zip(points, ceilings, strict=True)
                )
            )
    return tuple(views)


def matmul_probes_of(run: Run) -> CeilingTable | None:
    """The matmul probes in the engine's number format where that was probed, else in whichever was."""
    if run.ceilings is None or run.manifest.plan is None:
        return probes_of(run.ceilings, ProbeKind.MATMUL)
    own = probes_of(run.ceilings, ProbeKind.MATMUL, dtype=run.manifest.plan.engine.dtype)
    return probes_of(run.ceilings, ProbeKind.MATMUL) if own is None else own


def judging_ceilings_per_s(point: PointRepetitions, probes: CeilingTable | None) -> F64:
    """The ceiling of each repetition (R values), NaN where there is no probe.

    ``probes`` are of one kind (``probes_of``).
    """
    if probes is None or tables.n_rows(probes) == 0:
        return np.full(point.n_reps, np.nan)
    order = np.argsort(probes.started_ns, kind="stable")
    started_ns, value_per_s = probes.started_ns[order], probes.value_per_s[order]
    padded = np.concatenate(([np.nan], value_per_s, [np.nan]))
    ended_ns = point.started_ns + np.nan_to_num(point.total_s * 1e9).astype(np.int64)
    before = padded[np.searchsorted(started_ns, point.started_ns, side="right")]
    after = padded[np.searchsorted(started_ns, ended_ns, side="left") + 1]
    return np.fmax(before, after)


def probes_of(
    ceilings: CeilingTable | None, kind: ProbeKind, *, dtype: str | None = None
) -> CeilingTable | None:
    """The probes of one kind (and number format) with the large footprint; None without any."""
    if ceilings is None:
        return None
    is_kept = (ceilings.kind == kind) & ~np.isnan(ceilings.value_per_s)
    if dtype is not None:
        is_kept &= ceilings.dtype == dtype
    if kind is not ProbeKind.MATMUL and is_kept.any():
        is_kept &= ceilings.footprint_bytes >= _SAME_FOOTPRINT_RATIO * int(
            ceilings.footprint_bytes[is_kept].max()
        )
    return tables.select(ceilings, is_kept) if is_kept.any() else None
