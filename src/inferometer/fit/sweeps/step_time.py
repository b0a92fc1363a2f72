"""Step-time model from sweeps, with its error on configurations that it was not fitted to.

Letters of shapes: N observations, K free parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from inferometer.errors import ModelError, SpecError
from inferometer.fit.map import AT_BOUND, information_source
from inferometer.fit.sweeps.observations import LEANER_TRAFFIC, Observations, observe
from inferometer.fit.sweeps.priors import (
    Ceilings,
    Priors,
    captured_tokens,
    ceilings_of,
    priors_of,
)
from inferometer.fit.sweeps.regression import Data, Spreads, StepTimePosterior, regress
from inferometer.inputs.types import Constant, EngineSpec, HardwareSpec, PeakSpec, Source
from inferometer.perfmodel.steptime import (
    FittedParameter,
    HeldOutError,
    StepTimeModel,
    TrainedOn,
    parameter_estimate,
)
from inferometer.perfmodel.steptime_limits import PhaseName, PhaseUncertainty, box_of
from inferometer.perfmodel.steptime_terms import PARAMETERS, parameters_of, work_columns
from inferometer.perfmodel.types import FitSubject, known_device, subject_of
from inferometer.records.columns import F64
from inferometer.records.types import HostFacts, Run
from inferometer.stats.estimate import Z_90

PHASES: Final[tuple[PhaseName, ...]] = ("prefill", "decode")

_MIN_FOR_CALIBRATION: Final = 12

MAX_NOISE_RATIO: Final = 0.05
"""A point with a larger standard error does not judge a model; it is counted apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutPoint:
    """An observation, and the prediction of a model that was fitted without its configuration."""

    phase: PhaseName
    prompt_tokens: int
    batch_size: int
    measured_s: float
    predicted_s: float
    log_deviation_ratio: float
    """Claimed standard deviation of the log error."""
    noise_ratio: float
    """Standard error of the logarithm of ``measured_s``."""
    n_folds: int

    @property
    def error_fraction(self) -> float:
        """Signed error relative to what was measured."""
        return self.predicted_s / self.measured_s - 1

    @property
    def standardised_ratio(self) -> float:
        """Log error in claimed standard deviations."""
        return float(np.log(self.predicted_s / self.measured_s)) / self.log_deviation_ratio


def is_judged(point: HeldOutPoint) -> bool:
    """Do the point's repetitions agree well enough to judge a model by it?"""
    return point.noise_ratio <= MAX_NOISE_RATIO


def held_out_errors(points: Sequence[HeldOutPoint]) -> tuple[HeldOutError, ...]:
    """Errors by phase, and the share of points inside their interval.

    Points with a large standard error are left out. Each point is judged by an interval that was
    calibrated without it.
    """
    errors: list[HeldOutError] = []
    for phase in PHASES:
        mine = [point for point in points if point.phase == phase and is_judged(point)]
        if not mine:
            continue
        absolute = np.abs([point.error_fraction for point in mine])
        standardised = np.abs([point.standardised_ratio for point in mine])
        inside = [
            score <= interval_ratio(np.delete(standardised, i))
            for i, score in enumerate(standardised)
        ]
        errors.append(
            HeldOutError(
                phase=phase,
                n_points=len(mine),
                n_noisy=sum(point.phase == phase for point in points) - len(mine),
                n_folds=mine[0].n_folds,
                median_fraction=float(np.median(absolute)),
                p95_fraction=float(np.quantile(absolute, 0.95)),
                coverage_fraction=float(np.mean(inside)),
            )
        )
    return tuple(errors)


def interval_ratio(standardised: F64) -> float:
    """Predicted standard deviations that cover 90 % of the held-out errors.

    The conformal quantile of the cross-validated errors where points suffice, else the normal
    one.
    """
    n = standardised.size
    if n < _MIN_FOR_CALIBRATION:
        return Z_90
    return float(np.quantile(standardised, min(1.0, 0.9 * (n + 1) / n)))


