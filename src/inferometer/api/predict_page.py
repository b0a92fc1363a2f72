"""What is there to read of a prediction: how fast, what limits it, and what would change it?"""

from collections.abc import Callable
from typing import Final

from inferometer.api.named_fit import UNKNOWN_ARCHITECTURE
from inferometer.api.prediction import (
    MeasuredDecode,
    PredictAnswer,
    PredictedLimit,
    PredictedSlo,
    WhatIfRow,
)
from inferometer.inputs.types import Caution
from inferometer.measure.this_machine import ceiling_cautions
from inferometer.perfmodel.datasheet import (
    STEP_TIME_CAUTIONS,
    DatasheetPrediction,
    PhaseAnswer,
)
from inferometer.perfmodel.memory import how_it_fits
from inferometer.perfmodel.roofline import WITHIN_LINK
from inferometer.perfmodel.whatif import BestSpeculation
from inferometer.report.charts.roofline import PhaseBounds, bounds_chart
from inferometer.report.page import (
    Chip,
    Number,
    Page,
    Section,
    duration_number,
    lines_of,
    rate_number,
)
from inferometer.report.request_tables import reading_text
from inferometer.report.tables import TextTable
from inferometer.report.views import FactGroup
from inferometer.stats.estimate import Estimate
from inferometer.units import (
    format_bytes,
    format_count,
    format_duration,
    format_fraction,
    format_number,
    format_rate,
    format_request_rate,
)

_ABSENT: Final = "not known"
_MOST_NAMES: Final = 8
_SHOWN_GAIN: Final = 1.05
_BASES: Final = {
    "datasheet": "by datasheet",
    "measured ceilings": "by measured ceilings",
    "published": "by published runs",
    "fitted": "by the fit",
}


def predict_page(answer: PredictAnswer) -> Page:
    """The whole prediction."""
    sheet, memory = answer.datasheet, answer.datasheet.sizes.memory
    rows = answer.what_ifs if answer.sparsity is None else (answer.sparsity, *answer.what_ifs)
    bounds = (("prefill", sheet.prefill.bound), ("decode", sheet.decode.bound))
    chart = bounds_chart(
        [PhaseBounds(name, one.compute_s, one.memory_s, one.link_s) for name, one in bounds]
    )
    return Page(
        title=_title(answer),
        subtitle=_subtitle(answer),
        chips=(*([_chip(sheet)] if _knows_model(sheet) else []), *_slo_chip(answer)),
        numbers=_numbers(answer),
        chart=chart,
        lines=lines_of(
            ("LIMIT", _limit(answer)),
            ("SLO", "" if answer.slo is None else "\n".join(map(_of_slo, answer.slo.limits))),
            ("MBU", "" if answer.measured is None else _measured(answer.measured)),
            ("DRAFTS", "" if answer.speculation is None else _drafts(answer.speculation)),
            ("OR", "\n".join(_best_changes(answer.what_ifs))),
            ("TRUST", _trust(answer)),
            ("NEXT", "" if memory.fits else _how_it_fits(answer)),
        ),
        cautions=_cautions(answer),
        sections=(
            Section(
                id="speeds",
                title="How fast, between which bounds?",
                nav="Speed",
                charts=(chart,),
                tables=(_speeds(answer), _bounds(sheet)),
            ),
            Section(
                id="memory",
                title="What does the memory hold?",
                nav="Memory",
                groups=(FactGroup(title="Memory of one device", facts=tuple(_sizes(sheet))),),
            ),
            Section(
                id="what-if",
                title="What would change it?",
                nav="What if",
                tables=(
                    *((_gains(rows),) if rows else ()),
                    *(() if answer.speculation is None else (_draft_lengths(answer.speculation),)),
                ),
            ),
        ),
    )


def _chip(sheet: DatasheetPrediction) -> Chip:
    if sheet.sizes.memory.fits:
        return Chip(verdict="fits", text="fits in memory")
    return Chip(verdict="missed", text=_too_much(sheet))


