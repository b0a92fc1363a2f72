"""Types of models, hardware, engines and sweeps, and changes to a model that cost quality.

Every constant has its source.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from inferometer.errors import SpecError
from inferometer.inputs.model_parts import (
    BlockCounts,
    CompressedSpec,
    IndexerSpec,
    NgramSpec,
    PerLayerInputSpec,
    RecurrentSpec,
    RelativeSpec,
    SharedSpec,
    StreamsSpec,
)

DType: TypeAlias = Literal["float32", "float16", "bfloat16", "float8", "int8", "int4", "float4"]
"""Number formats of weights, activations and KV cache."""

AskedFormat: TypeAlias = DType | Literal["none"]
"""A requested format of weights; "none": that of the activations."""

DTYPE_BITS: Final[dict[DType, int]] = {
    "float32": 32,
    "float16": 16,
    "bfloat16": 16,
    "float8": 8,
    "int8": 8,
    "int4": 4,
    "float4": 4,
}

SourceKind: TypeAlias = Literal[
    "datasheet", "repository", "page", "config", "measured", "derived", "unsourced"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Source of a constant."""

    kind: SourceKind
    where: str
    checked_utc: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Caution:
    """A reason why a run's numbers are less certain, with a remedy."""

    code: str
    text: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A number (unit in the name of the field that holds it) and its origin."""

    value: float  # the unit is in the name of the field that holds it: HardwareSpec.memory_bytes
    source: Source
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FullHeads:
    """Heads of the full-attention layers, where those of sliding layers differ.

    Gemma 4 and MiMo-V2; in Step 3.5 and Laguna the number of query heads, ``n_heads``, differs
    (None: it is the same). ``value_head_dim`` None: as wide as keys. ``has_value_projection``
    False: values come from the keys' projection but are cached beside the keys (Gemma 4's
    ``attention_k_eq_v``).
    """

    n_kv_heads: int
    head_dim: int
    value_head_dim: int | None = None
    has_value_projection: bool = True
    has_sinks: bool = False
    n_heads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSharing:
    """The last ``n_layers`` read keys and values of earlier layers; ``n_full_layers`` are full.

    ``has_double_mlp``: their feed-forward blocks are twice as wide (Gemma 4).
    """

    n_layers: int
    n_full_layers: int
    has_double_mlp: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Attention of a model.

    Multi-head, grouped-query and multi-query differ only by ``n_kv_heads``.

    ``sliding_window_tokens`` is None where every layer attends to the whole context.
    ``full_attention_every`` = N says that every N-th layer is full and the others slide; None with
    a window says that every layer slides. ``n_full_attention_layers`` overrides it where the
    pattern is irregular. ``has_full_width_qk_norm``: the norms of queries and keys span all heads
    (OLMo 2), not one head. ``has_output_gate``: a gate as wide as the queries multiplies what
    attention returns (Qwen3-Next). ``value_head_dim`` is None where values are as wide as keys.
    ``full``: the layers of full attention have heads of another shape, and the other fields are
    those of the sliding ones. ``has_head_gate``: one number for each head multiplies what it returns
    (Step 3.5). ``query_rank``: queries pass a narrow matrix of this rank (Step 3).
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    has_qkv_bias: bool = False
    has_out_bias: bool = False
    has_qk_norm: bool = False
    has_sinks: bool = False
    sliding_window_tokens: int | None = None
    full_attention_every: int | None = 1
    n_full_attention_layers: int | None = None
    has_full_width_qk_norm: bool = False
    has_output_gate: bool = False
    value_head_dim: int | None = None
    full: FullHeads | None = None
    kv_sharing: KvSharing | None = None
    has_head_gate: bool = False
    query_rank: int | None = None

    @property
    def shape_text(self) -> str:
        """Query heads, KV heads and head size: ``32, 16, 256``, and those of full layers."""
        shape = f"{self.n_heads}, {self.n_kv_heads}, {self.head_dim}"
        full = self.full
        if full is None:
            return shape
        own = "" if full.n_heads is None else f"{full.n_heads}, "
        return f"{shape}; full layers {own}{full.n_kv_heads}, {full.head_dim}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaSpec:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): one latent row per token."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpSpec:
    """The feed-forward block of a dense layer."""

    intermediate_size: int
    is_gated: bool = True
    has_bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """Mixture of experts of all layers but the first ``n_dense_layers``.

    ``has_bias``: router and experts have biases; ``has_router_bias``: only the router has
    (DeepSeek-V3's score correction), but for the first ``n_hashed_layers``, which look experts up
    by token id (DeepSeek-V4). ``has_only_experts_quantised``: a quantised checkpoint stores
    attention in 16 bit (gpt-oss).
    """

    n_experts: int
    n_experts_per_token: int
    intermediate_size: int
    n_shared_experts: int = 0
    n_dense_layers: int = 0
    has_bias: bool = False
    has_router_bias: bool = False
    n_hashed_layers: int = 0
    has_shared_expert_gate: bool = False
    has_only_experts_quantised: bool = False
    n_empty_experts: int = 0
    """Experts that return what they get, beside ``n_experts``: the router's numbers for them are its
    only weights. ``n_experts_per_token`` is the mean number of those with weights (LongCat)."""
    latent_size: int | None = None
    """Width of what routed experts see, if projected for all of them (Nemotron 3 Super)."""
    has_latent_norms: bool = False
    """Norms of that width before and after the routed experts (Muse Spark)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers of one shape, in a model whose layers differ in more than their kind.

    The fields are those of ``ModelSpec``, for these layers alone. A layer may have no attention, or
    no feed-forward block (Nemotron Super and Ultra, which were pruned so), and then it has a norm
    less.
    """

    n_layers: int
    attention: AttentionSpec
    mlp: MlpSpec
    blocks: BlockCounts
    norms_per_layer: int
    moe: MoeSpec | None = None
    recurrent: RecurrentSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder-only language model, as far as speed and memory go.

    ``vocab_size`` is the number of rows of the embedding matrix (padded), not the tokenizer's size.
    ``architecture`` is the ``model_type`` of the Hugging Face configuration. ``checkpoint_dtype``
    is the format of the published linear weights, where known, and ``stored_apart`` that of the
    matrices (``perfmodel.matrices``, and "head") which such a checkpoint stores in another one.
    ``stored_bits``: what a weight takes in a format with its scales, where the file says how many
    weights share one. ``float4_bits``: the same of matrices that published 4-bit float checkpoints of
    the model store in more; others take NVFP4's 4.5. ``n_tower_weights``: vision and audio towers
    with their projectors, which a server loads in 16 bits beside the language model; no step of text
    reads them. The catalogue's are counted by transformers' classes or from the file's sizes, and by
    the maker's card for Gemma 4 and Mistral Large 3. ``groups``: its layers differ in their shapes;
    then ``attention``, ``mlp`` and ``moe`` are those of its largest layers, and ``parts`` has all.
    ``n_loops``: a token passes all layers this number of times, each time with keys and values of its
    own (Ouro, Nanbeige 4.2).
    """

    model_id: str
    architecture: str
    n_layers: int
    hidden_size: int
    vocab_size: int
    max_position_tokens: int
    attention: AttentionSpec
    mlp: MlpSpec
    source: Source
    tie_word_embeddings: bool
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norm_has_bias: bool = False
    norms_per_layer: int = 2
    has_final_norm: bool = True
    has_embedding_norm: bool = False
    position: Literal["rope", "learned", "alibi"] = "rope"
    n_learned_positions: int = 0
    embedding_size: int | None = None
    has_head_bias: bool = False
    moe: MoeSpec | None = None
    mla: MlaSpec | None = None
    indexer: IndexerSpec | None = None
    recurrent: RecurrentSpec | None = None
    blocks: BlockCounts | None = None
    compressed: CompressedSpec | None = None
    per_layer_inputs: PerLayerInputSpec | None = None
    shared: SharedSpec | None = None
    streams: StreamsSpec | None = None
    ngrams: NgramSpec | None = None
    relative: RelativeSpec | None = None
    family: str | None = None
    hf_id: str | None = None
    checkpoint_dtype: DType | None = None
    stored_apart: tuple[tuple[str, AskedFormat], ...] = ()
    stored_bits: tuple[tuple[DType, float], ...] = ()
    float4_bits: tuple[tuple[str, float], ...] = ()
    n_tower_weights: int = 0
    groups: tuple[LayerGroup, ...] = ()
    n_loops: int = 1
    note: str | None = None

    @property
    def parts(self) -> tuple["ModelSpec", ...]:
        """One model for each group of equal layers; the model itself if its layers are alike."""
        if not self.groups:
            return (self,)
        return tuple(
            replace(
                self,
                n_layers=group.n_layers,
                attention=group.attention,
                mlp=group.mlp,
                moe=group.moe,
                recurrent=group.recurrent,
                blocks=group.blocks,
                norms_per_layer=group.norms_per_layer,
                groups=(),
            )
            for group in self.groups
        )

    @property
    def n_attention_layers(self) -> int:
        """Layers that attend to a KV cache."""
        if self.blocks is not None:
            return self.blocks.n_attention
        return self.n_layers - (0 if self.recurrent is None else self.recurrent.n_layers)

    @property
    def n_feed_forward_layers(self) -> int:
        """Layers with an MLP or experts."""
        return self.n_layers if self.blocks is None else self.blocks.n_feed_forward

    @property
    def n_expert_layers(self) -> int:
        """Layers with a mixture of experts."""
        return 0 if self.moe is None else self.n_feed_forward_layers - self.moe.n_dense_layers

    @property
    def n_blocks(self) -> int:
        """Attention, recurrent and feed-forward blocks that a token passes: mostly two in a layer."""
        n_mixers = self.n_attention_layers + (self.recurrent.n_layers if self.recurrent else 0)
        return self.n_loops * (n_mixers + self.n_feed_forward_layers)

    def __post_init__(self) -> None:
        counts = {
            "n_layers": self.n_layers,
            "hidden_size": self.hidden_size,
            "vocab_size": self.vocab_size,
            "max_position_tokens": self.max_position_tokens,
            "n_heads": self.attention.n_heads,
            "n_kv_heads": self.attention.n_kv_heads,
            "head_dim": self.attention.head_dim,
        }
        for name, count in counts.items():
            if count < 1:
                raise SpecError(
                    f"{name} = {count} of model {self.model_id!r}",
                    where=self.source.where,
                    allowed="1 or more",
                )
        full = self.attention.full or self.attention
        for n_heads, n_kv_heads in (
            (self.attention.n_heads, self.attention.n_kv_heads),
            (full.n_heads or self.attention.n_heads, full.n_kv_heads),
        ):
            if n_heads % n_kv_heads:
                raise SpecError(
                    f"n_heads = {n_heads} of model {self.model_id!r} is no multiple"
                    f" of n_kv_heads = {n_kv_heads}",
                    where=self.source.where,
                    allowed="as many query heads for each KV head",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceSpec:
    """Price of one device per hour, with its basis and date."""

    usd_per_hour: float
    basis: str
    source: Source
    date_utc: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakSpec:
    """Peak operations per second in one number format, dense."""

    dtype: DType
    flop_per_s: Constant
    is_measured_matmul: bool = False


WeightFormat: TypeAlias = Literal["bfloat16", "float8", "nvfp4", "mxfp4", "int4"]
"""Stored format of a kernel's weights. mxfp4 is multiplied with activations of 8 or 16 bit, nvfp4
with those of 4 bit; int4 is widened to 16 bit on every device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRate:
    """Rate of the best measured kernel of one kind, for one weight format."""

    weights: WeightFormat
    flop_per_s: Constant
    read_bytes_per_s: Constant | None = None
    """Bandwidth of reading weights in a batch of few rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRates:
    """Measured rates of single kernels on a device: matmul, mixture of experts, all-reduce."""

    dense: tuple[KernelRate, ...] = ()
    experts: tuple[KernelRate, ...] = ()
    message_s: Constant | None = None
    """Time of an all-reduce of few KiB over the devices of a node."""
    reduce_bytes_per_s: Constant | None = None
    """Bandwidth per device beyond that, in all-reduces up to 2 MiB over eight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSpec:
    """One device, as far as serving goes; unknown facts are None, never 0.

    ``link_bytes_per_s`` is one direction, all scale-up links of one device together;
    ``linked_devices`` is how many of them these links join. Peaks are dense.
    """

    hardware_id: str
    name: str
    vendor: str
    kind: Literal["gpu", "cpu", "tpu", "apple", "asic"]
    memory_bytes: Constant
    memory_bytes_per_s: Constant
    peaks: tuple[PeakSpec, ...]
    measured_peaks: tuple[PeakSpec, ...] = ()
    kernels: KernelRates = KernelRates()
    link_bytes_per_s: Constant | None = None
    linked_devices: Constant | None = None
    pcie_bytes_per_s: Constant | None = None
    power_watt: Constant | None = None
    prices: tuple[PriceSpec, ...] = ()
    note: str | None = None

    def peak_flop_per_s(self, dtype: DType) -> Constant | None:
        """The dense datasheet peak for ``dtype``, or None where the device does not compute in it."""
        return next((peak.flop_per_s for peak in self.peaks if peak.dtype == dtype), None)

    @property
    def is_blackwell(self) -> bool:
        """Is it an NVIDIA device since Blackwell, for which engines have own kernels?"""
        return self.vendor == "nvidia" and self.peak_flop_per_s("float4") is not None

    @property
    def usual_dtype(self) -> DType:
        """Default number format of an engine on this device.

        float32 on CPUs; else bfloat16, or float16 on devices without it, to which vLLM falls back.
        """
        if self.kind == "cpu":
            return "float32"
        has_only_half = self.peak_flop_per_s("bfloat16") is None and self.peak_flop_per_s("float16")
        return "float16" if has_only_half else "bfloat16"


LoadFormat: TypeAlias = Literal["auto", "dummy"]
EngineName: TypeAlias = Literal["transformers", "vllm", "openvino"]
EngineMode: TypeAlias = Literal["eager", "static", "compiled"]
AttentionKernel: TypeAlias = Literal["eager", "sdpa", "flash_attention_2", "flex_attention"]
"""As transformers names them: `eager` writes the scores out, the others do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Engine and settings; names are vLLM's where it has them.

    ``mode``: *eager* = dynamic KV cache, one kernel launch after another; *static* = preallocated
    KV cache; *compiled* = static cache through torch.compile, CUDA graphs on a GPU.
    """

    engine: EngineName = "transformers"
    mode: EngineMode = "eager"
    dtype: DType = "float32"
    kv_cache_dtype: DType | None = None
    quantization: DType | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    tensor_parallel_size: int = 1
    n_threads: int | None = None
    load_format: LoadFormat = "auto"
    attention: AttentionKernel | None = None
    """None: the engine's default."""

    def __post_init__(self) -> None:
        if self.tensor_parallel_size < 1:
            raise SpecError(
                f"tensor_parallel_size = {self.tensor_parallel_size}",
                where="--tp",
                allowed="1 or more",
            )

    @property
    def formats(self) -> str:
        """``bfloat16``, or ``float8 weights, else bfloat16``."""
        return (
            self.dtype
            if self.quantization is None
            else f"{self.quantization} weights, else {self.dtype}"
        )


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SweepPoint:
    """One static batch.

    ``batch_size`` prompts of ``prompt_tokens`` each, then ``gen_tokens`` tokens for every one of
    them.
    """

    prompt_tokens: int
    batch_size: int
    gen_tokens: int

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "batch_size", "gen_tokens"):
            if getattr(self, name) < 1:
                raise SpecError(
                    f"{name} = {getattr(self, name)}",
                    where="the sweep's points",
                    allowed="1 or more",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepVisit:
    """One visit to a point in a round of a sweep: its repetitions and warm-ups."""

    number: int
    """round · points of the plan + index of the point."""
    point_index: int
    first_repetition: int
    """Repetitions of a point, warm-ups included, are numbered through all its visits."""
    n_warmup: int
    n_reps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """Points of a sweep, in the order of measurement.

    Points are shuffled by ``seed``, so that drift is not mistaken for an effect.

    ``model`` is the user's text: a Hugging Face id or folder, a GGUF file or a catalogue id.
    The repetitions of each point are spread over ``n_rounds`` visits.
    """

    model: str
    engine: EngineSpec
    points: tuple[SweepPoint, ...]
    n_warmup: int
    n_reps: int
    seed: int
    collapse_factor_ratio: float = 2.0
    n_rounds: int = 1

    def __post_init__(self) -> None:
        if not self.points:
            raise SpecError(
                "the sweep has no points",
                allowed="at least one prompt length and one batch size",
                try_="--seq 128,256 --batch-sizes 1,2,4",
            )
        if self.n_reps < 1 or self.n_warmup < 0:
            raise SpecError(
                f"reps = {self.n_reps}, warmup = {self.n_warmup}",
                where="--reps, --warmup",
                allowed="reps >= 1, warmup >= 0",
            )
        if not 1 <= self.n_rounds <= self.n_reps:
            raise SpecError(
                f"{self.n_rounds} rounds of {self.n_reps} repetitions",
                where="--rounds",
                allowed=f"1 to {self.n_reps}",
            )
        if not 1 < self.collapse_factor_ratio < math.inf:
            raise SpecError(
                f"collapse factor {self.collapse_factor_ratio}",
                where="--collapse-factor",
                allowed="more than 1",
                try_="2",
            )


LossyFormat: TypeAlias = Literal["int8", "int4", "float8"]
CacheFormat: TypeAlias = Literal["int8", "float8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossyChange:
    """Changes to a model after loading; with the defaults nothing is changed.

    Weights of linear layers are rounded to nearest, without calibration; the embedding and the
    output head are unchanged, as in quantised checkpoints. int4 has a scale for each group of
    ``group_size`` weights of a row, int8 and float8 one for each row. Keys and values are rounded
    when they enter the cache: int8 with a scale for each head of a token, float8 (E4M3) with a
    scale of 1, which engines use without calibration.
    """

    weights: LossyFormat | None = None
    group_size: int = 128
    kv_cache: CacheFormat | None = None
    is_sparse: bool = False
    """2:4 sparsity: the two smallest of each four weights in a row are set to zero."""

    def __post_init__(self) -> None:
        if self.group_size < 1:
            raise SpecError(
                f"groups of {self.group_size}",
                where="--group-size",
                allowed="1 or more",
                try_="128",
            )
