"""Devices on offer with prices, and the traffic of a sizing."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, get_args

import numpy as np

from inferometer import suggestions
from inferometer.api import named_fit
from inferometer.api.question import duration_option, option, refuse_unused
from inferometer.decide import sizing_types, traffic
from inferometer.decide.candidates import Offer
from inferometer.decide.elastic import Course, course_of
from inferometer.errors import SpecError
from inferometer.inputs import objectives, prices, synonyms, types
from inferometer.inputs.workload import replay
from inferometer.inputs.workload.types import (
    ClosedArrivals,
    OpenArrivals,
    TraceArrivals,
    WorkloadSpec,
)
from inferometer.perfmodel.steptime_levels import StepTimes, fitted_levels
from inferometer.records import reading
from inferometer.simulate.engine_config import POOLS_KNOB, asked_pools

KNOWN_FORMATS: Final[tuple[types.AskedFormat, ...]] = (*get_args(types.DType), "none")
_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})


OFFERED_FORMATS: Final = "float8,int4"
OFFERED_KV_DTYPES: Final[tuple[types.DType | None, ...]] = (None, "float8")
"""Formats of the KV cache to try besides the published one."""


class Fit(NamedTuple):
    """A fit that was named on the command line."""

    device: str | None
    """None: the device is not named."""
    path: Path


def fit_named(text: str) -> Fit:
    """``FILE`` or ``DEVICE=FILE``."""
    device, equals, path = text.partition("=")
    return (
        Fit(device.strip(), Path(path))
        if equals and not Path(text).exists()
        else Fit(None, Path(text))
    )


def offers_of(
    gpus: str,
    table: prices.PriceTable | None,
    fits: Sequence[Fit],
    model: types.ModelSpec,
    requested: Mapping[str, object] = _NOTHING,
    *,
    is_datasheet: bool = False,
    link: str | None = None,
) -> list[Offer]:
    """The named devices with prices; one with fits is offered with those only.

    ``requested`` is what a fit must be one of: see ``asked_of_fits``. ``link`` joins several
    devices of a replica.

    Raises
    ------
    SpecError
        A device or a fit that is not known, a fit of another model, or one of a device that is not
        on offer.
    """
    if re.fullmatch(r"\s*\d{1,2}\s*", gpus):
        raise SpecError(
            f"{gpus!r} is a number, and these are devices by their names",
            where="--gpus",
            allowed="devices with commas between; --total-gpus N: the number at hand",
            try_=suggestions.flags("--gpus", "h100_sxm", "--total-gpus", gpus.strip()),
        )
    named = [named_fit.device_named(name.strip(), link) for name in gpus.split(",")]
    devices = list({one.hardware_id: one for one in named}.values())
    owned = {} if table is None else table.owned
    rents = zip(devices, prices.rents_of(devices, table), strict=True)
    priced = [
        Offer(
            hardware=device,
            price=rent,
            owned=owned.get(device.hardware_id),
            is_datasheet=is_datasheet,
        )
        for device, rent in rents
    ]
    fitted = [_fitted(fit, priced, model, requested) for fit in fits]
    has_fit = {offer.hardware.hardware_id for offer in fitted}
    return [*fitted, *(offer for offer in priced if offer.hardware.hardware_id not in has_fit)]


class _Steps(NamedTuple):
    times: StepTimes
    hardware: types.HardwareSpec | None


def _fitted(
    fit: Fit, offers: Sequence[Offer], model: types.ModelSpec, requested: Mapping[str, object]
) -> Offer:
    """The fit's device, or the named one, with the fit's step times."""
    named = None if fit.device is None else named_fit.device_named(fit.device)
    steps = _steps(fit, model, named, requested)
    offer = _offer_of(None if steps.hardware is None else steps.hardware.hardware_id, offers)
    if offer is None and fit.device is None and len(offers) == 1:
        # the only device on offer is meant, unless the fit says that it is one of another
        offer = offers[0]
        steps = _steps(fit, model, offer.hardware, requested)
    if offer is None:
        ids = [one.hardware.hardware_id for one in offers]
        stated = fit.device or (
            steps.hardware.hardware_id
            if steps.hardware is not None
            else "a device that it does not state"
        )
        what = f"a fit of {stated}, which is none of those on offer"
        raise SpecError(
            what,
            where=f"--fit {fit.path}",
            allowed=f"devices of --gpus: {', '.join(ids)}",
            try_=suggestions.flags("--fit", f"{ids[0]}={fit.path}"),
        )
    is_own = steps.times.subject is None or steps.times.subject.transferred_from is None
    return replace(
        offer,
        step_times=steps.times,
        power=_measured_power(fit.path, steps.times.engine) if is_own else None,
    )


def _offer_of(hardware_id: str | None, offers: Sequence[Offer]) -> Offer | None:
    return next((one for one in offers if one.hardware.hardware_id == hardware_id), None)


def _steps(
    fit: Fit,
    model: types.ModelSpec,
    device: types.HardwareSpec | None,
    requested: Mapping[str, object],
) -> _Steps:
    if named_fit.is_server(fit.path):
        server = named_fit.load_server(fit.path, model.model_id, requested, device)
        return _Steps(
            server.levels(), device or (None if server.subject is None else server.subject.hardware)
        )
    found = named_fit.step_fit(
        fit.path,
        named_fit.question_of(requested, model, device),
        is_transfer=requested.get("transfer") is True,
    )
    return _Steps(fitted_levels(found.model), found.hardware)


def _measured_power(path: Path, engine: types.EngineSpec) -> types.Constant | None:
    """Mean power of a device at the most loaded point of the sweep beside the fit.

    None where it was not measured.
    """
    if not path.is_dir():
        return None
    sweep = reading.read_run(path, skip_damaged=True).sweep
    known = (
        []
        if sweep is None
        else [watt for watt in np.asarray(sweep.power_watt).tolist() if watt > 0]
    )
    if not known:
        return None
    source = types.Source(kind="measured", where=f"{path}: highest mean power of a repetition")
    return types.Constant(value=max(known) / engine.tensor_parallel_size, source=source)


def values_to_try(text: str) -> tuple[str, tuple[str, ...]]:
    """``enable_chunked_prefill=true,false``"""
    name, equals, values = text.partition("=")
    if not equals or not all(value.strip() for value in values.split(",")):
        raise SpecError(
            f"{text!r} sets nothing",
            where="--set",
            allowed="NAME=VALUE,VALUE",
            try_="--set enable_chunked_prefill=true,false",
        )
    return name.strip(), tuple(value.strip() for value in values.split(","))


def check_pools(own: Sequence[str], class_names: Sequence[str]) -> None:
    """Refuse a pool of the KV cache for a class that the workload does not have."""
    for name, values in map(values_to_try, own):
        pools = [one for text in values for one in asked_pools(text)] if name == "kv_pools" else []
        unknown = {one for pool in pools for one in pool.classes} - set(class_names)
        if unknown:
            raise SpecError(
                f"a pool for class {', '.join(sorted(unknown))}",
                where=POOLS_KNOB,
                allowed=f"classes of the workload: {', '.join(class_names)}",
                try_="max_prompt_tokens=N instead of class=NAME, or a --workload with that class",
            )


def formats_to_try(text: str) -> list[str]:
    """The formats of weights that are named, with commas between."""
    return [
        synonyms.number_format(item, allowed=KNOWN_FORMATS, where="--quantization")
        for item in text.split(",")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverTime:
    """Options of scaling with varying traffic."""

    window: float | None = duration_option(
        None,
        "How often the number of replicas changes, for traffic that varies. [1/96 of it, from 30s]",
        "Workload",
    )
    start_up: float = duration_option(
        180.0, "From a replica's start to its first request. [3min]", "Cluster"
    )
    target: float = option(
        0.7,
        "Share of a replica's capacity at which the autoscaler adds replicas.",
        "Cluster",
        least=0,
        most=1,
        is_open=True,
    )


class SizingProblem(NamedTuple):
    """The question, and the traffic's course where it has one."""

    question: sizing_types.SizingQuestion
    course: Course | None
    start_up_s: float
    target_fraction: float


