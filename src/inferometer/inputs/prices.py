"""Prices: of a device per hour, rented or owned, and of API tokens.

From a user's file, or the catalogue.

::

    source: our contract          # required: an answer says where its prices are from
    date_utc: 2026-11             # required: prices move
    usd_per_hour:                 # rent of one device
      h100_sxm: 2.49
      l40s: 1.08
    owned:                        # bought: one device with its part of the server, the network and the building
      h100_sxm: {price_usd: 32000, n_years: 4}
    power: {usd_per_kwh: 0.11, pue_ratio: 1.3}      # what owned devices draw; pue: of the building
    used_fraction: 0.8            # of the hours of their life: the others cost too
    api:                          # what the same tokens cost elsewhere
      somebody: {input_usd_per_million_tokens: 0.2, output_usd_per_million_tokens: 0.6}
"""

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from inferometer.errors import SpecError
from inferometer.inputs import catalog, file_tables
from inferometer.inputs.file_tables import yaml_value
from inferometer.inputs.foreign_bytes import Door, shortened
from inferometer.inputs.types import HardwareSpec, PriceSpec, Source

_EXAMPLE: Final = "source: our contract\ndate_utc: 2026-11\nusd_per_hour: {h100_sxm: 2.49}"
_ALLOWED: Final = (
    "keys source, date_utc, and usd_per_hour (device of the catalogue -> $ per hour of one) or"
    " owned; power, used_fraction, api"
)
_DOOR: Final = Door(noun="price list", allowed=_ALLOWED, try_=_EXAMPLE)
_HOURS_A_YEAR: Final = 8766.0
_WATT_A_KILOWATT: Final = 1000.0

