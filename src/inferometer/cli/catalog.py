"""inferometer catalog: which models and devices are known, and where does each number come from?"""

from dataclasses import dataclass

import click
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from inferometer.cli.answer import give
from inferometer.cli.flags import json_option
from inferometer.inputs.catalog import (
    find_hardware,
    find_model,
    load_hardware,
    load_models,
    unsourced_constants,
)
from inferometer.inputs.objectives import PresetObjective, find_presets
from inferometer.inputs.types import Constant, HardwareSpec, ModelSpec, Source
from inferometer.perfmodel.kv_cache import kv_bytes_per_token
from inferometer.perfmodel.weights import n_active_parameters, n_parameters
from inferometer.units import (
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_rate,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogModel:
    """A model of the catalogue, and what follows from its shape."""

    model: ModelSpec
    n_parameters: int
    n_active_parameters: int
    kv_bfloat16_bytes_per_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogDevice:
    """A device of the catalogue, and which of its numbers have no source."""

    hardware: HardwareSpec
    unsourced: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogAnswer:
    """What the catalogue knows of what was asked."""

    models: tuple[CatalogModel, ...] = ()
    hardware: tuple[CatalogDevice, ...] = ()
    slos: tuple[PresetObjective, ...] = ()


ANSWER = CatalogAnswer


@click.command(
    "catalog",
    epilog="""\b
Examples:
  inferometer catalog models
  inferometer catalog models qwen2.5-3b
  inferometer catalog hardware h100_sxm
  inferometer catalog slos
""",
)
@click.argument("kind", type=click.Choice(["models", "hardware", "slos"]))
@click.argument("name", required=False, metavar="[ID]")
@json_option
def command(kind: str, name: str | None, *, as_json: bool) -> None:
    """Which models, devices and named objectives are known, and where does each number come from?"""
    if kind == "slos":
        give(CatalogAnswer(slos=find_presets(name)), as_json=as_json, show=_slo_list)
    elif kind == "models":
        models = (find_model(name),) if name else load_models()
        answer = CatalogAnswer(models=tuple(_model(model) for model in models))
        give(answer, as_json=as_json, show=_model_card if name else _model_list)
    else:
        devices = (find_hardware(name),) if name else load_hardware()
        answer = CatalogAnswer(
            hardware=tuple(
                CatalogDevice(hardware=device, unsourced=unsourced_constants(device))
                for device in devices
            )
        )
        give(answer, as_json=as_json, show=_device_card if name else _device_list)


def _model(model: ModelSpec) -> CatalogModel:
    return CatalogModel(
        model=model,
        n_parameters=n_parameters(model),
        n_active_parameters=n_active_parameters(model),
        kv_bfloat16_bytes_per_token=kv_bytes_per_token(model, "bfloat16"),
    )


def _model_list(answer: CatalogAnswer) -> RenderableType:
    table = Table(
        Column("model", no_wrap=True),
        "parameters",
        "active",
        "layers",
        "hidden",
        "heads/KV",
        "KV/token (16 bit)",
        box=None,
        pad_edge=False,
    )
    for entry in answer.models:
        attention = entry.model.attention
        table.add_row(
            entry.model.model_id,
            format_count(entry.n_parameters),
            format_count(entry.n_active_parameters) if entry.model.moe else "all",
            str(entry.model.n_layers),
            str(entry.model.hidden_size),
            "latent" if entry.model.mla else f"{attention.n_heads}/{attention.n_kv_heads}",
            format_bytes(entry.kv_bfloat16_bytes_per_token),
        )
    return table


def _model_card(answer: CatalogAnswer) -> RenderableType:
    (entry,) = answer.models
    model = entry.model
    attention = model.attention
    table = Table(box=None, show_header=False, pad_edge=False)
    rows = [
        ("Hugging Face id", model.hf_id or "unknown"),
        ("parameters", f"{entry.n_parameters:,}"),
        ("active per token", f"{entry.n_active_parameters:,}"),
        ("layers x hidden", f"{model.n_layers} x {model.hidden_size}"),
        (
            "heads, KV heads, head dim",
            f"{attention.n_heads}, {attention.n_kv_heads}, {attention.head_dim}",
        ),
        ("KV cache, 16 bit", f"{entry.kv_bfloat16_bytes_per_token:,} B/token"),
        ("vocabulary", f"{model.vocab_size:,}{' (tied)' if model.tie_word_embeddings else ''}"),
        ("context", f"{model.max_position_tokens:,} tokens"),
        ("source", f"{model.source.kind}: {model.source.where}"),
    ]
    rows += [("note", model.note)] if model.note else []
    for label, text in rows:
        table.add_row(label, Text(text))
    return Group(Text(model.model_id, style="bold"), table)


def _device_list(answer: CatalogAnswer) -> RenderableType:
    table = Table(
        Column("device", no_wrap=True),
        "name",
        "memory",
        "bandwidth",
        "bf16 dense",
        "unsourced",
        box=None,
        pad_edge=False,
    )
    for entry in answer.hardware:
        device = entry.hardware
        peak = device.peak_flop_per_s("bfloat16") or device.peak_flop_per_s("float16")
        table.add_row(
            device.hardware_id,
            device.name,
            format_bytes(device.memory_bytes.value),
            format_rate(device.memory_bytes_per_s.value, "B/s"),
            format_rate(peak.value, "FLOP/s") if peak else "none",
            str(len(entry.unsourced)) if entry.unsourced else "",
        )
    return table


def _slo_list(answer: CatalogAnswer) -> RenderableType:
    table = Table(
        Column("--slo", no_wrap=True),
        Column("promises", no_wrap=True),
        "of",
        box=None,
        pad_edge=False,
    )
    for preset in answer.slos:
        table.add_row(preset.name, preset.text, preset.what)
    sources = dict.fromkeys(
        f"{preset.source.where}, read {preset.source.checked_utc}" for preset in answer.slos
    )
    return Group(table, *(Text(f"SOURCE {source}") for source in sources))


def _device_card(answer: CatalogAnswer) -> RenderableType:
    (entry,) = answer.hardware
    device = entry.hardware
    sources: dict[str, int] = {}
    table = Table("", "value", "source", "note", box=None, pad_edge=False)
    for label, constant, unit in _constants(device):
        shown = _shown(constant.value, unit)
        table.add_row(label, shown, _footnote(constant.source, sources), Text(constant.note or ""))
    for price in device.prices:
        shown = f"{format_number(price.usd_per_hour)} $/h"
        table.add_row(
            "price",
            shown,
            _footnote(price.source, sources),
            Text(f"{price.basis}; {price.date_utc or 'no date'}"),
        )
    notes = [Text(f"[{number}] {where}") for where, number in sources.items()]
    return Group(Text(f"{device.hardware_id}: {device.name}", style="bold"), table, *notes)


def _constants(device: HardwareSpec) -> list[tuple[str, Constant, str]]:
    named: list[tuple[str, Constant | None, str]] = [
        ("memory", device.memory_bytes, "B"),
        ("memory bandwidth", device.memory_bytes_per_s, "B/s"),
        ("link, one way", device.link_bytes_per_s, "B/s"),
        ("PCIe, one way", device.pcie_bytes_per_s, "B/s"),
        ("power", device.power_watt, "W"),
    ]
    named += [(f"{peak.dtype} peak, dense", peak.flop_per_s, "FLOP/s") for peak in device.peaks]
    named += [
        (f"{peak.dtype} best matmul", peak.flop_per_s, "FLOP/s") for peak in device.measured_peaks
    ]
    kernels = device.kernels
    named += [
        (f"{rate.weights} matrices, kernel", rate.flop_per_s, "FLOP/s") for rate in kernels.dense
    ]
    named += [
        (f"{rate.weights} matrices, read", rate.read_bytes_per_s, "B/s") for rate in kernels.dense
    ]
    named += [
        (f"{rate.weights} experts, kernel", rate.flop_per_s, "FLOP/s") for rate in kernels.experts
    ]
    named += [
        (f"{rate.weights} experts, read", rate.read_bytes_per_s, "B/s") for rate in kernels.experts
    ]
    named += [
        ("all-reduce, few KiB", kernels.message_s, "s"),
        ("all-reduce, sent beyond", kernels.reduce_bytes_per_s, "B/s"),
    ]
    return [(label, constant, unit) for label, constant, unit in named if constant is not None]


def _shown(value: float, unit: str) -> str:
    if unit == "s":
        return format_duration(value)
    return format_bytes(value) if unit == "B" else format_rate(value, unit)


def _footnote(source: Source, sources: dict[str, int]) -> Text:
    if source.kind == "unsourced":
        return Text("NONE: from memory")
    number = sources.setdefault(source.where, len(sources) + 1)
    return Text(f"{source.kind} [{number}]")
