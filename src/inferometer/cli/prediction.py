"""What does a prediction hold: the datasheet's answer, a fitted model's where there is one, and what changes would gain?"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from inferometer.errors import SpecError
from inferometer.fit import server_fit
from inferometer.perfmodel import steptime, steptime_file, types
from inferometer.perfmodel.datasheet import DatasheetPrediction
from inferometer.perfmodel.scenario import Scenario
from inferometer.perfmodel.whatif import (
    Change,
    newly_fits_on,
    what_if,
    with_devices,
    with_kv_dtype,
    with_prefix_hits,
    with_quantization,
    with_sparsity,
)
from inferometer.spec import catalog
from inferometer.spec.types import ModelSpec
from inferometer.stats.estimate import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedSpeeds:
    """What a model fitted to measurements says; outside its box the interval is wide and ``outside_why`` says what is outside."""

    ttft_s: Estimate
    tpot_s: Estimate
    tokens_per_s_per_user: Estimate
    decode_tokens_per_s: Estimate
    prefill_limited_by: types.Limit
    decode_limited_by: types.Limit
    is_inside_box: bool
    outside_why: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfRow:
    """What a change would gain by the datasheets: ratios above 1 are better. ``needs`` says what must be true or done first."""

    name: str
    needs: str | None
    ttft_gain_ratio: Estimate
    tpot_gain_ratio: Estimate
    throughput_gain_ratio: Estimate
    weight_bytes_saved: int
    weight_saved_fraction: float
    """Of the weights of each device."""
    newly_fits_on: tuple[str, ...]
    """Devices of the catalogue on which it fits with the change and not without, in the same number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictAnswer:
    """Everything that is predicted. ``basis`` says from what the headline comes: a datasheet, ceilings measured here, or a fit."""

    basis: Literal["datasheet", "measured ceilings", "fitted"]
    datasheet: DatasheetPrediction
    fitted: FittedSpeeds | None
    sparsity: WhatIfRow | None
    """What --sparsity gains over the same scenario with dense weights."""
    what_ifs: tuple[WhatIfRow, ...]


def fitted_speeds(model: steptime.StepTimeModel, scenario: Scenario) -> FittedSpeeds:
    """What the fitted model says of the scenario's static batch.

    Raises
    ------
    SpecError
        It was fitted to another model or another engine configuration.
    """
    check_fit_of(model, scenario.model)
    asked, known = scenario.engine, model.engine
    if (asked.dtype, asked.tensor_parallel_size) != (known.dtype, known.tensor_parallel_size):
        raise SpecError(
            f"the fit is one of {known.dtype} with tp {known.tensor_parallel_size}, "
            f"asked is {asked.dtype} with tp {asked.tensor_parallel_size}",
            where="--fit",
            try_=f"--dtype {known.dtype} --tp {known.tensor_parallel_size}, or the answer of the datasheet without --fit",
        )
    if asked.device != known.device:
        raise SpecError(
            f"the fit is one of a {known.device} ({model.trained_on.hardware or 'not named'}), asked is a {asked.device}",
            where="--fit, --hardware",
            allowed="the kind of device that was measured",
            try_="a sweep on the device asked about, or the answer of the datasheet without --fit",
        )
    prefill, decode = model.predict_all(
        [
            types.prefill_shape(batch_size=scenario.batch_size, prompt_tokens=scenario.prompt_tokens),
            types.decode_shape(batch_size=scenario.batch_size, context_tokens=scenario.mean_context_tokens),
        ]
    )
    reasons = [said.outside_why for said in (prefill, decode) if said.outside_why]
    outside_s = 0.0 if model.front_end_s is None else model.front_end_s.value
    return FittedSpeeds(
        ttft_s=prefill.duration_s.scaled(1 + outside_s / prefill.duration_s.value),
        tpot_s=decode.duration_s,
        tokens_per_s_per_user=decode.duration_s.inverted(),
        decode_tokens_per_s=decode.duration_s.inverted(scenario.batch_size),
        prefill_limited_by=prefill.limited_by,
        decode_limited_by=decode.limited_by,
        is_inside_box=prefill.is_inside_box and decode.is_inside_box,
        outside_why="; ".join(dict.fromkeys(reasons)) or None,
    )


def speeds_at(path: Path, scenario: Scenario) -> FittedSpeeds:
    """What the fit at ``path`` says of the scenario's static batch: one of sweeps, or of load tests."""
    if scenario.is_sparse:
        raise SpecError("the fit is one of dense weights", where="--fit, --sparsity", try_="--sparsity without --fit")
    if server_fit.is_server_fit(path):
        return server_speeds(server_fit.load_server_fit(path), scenario)
    return fitted_speeds(steptime_file.load_step_time_model(path), scenario)


