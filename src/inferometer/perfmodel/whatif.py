"""The gain of a change: precision, sparsity, KV heads, devices, speculation, prefix cache, graphs.

The scenarios before and after a change are both predicted from datasheets. The ratio of two such
predictions has a narrower interval than either, because their common efficiencies cancel: the
interval of a gain is its range over the levels of efficiency.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from inferometer import suggestions
from inferometer.errors import SpecError
from inferometer.inputs.types import (
    DTYPE_BITS,
    AttentionSpec,
    DType,
    HardwareSpec,
    ModelSpec,
    Source,
)
from inferometer.perfmodel.datasheet import DatasheetPrediction, memory_question, predict_scenario
from inferometer.perfmodel.memory import memory_budget
from inferometer.perfmodel.roofline import ParallelPlan
from inferometer.perfmodel.scenario import (
    BEST,
    LIKELY,
    WORST,
    Efficiency,
    Phases,
    Scenario,
    Speculation,
    peaks_at,
    phases_at,
)
from inferometer.stats.estimate import Estimate

METHOD: Final = "datasheet: the same change at three levels of efficiency"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A scenario after a change, and what the change requires."""

    name: str
    """The flags of ``inferometer predict`` for it, if any."""
    scenario: Scenario
    needs: str | None = None
    """What it requires, such as other weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The gains of a change.

    Ratios of times are before / after, that of throughput after / before: above 1 is faster.
    """

    change: Change
    after: DatasheetPrediction
    ttft_gain_ratio: Estimate
    tpot_gain_ratio: Estimate
    throughput_gain_ratio: Estimate
    """Ratio of output tokens per second and device."""
    weight_bytes_saved: int
    """Bytes of weights saved on each device."""


def what_if(before: Scenario, change: Change) -> WhatIf:
    """The gains of a change, compared with the scenario ``before``.

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
    """Devices of the catalogue on which only the changed scenario fits."""

    def fits(scenario: Scenario, device: HardwareSpec) -> bool:
        return memory_budget(
            memory_question(replace(scenario, hardware=device)), scenario.batch_size
        ).fits

    return tuple(device for device in devices if fits(after, device) and not fits(before, device))


def with_quantization(scenario: Scenario, dtype: DType) -> Change:
    """The scenario with the matrices of the layers stored in fewer bits."""
    engine = replace(scenario.engine, quantization=dtype)
    return Change(
        name=suggestions.flags("--quantization", dtype),
        scenario=replace(scenario, engine=engine),
        needs="quantised weights, and a check of quality",
    )


def with_kv_dtype(scenario: Scenario, dtype: DType) -> Change:
    """The scenario with the KV cache in another number format."""
    engine = replace(scenario.engine, kv_cache_dtype=dtype)
    return Change(
        name=suggestions.flags("--kv-cache-dtype", dtype),
        scenario=replace(scenario, engine=engine),
        needs="a check of quality",
    )


def with_sparsity(scenario: Scenario) -> Change:
    """The scenario with 2:4 sparse matrices in the layers."""
    return Change(
        name="2:4 sparsity",
        scenario=replace(scenario, is_sparse=True),
        needs="weights pruned 2:4, and a check of quality",
    )


def with_kv_heads(scenario: Scenario, n_kv_heads: int) -> Change:
    """The scenario with another number of KV heads in the model.

    Raises
    ------
    SpecError
        The query heads cannot be divided evenly among the KV heads.
    """
    if scenario.model.mla is not None:
        raise SpecError(
            "latent attention has no KV heads to share",
            where="KV heads",
            allowed="models with KV heads",
        )

    def shared(heads: AttentionSpec) -> AttentionSpec:
        full = None if heads.full is None else replace(heads.full, n_kv_heads=n_kv_heads)
        return replace(heads, n_kv_heads=n_kv_heads, full=full)

    return Change(
        name=f"{n_kv_heads} KV head{'s' * (n_kv_heads > 1)}",
        scenario=replace(scenario, model=_with_heads(scenario.model, shared)),
        needs="a model trained so (arXiv 2305.13245)",
    )


def with_window(scenario: Scenario, *, window_tokens: int, n_sinks: int) -> Change:
    """The scenario with attention only to the first tokens (sinks) and a sliding window."""
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
            try_="the same command without --attention-window",
        )
    window = window_tokens + n_sinks
    return _with_heads(
        model,
        lambda one: replace(one, sliding_window_tokens=window, n_full_attention_layers=0),
    )


def _with_heads(model: ModelSpec, change: Callable[[AttentionSpec], AttentionSpec]) -> ModelSpec:
    """The model with another attention in all groups of layers."""
    groups = tuple(replace(one, attention=change(one.attention)) for one in model.groups)
    return replace(model, attention=change(model.attention), groups=groups)


def with_devices(scenario: Scenario, *, n_tensor: int) -> Change:
    """The scenario with the model's matrices split over more devices."""
    plan = ParallelPlan(n_tensor=n_tensor)
    engine = replace(scenario.engine, tensor_parallel_size=n_tensor)
    return Change(
        name=suggestions.flags("--tp", n_tensor, "--pp", 1),
        scenario=replace(scenario, engine=engine, plan=plan),
    )


