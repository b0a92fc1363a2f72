"""Predictions from datasheets alone: speed, size and cost, before anything is measured.

Nothing here is fitted to the machine at hand. The low end of each time is physical: peaks
reached in full, everything overlapped. The likely value and the high end use efficiencies
published for other machines (``scenario.LIKELY``, ``WORST``).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from inferometer.inputs.catalog import unsourced_constants
from inferometer.inputs.types import EngineSpec, HardwareSpec, ModelSpec, PriceSpec
from inferometer.perfmodel.kv_cache import kv_bytes_per_token
from inferometer.perfmodel.memory import (
    DEFAULT_UTILIZATION,
    MemoryBudget,
    MemoryQuestion,
    largest_batch_size,
    memory_budget,
)
from inferometer.perfmodel.roofline import (
    WITHIN_LINK,
    beyond_link,
    critical_batch_size,
    joule_per_million_tokens,
    kv_dtype,
    logits_bytes,
    peaks_of,
    usd_per_million_tokens,
)
from inferometer.perfmodel.scenario import (
    BEST,
    LIKELY,
    WORST,
    Phases,
    Scenario,
    bounds_of,
    decode_of,
    phases_at,
    prefill_of,
)
from inferometer.perfmodel.types import StepBound, StepWork
from inferometer.perfmodel.weights import n_active_parameters, n_parameters, weight_bytes
from inferometer.stats.estimate import Estimate

METHOD: Final = (
    "datasheet: max of bounds at the peaks .. sum of bounds at the lowest published efficiency"
)
CONFIDENCE_FRACTION: Final = 0.9
"""Nominal; how many published measurements lie inside is a test (test_datasheet_published)."""


_SLOW_KERNELS: Final = (
    "4-bit kernels reached 20 to 45 % of the bandwidth in published tables: the high end of the"
    " times may be too low"
)
_OTHER_VENDOR: Final = (
    "the efficiencies are those of NVIDIA devices; vLLM on MI300X took 2 to 8 times the likely time"
    " in a table of 2024"
)
_PRIOR_LAUNCH: Final = (
    "the host's launch time is a prior of 0.26 to 1.2 ms a layer: fit a sweep to know"
)
STEP_TIME_CAUTIONS: Final = frozenset({_SLOW_KERNELS, _OTHER_VENDOR, _PRIOR_LAUNCH})
"""Cautions that apply to step times from datasheets, but not to fitted ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsTrap:
    """Bytes of logits of the last position of each prompt, and of all positions."""

    last_bytes: int
    all_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Parameters of the model, and memory in bytes of one device unless stated otherwise."""

    n_parameters: int
    n_active_parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    """On all devices together, for contexts shorter than every sliding window."""
    memory: MemoryBudget
    largest_batch_size: int
    """The largest number of the scenario's sequences that fit in memory; 0 if not even one does."""
    logits: LogitsTrap


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseAnswer:
    """Work of one step of prefill or decode on one device, and its bounds at the peak rates."""

    work: StepWork
    bound: StepBound


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Latencies, and rates of the whole instance (all its devices together)."""

    ttft_s: Estimate
    tpot_s: Estimate
    tokens_per_s_per_user: Estimate  # 1 / TPOT
    decode_tokens_per_s: Estimate
    """Output tokens per second while all sequences decode."""
    output_tokens_per_s: Estimate
    """Output tokens over the whole duration of the batch, its prefill included."""
    total_tokens_per_s: Estimate
    """Prompt and output tokens over the whole duration of the batch."""
    mbu_fraction: Estimate
    """Model bandwidth utilisation in decode, relative to the datasheet's bandwidth."""
    mfu_fraction: Estimate
    """Model FLOP utilisation in prefill, relative to the datasheet's dense peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Cost of a million output tokens, with all devices paid and at rated power; None: unknown."""

    price: PriceSpec | None
    usd_per_million_tokens: Estimate | None
    power_watt: float | None
    joule_per_million_tokens: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasheetPrediction:
    """Everything that ``predict`` answers from datasheets."""

    scenario: Scenario
    sizes: Sizes
    prefill: PhaseAnswer
    decode: PhaseAnswer
    critical_batch_size: int
    """Batch size from which on the matrix products of decode are bound by compute."""
    speeds: Speeds
    costs: Costs
    cautions: tuple[str, ...]
    """Cautions: it does not fit, a number has no source, a format loses accuracy."""


