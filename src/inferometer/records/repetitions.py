"""Times of each repetition of each sweep point, and the ceiling to compare it with.

The repetition is the unit of replication: each yields one number of each kind.
Letters of shapes: R repetitions of a point that ended OK, without warm-ups.

Ceilings are probed between repetitions, because a shared machine drifts. A repetition is compared
with the larger of the last probe before it and the first after it, a lower bound of what the
machine could do at that time.

Points are measured at different times, so the machine may cause a difference between two of them.
A step's time depends on the machine's memory bandwidth and matmul rate at most in proportion. So a
finding that holds for the times as measured, for times scaled to steady memory bandwidth and for
times scaled to a steady matmul rate is not due to drift.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from inferometer.inputs.types import Caution, SweepPoint
from inferometer.records import tables
from inferometer.records.columns import F64, I64
from inferometer.records.types import (
    CeilingTable,
    Origin,
    Phase,
    PointStatus,
    ProbeKind,
    Run,
    StepTable,
    SweepTable,
)
from inferometer.stats.comparison import Drift, drift, lag_1_correlation_ratio
from inferometer.stats.quantiles import min_samples, relative_spread_ratio

_NS_PER_S: Final = 1e9
_SAME_FOOTPRINT_RATIO: Final = 0.5
"""Probes with less than this share of the largest footprint may fit into a cache, so they are
not ceilings of the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRepetitions:
    """One point's repetitions, in the order measured.

    Each array has R entries, NaN where unknown.
    """

    point_index: int
    point: SweepPoint
    status: PointStatus
    """The worst status of any repetition, warm-ups included: one that ran out of memory makes the
    point out of memory."""
    started_ns: I64
    prefill_s: F64
    decode_s: F64
    """Time of all decode steps together."""
    n_decode_steps: F64
    decode_step_s: F64
    """The median of the repetition's decode steps if steps were recorded or a table names it, else
    decode time / steps."""
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
        """The number of repetitions with status OK."""
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
        """The repetitions scaled to a machine of speed 1; each ran at ``speed_ratio`` (R)."""
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
    step_s = np.where(np.isnan(step_s), _positive_s(ended_ok.median_step_ns), step_s)
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
    """Seconds; absent durations and those of 0 (too short for the clock) are absent."""
    return np.where(duration_ns > 0, duration_ns / _NS_PER_S, np.nan)


def _per(numerator: F64, denominator: F64) -> F64:
    """A quotient that is absent where the denominator is absent or not positive."""
    is_positive = denominator > 0
    return np.where(is_positive, numerator / np.where(is_positive, denominator, 1.0), np.nan)


def steady_views(run: Run) -> tuple[tuple[PointRepetitions, ...], ...]:
    """The points with repetitions, at steady machine speeds.

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
    """The matmul probes in the engine's number format, else in any format that was probed."""
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


# How much did the machine's speed change during the run?
#
# Noise is reported as cautions with a remedy; it is never averaged away.
#
# Points differ, so each repetition is divided by the median of its own point. If the
# repetitions of a point follow each other directly, a slow drift of the machine moves that median
# too and does not show in these ratios: it shows in the ceilings, which repeat the same
# measurement throughout the run.


MAX_DRIFT_RATIO: Final = 0.02
MAX_SPREAD_RATIO: Final = 0.05
MAX_CEILING_SPREAD_RATIO: Final = 1.25
"""Largest ratio between the 90th and the 10th percentile of a ceiling that passes for a steady
machine."""
MAX_CORRELATION_RATIO: Final = 0.5

