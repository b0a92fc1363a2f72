"""Which step-time model of a device do published loads of one model and engine carry, and how far did it miss each of them?

A device without loads of its own is told by others' loads: by its datasheet, and by what devices
share.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from inferometer.errors import ModelError, SpecError
from inferometer.fit.published.loads import PublishedLoad
from inferometer.fit.published.posterior import (
    Misses,
    PublishedFit,
    SimulatedLoad,
    fit_published,
    simulated,
)
from inferometer.fit.published.priors import TPOT, TTFT, UNKNOWNS, DeviceBelief, device_belief
from inferometer.perfmodel import steptime, steptime_limits, steptime_terms
from inferometer.perfmodel.fit_subject import FitSubject, subject_of
from inferometer.perfmodel.steptime import FittedParameter, HeldOutError, ToldBy
from inferometer.perfmodel.steptime_limits import PhaseName
from inferometer.perfmodel.steptime_terms import PARAMETERS
from inferometer.perfmodel.types import BatchShape, decode_shape, prefill_shape
from inferometer.records.columns import F64
from inferometer.spec.types import EngineSpec, HardwareSpec
from inferometer.stats.estimate import Z_90, Estimate

_LEAST: Final = 4


def published_step_time(
    loads: Sequence[PublishedLoad], hardware: HardwareSpec, *, n_tensor: int
) -> steptime.StepTimeModel:
    """The step times of ``n_tensor`` devices, and what a request spends outside of the engine.

    Other degrees of tensor parallelism among the loads tell of the same device. The held-out errors
    are those of whole loads, each foretold by the others, whichever their device: *decode* of TPOT,
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
    places = places_asked(seen, hardware, n_tensor)
    fit = fit_published(seen, places)
    settled = settled_fit(places, fit)
    belief = device_belief(loads[0].model, loads[0].engine, hardware)
    told = told_of(settled, 0, belief)
    doubted = told_of(
        replace(
            settled,
            covariance=fit.covariance[[fit.devices.index(hardware.hardware_id)]],
            n_seen=fit.n_seen,
        ),
        0,
        belief,
    )
    model = steptime.StepTimeModel(
        model=loads[0].model,
        engine=places[0].published.engine,
        parameters=doubted.parameters,
        kv_traffic_ratio=1.0,
        staircase_rows=(),
        staircase_log_ratio=(),
        free=told.free,
        covariance=told.covariance,
        doubts=(),
        box=steptime_limits.box_of([shape for one in seen for shape in one.schedule.shapes]),
        trained_on=_trained_on(seen, hardware),
        held_out=held_out_errors(fit.misses),
        front_end_s=doubted.outside_s(
            float(np.median([one.published.load.prompt_tokens for one in places]))
        ),
        subject=_subject(seen, places[0].published.engine, hardware),
    )
    return replace(model, doubts=doubts_of(model, places, fit, settled))


def _held(loads: Sequence[PublishedLoad]) -> list[SimulatedLoad]:
    """Those that the engine has room for; ``trained_on`` tells how many."""
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
    """What the rows are of; where none of them is of the device itself, from where its step times were carried over."""
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
    told_by = f", told by {', '.join(others)}" if others else ""
    return steptime.TrainedOn(
        run_ids=_files([one.published for one in seen]),
        hardware=f"{hardware.name} ({seen[0].published.framework}{told_by})",
        attention_implementation=None,
        n_observations=2 * len(seen),
        n_configurations=len(seen),
        is_drift_removed=False,
    )


# What do published loads tell of each parameter, and how far did the others miss each load?


PHASES: Final[tuple[PhaseName, ...]] = ("decode", "prefill")
"""Whose steps TPOT and TTFT tell of."""
_METHOD: Final = "published loads, simulated; covariance of the parameters"


class Told(NamedTuple):
    """Of one device."""

    parameters: tuple[FittedParameter, ...]
    front_end_s: Estimate
    prompt_token_s: Estimate
    free: tuple[str, ...]
    covariance: tuple[tuple[float, ...], ...]
    """Of the free ones."""

    def outside_s(self, prompt_tokens: float) -> Estimate:
        """What a request with such a prompt spends outside of the engine."""
        return self.front_end_s.scaled(
            1 + self.prompt_token_s.value * prompt_tokens / self.front_end_s.value
        )


def told_of(fit: PublishedFit, device: int, belief: DeviceBelief) -> Told:
    """What the fit tells of its device of this number."""
    covariance = fit.covariance[device]
    deviations = np.sqrt(np.diag(covariance))
    estimates = [
        _interval(name, float(value), float(deviation), fit.n_seen)
        for name, value, deviation in zip(UNKNOWNS, fit.unknowns[device], deviations, strict=True)
    ]
    free = [k for k, name in enumerate(UNKNOWNS) if name in PARAMETERS and belief.deviation[k] > 0]
    return Told(
        parameters=tuple(
            FittedParameter(
                name=name, estimate=estimate, told_by=_told_by(float(left), float(before))
            )
            for name, estimate, left, before in zip(
                PARAMETERS, estimates, deviations, belief.deviation, strict=False
            )
        ),
        front_end_s=estimates[UNKNOWNS.index("front_end_s")],
        prompt_token_s=estimates[UNKNOWNS.index("prompt_token_s")],
        free=tuple(UNKNOWNS[k] for k in free),
        covariance=tuple(tuple(row) for row in covariance[np.ix_(free, free)].tolist()),
    )