def predict_scenario(
    scenario: Scenario,
    *,
    price: PriceSpec | None = None,
    utilization_fraction: float = DEFAULT_UTILIZATION.value,
) -> DatasheetPrediction:
    """Prediction for this scenario; ``price`` defaults to the catalogue's first for the device.

    Raises
    ------
    SpecError
        The scenario is impossible, such as a number format that the device does not have.
    """
    sizes = _sizes(scenario, utilization_fraction=utilization_fraction)
    speeds = _speeds(scenario)
    costs = _costs(scenario, speeds, price or next(iter(scenario.hardware.prices), None))
    prefill_bound, decode_bound = bounds_of(scenario)
    return DatasheetPrediction(
        scenario=scenario,
        sizes=sizes,
        prefill=PhaseAnswer(work=prefill_of(scenario)[1], bound=prefill_bound),
        decode=PhaseAnswer(work=decode_of(scenario)[1], bound=decode_bound),
        critical_batch_size=critical_batch_size(
            scenario.model, scenario.engine, peaks_of(scenario.hardware, scenario.engine)
        ),
        speeds=speeds,
        costs=costs,
        cautions=_cautions(scenario, sizes, costs),
    )


def sheet_at(sheet: DatasheetPrediction, ttft_s: Estimate, tpot_s: Estimate) -> DatasheetPrediction:
    """The prediction with other latencies, and the rates, utilisation and costs that follow."""
    scenario, before = sheet.scenario, sheet.speeds
    n_gaps, n_prompt = scenario.output_tokens - 1, scenario.prompt_tokens

    def duration(first: float, gap: float) -> float:
        return first + n_gaps * gap

    whole_s = replace(
        ttft_s,
        value=duration(ttft_s.value, tpot_s.value),
        low=duration(ttft_s.low or ttft_s.value, tpot_s.low or tpot_s.value),
        high=duration(ttft_s.high or ttft_s.value, tpot_s.high or tpot_s.value),
    )
    n_output = scenario.batch_size * scenario.output_tokens
    speeds = Speeds(
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        tokens_per_s_per_user=tpot_s.inverted(),
        decode_tokens_per_s=tpot_s.inverted(scenario.batch_size),
        output_tokens_per_s=whole_s.inverted(n_output),
        total_tokens_per_s=whole_s.inverted(n_output + scenario.batch_size * n_prompt),
        mbu_fraction=tpot_s.inverted(before.mbu_fraction.value * before.tpot_s.value),
        mfu_fraction=ttft_s.inverted(
            prefill_of(scenario)[1].total_flop
            / peaks_of(scenario.hardware, scenario.engine).flop_per_s
        ),
    )
    return replace(sheet, speeds=speeds, costs=_costs(scenario, speeds, sheet.costs.price))


def memory_question(
    scenario: Scenario, *, utilization_fraction: float = DEFAULT_UTILIZATION.value
) -> MemoryQuestion:
    """The scenario as a question to ``perfmodel.memory``."""
    return MemoryQuestion(
        model=scenario.model,
        engine=scenario.engine,
        hardware=scenario.hardware,
        context_tokens=scenario.prompt_tokens + scenario.output_tokens,
        prompt_tokens=scenario.prompt_tokens,
        plan=scenario.used_plan,
        max_step_tokens=scenario.max_step_tokens if scenario.mode == "engine" else None,
        utilization_fraction=utilization_fraction,
        is_sparse=scenario.is_sparse,
        has_all_logits=scenario.has_all_logits,
        has_stored_scores=scenario.mode == "eager",
    )


def _sizes(scenario: Scenario, *, utilization_fraction: float) -> Sizes:
    model, engine = scenario.model, scenario.engine
    question = memory_question(scenario, utilization_fraction=utilization_fraction)
    return Sizes(
        n_parameters=n_parameters(model),
        n_active_parameters=n_active_parameters(model),
        weight_bytes=weight_bytes(model, engine, is_sparse=scenario.is_sparse),
        kv_bytes_per_token=kv_bytes_per_token(model, kv_dtype(engine)),
        memory=memory_budget(question, scenario.batch_size),
        largest_batch_size=largest_batch_size(question),
        logits=logits_trap(
            model, engine, batch_size=scenario.batch_size, prompt_tokens=scenario.prompt_tokens
        ),
    )


