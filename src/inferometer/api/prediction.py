"""Contents of a prediction.

The datasheet's answer, a fitted model's where there is one, and what changes would gain?
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, TypeAlias

from inferometer.api.answer import Answer, row_of
from inferometer.errors import EXIT_OF_SLO, SizingError, SpecError
from inferometer.fit.loads import server_fit
from inferometer.inputs import catalog, types as input_types
from inferometer.inputs.objectives import Metric, ObjectiveSpec, Threshold, check_second_tokens
from inferometer.perfmodel import steptime, types
from inferometer.perfmodel.datasheet import DatasheetPrediction, sheet_at
from inferometer.perfmodel.memory import SmallestGroup
from inferometer.perfmodel.scenario import (
    Scenario,
    decode_of,
    mean_step,
    plain_decode_of,
    prefill_of,
    prefill_step_of,
)
from inferometer.perfmodel.steptime_levels import (
    LAUNCHED_SINGLY,
    StepTimes,
    fitted_levels,
    launched_singly,
    through_stages,
)
from inferometer.perfmodel.steptime_terms import shape_duration_s
from inferometer.perfmodel.types import NOTHING_STATED, FitSubject
from inferometer.perfmodel.whatif import (
    BestSpeculation,
    Change,
    newly_fits_on,
    what_if,
    with_attention_kernel,
    with_devices,
    with_eager,
    with_graphs,
    with_kv_dtype,
    with_kv_heads,
    with_prefix_hits,
    with_quantization,
    with_sequence_parallelism,
    with_sparsity,
    with_window,
    without_kv_cache,
)
from inferometer.stats.estimate import Estimate, Verdict, judge
from inferometer.units import format_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedSpeeds:
    """Predictions of a model that was fitted to measurements.

    Outside its box the interval is wide and ``outside_why`` says what is outside.
    """

    ttft_s: Estimate
    tpot_s: Estimate
    tokens_per_s_per_user: Estimate
    decode_tokens_per_s: Estimate
    prefill_limited_by: types.Limit
    decode_limited_by: types.Limit
    is_inside_box: bool
    outside_why: str | None
    subject: FitSubject
    """Subject of the fit."""
    reservations: tuple[str, ...]
    """Why answers are less certain than a measurement of the same server."""
    origin: str | None = None
    """Source of the fit, in words."""
    machine_share_fraction: float | None = None
    """Share of the variance of a step's log time that all layouts on the device have alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredSpeeds:
    """Speeds by the fit or by published rows where there are any, else by the datasheet."""

    ttft_s: Estimate
    tpot_s: Estimate | None
    """None, like the rates of decode, where each answer is one token."""
    e2e_s: Estimate
    """TTFT and the tokens after the first: the time of the whole batch."""
    tokens_per_s_per_user: Estimate | None
    decode_tokens_per_s: Estimate | None
    """While all sequences decode."""
    output_tokens_per_s: Estimate
    """Output tokens over the time of the whole batch."""
    usd_per_million_tokens: Estimate | None
    """Cost of output tokens; None where no price is known."""
    joule_per_million_tokens: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfRow:
    """Gains of a change by the datasheets: ratios above 1 are better.

    ``needs`` says what must be true or done first.
    """

    name: str
    needs: str | None
    ttft_gain_ratio: Estimate
    tpot_gain_ratio: Estimate
    throughput_gain_ratio: Estimate
    weight_bytes_saved: int
    weight_saved_fraction: float
    """Share of each device's weights that is saved."""
    newly_fits_on: tuple[str, ...]
    """Devices of the catalogue on which it fits with the change and not without, in the same
    number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDecode:
    """Share of the memory bandwidth that a measured TPOT uses."""

    tpot_s: float
    mbu_fraction: float
    """Bytes of weights and KV cache that a step reads, over its time and the datasheet's bandwidth."""
    bound_ratio: float
    """Measured over the bound by the datasheet's peaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedLimit:
    """One limit of an SLO, and the latency of a static batch of equal requests."""

    threshold: Threshold
    predicted_s: Estimate
    """Every percentile."""
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedSlo:
    """Verdict of a static batch on an SLO: the worst of its limits."""

    objective: ObjectiveSpec
    verdict: Verdict
    weakest: PredictedLimit
    limits: tuple[PredictedLimit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictAnswer(Answer):
    """Everything that is predicted.

    ``basis`` says from what the headline comes: a datasheet, ceilings measured here, published
    rows, or a fit.
    """

    basis: Literal["datasheet", "measured ceilings", "published", "fitted"]
    answered: AnsweredSpeeds
    datasheet: DatasheetPrediction
    fitted: FittedSpeeds | None
    without_published: str | None = None
    """The option for which the datasheet answers though there are published rows: they have no such
    steps."""
    sparsity: WhatIfRow | None
    """Gain of --sparsity over the same scenario with dense weights."""
    what_ifs: tuple[WhatIfRow, ...]
    speculation: BestSpeculation | None = None
    """Best number of draft tokens of the method that --speculative names."""
    measured: MeasuredDecode | None = None
    """Bandwidth that --measured-tpot uses."""
    slo: PredictedSlo | None = None
    """Verdict on --slo."""
    smallest_group: SmallestGroup | None = None
    """The smallest --tp that holds the model; None: it fits, or none up to 64 does."""
    fitting_quantization: input_types.DType | None = None
    """Most bits of the weights with which the model fits; None: it fits, or with none of them."""

    @property
    def exit_code(self) -> int:
        """6 where the model does not fit, else that of the SLO's verdict."""
        if not self.datasheet.sizes.memory.fits:
            return SizingError.exit_code
        return EXIT_OF_SLO[None if self.slo is None else self.slo.verdict]


