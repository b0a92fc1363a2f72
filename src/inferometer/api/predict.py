"""What would a model do on a device, from its datasheet or from a fitted model?"""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, NamedTuple

from inferometer.api import engine_settings, named_fit
from inferometer.api.model_options import (
    ALL_REDUCE_OPTION,
    DATASHEET_OPTION,
    EAGER_OPTION,
    FORMATS,
    KV_DTYPE_FLAGS,
    LINK_OPTION,
    MODEL_OPTION,
    PP_FLAGS,
    SLO_OPTION,
    TP_FLAGS,
    TRANSFER_OPTION,
    refuse_changed_steps,
)
from inferometer.api.prediction import (
    FittedSpeeds,
    PredictAnswer,
    PredictedSlo,
    WhatIfRow,
    above_roofline,
    answered_speeds,
    fitted_speeds,
    likely_changes,
    measured_decode,
    predicted_slo,
    server_speeds,
    sparsity_gain,
    too_fast,
)
from inferometer.api.question import duration_option, option, s_from_us
from inferometer.errors import SpecError
from inferometer.fit.loads.server_fit import ServerFit
from inferometer.fit.published.efficiencies import ENGINES, has_stated_links, published_steps
from inferometer.inputs import catalog, resolve, types
from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.types import AskedFormat, DType
from inferometer.measure.this_machine import THIS_MACHINE
from inferometer.perfmodel import datasheet, memory, roofline
from inferometer.perfmodel.scenario import RunMode, Scenario, Speculation
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.perfmodel.whatif import (
    BestSpeculation,
    best_speculation,
    windowed,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predict:
    """A static batch of one model on one device."""

    model: Annotated[str, MODEL_OPTION]
    hardware: str | None = option(
        None,
        "A device of the catalogue, or this machine, probed now. [that of --fit]",
        "Hardware",
        is_common=True,
        metavar="ID|this",
        is_axis=True,
    )
    batch: int = option(1, "Sequences at once.", "Workload", least=1, is_common=True)
    prompt: int = option(
        512, "Prompt tokens of each sequence.", "Workload", least=1, is_common=True
    )
    output: int = option(
        128, "Output tokens of each sequence.", "Workload", least=1, is_common=True
    )
    dtype: DType | None = option(
        None,
        "Format of weights and activations. Default: that of --fit, else bfloat16; float16 without it,"
        " float32 on a CPU.",
        "Model",
        is_common=True,
        formats=FORMATS,
    )
    kv_dtype: DType | None = option(
        None,
        "Format of the KV cache. Default: as --dtype.",
        "Model",
        formats=FORMATS,
        flags=KV_DTYPE_FLAGS,
    )
    quantization: AskedFormat | None = option(
        None,
        "Format of the weights alone. Default: as published.",
        "Model",
        is_common=True,
        formats=(*FORMATS, "none"),
    )
    tp: int | None = option(
        None,
        "Tensor-parallel devices. [that of --fit, else 1]",
        "Hardware",
        least=1,
        is_common=True,
        flags=TP_FLAGS,
    )
    pp: int = option(1, "Pipeline-parallel stages.", "Hardware", least=1, flags=PP_FLAGS)
    link: Annotated[str | None, LINK_OPTION] = None
    all_reduce_us: Annotated[float | None, ALL_REDUCE_OPTION] = None
    mode: RunMode = option(
        "engine",
        "Kernels launched one by one (transformers' eager), graphs in a bare loop (compiled), or a"
        " serving engine with scheduler and front end.",
        "Engine",
    )
    policy: str | None = option(
        None,
        "Engine whose published step times are taken. [vllm]",
        "Engine",
        choices=tuple(ENGINES),
    )
    enforce_eager: Annotated[bool, EAGER_OPTION] = False
    all_logits: bool = option(False, "The prefill computes the logits of every position.", "Engine")
    ep: bool = option(False, "Experts spread over the tensor-parallel devices.", "Hardware")
    sparsity: bool = option(
        False, "2:4 sparse weights: what they gain, and where the model newly fits.", "Model"
    )
    speculative: str | None = option(
        None,
        "Draft tokens by ngram, eagle, medusa, redrafter, mtp or a draft model, N or the best number,"
        " and their acceptance where measured; or N,ACCEPTANCE,COST.",
        "Engine",
        is_common=True,
        metavar="METHOD[:N][,ACCEPTANCE]",
    )
    attention_window: int | None = option(
        None,
        "Each layer attends to this number of last tokens, and to --attention-sinks.",
        "Model",
        least=1,
    )
    attention_sinks: int = option(
        0, "First tokens that stay beside --attention-window.", "Model", least=0
    )
    prefix_hit: float = option(0.0, "Share of each prompt that is in the prefix cache.", "Workload")
    usd_per_hour: float | None = option(
        None, "Price of one device. Default: the catalogue's first."
    )
    gpu_memory_utilization: float = option(
        memory.DEFAULT_UTILIZATION.value, "Share of memory given to the engine.", "Engine"
    )
    fit: Path | None = option(
        None,
        "Result of `inferometer fit`: its file, or the run's folder.",
        "Hardware",
        is_common=True,
    )
    transfer: Annotated[bool, TRANSFER_OPTION] = False
    datasheet: Annotated[bool, DATASHEET_OPTION] = False
    what_if: bool = option(False, "Also predict what the usual changes would gain.", is_common=True)
    measured_tpot: float | None = duration_option(
        None, "A TPOT that was measured at this batch: which share of the bandwidth it uses (MBU)."
    )
    slo: Annotated[str | None, SLO_OPTION] = None
    """All requests of a static batch are equal, so each percentile is the latency itself."""
    given: frozenset[str] = frozenset()


def predict(question: Predict) -> PredictAnswer:
    """Parameters, memory, largest batch, bounds, TTFT, TPOT, throughput, cost and energy of a static batch.

    An answer says what it rests on: *published* rows, *datasheet*, *measured ceilings*
    (``hardware="this"``) or *fitted* (``fit``), always with an interval.

    Raises
    ------
    SpecError, ModelError
        The question is impossible.
    """
    subject = _windowed(_subject(question), question)
    scenario = _scenario(subject, question)
    named = _named_speculation(question, scenario)
    if named is not None:
        scenario = replace(scenario, speculation=named.best)
    utilization_fraction = question.gpu_memory_utilization
    sheet = datasheet.predict_scenario(
        scenario, price=_price(question.usd_per_hour), utilization_fraction=utilization_fraction
    )
    published = _published(question, subject)
    other_steps = None if published is None else _without_published(question, subject)
    published = published if other_steps is None else None
    fitted = _fitted(subject.fit or published, scenario)
    if fitted is not None and published is not None:
        fitted = above_roofline(fitted, sheet)
    is_measured = subject.hardware.hardware_id == THIS_MACHINE
    measured = measured_decode(sheet, question.measured_tpot)
    impossible = too_fast(measured, sheet)
    return PredictAnswer(
        basis=(
            "published"
            if published is not None
            else "fitted"
            if fitted is not None
            else "measured ceilings"
            if is_measured
            else "datasheet"
        ),
        answered=answered_speeds(sheet, fitted),
        datasheet=replace(sheet, cautions=(*sheet.cautions, *impossible)),
        fitted=fitted,
        without_published=other_steps,
        sparsity=sparsity_gain(scenario),
        speculation=named,
        measured=measured,
        slo=_slo(question, sheet if fitted is None else fitted),
        what_ifs=_what_ifs(scenario, subject.fit) if question.what_if else (),
        smallest_group=(
            None if sheet.sizes.memory.fits else _smallest_group(scenario, utilization_fraction)
        ),
        fitting_quantization=(
            None
            if sheet.sizes.memory.fits
            else _fitting_quantization(scenario, utilization_fraction)
        ),
    )


def _slo(
    question: Predict, said: datasheet.DatasheetPrediction | FittedSpeeds
) -> PredictedSlo | None:
    if question.slo is None:
        return None
    speeds = said if isinstance(said, FittedSpeeds) else said.speeds
    return predicted_slo(
        parse_objective(question.slo, why_none="a prediction is of one request", is_of_one=True),
        speeds.ttft_s,
        speeds.tpot_s,
        question.output,
    )


def _smallest_group(scenario: Scenario, utilization_fraction: float) -> memory.SmallestGroup | None:
    question = datasheet.memory_question(scenario, utilization_fraction=utilization_fraction)
    return memory.smallest_group(
        question, lambda one: memory.memory_budget(one, scenario.batch_size).fits
    )


def _fitting_quantization(scenario: Scenario, utilization_fraction: float) -> types.DType | None:
    """The format with the most bits, fewer than now, in which these devices hold the weights."""
    engine, peaks = scenario.engine, {one.dtype for one in scenario.hardware.peaks}
    bits = types.DTYPE_BITS[engine.quantization or engine.dtype]
    of_half: types.DType = "float8" if "float8" in peaks else "int8"
    tried: tuple[types.DType, ...] = (of_half, "int4")
    for one in tried:
        fewer = replace(scenario, engine=replace(engine, quantization=one))
        question = datasheet.memory_question(fewer, utilization_fraction=utilization_fraction)
        if (
            types.DTYPE_BITS[one] < bits
            and memory.memory_budget(question, scenario.batch_size).fits
        ):
            return one
    return None


class _Subject(NamedTuple):
    model: types.ModelSpec
    engine: types.EngineSpec
    hardware: types.HardwareSpec
    fit: StepTimeModel | ServerFit | None


def _subject(question: Predict) -> _Subject:
    """The question, with options completed by the fit."""
    name, hardware = question.model, question.hardware
    device = None if hardware is None else named_fit.device_named(hardware, question.link)
    path = question.fit
    named_fit.check_transfer(is_transfer=question.transfer, has_fit=path is not None)
    if path is None:
        if device is None:
            raise SpecError(
                "no device is named",
                where="--hardware",
                allowed="a device of the catalogue, this, or --fit",
                try_="--hardware h100_sxm",
            )
        found = resolve.resolve_model(name, load_format="dummy")
        return _Subject(found.spec, _engine(found, device, question), device, None)
    is_server = named_fit.is_server(path)
    _check_measured(question, is_server=is_server)
    if is_server:
        server = named_fit.load_server(path, name, _stated(question), device)
        return _Subject(
            # A load test does not tell the model's shape; memory and limits need it.
            server.model or catalog.known_model(name) or named_fit.fitted_model(server, name),
            server.engine,
            _known(path, device or _device_of(server)),
            server,
        )
    model = resolve.resolve_model(name, load_format="dummy").spec
    fit = named_fit.step_fit(
        path, named_fit.question_of(_stated(question), model, device), is_transfer=question.transfer
    )
    return _Subject(model, fit.model.engine, _known(path, fit.hardware), fit.model)


def _windowed(subject: _Subject, question: Predict) -> _Subject:
    """The model with the window and the sinks that were requested."""
    window_tokens, n_sinks = question.attention_window, question.attention_sinks
    if window_tokens is None and n_sinks:
        raise SpecError(
            "sinks without a window: all tokens stay",
            where="--attention-sinks",
            try_="--attention-window 4096",
        )
    if window_tokens is None:
        return subject
    model = windowed(subject.model, window_tokens=window_tokens, n_sinks=n_sinks)
    return subject._replace(model=model)


def _stated(question: Predict) -> dict[str, object]:
    """Options that must agree with the fit."""
    names = ("dtype", "kv_dtype", "quantization", "tp", "transfer")
    return {name: getattr(question, name) for name in names}


def _device_of(server: ServerFit) -> types.HardwareSpec | None:
    return None if server.subject is None else server.subject.hardware


def _known(path: Path, device: types.HardwareSpec | None) -> types.HardwareSpec:
    if device is None:
        raise SpecError(
            "the fit does not name the device that it was measured on",
            where=f"--fit {shlex.quote(str(path))}",
            allowed="with --hardware, or a fit that states its device",
            try_="--hardware h100_sxm",
        )
    return device


def _check_measured(question: Predict, *, is_server: bool) -> None:
    """Refuse changes to an engine that was fitted as it is; steps of a sweep can go through stages."""
    changes = {"--pp": is_server and question.pp > 1, "--ep": question.ep}
    changes |= {"--sparsity": question.sparsity, "--enforce-eager": question.enforce_eager}
    changes |= {"--mode": question.mode != "engine", "--all-logits": question.all_logits}
    changes |= {
        "--attention-window": question.attention_window is not None,
        "--link": question.link is not None,
        "--all-reduce-us": question.all_reduce_us is not None,
        "--speculative": question.speculative is not None,
    }
    refuse_changed_steps(changes, allowed="a batch on the engine as it was measured")


def _published(question: Predict, subject: _Subject) -> StepTimeModel | None:
    """Step times of published rows; None where a fit or the datasheet is named, or none are like it."""
    is_measured = subject.hardware.hardware_id == THIS_MACHINE
    framework = question.policy or "vllm"
    found = (
        None
        if subject.fit is not None or question.datasheet or is_measured
        else published_steps(subject.model, subject.engine, subject.hardware, framework)
    )
    other = (
        "--fit"
        if subject.fit is not None
        else "--datasheet"
        if question.datasheet
        else _without_published(question, subject)
    )
    if question.policy is not None and (found is None or other is not None):
        raise SpecError(
            f"step times of {ENGINES[framework]} come from published rows, which do not answer this",
            where="--policy",
            allowed="devices, formats and options for which there are such rows"
            + ("" if other is None else f": not {other}"),
            try_="the same command without --policy",
        )
    return found


def _without_published(question: Predict, subject: _Subject) -> str | None:
    """The first option for whose steps there are no published rows."""
    options = {
        "--sparsity": question.sparsity,
        "--all-logits": question.all_logits,
        "--mode": question.mode != "engine",
        "--link": has_stated_links(subject.hardware),
        "--all-reduce-us": question.all_reduce_us is not None,
        "--speculative": question.speculative is not None and not _is_counted(question.speculative),
    }
    return next((flag for flag, is_set in options.items() if is_set), None)


def _fitted(fit: StepTimeModel | ServerFit | None, scenario: Scenario) -> FittedSpeeds | None:
    if fit is None:
        return None
    return (
        server_speeds(fit, scenario) if isinstance(fit, ServerFit) else fitted_speeds(fit, scenario)
    )


def _what_ifs(scenario: Scenario, fit: StepTimeModel | ServerFit | None) -> tuple[WhatIfRow, ...]:
    launch_ratio = fit.prefill_launch_ratio if isinstance(fit, StepTimeModel) else None
    return likely_changes(_as_fitted(scenario, fit), launch_ratio)


def _as_fitted(scenario: Scenario, fit: StepTimeModel | ServerFit | None) -> Scenario:
    """The scenario with the fitted host time, which changes of the device's work leave alone."""
    if not isinstance(fit, StepTimeModel):
        return scenario
    is_launched = fit.engine.device != "cpu" and fit.engine.mode != "compiled"
    return replace(
        scenario,
        mode="eager" if is_launched else "graphs",
        attention=None if fit.trained_on.attention_implementation == "eager" else "tiled",
        launch_overhead_s=fit.physical().launch_s,
        prefill_launch_ratio=fit.physical().prefill_ratio,
        kernels_launch_ratio=None if is_launched else fit.kernels_launch_ratio,
    )


def _engine(
    model: resolve.ResolvedModel, device: types.HardwareSpec, question: Predict
) -> types.EngineSpec:
    return types.EngineSpec(
        engine="vllm",  # serving engines divide the embedding over devices; transformers copies it
        dtype=question.dtype or device.usual_dtype,
        kv_cache_dtype=question.kv_dtype,
        quantization=model.quantization(question.quantization),
        device="cpu" if device.kind == "cpu" else "cuda",
        tensor_parallel_size=question.tp or 1,
    )


def _scenario(subject: _Subject, question: Predict) -> Scenario:
    plan = roofline.ParallelPlan(
        n_tensor=subject.engine.tensor_parallel_size,
        n_pipeline=question.pp,
        has_expert_parallelism=question.ep,
    )
    return Scenario(
        model=subject.model,
        engine=subject.engine,
        hardware=subject.hardware,
        batch_size=question.batch,
        prompt_tokens=question.prompt,
        output_tokens=question.output,
        plan=plan,
        is_sparse=question.sparsity,
        speculation=_speculation(question.speculative),
        prefix_hit_fraction=question.prefix_hit,
        mode=question.mode,
        max_step_tokens=_max_step_tokens(subject, plan.n_devices),
        all_reduce_s=s_from_us(question.all_reduce_us),
        has_all_logits=question.all_logits,
        is_launched_singly=_is_launched_singly(subject, question),
    )


def _is_launched_singly(subject: _Subject, question: Predict) -> bool:
    """Does a serving engine launch each kernel by itself? A CPU launches none."""
    if question.enforce_eager and question.mode != "engine":
        raise SpecError(
            f"--enforce-eager is of a serving engine, and --mode is {question.mode}",
            where="--mode, --enforce-eager",
            allowed="one of the two",
            try_="the same command without --mode",
        )
    return question.enforce_eager and subject.hardware.kind != "cpu"


def _max_step_tokens(subject: _Subject, n_devices: int) -> int | None:
    """Step budget of ``vllm serve``; None where a client forms the batches."""
    fitted = None if subject.fit is None else subject.fit.subject
    if fitted is not None and fitted.is_of_batches:
        return None
    return memory.default_limits(subject.hardware, n_devices=n_devices).max_num_batched_tokens


def _is_numbers(text: str) -> bool:
    return text.partition(",")[0].strip().isdigit()


def _is_counted(text: str) -> bool:
    """Is the number of draft tokens given? The best one is that of the datasheet's step times."""
    return _is_numbers(text) or engine_settings.named_draft(text).n_tokens is not None


def _named_speculation(question: Predict, plain: Scenario) -> BestSpeculation | None:
    """The best number of draft tokens of the method that is named, if one is."""
    text = question.speculative
    if text is None or _is_numbers(text):
        return None
    draft = engine_settings.named_draft(text)
    sheet = datasheet.predict_scenario(plain, utilization_fraction=question.gpu_memory_utilization)
    return best_speculation(plain, draft, largest_batch=sheet.sizes.largest_batch_size)


def _speculation(text: str | None) -> Speculation | None:
    if text is None or not _is_numbers(text):
        return None
    try:
        n_draft_tokens, acceptance, cost = text.split(",")
        return Speculation(
            n_draft_tokens=int(n_draft_tokens),
            acceptance_fraction=float(acceptance),
            draft_cost_ratio=float(cost),
        )
    except ValueError:
        raise engine_settings.no_speculation(text) from None


def _price(usd_per_hour: float | None) -> types.PriceSpec | None:
    if usd_per_hour is None:
        return None
    if not 0 < usd_per_hour < float("inf"):
        raise SpecError(
            f"a price of {usd_per_hour:g} $ per hour",
            where="--usd-per-hour",
            allowed="above 0",
            try_="2.5",
        )
    source = types.Source(kind="config", where="--usd-per-hour")
    return types.PriceSpec(usd_per_hour=usd_per_hour, basis="as given", source=source)