def _speeds(scenario: Scenario) -> Speeds:
    best = phases_at(scenario, BEST)
    likely = phases_at(scenario, LIKELY)
    worst = phases_at(scenario, WORST)

    def estimate(pick: Callable[[Phases], float]) -> Estimate:
        return Estimate(
            value=pick(likely),
            low=pick(best),
            high=pick(worst),
            confidence_fraction=CONFIDENCE_FRACTION,
            n_samples=1,
            method=METHOD,
        )

    peaks = peaks_of(scenario.hardware, scenario.engine)
    ttft_s, tpot_s = estimate(lambda phases: phases.ttft_s), estimate(lambda phases: phases.tpot_s)
    duration_s = estimate(
        lambda phases: phases.ttft_s + (scenario.output_tokens - 1) * phases.tpot_s
    )
    n_output = scenario.batch_size * scenario.output_tokens
    decode_work, prefill_work = decode_of(scenario)[1], prefill_of(scenario)[1]
    step_bytes = decode_work.weight_bytes + decode_work.kv_read_bytes
    return Speeds(
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        tokens_per_s_per_user=tpot_s.inverted(),
        decode_tokens_per_s=tpot_s.inverted(scenario.batch_size),
        output_tokens_per_s=duration_s.inverted(n_output),
        total_tokens_per_s=duration_s.inverted(
            n_output + scenario.batch_size * scenario.prompt_tokens
        ),
        mbu_fraction=tpot_s.inverted(
            step_bytes / scenario.expected_step_tokens / peaks.memory_bytes_per_s
        ),
        mfu_fraction=estimate(lambda phases: phases.prefill_s).inverted(
            prefill_work.total_flop / peaks.flop_per_s
        ),
    )


def _costs(scenario: Scenario, speeds: Speeds, price: PriceSpec | None) -> Costs:
    rate, n_devices = speeds.output_tokens_per_s, scenario.n_devices
    rated = scenario.hardware.power_watt
    power_watt = None if rated is None else rated.value * n_devices
    return Costs(
        price=price,
        usd_per_million_tokens=(
            None
            if price is None
            else usd_per_million_tokens(rate, usd_per_hour=price.usd_per_hour * n_devices)
        ),
        power_watt=power_watt,
        joule_per_million_tokens=(
            None if power_watt is None else joule_per_million_tokens(rate, power_watt=power_watt)
        ),
    )


def _device_cautions(hardware: HardwareSpec, engine: EngineSpec) -> list[str]:
    cautions: list[str] = []
    too_wide = beyond_link(hardware, engine.tensor_parallel_size)
    if too_wide is not None:
        cautions.append(f"{too_wide}; {WITHIN_LINK}")
    if hardware.note is not None:
        cautions.append(f"{hardware.name}: {hardware.note.rstrip('.')}")
    unsourced = unsourced_constants(hardware)
    if unsourced:
        cautions.append(
            f"without a source in the catalogue of {hardware.name}: {', '.join(unsourced)}"
        )
    if hardware.vendor != "nvidia":
        cautions.append(_OTHER_VENDOR)
    return cautions


def _cautions(scenario: Scenario, sizes: Sizes, costs: Costs) -> tuple[str, ...]:
    engine, hardware = scenario.engine, scenario.hardware
    cautions: list[str] = []
    if not sizes.memory.fits:
        missing = f"{-sizes.memory.free_bytes / 2**30:,.1f} GiB are missing on each device"
        cautions.append(
            f"does not fit: {missing}; largest batch {sizes.largest_batch_size}; times assume"
            " it did"
        )
    cautions += _device_cautions(hardware, engine)
    if engine.quantization not in {None, scenario.model.checkpoint_dtype}:
        cautions.append(f"weights in {engine.quantization} lose quality: check it beside the speed")
    if engine.quantization in {"int4", "float4"}:
        cautions.append(_SLOW_KERNELS)
    if scenario.is_sparse:
        known = (
            ""
            if hardware.vendor == "nvidia"
            else "; its gains were published for NVIDIA devices alone"
        )
        cautions.append(
            "2:4 sparsity needs pruned weights, a check of quality, and an engine with kernels for"
            f" it{known}"
        )
    plan = scenario.plan
    if plan is not None and plan.has_expert_parallelism and scenario.model.moe is not None:
        cautions.append("--ep: experts chosen unequally make steps longer, which is not modelled")
    is_singly = scenario.mode == "eager" or scenario.is_launched_singly
    if scenario.launch_overhead_s is None and is_singly:
        cautions.append(_PRIOR_LAUNCH)
    if costs.price is not None:
        cautions.append(f"price: {costs.price.basis}; prices on different bases do not compare")
    if scenario.model.note is not None:
        cautions.append(scenario.model.note)
    return tuple(cautions)


def logits_trap(
    model: ModelSpec, engine: EngineSpec, *, batch_size: int, prompt_tokens: int
) -> LogitsTrap:
    """Bytes of logits if a prefill computes those of each prompt's last position, or of all."""
    return LogitsTrap(
        last_bytes=logits_bytes(model, engine.dtype, batch_size=batch_size, n_positions=1),
        all_bytes=logits_bytes(
            model, engine.dtype, batch_size=batch_size, n_positions=prompt_tokens
        ),
    )
