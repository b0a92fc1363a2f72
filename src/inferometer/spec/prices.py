"""What does a device cost for an hour: from a file of the user's, or from the catalogue?

::

    source: our contract          # required: an answer says where its prices are from
    date_utc: 2026-11             # required: prices move
    usd_per_hour:                 # of one device
      h100_sxm: 2.49
      l40s: 1.08
"""

import datetime as dt
import math
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from inferometer.errors import SpecError
from inferometer.spec import catalog, file_tables
from inferometer.spec.types import HardwareSpec, PriceSpec, Source

_EXAMPLE: Final = "source: our contract\ndate_utc: 2026-11\nusd_per_hour: {h100_sxm: 2.49}"
_ALLOWED: Final = "keys source, date_utc and usd_per_hour (device of the catalogue -> $ per hour of one)"


class _PriceFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    date_utc: str
    usd_per_hour: dict[str, float]


def read_prices(path: Path) -> dict[str, PriceSpec]:
    """The prices of a YAML or JSON file, by the catalogue's id of the device.

    Raises
    ------
    SpecError
        The file cannot be read, a key is missing or unknown, a price is not above 0, a device is not in the catalogue.
    """
    text = file_tables.text_of(path, noun="price list", endings=".yaml or .json")
    try:
        raw: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SpecError(f"this is no YAML: {error}", where=str(path), allowed=_ALLOWED, try_=_EXAMPLE) from error
    if isinstance(raw, dict) and isinstance(raw.get("date_utc"), dt.date):  # YAML makes days of what looks like one
        raw["date_utc"] = raw["date_utc"].isoformat()
    read = file_tables.table_from(raw, _PriceFile, where=str(path))
    for device, price in read.usd_per_hour.items():
        if not 0 < price < math.inf:
            raise SpecError(f"a price of {price:g} $ per hour for {device}", where=str(path), allowed="above 0", try_=_EXAMPLE)
    source = Source(kind="config", where=f"{path.name}: {read.source}")
    return {
        catalog.find_hardware(device).hardware_id: PriceSpec(
            usd_per_hour=price, basis=read.source, source=source, date_utc=str(read.date_utc)
        )
        for device, price in read.usd_per_hour.items()
    }


def price_of(hardware: HardwareSpec, prices: dict[str, PriceSpec] | None) -> PriceSpec | None:
    """Its price: that of the file where there is one, else the catalogue's first; None where nobody says."""
    if prices is not None:
        return prices.get(hardware.hardware_id)
    return hardware.prices[0] if hardware.prices else None


__all__ = ["price_of", "read_prices"]
