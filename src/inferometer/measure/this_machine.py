"""What is the machine at hand as a device: how much memory, which bandwidth, which FLOP/s, measured now?"""

import importlib.util
import os
from datetime import UTC, datetime
from functools import cache
from typing import Final

from inferometer.errors import SpecError
from inferometer.inputs.catalog import find_hardware
from inferometer.inputs.types import Caution, Constant, DType, HardwareSpec, PeakSpec, Source
from inferometer.measure.ceilings import MAX_FOOTPRINT_BYTES, NumpyCeilings
from inferometer.measure.engines.protocol import CeilingProbe, ProbeSettings
from inferometer.measure.host import NvmlDevices, busy_text, host_facts
from inferometer.records.types import ProbeKind

_TORCH_PROBE: Final = "inferometer.measure.engines.torch_ceilings"
_DTYPES: Final[tuple[DType, ...]] = ("float32", "bfloat16")


THIS_MACHINE: Final = "this"
"""Name on the command line, and id of a CPU with measured ceilings."""


@cache
def this_hardware() -> HardwareSpec:
    """The device that an engine would use here.

    The catalogue's GPU where there is one, else this CPU, its ceilings measured now.

    Takes about two seconds, and is measured once in a process: all replicas of a question have the
    same ceilings. Number formats that nobody here can multiply in are absent.

    Raises
    ------
    SpecError
        There is a GPU that the catalogue does not know.
    """
    nvml = NvmlDevices.open(1)
    if nvml is not None:
        return find_hardware(nvml.facts().name)
    busy = busy_text()
    probe = _probe()
    n_threads = len(os.sched_getaffinity(0))
    found = probe.measure(_settings((ProbeKind.READ,), "float32", n_threads))
    reads = [ceiling.value_per_s for ceiling in found if ceiling.kind is ProbeKind.READ]
    if not reads:
        raise SpecError(
            "the memory bandwidth of this machine could not be measured",
            where="--hardware this",
            try_="--hardware ID",
        )
    peaks = [
        PeakSpec(dtype=dtype, flop_per_s=_measured(ceiling.value_per_s, busy))
        for dtype in _DTYPES
        for ceiling in probe.measure(_settings((ProbeKind.MATMUL,), dtype, n_threads))
    ]
    host = host_facts(n_threads=n_threads, uses_device=False)
    if host.memory_bytes is None:
        raise SpecError(
            "how much memory this machine has is unknown",
            where="--hardware this",
            try_="--hardware ID",
        )
    return HardwareSpec(
        hardware_id=THIS_MACHINE,
        name=f"{host.cpu_model or 'this CPU'} ({n_threads} threads)",
        vendor="this machine",
        kind="cpu",
        memory_bytes=_measured(host.memory_bytes),
        memory_bytes_per_s=_measured(reads[0], busy),
        peaks=tuple(peaks),
    )


def ceiling_cautions(*devices: HardwareSpec | None) -> tuple[Caution, ...]:
    """A caution where the ceilings of one were measured while other processes used the CPU."""
    notes = {
        one.memory_bytes_per_s.note
        for one in devices
        if one is not None and one.hardware_id == THIS_MACHINE and one.memory_bytes_per_s.note
    }
    return tuple(
        Caution(
            code="BUSY_CEILINGS",
            text=f"the ceilings of this machine may be too low: while they were measured, {note}",
            remedy="the same command when the machine is quiet (uptime)",
        )
        for note in notes
    )


def _probe() -> CeilingProbe:
    # torch multiplies in more formats than numpy; it is loaded by name, because the core runs
    # without it.
    if importlib.util.find_spec("torch") is None:
        return NumpyCeilings()
    probe: CeilingProbe = importlib.import_module(_TORCH_PROBE).open_probe()
    return probe


def _settings(kinds: tuple[ProbeKind, ...], dtype: DType, n_threads: int) -> ProbeSettings:
    return ProbeSettings(
        kinds=kinds, footprint_bytes=MAX_FOOTPRINT_BYTES, matmul_dtype=dtype, n_threads=n_threads
    )


def _measured(value: float, busy: str | None = None) -> Constant:
    now = datetime.now(UTC).date().isoformat()
    source = Source(kind="measured", where="probed on this machine", checked_utc=now)
    return Constant(value=value, source=source, note=busy)