def held_out_errors(misses: Misses) -> tuple[HeldOutError, ...]:
    """Of whole loads, each foretold by the others: *decode* of TPOT, *prefill* of TTFT."""
    return tuple(
        _error(phase, misses.log_miss[:, k], misses.half_width[:, k])
        for k, phase in enumerate(PHASES)
    )


def _interval(name: str, place: float, deviation: float, n_samples: int) -> Estimate:
    low, high = place - Z_90 * deviation, place + Z_90 * deviation
    value, low, high = (
        (place, low, high)
        if name == "sag_ratio"
        else (math.exp(place), math.exp(low), math.exp(high))
    )
    return Estimate(
        value=value,
        low=low,
        high=high,
        confidence_fraction=0.9,
        n_samples=n_samples,
        method=_METHOD,
    )


def _told_by(left: float, before: float) -> ToldBy:
    if before == 0:
        return "fixed"
    return "data" if left < 0.3 * before else "data and prior" if left < 0.8 * before else "prior"


def _error(phase: PhaseName, log_miss: F64, half_width: F64) -> HeldOutError:
    errors = np.abs(np.expm1(-log_miss))
    return HeldOutError(
        phase=phase,
        n_points=len(errors),
        n_folds=len(errors),
        median_fraction=float(np.median(errors)),
        p95_fraction=float(np.percentile(errors, 95)),
        coverage_fraction=float(np.mean(np.abs(log_miss) <= half_width)),
    )


# Which step times alone give what a fit of published loads foretells of some devices, and what is
# left to be doubted of them?
# What a fit foretells rests on parameters and on what the model misses nearby (``discrepancy``);
# a file of step times has parameters only. So they are settled once more for the devices that are
# asked about, until they alone give what the fit foretells there, and what they still miss is
# doubted of every step.


_MOST_PLACES: Final = 32
_SETTLED: Final = (
    TPOT._replace(amplitude_ratio=0.05, noise_ratio=0.02),
    TTFT._replace(amplitude_ratio=0.1, noise_ratio=0.05),
)
"""Misses that are left to what is no parameter when the parameters are settled."""
_LEAST_SPREAD: Final = 0.01


def places_asked(
    seen: Sequence[SimulatedLoad], hardware: HardwareSpec, n_tensor: int
) -> list[SimulatedLoad]:
    """The seen lengths and numbers of users on the devices that are asked about; who shares a step is as it was seen."""
    own = sorted(
        seen,
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
            published=replace(one.published, hardware=hardware, engine=engine),
            work=steptime_terms.work_columns(
                one.published.model, engine, one.schedule.shapes, kv_traffic_ratio=1.0
            ),
        )
        for one in chosen
    ]


def settled_fit(places: Sequence[SimulatedLoad], fit: PublishedFit) -> PublishedFit:
    """The parameters that give what ``fit`` foretells of these places, which it was asked about."""
    return fit_published(
        [_as_foretold(one, fit, k) for k, one in enumerate(places)], places, _SETTLED
    )


def doubts_of(
    model: steptime.StepTimeModel,
    places: Sequence[SimulatedLoad],
    fit: PublishedFit,
    settled: PublishedFit,
) -> tuple[steptime_limits.PhaseDoubt, ...]:
    """So much that the interval of a usual step is as wide as the fit's own, with what the settled parameters miss on top.

    Of loads that were seen the fit claims to know much: what it claims of each when the others
    foretell it is meant then.
    """
    told = fit.foretold
    misses = settled.level - np.stack([told.log_tpot, told.log_ttft], axis=1)
    claimed = np.stack([told.half_tpot, told.half_ttft], axis=1) / Z_90
    known = np.stack(
        [
            model.log_variance(model.work([usual_step(one, phase) for one in places]))
            for phase in PHASES
        ],
        axis=1,
    )
    claimed_of_one = np.maximum(
        np.mean(claimed**2, axis=0), np.mean((fit.misses.half_width / Z_90) ** 2, axis=0)
    )
    left = np.maximum(np.mean(misses**2, axis=0) + claimed_of_one - np.mean(known, axis=0), 0.0)
    return tuple(
        steptime_limits.PhaseDoubt(phase=phase, spread_ratio=max(math.sqrt(left[k]), _LEAST_SPREAD))
        for k, phase in enumerate(PHASES)
    )


def usual_step(one: SimulatedLoad, phase: str) -> BatchShape:
    """A step of the load whose time its TPOT (decode) or TTFT (prefill) is most like."""
    load = one.published.load
    if phase == "prefill":
        return prefill_shape(batch_size=1, prompt_tokens=load.prompt_tokens)
    return decode_shape(
        batch_size=load.concurrency, context_tokens=load.prompt_tokens + load.output_tokens // 2
    )


def _as_foretold(one: SimulatedLoad, fit: PublishedFit, index: int) -> SimulatedLoad:
    told = fit.foretold
    seen = replace(
        one.published, tpot_s=math.exp(told.log_tpot[index]), ttft_s=math.exp(told.log_ttft[index])
    )
    return replace(one, published=seen)
