"""Static batches as questions to datasheets, and the time of their phases at an efficiency."""

from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from inferometer.errors import SpecError
from inferometer.inputs.types import EngineSpec, HardwareSpec, ModelSpec, Source
from inferometer.perfmodel.communication import ParallelPlan, plan_of
from inferometer.perfmodel.roofline import Peaks, peaks_of, step_bound
from inferometer.perfmodel.types import BatchShape, StepBound, StepWork, decode_shape, prefill_shape
from inferometer.perfmodel.weights import step_weight_bytes
from inferometer.perfmodel.work import step_work

# Speculative decoding: tokens that a step yields, and what it computes for them.


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


def walltime_ratio(speculation: Speculation) -> float:
    """Speed-up of decoding if verifying k + 1 tokens takes no longer than one.

    Expected tokens / (k·c + 1). It holds while the step is bound by memory;
    ``verification_shape`` gives what is computed.

    Source
    ------
    arXiv 2211.17192, theorem 3.8.
    """
    return expected_tokens(speculation) / (
        speculation.n_draft_tokens * speculation.draft_cost_ratio + 1
    )


def verification_shape(
    speculation: Speculation, *, batch_size: int, context_tokens: int
) -> BatchShape:
    """The step that verifies: k + 1 new tokens for each sequence, with logits for each of them.

    ``context_tokens`` is what a plain decode step would attend to, its new token included.
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


Overlap: TypeAlias = Literal["everything", "compute and memory", "nothing"]
"""What happens at the same time. An all-reduce waits for its data, and the next matrix for it, so
links rarely hide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A static batch: ``batch_size`` prompts of ``prompt_tokens``, ``output_tokens`` for each, on devices of one kind.

    ``prefix_hit_fraction``: share of each prompt that is cached already. ``launch_overhead_s``:
    time that the host takes to launch a step's kernels where they are not captured in a graph (from
    a fitted model; unknown to datasheets).
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
    launch_overhead_s: float = 0.0
    small_kernels_s: float = 0.0
    """Time of a step in unfused operators on the device, beside its matrices and attention."""
    has_kv_cache: bool = True
    """Without one each output token computes all tokens before it again."""

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
            )
        if self.plan is not None and self.plan.n_tensor != self.engine.tensor_parallel_size:
            raise SpecError(
                f"the plan has {self.plan.n_tensor} tensor-parallel devices",
                allowed=f"the engine's {self.engine.tensor_parallel_size}",
            )

    @property
    def used_plan(self) -> ParallelPlan:
        """The plan, or the engine's own."""
        return self.plan or plan_of(self.engine)

    @property
    def n_devices(self) -> int:
        """Devices of one instance."""
        return self.used_plan.n_devices

    @property
    def step_batch_size(self) -> int:
        """Sequences in one step: a pipeline keeps one micro-batch in each stage."""
        return -(-self.batch_size // self.used_plan.n_pipeline)

    @property
    def mean_context_tokens(self) -> int:
        """Context of the mean decode step, its new token included.

        Contexts grow from prompt + 1 to prompt + output - 1.
        """
        return self.prompt_tokens + max(self.output_tokens // 2, 1)

    @property
    def expected_step_tokens(self) -> float:
        """Tokens that a decode step yields for each sequence: 1 without speculation."""
        return 1.0 if self.speculation is None else expected_tokens(self.speculation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Shares of the peaks that a machine reaches, latency of a message, and what overlaps."""

    compute_fraction: float
    memory_fraction: float
    message_latency_s: float
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
    message_latency_s=0.0,
    overlap="everything",
    sparse_rate_ratio=2.0,
    source=Source(kind="derived", where="the peaks themselves"),
)
LIKELY: Final = Efficiency(
    compute_fraction=0.45,
    memory_fraction=0.65,
    message_latency_s=20e-6,
    overlap="compute and memory",
    sparse_rate_ratio=1.3,
    source=Source(
        kind="derived",
        where=(
            "medians: gpt-fast README (pytorch-labs/gpt-fast@6ecad9b) decode of Llama 7B to 70B in"
            " 16 and 8 bit on one A100 or MI250X; first tokens of MPT-7B and Llama-2-70B on A100"
            " (Databricks, LLM Inference Performance Engineering, 2023)"
        ),
    ),
)
WORST: Final = Efficiency(
    compute_fraction=0.25,
    memory_fraction=0.4,
    message_latency_s=40e-6,
    overlap="nothing",
    sparse_rate_ratio=1.0,
    source=Source(kind="derived", where="the lowest of the same tables, 4-bit weights left out"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Time to the first token, and of each further one."""

    ttft_s: float
    tpot_s: float


def prefill_of(scenario: Scenario, efficiency: Efficiency = BEST) -> tuple[BatchShape, StepWork]:
    """The step that yields the first token of each sequence, the whole (micro-)batch at once."""
    cached_tokens = min(
        round(scenario.prefix_hit_fraction * scenario.prompt_tokens), scenario.prompt_tokens - 1
    )
    shape = prefill_shape(
        batch_size=scenario.step_batch_size,
        prompt_tokens=scenario.prompt_tokens,
        cached_tokens=cached_tokens,
    )
    return shape, _work(scenario, shape, efficiency)


def decode_of(scenario: Scenario, efficiency: Efficiency = BEST) -> tuple[BatchShape, StepWork]:
    """The mean decode step: of one token for each sequence, of a verification, or of all again."""
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
    """The mean decode step without speculation."""
    shape = decode_shape(
        batch_size=scenario.step_batch_size, context_tokens=scenario.mean_context_tokens
    )
    return shape, _work(scenario, shape, efficiency)


def phases_at(scenario: Scenario, efficiency: Efficiency) -> Phases:
    """Duration of both phases at these shares of the peaks.

    A micro-batch of a pipeline takes as long as its way through all stages; the others follow
    right behind it, so the time between a sequence's tokens is that way too.
    """
    peaks = scaled_peaks(peaks_of(scenario.hardware, scenario.engine), efficiency)

    def step_s(work: StepWork) -> float:
        return bound_s(work) + scenario.small_kernels_s

    def bound_s(work: StepWork) -> float:
        bound = step_bound(work, peaks)
        if efficiency.overlap == "nothing":
            return bound.upper_s + scenario.launch_overhead_s
        if efficiency.overlap == "everything":
            return max(bound.lower_s, scenario.launch_overhead_s)
        return max(max(bound.compute_s, bound.memory_s) + bound.link_s, scenario.launch_overhead_s)

    decode_s = step_s(decode_of(scenario, efficiency)[1])
    ttft_s = step_s(prefill_of(scenario, efficiency)[1])
    if scenario.used_plan.n_pipeline > 1:
        # The last micro-batch's first token waits until those before it have left the first stage.
        ttft_s *= 1 + (scenario.used_plan.n_pipeline - 1) / scenario.used_plan.n_pipeline
    if scenario.speculation is None:
        return Phases(ttft_s=ttft_s, tpot_s=decode_s)
    drafts_s = (
        scenario.speculation.n_draft_tokens
        * scenario.speculation.draft_cost_ratio
        * step_s(plain_decode_of(scenario, efficiency)[1])
    )
    return Phases(ttft_s=ttft_s, tpot_s=(decode_s + drafts_s) / scenario.expected_step_tokens)


def scaled_peaks(peaks: Peaks, efficiency: Efficiency) -> Peaks:
    """The peaks at this efficiency."""
    scaled = peaks.scaled(
        compute_fraction=efficiency.compute_fraction, memory_fraction=efficiency.memory_fraction
    )
    return replace(scaled, message_latency_s=efficiency.message_latency_s)


def bounds_of(scenario: Scenario) -> tuple[StepBound, StepBound]:
    """The bounds of prefill and of decode at the peaks."""
    peaks = peaks_of(scenario.hardware, scenario.engine)
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


# 2:4 structured sparsity keeps two of four neighbouring weights.


def sparse_work(
    work: StepWork, model: ModelSpec, engine: EngineSpec, *, n_rows: int, rate_ratio: float
) -> StepWork:
    """The same step with the matrices of the layers sparse.

    Fewer bytes, and FLOP at ``rate_ratio`` times the dense rate. Head, attention and cache stay
    as they are. The saved bytes shorten a step that waits for its weights, so they help most at
    small batches; a step that waits for its FLOP gains only ``rate_ratio``: 2 on paper, much
    less in published kernels.
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
