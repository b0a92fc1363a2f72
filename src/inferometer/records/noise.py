"""How much did the machine change while it was being measured?

Noise becomes cautions with a remedy, never an average.

Points differ, so each repetition is taken relative to the median of its own point. Where the
repetitions of a point follow each other directly, a slow drift of the machine moves that median
with it and does not show in those ratios: it shows in the ceilings, which ask the machine the same
question throughout the run.
"""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from inferometer.records.columns import F64
from inferometer.records.repetitions import PointRepetitions, probes_of, repetitions_of
from inferometer.records.types import Caution, Origin, ProbeKind, Run
from inferometer.stats.comparison import Drift, drift, lag_1_correlation_ratio
from inferometer.stats.quantiles import min_samples, relative_spread_ratio

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
    """How noisy was a run? None where it has too few samples to tell."""

    prefill_drift: Drift | None
    """Of each repetition relative to its point's median, last third of the run against the
    first."""
    decode_drift: Drift | None
    read_ceiling_drift: Drift | None
    matmul_ceiling_drift: Drift | None
    read_ceiling_spread_ratio: float | None
    """90th percentile of the probes / 10th."""
    median_spread_ratio: float | None
    """Between the repetitions of a point, prefill and decode, the median over the points."""
    worst_spread_ratio: float | None
    correlation_ratio: float | None
    """Of neighbouring decode repetitions of a point; intervals assume 0."""


def noise_of(run: Run) -> NoiseSummary:
    """How noisy was the run?"""
    points = repetitions_of(run)
    spreads = [
        spread
        for point in points
        for values in (point.prefill_s, point.tpot_s)
        if (spread := relative_spread_ratio(values)) is not None
    ]
    read, matmul = (
        probes_of(run.ceilings, ProbeKind.READ),
        probes_of(run.ceilings, ProbeKind.MATMUL),
    )
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
    """What makes the run's numbers less good, and what to do about it?"""
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
    """Each repetition / the median of its point, in the order in which they were measured.

    Points with two or more only.
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
"""Between two samples of power and utilisation (``measure.telemetry``)."""
_LEAST_TELEMETRY: Final = 4
"""Samples in a repetition below which their mean says little of it."""


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