def _slo_chip(answer: PredictAnswer) -> tuple[Chip, ...]:
    if answer.slo is None:
        return ()
    return (Chip(verdict=answer.slo.verdict, text=f"SLO {answer.slo.verdict}"),)


def _of_slo(one: PredictedLimit) -> str:
    return f"{one.threshold.text} {one.verdict}: {one.predicted_s.text(format_duration)}"


def _cautions(answer: PredictAnswer) -> tuple[Caution, ...]:
    """Cautions of the datasheet; with fitted step times only those on the what-ifs."""
    texts = answer.datasheet.cautions
    if answer.basis == "fitted":  # a measured group has its network in it
        texts = tuple(text for text in texts if not text.endswith(WITHIN_LINK))
    if answer.fitted is not None:
        of_steps = STEP_TIME_CAUTIONS if answer.what_ifs else frozenset[str]()
        texts = tuple(
            f"on what the changes gain, by datasheet: {text}" if text in of_steps else text
            for text in texts
            if text in of_steps or text not in STEP_TIME_CAUTIONS
        )
    return (
        *(() if answer.fitted else ceiling_cautions(answer.datasheet.scenario.hardware)),
        *(Caution(code="datasheet", text=text, remedy="") for text in texts),
    )


def _title(answer: PredictAnswer) -> str:
    """Whether it fits, and how fast it is."""
    scenario = answer.datasheet.scenario
    devices = f"{scenario.n_devices} × " if scenario.n_devices > 1 else ""
    server = f"{scenario.model.model_id} on {devices}{scenario.hardware.name}"
    if not answer.datasheet.sizes.memory.fits:
        return f"{server} does not fit"
    speeds = answer.answered
    if speeds.tpot_s is None or speeds.decode_tokens_per_s is None:
        return (
            f"{server}: TTFT {format_duration(speeds.ttft_s.value)},"
            f" {format_request_rate(speeds.output_tokens_per_s.value)}"
        )
    return (
        f"{server}: TTFT {format_duration(speeds.ttft_s.value)},"
        f" TPOT {format_duration(speeds.tpot_s.value)},"
        f" {format_number(speeds.decode_tokens_per_s.value)} tok/s decoding"
    )


def _has_decode(answer: PredictAnswer) -> bool:
    """Is there a second output token, so that there is a decode?"""
    return answer.datasheet.scenario.output_tokens > 1


def _subtitle(answer: PredictAnswer) -> str:
    scenario = answer.datasheet.scenario
    heads = scenario.model.attention
    windowed = (
        f" · each layer attends to {heads.sliding_window_tokens:,} tokens"
        if heads.sliding_window_tokens and heads.n_full_attention_layers == 0
        else ""
    )
    return (
        f"{scenario.engine.formats}{windowed} · {scenario.prompt_tokens:,} tokens in,"
        f" {scenario.output_tokens:,} out, {scenario.batch_size:,} at once · {_BASES[answer.basis]}"
    )


def _too_much(sheet: DatasheetPrediction) -> str:
    memory = sheet.sizes.memory
    each = " each" if sheet.scenario.n_devices > 1 else ""
    needed = format_bytes(memory.total_bytes - memory.free_bytes)
    return f"does not fit: {needed}{each} are needed, {format_bytes(memory.total_bytes)} are there"


