"""Static batches for predictions from datasheets, and their phases' times at an efficiency."""

from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from inferometer.errors import SpecError
from inferometer.inputs.types import EngineSpec, HardwareSpec, ModelSpec, Source
from inferometer.perfmodel.roofline import (
    ParallelPlan,
    Peaks,
    bound_peaks,
    peaks_of,
    plan_of,
    step_bound,
    step_work,
)
from inferometer.perfmodel.types import BatchShape, StepBound, StepWork, decode_shape, prefill_shape
from inferometer.perfmodel.weights import step_weight_bytes

# Speculative decoding: the tokens that a step yields, and the step that verifies drafts.


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """A draft proposes ``n_draft_tokens``, the model verifies them in one step.

    ``acceptance_fraction`` is the probability that a proposed token is accepted if those before
    it were. ``draft_cost_ratio`` is the time of a draft's step relative to a plain decode step
    of the model (0 for n-gram look-up).
    """

    n_draft_tokens: int
    acceptance_fraction: float
    draft_cost_ratio: float

    def __post_init__(self) -> None:
        if (
            self.n_draft_tokens < 1
            or not 0 <= self.acceptance_fraction <= 1
            or self.draft_cost_ratio < 0
        ):
            raise SpecError(
                f"speculation of {self.n_draft_tokens} tokens, acceptance"
                f" {self.acceptance_fraction}, draft cost {self.draft_cost_ratio}",
                where="--speculative",
                allowed="1 token or more, acceptance from 0 to 1, cost 0 or more",
                try_="--speculative 3,0.7,0.1",
            )


def expected_tokens(speculation: Speculation) -> float:
    """Mean tokens of a step, the model's own token included: (1 - a^(k + 1)) / (1 - a).

    Source
    ------
    Leviathan, Kalman and Matias, Fast Inference from Transformers via Speculative Decoding
    (arXiv 2211.17192), equation 1.

    Example
    -------
    >>> round(expected_tokens(Speculation(n_draft_tokens=4, acceptance_fraction=0.8, draft_cost_ratio=0.05)), 4)
    3.3616
    """
    accepted, n_draft_tokens = speculation.acceptance_fraction, speculation.n_draft_tokens
    if accepted == 1:
        return float(n_draft_tokens + 1)
    return (1 - accepted ** (n_draft_tokens + 1)) / (1 - accepted)