def with_prefix_hits(scenario: Scenario, hit_fraction: float) -> Change:
    """The scenario with a share of each prompt in the prefix cache."""
    return Change(
        name=suggestions.flags("--prefix-hit", hit_fraction),
        scenario=replace(scenario, prefix_hit_fraction=hit_fraction),
    )


def with_graphs(scenario: Scenario) -> Change:
    """The scenario with steps that run as captured graphs, not kernel by kernel."""
    if scenario.is_launched_singly:
        return Change(
            name="without --enforce-eager",
            scenario=replace(scenario, is_launched_singly=False),
            needs="memory for the graphs, and a longer start",
        )
    return Change(
        name=suggestions.flags("--mode", "graphs"),
        scenario=replace(scenario, mode="graphs", launch_overhead_s=None),
        needs="an engine that captures its steps (transformers: --mode compiled)",
    )


def with_eager(scenario: Scenario) -> Change:
    """The scenario with kernels launched one by one in a bare loop, without captured graphs.

    The host's time is that of steps launched kernel by kernel, if the fit has such steps; otherwise
    at least that of a captured step.
    """
    captured_s, ratio = scenario.launch_overhead_s, scenario.kernels_launch_ratio
    is_known = captured_s is not None and ratio is not None
    eager = replace(
        scenario,
        mode="eager",
        launch_overhead_s=None if captured_s is None or ratio is None else captured_s * ratio,
        prefill_launch_ratio=1.0,
        kernels_launch_ratio=None,
        least_launch_s=captured_s or 0.0,
    )
    return Change(
        name=suggestions.flags("--mode", "eager"),
        scenario=eager,
        needs="nothing" if is_known else "nothing; hosts differ, so the interval is wide",
    )


def with_attention_kernel(scenario: Scenario) -> Change:
    """The scenario with the other attention kernel: one that stores its scores, or tiles them."""
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
    """The scenario with sequence parallelism.

    Each device computes the norms of a share of the tokens, so that each all-reduce becomes a
    reduce-scatter and an all-gather.

    Raises
    ------
    SpecError
        There is only one device.
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
    """The scenario without a KV cache: each output token computes the whole sequence again."""
    return Change(
        name="no KV cache: token N computes N",
        scenario=replace(scenario, has_kv_cache=False),
    )


def _device_seconds_per_token_s(scenario: Scenario, phases: Phases) -> float:
    """Device time per output token: duration of the batch · devices / its output tokens."""
    duration_s = phases.ttft_s + (scenario.output_tokens - 1) * phases.tpot_s
    return duration_s * scenario.n_devices / (scenario.batch_size * scenario.output_tokens)


# Speculative decoding by a named method: the best number of draft tokens, and the largest batch at
# which it helps.
#
# A draft model proposes k tokens, and the model verifies all of them in one step. If a step is
# bound by memory, verifying k + 1 tokens takes little longer than computing one. If it is bound by
# compute, every rejected token costs as much as an accepted one. So speculation helps at small
# batches.


MethodName: TypeAlias = Literal["ngram", "draft_model", "eagle", "medusa", "redrafter", "mtp"]
METHODS: Final[tuple[MethodName, ...]] = get_args(MethodName)
_LEVELS: Final[tuple[Efficiency, ...]] = (LIKELY, BEST, WORST)
_MOST_TOKENS: Final = 8


class Acceptance(NamedTuple):
    """Probability that a draft token is accepted if those before it were; a range over texts."""

    low_fraction: float
    likely_fraction: float
    high_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A method of speculative decoding: its requirements, most draft tokens, and acceptance."""

    name: MethodName
    needs: str
    most_tokens: int
    acceptance: Acceptance
    source: Source