def _numbers(answer: PredictAnswer) -> tuple[Number, ...]:
    speeds, sheet = answer.answered, answer.datasheet
    mbu = sheet.speeds.mbu_fraction.scaled(100)
    per_user, paid = speeds.tokens_per_s_per_user, sheet.costs.price
    devices = f"{sheet.scenario.n_devices} × " if sheet.scenario.n_devices > 1 else ""
    price = "" if paid is None else f"at {devices}{format_number(paid.usd_per_hour)} $/h"
    cost = rate_number("cost of 1M output tok", speeds.usd_per_million_tokens, "$", note=price)
    limits = {} if answer.slo is None else _nearest_limits(answer.slo)
    if per_user is None:
        return (
            *duration_number("TTFT", speeds.ttft_s, limit_s=limits.get("ttft")),
            *rate_number("answered", speeds.output_tokens_per_s, "requests/s"),
            *cost,
        )
    return (
        *duration_number("TTFT", speeds.ttft_s, limit_s=limits.get("ttft")),
        *duration_number("TPOT", speeds.tpot_s, limit_s=limits.get("tpot")),
        *duration_number("E2E", speeds.e2e_s, limit_s=limits.get("e2e")),
        *rate_number("per user", per_user, "tok/s", note=reading_text(per_user.value)),
        *rate_number("output, decoding", speeds.decode_tokens_per_s, "tok/s"),
        *(() if answer.fitted else rate_number("MBU of decode", mbu, "%")),
        *cost,
    )


def _nearest_limits(slo: PredictedSlo) -> dict[str, float]:
    """The lowest limit of each latency, in seconds."""
    limits = dict[str, float]()
    for one in slo.limits:
        metric, limit_s = one.threshold.metric, one.threshold.limit_s
        limits[metric] = min(limit_s, limits.get(metric, limit_s))
    return limits


def _knows_model(sheet: DatasheetPrediction) -> bool:
    return sheet.scenario.model.architecture != UNKNOWN_ARCHITECTURE


def _limit(answer: PredictAnswer) -> str:
    sheet, fitted = answer.datasheet, answer.fitted
    prefill, decode = (
        (sheet.prefill.bound.bound_by, sheet.decode.bound.bound_by)
        if fitted is None
        else (fitted.prefill_limited_by, fitted.decode_limited_by)
    )
    stages = (
        f"prefill: {prefill}, decode: {decode}" if _has_decode(answer) else f"prefill: {prefill}"
    )
    if not _knows_model(sheet):
        return f"{stages}; memory: the fit does not tell the model"
    largest = sheet.sizes.largest_batch_size
    batch = f"at most {largest:,} at once fit" if largest else "not even one request fits"
    return f"{stages}; {batch} in memory"


def _measured(found: MeasuredDecode) -> str:
    return (
        f"{format_fraction(found.mbu_fraction)} of the bandwidth in {format_duration(found.tpot_s)}"
        f" as measured: {format_number(found.bound_ratio)}x the bound at the datasheet's peaks"
    )


def _drafts(found: BestSpeculation) -> str:
    """The best number of draft tokens, its gain, and its largest batch."""
    best, length, chance = found.best, found.best_length, found.acceptance
    name = found.draft_model or found.method
    low, high = found.break_even_low_batch, found.break_even_high_batch
    best_n = max(found.lengths, key=lambda one: one.tpot_gain_ratio).n_draft_tokens
    is_best = best_n == best.n_draft_tokens
    number = f"best at {best_n}" if is_best else f"{best.n_draft_tokens} (best: {best_n})"
    batch = (
        "no batch gains"
        if not found.break_even_batch
        else f"all batches that fit gain (up to {found.largest_batch:,})"
        if low >= found.largest_batch
        else f"it gains up to {found.break_even_batch:,} at once [{low:,}, {high:,}] of"
        f" {found.largest_batch:,} that fit, while the device has room"
    )
    return (
        f"{name}: {number} tokens of {best.draft_cost_ratio:.2f} steps,"
        f" acceptance {chance.likely_fraction:g} [{chance.low_fraction:g},"
        f" {chance.high_fraction:g}] ({found.acceptance_from}): TPOT"
        f" {length.tpot_gain_ratio:.2f}x [{length.low_ratio:.2f}, {length.high_ratio:.2f}];"
        f" {batch}; needs {found.needs}"
    )


def _draft_lengths(found: BestSpeculation) -> TextTable:
    rows = tuple(
        (
            str(one.n_draft_tokens),
            f"{one.tpot_gain_ratio:.2f}x",
            f"{one.low_ratio:.2f}x to {one.high_ratio:.2f}x",
        )
        for one in found.lengths
    )
    return TextTable(
        caption="What drafts would gain", header=("draft tokens", "TPOT", "between"), rows=rows
    )


