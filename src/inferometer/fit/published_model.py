"""Which step-time model do published loads of one model and engine on one device carry, and how far did it miss each of them?"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from inferometer.errors import ModelError
from inferometer.fit.device_beliefs import UNKNOWNS, device_belief
from inferometer.fit.from_published import Misses, SimulatedLoad, fit_published, simulated
from inferometer.fit.published_loads import PublishedLoad
from inferometer.perfmodel.steptime import FittedParameter, HeldOutError, PhaseDoubt, PhaseName, StepTimeModel, ToldBy, TrainedOn
from inferometer.perfmodel.steptime_box import box_of
from inferometer.perfmodel.steptime_terms import PARAMETERS
from inferometer.records.types import F64
from inferometer.stats.estimate import Estimate

_LEAST: Final = 4
_Z_90: Final = 1.645
_PHASES: Final[tuple[PhaseName, ...]] = ("decode", "prefill")
_METHOD: Final = "published loads, simulated; covariance of the parameters"


def published_step_time(loads: Sequence[PublishedLoad], *, n_tensor: int) -> tuple[StepTimeModel, Estimate]:
    """The step times of ``n_tensor`` devices, and what a request spends outside of the engine.

    Other degrees of tensor parallelism among the loads tell of the same device. The held-out errors are those of whole loads, each
    foretold by the others: *decode* of TPOT, *prefill* of TTFT.

    Raises
    ------
    ModelError
        Too few loads, or loads of several models, engines, precisions or devices.
    """
    _check(loads)
    seen = [simulated(one) for one in loads]
    fit = fit_published(seen, seen[:1])
    belief = device_belief(loads[0].model, loads[0].engine, loads[0].hardware)
    deviations = np.sqrt(np.diag(fit.covariance[0]))
    estimates = [
        _interval(name, float(value), float(deviation), fit.n_seen)
        for name, value, deviation in zip(UNKNOWNS, fit.unknowns[0], deviations, strict=True)
    ]
    free = [k for k, name in enumerate(UNKNOWNS) if name in PARAMETERS and belief.deviation[k] > 0]
    model = StepTimeModel(
        model=loads[0].model,
        engine=replace(loads[0].engine, tensor_parallel_size=n_tensor),
        parameters=tuple(
            FittedParameter(name=name, estimate=estimate, told_by=_told_by(float(left), float(before)))
            for name, estimate, left, before in zip(PARAMETERS, estimates, deviations, belief.deviation, strict=False)
        ),
        kv_traffic_ratio=1.0,
        staircase_rows=(),
        staircase_log_ratio=(),
        free=tuple(UNKNOWNS[k] for k in free),
        covariance=tuple(tuple(row) for row in fit.covariance[0][np.ix_(free, free)].tolist()),
        doubts=tuple(PhaseDoubt(phase=phase, spread_ratio=fit.spread_ratio[k], interval_ratio=_Z_90) for k, phase in enumerate(_PHASES)),
        box=box_of([shape for one in seen for shape in one.schedule.shapes]),
        trained_on=_trained_on(seen),
        held_out=_held_out(fit.misses),
    )
    return model, estimates[UNKNOWNS.index("front_end_s")]


def _check(loads: Sequence[PublishedLoad]) -> None:
    kinds = sorted({f"{one.model.model_id} in {one.precision or 'bf16'} by {one.framework} on {one.hardware.hardware_id}" for one in loads})
    if len(kinds) > 1:
        raise ModelError("the loads are of several kinds", where="; ".join(kinds), allowed="one model, precision, engine and device")
    if len(loads) < _LEAST:
        raise ModelError(f"{len(loads)} loads that can be simulated", allowed=f"{_LEAST} or more of one model, engine and device")


def _interval(name: str, place: float, deviation: float, n_samples: int) -> Estimate:
    low, high = place - _Z_90 * deviation, place + _Z_90 * deviation
    value, low, high = (place, low, high) if name == "sag_ratio" else (math.exp(place), math.exp(low), math.exp(high))
    return Estimate(value=value, low=low, high=high, confidence_fraction=0.9, n_samples=n_samples, method=_METHOD)


def _told_by(left: float, before: float) -> ToldBy:
    if before == 0:
        return "fixed"
    return "data" if left < 0.3 * before else "data and prior" if left < 0.8 * before else "prior"


def _trained_on(seen: Sequence[SimulatedLoad]) -> TrainedOn:
    first = seen[0].published
    return TrainedOn(
        run_ids=tuple(sorted({one.published.label.partition(" row ")[0] for one in seen})),
        hardware=f"{first.hardware.name} ({first.framework})",
        attention_implementation=None,
        n_observations=2 * len(seen),
        n_configurations=len(seen),
        is_drift_removed=False,
    )


def _held_out(misses: Misses) -> tuple[HeldOutError, ...]:
    return tuple(_error(phase, misses.log_miss[:, k], misses.half_width[:, k]) for k, phase in enumerate(_PHASES))


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


__all__ = ["published_step_time"]
