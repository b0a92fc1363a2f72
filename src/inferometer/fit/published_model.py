"""Which step-time model of a device do published loads of one model and engine carry, and how far did it miss each of them?

A device without loads of its own is told by others' loads: by its datasheet, and by what devices
share.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from inferometer.errors import ModelError, SpecError
from inferometer.fit.device_beliefs import device_belief
from inferometer.fit.from_published import SimulatedLoad, fit_published, simulated
from inferometer.fit.published_loads import PublishedLoad
from inferometer.fit.published_settled import doubts_of, places_asked, settled_fit
from inferometer.fit.published_told import held_out_errors, told_of
from inferometer.perfmodel import steptime, steptime_box
from inferometer.perfmodel.fit_subject import FitSubject, subject_of
from inferometer.spec.types import EngineSpec, HardwareSpec

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
        box=steptime_box.box_of([shape for one in seen for shape in one.schedule.shapes]),
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