def answered_speeds(sheet: DatasheetPrediction, fitted: FittedSpeeds | None) -> AnsweredSpeeds:
    """Latencies, and the rates and costs that follow from them."""
    if fitted is not None:
        sheet = sheet_at(sheet, fitted.ttft_s, fitted.tpot_s)
    speeds, costs = sheet.speeds, sheet.costs
    n_output = sheet.scenario.batch_size * sheet.scenario.output_tokens
    decodes = sheet.scenario.output_tokens > 1
    return AnsweredSpeeds(
        ttft_s=speeds.ttft_s,
        tpot_s=speeds.tpot_s if decodes else None,
        e2e_s=speeds.output_tokens_per_s.inverted(n_output),
        tokens_per_s_per_user=speeds.tokens_per_s_per_user if decodes else None,
        decode_tokens_per_s=(fitted or speeds).decode_tokens_per_s if decodes else None,
        output_tokens_per_s=speeds.output_tokens_per_s,
        usd_per_million_tokens=costs.usd_per_million_tokens,
        joule_per_million_tokens=costs.joule_per_million_tokens,
    )


def fitted_speeds(model: steptime.StepTimeModel, scenario: Scenario) -> FittedSpeeds:
    """Predictions of the fitted model for the scenario's static batch."""
    shapes = prefill_step_of(scenario), decode_of(scenario)[0]
    prefill, decode = _steps(model, scenario, shapes)
    prefill_ratio, decode_ratio = _stage_ratios(model, scenario, shapes)
    if scenario.speculation is not None:
        (drafted,) = _steps(model, scenario, [plain_decode_of(scenario)[0]])
        drafts = scenario.speculation.n_draft_tokens * scenario.speculation.draft_cost_ratio
        decode_ratio += drafts * drafted.duration_s.value / decode.duration_s.value
        decode_ratio /= scenario.expected_step_tokens
    prefill_s = prefill.duration_s.scaled(
        scenario.n_prefill_steps * scenario.first_token_steps * prefill_ratio
    )
    tpot_s = decode.duration_s.scaled(decode_ratio)
    subject = model.subject or NOTHING_STATED
    reasons = [one.outside_why for one in (prefill, decode) if one.outside_why]
    outside_s = 0.0 if model.front_end_s is None else model.front_end_s.value
    return FittedSpeeds(
        ttft_s=prefill_s.scaled(1 + outside_s / prefill_s.value).spread(
            model.first_token_spread_ratio
        ),
        tpot_s=tpot_s,
        tokens_per_s_per_user=tpot_s.inverted(),
        decode_tokens_per_s=tpot_s.inverted(scenario.batch_size),
        prefill_limited_by=prefill.limited_by,
        decode_limited_by=decode.limited_by,
        is_inside_box=prefill.is_inside_box and decode.is_inside_box,
        outside_why="; ".join(dict.fromkeys(reasons)) or None,
        subject=subject,
        reservations=subject.reservations(),
        origin=_origin(model, scenario),
        machine_share_fraction=model.machine_share_fraction,
    )


