"""How does a prediction look in the terminal: the answer, then sizes, bounds, and what would change it?"""

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inferometer.api.prediction import PredictAnswer, WhatIfRow
from inferometer.perfmodel.datasheet import DatasheetPrediction, PhaseAnswer
from inferometer.perfmodel.memory import how_it_fits
from inferometer.stats.estimate import Estimate
from inferometer.units import (
    format_bytes,
    format_count,
    format_duration,
    format_fraction,
    format_number,
    format_rate,
)

_ABSENT = "not known"
_MOST_NAMES = 8


def predict_text(answer: PredictAnswer) -> RenderableType:
    """The whole prediction."""
    sheet = answer.datasheet
    parts: list[RenderableType] = [
        Text(_headline(answer), style="bold"),
        *(Text(line) for line in _lines(answer)),
        Text(""),
        _speeds(answer),
    ]
    parts += [Text(""), _sizes(sheet), Text(""), _bounds(sheet)]
    if answer.sparsity is not None:
        parts += [Text(""), _gains("2:4 sparsity against dense", (answer.sparsity,))]
    if answer.what_ifs:
        parts += [Text(""), _gains("what if", answer.what_ifs)]
    of = "" if answer.fitted is None else "on what is by datasheet: "
    parts += [Text(f"CAUTION {of}{caution}") for caution in sheet.cautions]
    return Group(*parts)


def _headline(answer: PredictAnswer) -> str:
    """Whether it fits, and if so how fast it is: the sentence that was asked for."""
    scenario, memory = answer.datasheet.scenario, answer.datasheet.sizes.memory
    devices = f"{scenario.n_devices} x " if scenario.n_devices > 1 else ""
    server = (
        f"{scenario.model.model_id} {scenario.engine.formats} on {devices}{scenario.hardware.name}"
    )
    if not memory.fits:
        each = " each" if scenario.n_devices > 1 else ""
        needed = format_bytes(memory.total_bytes - memory.free_bytes)
        return (
            f"ANSWER {server} does not fit: {needed}{each} are needed,"
            f" {format_bytes(memory.total_bytes)} are there"
        )
    ttft_s, tpot_s, decode = _answered(answer)
    asked = (
        f"{scenario.prompt_tokens:,} tokens in, {scenario.output_tokens:,} out,"
        f" {scenario.batch_size:,} at once"
    )
    likely = (
        f"TTFT {format_duration(ttft_s.value)}, TPOT {format_duration(tpot_s.value)},"
        f" {format_number(decode.value)} output tok/s"
    )
    return f"ANSWER {server}, {asked}: {likely}"


def _lines(answer: PredictAnswer) -> list[str]:
    sheet, fitted = answer.datasheet, answer.fitted
    if fitted is not None and fitted.reservations:
        trust = "; ".join(
            (
                *fitted.reservations,
                *(
                    [f"OUTSIDE what the fit was checked on: {fitted.outside_why}"]
                    if fitted.outside_why
                    else []
                ),
            )
        )
    elif fitted is not None and fitted.outside_why:
        trust = f"fitted, but OUTSIDE what the fit was checked on: {fitted.outside_why}"
    elif fitted is not None:
        trust = "fitted to measurements, within the shapes in which it was checked; 90 % intervals"
    elif answer.basis == "measured ceilings":
        trust = (
            "this machine's measured ceilings; how much of them the engine gets was not measured"
        )
    else:
        trust = "the datasheet alone: nothing was measured, so intervals are wide"
    by = (
        (sheet.prefill.bound.bound_by, sheet.decode.bound.bound_by)
        if fitted is None
        else (fitted.prefill_limited_by, fitted.decode_limited_by)
    )
    largest = sheet.sizes.largest_batch_size
    batch = f"at most {largest:,} at once fit" if largest else "not even one request fits"
    lines = [f"LIMIT  prefill: {by[0]}, decode: {by[1]}; {batch} in memory", f"TRUST  {trust}"]
    if sheet.sizes.memory.fits:
        return lines
    fewer = f"; or {largest:,} at once (--batch)" if largest else ""
    return [
        *lines,
        (
            f"NEXT   {how_it_fits(answer.fewest_tensor_parallel)}{fewer}; times below are as if it"
            " fitted"
        ),
    ]


def _answered(answer: PredictAnswer) -> tuple[Estimate, Estimate, Estimate]:
    """TTFT, TPOT and the output rate while decoding, by the fit where there is one."""
    said = answer.fitted or answer.datasheet.speeds
    return said.ttft_s, said.tpot_s, said.decode_tokens_per_s


