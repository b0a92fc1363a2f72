"""The matrices of a model, from which its parameters, bytes, FLOP and activations follow."""

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal, NamedTuple, TypeAlias

from inferometer.inputs.model_parts import CompressedSpec, SharedSpec
from inferometer.inputs.types import (
    AskedFormat,
    DType,
    MlaSpec,
    ModelSpec,
    MoeSpec,
)
from inferometer.perfmodel.kv_cache import head_kinds

Split: TypeAlias = Literal["all", "kv_heads", "none"]
"""How a matrix is split over a tensor-parallel group. "all": over all devices; "kv_heads": over at
most as many as its layers have KV heads; "none": each device has a copy."""


class StoredAs(NamedTuple):
    """Number format ``own`` of a matrix in a checkpoint that stores most matrices in ``whole``."""

    whole: DType
    own: DType
    weight_bits: float | None
    """Bits per weight with its share of scales; None if the file does not state group sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A weight matrix that multiplies the hidden states of every token.

    Each of ``n_layers`` layers has ``n_copies`` of it (experts); a token uses ``n_active_copies``.
    """

    name: str
    n_in: int
    n_out: int
    n_layers: int
    split: Split = "all"
    n_kv_heads: int = 0
    """KV heads of its layers, if ``split`` is "kv_heads"."""
    n_copies: int = 1
    n_active_copies: int = 1
    n_runs: int = 1
    """How often a token passes each of these layers: it is read each time, and stored once."""
    has_bias: bool = False
    is_quantised: bool = True
    """Do quantised checkpoints store it in few bits? Routers and gates stay in 16 bits; in some
    models everything except experts does."""
    stored: StoredAs | None = None
    """Format in the published checkpoint, if that is quantised."""
    float4_bits: float | None = None
    """Bits per weight in published 4-bit float checkpoints; None: as in the rest of them."""

    @property
    def n_weights(self) -> int:
        """Elements of all copies in all layers, biases left out."""
        return self.n_in * self.n_out * self.n_copies * self.n_layers

    @property
    def n_biases(self) -> int:
        """Elements of all biases."""
        return self.n_out * self.n_copies * self.n_layers if self.has_bias else 0


@lru_cache(maxsize=32)
def linears(model: ModelSpec) -> tuple[Linear, ...]:
    """All matrices of the model's layers, without the embedding and the output head.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_model
    >>> [(part.name, part.n_in, part.n_out) for part in linears(find_model("qwen2.5-3b"))][:2]
    [('query', 2048, 2048), ('key_value', 2048, 512)]
    """
    parts = [
        matrix
        for part in model.parts
        for matrix in (
            *(_attention(part) if part.shared is None else _shared(part, part.shared)),
            *_per_layer_inputs(part),
            *_indexer(part),
            *_recurrent(part),
            *(_feed_forward(part) if part.shared is None else ()),
        )
    ]
    parts += _streams(model) + _ngrams(model)
    if model.embedding_size not in {None, model.hidden_size}:
        ends = [
            Linear(name=name, n_in=n_in, n_out=n_out, n_layers=1, split="none")
            for name, n_in, n_out in (
                ("project_in", model.embedding_size or 0, model.hidden_size),
                ("project_out", model.hidden_size, model.embedding_size or 0),
            )
        ]
        parts += ends
    if model.moe is not None and model.moe.has_only_experts_quantised:
        parts = [replace(part, is_quantised=part.n_copies > 1) for part in parts]
    parts = [replace(part, n_runs=part.n_runs * model.n_loops) for part in parts]
    return tuple(_as_stored(part, model) for part in _merged(parts))


def _merged(parts: list[Linear]) -> list[Linear]:
    """Equal matrices of several groups of layers as one."""
    n_layers: dict[Linear, int] = {}
    for part in parts:
        shape = replace(part, n_layers=1)
        n_layers[shape] = n_layers.get(shape, 0) + part.n_layers
    return [replace(shape, n_layers=n) for shape, n in n_layers.items()]


def _as_stored(part: Linear, model: ModelSpec) -> Linear:
    name = part.name.removeprefix("full_").removeprefix("wide_")
    stored = stored_as(model, name)
    if model.checkpoint_dtype != "float4":  # else the checkpoint itself says it
        part = replace(part, float4_bits=dict[str, float](model.float4_bits).get(name))
    return replace(part, is_quantised=False) if stored == "none" else replace(part, stored=stored)


