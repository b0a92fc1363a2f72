"""Which models, devices, SLOs and workloads are known, and from which sources?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from inferometer.api.answer import Answer
from inferometer.api.question import Option
from inferometer.api.workload_card import (
    CatalogWorkload,
    describe_workload,
    workload_list,
    workload_page,
)
from inferometer.errors import SpecError
from inferometer.inputs.catalog import (
    find_hardware,
    find_model,
    load_hardware,
    load_models,
    unsourced_constants,
)
from inferometer.inputs.objectives import PresetObjective, find_presets
from inferometer.inputs.types import Constant, HardwareSpec, ModelSpec, Source
from inferometer.inputs.workload.reading import preset_names
from inferometer.perfmodel.kv_cache import kv_bytes_per_token
from inferometer.perfmodel.weights import n_active_parameters, n_parameters
from inferometer.report.page import Line, Page
from inferometer.report.tables import TextTable
from inferometer.units import (
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_rate,
)

_KINDS: Final = ("models", "hardware", "slos", "workloads")


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
class CatalogAnswer(Answer):
    """The entries of one kind, or one of them."""

    models: tuple[CatalogModel, ...] = ()
    hardware: tuple[CatalogDevice, ...] = ()
    slos: tuple[PresetObjective, ...] = ()
    workloads: tuple[CatalogWorkload, ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        """A row for each entry."""
        return [row for kind in _KINDS for row in self.rows_of(kind)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """Which part of the catalogue is shown."""

    kind: Annotated[
        Literal["models", "hardware", "slos", "workloads"], Option("", is_argument=True)
    ]
    name: Annotated[str | None, Option("", is_argument=True, metavar="[ID]")] = None
    tokenizer: Annotated[
        tuple[str, ...],
        Option(
            "Of a workload with texts: a tokenizer.json, or a folder with one, that counts its"
            " tokens and is timed; repeatable.",
            heading="Workload",
            metavar="PATH",
        ),
    ] = ()
    given: frozenset[str] = frozenset()


def catalog(question: Catalog) -> CatalogAnswer:
    """The entries of this kind, or the one of this name.

    Raises
    ------
    SpecError
        There is none of this name.
    """
    name = question.name
    if question.kind == "workloads":
        names = preset_names() if name is None else (name,)
        return CatalogAnswer(
            workloads=tuple(describe_workload(one, question.tokenizer) for one in names)
        )
    if question.tokenizer:
        raise SpecError(
            f"{question.kind} have no texts", where="--tokenizer", allowed="catalog workloads FILE"
        )
    if question.kind == "slos":
        return CatalogAnswer(slos=find_presets(name))
    if question.kind == "models":
        models = load_models() if name is None else (find_model(name),)
        return CatalogAnswer(models=tuple(map(_model, models)))
    devices = load_hardware() if name is None else (find_hardware(name),)
    entries = tuple(
        CatalogDevice(hardware=one, unsourced=unsourced_constants(one)) for one in devices
    )
    return CatalogAnswer(hardware=entries)


def catalog_page(answer: CatalogAnswer) -> Page:
    """A row for each entry; of a single one all facts, and their sources."""
    if answer.workloads:
        is_one = len(answer.workloads) == 1
        return workload_page(answer.workloads[0]) if is_one else workload_list(answer.workloads)
    if answer.slos:
        return _slo_page(answer.slos)
    if answer.models:
        return (
            _model_card(answer.models[0]) if len(answer.models) == 1 else _model_list(answer.models)
        )
    return (
        _device_card(answer.hardware[0])
        if len(answer.hardware) == 1
        else _device_list(answer.hardware)
    )


def _model(model: ModelSpec) -> CatalogModel:
    return CatalogModel(
        model=model,
        n_parameters=n_parameters(model),
        n_active_parameters=n_active_parameters(model),
        kv_bfloat16_bytes_per_token=kv_bytes_per_token(model, "bfloat16"),
    )


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> TextTable:
    return TextTable(caption="", header=header, rows=tuple(rows))


def _model_list(entries: tuple[CatalogModel, ...]) -> Page:
    rows = [
        (
            entry.model.model_id,
            format_count(entry.n_parameters),
            format_count(entry.n_active_parameters) if entry.model.moe else "all",
            str(entry.model.n_layers),
            str(entry.model.hidden_size),
            (
                "latent"
                if entry.model.mla
                else f"{entry.model.attention.n_heads}/{entry.model.attention.n_kv_heads}"
            ),
            format_bytes(entry.kv_bfloat16_bytes_per_token),
        )
        for entry in entries
    ]
    header = ("model", "parameters", "active", "layers", "hidden", "heads/KV", "KV/token (16 bit)")
    return Page(title=f"{len(rows)} models are known", table=_table(header, rows))


def _model_card(entry: CatalogModel) -> Page:
    model = entry.model
    attention = model.attention
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
        *([("note", model.note)] if model.note else []),
    ]
    return Page(title=model.model_id, table=_table(("", "value"), rows))


def _device_list(entries: tuple[CatalogDevice, ...]) -> Page:
    rows = list[tuple[str, ...]]()
    for entry in entries:
        device = entry.hardware
        peak = device.peak_flop_per_s("bfloat16") or device.peak_flop_per_s("float16")
        rows.append(
            (
                device.hardware_id,
                device.name,
                format_bytes(device.memory_bytes.value),
                format_rate(device.memory_bytes_per_s.value, "B/s"),
                format_rate(peak.value, "FLOP/s") if peak else "none",
                str(len(entry.unsourced)) if entry.unsourced else "",
            )
        )
    header = ("device", "name", "memory", "bandwidth", "bf16 dense", "unsourced")
    return Page(title=f"{len(rows)} devices are known", table=_table(header, rows))


def _slo_page(presets: tuple[PresetObjective, ...]) -> Page:
    rows = [(preset.name, preset.text, preset.what) for preset in presets]
    sources = dict.fromkeys(
        f"{preset.source.where}, read {preset.source.checked_utc}" for preset in presets
    )
    return Page(
        title=f"{len(rows)} named SLOs are known",
        table=_table(("--slo", "limits", "of"), rows),
        lines=tuple(Line(label="DATA", text=source) for source in sources),
    )


def _device_card(entry: CatalogDevice) -> Page:
    device = entry.hardware
    sources: dict[str, int] = {}
    rows = [
        (
            label,
            _shown(constant.value, unit),
            _footnote(constant.source, sources),
            constant.note or "",
        )
        for label, constant, unit in _constants(device)
    ]
    rows += [
        (
            "price",
            f"{format_number(price.usd_per_hour)} $/h",
            _footnote(price.source, sources),
            f"{price.basis}; {price.date_utc or 'no date'}",
        )
        for price in device.prices
    ]
    return Page(
        title=f"{device.hardware_id}: {device.name}",
        table=_table(("", "value", "source", "note"), rows),
        lines=tuple(
            Line(label="DATA", text=f"[{number}] {where}") for where, number in sources.items()
        ),
    )


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


def _footnote(source: Source, sources: dict[str, int]) -> str:
    if source.kind == "unsourced":
        return "NONE: from memory"
    number = sources.setdefault(source.where, len(sources) + 1)
    return f"{source.kind} [{number}]"