def claimed_deviation(model: StepTimeModel, test: Observations, half_widths: F64) -> F64:
    """Predicted standard deviation of a held-out log error, of model and measurement."""
    ratios = {uncertainty.phase: uncertainty.interval_ratio for uncertainty in model.uncertainties}
    scale = np.array([ratios.get(row.phase, Z_90) for row in test.rows])
    noise = np.array([row.noise_ratio for row in test.rows])
    return np.asarray(np.sqrt((half_widths / scale) ** 2 + noise**2), dtype=np.float64)


N_FOLDS: Final = 10


class StepTimeFit(NamedTuple):
    """A model, and its held-out points."""

    model: StepTimeModel
    held_out: tuple[HeldOutPoint, ...]


def fit_step_time(
    runs: Sequence[Run],
    *,
    hardware: HardwareSpec | None = None,
    is_drift_removed: bool | None = None,
    n_folds: int = N_FOLDS,
) -> StepTimeModel:
    """Fit a step-time model to these runs of one model on one engine.

    ``hardware`` gives the datasheet's peaks where the runs probed none. ``is_drift_removed``
    None lets the probes decide.

    Raises
    ------
    ModelError
        Nothing to fit: no run, different subjects, fewer than two observations.
    SpecError
        ``hardware`` is not the device on which the runs were measured.
    """
    return fit_and_validate(
        runs, hardware=hardware, is_drift_removed=is_drift_removed, n_folds=n_folds
    ).model


def fit_and_validate(
    runs: Sequence[Run],
    *,
    hardware: HardwareSpec | None = None,
    is_drift_removed: bool | None = None,
    n_folds: int = N_FOLDS,
) -> StepTimeFit:
    """Fit a step-time model (``fit_step_time``), and predict points that were held out."""
    seen = observe(runs, hardware=hardware, is_drift_removed=is_drift_removed)
    if len(seen.rows) < 2:
        raise ModelError(
            f"{len(seen.rows)} step time is not enough to fit a model",
            allowed="two or more",
            try_="a sweep over batch sizes",
        )
    device = stated_device(runs, seen.engine, hardware)
    ceilings = ceilings_of(runs, seen.engine, device)
    seen = replace(seen, captured_tokens=captured_tokens(seen.engine, device))
    seen = _physical(seen, ceilings)
    posterior = _posterior(seen, ceilings)
    held_out = _held_out(seen, ceilings, n_folds, posterior.spreads)
    subject = measured_subject(runs, seen.engine, ceilings, hardware)
    model = model_of(
        seen,
        _priors(seen, data_of(seen), ceilings),
        posterior,
        held_out,
        subject.hardware_id or subject.device,
    )
    model = replace(model, subject=subject, machine_ratio=seen.machine_ratio)
    return StepTimeFit(model=model, held_out=held_out)


def _physical(seen: Observations, ceilings: Ceilings) -> Observations:
    """Replace eager attention's KV traffic by a leaner one if it exceeds the device's bandwidth.

    Tables do not state which attention ran: eager attention is assumed, which copies tens of
    bytes for each byte of the cache.
    """
    peak = ceilings.peaks.get("kv_bytes_per_s")
    if peak is None or seen.kv_traffic_ratio <= 1:
        return seen
    unbounded = _posterior(seen, replace(ceilings, peaks={}))
    rate = parameters_of(unbounded.vector).kv_bytes_per_s
    possible = (
        ratio
        for ratio in (seen.kv_traffic_ratio, *LEANER_TRAFFIC)
        if rate * ratio <= peak * seen.kv_traffic_ratio
    )
    return replace(seen, kv_traffic_ratio=next(possible, LEANER_TRAFFIC[-1]))


def _priors(seen: Observations, data: Data, ceilings: Ceilings) -> Priors:
    return priors_of(seen, data.work, data.log_s, ceilings)


def _posterior(
    seen: Observations, ceilings: Ceilings, start: Spreads | None = None
) -> StepTimePosterior:
    data = data_of(seen)
    return regress(data, _priors(seen, data, ceilings), start)


