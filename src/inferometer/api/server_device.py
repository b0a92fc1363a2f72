"""On which device does the server run that was loaded, and how much of it does the server say that it uses?"""

from dataclasses import dataclass
from typing import get_args

from inferometer.errors import SpecError
from inferometer.inputs import catalog
from inferometer.inputs.synonyms import known_format
from inferometer.inputs.types import DType, HardwareSpec
from inferometer.records.server_summaries import ServerSummary
from inferometer.report.request_views import ServerUse


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerDevice:
    """One of the server's accelerators, and the format in which it computes."""

    hardware: HardwareSpec
    dtype: DType = "bfloat16"


def server_device(text: str | None) -> ServerDevice | None:
    """The device that ``ID[:FORMAT]`` names.

    Raises
    ------
    SpecError
        The catalogue does not know it, or the format is none.
    """
    if text is None:
        return None
    name, has_format, dtype = text.partition(":")
    hardware = catalog.find_hardware(name)
    if not has_format:
        return ServerDevice(hardware=hardware)
    known = next((one for one in get_args(DType) if one == known_format(dtype)), None)
    if known is None:
        raise SpecError(
            f"{dtype!r} is no number format",
            where="--server-hardware",
            allowed=", ".join(get_args(DType)),
        )
    return ServerDevice(hardware=hardware, dtype=known)


def use_of(server: ServerSummary | None, device: ServerDevice | None) -> ServerUse | None:
    """Which shares of the datasheet's peaks?

    None where nobody named the device, or the server was not asked.
    """
    if server is None or device is None:
        return None
    peak = device.hardware.peak_flop_per_s(device.dtype)
    return ServerUse(
        device=device.hardware.name,
        dtype=device.dtype,
        flop_utilisation_fraction=(
            None if peak is None else server.flop_utilisation_fraction(peak.value)
        ),
        bandwidth_utilisation_fraction=server.bandwidth_utilisation_fraction(
            device.hardware.memory_bytes_per_s.value
        ),
    )
