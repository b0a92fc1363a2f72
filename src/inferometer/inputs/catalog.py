"""The catalogue of models and devices, with the source of each number.

The catalogue is read on first use and cached. ``catalog_data/`` holds its files.
"""

import re
from collections.abc import Iterable
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec

from inferometer import suggestions
from inferometer.errors import SpecError
from inferometer.inputs.model_config import model_from_config
from inferometer.inputs.name_search import devices_with_text, models_with_words
from inferometer.inputs.synonyms import (
    APPLE_CHIP,
    GENERATIONS,
    LARGER_CHIPS,
    NO_NAME,
    OTHER_CARDS,
    USUAL_DEVICES,
    counted_devices,
    device_words,
    model_form,
)
from inferometer.inputs.types import (
    Constant,
    DType,
    HardwareSpec,
    KernelRate,
    KernelRates,
    ModelSpec,
    PeakSpec,
    PriceSpec,
    Source,
    WeightFormat,
)


@cache
def load_models() -> tuple[ModelSpec, ...]:
    """All models of the catalogue."""
    return tuple(map(_model_at, range(len(_model_entries()))))


@cache
def load_hardware() -> tuple[HardwareSpec, ...]:
    """All devices of the catalogue."""
    return read_hardware_files()


def nameless(model: ModelSpec) -> ModelSpec:
    """The language model without what only names it or says where its description is from.

    Without its towers too, and without what its 4-bit checkpoints leave in more bits.
    """
    source = Source(kind="unsourced", where="")
    plain = replace(model, n_tower_weights=0, float4_bits=())
    return replace(plain, model_id="", hf_id=None, note=None, source=source)


def find_model(name: str) -> ModelSpec:
    """The catalogue's model of this id, or of this Hugging Face id.

    ``-Instruct``, ``-it`` and the like share the base's shape.

    Raises
    ------
    SpecError
        It is not in the catalogue; the message names similar ids.

    Example
    -------
    >>> find_model("Qwen/Qwen2.5-3B-Instruct").model_id
    'qwen2.5-3b'
    """
    model = known_model(name)
    if model is None:
        ids = [one.model_id for one in _model_entries()]
        raise _unknown("model", name, close_models(name), ids, where="--model, MODEL")
    return model


def known_model(name: str) -> ModelSpec | None:
    """Like ``find_model``, but None for a name that is not in the catalogue."""
    wanted, form = name.strip().lower(), model_form(name)
    entries = list(enumerate(_model_entries()))
    for index, one in entries:
        if wanted in {name.lower() for name in one.names}:
            return _model_at(index)
    forms = (i for i, one in entries if form in set(map(model_form, one.names)))
    found = next(forms, None)
    return None if found is None else _model_at(found)


def models_of_the_shape(model_id: str) -> tuple[str, ...]:
    """Hugging Face ids of other models that have the shape of this one."""
    return next((one.also for one in _model_entries() if one.model_id == model_id), ())


def close_models(name: str) -> tuple[str, ...]:
    """Ids of the catalogue that look like ``name``, the closest first."""
    entries = _model_entries()
    short_names = {
        name.rpartition("/")[2].lower(): one.model_id for one in entries for name in one.names[1:]
    }
    ids = {one.model_id: one.model_id for one in entries}
    close = _close(name.rpartition("/")[2], short_names | ids)
    return tuple(dict.fromkeys((*models_named(name), *close)))[:4]


def models_named(name: str) -> tuple[str, ...]:
    """Ids of the models with all words of this name, the newest first: `llama 70b`."""
    return models_with_words(name, (one.model_id for one in _model_entries()))


def devices_named(name: str) -> tuple[HardwareSpec, ...]:
    """Devices with this text in their id, name or maker: `nvidia`, `mac`, `mi3`."""
    named = ((one.hardware_id, (one.name, one.vendor)) for one in load_hardware())
    found = frozenset(devices_with_text(name, named))
    return tuple(one for one in load_hardware() if one.hardware_id in found)


_FLAGS: Final = "--hardware, --gpus"
_HERE: Final = ("cpu", "gpu", "cuda", "local", "localhost", "here", "laptop", "auto")
_NUMBER: Final = re.compile(r"\d{1,2}")


