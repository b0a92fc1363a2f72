"""Step-time model of a device from published loads, with held-out errors.

A device without loads of its own is predicted from others' loads: by its datasheet, and by what
devices share. The predictions of ``posterior`` rest on parameters and on the discrepancy nearby,
but a file of step times has parameters only. So the parameters are fitted once more to the
predictions for the device, until they alone give them; what they still miss widens the interval
of every step.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from inferometer.errors import ModelError, SpecError
from inferometer.fit.map import information_source
from inferometer.fit.published.loads import PublishedLoad
from inferometer.fit.published.posterior import (
    HeldOutLatencies,
    PublishedFit,
    SimulatedLoad,
    fit_published,
    simulated,
)
from inferometer.fit.published.priors import TPOT, TTFT, UNKNOWNS, DevicePrior, device_prior
from inferometer.inputs.types import EngineSpec, HardwareSpec
from inferometer.perfmodel import steptime, steptime_limits, steptime_terms
from inferometer.perfmodel.steptime import FittedParameter, HeldOutError, parameter_estimate
from inferometer.perfmodel.steptime_limits import PhaseName, fastest_steps
from inferometer.perfmodel.steptime_terms import PARAMETERS
from inferometer.perfmodel.types import (
    BatchShape,
    FitSubject,
    decode_shape,
    prefill_shape,
    subject_of,
)
from inferometer.records.columns import F64
from inferometer.stats.estimate import Z_90, Estimate

_LEAST: Final = 4


def published_step_time(
    loads: Sequence[PublishedLoad], hardware: HardwareSpec, *, n_tensor: int
) -> steptime.StepTimeModel:
    """Step times of ``n_tensor`` devices, and the time of a request outside of the engine.

    Loads of other degrees of tensor parallelism inform the same device. The held-out errors are
    of whole loads, each predicted by the others, whichever their device: *decode* of TPOT,
    *prefill* of TTFT.

    Raises
    ------
    ModelError
        Too few loads, or loads of several models, engines or precisions.
    SpecError
        The engine has no room for any of them.
    """
    _check(loads)
    seen = _held(loads)
    together = [one for one in seen if one.published.prefill is None]
    seen = together if len(together) >= _LEAST else seen
    places = target_loads(seen, hardware, n_tensor)
    fit = fit_published(seen, places)
    second = parameters_only_fit(places, fit)
    prior = device_prior(loads[0].model, loads[0].engine, hardware, loads[0].framework)
    point = device_parameters(second, 0, prior)
    interval = device_parameters(
        replace(
            second,
            covariance=fit.covariance[[fit.devices.index(hardware.hardware_id)]],
            n_seen=fit.n_seen,
        ),
        0,
        prior,
    )
    model = steptime.StepTimeModel(
        model=loads[0].model,
        engine=places[0].published.engine,
        parameters=interval.parameters,
        kv_traffic_ratio=1.0,
        staircase_rows=(),
        staircase_log_ratio=(),
        free=point.free,
        covariance=point.covariance,
        uncertainties=(),
        box=steptime_limits.box_of([shape for one in seen for shape in one.schedule.shapes]),
        trained_on=_trained_on(seen, hardware),
        held_out=held_out_errors(fit.held_out),
        front_end_s=interval.outside_s(
            float(np.median([one.published.load.prompt_tokens for one in places]))
        ),
        subject=_subject(seen, places[0].published.engine, hardware),
        fastest=fastest_steps(hardware, places[0].published.engine),
    )
    return replace(model, uncertainties=uncertainties_of(model, places, fit, second))


def _held(loads: Sequence[PublishedLoad]) -> list[SimulatedLoad]:
    """Loads that the engine has room for."""
    held: list[SimulatedLoad] = []
    why: SpecError | None = None
    for one in loads:
        try:
            held.append(simulated(one))
        except SpecError as error:
            why = error
    if why is not None and len(held) < _LEAST:
        raise why
    return held


def _check(loads: Sequence[PublishedLoad]) -> None:
    kinds = sorted(
        {f"{one.model.model_id} in {one.precision or 'bf16'} by {one.framework}" for one in loads}
    )
    if len(kinds) > 1:
        raise ModelError(
            "the loads are of several kinds",
            where="; ".join(kinds),
            allowed="one model, precision and engine",
        )
    if len(loads) < _LEAST:
        where = ", ".join(_files(loads)) or "no file"
        allowed = f"{_LEAST} or more of one model and engine"
        raise ModelError(
            f"{len(loads)} loads that can be simulated",
            where=where,
            allowed=allowed,
            try_="further files, or other rows",
        )


def _files(loads: Sequence[PublishedLoad]) -> tuple[str, ...]:
    return tuple(sorted({one.label.partition(" row ")[0] for one in loads}))


def _subject(
    seen: Sequence[SimulatedLoad], engine: EngineSpec, hardware: HardwareSpec
) -> FitSubject:
    """Subject of the fit; without rows of the device itself, with the source of the transfer."""
    rows = [one.published for one in seen]
    subject = subject_of(
        engine,
        hardware,
        device=None,
        name=rows[0].framework,
        version=", ".join(sorted({one.framework_version for one in rows} - {""})) or None,
    )
    devices = sorted({one.hardware.name for one in rows})
    return (
        subject
        if hardware.name in devices
        else replace(subject, transferred_from=", ".join(devices))
    )


def _trained_on(seen: Sequence[SimulatedLoad], hardware: HardwareSpec) -> steptime.TrainedOn:
    others = sorted({one.published.hardware.name for one in seen} - {hardware.name})
    informed_by = f", based on {', '.join(others)}" if others else ""
    return steptime.TrainedOn(
        run_ids=_files([one.published for one in seen]),
        hardware=f"{hardware.name} ({seen[0].published.framework}{informed_by})",
        attention_implementation=None,
        n_observations=2 * len(seen),
        n_configurations=len(seen),
        is_drift_removed=False,
    )


PHASES: Final[tuple[PhaseName, ...]] = ("decode", "prefill")
"""Phases whose steps determine TPOT and TTFT."""
_METHOD: Final = "published loads, simulated; covariance of the parameters"


class DeviceParameters(NamedTuple):
    """Posterior of one device's parameters."""

    parameters: tuple[FittedParameter, ...]
    front_end_s: Estimate
    prompt_token_s: Estimate
    free: tuple[str, ...]
    covariance: tuple[tuple[float, ...], ...]
    """Covariance of the free parameters."""

    def outside_s(self, prompt_tokens: float) -> Estimate:
        """Time of a request with such a prompt outside of the engine."""
        return self.front_end_s.scaled(
            1 + self.prompt_token_s.value * prompt_tokens / self.front_end_s.value
        )