class Sought(NamedTuple):
    """SLO of the replicas, and how to search."""

    slo: str
    n_requests: int
    requests_cap: int | None
    is_sure: bool


def problem_of(workload: WorkloadSpec, sought: Sought, over_time: OverTime) -> SizingProblem:
    """The question about this workload.

    Raises
    ------
    SpecError
        The workload has neither a rate nor users.
    """
    course: Course | None = None
    load: float | None = None
    if _changes(workload):
        course = course_of(replay.draw_workload(workload).plan, over_time.window)
        load = max(course.rates_per_s)
    else:
        refuse_unused(
            over_time,
            ("window", "target"),
            "traffic that does not change: no replicas come and go",
            allowed="a trace, or a workload whose rate changes",
            try_="the same command without it",
        )
    if course is None and isinstance(workload.arrivals, OpenArrivals):
        load = workload.arrivals.rate_per_s
    elif isinstance(workload.arrivals, ClosedArrivals):
        load = float(workload.arrivals.concurrency)
    if load is None:
        raise SpecError(
            "the workload has neither a rate nor users",
            where="--rate, --concurrency, --workload",
            allowed="requests that come at a rate, or users who wait for their answers",
            try_="--rate 20",
        )
    question = sizing_types.SizingQuestion(
        spec=traffic.steady(workload) if course is not None else workload,
        offered_load=load,
        objective=objectives.parse_objective(sought.slo, has_workflows=True),
        n_requests=sought.n_requests,
        requests_cap=sought.requests_cap,
        pace="slow" if sought.is_sure else "likely",
    )
    return SizingProblem(question, course, over_time.start_up, over_time.target)


def _changes(workload: WorkloadSpec) -> bool:
    """Does the workload's rate vary over time?"""
    arrivals = workload.arrivals
    has_own_instants = arrivals is None and workload.replay is not None
    is_bent = isinstance(arrivals, OpenArrivals) and arrivals.profile is not None
    return has_own_instants or is_bent or isinstance(arrivals, TraceArrivals)
