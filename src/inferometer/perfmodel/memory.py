"""Memory of a device: contents, largest batch, logits of a prompt, and vLLM's batch limits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from inferometer.errors import SpecError
from inferometer.inputs.types import (
    DTYPE_BITS,
    Constant,
    EngineSpec,
    HardwareSpec,
    ModelSpec,
    Source,
)
from inferometer.perfmodel.kv_cache import (
    StatePaging,
    kv_block_fraction,
    kv_bytes,
    n_kv_shards,
    state_bytes,
    states_of_sequence,
)
from inferometer.perfmodel.matrices import linears, n_shards
from inferometer.perfmodel.roofline import ParallelPlan, kv_dtype, logits_bytes, plan_of
from inferometer.perfmodel.weights import padding_bytes, splits_heads, weight_bytes

DEFAULT_UTILIZATION: Final = Constant(
    value=0.92,
    source=Source(
        kind="repository", where="vllm-project/vllm v0.32.0: CacheConfig.gpu_memory_utilization"
    ),
)
USUAL_BEFORE: Final = Constant(
    value=0.9,
    source=Source(
        kind="repository", where="vllm-project/vllm v0.11.0: CacheConfig.gpu_memory_utilization"
    ),
)
"""vLLM's default share of the memory in older versions, which published runs used."""
_STATE_SHARE: Final = Constant(
    value=0.9 / 1.9,
    source=Source(
        kind="repository",
        where="sgl-project/sglang: ServerArgs.mamba_full_memory_ratio = 0.9, states to KV cache",
    ),
)
_MOST_SEQUENCES: Final = 1 << 24
_NODE_DEVICES: Final = 8
GROUP_SIZES: Final = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of devices that are tried; the smallest one that fits is suggested."""
_SAMPLER_COPIES: Final = 4
"""Memory of a sampler that sorts logits, in float32 copies of them: logits, sorted, and (twice as
large) 64-bit indices. Source: the memory at two step budgets on A100 differs by 0.64 GiB for 6,144
tokens, which leaves 0.5 GiB for 256 sequences of Llama-3.1-8B: four copies."""
RUNTIME: Final = Constant(
    value=0.6 * 2**30,
    source=Source(
        kind="derived",
        where=(
            "vLLM's logs: 0.12 to 0.20 GiB outside of torch (vllm-project/vllm pulls 11809, 12126,"
            " 14447), 0.17 to 0.62 GiB of captured graphs, which it profiles since 0.21"
        ),
    ),
)
"""Bytes of a device that an engine takes beside weights and activations: the kernels' own buffers
and captured graphs."""
_SORTED_COPIES: Final = 9
"""The same where values, indices and the sort's own buffers are in memory at once, as in vLLM up to
0.15. Source: what its logs of 0.11 leave on H100 for five models and 1,024 sequences, 34 to 36
bytes per logit (llm-d-incubation/llm-d-planner); 1.25 GiB for 256 sequences of 131,072
(vllm-project/vllm pull 32558, which the kernels of pull 33538 replaced)."""
_OTHER_BYTES: Final = 0.8 * 2**30
"""To either side: graphs that vLLM before 0.21 captured after it had measured are the larger part of
``RUNTIME``; compiled activations are not in it. With 0.4 GiB 8 of 18 logs of others were inside the
interval, with 0.8 GiB 12 (``bench/results/published_elsewhere.csv`` and ``published_unseen.csv``)."""
_PEER: Final = Constant(
    value=0.25 * 2**30,
    source=Source(
        kind="derived",
        where=(
            "vLLM's logs, beyond the 0.15 GiB outside of torch on one device: up to 0.5 on 2 x H100"
            " (llm-d-incubation/llm-d-planner), 1.2 on 4 x A100, 2.0 on 8 x A100, 1.6 on 8 of AMD"
        ),
    ),
)
"""Bytes of each device for each other one of vLLM's tensor-parallel group in its node: buffers of
NCCL and of the all-reduce, which it sees in use before it shares the rest. Without peer access they
are in the host's memory (16 x RTX 3090: 0.05 GiB, vllm-project/vllm pull 14447): the high end. The low
end has twice as much."""
_ROCM_BYTES: Final = 1.5 * 2**30
"""Beside that, what ROCm's libraries take; twice as much at the low end. Source: five logs of vLLM
0.11 on Radeon AI PRO R9700 (kyuz0/amd-r9700-vllm-toolboxes), 0.7 to 3.5 GiB below those of NVIDIA."""
_FREE_SHARE: Final = Constant(
    value=0.9,
    source=Source(
        kind="repository",
        where="NVIDIA/TensorRT-LLM: KvCacheConfig.free_gpu_memory_fraction, of what is left free",
    ),
)
_CONTEXT_BYTES: Final = 2**30
"""CUDA context and communication, before weights are loaded: Qwen3-235B on 4 x H100 with SGLang's
``mem_fraction_static`` 0.93 has 16.5 GiB of KV cache (vllm-project/vllm issue 21348)."""
_SGLANG_LEAST_BYTES: Final = 1.5 * 2**30
_SGLANG_PARALLEL_BYTES: Final = 2**30 / 8
_SGLANG_ROW_BYTES: Final = 1.5 * 2**20
_SGLANG_GRAPHS_BYTES: Final = 1.5 * 2**30
"""SGLang's reserve, ``ServerArgs._handle_gpu_memory_settings``: 1.5 GiB and 1/8 GiB for each device
since 0.5.18, which measures what captured graphs leave; before, 1.5 MiB for each token of a chunk,
about 1.5 GiB for graphs and constants, and 10 GiB at least on devices of more than 60."""
_SCORE_BYTES: Final = 10
"""Bytes of a stored attention score: 16 bit before and after, 32 bit in the softmax."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """Memory use of one device for a batch, in bytes; ``free_bytes`` < 0 if it does not fit."""

    total_bytes: int
    reserve_bytes: int
    """Memory outside the engine's share, and a serving engine's captured graphs and kernels."""
    weight_bytes: int
    kv_bytes: int
    activation_bytes: int
    logits_bytes: int

    @property
    def free_bytes(self) -> int:
        """Bytes that remain; negative: bytes that are lacking."""
        return (
            self.total_bytes
            - self.reserve_bytes
            - self.weight_bytes
            - self.kv_bytes
            - self.activation_bytes
            - self.logits_bytes
        )

    @property
    def fits(self) -> bool:
        """Does the batch fit in memory?"""
        return self.free_bytes >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryQuestion:
    """Model, device and sequences (that grow to ``context_tokens``) whose memory is computed."""

    model: ModelSpec
    engine: EngineSpec
    hardware: HardwareSpec
    context_tokens: int
    prompt_tokens: int
    plan: ParallelPlan | None = None
    max_step_tokens: int | None = None
    """Step budget; None: all prompts of the batch are computed in one step (static batching)."""
    block_tokens: int = 1
    """Tokens in a block of a paged cache; contexts are rounded up to it."""
    utilization_fraction: float | None = None
    """The share of memory that the user gave; None: what the engine takes by default."""
    n_expert_shards: int = 1
    """Number of replicas that step together and share the experts."""
    n_sampler_copies: int = _SAMPLER_COPIES
    """Copies of all logits in 32 bit that a serving engine's sampler takes."""
    is_sparse: bool = False
    """Are the matrices of the layers 2:4 sparse?"""
    has_all_logits: bool = False
    """Does the prefill compute logits of every position, not only of the last?"""
    has_stored_scores: bool = False
    """Does attention store its scores (eager attention) instead of tiling them?"""

    @property
    def is_served(self) -> bool:
        """Is it a serving engine, which reserves memory by profiling its largest step?"""
        return self.max_step_tokens is not None

    @property
    def share_fraction(self) -> float:
        """``gpu_memory_utilization``: as given, or vLLM's default."""
        given = self.utilization_fraction
        return DEFAULT_UTILIZATION.value if given is None else given

    def __post_init__(self) -> None:
        if not 0 < self.share_fraction <= 1:
            raise SpecError(
                f"memory utilization {self.utilization_fraction}",
                where="--gpu-memory-utilization",
                allowed="above 0, at most 1",
                try_="--gpu-memory-utilization 0.9",
            )
        if self.context_tokens > self.model.max_position_tokens:
            raise SpecError(
                f"{self.context_tokens} tokens of context",
                where="--prompt + --output",
                allowed=f"at most {self.model.max_position_tokens} for {self.model.model_id!r}",
                try_="a shorter --prompt or --output, or a model with longer contexts",
            )


