"""Which fit does ``--fit`` name, and does it answer for what is asked?

The one door through which every verb reads a fit.
"""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from inferometer.errors import SpecError
from inferometer.fit.loads.server_fit import ServerFit, is_server_fit, load_server_fit
from inferometer.fit.published.transfer import transferred
from inferometer.inputs.types import HardwareSpec, ModelSpec
from inferometer.perfmodel import steptime
from inferometer.perfmodel.fit_subject import (
    NOTHING_STATED,
    TRANSFERABLE,
    FitQuestion,
    FitSubject,
    Refusal,
    differences,
    known_device,
    refuse,
    subject_of,
)
from inferometer.perfmodel.steptime import StepTimeModel

STATING_FLAGS: Final = ("dtype", "kv_dtype", "tp", "quantization")
_MEASURE_STEPS: Final = "inferometer sweep, then inferometer fit"
_MEASURE_SERVER: Final = "inferometer load, then inferometer fit --load"


class StepFit(NamedTuple):
    """Step times of a fit, for the device of the answer."""

    model: StepTimeModel
    hardware: HardwareSpec | None
    """The one that was named, else the fit's; None where neither is known."""


def check_transfer(*, is_transfer: bool, has_fit: bool) -> None:
    """Refuse a transfer of nothing.

    Raises
    ------
    SpecError
        No fit was named.
    """
    if is_transfer and not has_fit:
        raise SpecError(
            "nothing to transfer",
            where="--transfer",
            allowed="with --fit",
            try_="the same command without --transfer",
        )


def is_server(path: Path | None) -> bool:
    """Was a fit named, and is it one of load tests?"""
    return path is not None and is_server_fit(path)


def question_of(
    flags: Mapping[str, object], model: ModelSpec | None, hardware: HardwareSpec | None
) -> FitQuestion:
    """The question of these flags, of which None were not given; ``size`` calls the policy its engine."""
    stated = {name: flags.get(name) for name in STATING_FLAGS}
    if "policy" not in flags and "engine" in flags:
        return FitQuestion(model, hardware, stated, str(flags["engine"]), "--engine")
    policy = flags.get("policy")
    return FitQuestion(model, hardware, stated, None if policy is None else str(policy))


def step_fit(path: Path, question: FitQuestion, *, is_transfer: bool = False) -> StepFit:
    """The step times of the fit at ``path`` for what is asked about.

    Raises
    ------
    ModelError, SpecError
        The fit cannot be read, or is one of load tests; it is one of something else than is asked
        about.
    OutOfRangeError
        A transfer was asked for that nobody can make.
    """
    where = f"--fit {shlex.quote(str(path))}"
    if is_server_fit(path):
        what = "a fit of load tests describes how a server answers, not how long a step of its model takes"
        raise SpecError(
            what,
            where=where,
            allowed="a fit of a sweep",
            try_="simulate or capacity, which take it",
        )
    fit = steptime.load_step_time_model(path)
    subject = fit.subject or _of_old_file(fit)
    fit = replace(fit, subject=subject)
    differing = differences(subject, fit.model, question)
    source = subject.hardware
    target = question.hardware or source
    are_gpus = all(device is not None and device.kind == "gpu" for device in (source, target))
    for one in differing:
        is_transferable = are_gpus and one.name in TRANSFERABLE
        if not (is_transfer and is_transferable):
            refuse(one, Refusal(where, is_transfer, is_transferable, _MEASURE_STEPS))
    if not differing or source is None or target is None:
        return StepFit(fit, target)
    n_tensor = next(
        (int(one.asked.partition(",")[0]) for one in differing if one.name == "tp"),
        fit.engine.tensor_parallel_size,
    )
    return StepFit(transferred(fit, source, target, n_tensor=n_tensor), target)


def server_fit(path: Path, question: FitQuestion, *, is_transfer: bool = False) -> ServerFit:
    """The fitted server at ``path``.

    Raises
    ------
    ModelError, SpecError
        The fit cannot be read, or is one of another server than is asked about.
    OutOfRangeError
        A transfer was asked for: limits of a server are those of its device.
    """
    fit, where = load_server_fit(path), f"--fit {shlex.quote(str(path))}"
    for one in differences(fit.subject or NOTHING_STATED, fit.model, question):
        refuse(one, Refusal(where, is_transfer, is_transferable=False, measure=_MEASURE_SERVER))
    return fit


def _of_old_file(fit: StepTimeModel) -> FitSubject:
    """What files of versions without a subject state.

    Number formats, the number of devices, and mostly the device by its name.
    """
    name = fit.trained_on.hardware
    hardware = known_device(name, fit.engine) or known_device(
        (name or "").rpartition(" (")[0] or None, fit.engine
    )
    return subject_of(fit.engine, hardware, device=name, name=None, version=None)