def server_speeds(fit: server_fit.ServerFit, scenario: Scenario) -> FittedSpeeds:
    """What a server that was fitted to load tests says of the scenario's static batch, its front end included.

    Raises
    ------
    SpecError
        It was fitted to another model, or the batch has more sequences than it has seats.
    """
    if fit.model is not None:
        check_model(fit.model, scenario.model)
    n_seats = int(fit.knob("max_num_seqs"))
    if scenario.batch_size > n_seats:
        raise SpecError(f"{scenario.batch_size} sequences at once", where="--batch, --fit", allowed=f"the server's {n_seats} seats")
    prefill = types.prefill_shape(batch_size=scenario.batch_size, prompt_tokens=scenario.prompt_tokens)
    decode = types.decode_shape(batch_size=scenario.batch_size, context_tokens=scenario.mean_context_tokens)
    tpot = fit.step_estimate(decode)
    within = prefill.prefill_tokens <= int(fit.knob("max_num_batched_tokens")) and scenario.mean_context_tokens <= fit.seen.longest_tokens
    return FittedSpeeds(
        ttft_s=fit.step_estimate(prefill, further_s=fit.front_end_s),
        tpot_s=tpot,
        tokens_per_s_per_user=tpot.inverted(),
        decode_tokens_per_s=tpot.inverted(scenario.batch_size),
        prefill_limited_by="undecided",
        decode_limited_by="undecided",
        is_inside_box=within,
        outside_why=None if within else "prompts that the server computes in several steps, or longer ones than it was asked",
    )


def check_fit_of(fit: steptime.StepTimeModel, asked: ModelSpec) -> None:
    """Is this fit one of the model asked about?

    Raises
    ------
    SpecError
        It is one of another model.
    """
    check_model(fit.model, asked)


def check_model(fitted: ModelSpec, asked: ModelSpec) -> None:
    """Is the fitted model the one asked about?

    Raises
    ------
    SpecError
        It is another one.
    """
    if (fitted.n_layers, fitted.hidden_size) != (asked.n_layers, asked.hidden_size):
        raise SpecError(
            f"the fit is one of {fitted.model_id!r}, asked is {asked.model_id!r}",
            where="--fit",
            allowed="a fit of the model asked about",
            try_="inferometer sweep, then inferometer fit",
        )


def sparsity_gain(scenario: Scenario) -> WhatIfRow | None:
    """What the scenario's 2:4 sparsity gains over dense weights; None where its weights are dense."""
    if not scenario.is_sparse:
        return None
    dense = replace(scenario, is_sparse=False)
    return _row(dense, with_sparsity(dense))


def likely_changes(scenario: Scenario) -> tuple[WhatIfRow, ...]:
    """What the usual changes would gain; those that are impossible here are left out."""
    makers: tuple[Callable[[], Change], ...] = (
        lambda: with_quantization(scenario, "float8"),
        lambda: with_quantization(scenario, "int8"),
        lambda: with_quantization(scenario, "int4"),
        lambda: with_kv_dtype(scenario, "float8"),
        *(() if scenario.is_sparse else (lambda: with_sparsity(scenario),)),
        lambda: with_devices(scenario, n_tensor=2 * scenario.engine.tensor_parallel_size),
        lambda: with_prefix_hits(scenario, 0.5),
    )
    return tuple(_rows(scenario, makers))


def _rows(scenario: Scenario, makers: Iterable[Callable[[], Change]]) -> list[WhatIfRow]:
    rows: list[WhatIfRow] = []
    for make in makers:
        try:
            rows.append(_row(scenario, make()))
        except SpecError:  # the device lacks the format, or the heads cannot be split: no such change here
            continue
    return rows


def _row(scenario: Scenario, change: Change) -> WhatIfRow:
    gain = what_if(scenario, change)
    has_same_devices = change.scenario.n_devices == scenario.n_devices
    # 2:4 sparse kernels are known for NVIDIA devices alone.
    devices = [device for device in catalog.load_hardware() if device.vendor == "nvidia" or not change.scenario.is_sparse]
    fits_on = newly_fits_on(scenario, change.scenario, devices) if has_same_devices else ()
    return WhatIfRow(
        name=change.name,
        needs=change.needs,
        ttft_gain_ratio=gain.ttft_gain_ratio,
        tpot_gain_ratio=gain.tpot_gain_ratio,
        throughput_gain_ratio=gain.throughput_gain_ratio,
        weight_bytes_saved=gain.weight_bytes_saved,
        weight_saved_fraction=gain.weight_bytes_saved / (gain.weight_bytes_saved + gain.after.sizes.weight_bytes),
        newly_fits_on=tuple(device.hardware_id for device in fits_on),
    )


__all__ = [
    "FittedSpeeds",
    "PredictAnswer",
    "WhatIfRow",
    "check_fit_of",
    "check_model",
    "fitted_speeds",
    "likely_changes",
    "server_speeds",
    "sparsity_gain",
    "speeds_at",
]
