"""On which device were these sweeps measured, and by which engine?"""

from collections.abc import Sequence

from inferometer.errors import ModelError, SpecError
from inferometer.fit.priors import Ceilings
from inferometer.perfmodel.fit_subject import FitSubject, known_device, subject_of
from inferometer.records.types import HostFacts, Run
from inferometer.spec.types import Constant, EngineSpec, HardwareSpec, PeakSpec, Source


def measured_subject(
    runs: Sequence[Run], engine: EngineSpec, ceilings: Ceilings, named: HardwareSpec | None
) -> FitSubject:
    """What the sweeps state of device and engine; ``named`` is the device that somebody named on the command line.

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
    """The catalogue's device that was named, or that the sweeps state; None where the catalogue does not have it.

    Raises
    ------
    ModelError, SpecError
        The same.
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

    A name that the catalogue does not know may be any of its kind.
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
    """A device that the catalogue does not have, by what was measured beside the sweep.

    None where that does not suffice.
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