def _levels(model: steptime.StepTimeModel, scenario: Scenario) -> StepTimes:
    """The model's step times, without captured graphs where the engine has none."""
    levels = fitted_levels(model)
    return launched_singly(levels, scenario.model) if scenario.is_launched_singly else levels


def _steps(
    model: steptime.StepTimeModel, scenario: Scenario, shapes: Sequence[types.BatchShape]
) -> list[types.StepPrediction]:
    """The model's predictions; without captured graphs of plausible machines, as `simulate` has them."""
    predicted = list(model.predict_all(shapes))
    if not scenario.is_launched_singly:
        return predicted
    levels, steps = _levels(model, scenario), list[types.StepPrediction]()
    for shape, captured in zip(shapes, predicted, strict=True):
        value = shape_duration_s(levels.likely, shape)
        drawn = [value, *(shape_duration_s(one.steps, shape) for one in levels.draws)]
        duration = replace(captured.duration_s, value=value, low=min(drawn), high=max(drawn))
        is_host = levels.likely.singly_s > captured.duration_s.value
        limit: types.Limit = "launch overhead" if is_host else captured.limited_by
        steps.append(replace(captured, duration_s=duration, limited_by=limit))
    return steps


def above_roofline(fitted: FittedSpeeds, sheet: DatasheetPrediction) -> FittedSpeeds:
    """No engine is faster than the device's peaks: an interval begins no lower, unless its value does."""
    scenario = sheet.scenario
    ttft_s = _begins_at(fitted.ttft_s, sheet.prefill.bound.lower_s * scenario.first_token_steps)
    tpot_s = _begins_at(fitted.tpot_s, sheet.decode.bound.lower_s / scenario.expected_step_tokens)
    return replace(
        fitted,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        tokens_per_s_per_user=tpot_s.inverted(),
        decode_tokens_per_s=tpot_s.inverted(scenario.batch_size),
    )


def _begins_at(estimate: Estimate, least: float) -> Estimate:
    low = estimate.low
    return estimate if low is None else replace(estimate, low=min(max(low, least), estimate.value))


def _origin(model: steptime.StepTimeModel, scenario: Scenario) -> str | None:
    n_stages, hardware = scenario.used_plan.n_pipeline, model.trained_on.hardware
    singly = f"; {LAUNCHED_SINGLY}" if scenario.is_launched_singly else ""
    staged = f"; {n_stages} pipeline stages" if n_stages > 1 else ""
    return f"{hardware}{singly}{staged}" if singly or staged else hardware


def _stage_ratios(
    model: steptime.StepTimeModel, scenario: Scenario, shapes: Sequence[types.BatchShape]
) -> list[float]:
    """Ratio of each step's time with pipeline stages to that in one group of devices."""
    n_stages = scenario.used_plan.n_pipeline
    if n_stages == 1:
        return [1.0 for _ in shapes]
    whole = _levels(model, scenario)
    staged = through_stages(whole, scenario.model, scenario.hardware, n_stages)
    return [
        shape_duration_s(staged.likely, shape) / shape_duration_s(whole.likely, shape)
        for shape in shapes
    ]


def server_speeds(fit: server_fit.ServerFit, scenario: Scenario) -> FittedSpeeds:
    """Predictions of a server fit for the scenario's static batch, with its front end.

    Raises
    ------
    SpecError
        The batch has more sequences than the server runs at once.
    """
    n_slots = int(fit.knob("max_num_seqs"))
    if scenario.batch_size > n_slots:
        raise SpecError(
            f"{scenario.batch_size} sequences at once",
            where="--batch, --fit",
            allowed=f"1 to {n_slots}, the server's max_num_seqs",
            try_="a smaller --batch",
        )
    n_steps = fit.n_prompt_steps(
        batch_size=scenario.step_batch_size,
        prompt_tokens=scenario.prompt_tokens - scenario.cached_tokens,
    )
    decode = types.decode_shape(
        batch_size=scenario.batch_size, context_tokens=scenario.mean_context_tokens
    )
    tpot, subject = fit.step_estimate(decode), fit.subject or NOTHING_STATED
    within = scenario.mean_context_tokens <= fit.seen.longest_tokens
    return FittedSpeeds(
        ttft_s=fit.step_estimate(
            mean_step(prefill_of(scenario)[0], n_steps), n_steps=n_steps, further_s=fit.front_end_s
        ),
        tpot_s=tpot,
        tokens_per_s_per_user=tpot.inverted(),
        decode_tokens_per_s=tpot.inverted(scenario.batch_size),
        prefill_limited_by="undecided",
        decode_limited_by="undecided",
        is_inside_box=within,
        outside_why=(
            None
            if within
            else f"contexts above {fit.seen.longest_tokens:,} tokens, the longest sent"
        ),
        subject=subject,
        reservations=subject.reservations(),
    )