def find_hardware(name: str, *, where: str = _FLAGS) -> HardwareSpec:
    """The catalogue's device of this id or name, in the spelling of users, drivers or clouds.

    A name that several devices share means the usual one of them, if any (``h100`` is
    ``h100_sxm``). ``where`` is the source of the name, for the message.

    Raises
    ------
    SpecError
        The catalogue does not know it; the message names what is close.

    Example
    -------
    >>> find_hardware("NVIDIA H100 80GB HBM3").hardware_id, find_hardware("4090").hardware_id
    ('h100_sxm', 'rtx_4090')
    """
    ids = {device.hardware_id: device for device in load_hardware()}
    if name in ids:
        return ids[name]
    alike = _alike(name)
    found = _meant(alike, device_words(name))
    if found is not None:
        return found
    counted = counted_devices(name)
    if counted is not None and _alike(counted[1]):
        n, device = counted
        if n == 1:  # a cloud's instance with one device
            return find_hardware(device, where=where)
        raise _several(name, n, device, where=where)
    if name.strip().lower() in {"all", "any", "*"}:
        raise SpecError(
            f"{name!r} is no device",
            where=where,
            allowed="devices by name; a study compares all of the catalogue",
            try_=suggestions.command("study", "devices", "MODEL"),
        )
    if where == _FLAGS:
        _check_is_name(name)
    close = (
        [device.hardware_id for device in alike]
        or _close("_".join(name.lower().split()), {one: one for one in ids})
        or [device.hardware_id for device in devices_named(name)][:4]
    )
    raise _unknown("hardware", name, close, list(ids), where=where)


def _check_is_name(name: str) -> None:
    """Refuse a number of devices, and words for the machine at hand, in a device's place."""
    word = name.strip().lower()
    if word in _HERE:
        raise SpecError(
            f"{name!r} is no device's name",
            where=_FLAGS,
            allowed="this: this machine, probed now; or a device by its name",
            try_=suggestions.flags("--hardware", "this"),
        )
    if _NUMBER.fullmatch(word):
        raise SpecError(
            f"{name!r} is a number, and this is the name of a device",
            where=_FLAGS,
            allowed="a device's name; --tp N is one replica over N of them",
            try_=suggestions.flags("--hardware", "h100_sxm", "--tp", word),
        )


def _several(name: str, n: int, device: str, *, where: str) -> SpecError:
    """The error for a number of devices; a price's device and that of a run take no number."""
    takes_number, is_flag = where == _FLAGS, where.startswith("--")
    allowed = f"; --tp {n} is one replica over all, --replicas {n} one on each"
    words = ("--hardware", device, "--tp", n) if takes_number else (where, device)
    return SpecError(
        f"{name!r} is {n} devices, and this is the name of one",
        where=where,
        allowed="one device's name" + (allowed if takes_number else ""),
        try_=suggestions.flags(*words) if is_flag else device,
    )


def _alike(name: str) -> list[HardwareSpec]:
    """Devices whose names contain all words of this one; without a number, two words of one.

    Not those whose further words make another card or chip of it, unless it is their id.
    """
    wanted = device_words(name)
    if all(map(NO_NAME.fullmatch, wanted)):
        return []
    apart = OTHER_CARDS
    if any(word.isdigit() for word in wanted):
        apart |= GENERATIONS
    if any(map(APPLE_CHIP.fullmatch, wanted)):
        apart |= LARGER_CHIPS
    words = [
        (device, device_words(device.hardware_id), device_words(device.name))
        for device in load_hardware()
    ]
    alike = [
        device
        for device, own_id, own in words
        if wanted <= own_id | own and (wanted == own_id or not ((own_id | own) - wanted) & apart)
    ]
    has_number = any(character.isdigit() for word in wanted for character in word)
    return alike if has_number or (len(wanted) > 1 and len(alike) == 1) else []