def _held_out(
    seen: Observations, ceilings: Ceilings, n_folds: int, start: Spreads | None
) -> tuple[HeldOutPoint, ...]:
    configurations = sorted({row.configuration for row in seen.rows})
    n_folds = min(n_folds, len(configurations))
    if len(configurations) < 3:
        return ()
    points: list[HeldOutPoint] = []
    for fold in range(n_folds):
        left_out = set(configurations[fold::n_folds])
        is_kept = [row.configuration not in left_out for row in seen.rows]
        training, test = seen.subset(is_kept), seen.subset([not kept for kept in is_kept])
        posterior = _posterior(training, ceilings, start)
        model = model_of(
            training, _priors(training, data_of(training), ceilings), posterior, (), None
        )
        shapes = [row.shape for row in test.rows]
        work = model.work(shapes)
        predicted_s = model.terms(work).total_s
        sd = claimed_deviation(model, test, model.log_half_widths(shapes, work))
        points += [
            HeldOutPoint(
                phase=row.phase,
                prompt_tokens=row.prompt_tokens,
                batch_size=row.batch_size,
                measured_s=row.duration_s,
                predicted_s=float(predicted_s[i]),
                log_deviation_ratio=float(sd[i]),
                noise_ratio=row.noise_ratio,
                n_folds=n_folds,
            )
            for i, row in enumerate(test.rows)
        ]
    return tuple(points)


def data_of(seen: Observations) -> Data:
    """The observations as arrays."""
    return Data(
        work=work_columns(
            seen.model,
            seen.engine,
            [row.shape for row in seen.rows],
            kv_traffic_ratio=seen.kv_traffic_ratio,
            captured_tokens=seen.captured_tokens,
        ),
        log_s=np.log([row.duration_s for row in seen.rows]),
        noise=np.array([row.noise_ratio for row in seen.rows]),
        is_prefill=np.array([row.phase == "prefill" for row in seen.rows]),
    )


def model_of(
    seen: Observations,
    priors: Priors,
    posterior: StepTimePosterior,
    held_out: Sequence[HeldOutPoint],
    hardware: str | None,
) -> StepTimeModel:
    """Model of these parameters, uncertainties and held-out errors."""
    uncertainties = tuple(
        _uncertainty(phase, posterior.spreads, held_out)
        for phase in PHASES
        if any(row.phase == phase for row in seen.rows)
    )
    return StepTimeModel(
        model=seen.model,
        engine=seen.engine,
        parameters=_parameters(posterior, priors, len(seen.rows)),
        kv_traffic_ratio=seen.kv_traffic_ratio,
        staircase_rows=tuple(round(float(row)) for row in np.exp(posterior.staircase.log_rows)),
        staircase_log_ratio=tuple(posterior.staircase.log_ratio.tolist()),
        free=posterior.free,
        covariance=tuple(tuple(row) for row in posterior.covariance.tolist()),
        uncertainties=uncertainties,
        box=box_of([row.shape for row in seen.rows]),
        trained_on=TrainedOn(
            run_ids=seen.run_ids,
            hardware=hardware,
            attention_implementation=seen.attention_implementation,
            n_observations=len(seen.rows),
            n_configurations=len({row.configuration for row in seen.rows}),
            is_drift_removed=seen.drift is not None,
        ),
        held_out=held_out_errors(held_out),
        computes_all_logits=seen.computes_all_logits,
        captured_tokens=seen.captured_tokens,
    )


def _uncertainty(
    phase: PhaseName, spreads: Spreads, held_out: Sequence[HeldOutPoint]
) -> PhaseUncertainty:
    standardised = np.abs([point.standardised_ratio for point in held_out if point.phase == phase])
    spread = spreads.prefill_ratio if phase == "prefill" else spreads.decode_ratio
    return PhaseUncertainty(
        phase=phase, spread_ratio=spread, interval_ratio=interval_ratio(standardised)
    )


def _parameters(
    posterior: StepTimePosterior, priors: Priors, n_observations: int
) -> tuple[FittedParameter, ...]:
    sds = dict(zip(posterior.free, np.sqrt(np.diag(posterior.covariance)).tolist(), strict=True))
    fitted: list[FittedParameter] = []
    for name, prior, place in zip(
        PARAMETERS, priors.parameters, posterior.vector.tolist(), strict=True
    ):
        informed_by = information_source(sds.get(name, 0.0), prior.sd_ratio)
        if informed_by != "fixed" and place > prior.upper_ratio - AT_BOUND:
            informed_by = "bound"
        estimate = parameter_estimate(
            name,
            place,
            sds.get(name, 0.0),
            n_samples=n_observations,
            method=f"Laplace approximation; prior: {prior.why}",
            upper=prior.upper_ratio,
        )
        if informed_by == "fixed":
            estimate = replace(estimate, low=None, high=None, method=f"not fitted: {prior.why}")
        fitted.append(FittedParameter(name=name, estimate=estimate, informed_by=informed_by))
    return tuple(fitted)


