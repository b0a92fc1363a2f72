"""Gain of a change: precision, sparsity, KV heads, devices, speculation, prefix cache, graphs.

Each change makes another scenario; both are predicted from datasheets and compared. A ratio of
two such predictions is better known than either, because their common efficiencies cancel: the
interval of a gain is that over all levels of efficiency.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from inferometer import suggestions
from inferometer.errors import SpecError
from inferometer.inputs.types import DType, HardwareSpec, ModelSpec
from inferometer.perfmodel.communication import ParallelPlan
from inferometer.perfmodel.datasheet import DatasheetPrediction, memory_question, predict_scenario
from inferometer.perfmodel.memory import memory_budget
from inferometer.perfmodel.scenario import (
    BEST,
    LIKELY,
    WORST,
    Phases,
    Scenario,
    phases_at,
)
from inferometer.stats.estimate import Estimate

METHOD: Final = "datasheet: the same change at three levels of efficiency"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a scenario, and what it needs."""

    name: str
    """The flags of ``inferometer predict`` for it, if any."""
    scenario: Scenario
    needs: str | None = None
    """What must be true or done first, such as other weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What a change gains.

    Ratios are before / after: above 1 is faster; that of throughput is after / before.
    """

    change: Change
    after: DatasheetPrediction
    ttft_gain_ratio: Estimate
    tpot_gain_ratio: Estimate
    throughput_gain_ratio: Estimate
    """Output tokens per second and device."""
    weight_bytes_saved: int
    """On each device."""


def what_if(before: Scenario, change: Change) -> WhatIf:
    """Gain of this change over the scenario ``before``.

    Raises
    ------
    SpecError
        The changed scenario is impossible.
    """
    plain, after = predict_scenario(before), predict_scenario(change.scenario)

    def gain(pick: Callable[[Scenario, Phases], float]) -> Estimate:
        levels = (LIKELY, BEST, WORST)
        ratios = [
            pick(before, phases_at(before, level))
            / pick(change.scenario, phases_at(change.scenario, level))
            for level in levels
        ]
        return Estimate(
            value=ratios[0],
            low=min(ratios),
            high=max(ratios),
            confidence_fraction=0.9,
            n_samples=1,
            method=METHOD,
        )

    return WhatIf(
        change=change,
        after=after,
        ttft_gain_ratio=gain(lambda _, phases: phases.ttft_s),
        tpot_gain_ratio=gain(lambda _, phases: phases.tpot_s),
        throughput_gain_ratio=gain(_device_seconds_per_token_s),
        weight_bytes_saved=plain.sizes.weight_bytes - after.sizes.weight_bytes,
    )


def newly_fits_on(
    before: Scenario, after: Scenario, devices: Sequence[HardwareSpec]
) -> tuple[HardwareSpec, ...]:
    """Devices on which the changed scenario fits and the old one does not."""

    def fits(scenario: Scenario, device: HardwareSpec) -> bool:
        return memory_budget(
            memory_question(replace(scenario, hardware=device)), scenario.batch_size
        ).fits

    return tuple(device for device in devices if fits(after, device) and not fits(before, device))


def with_quantization(scenario: Scenario, dtype: DType) -> Change:
    """The matrices of the layers in fewer bits."""
    engine = replace(scenario.engine, quantization=dtype)
    return Change(
        name=suggestions.flags("--quantization", dtype),
        scenario=replace(scenario, engine=engine),
        needs="quantised weights, and a check of quality",
    )


def with_kv_dtype(scenario: Scenario, dtype: DType) -> Change:
    """The KV cache in another number format."""
    engine = replace(scenario.engine, kv_cache_dtype=dtype)
    return Change(
        name=suggestions.flags("--kv-cache-dtype", dtype),
        scenario=replace(scenario, engine=engine),
        needs="a check of quality",
    )


def with_sparsity(scenario: Scenario) -> Change:
    """The matrices of the layers 2:4 sparse."""
    return Change(
        name="2:4 sparsity",
        scenario=replace(scenario, is_sparse=True),
        needs="weights pruned 2:4, and a check of quality",
    )


def with_kv_heads(scenario: Scenario, n_kv_heads: int) -> Change:
    """As many query heads sharing fewer (or more) KV heads.

    Raises
    ------
    SpecError
        The query heads cannot be shared out.
    """
    if scenario.model.mla is not None:
        raise SpecError(
            "latent attention has no KV heads to share",
            where="KV heads",
            allowed="models with KV heads",
        )
    attention = replace(scenario.model.attention, n_kv_heads=n_kv_heads)
    model = replace(scenario.model, attention=attention)
    return Change(
        name=f"{n_kv_heads} KV heads",
        scenario=replace(scenario, model=model),
        needs="a model trained so (arXiv 2305.13245)",
    )