def device_parameters(fit: PublishedFit, device: int, prior: DevicePrior) -> DeviceParameters:
    """The posterior of the fit's device of this number."""
    covariance = fit.covariance[device]
    deviations = np.sqrt(np.diag(covariance))
    estimates = [
        parameter_estimate(name, float(value), float(sd), n_samples=fit.n_seen, method=_METHOD)
        for name, value, sd in zip(UNKNOWNS, fit.unknowns[device], deviations, strict=True)
    ]
    free = [k for k, name in enumerate(UNKNOWNS) if name in PARAMETERS and prior.sd[k] > 0]
    return DeviceParameters(
        parameters=tuple(
            FittedParameter(
                name=name,
                estimate=estimate,
                informed_by=information_source(float(left), float(before)),
            )
            for name, estimate, left, before in zip(
                PARAMETERS, estimates, deviations, prior.sd, strict=False
            )
        ),
        front_end_s=estimates[UNKNOWNS.index("front_end_s")],
        prompt_token_s=estimates[UNKNOWNS.index("prompt_token_s")],
        free=tuple(UNKNOWNS[k] for k in free),
        covariance=tuple(tuple(row) for row in covariance[np.ix_(free, free)].tolist()),
    )


def held_out_errors(held_out: HeldOutLatencies) -> tuple[HeldOutError, ...]:
    """Errors of whole loads predicted by the others: *decode* of TPOT, *prefill* of TTFT."""
    return tuple(
        _error(phase, held_out.log_error[:, k], held_out.half_width[:, k])
        for k, phase in enumerate(PHASES)
    )