def measured_subject(
    runs: Sequence[Run], engine: EngineSpec, ceilings: Ceilings, named: HardwareSpec | None
) -> FitSubject:
    """Device and engine of the sweeps; ``named`` is the device of the command line.

    Raises
    ------
    ModelError
        The sweeps are of several devices.
    SpecError
        They state another device than the one that was named.
    """
    device, hardware = _device_name(runs, engine), stated_device(runs, engine, named)
    versions = sorted(
        {run.manifest.engine.version for run in runs if run.manifest.engine is not None}
    )
    if hardware is None:
        hardware = _measured(runs[0].manifest.host, device, engine, ceilings)
    name = engine.engine if versions else None
    return subject_of(
        engine, hardware, device=device, name=name, version=", ".join(versions) or None
    )


def stated_device(
    runs: Sequence[Run], engine: EngineSpec, named: HardwareSpec | None
) -> HardwareSpec | None:
    """The catalogue's device that was named, or that the sweeps state; None if not in it.

    Raises
    ------
    ModelError, SpecError
        As for ``fit_step_time``.
    """
    device = _device_name(runs, engine)
    return known_device(device, engine) if named is None else _checked(device, engine, named)


def _device_name(runs: Sequence[Run], engine: EngineSpec) -> str | None:
    devices = sorted(
        {name for run in runs if (name := _device_of(run.manifest.host, engine)) is not None}
    )
    if len(devices) > 1:
        raise ModelError(
            f"the runs are of several devices: {', '.join(devices)}",
            allowed="runs on one device",
            try_="fit them apart",
        )
    return devices[0] if devices else None


def _device_of(host: HostFacts | None, engine: EngineSpec) -> str | None:
    if host is None:
        return None
    return host.cpu_model if engine.device == "cpu" else host.accelerator


def _checked(device: str | None, engine: EngineSpec, named: HardwareSpec) -> HardwareSpec:
    """The named device, unless the runs state another one.

    A device that the catalogue does not know may be any of its kind.
    """
    known = known_device(device, engine)
    is_other = known is not None and known.hardware_id != named.hardware_id
    is_other_kind = device is not None and (named.kind == "cpu") != (engine.device == "cpu")
    if is_other or is_other_kind:
        raise SpecError(
            f"the runs were measured on {device}, not on {named.name}",
            where=f"--hardware {named.hardware_id}",
            allowed="the device of the runs, which they state",
            try_="the same command without --hardware",
        )
    return named


def _measured(
    host: HostFacts | None, device: str | None, engine: EngineSpec, ceilings: Ceilings
) -> HardwareSpec | None:
    """A device outside the catalogue, by the ceilings of the sweep.

    None where those do not suffice.
    """
    memory_bytes = (
        None
        if host is None
        else host.memory_bytes
        if engine.device == "cpu"
        else host.accelerator_memory_bytes
    )
    if (
        device is None
        or memory_bytes is None
        or ceilings.bytes_per_s is None
        or not ceilings.is_measured
    ):
        return None
    source = Source(kind="measured", where="ceilings probed beside the sweep")
    peaks = (
        ()
        if ceilings.flop_per_s is None
        else (
            PeakSpec(
                dtype=engine.dtype, flop_per_s=Constant(value=ceilings.flop_per_s, source=source)
            ),
        )
    )
    return HardwareSpec(
        hardware_id=device,
        name=device,
        vendor="not in the catalogue",
        kind="cpu" if engine.device == "cpu" else "gpu",
        memory_bytes=Constant(value=memory_bytes, source=source),
        memory_bytes_per_s=Constant(value=ceilings.bytes_per_s, source=source),
        peaks=peaks,
    )