def _how_it_fits(answer: PredictAnswer) -> str:
    largest = answer.datasheet.sizes.largest_batch_size
    fewer = f"; or {largest:,} at once (--batch)" if largest else ""
    group, quantized = answer.smallest_group, answer.fitting_quantization
    bits = "" if quantized is None else f"; or --quantization {quantized} on these devices"
    fits = (
        how_it_fits(None if group is None else group.flags)
        if group is not None or quantized is None
        else f"--quantization {quantized}, which fits"
    )
    return f"{fits}{bits if group is not None else ''}{fewer}; times are as if it fitted"


def _best_changes(rows: tuple[WhatIfRow, ...]) -> list[str]:
    """The two changes that gain most per device."""
    best = sorted(rows, key=lambda row: -row.throughput_gain_ratio.value)[:2]
    return [
        f"{row.name}: {row.throughput_gain_ratio.value:.2f}x tok/s per device, TPOT"
        f" {row.tpot_gain_ratio.value:.2f}x" + (f" (needs {row.needs})" if row.needs else "")
        for row in best
        if row.throughput_gain_ratio.value > _SHOWN_GAIN
    ]


def _trust(answer: PredictAnswer) -> str:
    fitted = answer.fitted
    if answer.basis == "published" and fitted is not None:
        beyond = f"; OUTSIDE these rows: {fitted.outside_why}" if fitted.outside_why else ""
        return f"{fitted.origin}; 90 % intervals{beyond}"
    if fitted is not None and fitted.reservations:
        outside = (
            [f"OUTSIDE what the fit was checked on: {fitted.outside_why}"]
            if fitted.outside_why
            else []
        )
        return "; ".join((*fitted.reservations, *outside))
    if fitted is not None and fitted.outside_why:
        return f"fitted, but OUTSIDE what the fit was checked on: {fitted.outside_why}"
    if fitted is not None:
        return "fitted to measurements, within the shapes in which it was checked; 90 % intervals"
    return _trust_in_peaks(answer)


def _trust_in_peaks(answer: PredictAnswer) -> str:
    if answer.basis == "measured ceilings":
        return "this machine's measured ceilings; how much of them the engine gets was not measured"
    if answer.without_published is not None:
        return (
            f"the datasheet alone, since published rows have no {answer.without_published}: wide"
            " intervals; compare with answers that have --datasheet too"
        )
    return "the datasheet alone: nothing was measured, so intervals are wide"


def _speeds(answer: PredictAnswer) -> TextTable:
    speeds, sheet = answer.answered, answer.datasheet
    rows = list[tuple[str, str, str]]()

    def row(name: str, estimate: Estimate, write: Callable[[float], str]) -> None:
        rows.append((name, *_with_range(estimate, write)))

    row("TTFT", speeds.ttft_s, format_duration)
    if speeds.tpot_s is not None and speeds.decode_tokens_per_s is not None:
        row("TPOT", speeds.tpot_s, format_duration)
        row("E2E", speeds.e2e_s, format_duration)
        row("output tok/s, decoding", speeds.decode_tokens_per_s, format_number)
    row("output tok/s, prefill too", speeds.output_tokens_per_s, format_number)
    if answer.fitted is None:  # a fit has its own idea of what the ceilings give
        if _has_decode(answer):
            row("MBU of decode", sheet.speeds.mbu_fraction, format_fraction)
        row("MFU of prefill", sheet.speeds.mfu_fraction, format_fraction)
    paid = sheet.costs.price
    if speeds.usd_per_million_tokens is not None and paid is not None:
        row("$ / 1M output tokens", speeds.usd_per_million_tokens, format_number)
        rows.append(("price of a device", f"{format_number(paid.usd_per_hour)} $/h", paid.basis))
    if speeds.joule_per_million_tokens is not None:
        kwh = speeds.joule_per_million_tokens.scaled(1 / 3.6e6)
        row("kWh / 1M output tokens", kwh, format_number)
    return TextTable(caption="Speed", header=("", "likely", "between"), rows=tuple(rows))