def _meant(alike: list[HardwareSpec], wanted: frozenset[str]) -> HardwareSpec | None:
    """The single match, the single exact one, or the usual one of several; else None."""
    exact = [
        device
        for device in alike
        if wanted in (device_words(device.hardware_id), device_words(device.name))
    ]
    ids = {device.hardware_id: device for device in alike}
    usual = [ids[name] for name in USUAL_DEVICES if name in ids][:1]
    return next((found[0] for found in (exact, alike, usual) if len(found) == 1), None)


def unsourced_constants(hardware: HardwareSpec) -> tuple[str, ...]:
    """Fields of the device whose numbers have no source; every output marks them.

    Example
    -------
    >>> unsourced_constants(find_hardware("h100_sxm"))
    ()
    """
    parts: list[tuple[str, Constant | None]] = [
        ("memory_bytes", hardware.memory_bytes),
        ("memory_bytes_per_s", hardware.memory_bytes_per_s),
        ("link_bytes_per_s", hardware.link_bytes_per_s),
        ("linked_devices", hardware.linked_devices),
        ("pcie_bytes_per_s", hardware.pcie_bytes_per_s),
        ("power_watt", hardware.power_watt),
    ]
    parts += [(f"peak_{peak.dtype}_flop_per_s", peak.flop_per_s) for peak in hardware.peaks]
    names = [name for name, part in parts if part is not None and part.source.kind == "unsourced"]
    names += [
        f"price_usd_per_hour ({price.basis})"
        for price in hardware.prices
        if price.source.kind == "unsourced"
    ]
    return tuple(names)


def _close(name: str, candidates: dict[str, str]) -> tuple[str, ...]:
    wanted = name.lower()
    found = [text for text in candidates if wanted and wanted in text] + get_close_matches(
        wanted, candidates, n=4, cutoff=0.5
    )
    return tuple(dict.fromkeys(candidates[text] for text in found))[:4]


def _unknown(
    kind: str, name: str, close: Iterable[str], allowed: list[str], *, where: str
) -> SpecError:
    listed = ", ".join(close)
    listing = "inferometer catalog models" if kind == "model" else "inferometer catalog hardware"
    return SpecError(
        f"the catalogue does not know the {kind} {name!r}",
        where=where,
        allowed=f"one of {len(allowed)}: {', '.join(allowed[:5])}, …"
        + (", or this: this machine, probed now" if where == _FLAGS and name != "this" else ""),
        try_=f"did you mean {listed}? All of them: {listing}" if listed else listing,
    )


# Format of the catalogue's files, and their conversion to specifications.
# One TOML file for each family of models or vendor of devices. Every number has the key of its
# source in the file's ``[sources]``; devices are written in the units of datasheets (GiB,
# 10^9 bytes/s, 10^12 FLOP/s).


_GIB: Final = 2**30
_GIGA: Final = 10**9
_TERA: Final = 10**12
_MICRO: Final = 1e-6
_Parsed = TypeVar("_Parsed")
_SHAPE: Final = tuple(
    field.name for field in fields(ModelSpec) if field.name not in {"source", "note", "hf_id"}
)


class ConstantEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number in the unit of its key, and the key of its source."""

    value: float
    source: str
    note: str | None = None


class PriceEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Price of a device per hour."""

    usd_per_hour: float
    basis: str
    source: str
    date_utc: str | None = None


class KernelEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rates of kernels, each timed on its own."""

    dense_tflop_per_s: dict[WeightFormat, ConstantEntry] = msgspec.field(
        default_factory=dict[WeightFormat, ConstantEntry]
    )
    dense_gb_per_s: dict[WeightFormat, ConstantEntry] = msgspec.field(
        default_factory=dict[WeightFormat, ConstantEntry]
    )
    experts_tflop_per_s: dict[WeightFormat, ConstantEntry] = msgspec.field(
        default_factory=dict[WeightFormat, ConstantEntry]
    )
    experts_gb_per_s: dict[WeightFormat, ConstantEntry] = msgspec.field(
        default_factory=dict[WeightFormat, ConstantEntry]
    )
    message_us: ConstantEntry | None = None
    reduce_gb_per_s: ConstantEntry | None = None


class HardwareEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device as the catalogue writes it."""

    hardware_id: str
    name: str
    vendor: str
    kind: Literal["gpu", "cpu", "tpu", "apple", "asic"]
    memory_gib: ConstantEntry
    memory_gb_per_s: ConstantEntry
    peaks_tflop_per_s: dict[DType, ConstantEntry]
    measured_tflop_per_s: dict[DType, ConstantEntry] = msgspec.field(
        default_factory=dict[DType, ConstantEntry]
    )
    kernels: KernelEntry = KernelEntry()
    link_gb_per_s: ConstantEntry | None = None
    linked_devices: ConstantEntry | None = None
    pcie_gb_per_s: ConstantEntry | None = None
    power_watt: ConstantEntry | None = None
    prices: tuple[PriceEntry, ...] = ()
    note: str | None = None


class HardwareFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of devices."""

    sources: dict[str, Source]
    hardware: tuple[HardwareEntry, ...]


class ModelFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of models: ``ModelSpec`` fields, a source key, 0 for no full-attention layer.

    Newer entries have, instead of a shape, the ``config`` of the model's own config.json. ``also``
    are Hugging Face ids of other models of this shape: its tunes, or those that it is a tune of.
    """

    sources: dict[str, Source]
    models: tuple[dict[str, object], ...]


class _ModelEntry(NamedTuple):
    """An entry of a file of models; its shape is parsed on demand."""

    model_id: str
    hf_id: str
    also: tuple[str, ...]
    fields: dict[str, object]
    sources: dict[str, Source]
    where: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.model_id, self.hf_id, *self.also)


@cache
def _model_entries() -> tuple[_ModelEntry, ...]:
    """In the order of files and entries."""
    found = list[_ModelEntry]()
    for where, text in _texts("models"):
        file = _decoded(text, ModelFile, where)
        for entry in file.models:
            names = str(entry.get("model_id")), str(entry.get("hf_id") or "")
            also = msgspec.convert(entry.get("also", ()), tuple[str, ...])
            described = {key: value for key, value in entry.items() if key != "also"}
            found.append(_ModelEntry(*names, also, described, file.sources, where))
    return tuple(found)


@cache
def _model_at(index: int) -> ModelSpec:
    one = _model_entries()[index]
    return model_from_entry(one.fields, one.sources, where=one.where)


def read_hardware_files() -> tuple[HardwareSpec, ...]:
    """All devices of the catalogue, in the order of files and entries.

    Raises
    ------
    SpecError
        A file of the installed package is damaged.
    """
    devices: list[HardwareSpec] = []
    for name, text in _texts("hardware"):
        file = _decoded(text, HardwareFile, name)
        devices += [hardware_from_entry(entry, file.sources, where=name) for entry in file.hardware]
    return tuple(devices)


def model_from_entry(
    entry: dict[str, object], sources: dict[str, Source], *, where: str
) -> ModelSpec:
    """The model that an entry of a catalogue file describes.

    Raises
    ------
    SpecError
        An unknown field or source, or a value of the wrong kind.
    """
    config = entry.get("config")
    if isinstance(config, dict):
        stated = {name: value for name, value in entry.items() if name != "config"}
        shape = model_from_config(config, where=where, model_id=str(entry.get("model_id")))
        known = {name: getattr(shape, name) for name in _SHAPE}
        entry = msgspec.to_builtins(known) | stated
    unknown = entry.keys() - {field.name for field in fields(ModelSpec)}
    if unknown:
        raise SpecError(
            f"unknown fields {sorted(unknown)} of model {entry.get('model_id')!r}",
            where=where,
            allowed="the fields of ModelSpec",
        )
    attention = entry.get("attention")
    if isinstance(attention, dict) and attention.get("full_attention_every") == 0:
        attention = attention | {"full_attention_every": None}
    source = _source(str(entry.get("source")), sources, where=where)
    return _converted(entry | {"attention": attention, "source": source}, where=where)