_KNOWN: Final = {
    "ngram": Method(
        name="ngram",
        needs="nothing but text that repeats its prompt",
        most_tokens=_MOST_TOKENS,
        acceptance=Acceptance(0.1, 0.4, 0.8),
        source=Source(
            kind="derived",
            where="bigrams of plain text 0.2 (arXiv 2211.17192, 4.3); copying tasks far more",
        ),
    ),
    "draft_model": Method(
        name="draft_model",
        needs="a small model with the same tokenizer",
        most_tokens=_MOST_TOKENS,
        acceptance=Acceptance(0.5, 0.65, 0.8),
        source=Source(kind="derived", where="arXiv 2211.17192, table 3: 0.5 to 0.9 by model"),
    ),
    "eagle": Method(
        name="eagle",
        needs="a head trained for this model",
        most_tokens=_MOST_TOKENS,
        acceptance=Acceptance(0.6, 0.72, 0.8),
        source=Source(kind="derived", where="arXiv 2401.15077: chains of Vicuna and LLaMA2-Chat"),
    ),
    "medusa": Method(
        name="medusa",
        needs="heads trained for this model",
        most_tokens=5,
        acceptance=Acceptance(0.4, 0.55, 0.65),
        source=Source(kind="derived", where="arXiv 2401.10774: first candidate of each head"),
    ),
    "redrafter": Method(
        name="redrafter",
        needs="a recurrent head trained for this model",
        most_tokens=_MOST_TOKENS,
        acceptance=Acceptance(0.5, 0.65, 0.75),
        source=Source(kind="derived", where="arXiv 2403.09919: beams of Vicuna"),
    ),
    "mtp": Method(
        name="mtp",
        needs="a model with prediction layers, such as DeepSeek-V3",
        most_tokens=3,
        acceptance=Acceptance(0.7, 0.85, 0.9),
        source=Source(kind="page", where="arXiv 2412.19437, 5.4.3: second token 0.85 to 0.90"),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLength:
    """The gain with ``n_draft_tokens`` draft tokens per step, at the scenario's batch size."""

    n_draft_tokens: int
    tpot_gain_ratio: float
    """Plain TPOT / TPOT with drafts, at likely efficiency and acceptance."""
    low_ratio: float
    high_ratio: float
    """Ends of the gain's range over efficiencies and published acceptances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestSpeculation:
    """The best number of draft tokens of a method, and the largest batch at which it gains."""

    method: MethodName
    draft_model: str | None
    needs: str
    acceptance: Acceptance
    acceptance_from: str
    lengths: tuple[DraftLength, ...]
    best: Speculation
    """The best speculation at likely efficiency and acceptance; its gain is in ``lengths``."""
    break_even_batch: int
    """The largest batch at which some number of draft tokens gains; 0: none does."""
    break_even_low_batch: int
    break_even_high_batch: int
    """The break-even batch at the lowest and at the highest acceptance."""
    largest_batch: int
    """The largest batch that fits in memory; ``break_even_batch`` if all batches gain."""

    @property
    def best_length(self) -> DraftLength:
        """The entry of ``lengths`` with the best number of draft tokens."""
        return next(one for one in self.lengths if one.n_draft_tokens == self.best.n_draft_tokens)


class Draft(NamedTuple):
    """A method, its draft model (if it has one), and the acceptance (if it was measured)."""

    method: MethodName
    model: ModelSpec | None = None
    acceptance_fraction: float | None = None
    n_tokens: int | None = None
    """None: the best number."""


def find_method(name: MethodName) -> Method:
    """The method with this name, with its published acceptance.

    Example
    -------
    >>> find_method("mtp").most_tokens
    3
    """
    return _KNOWN[name]


def best_speculation(plain: Scenario, draft: Draft, *, largest_batch: int) -> BestSpeculation:
    """The best number of draft tokens for the scenario ``plain`` with this method.

    The break-even batch is searched among batches that fit in memory, up to ``largest_batch``.

    Raises
    ------
    SpecError
        The acceptance is not a probability, or the device does not compute in the format.

    Source
    ------
    Leviathan, Kalman and Matias (arXiv 2211.17192), theorem 3.8, with the time that checking
    takes on this device instead of that of one token.
    """
    method = find_method(draft.method)
    stated = draft.acceptance_fraction
    acceptance = method.acceptance if stated is None else Acceptance(stated, stated, stated)
    plain = replace(plain, speculation=None)
    most = max(method.most_tokens, draft.n_tokens or 0)
    lengths = tuple(_length(plain, draft, acceptance, k) for k in range(1, most + 1))
    best = max(lengths, key=lambda one: one.tpot_gain_ratio)
    best = best if draft.n_tokens is None else lengths[draft.n_tokens - 1]
    low, likely, high = (
        _break_even_batch(plain, draft, one, max(largest_batch, 1)) for one in acceptance
    )
    return BestSpeculation(
        method=draft.method,
        draft_model=None if draft.model is None else draft.model.model_id,
        needs=method.needs,
        acceptance=acceptance,
        acceptance_from=method.source.where if stated is None else "as stated",
        lengths=lengths,
        best=Speculation(
            n_draft_tokens=best.n_draft_tokens,
            acceptance_fraction=acceptance.likely_fraction,
            draft_cost_ratio=draft_cost_ratio(plain, draft, LIKELY),
        ),
        break_even_batch=likely,
        break_even_low_batch=low,
        break_even_high_batch=high,
        largest_batch=largest_batch,
    )


def draft_cost_ratio(plain: Scenario, draft: Draft, efficiency: Efficiency) -> float:
    """Time of one draft token / time of a plain decode step, without the engine's fixed time.

    n-gram: a look-up on the host (0). EAGLE and MTP: one layer and the output head. Medusa and
    ReDrafter: the output head for each token. A draft model: one of its own steps.

    Raises
    ------
    SpecError
        The draft model does not run on these devices.
    """
    if draft.method == "ngram":
        return 0.0
    step_s = phases_at(plain, efficiency).tpot_s
    alone = replace(plain, mode="graphs", launch_overhead_s=None)
    if draft.method == "draft_model":
        if draft.model is None:
            raise SpecError(
                "a draft model that is not named",
                where="--speculative draft_model",
                allowed="the name of a model",
                try_="--speculative llama-3.2-1b",
            )
        return phases_at(replace(alone, model=draft.model), efficiency).tpot_s / step_s
    head_s = _head_s(plain, efficiency)
    if draft.method in {"medusa", "redrafter"}:
        return head_s / step_s
    layers_s = max(phases_at(alone, efficiency).tpot_s - head_s, 0.0)
    return (layers_s / plain.model.n_layers + head_s) / step_s


def _head_s(plain: Scenario, efficiency: Efficiency) -> float:
    """Time of the output head alone in a decode step, in seconds."""
    peaks = peaks_at(plain.hardware, plain.engine, efficiency)
    n_weights = plain.model.vocab_size * plain.model.hidden_size / plain.used_plan.n_tensor
    read_s = n_weights * DTYPE_BITS[plain.engine.dtype] / 8 / peaks.memory_bytes_per_s
    return max(read_s, 2 * n_weights * plain.step_batch_size / peaks.flop_per_s)


def _length(plain: Scenario, draft: Draft, acceptance: Acceptance, k: int) -> DraftLength:
    """The gain with ``k`` draft tokens, with its range over efficiencies and acceptances."""
    gains = [_gain_ratio(plain, draft, k, one, level) for level in _LEVELS for one in acceptance]
    return DraftLength(
        n_draft_tokens=k,
        tpot_gain_ratio=_gain_ratio(plain, draft, k, acceptance.likely_fraction, LIKELY),
        low_ratio=min(gains),
        high_ratio=max(gains),
    )


def _gain_ratio(
    plain: Scenario, draft: Draft, k: int, acceptance_fraction: float, efficiency: Efficiency
) -> float:
    """Plain TPOT / TPOT with ``k`` draft tokens, at this acceptance and efficiency."""
    speculation = Speculation(
        n_draft_tokens=k,
        acceptance_fraction=acceptance_fraction,
        draft_cost_ratio=draft_cost_ratio(plain, draft, efficiency),
    )
    after = phases_at(replace(plain, speculation=speculation), efficiency)
    return phases_at(plain, efficiency).tpot_s / after.tpot_s


def _break_even_batch(
    plain: Scenario, draft: Draft, acceptance_fraction: float, largest_batch: int
) -> int:
    """The largest batch at which some number of draft tokens gains: doubling, then bisection."""
    lengths = range(1, find_method(draft.method).most_tokens + 1)

    def gains(batch: int) -> bool:
        here = replace(plain, batch_size=batch)
        return any(_gain_ratio(here, draft, k, acceptance_fraction, LIKELY) > 1 for k in lengths)

    doublings = [1 << power for power in range(largest_batch.bit_length())]
    tried = sorted({*doublings, largest_batch})
    helped = [batch for batch in tried if gains(batch)]
    if not helped or helped[-1] == largest_batch:
        return helped[-1] if helped else 0
    low, high = helped[-1], next(batch for batch in tried if batch > helped[-1])
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if gains(middle) else (low, middle)
    return low