def verification_shape(
    speculation: Speculation, *, batch_size: int, context_tokens: int
) -> BatchShape:
    """The step that verifies k draft tokens: k + 1 new tokens with logits for each sequence.

    ``context_tokens`` is the context of a plain decode step, its new token included.
    """
    new_tokens, cached_tokens = speculation.n_draft_tokens + 1, context_tokens - 1
    return BatchShape(
        n_prefill_requests=batch_size,
        n_decode_requests=0,
        prefill_tokens=batch_size * new_tokens,
        prefill_context_product_tokens2=batch_size
        * (new_tokens * cached_tokens + new_tokens * (new_tokens + 1) // 2),
        decode_context_tokens=0,
        n_logit_positions=batch_size * new_tokens,
    )


RunMode: TypeAlias = Literal["eager", "graphs", "engine"]
"""How steps are launched: kernel by kernel (transformers' eager), as captured graphs in a bare loop
(torch.compile), or as graphs by a serving engine with its scheduler and front end."""

AttentionKernel: TypeAlias = Literal["tiled", "stored scores"]
"""Does attention keep its scores on chip ("tiled": FlashAttention, SDPA, paged kernels), or write
them to memory (eager attention)?"""

Overlap: TypeAlias = Literal["everything", "compute and memory", "nothing"]
"""Which of compute, memory and link traffic overlap in time. An all-reduce waits for its data, and
the next matrix for the all-reduce, so link traffic rarely overlaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A static batch of ``batch_size`` equal requests on devices of one kind.

    ``prefix_hit_fraction``: share of each prompt that is cached already. ``launch_overhead_s``: the
    host's time for a decode step; ``prefill_launch_ratio``: the host's time for a prefill relative
    to that; ``kernels_launch_ratio``: the same for a step that is launched kernel by kernel.
    ``all_reduce_s``: latency of one message between devices. None: not measured.
    """

    model: ModelSpec
    engine: EngineSpec
    hardware: HardwareSpec
    batch_size: int
    prompt_tokens: int
    output_tokens: int
    plan: ParallelPlan | None = None
    is_sparse: bool = False
    speculation: Speculation | None = None
    prefix_hit_fraction: float = 0.0
    has_kv_cache: bool = True
    """If False, each output token computes all tokens before it again."""
    mode: RunMode = "engine"
    max_step_tokens: int | None = None
    """Step budget of a serving engine; None: whole prompts of the whole batch in one step."""
    launch_overhead_s: float | None = None
    prefill_launch_ratio: float = 1.0
    kernels_launch_ratio: float | None = None
    least_launch_s: float = 0.0
    """Lower bound of the launch time in eager mode: the host's time for a captured step."""
    is_launched_singly: bool = False
    """Does a serving engine launch each kernel by itself (vLLM's ``--enforce-eager``)?"""
    all_reduce_s: float | None = None
    has_all_logits: bool = False
    """Does the prefill compute the logits of every position, not only of the last?"""
    attention: AttentionKernel | None = None
    """None: by ``mode``: "eager" stores scores, the others tile."""

    def __post_init__(self) -> None:
        counts = {
            "batch": self.batch_size,
            "prompt": self.prompt_tokens,
            "output": self.output_tokens,
        }
        for name, count in counts.items():
            if count < 1:
                raise SpecError(f"{name} = {count}", where=f"--{name}", allowed="1 or more")
        if not 0 <= self.prefix_hit_fraction < 1:
            raise SpecError(
                f"prefix-cache hit rate {self.prefix_hit_fraction}",
                where="--prefix-hit",
                allowed="0 to below 1",
                try_="--prefix-hit 0.5",
            )
        if self.plan is not None and self.plan.n_tensor != self.engine.tensor_parallel_size:
            raise SpecError(
                f"the plan has {self.plan.n_tensor} tensor-parallel devices",
                allowed=f"the engine's {self.engine.tensor_parallel_size}",
            )

    @property
    def used_plan(self) -> ParallelPlan:
        """How the model is divided over devices: ``plan``, or by default the engine's settings."""
        return self.plan or plan_of(self.engine)

    @property
    def attention_kernel(self) -> AttentionKernel:
        """The kind of attention kernel: ``attention``, or by default that of ``mode``."""
        return self.attention or ("stored scores" if self.mode == "eager" else "tiled")

    @property
    def n_devices(self) -> int:
        """Devices of one instance."""
        return self.used_plan.n_devices

    @property
    def step_batch_size(self) -> int:
        """Sequences in one step: the batch divided by the pipeline stages (micro-batches)."""
        return -(-self.batch_size // self.used_plan.n_pipeline)

    @property
    def n_prefill_steps(self) -> int:
        """Steps in which an engine computes the prompts of a (micro-)batch; 1 without a budget."""
        if self.max_step_tokens is None or self.mode != "engine":
            return 1
        n_tokens = self.step_batch_size * (self.prompt_tokens - self.cached_tokens)
        return -(-n_tokens // self.max_step_tokens)

    @property
    def first_token_steps(self) -> float:
        """Time until the last micro-batch has its first token, in prefills of a micro-batch.

        A step begins when the one before it has left the first pipeline stage.
        """
        n_micro_batches, n_steps = -(-self.batch_size // self.step_batch_size), self.n_prefill_steps
        return (1 + (n_micro_batches * n_steps - 1) / self.used_plan.n_pipeline) / n_steps

    @property
    def cached_tokens(self) -> int:
        """Tokens of each prompt that the prefix cache holds; the last one is always computed."""
        cached_tokens = round(self.prefix_hit_fraction * self.prompt_tokens)
        return min(cached_tokens, self.prompt_tokens - 1)

    @property
    def mean_context_tokens(self) -> int:
        """Context of the mean decode step, its new token included.

        Contexts grow from prompt + 1 to prompt + output - 1.
        """
        return self.prompt_tokens + max(self.output_tokens // 2, 1)

    @property
    def expected_step_tokens(self) -> float:
        """Mean number of tokens that a decode step yields per sequence: 1 without speculation."""
        return 1.0 if self.speculation is None else expected_tokens(self.speculation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Shares of the peak rates that a machine reaches, its fixed times, and what overlaps."""

    compute_fraction: float
    memory_fraction: float
    """Share of the memory bandwidth when weights and activations are read and written."""
    kv_fraction: float
    """Share of the memory bandwidth when attention reads the KV cache."""
    link_fraction: float
    host_link_fraction: float
    """Share of PCIe's bandwidth, if PCIe carries the traffic between devices."""
    message_latency_s: float
    graph_layer_s: float
    """Least time of a layer's small kernels and the gaps between kernels."""
    eager_layer_s: float
    """Host time to launch a layer's kernels one by one; the device may hide it."""
    engine_step_s: float
    """Time that scheduler, sampler and output of a serving engine add to each step."""
    front_end_s: float
    """Time of a request before its first step: HTTP, tokenizer, queues between processes."""
    overlap: Overlap
    sparse_rate_ratio: float
    """FLOP/s of 2:4 sparse matrices / FLOP/s of dense ones (``SPARSE_RATES``)."""
    source: Source


SPARSE_RATES: Final = Source(
    kind="page",
    where=(
        "2 is the datasheets' promise; 1.30 on Llama-2-70B in float8 at batch 896, where FLOP limit"
        " (NVIDIA Model Optimizer, examples/benchmark.md, H100); 1.26 to 1.39 for single float8"
        " layers on H100, and 1.0 with the slower of two kernels (pytorch/ao pull requests 2012 and"
        " 4730)"
    ),
)

BEST: Final = Efficiency(
    compute_fraction=1.0,
    memory_fraction=1.0,
    kv_fraction=1.0,
    link_fraction=1.0,
    host_link_fraction=1.0,
    message_latency_s=0.0,
    graph_layer_s=0.0,
    eager_layer_s=0.26e-3,
    engine_step_s=0.0,
    front_end_s=0.0,
    overlap="everything",
    sparse_rate_ratio=2.0,
    source=Source(kind="derived", where="the peaks themselves; the fastest eager host published"),
)
LIKELY: Final = Efficiency(
    compute_fraction=0.5,
    memory_fraction=0.77,
    kv_fraction=0.55,
    link_fraction=0.45,
    host_link_fraction=0.3,
    message_latency_s=12e-6,
    graph_layer_s=50e-6,
    eager_layer_s=0.72e-3,
    engine_step_s=1e-3,
    front_end_s=5e-3,
    overlap="compute and memory",
    sparse_rate_ratio=1.3,
    source=Source(
        kind="derived",
        where=(
            "compute: between prefills of 7B and 8B models on A100 (0.68 to 0.73) and H100 (0.53 to"
            " 0.58) and whole batches (0.15 to 0.4) of vLLM and TensorRT-LLM (arXiv 2411.00136)."
            " Memory: of the last two, of vLLM's kernels on A100 0.73 and H100 0.86, in published"
            " steps 0.63. Memory, layer: slope and intercept of gpt-fast's decode of 7B and 70B over 1 to 8"
            " A100 (gpt-fast@6ecad9b: 0.82, 57 us) and of a layer's kernels over tensor-parallel"
            " sizes on A100, H100 and A40 (microsoft/vidur@7d47513: 0.80 to 0.84, 30 to 50 us)."
            " KV: medians of vLLM's decode attention on A100 0.53, H100 0.67, H200 and B200 0.57"
            " (ai-dynamo/aiconfigurator@095f58a). Links: all-reduces of 8 MiB over 4 in the same:"
            " NVLink 0.40 to 0.53, PCIe 0.16 to 0.40; of 8 KiB: 5 us in a graph, 7 to 21 us NCCL."
            " Eager: median of vLLM on H100 0.26 ms, transformers on a laptop 0.72 ms, plain"
            " PyTorch on A100 1.2 ms for each layer. Engine: 0 to 3 ms fitted to each engine and"
            " device of arXiv 2411.00136, whose six medians are within 20 % of the whole. Front end:"
            " 1 to 12 ms in others' load tests at one request at a time"
            " (bench/results/published_elsewhere.csv)"
        ),
    ),
)
WORST: Final = Efficiency(
    compute_fraction=0.25,
    memory_fraction=0.4,
    kv_fraction=0.2,
    link_fraction=0.2,
    host_link_fraction=0.1,
    message_latency_s=40e-6,
    graph_layer_s=120e-6,
    eager_layer_s=1.2e-3,
    engine_step_s=4e-3,
    front_end_s=18e-3,
    overlap="nothing",
    sparse_rate_ratio=1.0,
    source=Source(kind="derived", where="the lowest of the same tables, 4-bit weights left out"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Time to the first token, and time per further output token."""

    ttft_s: float
    """Duration of the prefill, and of a server's front end."""
    tpot_s: float
    prefill_s: float


def prefill_of(scenario: Scenario, efficiency: Efficiency = BEST) -> tuple[BatchShape, StepWork]:
    """Shape and work of the step that prefills the whole (micro-)batch."""
    shape = prefill_shape(
        batch_size=scenario.step_batch_size,
        prompt_tokens=scenario.prompt_tokens,
        cached_tokens=scenario.cached_tokens,
    )
    if scenario.has_all_logits:
        shape = replace(shape, n_logit_positions=shape.prefill_tokens)
    return shape, _work(scenario, shape, efficiency)


def prefill_step_of(scenario: Scenario) -> BatchShape:
    """The mean of the steps in which the engine computes the prompts of the (micro-)batch.

    A row takes less time among more rows, but never among more than fit into one step: a step of
    the whole batch would be faster than any that the engine runs.
    """
    whole, _ = prefill_of(scenario)
    return mean_step(whole, scenario.n_prefill_steps)


def mean_step(whole: BatchShape, n_steps: int) -> BatchShape:
    """The mean of the steps that compute these prompts."""

    def part(total: int) -> int:
        return -(-total // n_steps)

    return replace(
        whole,
        n_prefill_requests=part(whole.n_prefill_requests),
        prefill_tokens=part(whole.prefill_tokens),
        prefill_context_product_tokens2=part(whole.prefill_context_product_tokens2),
        n_logit_positions=part(whole.n_logit_positions),
    )


def decode_of(scenario: Scenario, efficiency: Efficiency = BEST) -> tuple[BatchShape, StepWork]:
    """Shape and work of the mean decode step.

    It computes one token per sequence, the draft tokens to verify, or (without a KV cache) the
    whole sequences again.
    """
    if not scenario.has_kv_cache:
        shape = prefill_shape(
            batch_size=scenario.step_batch_size, prompt_tokens=scenario.mean_context_tokens
        )
        return shape, _work(scenario, shape, efficiency)
    if scenario.speculation is not None:
        shape = verification_shape(
            scenario.speculation,
            batch_size=scenario.step_batch_size,
            context_tokens=scenario.mean_context_tokens,
        )
        return shape, _work(scenario, shape, efficiency)
    return plain_decode_of(scenario, efficiency)


def plain_decode_of(
    scenario: Scenario, efficiency: Efficiency = BEST
) -> tuple[BatchShape, StepWork]:
    """Shape and work of the mean decode step without speculation."""
    shape = decode_shape(
        batch_size=scenario.step_batch_size, context_tokens=scenario.mean_context_tokens
    )
    return shape, _work(scenario, shape, efficiency)


def phases_at(scenario: Scenario, efficiency: Efficiency) -> Phases:
    """Duration of prefill and decode at these shares of the peaks.

    With pipeline parallelism the time per output token is that of a micro-batch's way through all
    stages; the other micro-batches follow right behind it.
    """
    peaks = peaks_at(scenario.hardware, scenario.engine, efficiency)
    if scenario.all_reduce_s is not None:
        peaks = replace(peaks, message_latency_s=scenario.all_reduce_s)
    fixed_s = fixed_step_s(scenario.model, efficiency, scenario.mode)

    def step_s(work: StepWork, launch_ratio: float = 1.0) -> float:
        bound = step_bound(work, peaks)
        floor_s, host_s = fixed_s, host_step_s(scenario, efficiency) * launch_ratio
        singly_s = _kernels_s(scenario, efficiency) if scenario.is_launched_singly else 0.0
        if scenario.hardware.kind == "cpu":  # host and device are the same
            floor_s, host_s = floor_s + host_s, 0.0
        if efficiency.overlap == "nothing":
            return max(bound.upper_s, singly_s) + floor_s + host_s
        if efficiency.overlap == "everything":
            return max(max(bound.lower_s, singly_s) + floor_s, host_s)
        device_s = max(max(bound.compute_s, bound.memory_s) + bound.link_s, singly_s)
        return max(device_s + floor_s, host_s)

    decode_s = step_s(decode_of(scenario, efficiency)[1])
    if scenario.attention == "stored scores":  # eager mode's decode times include it
        decode_s += stored_scores_bytes(scenario, scenario.mean_context_tokens) / (
            peaks.memory_bytes_per_s
        )
    is_measured = scenario.launch_overhead_s is not None
    prefill_s = step_s(
        prefill_of(scenario, efficiency)[1], scenario.prefill_launch_ratio if is_measured else 1.0
    )
    prefill_s += stored_scores_bytes(scenario, scenario.prompt_tokens**2) / peaks.memory_bytes_per_s
    prefill_s *= scenario.first_token_steps
    ttft_s = prefill_s + efficiency.front_end_s * (scenario.mode == "engine")
    if scenario.speculation is None:
        return Phases(ttft_s=ttft_s, tpot_s=decode_s, prefill_s=prefill_s)
    drafts_s = (
        scenario.speculation.n_draft_tokens
        * scenario.speculation.draft_cost_ratio
        * step_s(plain_decode_of(scenario, efficiency)[1])
    )
    tpot_s = (decode_s + drafts_s) / scenario.expected_step_tokens
    return Phases(ttft_s=ttft_s, tpot_s=tpot_s, prefill_s=prefill_s)


def stored_scores_bytes(scenario: Scenario, n_scores: int) -> float:
    """Bytes of attention scores that eager attention writes and reads; 0 for tiled kernels.

    ``n_scores``: scores of each sequence and head. Each takes 24 bytes: products, scale and mask in
    16 bits, softmax in 32 bits, and conversion back.
    """
    if scenario.attention_kernel != "stored scores":
        return 0.0
    heads = scenario.model.attention.n_heads / scenario.engine.tensor_parallel_size
    scores = scenario.step_batch_size * heads * n_scores
    return 24.0 * scores * scenario.model.n_attention_layers


def fixed_step_s(model: ModelSpec, efficiency: Efficiency, mode: RunMode = "engine") -> float:
    """Fixed time of a step: small kernels, gaps, and the engine's own work."""
    engine_s = efficiency.engine_step_s * (mode == "engine")
    return model.n_blocks / 2 * efficiency.graph_layer_s + engine_s


def host_step_s(scenario: Scenario, efficiency: Efficiency) -> float:
    """The host's time to launch a step: measured, or else that of eager mode; 0 with graphs."""
    if scenario.launch_overhead_s is not None:
        return scenario.launch_overhead_s
    if scenario.mode != "eager":
        return 0.0
    return max(_kernels_s(scenario, efficiency), scenario.least_launch_s)


def _kernels_s(scenario: Scenario, efficiency: Efficiency) -> float:
    """The host's time to launch all kernels of a step one by one."""
    return scenario.model.n_blocks / 2 * efficiency.eager_layer_s


def peaks_at(hardware: HardwareSpec, engine: EngineSpec, efficiency: Efficiency) -> Peaks:
    """The device's rates at this efficiency; at ``BEST`` they are upper bounds for any kernel."""
    peaks = (bound_peaks if efficiency is BEST else peaks_of)(hardware, engine)
    link = efficiency.host_link_fraction if peaks.is_host_link else efficiency.link_fraction
    return replace(
        peaks,
        flop_per_s=peaks.flop_per_s * efficiency.compute_fraction,
        memory_bytes_per_s=peaks.memory_bytes_per_s * efficiency.memory_fraction,
        kv_bytes_per_s=peaks.kv_bytes_per_s * efficiency.kv_fraction,
        link_bytes_per_s=(
            None if peaks.link_bytes_per_s is None else peaks.link_bytes_per_s * link
        ),
        message_latency_s=efficiency.message_latency_s,
    )


def bounds_of(scenario: Scenario) -> tuple[StepBound, StepBound]:
    """The roofline bounds of the prefill and of the mean decode step, at the peak rates."""
    peaks = bound_peaks(scenario.hardware, scenario.engine)
    return step_bound(prefill_of(scenario)[1], peaks), step_bound(decode_of(scenario)[1], peaks)


def _work(scenario: Scenario, shape: BatchShape, efficiency: Efficiency) -> StepWork:
    work = step_work(scenario.model, scenario.engine, shape, plan=scenario.used_plan)
    if not scenario.is_sparse:
        return work
    return sparse_work(
        work,
        scenario.model,
        scenario.engine,
        n_rows=shape.n_rows,
        rate_ratio=efficiency.sparse_rate_ratio,
    )


# 2:4 structured sparsity: two of each four neighbouring weights are stored.


def sparse_work(
    work: StepWork, model: ModelSpec, engine: EngineSpec, *, n_rows: int, rate_ratio: float
) -> StepWork:
    """The work of a step if the matrices of the layers are 2:4 sparse.

    They have fewer bytes, and their FLOP run at ``rate_ratio`` times the dense rate. Head,
    attention and KV cache are unchanged. At small batches a step gains by the saved bytes; at
    large ones by ``rate_ratio``, which is 2 on paper and much less in published kernels.
    """
    dense, sparse = (
        step_weight_bytes(model, engine, n_rows=n_rows, n_logit_positions=0, is_sparse=is_sparse)
        for is_sparse in (False, True)
    )
    return replace(
        work,
        matmul_flop=work.matmul_flop / rate_ratio,
        weight_bytes=work.weight_bytes - (dense - sparse),
    )
