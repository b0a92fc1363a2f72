"""What does a prediction hold: the datasheet's answer, a fitted model's where there is one, and what changes would gain?"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from inferometer.errors import SpecError
from inferometer.perfmodel.datasheet import DatasheetPrediction
from inferometer.perfmodel.scenario import Scenario
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.perfmodel.types import Limit, decode_shape, prefill_shape
from inferometer.perfmodel.whatif import (
    Change,
    what_if,
    with_devices,
    with_kv_dtype,
    with_prefix_hits,
    with_quantization,
    with_sparsity,
)
from inferometer.spec.types import ModelSpec
from inferometer.stats.estimate import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedSpeeds:
    """What a model fitted to measurements says; outside its box the interval is wide and ``outside_why`` says what is outside."""

    ttft_s: Estimate
    tpot_s: Estimate
    tokens_per_s_per_user: Estimate
    decode_tokens_per_s: Estimate
    prefill_limited_by: Limit
    decode_limited_by: Limit
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictAnswer:
    """Everything that is predicted. ``basis`` says from what the headline comes: a datasheet, ceilings measured here, or a fit."""

    basis: Literal["datasheet", "measured ceilings", "fitted"]
    datasheet: DatasheetPrediction
    fitted: FittedSpeeds | None
    what_ifs: tuple[WhatIfRow, ...]


def fitted_speeds(model: StepTimeModel, scenario: Scenario) -> FittedSpeeds:
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
            prefill_shape(batch_size=scenario.batch_size, prompt_tokens=scenario.prompt_tokens),
            decode_shape(batch_size=scenario.batch_size, context_tokens=scenario.mean_context_tokens),
        ]
    )
    reasons = [said.outside_why for said in (prefill, decode) if said.outside_why]
    return FittedSpeeds(
        ttft_s=prefill.duration_s,
        tpot_s=decode.duration_s,
        tokens_per_s_per_user=decode.duration_s.inverted(),
        decode_tokens_per_s=decode.duration_s.inverted(scenario.batch_size),
        prefill_limited_by=prefill.limited_by,
        decode_limited_by=decode.limited_by,
        is_inside_box=prefill.is_inside_box and decode.is_inside_box,
        outside_why="; ".join(dict.fromkeys(reasons)) or None,
    )


def check_fit_of(fit: StepTimeModel, asked: ModelSpec) -> None:
    """Is this fit one of the model asked about?

    Raises
    ------
    SpecError
        It is one of another model.
    """
    if (fit.model.n_layers, fit.model.hidden_size) != (asked.n_layers, asked.hidden_size):
        raise SpecError(
            f"the fit is one of {fit.model.model_id!r}, asked is {asked.model_id!r}",
            where="--fit",
            allowed="a fit of the model asked about",
            try_="inferometer sweep, then inferometer fit",
        )


def likely_changes(scenario: Scenario) -> tuple[WhatIfRow, ...]:
    """What the usual changes would gain; those that are impossible here are left out."""
    makers: tuple[Callable[[], Change], ...] = (
        lambda: with_quantization(scenario, "float8"),
        lambda: with_quantization(scenario, "int8"),
        lambda: with_quantization(scenario, "int4"),
        lambda: with_kv_dtype(scenario, "float8"),
        lambda: with_sparsity(scenario),
        lambda: with_devices(scenario, n_tensor=2 * scenario.engine.tensor_parallel_size),
        lambda: with_prefix_hits(scenario, 0.5),
    )
    return tuple(_rows(scenario, makers))


def _rows(scenario: Scenario, makers: Iterable[Callable[[], Change]]) -> list[WhatIfRow]:
    rows: list[WhatIfRow] = []
    for make in makers:
        try:
            change = make()
            gain = what_if(scenario, change)
        except SpecError:  # the device lacks the format, or the heads cannot be split: no such change here
            continue
        rows.append(
            WhatIfRow(
                name=change.name,
                needs=change.needs,
                ttft_gain_ratio=gain.ttft_gain_ratio,
                tpot_gain_ratio=gain.tpot_gain_ratio,
                throughput_gain_ratio=gain.throughput_gain_ratio,
                weight_bytes_saved=gain.weight_bytes_saved,
            )
        )
    return rows


__all__ = ["FittedSpeeds", "PredictAnswer", "WhatIfRow", "check_fit_of", "fitted_speeds", "likely_changes"]