def _with_range(estimate: Estimate, write: Callable[[float], str]) -> tuple[str, str]:
    if estimate.low is None or estimate.high is None:
        return write(estimate.value), _ABSENT
    return write(estimate.value), f"{write(estimate.low)} to {write(estimate.high)}"


def _sizes(sheet: DatasheetPrediction) -> list[tuple[str, str]]:
    sizes = sheet.sizes
    active = (
        f", {format_count(sizes.n_active_parameters)} active"
        if sizes.n_active_parameters != sizes.n_parameters
        else ""
    )
    return [
        ("parameters", f"{format_count(sizes.n_parameters)}{active}"),
        ("weights, one device", format_bytes(sizes.weight_bytes)),
        ("KV cache per token", f"{sizes.kv_bytes_per_token:,} B"),
        ("memory of one device", _memory_sentence(sheet)),
        (
            "largest batch that fits",
            str(sizes.largest_batch_size) if sizes.largest_batch_size else "none",
        ),
        (
            "logits of all positions",
            (
                f"{format_bytes(sizes.logits.all_bytes)}; last only"
                f" {format_bytes(sizes.logits.last_bytes)}"
            ),
        ),
    ]


def _memory_sentence(sheet: DatasheetPrediction) -> str:
    memory = sheet.sizes.memory
    used = f"weights {format_bytes(memory.weight_bytes)} + KV {format_bytes(memory.kv_bytes)}"
    used += (
        f" + activations {format_bytes(memory.activation_bytes)} + reserve"
        f" {format_bytes(memory.reserve_bytes)}"
    )
    left = (
        f"{format_bytes(memory.free_bytes)} free"
        if memory.fits
        else f"{format_bytes(-memory.free_bytes)} TOO MUCH"
    )
    return f"{used} of {format_bytes(memory.total_bytes)}: {left}"


def _bounds(sheet: DatasheetPrediction) -> TextTable:
    header = (
        *("one step, at the peaks", "FLOP", "bytes", "compute", "memory", "links"),
        "bound by",
    )
    phases = (("prefill", sheet.prefill), ("decode", sheet.decode))
    rows = tuple((name, *_bound_cells(phase)) for name, phase in phases)
    return TextTable(caption="Bounds of one step", header=header, rows=rows)


def _bound_cells(phase: PhaseAnswer) -> tuple[str, ...]:
    work, bound = phase.work, phase.bound
    times = (bound.compute_s, bound.memory_s, bound.link_s)
    return (
        format_rate(work.total_flop, "FLOP"),
        format_bytes(work.memory_bytes),
        *(format_duration(time_s) if time_s else "none" for time_s in times),
        bound.bound_by,
    )


def _gains(rows: tuple[WhatIfRow, ...]) -> TextTable:
    header = (
        "change",
        "TTFT",
        "TPOT",
        "tok/s per device",
        "weights saved",
        "needs",
        "makes it fit on",
    )
    cells = tuple(
        (
            row.name,
            *(
                f"{gain.value:.2f}x"
                for gain in (row.ttft_gain_ratio, row.tpot_gain_ratio, row.throughput_gain_ratio)
            ),
            f"{format_bytes(row.weight_bytes_saved)} ({row.weight_saved_fraction:.0%})"
            if row.weight_bytes_saved
            else "none",
            row.needs or "",
            _few(row.newly_fits_on),
        )
        for row in rows
    )
    return TextTable(caption="What a change would gain", header=header, rows=cells)


def _few(names: tuple[str, ...]) -> str:
    rest = (
        f" and {len(names) - _MOST_NAMES} more (--json lists them)"
        if len(names) > _MOST_NAMES
        else ""
    )
    return ", ".join(names[:_MOST_NAMES]) + rest
