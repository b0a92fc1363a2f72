"""How long do steps take most likely, and how far may that be off.

At both ends of what a fit or a datasheet leaves open?
"""

from dataclasses import dataclass
from typing import Final, Literal

from inferometer.errors import ModelError, SpecError
from inferometer.perfmodel import steptime_datasheet
from inferometer.perfmodel.fit_subject import NOTHING_STATED, FitSubject
from inferometer.perfmodel.lockstep import lockstep_arrays
from inferometer.perfmodel.scenario import BEST, LIKELY, WORST
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.perfmodel.steptime_arrays import StepTimeArrays, arrays_of, slowed
from inferometer.perfmodel.steptime_box import BoxRange, nearest
from inferometer.perfmodel.types import decode_shape, prefill_shape
from inferometer.spec.types import EngineSpec, HardwareSpec, ModelSpec

_TYPICAL_BATCHES: Final = (1, 8, 64)
_TYPICAL_TOKENS: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Step times as they most likely are, and both ends of their interval."""

    basis: Literal["fitted", "datasheet"]
    origin: str
    engine: EngineSpec
    likely: StepTimeArrays
    fast: StepTimeArrays
    slow: StepTimeArrays
    box: tuple[BoxRange, ...] = ()
    """In which a fit was checked; empty for a datasheet."""
    n_stages: int = 1
    """Of the pipeline through which they are."""
    front_end_s: float | None = None
    """What a request spends outside of the engine; None of a datasheet and a sweep, which do not
    see it."""
    subject: FitSubject | None = None
    """What was fitted; None of a datasheet."""


def datasheet_levels(
    model: ModelSpec, engine: EngineSpec, hardware: HardwareSpec, *, n_sharing: int = 1
) -> StepTimes:
    """Step times of the datasheet: at the peaks, at likely shares of them, and at the lowest published ones.

    ``n_sharing`` replicas share their experts, and take each step together.

    Raises
    ------
    SpecError
        The device does not compute in the format, several devices have no known link between them,
        or there are no experts to share.
    """
    if n_sharing > 1 and hardware.link_bytes_per_s is None:
        raise SpecError(
            "no link between devices is known", where="--hardware", allowed="one device"
        )
    fast, likely, slow = (
        lockstep_arrays(
            steptime_datasheet.datasheet_step_time(model, engine, hardware, level),
            n_replicas=n_sharing,
        )
        for level in (BEST, LIKELY, WORST)
    )
    shared = f"; experts shared by {n_sharing} replicas, all chosen alike" if n_sharing > 1 else ""
    return StepTimes(
        basis="datasheet",
        origin=(
            f"the datasheet of {hardware.name}: likely shares of its peaks, no host time{shared}"
        ),
        engine=engine,
        likely=likely,
        fast=fast,
        slow=slow,
    )


def fitted_levels(fit: StepTimeModel) -> StepTimes:
    """Step times of a fit, all faster or all slower by what it doubts of single steps.

    Doubt about many steps is not more than that.

    Raises
    ------
    ModelError
        The model says nothing of its doubt.
    """
    if not fit.doubts:
        raise ModelError(
            "these step times have no doubt",
            where="doubts",
            allowed="a fit's",
            try_="--hardware, for a datasheet's",
        )
    likely = arrays_of(fit)
    doubt_ratio = _doubt_ratio(fit)
    subject = fit.subject or NOTHING_STATED
    hardware = fit.trained_on.hardware or "a device that is not named"
    carried = (
        ""
        if subject.transferred_from is None
        else f", transferred from {subject.transferred_from} to {subject.device}"
    )
    return StepTimes(
        basis="fitted",
        origin=(
            f"fitted to {fit.trained_on.n_observations} step times on {hardware}{carried}, within a"
            f" factor of {doubt_ratio:.2f}"
        ),
        engine=fit.engine,
        likely=likely,
        fast=slowed(likely, 1 / doubt_ratio),
        slow=slowed(likely, doubt_ratio),
        box=fit.box,
        front_end_s=None if fit.front_end_s is None else fit.front_end_s.value,
        subject=subject,
    )


def _doubt_ratio(fit: StepTimeModel) -> float:
    """The most that is doubted of small, middling and large steps, as far as the fit was checked on such: beyond, cautions speak."""
    context_tokens = nearest(fit.box, "context tokens per decoding request", _TYPICAL_TOKENS)
    batches = {nearest(fit.box, "decoding requests", batch) for batch in _TYPICAL_BATCHES}
    shapes = [
        decode_shape(batch_size=batch, context_tokens=context_tokens) for batch in sorted(batches)
    ]
    prompt_tokens = nearest(fit.box, "prompt tokens per request", _TYPICAL_TOKENS)
    shapes.append(prefill_shape(batch_size=1, prompt_tokens=prompt_tokens))
    said = [prediction.duration_s for prediction in fit.predict_all(shapes)]
    return max((estimate.high or estimate.value) / estimate.value for estimate in said)