def _speeds(answer: PredictAnswer) -> RenderableType:
    speeds, costs, fitted = answer.datasheet.speeds, answer.datasheet.costs, answer.fitted
    table = Table("", "likely", "between", box=None, pad_edge=False)
    ttft_s, tpot_s, decode = _answered(answer)
    table.add_row("TTFT", *_with_range(ttft_s, format_duration))
    table.add_row("TPOT", *_with_range(tpot_s, format_duration))
    table.add_row("output tok/s, decoding", *_with_range(decode, format_number))
    by = ", by datasheet" if fitted else ""
    table.add_row(
        f"output tok/s, prefill too{by}", *_with_range(speeds.output_tokens_per_s, format_number)
    )
    if fitted is None:  # a fit has its own idea of what the ceilings give
        table.add_row("MBU of decode", *_with_range(speeds.mbu_fraction, format_fraction))
        table.add_row("MFU of prefill", *_with_range(speeds.mfu_fraction, format_fraction))
    if costs.usd_per_million_tokens is not None and costs.price is not None:
        table.add_row(
            f"$ / 1M output tokens{by}", *_with_range(costs.usd_per_million_tokens, format_number)
        )
        table.add_row(
            "",
            Text(f"at {format_number(costs.price.usd_per_hour)} $/h"),
            Text(f"{costs.price.basis}"),
        )
    if costs.joule_per_million_tokens is not None:
        table.add_row(
            f"kWh / 1M output tokens{by}",
            *_with_range(costs.joule_per_million_tokens.scaled(1 / 3.6e6), format_number),
        )
    return table


def _with_range(estimate: Estimate, write: Callable[[float], str]) -> tuple[str, str]:
    if estimate.low is None or estimate.high is None:
        return write(estimate.value), _ABSENT
    return write(estimate.value), f"{write(estimate.low)} to {write(estimate.high)}"


def _sizes(sheet: DatasheetPrediction) -> RenderableType:
    sizes = sheet.sizes
    table = Table(box=None, show_header=False, pad_edge=False)
    active = (
        f", {format_count(sizes.n_active_parameters)} active"
        if sizes.n_active_parameters != sizes.n_parameters
        else ""
    )
    rows = [
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
    for label, text in rows:
        table.add_row(label, text)
    return table


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


def _bounds(sheet: DatasheetPrediction) -> RenderableType:
    table = Table(
        "one step, at the peaks",
        "FLOP",
        "bytes",
        "compute",
        "memory",
        "links",
        "bound by",
        box=None,
        pad_edge=False,
    )
    for name, phase in (("prefill", sheet.prefill), ("decode", sheet.decode)):
        table.add_row(name, *_bound_cells(phase))
    return table


def _bound_cells(phase: PhaseAnswer) -> tuple[str, ...]:
    work, bound = phase.work, phase.bound
    times = (bound.compute_s, bound.memory_s, bound.link_s)
    return (
        format_rate(work.total_flop, "FLOP"),
        format_bytes(work.memory_bytes),
        *(format_duration(time_s) if time_s else "none" for time_s in times),
        bound.bound_by,
    )


def _gains(title: str, rows: tuple[WhatIfRow, ...]) -> RenderableType:
    table = Table(
        title,
        "TTFT",
        "TPOT",
        "tok/s per device",
        "weights saved",
        "needs",
        box=None,
        pad_edge=False,
    )
    for row in rows:
        gains = (row.ttft_gain_ratio, row.tpot_gain_ratio, row.throughput_gain_ratio)
        saved = (
            f"{format_bytes(row.weight_bytes_saved)} ({row.weight_saved_fraction:.0%})"
            if row.weight_bytes_saved
            else "none"
        )
        table.add_row(
            row.name, *(f"{gain.value:.2f}x" for gain in gains), saved, Text(row.needs or "")
        )
    newly = [
        Text(f"{row.name} makes it fit on {_few(row.newly_fits_on)}")
        for row in rows
        if row.newly_fits_on
    ]
    return Group(table, *newly)


def _few(names: tuple[str, ...]) -> str:
    rest = (
        f" and {len(names) - _MOST_NAMES} more (--json lists them)"
        if len(names) > _MOST_NAMES
        else ""
    )
    return ", ".join(names[:_MOST_NAMES]) + rest