def measured_decode(sheet: DatasheetPrediction, tpot_s: float | None) -> MeasuredDecode | None:
    """Bandwidth that this TPOT uses at the scenario's batch and context.

    Raises
    ------
    SpecError
        The TPOT is not a positive time.
    """
    if tpot_s is None:
        return None
    if not 0 < tpot_s < math.inf:
        raise SpecError(
            f"a TPOT of {tpot_s:g} s", where="--measured-tpot", allowed="above 0", try_="14ms"
        )
    speeds, bound = sheet.speeds, sheet.decode.bound
    bound_s = bound.lower_s / sheet.scenario.expected_step_tokens
    return MeasuredDecode(
        tpot_s=tpot_s,
        mbu_fraction=speeds.mbu_fraction.value * speeds.tpot_s.value / tpot_s,
        bound_ratio=tpot_s / bound_s,
    )


def too_fast(found: MeasuredDecode | None, sheet: DatasheetPrediction) -> tuple[str, ...]:
    """A caution where the TPOT is shorter than the peaks of the devices allow."""
    if found is None or found.bound_ratio >= 1:
        return ()
    least_s = found.tpot_s / found.bound_ratio
    text = (
        f"a TPOT of {format_duration(found.tpot_s)} is not possible here: at the peaks of"
        f" {sheet.scenario.hardware.name} it is {format_duration(least_s)} or more; the number is"
        " wrong, or of another batch, format, number of devices or drafts than the question's"
    )
    return (text,)


def e2e_s(ttft_s: Estimate, tpot_s: Estimate, output_tokens: int) -> Estimate:
    """E2E from TTFT and TPOT; its ends are at the same ends of the step times."""
    n_further = output_tokens - 1
    ends = [
        None if one is None or other is None else one + n_further * other
        for one, other in ((ttft_s.low, tpot_s.low), (ttft_s.high, tpot_s.high))
    ]
    return Estimate(
        value=ttft_s.value + n_further * tpot_s.value,
        low=ends[0],
        high=ends[1],
        confidence_fraction=ttft_s.confidence_fraction,
        n_samples=min(ttft_s.n_samples, tpot_s.n_samples),
        method=ttft_s.method,
    )


def predicted_slo(
    objective: ObjectiveSpec, ttft_s: Estimate, tpot_s: Estimate, output_tokens: int
) -> PredictedSlo:
    """Verdict on each limit by the whole interval, else undecided.

    Raises
    ------
    SpecError
        A limit of the queue, which a static batch does not have, or of TPOT, and of one token.
    """
    check_second_tokens(objective, has_second=output_tokens > 1)
    latencies: dict[Metric, Estimate] = {
        "ttft": ttft_s,
        "tpot": tpot_s,
        "e2e": e2e_s(ttft_s, tpot_s, output_tokens),
    }
    absent = next((one for one in objective.thresholds if one.metric not in latencies), None)
    if absent is not None:
        raise SpecError(
            f"{absent.text}: a static batch has no {absent.metric}",
            where="--slo",
            allowed=f"limits of {', '.join(latencies)}; simulate answers the others",
            try_="--slo 'ttft:p95<500ms, tpot:p95<50ms'",
        )
    limits = tuple(
        PredictedLimit(
            threshold=one,
            predicted_s=latencies[one.metric],
            verdict=judge(latencies[one.metric], one.limit_s),
        )
        for one in objective.thresholds
    )
    order = ("missed", "undecided", "met")
    weakest = min(
        limits,
        key=lambda one: (order.index(one.verdict), -one.predicted_s.value / one.threshold.limit_s),
    )
    return PredictedSlo(
        objective=objective, verdict=weakest.verdict, weakest=weakest, limits=limits
    )


def sparsity_gain(scenario: Scenario) -> WhatIfRow | None:
    """Gain of the scenario's 2:4 sparsity over dense weights; None where they are dense."""
    if not scenario.is_sparse:
        return None
    dense = replace(scenario, is_sparse=False)
    return _row(dense, with_sparsity(dense))