def stored_as(model: ModelSpec, name: str) -> StoredAs | Literal["none"] | None:
    """How the published checkpoint stores this matrix; "none": in 16 bits; None: not known."""
    whole = model.checkpoint_dtype
    own = dict[str, AskedFormat](model.stored_apart).get(name, whole) if whole else None
    if whole is None or own is None:
        return None
    if own == "none":
        return "none"
    return StoredAs(whole, own, dict[DType, float](model.stored_bits).get(own))


def _attention(model: ModelSpec) -> list[Linear]:
    """Query, key-value and output projections; for both kinds of layers if their heads differ."""
    heads, hidden = model.attention, model.hidden_size
    if model.mla is not None:
        return _latent_attention(model, model.mla)
    if model.compressed is not None:
        return _compressed_attention(model, model.compressed)
    full, sliding = head_kinds(model)
    kinds = [("full_", full), ("", sliding)]
    if heads.full is None:
        n_shared = full.n_shared_layers + sliding.n_shared_layers
        whole = full._replace(n_layers=model.n_attention_layers, n_shared_layers=n_shared)
        kinds = [("", whole)]
    parts = list[Linear]()
    for prefix, kind in kinds:
        n_queries, n_projected = kind.n_heads * kind.head_dim, kind.head_dim
        n_projected += kind.value_head_dim if kind.has_value_projection else 0
        query = Linear(
            name=f"{prefix}query",
            n_in=hidden,
            n_out=2 * n_queries if heads.has_output_gate else n_queries,
            n_layers=kind.n_layers,
            has_bias=heads.has_qkv_bias,
        )
        key_value = replace(
            query,
            name=f"{prefix}key_value",
            n_out=kind.n_kv_heads * n_projected,
            n_layers=kind.n_layers - kind.n_shared_layers,
            split="kv_heads",
            n_kv_heads=kind.n_kv_heads,
        )
        queries = [query]
        if heads.query_rank is not None:
            down = replace(query, name="query_down", n_out=heads.query_rank, split="none")
            queries = [down, replace(query, name="query_up", n_in=heads.query_rank)]
        if heads.has_head_gate:
            queries.append(replace(query, name=f"{prefix}head_gate", n_out=kind.n_heads))
        if model.relative is not None:
            width = kind.n_heads * model.relative.dim
            queries.append(replace(query, name=f"{prefix}positions", n_out=width))
        out = Linear(
            name=f"{prefix}attention_out",
            n_in=kind.n_heads * kind.value_head_dim,
            n_out=hidden,
            n_layers=kind.n_layers,
            has_bias=heads.has_out_bias,
        )
        parts += [*queries, key_value, out]
    return [part for part in parts if part.n_layers] if heads.full is not None else parts


