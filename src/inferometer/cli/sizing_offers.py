"""Which devices are on offer at which prices, and what is tried on each?"""

from pathlib import Path
from typing import Any, Final, get_args

from inferometer.decide.candidates import Grid, Offer
from inferometer.errors import SpecError
from inferometer.spec import catalog, prices
from inferometer.spec.sweep_plan import parse_counts
from inferometer.spec.types import DType

_FORMATS: Final = ", ".join(get_args(DType))


def offers_of(gpus: str, price_file: Path | None) -> list[Offer]:
    """The devices that are named, each with its price: of the file, else of the catalogue."""
    known = None if price_file is None else prices.read_prices(price_file)
    devices = {device.hardware_id: device for device in (catalog.find_hardware(name.strip()) for name in gpus.split(","))}
    return [Offer(hardware=device, price=prices.price_of(device, known)) for device in devices.values()]


def grid_of(flags: dict[str, Any]) -> Grid:
    """What is to be tried on each."""
    return Grid(
        tensor_parallel_sizes=parse_counts(flags["tp"], where="--tp"),
        dtype=flags["dtype"],
        quantizations=(None, *_quantizations(flags["quantization"])),
        max_num_seqs=parse_counts(flags["seats"], where="--max-num-seqs"),
        max_num_batched_tokens=parse_counts(flags["step_tokens"], where="--max-num-batched-tokens"),
    )


def _quantizations(text: str | None) -> tuple[DType, ...]:
    asked = [] if text is None else [item.strip() for item in text.split(",")]
    for item in asked:
        if item not in get_args(DType):
            raise SpecError(f"{item!r} is no number format", where="--quantization", allowed=_FORMATS, try_="float8,int4")
    return tuple(item for item in get_args(DType) if item in asked)


__all__ = ["grid_of", "offers_of"]
