"""Which step-time model of a device do published loads of one model and engine carry, and how far did it miss each of them?

A device without loads of its own is told by others' loads: by its datasheet, and by what devices share.
"""

from collections.abc import Sequence
from dataclasses import replace

from inferometer.errors import ModelError
from inferometer.fit.device_beliefs import device_belief
from inferometer.fit.from_published import SimulatedLoad, fit_published, simulated
from inferometer.fit.published_loads import PublishedLoad
from inferometer.fit.published_told import PHASES, held_out_errors, told_of
from inferometer.perfmodel.steptime import PhaseDoubt, StepTimeModel, TrainedOn
from inferometer.perfmodel.steptime_box import box_of
from inferometer.spec.types import HardwareSpec
from inferometer.stats.estimate import Estimate

_LEAST = 4


def published_step_time(loads: Sequence[PublishedLoad], hardware: HardwareSpec, *, n_tensor: int) -> tuple[StepTimeModel, Estimate]:
    """The step times of ``n_tensor`` devices, and what a request spends outside of the engine.

    Other degrees of tensor parallelism among the loads tell of the same device. The held-out errors are those of whole loads, each
    foretold by the others, whichever their device: *decode* of TPOT, *prefill* of TTFT.

    Raises
    ------
    ModelError
        Too few loads, or loads of several models, engines or precisions.
    """
    _check(loads)
    seen = [simulated(one) for one in loads]
    fit = fit_published(seen, [replace(seen[0], published=replace(loads[0], hardware=hardware))])
    told = told_of(fit, fit.devices.index(hardware.hardware_id), device_belief(loads[0].model, loads[0].engine, hardware))
    model = StepTimeModel(
        model=loads[0].model,
        engine=replace(loads[0].engine, tensor_parallel_size=n_tensor),
        parameters=told.parameters,
        kv_traffic_ratio=1.0,
        staircase_rows=(),
        staircase_log_ratio=(),
        free=told.free,
        covariance=told.covariance,
        doubts=tuple(PhaseDoubt(phase=phase, spread_ratio=fit.spread_ratio[k]) for k, phase in enumerate(PHASES)),
        box=box_of([shape for one in seen for shape in one.schedule.shapes]),
        trained_on=_trained_on(seen, hardware),
        held_out=held_out_errors(fit.misses),
    )
    return model, told.front_end_s


def _check(loads: Sequence[PublishedLoad]) -> None:
    kinds = sorted({f"{one.model.model_id} in {one.precision or 'bf16'} by {one.framework}" for one in loads})
    if len(kinds) > 1:
        raise ModelError("the loads are of several kinds", where="; ".join(kinds), allowed="one model, precision and engine")
    if len(loads) < _LEAST:
        raise ModelError(f"{len(loads)} loads that can be simulated", allowed=f"{_LEAST} or more of one model and engine")


def _trained_on(seen: Sequence[SimulatedLoad], hardware: HardwareSpec) -> TrainedOn:
    others = sorted({one.published.hardware.name for one in seen} - {hardware.name})
    told_by = f", told by {', '.join(others)}" if others else ""
    return TrainedOn(
        run_ids=tuple(sorted({one.published.label.partition(" row ")[0] for one in seen})),
        hardware=f"{hardware.name} ({seen[0].published.framework}{told_by})",
        attention_implementation=None,
        n_observations=2 * len(seen),
        n_configurations=len(seen),
        is_drift_removed=False,
    )


__all__ = ["published_step_time"]