_WINDOW_TOKENS: Final = 4096
_N_SINKS: Final = 4
"""Number of sinks of StreamingLLM (arXiv 2309.17453, section 3.2)."""


LaunchRatio: TypeAlias = Callable[[int], float]
"""Host time of a step with prompts of so many tokens, in that of a decode step, as it was measured."""


def likely_changes(
    scenario: Scenario, launch_ratio: LaunchRatio | None = None
) -> tuple[WhatIfRow, ...]:
    """Gains of the usual changes, without impossible ones."""
    scenario = _relaunched(scenario, launch_ratio)
    makers: tuple[Callable[[], Change], ...] = (
        lambda: with_quantization(scenario, "float8"),
        lambda: with_quantization(scenario, "int8"),
        lambda: with_quantization(scenario, "int4"),
        lambda: with_kv_dtype(scenario, "float8"),
        *(() if scenario.is_sparse else (lambda: with_sparsity(scenario),)),
        lambda: with_devices(scenario, n_tensor=2 * scenario.engine.tensor_parallel_size),
        lambda: with_prefix_hits(scenario, 0.5),
        *(partial(with_kv_heads, scenario, n) for n in _other_kv_heads(scenario)),
        *_launching(scenario),
        lambda: with_attention_kernel(scenario),
        lambda: with_sequence_parallelism(scenario),
        *_windows(scenario),
        lambda: without_kv_cache(scenario),
    )
    return tuple(_rows(scenario, makers, launch_ratio))


def _relaunched(scenario: Scenario, launch_ratio: LaunchRatio | None) -> Scenario:
    """The scenario with the measured host time for a prefill of this length."""
    if launch_ratio is None or scenario.launch_overhead_s is None or scenario.mode == "eager":
        return scenario  # a step that is launched kernel by kernel is one whatever its length
    n_rows = prefill_of(scenario)[0].n_rows
    return replace(scenario, prefill_launch_ratio=launch_ratio(n_rows))


def _launching(scenario: Scenario) -> tuple[Callable[[], Change], ...]:
    """The other way to launch kernels; a CPU launches none."""
    if scenario.hardware.kind == "cpu":
        return ()
    is_singly = scenario.mode == "eager" or scenario.is_launched_singly
    other = with_graphs if is_singly else with_eager
    return (lambda: other(scenario),)


def _windows(scenario: Scenario) -> tuple[Callable[[], Change], ...]:
    """A usual window with its sinks, where contexts are longer."""
    if scenario.prompt_tokens + scenario.output_tokens <= _WINDOW_TOKENS + _N_SINKS:
        return ()
    return (lambda: with_window(scenario, window_tokens=_WINDOW_TOKENS, n_sinks=_N_SINKS),)


def _other_kv_heads(scenario: Scenario) -> list[int]:
    """Other numbers of KV heads: 1 (MQA), 8 (GQA), and one per query head (MHA)."""
    attention, n_tensor = scenario.model.attention, scenario.engine.tensor_parallel_size
    return [
        n
        for n in dict.fromkeys((1, 8, attention.n_heads))
        if n != attention.n_kv_heads and n <= attention.n_heads and (n == 1 or n % n_tensor == 0)
    ]


def _rows(
    scenario: Scenario,
    makers: Iterable[Callable[[], Change]],
    launch_ratio: LaunchRatio | None,
) -> list[WhatIfRow]:
    rows: list[WhatIfRow] = []
    for make in makers:
        try:
            change = make()
            changed = _relaunched(change.scenario, launch_ratio)
            rows.append(_row(scenario, replace(change, scenario=changed)))
        except (
            SpecError
        ):  # the device lacks the format, or the heads cannot be split: no such change here
            continue
    return rows


def _row(scenario: Scenario, change: Change) -> WhatIfRow:
    gain = what_if(scenario, change)
    has_same_devices = change.scenario.n_devices == scenario.n_devices
    # 2:4 sparse kernels are known for NVIDIA devices alone.
    devices = [
        device
        for device in catalog.load_hardware()
        if device.vendor == "nvidia" or not change.scenario.is_sparse
    ]
    fits_on = newly_fits_on(scenario, change.scenario, devices) if has_same_devices else ()
    return row_of(
        WhatIfRow,
        change,
        gain,
        weight_saved_fraction=gain.weight_bytes_saved
        / (gain.weight_bytes_saved + gain.after.sizes.weight_bytes),
        newly_fits_on=tuple(device.hardware_id for device in fits_on),
    )