def _error(phase: PhaseName, log_error: F64, half_width: F64) -> HeldOutError:
    errors = np.abs(np.expm1(-log_error))
    return HeldOutError(
        phase=phase,
        n_points=len(errors),
        n_folds=len(errors),
        median_fraction=float(np.median(errors)),
        p95_fraction=float(np.percentile(errors, 95)),
        coverage_fraction=float(np.mean(np.abs(log_error) <= half_width)),
    )


_MOST_PLACES: Final = 32
_PARAMETERS_ONLY: Final = (
    TPOT._replace(amplitude_ratio=0.05, noise_ratio=0.02),
    TTFT._replace(amplitude_ratio=0.1, noise_ratio=0.05),
)
"""Discrepancies of the second fit: nearly all is left to the parameters."""
_LEAST_SPREAD: Final = 0.01


def target_loads(
    seen: Sequence[SimulatedLoad], hardware: HardwareSpec, n_tensor: int
) -> list[SimulatedLoad]:
    """The measured lengths and concurrencies, on the target devices; schedules stay as measured."""
    alone = [one for one in seen if one.published.decode.n_replicas == 1]
    own = sorted(
        [one for one in alone or seen if one.published.prefill is None] or seen,
        key=lambda one: (
            one.published.engine.tensor_parallel_size != n_tensor,
            one.published.hardware != hardware,
        ),
    )
    distinct = list({one.published.load: one for one in reversed(own)}.values())
    chosen = [
        distinct[k]
        for k in np.unique(np.linspace(0, len(distinct) - 1, _MOST_PLACES).round().astype(int))
    ]
    engine = replace(seen[0].published.engine, tensor_parallel_size=n_tensor)
    return [
        replace(
            one,
            published=replace(one.published, hardware=hardware, engine=engine, n_sharing=1),
            work=steptime_terms.work_columns(
                one.published.model, engine, one.schedule.shapes, kv_traffic_ratio=1.0
            ),
        )
        for one in chosen
    ]


def parameters_only_fit(places: Sequence[SimulatedLoad], fit: PublishedFit) -> PublishedFit:
    """Parameters that give the fit's predictions of these targets without a discrepancy."""
    return fit_published(
        [_as_predicted(one, fit, k) for k, one in enumerate(places)], places, _PARAMETERS_ONLY
    )


def uncertainties_of(
    model: steptime.StepTimeModel,
    places: Sequence[SimulatedLoad],
    fit: PublishedFit,
    second: PublishedFit,
) -> tuple[steptime_limits.PhaseUncertainty, ...]:
    """Spreads that make the interval of a typical step as wide as the fit's own.

    What the second fit misses is added. Near measured loads the fit claims to know much; its
    claim for each of them when left out is what counts.
    """
    predicted = fit.predicted
    held_out = second.level - np.stack([predicted.log_tpot, predicted.log_ttft], axis=1)
    claimed = np.stack([predicted.half_tpot, predicted.half_ttft], axis=1) / Z_90
    known = np.stack(
        [
            model.log_variance(model.work([typical_step(one, phase) for one in places]))
            for phase in PHASES
        ],
        axis=1,
    )
    claimed_of_one = np.maximum(
        np.mean(claimed**2, axis=0), np.mean((fit.held_out.half_width / Z_90) ** 2, axis=0)
    )
    left = np.maximum(np.mean(held_out**2, axis=0) + claimed_of_one - np.mean(known, axis=0), 0.0)
    return tuple(
        steptime_limits.PhaseUncertainty(
            phase=phase, spread_ratio=max(math.sqrt(left[k]), _LEAST_SPREAD)
        )
        for k, phase in enumerate(PHASES)
    )


def typical_step(one: SimulatedLoad, phase: str) -> BatchShape:
    """The step of the load that dominates its TPOT (decode) or TTFT (prefill)."""
    load = one.published.replica_load
    if phase == "prefill":
        return prefill_shape(batch_size=1, prompt_tokens=load.prompt_tokens)
    return decode_shape(
        batch_size=load.concurrency, context_tokens=load.prompt_tokens + load.output_tokens // 2
    )


def _as_predicted(one: SimulatedLoad, fit: PublishedFit, index: int) -> SimulatedLoad:
    predicted = fit.predicted
    seen = replace(
        one.published,
        tpot_s=math.exp(predicted.log_tpot[index]),
        ttft_s=math.exp(predicted.log_ttft[index]),
    )
    return replace(one, published=seen)