def memory_budget(question: MemoryQuestion, batch_size: int) -> MemoryBudget:
    """Memory use of each device for this batch.

    With pipeline parallelism the largest stage counts, with its share of weights and cache.
    Activations are those of the widest layer (its outputs, what its activation function makes of
    them, and the residual stream), which the next layer reuses. A serving engine's sampler reuses
    their memory too.
    """
    model, engine = question.model, question.engine
    stage_fraction = (question.plan or plan_of(engine)).stage_fraction(model.n_layers)
    whole_bytes = weight_bytes(
        model, engine, n_expert_shards=question.n_expert_shards, is_sparse=question.is_sparse
    )
    if question.is_served:
        whole_bytes += padding_bytes(
            model, engine, question.hardware, n_expert_shards=question.n_expert_shards
        )
    total_bytes = round(question.hardware.memory_bytes.value)
    rows = batch_size * question.prompt_tokens
    rows = (
        rows
        if question.max_step_tokens is None
        else min(rows, max(question.max_step_tokens, batch_size))
    )
    positions = rows if question.has_all_logits else batch_size
    blocks_tokens = -(-question.context_tokens // question.block_tokens) * question.block_tokens
    per_sequence = (
        kv_bytes(model, kv_dtype(engine), context_tokens=blocks_tokens)
        / n_kv_shards(model, engine)
        * stage_fraction
    ) + _state_bytes(question)
    activation_bytes = rows * _row_elements(model, engine.tensor_parallel_size)
    activation_bytes *= DTYPE_BITS[engine.dtype] / 8
    if question.has_stored_scores:
        heads = model.attention.n_heads / engine.tensor_parallel_size
        activation_bytes += _SCORE_BYTES * heads * rows * question.prompt_tokens
    logits = logits_bytes(model, "float32", batch_size=positions, n_positions=1)
    if question.is_served:
        logits = max(round(question.n_sampler_copies * logits - activation_bytes), 0)
    runtime_bytes = RUNTIME.value * (question.is_served and question.hardware.kind == "gpu")
    return MemoryBudget(
        total_bytes=total_bytes,
        reserve_bytes=round(total_bytes * (1 - question.share_fraction) + runtime_bytes),
        weight_bytes=round(whole_bytes * stage_fraction),
        kv_bytes=round(batch_size * per_sequence),
        activation_bytes=round(activation_bytes),
        logits_bytes=logits,
    )


def largest_batch_size(question: MemoryQuestion) -> int:
    """The largest batch that fits in memory; 0 if not even one sequence does.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_hardware, find_model
    >>> question = MemoryQuestion(model=find_model("llama-2-7b"), engine=EngineSpec(dtype="float16"),
    ...     hardware=find_hardware("a10"),
    ...                           context_tokens=1024, prompt_tokens=512)
    >>> largest_batch_size(question)
    14
    """
    low, high = 0, 1
    while high < _MOST_SEQUENCES and memory_budget(question, high).fits:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if memory_budget(question, middle).fits else (low, middle)
    return low


def usual_share(policy: str) -> Constant:
    """The share of memory that an engine takes unless it is given.

    TensorRT-LLM's is of what weights and steps leave. SGLang's is computed from the device and the
    step: about vLLM's, with activations.
    """
    return _FREE_SHARE if policy == "trtllm" else DEFAULT_UTILIZATION


def n_kv_blocks_that_fit(question: MemoryQuestion, *, max_num_seqs: int) -> int:
    """KV blocks of ``block_tokens`` that fit besides the weights and the largest step.

    As vLLM shares its memory. Within 5 % of its logs on devices of 24 to 48 GiB
    (``tests/api/published_anchors.toml``).

    Example
    -------
    >>> from inferometer.inputs.catalog import find_hardware, find_model
    >>> question = MemoryQuestion(model=find_model("llama-3.1-8b"), engine=EngineSpec(dtype="bfloat16"),
    ...     hardware=find_hardware("h100_sxm"),
    ...                           context_tokens=1, prompt_tokens=2048, max_step_tokens=2048, block_tokens=16)
    >>> n_kv_blocks_that_fit(question, max_num_seqs=256)
    29099
    """
    return kv_blocks(question, "vllm", max_num_seqs=max_num_seqs).likely


class KvBlocks(NamedTuple):
    """Blocks of the KV cache: how many are likely, and the ends between versions of the engine."""

    likely: int
    low: int
    high: int

    def quantile(self, fraction: float) -> int:
        """A quantile, but at least half of the likely number.

        With fewer, the engine would not be started with these settings.
        """
        low = max(self.low, -(-self.likely // 2))
        ends = (low, self.likely, self.high)
        return round(float(np.interp(fraction, (0.0, 0.5, 1.0), ends)))


def kv_blocks(
    question: MemoryQuestion,
    policy: str,
    *,
    max_num_seqs: int,
    n_states: int | None = None,
    is_grouped: bool = False,
    paging: StatePaging | None = None,
) -> KvBlocks:
    """Blocks of ``block_tokens`` that the engine of this policy allocates, with an interval.

    A block holds the KV of its tokens in all layers, or in those of a group (``kv_groups``). States
    of recurrent layers are in blocks with ``paging``, and otherwise beside them: ``n_states``, or one
    for each of ``max_num_seqs``. What an engine reserves differs by version, so the number in its log
    is better, if there is one.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_hardware, find_model
    >>> question = MemoryQuestion(model=find_model("qwen3-32b"), engine=EngineSpec(dtype="bfloat16"),
    ...     hardware=find_hardware("h100_sxm"), utilization_fraction=0.9,
    ...                           context_tokens=1, prompt_tokens=8192, max_step_tokens=8192, block_tokens=16)
    >>> kv_blocks(question, "vllm", max_num_seqs=1024)  # the log of vLLM 0.11: 4.45 GiB, 1,139 blocks
    KvBlocks(likely=1882, low=936, high=2087)
    """
    model, engine = question.model, question.engine
    stage_fraction = (question.plan or plan_of(engine)).stage_fraction(model.n_layers)
    block_bytes = (
        kv_bytes(model, kv_dtype(engine), context_tokens=question.block_tokens)
        / n_kv_shards(model, engine)
        * stage_fraction
    )
    if is_grouped:
        block_bytes *= kv_block_fraction(model)
    block_bytes *= 1.0 if paging is None else paging.fraction
    if not model.n_attention_layers:
        block_bytes = _state_bytes(question)
    n_beside = max_num_seqs if n_states is None else n_states
    states = n_beside * _state_bytes(question) if paging is None else 0.0
    # In order: on some devices an engine's usual share is beyond what its versions reserve.
    rooms = sorted(_kv_rooms(question, policy, max_num_seqs))
    low, likely, high = (max(int((room - states) / block_bytes), 0) for room in rooms)
    return KvBlocks(likely=likely, low=low, high=high)


def _kv_rooms(question: MemoryQuestion, policy: str, max_num_seqs: int) -> tuple[float, ...]:
    """Bytes of a device for KV cache and states, estimated in three ways; the middle is likely."""
    budget = memory_budget(question, max_num_seqs)
    likely = float(budget.free_bytes + budget.kv_bytes)
    if question.hardware.kind != "gpu":
        return likely, likely, likely
    if policy == "trtllm":
        return _trtllm_rooms(question, budget, likely)
    if policy == "sglang":
        return _sglang_rooms(question, budget, likely)
    if policy != "vllm":
        return likely, likely, likely
    sorting = replace(question, n_sampler_copies=_SORTED_COPIES)
    old = memory_budget(sorting, max_num_seqs)
    n_peers = min(question.engine.tensor_parallel_size, _NODE_DEVICES) - 1
    group_bytes = _PEER.value * n_peers + _ROCM_BYTES * (question.hardware.vendor == "amd")
    low = float(old.free_bytes + old.kv_bytes) - 2 * group_bytes - _OTHER_BYTES
    return low, likely - group_bytes, likely + _OTHER_BYTES


def _trtllm_rooms(
    question: MemoryQuestion, budget: MemoryBudget, likely: float
) -> tuple[float, ...]:
    free = likely + budget.total_bytes * (1 - question.share_fraction)
    step_bytes = budget.activation_bytes + budget.logits_bytes
    rooms = (free - step_bytes, free, free + step_bytes)
    given = question.utilization_fraction
    share = _FREE_SHARE.value if given is None else given
    return tuple(share * room for room in rooms)


def _sglang_rooms(
    question: MemoryQuestion, budget: MemoryBudget, likely: float
) -> tuple[float, ...]:
    beside_weights = budget.total_bytes - budget.weight_bytes - _CONTEXT_BYTES
    if question.utilization_fraction is not None:
        reserved = (budget.total_bytes - _CONTEXT_BYTES) * (1 - question.utilization_fraction)
        return likely, likely, max(beside_weights - reserved, likely)
    n_devices = (question.plan or plan_of(question.engine)).n_devices
    least = _SGLANG_LEAST_BYTES + _SGLANG_PARALLEL_BYTES * n_devices
    most = (
        _SGLANG_GRAPHS_BYTES
        + _SGLANG_ROW_BYTES * max(question.max_step_tokens or 0, 2048)
        + _SGLANG_PARALLEL_BYTES * n_devices
    )
    if budget.total_bytes > 60 * 2**30:
        most = max(most, 10 * 2**30)
    return beside_weights - most, likely, beside_weights - _SGLANG_GRAPHS_BYTES - least


def running_and_states(
    question: MemoryQuestion,
    policy: str,
    own: Mapping[str, str],
    *,
    max_num_seqs: int,
    is_given: bool,
) -> tuple[int, int]:
    """How many sequences run at once, and the states stored for them and, by SGLang, for prefixes.

    Fewer than ``max_num_seqs`` if states do not fit into the share of memory that SGLang reserves.
    A number that ``is_given`` is that of the states too, except in SGLang with its radix cache.
    """
    is_sglang, state = policy == "sglang", _state_bytes(question)
    switches = {name for name, value in own.items() if value.lower() == "true"}
    keeps_prefixes = is_sglang and "disable_radix_cache" not in switches
    if state == 0 or (is_given and not keeps_prefixes):
        return max_num_seqs, max_num_seqs
    budget = memory_budget(question, max_num_seqs)
    room = (budget.free_bytes + budget.kv_bytes) * _STATE_SHARE.value
    n_states = max(int(room / state), 1)
    overlaps = "disable_overlap_schedule" not in switches
    n_each = states_of_sequence(
        question.model, keeps_prefixes=keeps_prefixes, overlaps_steps=overlaps
    )
    n_running = min(max_num_seqs, max(n_states // n_each, 1))
    return n_running, n_states if is_sglang else n_running


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallestGroup:
    """The fewest devices that hold a model, as tensor-parallel ranks and pipeline stages."""

    n_tensor: int
    n_pipeline: int = 1

    @property
    def flags(self) -> str:
        """Command-line flags of this group, such as ``--tp 8 --pp 2``."""
        return f"--tp {self.n_tensor}" + f" --pp {self.n_pipeline}" * (self.n_pipeline > 1)


def smallest_group(
    question: MemoryQuestion, holds: Callable[[MemoryQuestion], bool]
) -> SmallestGroup | None:
    """The smallest group of devices on which ``fits`` is True; None if 64 devices do not suffice.

    Tensor-parallel ranks are added up to the number of linked devices, then pipeline stages.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_hardware, find_model
    >>> hardware, engine = find_hardware("h100_sxm"), EngineSpec(dtype="bfloat16")
    >>> question = MemoryQuestion(model=find_model("llama-3.1-405b"), engine=engine, hardware=hardware,
    ...                           context_tokens=640, prompt_tokens=512)
    >>> smallest_group(question, lambda one: memory_budget(one, 1).fits).flags
    '--tp 8 --pp 2'
    """
    whole = question.plan or plan_of(question.engine)
    for group in groups_on(question.hardware, question.model):
        engine = replace(question.engine, tensor_parallel_size=group.n_tensor)
        plan = replace(whole, n_tensor=group.n_tensor, n_pipeline=group.n_pipeline)
        if holds(replace(question, engine=engine, plan=plan)):
            return group
    return None


def groups_on(hardware: HardwareSpec, model: ModelSpec) -> tuple[SmallestGroup, ...]:
    """Groups of devices to try for this model, the smallest first.

    Tensor-parallel ranks are added up to the number of linked devices, then pipeline stages.
    """
    joined = hardware.linked_devices
    most = _NODE_DEVICES if joined is None else joined.value
    widths = [n for n in GROUP_SIZES if n <= most and splits_heads(model, n)]
    return (
        *(SmallestGroup(n_tensor=width) for width in widths),
        *(
            SmallestGroup(n_tensor=widths[-1], n_pipeline=n)
            for n in GROUP_SIZES[1:]
            if n * widths[-1] <= GROUP_SIZES[-1]
        ),
    )


def how_it_fits(flags: str | None, n_most: int = GROUP_SIZES[-1]) -> str:
    """Remedy for lack of memory: ``flags`` of the smallest group that fits, of up to ``n_most``."""
    if flags is None:
        return (
            "fewer bits (--quantization int4), a device with more memory, or a smaller model:"
            f" {n_most} of these do not hold it"
        )
    return f"{flags}, the smallest that fits"


def _state_bytes(question: MemoryQuestion) -> float:
    """Bytes of a sequence's recurrent states on one device."""
    model, engine = question.model, question.engine
    stage_fraction = (question.plan or plan_of(engine)).stage_fraction(model.n_layers)
    return state_bytes(model, engine.dtype) / engine.tensor_parallel_size * stage_fraction


def _row_elements(model: ModelSpec, n_devices: int) -> float:
    """Activations of a token that are in memory at the same time, in elements.

    The widest matrix's output, its activation function's output, and three residual streams.
    """
    widest = max(
        part.n_active_copies * part.n_out / n_shards(part, n_devices) for part in linears(model)
    )
    return 3 * model.hidden_size + (1.5 if model.mlp.is_gated else 2) * widest


# Default batch limits of ``vllm serve``, which depend mostly on the memory of the device.


_LARGE_BYTES: Final = 160 * 2**30
_MIDDLE_BYTES: Final = 70 * 2**30


class BatchLimits(NamedTuple):
    """``max_num_seqs`` and ``max_num_batched_tokens``."""

    max_num_seqs: int
    max_num_batched_tokens: int


_USUAL: Final = BatchLimits(256, 2048)
_TPU_STEP_TOKENS: Final = {"v5e": 512, "v5p": 256, "v6e": 1024}
"""Default step budget of the API server on these TPUs; others have the usual ones."""
_UNIFIED_MEMORY: Final = "gb10"
"""Devices that get the limits of a small GPU from vLLM 0.33.0 in spite of their large memory: GB10
(DGX Spark)."""


def default_limits(hardware: HardwareSpec | None, *, n_devices: int) -> BatchLimits:
    """Defaults of ``vllm serve`` on ``n_devices`` of these; unknown devices count as small.

    Source
    ------
    vLLM 0.33.0, ``EngineArgs.get_batch_defaults``, usage context ``OPENAI_API_SERVER``: by
    the memory of the device, less for an A100 (its PR 17885), by the chip for a TPU. 0.32.0 differs
    in one device, GB10: 1024 and 8192 there.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_hardware
    >>> default_limits(find_hardware("h100_sxm"), n_devices=1)
    BatchLimits(max_num_seqs=1024, max_num_batched_tokens=8192)
    """
    if hardware is None:
        return _USUAL
    if hardware.kind == "cpu":
        return BatchLimits(128 * n_devices, 2048 * n_devices)
    name = hardware.name.lower()
    if hardware.kind == "tpu":
        n_tokens = next(
            (n for chip, n in _TPU_STEP_TOKENS.items() if chip in name),
            _USUAL.max_num_batched_tokens,
        )
        return _USUAL._replace(max_num_batched_tokens=n_tokens)
    if hardware.kind != "gpu" or hardware.memory_bytes.value < _MIDDLE_BYTES:
        return _USUAL
    if hardware.memory_bytes.value >= _LARGE_BYTES:
        return BatchLimits(1024, 16_384)
    return _USUAL if "a100" in name or _UNIFIED_MEMORY in name else BatchLimits(1024, 8192)


def copying_knobs(
    model: ModelSpec,
    engine: EngineSpec,
    hardware: HardwareSpec | None,
    block_size: int,
    own: Mapping[str, str],
) -> dict[str, str]:
    """Settings for swapping and compaction: a block's bytes on one device, and PCIe bandwidth."""
    is_swapping = own.get("preemption_mode") == "swap"
    if not is_swapping and "compaction_bytes_per_s" not in own:
        return {}
    n_shards = n_kv_shards(model, engine)
    knobs = {
        "kv_block_bytes": str(
            kv_bytes(model, kv_dtype(engine), context_tokens=block_size) // n_shards
        )
    }
    if is_swapping and hardware is not None and hardware.pcie_bytes_per_s is not None:
        knobs["swap_bytes_per_s"] = str(hardware.pcie_bytes_per_s.value)
    return knobs
