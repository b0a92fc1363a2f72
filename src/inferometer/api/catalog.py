"""Which models, devices, SLOs and workloads are known, and from which sources?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from inferometer.api.answer import Answer
from inferometer.api.question import Option, option
from inferometer.api.workload import Workload, workload_of
from inferometer.errors import SpecError
from inferometer.inputs.catalog import (
    devices_named,
    find_hardware,
    find_model,
    known_model,
    load_hardware,
    load_models,
    models_named,
    models_of_the_shape,
    unsourced_constants,
)
from inferometer.inputs.objectives import PresetObjective, find_presets
from inferometer.inputs.types import Caution, Constant, HardwareSpec, ModelSpec, Source
from inferometer.inputs.workload import description, reading, replay, traces, types
from inferometer.inputs.workload.own_trace import table_heading
from inferometer.inputs.workload.trace_formats import DOOR, estimated_tokens, text_of_parts
from inferometer.measure.load.bodies import token_pace
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
    format_request_rate,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerCount:
    """Token counts of the texts by one tokenizer, and its speed on this machine."""

    tokenizer: str
    tokens: int
    encode_s: float
    decode_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSummary:
    """Amount of text, in units that do not depend on a tokenizer."""

    n_texts: int
    characters: int
    words: int
    """Between spaces."""
    estimated_tokens: int
    """One token for each 4 characters, rounded up: the basis of this trace's lengths."""
    counts: tuple[TokenizerCount, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogWorkload:
    """A workload in numbers; texts only where its file holds some."""

    name: str
    note: str | None
    plan: description.PlanDescription
    joint: description.JointLengths
    cacheable_fraction: float
    """Share of prompt tokens that an unlimited prefix cache (blocks of 16) would hit."""
    texts: TextSummary | None
    cautions: tuple[Caution, ...]


def describe_workload(name: str, tokenizers: tuple[str, ...]) -> CatalogWorkload:
    """The workload of this name, file or lengths; 2,000 requests of one that has no end.

    Raises
    ------
    SpecError
        There is none, its file cannot be read, or tokenizers are given and it holds no texts.
    """
    spec = workload_of(Workload(workload=name))
    if not _has_instants(spec):
        spec = workload_of(Workload(workload=name, concurrency=1))
    drawn = replay.draw_workload(spec, has_beams=True)
    return CatalogWorkload(
        name=drawn.name,
        note=spec.note,
        plan=description.describe(drawn.plan, is_closed=drawn.n_users is not None),
        joint=description.joint_lengths(drawn.plan),
        cacheable_fraction=description.cacheable_fraction(drawn.plan),
        texts=_texts(spec, tokenizers),
        cautions=drawn.cautions,
    )


def _kind(spec: types.WorkloadSpec) -> types.TraceFormat | None:
    source = spec.replay
    if not isinstance(source, types.TraceSource):
        return None
    return source.format or traces.detect_format(Path(source.path))


def _has_instants(spec: types.WorkloadSpec) -> bool:
    """Has the trace arrival times? Texts and tables of lengths have none."""
    source, kind = spec.replay, _kind(spec)
    if not isinstance(source, types.TraceSource) or kind != "table":
        return kind not in traces.WITH_TEXTS
    _, first = next(DOOR.lines_of(Path(source.path)), (0, b""))
    heading = table_heading(first)
    return heading is None or heading.at is not None


def _texts(spec: types.WorkloadSpec, tokenizers: tuple[str, ...]) -> TextSummary | None:
    source = spec.replay
    if not isinstance(source, types.TraceSource) or _kind(spec) not in traces.WITH_TEXTS:
        if tokenizers:
            raise SpecError(
                f"workload {spec.name!r} holds no texts",
                where="--tokenizer",
                allowed=f"traces with texts: {', '.join(traces.WITH_TEXTS)}",
            )
        return None
    texts = [text_of_parts(one.content) for said in traces.read_texts(source) for one in said]
    paces = [(path, token_pace(path, texts)) for path in tokenizers]
    return TextSummary(
        n_texts=len(texts),
        characters=sum(map(len, texts)),
        words=sum(len(text.split()) for text in texts),
        estimated_tokens=sum(map(estimated_tokens, texts)),
        counts=tuple(
            TokenizerCount(
                tokenizer=path, tokens=pace.n_tokens, encode_s=pace.encode_s, decode_s=pace.decode_s
            )
            for path, pace in paces
        ),
    )


def workload_list(entries: tuple[CatalogWorkload, ...]) -> Page:
    """A row for each preset."""
    rows = [
        (
            one.name,
            *(f"{side.p50_tokens:,.0f} / {side.p99_tokens:,.0f}" for side in _sides(one)),
            _rate(one),
            f"{one.cacheable_fraction:.0%}",
        )
        for one in entries
    ]
    header = ("workload", "prompt p50 / p99", "output p50 / p99", "requests/s", "cacheable")
    table = TextTable(caption="", header=header, rows=tuple(rows))
    return Page(title=f"{len(rows)} workloads are built in", table=table)


def _sides(one: CatalogWorkload) -> tuple[description.LengthSummary, description.LengthSummary]:
    return one.plan.prompt, one.plan.output


def _rate(one: CatalogWorkload) -> str:
    rate = one.plan.rate_per_s
    return "none of its own" if rate is None else format_number(rate)


def workload_page(one: CatalogWorkload) -> Page:
    """A page on one workload."""
    plan = one.plan
    rows = [
        *(
            (
                side,
                (
                    f"mean {of.mean_tokens:,.0f}, p50 {of.p50_tokens:,.0f}, p90"
                    f" {of.p90_tokens:,.0f}, p99 {of.p99_tokens:,.0f}, most {of.max_tokens:,} tokens"
                ),
            )
            for side, of in zip(("prompts", "outputs"), _sides(one), strict=True)
        ),
        ("joint", _correlation(one.joint)),
        *(
            (
                f"prompts of {quarter.from_tokens:,} to {quarter.to_tokens:,}",
                (
                    f"outputs p50 {quarter.output_p50_tokens:,.0f}, p90"
                    f" {quarter.output_p90_tokens:,.0f}"
                ),
            )
            for quarter in one.joint.quarters
        ),
        ("arrivals", _arrivals(plan)),
        ("burstiness", _burstiness(plan)),
        (
            "sharing",
            (
                f"{plan.n_sessions:,} sessions, {plan.n_followers:,} requests follow another;"
                f" {plan.shared_prefix_fraction:.1%} of prompt tokens came before"
            ),
        ),
        (
            "cacheable",
            (
                f"{one.cacheable_fraction:.1%} of prompt tokens, by an endless prefix cache in"
                " blocks of 16"
            ),
        ),
        *(() if one.texts is None else _text_rows(one.texts)),
    ]
    return Page(
        title=f"{one.name}: {plan.n_requests:,} requests of {plan.n_classes} classes and"
        f" {plan.n_tenants} tenants",
        subtitle=one.note or "",
        table=TextTable(caption="", header=("", "value"), rows=tuple(rows)),
        cautions=one.cautions,
    )


def _correlation(joint: description.JointLengths) -> str:
    found = joint.rank_correlation_ratio
    if found is None:
        return "no correlation: one of the lengths is always the same"
    return f"rank correlation of prompt and output {found:.2f}"


def _arrivals(plan: description.PlanDescription) -> str:
    if plan.rate_per_s is None:
        return "all at once, or of users who wait for their answers"
    return f"{format_request_rate(plan.rate_per_s)} over {format_duration(plan.span_s)}"


def _burstiness(plan: description.PlanDescription) -> str:
    cv, low, high = plan.gap_cv_ratio, plan.gap_cv_low_ratio, plan.gap_cv_high_ratio
    if cv is None or low is None or high is None:
        return "not known: fewer than 20 gaps, or none"
    shape = "as a metronome" if cv < 0.05 else f"--burstiness {1 / cv**2:.2g}"
    return f"gaps vary by {cv:.2f} [{low:.2f}, {high:.2f}] of their mean (Poisson: 1; {shape})"


def _text_rows(texts: TextSummary) -> list[tuple[str, str]]:
    rows = [
        (
            "texts",
            (
                f"{texts.n_texts:,} of {texts.characters:,} characters, {texts.words:,} words;"
                f" about {texts.estimated_tokens:,} tokens at 4 characters each"
            ),
        )
    ]
    rows += [
        (
            f"by {one.tokenizer}",
            (
                f"{one.tokens:,} tokens: {texts.characters / one.tokens:.2f} characters,"
                f" {texts.words / one.tokens:.2f} words each;"
                f" tokenised in {format_duration(one.encode_s / one.tokens * 1000)} and"
                f" detokenised in {format_duration(one.decode_s / one.tokens * 1000)} per 1,000"
            ),
        )
        for one in texts.counts
        if one.tokens
    ]
    return rows


_KINDS: Final = ("models", "hardware", "slos", "workloads")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogModel:
    """A model of the catalogue, and numbers that follow from its shape."""

    model: ModelSpec
    also: tuple[str, ...]
    """Hugging Face ids of other models of this shape, which are found by them."""
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
    """The part of the catalogue to show."""

    kind: Annotated[
        Literal["models", "hardware", "slos", "workloads"], Option("", is_argument=True)
    ]
    name: str | None = option(None, "", is_argument=True, metavar="[ID]")
    tokenizer: tuple[str, ...] = option(
        (),
        "A tokenizer.json, or a folder with one: count the tokens of a workload with texts, and"
        " time the tokenizer; repeatable.",
        "Workload",
        metavar="PATH",
    )
    given: frozenset[str] = frozenset()


def catalog(question: Catalog) -> CatalogAnswer:
    """Entries of this kind, the one of this name, or those with its words.

    Raises
    ------
    SpecError
        The catalogue has no entry of this name, nor one like it.
    """
    name = question.name
    if question.kind == "workloads":
        names = reading.preset_names() if name is None else (name,)
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
        return CatalogAnswer(models=tuple(map(_model, _models(name))))
    entries = tuple(
        CatalogDevice(hardware=one, unsourced=unsourced_constants(one)) for one in _devices(name)
    )
    return CatalogAnswer(hardware=entries)


def _models(name: str | None) -> tuple[ModelSpec, ...]:
    """All models, the one of this name, or else those with its words: `qwen`, `llama 70b`."""
    if name is None:
        return load_models()
    alike = () if known_model(name) is not None else models_named(name)
    return tuple(map(find_model, alike or (name,)))


def _devices(name: str | None) -> tuple[HardwareSpec, ...]:
    """All devices, the one of this name, or else those of this maker or with this text."""
    if name is None:
        return load_hardware()
    try:
        return (find_hardware(name, where="NAME"),)
    except SpecError:
        if alike := devices_named(name):
            return alike
        raise


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
        also=models_of_the_shape(model.model_id),
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
            attention.shape_text if model.n_attention_layers else "none: no layer attends",
        ),
        ("KV cache, 16 bit", f"{entry.kv_bfloat16_bytes_per_token:,} B/token"),
        ("vocabulary", f"{model.vocab_size:,}{' (tied)' if model.tie_word_embeddings else ''}"),
        ("context", f"{model.max_position_tokens:,} tokens"),
        ("source", f"{model.source.kind}: {model.source.where}"),
        *([("note", model.note)] if model.note else []),
        *([("of this shape, too", ", ".join(entry.also))] if entry.also else []),
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
    header = ("device", "name", "memory", "bandwidth", "16-bit dense", "unsourced")
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
        subtitle=device.note or "",
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
        ("devices that it joins", device.linked_devices, ""),
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
