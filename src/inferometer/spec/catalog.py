"""Which models and devices are known without a hub, and where does each number come from?

The catalogue is read when it is first asked for and kept. ``catalog_data/`` holds its files,
``catalog_files`` their form.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache

from inferometer.errors import SpecError
from inferometer.spec.catalog_files import read_hardware_files, read_model_files
from inferometer.spec.synonyms import USUAL_DEVICES, device_words, model_form
from inferometer.spec.types import Constant, HardwareSpec, ModelSpec


@cache
def load_models() -> tuple[ModelSpec, ...]:
    """All models of the catalogue."""
    return read_model_files()


@cache
def load_hardware() -> tuple[HardwareSpec, ...]:
    """All devices of the catalogue."""
    return read_hardware_files()


def find_model(name: str) -> ModelSpec:
    """The catalogue's model of this id, or of this Hugging Face id.

    ``-Instruct``, ``-it`` and the like share the base's shape.

    Raises
    ------
    SpecError
        The catalogue does not know it; the message names what is close.

    Example
    -------
    >>> find_model("Qwen/Qwen2.5-3B-Instruct").model_id
    'qwen2.5-3b'
    """
    model = known_model(name)
    if model is None:
        raise _unknown(
            "model", name, close_models(name), [model.model_id for model in load_models()]
        )
    return model


def known_model(name: str) -> ModelSpec | None:
    """Like ``find_model``, None where the catalogue does not know the name."""
    wanted = name.strip().lower()
    for model in load_models():
        if wanted in {model.model_id, (model.hf_id or "").lower()}:
            return model
    form = model_form(name)
    return next(
        (
            model
            for model in load_models()
            if form in {model_form(model.model_id), model_form(model.hf_id or "")}
        ),
        None,
    )


def close_models(name: str) -> tuple[str, ...]:
    """Ids of the catalogue that look like ``name``, the closest first."""
    short_names = {
        (model.hf_id or model.model_id).rpartition("/")[2].lower(): model.model_id
        for model in load_models()
    }
    ids = {model.model_id: model.model_id for model in load_models()}
    return _close(name.rpartition("/")[2], short_names | ids)


def find_hardware(name: str) -> HardwareSpec:
    """The catalogue's device of this id or name, as people, drivers and clouds write it.

    A name that several devices share means the usual one of them (``h100`` is ``h100_sxm``), where
    there is one.

    Raises
    ------
    SpecError
        The catalogue does not know it; the message names what is close.

    Example
    -------
    >>> find_hardware("NVIDIA H100 80GB HBM3").hardware_id, find_hardware("4090").hardware_id
    ('h100_sxm', 'rtx_4090')
    """
    wanted = device_words(name)
    names_a_part = any(
        character.isdigit() for word in wanted for character in word
    )  # `Xeon` names a family
    alike = [device for device in load_hardware() if names_a_part and wanted <= _words_of(device)]
    exact = [
        device
        for device in alike
        if wanted in (device_words(device.hardware_id), device_words(device.name))
    ]
    usual = [device for device in alike if device.hardware_id in USUAL_DEVICES]
    for found in (exact, alike, usual):
        if len(found) == 1:
            return found[0]
    ids = {device.hardware_id: device.hardware_id for device in load_hardware()}
    close = [device.hardware_id for device in alike] or _close("_".join(name.lower().split()), ids)
    raise _unknown("hardware", name, close, list(ids))


def unsourced_constants(hardware: HardwareSpec) -> tuple[str, ...]:
    """Which numbers of the device nobody has a source for: names of fields, to be marked in every output.

    Example
    -------
    >>> unsourced_constants(find_hardware("h100_sxm"))
    ()
    """
    parts: list[tuple[str, Constant | None]] = [
        ("memory_bytes", hardware.memory_bytes),
        ("memory_bytes_per_s", hardware.memory_bytes_per_s),
        ("link_bytes_per_s", hardware.link_bytes_per_s),
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


def _words_of(device: HardwareSpec) -> frozenset[str]:
    return device_words(device.hardware_id) | device_words(device.name)


def _close(name: str, candidates: dict[str, str]) -> tuple[str, ...]:
    wanted = name.lower()
    found = [text for text in candidates if wanted and wanted in text] + get_close_matches(
        wanted, candidates, n=4, cutoff=0.5
    )
    return tuple(dict.fromkeys(candidates[text] for text in found))[:4]


def _unknown(kind: str, name: str, close: Iterable[str], allowed: list[str]) -> SpecError:
    listed = ", ".join(close)
    listing = "inferometer catalog models" if kind == "model" else "inferometer catalog hardware"
    return SpecError(
        f"the catalogue does not know the {kind} {name!r}",
        where="--model, MODEL" if kind == "model" else "--hardware, --gpus",
        allowed=f"one of {len(allowed)}: {', '.join(allowed[:5])}, …",
        try_=f"did you mean {listed}? All of them: {listing}" if listed else listing,
    )