_QUIET: Final = (
    "stop other programs, fix the clock frequency, or measure again at a quieter time; `inferometer"
    " doctor` says what it sees"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSummary:
    """Noise of a run; None where it has too few samples."""

    prefill_drift: Drift | None
    """Repetitions relative to their point's median: last third of the run / first third."""
    decode_drift: Drift | None
    read_ceiling_drift: Drift | None
    matmul_ceiling_drift: Drift | None
    read_ceiling_spread_ratio: float | None
    """90th percentile of the probes / 10th."""
    median_spread_ratio: float | None
    """Spread between the repetitions of a point (prefill and decode), median over the points."""
    worst_spread_ratio: float | None
    correlation_ratio: float | None
    """Correlation of successive decode repetitions; intervals assume 0."""


def noise_of(run: Run) -> NoiseSummary:
    """Noise and drift of the run."""
    points = repetitions_of(run)
    spreads = [
        spread
        for point in points
        for values in (point.prefill_s, point.tpot_s)
        if (spread := relative_spread_ratio(values)) is not None
    ]
    read = probes_of(run.ceilings, ProbeKind.READ)
    matmul = probes_of(run.ceilings, ProbeKind.MATMUL)
    read_per_s = (
        None if read is None else read.value_per_s[np.argsort(read.started_ns, kind="stable")]
    )
    is_one_format = matmul is not None and len(set(matmul.dtype.tolist())) == 1
    matmul_per_s = (
        matmul.value_per_s[np.argsort(matmul.started_ns, kind="stable")]
        if matmul is not None and is_one_format
        else None
    )
    return NoiseSummary(
        prefill_drift=drift(_relative(points, "prefill"), margin_ratio=MAX_DRIFT_RATIO),
        decode_drift=drift(_relative(points, "decode"), margin_ratio=MAX_DRIFT_RATIO),
        read_ceiling_drift=(
            None if read_per_s is None else drift(read_per_s, margin_ratio=MAX_DRIFT_RATIO)
        ),
        matmul_ceiling_drift=(
            None if matmul_per_s is None else drift(matmul_per_s, margin_ratio=MAX_DRIFT_RATIO)
        ),
        read_ceiling_spread_ratio=_decile_ratio(read_per_s),
        median_spread_ratio=float(np.median(spreads)) if spreads else None,
        worst_spread_ratio=max(spreads) if spreads else None,
        correlation_ratio=lag_1_correlation_ratio(_relative(points, "decode")),
    )


def noise_cautions(run: Run) -> tuple[Caution, ...]:
    """Cautions on noise and drift, with remedies."""
    noise = noise_of(run)
    points = [point for point in repetitions_of(run) if point.n_reps]
    cautions = [
        _drift_caution(noise.prefill_drift, "DRIFT_PREFILL", "prefill times"),
        _drift_caution(noise.decode_drift, "DRIFT_DECODE", "decode times"),
        _drift_caution(
            noise.read_ceiling_drift, "DRIFT_READ_CEILING", "the memory bandwidth of the machine"
        ),
        _drift_caution(
            noise.matmul_ceiling_drift, "DRIFT_MATMUL_CEILING", "the matmul rate of the machine"
        ),
        _ceiling_spread_caution(noise),
        _spread_caution(points),
        _correlation_caution(noise),
        _repeats_caution(points, run.manifest.origin),
        _telemetry_caution(points),
    ]
    return tuple(caution for caution in cautions if caution is not None)


def _relative(points: tuple[PointRepetitions, ...], phase: Literal["prefill", "decode"]) -> F64:
    """Each repetition divided by the median of its point, in the order measured.

    Only points with two or more repetitions.
    """
    probes = [
        (point.started_ns, point.prefill_s if phase == "prefill" else point.tpot_s)
        for point in points
        if point.n_reps > 1
    ]
    probes = [(started_ns, values) for started_ns, values in probes if not np.isnan(values).all()]
    if not probes:
        return np.empty(0)
    started_ns = np.concatenate([started for started, _ in probes])
    ratios = np.concatenate([values / np.nanmedian(values) for _, values in probes])
    return ratios[np.argsort(started_ns, kind="stable")]


def _decile_ratio(values: F64 | None) -> float | None:
    if values is None or values.size < min_samples(0.5):
        return None
    low, high = np.quantile(values, [0.1, 0.9])
    return float(high / low)


def _drift_caution(found: Drift | None, code: str, what: str) -> Caution | None:
    if (
        found is None
        or found.verdict not in {"lower", "higher"}
        or found.ratio.low is None
        or found.ratio.high is None
    ):
        return None
    interval = f"{found.ratio.low - 1:+.1%} to {found.ratio.high - 1:+.1%}"
    return Caution(
        code=code,
        text=(
            f"{what} changed by {found.ratio.value - 1:+.1%} ({interval}) from the first to the"
            " last third of the run"
        ),
        remedy=_QUIET,
    )


def _ceiling_spread_caution(noise: NoiseSummary) -> Caution | None:
    if (
        noise.read_ceiling_spread_ratio is None
        or noise.read_ceiling_spread_ratio <= MAX_CEILING_SPREAD_RATIO
    ):
        return None
    varied = (
        f"varied by a factor of {noise.read_ceiling_spread_ratio:.2f} (90th over 10th percentile of"
        " the probes)"
    )
    text = f"the memory bandwidth of the machine {varied}"
    return Caution(code="UNSTEADY_CEILING", text=text, remedy=_QUIET)


def _spread_caution(points: list[PointRepetitions]) -> Caution | None:
    spreads = {
        (phase, point.point): spread
        for point in points
        for phase, values in (("prefill", point.prefill_s), ("decode", point.tpot_s))
        if (spread := relative_spread_ratio(values)) is not None and spread > MAX_SPREAD_RATIO
    }
    if not spreads:
        return None
    phase, point = max(spreads, key=lambda key: spreads[key])
    text = (
        f"repetitions scatter by more than {MAX_SPREAD_RATIO:.0%} in {len(spreads)} of"
        f" {2 * len(points)} cases; worst: {phase} of prompt {point.prompt_tokens}, batch"
        f" {point.batch_size} with {spreads[phase, point]:.0%}"
    )
    return Caution(code="SPREAD", text=text, remedy=_QUIET + "; or raise --reps")


def _correlation_caution(noise: NoiseSummary) -> Caution | None:
    if noise.correlation_ratio is None or noise.correlation_ratio <= MAX_CORRELATION_RATIO:
        return None
    resemblance = (
        f"neighbouring repetitions resemble each other (correlation {noise.correlation_ratio:.2f})"
    )
    text = f"{resemblance}: intervals are narrower than they should be"
    return Caution(
        code="CORRELATED",
        text=text,
        remedy="measure again at another time and compare the two runs",
    )


def _repeats_caution(points: list[PointRepetitions], origin: Origin) -> Caution | None:
    needed = min_samples(0.5)
    n_short = sum(point.n_reps < needed for point in points)
    if not n_short:
        return None
    text = (
        f"{n_short} of {len(points)} points have fewer than {needed} repetitions, so their numbers"
        " have no 95 % interval"
    )
    remedy = (
        "a table has one number per point; only a measurement of one's own has intervals"
        if origin == "published"
        else f"--reps {needed} or more"
    )
    return Caution(code="FEW_REPETITIONS", text=text, remedy=remedy)


TELEMETRY_INTERVAL_S: Final = 0.05
"""Time between two samples of power and utilisation (``measure.telemetry``)."""
_LEAST_TELEMETRY: Final = 4
"""Fewest samples in a repetition for a usable mean."""


def _telemetry_caution(points: list[PointRepetitions]) -> Caution | None:
    sampled = [
        point
        for point in points
        if not np.isnan([*point.device_fraction, *point.energy_joule, *point.power_watt]).all()
    ]
    least_s = _LEAST_TELEMETRY * TELEMETRY_INTERVAL_S
    short = [point for point in sampled if float(np.median(point.total_s)) < least_s]
    if not short:
        return None
    text = (
        f"repetitions of {len(short)} of {len(sampled)} points take less than {least_s:g} s,"
        f" {_LEAST_TELEMETRY} samples of power and utilisation: theirs are rough"
    )
    return Caution(
        code="SHORT_FOR_TELEMETRY", text=text, remedy="--gen-tokens 256, or larger batches"
    )