def hardware_from_entry(
    entry: HardwareEntry, sources: dict[str, Source], *, where: str
) -> HardwareSpec:
    """The device that an entry of a catalogue file describes, in bytes, bytes/s and FLOP/s.

    Raises
    ------
    SpecError
        A source that is missing in the file's ``[sources]``.
    """
    read = _Constants(sources, where)
    kernels = entry.kernels
    return HardwareSpec(
        hardware_id=entry.hardware_id,
        name=entry.name,
        vendor=entry.vendor,
        kind=entry.kind,
        memory_bytes=read.constant(entry.memory_gib, _GIB),
        memory_bytes_per_s=read.constant(entry.memory_gb_per_s, _GIGA),
        peaks=read.peaks(entry.peaks_tflop_per_s, is_measured=False),
        measured_peaks=read.peaks(entry.measured_tflop_per_s, is_measured=True),
        kernels=KernelRates(
            dense=read.rates(kernels.dense_tflop_per_s, kernels.dense_gb_per_s),
            experts=read.rates(kernels.experts_tflop_per_s, kernels.experts_gb_per_s),
            message_s=read.optional(kernels.message_us, _MICRO),
            reduce_bytes_per_s=read.optional(kernels.reduce_gb_per_s, _GIGA),
        ),
        link_bytes_per_s=read.optional(entry.link_gb_per_s, _GIGA),
        linked_devices=read.optional(entry.linked_devices, 1),
        pcie_bytes_per_s=read.optional(entry.pcie_gb_per_s, _GIGA),
        power_watt=read.optional(entry.power_watt, 1),
        prices=tuple(
            PriceSpec(
                usd_per_hour=price.usd_per_hour,
                basis=price.basis,
                source=_source(price.source, sources, where=where),
                date_utc=price.date_utc,
            )
            for price in entry.prices
        ),
        note=entry.note,
    )


class _Constants(NamedTuple):
    """Constants of a catalogue entry, each with its source."""

    sources: dict[str, Source]
    where: str

    def constant(self, part: ConstantEntry, unit: float) -> Constant:
        """The entry's value in the base unit, rounded to whole units."""
        value = part.value * unit
        return Constant(
            value=round(value) if unit > 1 else value,
            source=_source(part.source, self.sources, where=self.where),
            note=part.note,
        )

    def optional(self, part: ConstantEntry | None, unit: float) -> Constant | None:
        return None if part is None else self.constant(part, unit)

    def peaks(
        self, entries: dict[DType, ConstantEntry], *, is_measured: bool
    ) -> tuple[PeakSpec, ...]:
        return tuple(
            PeakSpec(
                dtype=dtype, flop_per_s=self.constant(part, _TERA), is_measured_matmul=is_measured
            )
            for dtype, part in entries.items()
        )

    def rates(
        self, reached: dict[WeightFormat, ConstantEntry], read: dict[WeightFormat, ConstantEntry]
    ) -> tuple[KernelRate, ...]:
        return tuple(
            KernelRate(
                weights=name,
                flop_per_s=self.constant(part, _TERA),
                read_bytes_per_s=self.optional(read.get(name), _GIGA),
            )
            for name, part in reached.items()
        )


def _texts(folder: str) -> list[tuple[str, str]]:
    files = (resources.files("inferometer.inputs") / "catalog_data" / folder).iterdir()
    return sorted(
        (f"catalog_data/{folder}/{file.name}", file.read_text(encoding="utf-8"))
        for file in files
        if file.name.endswith(".toml")
    )


def _decoded(text: str, kind: type[_Parsed], where: str) -> _Parsed:
    try:
        return msgspec.toml.decode(text, type=kind)
    except msgspec.DecodeError as error:
        raise SpecError(
            f"the catalogue's file is damaged: {error}",
            where=where,
            try_="install inferometer again",
        ) from error


def _converted(entry: dict[str, object], *, where: str) -> ModelSpec:
    try:
        return msgspec.convert(entry, ModelSpec)
    except msgspec.ValidationError as error:
        raise SpecError(
            f"model {entry.get('model_id')!r}: {error}",
            where=where,
            allowed="the fields of ModelSpec",
        ) from error


def _source(key: str, sources: dict[str, Source], *, where: str) -> Source:
    if key not in sources:
        raise SpecError(
            f"source {key!r} is not defined in [sources]",
            where=where,
            allowed=", ".join(sorted(sources)),
        )
    return sources[key]
