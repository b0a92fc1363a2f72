"""Options of a model and of its devices that several questions have."""

from dataclasses import replace
from typing import Final, get_args

from inferometer.api.question import Option
from inferometer.errors import SpecError
from inferometer.inputs.types import Constant, DType, HardwareSpec, Source
from inferometer.units import parse_bytes_per_s

FORMATS: Final = get_args(DType)
MODEL_OPTION: Final = Option(
    "A model of the catalogue, a Hugging Face id or folder, or a config.json.",
    heading="Model",
    is_argument=True,
    is_axis=True,
)
TRANSFER_OPTION: Final = Option(
    "Carry the step times of --fit over to another device or --tp, with wider intervals.",
    heading="Hardware",
)
DATASHEET_OPTION: Final = Option(
    "Step times of the datasheet, though published rows of such devices tell more.",
    heading="Hardware",
)
TP_FLAGS: Final = ("--tp", "--tensor-parallel-size")
KV_DTYPE_FLAGS: Final = ("--kv-dtype", "--kv-cache-dtype")
LINK_OPTION: Final = Option(
    "What joins the devices: nvlink, pcie3, pcie4, pcie5, or its rate one way ('64GB/s'). [the"
    " device's]",
    heading="Hardware",
    is_axis=True,
    metavar="LINK",
)
_PCIE_BYTES_PER_S: Final = {"pcie3": 15.75e9, "pcie4": 31.5e9, "pcie5": 63e9}
"""16 lanes, one way."""


def with_link(hardware: HardwareSpec, link: str | None) -> HardwareSpec:
    """The device in a machine whose devices are joined by this; None: by what it has.

    Raises
    ------
    SpecError
        The device has no such link, or this is no link.
    """
    if link is None:
        return hardware
    if link == "nvlink":
        if hardware.link_bytes_per_s is None:
            raise SpecError(
                f"{hardware.name} has no link of its own in the catalogue",
                where="--link nvlink",
                allowed="pcie3, pcie4, pcie5, or a rate",
                try_="--link pcie4",
            )
        return hardware
    source = Source(kind="config", where=f"--link {link}")
    if link in _PCIE_BYTES_PER_S:
        rate = Constant(value=_PCIE_BYTES_PER_S[link], source=source)
        return replace(hardware, link_bytes_per_s=None, pcie_bytes_per_s=rate)
    rate = Constant(value=parse_bytes_per_s(link, where="--link"), source=source)
    return replace(hardware, link_bytes_per_s=rate)