def with_window(scenario: Scenario, *, window_tokens: int, n_sinks: int) -> Change:
    """Each layer keeps and reads the first tokens (sinks) and the last ones (the window) alone."""
    model = windowed(scenario.model, window_tokens=window_tokens, n_sinks=n_sinks)
    return Change(
        name=suggestions.flags("--attention-window", window_tokens, "--attention-sinks", n_sinks),
        scenario=replace(scenario, model=model),
        needs="a check of quality: what has left the window is forgotten (arXiv 2309.17453)",
    )


def windowed(model: ModelSpec, *, window_tokens: int, n_sinks: int) -> ModelSpec:
    """The model with attention sinks and a window in every layer (StreamingLLM, arXiv 2309.17453).

    A query reads as many rows as in a sliding window that is longer by the sinks, and the cache
    stops growing there.

    Raises
    ------
    SpecError
        Its attention is latent, compressed or windowed already.
    """
    heads = model.attention
    if model.mla is not None or model.compressed is not None or heads.sliding_window_tokens:
        raise SpecError(
            f"the attention of {model.model_id} is latent, compressed or windowed already",
            where="--attention-window",
            allowed="models whose layers all attend to the whole context",
        )
    window = window_tokens + n_sinks
    return replace(
        model,
        attention=replace(heads, sliding_window_tokens=window, n_full_attention_layers=0),
    )


def with_devices(scenario: Scenario, *, n_tensor: int, n_pipeline: int = 1) -> Change:
    """The model over more devices: matrices split, layers split, or both."""
    plan = ParallelPlan(n_tensor=n_tensor, n_pipeline=n_pipeline)
    engine = replace(scenario.engine, tensor_parallel_size=n_tensor)
    return Change(
        name=suggestions.flags("--tp", n_tensor, "--pp", n_pipeline),
        scenario=replace(scenario, engine=engine, plan=plan),
    )


def with_prefix_hits(scenario: Scenario, hit_fraction: float) -> Change:
    """A share of each prompt already in the prefix cache."""
    return Change(
        name=suggestions.flags("--prefix-hit", hit_fraction),
        scenario=replace(scenario, prefix_hit_fraction=hit_fraction),
    )


def with_graphs(scenario: Scenario) -> Change:
    """Steps captured in graphs instead of kernels launched one by one."""
    return Change(
        name=suggestions.flags("--mode", "graphs"),
        scenario=replace(scenario, mode="graphs", launch_overhead_s=None),
    )


def with_eager(scenario: Scenario) -> Change:
    """Kernels that the host launches one by one, in a bare loop, instead of captured graphs."""
    return Change(
        name=suggestions.flags("--mode", "eager"),
        scenario=replace(scenario, mode="eager", launch_overhead_s=None),
        needs="nothing; hosts differ, so the interval is wide",
    )


def with_attention_kernel(scenario: Scenario) -> Change:
    """The other kind of attention kernel: one that stores its scores, or one that tiles them."""
    if scenario.attention_kernel == "tiled":
        return Change(
            name="attention that stores its scores",
            scenario=replace(scenario, attention="stored scores"),
            needs="transformers' --attn eager; it is what tiling kernels save",
        )
    return Change(
        name="attention that tiles (FlashAttention, SDPA)",
        scenario=replace(scenario, attention="tiled"),
        needs="an engine or --attn with such a kernel",
    )


def with_sequence_parallelism(scenario: Scenario) -> Change:
    """Norms on a share of the tokens: each all-reduce becomes a reduce-scatter and an all-gather.

    Raises
    ------
    SpecError
        One device has nothing to share.
    """
    plan = scenario.used_plan
    if plan.n_tensor < 2 or plan.has_sequence_parallelism:
        raise SpecError(
            "no tensor parallelism, or split sequences already",
            where="sequence parallelism",
            allowed="2 devices or more",
            try_=suggestions.flags("--tp", 2),
        )
    return Change(
        name="sequence parallelism",
        scenario=replace(scenario, plan=replace(plan, has_sequence_parallelism=True)),
        needs="the same bytes in twice the messages; it saves activations' memory (arXiv 2205.05198)",
    )


def without_kv_cache(scenario: Scenario) -> Change:
    """Each output token computes the whole sequence again."""
    return Change(
        name="no KV cache: token N computes N",
        scenario=replace(scenario, has_kv_cache=False),
    )


def _device_seconds_per_token_s(scenario: Scenario, phases: Phases) -> float:
    duration_s = phases.ttft_s + (scenario.output_tokens - 1) * phases.tpot_s
    return duration_s * scenario.n_devices / (scenario.batch_size * scenario.output_tokens)