def _shared(model: ModelSpec, shared: SharedSpec) -> list[Linear]:
    """Blocks that layers use in turn, and each layer's own adapters and output.

    Source: the class of transformers 5.23 (zamba2).
    """
    heads, hidden, n_uses = model.attention, model.hidden_size, model.n_attention_layers
    width, rank = heads.n_heads * heads.head_dim, shared.adapter_rank
    n_up = (2 if model.mlp.is_gated else 1) * model.mlp.intermediate_size
    n_more = n_uses % shared.n_stored  # blocks with one use more
    parts = list[Linear]()
    for n_blocks, n_runs in ((n_more, n_uses // shared.n_stored + 1),
                             (shared.n_stored - n_more, n_uses // shared.n_stored)):  # fmt: skip
        part = partial(Linear, n_layers=n_blocks, n_runs=n_runs)
        kv = 2 * heads.n_kv_heads * heads.head_dim
        query = part(name="query", n_in=2 * hidden, n_out=width)
        parts += [
            query,
            replace(
                query, name="key_value", n_out=kv, split="kv_heads", n_kv_heads=heads.n_kv_heads
            ),
            part(name="attention_out", n_in=width, n_out=hidden),
            part(name="mlp_up", n_in=hidden, n_out=n_up),
            part(name="mlp_down", n_in=model.mlp.intermediate_size, n_out=hidden),
        ]
    own = partial(Linear, n_layers=n_uses)
    parts += [
        own(name="mlp_adapter_down", n_in=hidden, n_out=rank, split="none"),
        own(name="mlp_adapter_up", n_in=rank, n_out=n_up),
        own(name="shared_out", n_in=hidden, n_out=hidden, split="none"),
    ]
    if shared.has_attention_adapters:
        parts += [
            own(name="attention_adapter_down", n_in=2 * hidden, n_out=3 * rank, split="none"),
            own(name="attention_adapter_up", n_in=rank, n_out=3 * width),
        ]
    return [one for one in parts if one.n_layers and one.n_runs]


def _per_layer_inputs(model: ModelSpec) -> list[Linear]:
    """Gemma's inputs of each layer: a projection of the embedding, a gate and an output.

    And Gemma 3n's residual streams, which it projects from the embedding and before the head.
    Source: the classes of transformers 5.23 (gemma4, gemma3n); vLLM 0.32.0 copies gates and outputs.
    """
    inputs = model.per_layer_inputs
    if inputs is None:
        return []
    part = partial(Linear, n_layers=model.n_layers, split="none")
    width, hidden = inputs.size, model.hidden_size
    parts = [
        Linear(name="layer_inputs", n_in=hidden, n_out=model.n_layers * width, n_layers=1),
        part(name="layer_input_gate", n_in=hidden, n_out=width),
        part(name="layer_input_out", n_in=width, n_out=hidden),
    ]
    if inputs.laurel_rank is not None:
        parts += [
            part(name="laurel_in", n_in=hidden, n_out=inputs.laurel_rank, split="all"),
            part(name="laurel_out", n_in=inputs.laurel_rank, n_out=hidden, split="all"),
        ]
    if (n := inputs.n_streams) > 1:  # each layer predicts all streams from one, and corrects them
        streams = partial(part, is_quantised=False)
        parts += [
            part(name="streams_in", n_in=hidden, n_out=hidden, n_layers=n - 1),
            part(name="streams_out", n_in=hidden, n_out=hidden, n_layers=n - 1),
            streams(name="streams_router", n_in=hidden, n_out=n),
            streams(name="streams_predict", n_in=n, n_out=n * n),
            streams(name="streams_correct", n_in=n, n_out=n),
        ]
    return parts


def _streams(model: ModelSpec) -> list[Linear]:
    """Hyper-connections: two in a layer, and one before the head.

    Source: the classes of transformers 5.23 (qwen4_exp, glm5_next, hy_v4); vLLM 0.32.0 copies them.
    """
    streams = model.streams
    if streams is None:
        return []
    width, n_blocks = streams.n_streams * model.hidden_size, 2 * model.n_layers
    part = partial(Linear, split="none", is_quantised=False)
    if streams.rank is None:
        mixed = part(name="streams", n_in=width, n_out=streams.n_numbers, n_layers=n_blocks)
        out = part(name="streams_out", n_in=width, n_out=streams.n_streams, n_layers=1)
        return [mixed, out] if streams.has_head else [mixed]
    return [
        part(name="streams_down", n_in=width, n_out=streams.rank, n_layers=n_blocks + 1),
        part(name="streams_up", n_in=streams.rank, n_out=width, n_layers=n_blocks + 1),
        part(name="streams_inject", n_in=width, n_out=streams.n_streams, n_layers=n_blocks),
    ]


def _ngrams(model: ModelSpec) -> list[Linear]:
    """What projects the rows of n-grams."""
    if (one := model.ngrams) is None:
        return []
    return [Linear(name="ngrams", n_in=one.n_in, n_out=one.n_out, n_layers=one.n_projections)]


def _latent_attention(model: ModelSpec, mla: MlaSpec) -> list[Linear]:
    """Multi-head latent attention. Source: DeepSeek-V2, arXiv:2405.04434, section 2.1."""
    n_heads = model.attention.n_heads
    n_queries = n_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    n_expanded = n_heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    n_latent = mla.kv_lora_rank + mla.qk_rope_head_dim
    part = partial(Linear, n_layers=model.n_attention_layers)
    query = [part(name="query", n_in=model.hidden_size, n_out=n_queries)]
    if (rank := mla.q_lora_rank) is not None:
        query = [
            part(name="query_down", n_in=model.hidden_size, n_out=rank, split="none"),
            part(name="query_up", n_in=rank, n_out=n_queries),
        ]
    if model.attention.has_output_gate:
        width = n_heads * mla.v_head_dim
        query.append(part(name="attention_gate", n_in=model.hidden_size, n_out=width))
    if model.attention.has_head_gate:
        query.append(part(name="head_gate", n_in=model.hidden_size, n_out=n_heads))
    return [
        *query,
        part(name="key_value_down", n_in=model.hidden_size, n_out=n_latent, split="none"),
        part(name="key_value_up", n_in=mla.kv_lora_rank, n_out=n_expanded),
        part(name="attention_out", n_in=n_heads * mla.v_head_dim, n_out=model.hidden_size),
    ]


def _compressed_attention(model: ModelSpec, compressed: CompressedSpec) -> list[Linear]:
    """DeepSeek-V4: one key-value row, its compressors, grouped output, and residual streams.

    Source: the class of transformers 5.23 (deepseek_v4), which cites the technical report.
    """
    heads, hidden, rank = model.attention, model.hidden_size, compressed.q_lora_rank
    grouped = compressed.n_output_groups * compressed.output_lora_rank
    streams = compressed.n_streams * hidden
    part = partial(Linear, n_layers=model.n_layers)
    copied = partial(part, n_in=hidden, split="none")
    n_fine, n_coarse = compressed.n_fine_layers, compressed.n_coarse_layers
    return [
        copied(name="query_down", n_out=rank),
        part(name="query_up", n_in=rank, n_out=heads.n_heads * heads.head_dim),
        copied(name="key_value", n_out=heads.head_dim),
        copied(name="compress_fine", n_out=4 * heads.head_dim, n_layers=n_fine),
        copied(name="compress_coarse", n_out=2 * heads.head_dim, n_layers=n_coarse),
        part(
            name="attention_out_grouped",
            n_in=heads.n_heads * heads.head_dim // compressed.n_output_groups,
            n_out=grouped,
        ),
        part(name="attention_out", n_in=grouped, n_out=hidden),
        copied(
            name="streams",
            n_in=streams,
            n_out=(2 + compressed.n_streams) * compressed.n_streams,
            n_layers=2 * model.n_layers,
            is_quantised=False,
        ),
        copied(
            name="streams_out",
            n_in=streams,
            n_out=compressed.n_streams,
            n_layers=1,
            is_quantised=False,
        ),
    ]


def _indexer(model: ModelSpec) -> list[Linear]:
    """The indexer of sparse attention: vLLM copies DeepSeek's matrices to each device.

    Source: DeepSeek-V3.2 (arXiv 2512.02556), section 2.1; queries start from MLA's own latent.
    """
    indexer, mla = model.indexer, model.mla
    if indexer is None:
        return []
    rank = None if mla is None else mla.q_lora_rank
    n_keys = indexer.head_dim * (2 if indexer.has_key_gate else 1)
    if model.compressed is not None:  # keys and their gates, each of two overlapping blocks
        rank, n_keys = model.compressed.q_lora_rank, 4 * indexer.head_dim
    n_query_in = rank or model.hidden_size
    part = partial(Linear, n_layers=indexer.n_layers, split="none")
    projections = [
        part(name="index_query", n_in=n_query_in, n_out=indexer.n_heads * indexer.head_dim),
        part(name="index_key", n_in=model.hidden_size, n_out=n_keys),
    ]
    if indexer.chooses_blocks:  # each head chooses for the heads of one KV head
        heads = replace(projections[0], split="kv_heads", n_kv_heads=model.attention.n_kv_heads)
        return [heads, projections[1]]
    weights = part(name="index_weights", n_in=model.hidden_size, n_out=indexer.n_heads)
    return [*projections, replace(weights, is_quantised=False)]


def _recurrent(model: ModelSpec) -> list[Linear]:
    """Linear attention and state-space layers: input projection, gates and decays, and output.

    Source: the classes of transformers 5.23 (qwen3_next, minimax, bamba, jamba, lfm2, kimi_linear,
    recurrent_gemma).
    """
    linear, hidden = model.recurrent, model.hidden_size
    if linear is None:
        return []
    part = partial(Linear, n_layers=linear.n_layers, has_bias=linear.has_projection_bias)
    plain = partial(part, n_in=hidden, has_bias=False, is_quantised=False)
    width, n_heads, head_dim = linear.value_width, linear.n_value_heads, linear.value_head_dim
    n_more = {"mamba2": width + n_heads, "convolution": 2 * width}.get(linear.kind, width)
    gates = list[Linear]()
    if linear.kind == "delta":
        gates = [plain(name="linear_gates", n_out=2 * n_heads)]
    elif linear.kind == "mamba1":
        rank = linear.step_rank or 0
        n_dynamic = rank + 2 * linear.key_head_dim
        gates = [
            plain(name="linear_gates", n_in=width, n_out=n_dynamic),
            plain(name="linear_steps", n_in=rank, n_out=width, has_bias=True),
        ]
    elif linear.kind == "rglru":  # of inputs and of decays; each head's channels see one another
        gates = [plain(name="linear_gates", n_in=head_dim, n_out=2 * width, has_bias=True)]
    elif linear.kind == "kda":
        n_wide = linear.has_wide_gate + linear.has_wide_decays
        n_low, n_more = 2 - n_wide, n_wide * width  # Kimi Linear's outputs and decays are low-rank
        gates = [plain(name="linear_gates", n_out=n_heads)]
        if n_low:
            gates += [
                plain(name="linear_gates_down", n_out=n_low * head_dim, split="none"),
                plain(name="linear_gates_up", n_in=head_dim, n_out=n_low * width),
            ]
    return [
        part(name="linear_in", n_in=hidden, n_out=linear.conv_width + n_more),
        *gates,
        part(name="linear_out", n_in=width, n_out=hidden),
    ]


def _feed_forward(model: ModelSpec) -> list[Linear]:
    n_dense = model.n_feed_forward_layers - model.n_expert_layers
    parts = _dense_layers(model, n_dense) if n_dense else []
    if model.moe is not None and model.n_expert_layers:
        parts += _expert_layers(model, model.moe, model.n_expert_layers)
    return parts


def _dense_layers(model: ModelSpec, n_layers: int) -> list[Linear]:
    inner, n_up = model.mlp.intermediate_size, 2 if model.mlp.is_gated else 1
    sharing = model.attention.kv_sharing
    n_wide = sharing.n_layers if sharing is not None and sharing.has_double_mlp else 0
    n_wide = min(n_wide, n_layers)
    part = partial(Linear, has_bias=model.mlp.has_bias)
    parts = [
        (
            part(name=f"{name}_up", n_in=model.hidden_size, n_out=n_up * width, n_layers=n),
            part(name=f"{name}_down", n_in=width, n_out=model.hidden_size, n_layers=n),
        )
        for name, width, n in (
            ("mlp", inner, n_layers - n_wide),
            ("wide_mlp", 2 * inner, n_wide),
        )
        if n
    ]
    return [one for pair in parts for one in pair]


def _expert_layers(model: ModelSpec, moe: MoeSpec, n_layers: int) -> list[Linear]:
    hidden, n_up = model.hidden_size, 2 if model.mlp.is_gated else 1
    part = partial(Linear, n_layers=n_layers)
    gate = partial(part, n_in=hidden, split="none", is_quantised=False)
    expert = partial(
        part,
        n_copies=moe.n_experts,
        n_active_copies=moe.n_experts_per_token,
        has_bias=moe.has_bias,
    )
    routers = [
        gate(
            name="router",
            n_out=moe.n_experts + moe.n_empty_experts,
            n_layers=n_layers - moe.n_hashed_layers,
            has_bias=moe.has_bias or moe.has_router_bias,
        )
    ]
    if moe.n_hashed_layers:
        routers.append(
            gate(name="hashed_router", n_out=moe.n_experts, n_layers=moe.n_hashed_layers)
        )
    seen = moe.latent_size or hidden
    parts = [
        *routers,
        expert(name="experts_up", n_in=seen, n_out=n_up * moe.intermediate_size),
        expert(name="experts_down", n_in=moe.intermediate_size, n_out=seen),
    ]
    if moe.latent_size is not None:
        parts += [
            part(name="experts_latent_in", n_in=hidden, n_out=seen, split="none"),
            part(name="experts_latent_out", n_in=seen, n_out=hidden, split="none"),
        ]
    if shared := moe.n_shared_experts * moe.intermediate_size:
        parts += [
            part(name="shared_up", n_in=hidden, n_out=n_up * shared),
            part(name="shared_down", n_in=shared, n_out=hidden),
        ]
    if moe.has_shared_expert_gate:
        parts.append(gate(name="shared_gate", n_out=1))
    return parts


def n_shards(part: Linear, n_devices: int) -> int:
    """Number of the ``n_devices`` devices over which this matrix is split."""
    if part.split == "none":
        return 1
    return min(n_devices, part.n_kv_heads) if part.split == "kv_heads" else n_devices