_Day = Annotated[str, msgspec.Meta(pattern=r"^\d{4}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?$")]
"""A year, a month or a day."""
_Positive = Annotated[float, msgspec.Meta(gt=0)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class _Owned(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    price_usd: _Positive
    n_years: Annotated[int, msgspec.Meta(ge=1, le=30)]


class _Power(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    usd_per_kwh: _NotNegative
    pue_ratio: Annotated[float, msgspec.Meta(ge=1, le=10)] = 1.0


class _Api(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    input_usd_per_million_tokens: _NotNegative
    output_usd_per_million_tokens: _NotNegative


class _PriceFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    date_utc: _Day
    usd_per_hour: dict[str, float] = msgspec.field(default_factory=dict)
    owned: dict[str, _Owned] = msgspec.field(default_factory=dict)
    power: _Power | None = None
    used_fraction: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    api: dict[str, _Api] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedPrice:
    """Cost of an hour of use of one bought device."""

    capital_usd_per_hour: float
    """Capital cost per hour of its lifetime."""
    power_usd_per_hour: float
    """Cost of electricity at full power, while in use."""
    used_fraction: float
    source: Source
    basis: str
    date_utc: str

    @property
    def usd_per_hour(self) -> float:
        """Cost of an hour in which it is used."""
        return self.capital_usd_per_hour / self.used_fraction + self.power_usd_per_hour

    def break_even_fraction(self, rented_usd_per_hour: float) -> float | None:
        """The utilisation above which owning is cheaper than renting; None: never."""
        saved_usd_per_hour = rented_usd_per_hour - self.power_usd_per_hour
        share = (
            math.inf if saved_usd_per_hour <= 0 else self.capital_usd_per_hour / saved_usd_per_hour
        )
        return share if share <= 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiPrice:
    """Price of tokens from an API."""

    name: str
    input_usd_per_million_tokens: float
    output_usd_per_million_tokens: float
    source: Source
    date_utc: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """The prices of a file; devices by the catalogue's id."""

    rented: dict[str, PriceSpec] = field(default_factory=dict[str, PriceSpec])
    owned: dict[str, OwnedPrice] = field(default_factory=dict[str, OwnedPrice])
    apis: tuple[ApiPrice, ...] = ()


def read_prices(path: Path) -> PriceTable:
    """The prices of a YAML or JSON file.

    Raises
    ------
    SpecError
        The file cannot be read, a key is missing or unknown, a price is not above 0, a device is
        not in the catalogue, or bought devices have no price of
        power.
    """
    read = _read(path)
    for device, price in read.usd_per_hour.items():
        if not 0 < price < math.inf:
            raise SpecError(
                f"a price of {price:g} $ per hour for {device}",
                where=str(path),
                allowed="above 0",
                try_=_EXAMPLE,
            )
    source = Source(kind="config", where=f"{path.name}: {read.source}")
    date_utc = str(read.date_utc)
    rented = {
        catalog.find_hardware(device, where=f"{path}: usd_per_hour").hardware_id: PriceSpec(
            usd_per_hour=price, basis=read.source, source=source, date_utc=date_utc
        )
        for device, price in read.usd_per_hour.items()
    }
    owned = {
        catalog.find_hardware(device, where=f"{path}: owned").hardware_id: _owned(
            device, one, read, source
        )
        for device, one in read.owned.items()
    }
    apis = tuple(
        ApiPrice(name=name, source=source, date_utc=date_utc, **msgspec.structs.asdict(one))
        for name, one in read.api.items()
    )
    return PriceTable(rented=rented, owned=owned, apis=apis)


def rents_of(devices: Sequence[HardwareSpec], prices: PriceTable | None) -> list[PriceSpec | None]:
    """The rent of each device.

    From the file if there is one, else from the catalogue: prices of one kind if all devices with
    a price have that kind.

    Without a common kind the first price of each; None without a price.
    """
    if prices is not None:
        return [prices.rented.get(device.hardware_id) for device in devices]
    known = [
        {price.basis: price for price in reversed(device.prices)}
        for device in devices
        if device.prices
    ]
    first = [price.basis for device in devices for price in device.prices]
    common = next((basis for basis in first if all(basis in bases for bases in known)), None)
    return [
        next((price for price in device.prices if common in {None, price.basis}), None)
        for device in devices
    ]


def _read(path: Path) -> _PriceFile:
    raw: Any = yaml_value(_DOOR.text_of(path), _DOOR, where=str(path))
    if isinstance(raw, dict) and isinstance(
        raw.get("date_utc"), dt.date | int
    ):  # YAML converts texts that look like dates or numbers
        raw["date_utc"] = str(raw["date_utc"])
    rents: Any = raw.get("usd_per_hour") if isinstance(raw, dict) else None
    for device, price in rents.items() if isinstance(rents, dict) else ():
        if isinstance(price, bool) or not isinstance(price, int | float):
            raise SpecError(
                f"usd_per_hour.{device} = {shortened(price)} is no number",
                where=str(path),
                allowed="a number with a decimal point",
                try_=_EXAMPLE,
            )
    read = file_tables.table_from(raw, _PriceFile, where=str(path), example=_EXAMPLE)
    if not read.usd_per_hour and not read.owned and not read.api:
        raise SpecError(
            "a price list without a price", where=str(path), allowed=_ALLOWED, try_=_EXAMPLE
        )
    return read


def _owned(device: str, bought: _Owned, read: _PriceFile, source: Source) -> OwnedPrice:
    hardware = catalog.find_hardware(device)
    if read.power is None:
        raise SpecError(
            "the price of power is not given",
            where=source.where,
            allowed="power with owned",
            try_="power: {usd_per_kwh: 0.11}",
        )
    if hardware.power_watt is None:
        raise SpecError(
            f"the catalogue does not know the power of {device}",
            where=source.where,
            allowed="devices whose power it knows",
        )
    watt = hardware.power_watt.value
    return OwnedPrice(
        capital_usd_per_hour=bought.price_usd / (bought.n_years * _HOURS_A_YEAR),
        power_usd_per_hour=watt / _WATT_A_KILOWATT * read.power.pue_ratio * read.power.usd_per_kwh,
        used_fraction=read.used_fraction,
        source=source,
        basis=(
            f"owned: {bought.price_usd:,.0f} $ over {bought.n_years} years, used"
            f" {read.used_fraction:.0%} of the time, {watt:g} W at {read.power.usd_per_kwh:g} $/kWh"
            f" and PUE {read.power.pue_ratio:g}"
        ),
        date_utc=str(read.date_utc),
    )
