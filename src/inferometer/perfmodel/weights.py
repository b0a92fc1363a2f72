"""Weights of a model: how many, bytes on one device, and bytes that a step reads.

A model is a list of ``Linear`` maps and some small vectors. Parameters, bytes, FLOP and
activations all follow from that list.
"""

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal, TypeAlias

from inferometer.errors import SpecError
from inferometer.inputs.types import (
    DTYPE_BITS,
    CompressedSpec,
    DType,
    EngineSpec,
    MlaSpec,
    ModelSpec,
    MoeSpec,
)
from inferometer.perfmodel.kv_cache import head_kinds
from inferometer.perfmodel.types import STORED_FORMATS

Split: TypeAlias = Literal["all", "kv_heads", "full_kv_heads", "none"]
"""How a matrix is split over a tensor-parallel group: over all devices, over as many as there are
KV heads (of the layers of full attention, where those have others), or not (a copy on each)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A matrix that multiplies every row.

    ``n_copies`` of it in each of ``n_layers`` layers, ``n_active_copies`` used by a token.
    """

    name: str
    n_in: int
    n_out: int
    n_layers: int
    split: Split = "all"
    n_copies: int = 1
    n_active_copies: int = 1
    has_bias: bool = False
    is_quantised: bool = True
    """Whether quantised checkpoints store it in few bits; routers and gates stay in 16, with
    some models all but experts."""
    apart: tuple[DType, DType] | None = None
    """This matrix has the second format where most have the first."""

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
    """Every matrix of the layers, without embedding and head.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_model
    >>> [(part.name, part.n_in, part.n_out) for part in linears(find_model("qwen2.5-3b"))][:2]
    [('query', 2048, 2048), ('key_value', 2048, 512)]
    """
    parts = (
        _attention(model)
        + _per_layer_inputs(model)
        + _indexer(model)
        + _recurrent(model)
        + _feed_forward(model)
    )
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
    return tuple(_stored_apart(part, model) for part in parts)


def _stored_apart(part: Linear, model: ModelSpec) -> Linear:
    name, whole = part.name.removeprefix("full_").removeprefix("wide_"), model.checkpoint_dtype
    stored = dict(model.stored_apart).get(name)
    if stored is None or whole is None:
        return part
    if stored == "none":
        return replace(part, is_quantised=False)
    return replace(part, apart=(whole, stored))


def n_parameters(model: ModelSpec) -> int:
    """Number of parameters, a tied matrix counted once.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_model
    >>> n_parameters(find_model("qwen2.5-3b"))
    3085938688
    """
    head = 0 if model.tie_word_embeddings else _embedding_elements(model)
    return (
        _embedding_elements(model)
        + head
        + _positions(model)
        + _per_layer_elements(model)
        + sum(part.n_weights for part in linears(model))
        + _small_vectors(model)
    )


def n_active_parameters(model: ModelSpec) -> int:
    """Number of weights that one decoded token multiplies.

    Routed experts count as used; the embedding look-up does not count.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_model
    >>> n_active_parameters(find_model("mixtral-8x7b"))
    12748853248
    """
    idle = sum(
        (part.n_weights + part.n_biases) * (part.n_copies - part.n_active_copies) // part.n_copies
        for part in linears(model)
    )
    lookup = (0 if model.tie_word_embeddings else _embedding_elements(model)) + _positions(model)
    return n_parameters(model) - idle - lookup - _per_layer_elements(model)


def stored_weight_bits(engine: EngineSpec, *, is_sparse: bool = False) -> float:
    """Bits that the engine stores for a weight of the layers, scales included.

    int4 in groups of 128 takes 4.16. 2:4 sparse weights store two of four neighbouring values,
    and two bits for each stored value that give its position: half of the value bits and one bit
    more for each weight. Scales are those of the dense matrix.

    Source
    ------
    Mishra et al., Accelerating Sparse Deep Neural Networks (arXiv 2104.08378), section 3.

    Example
    -------
    >>> stored_weight_bits(EngineSpec(dtype="bfloat16", quantization="int4"))
    4.15625
    >>> stored_weight_bits(EngineSpec(dtype="bfloat16"), is_sparse=True)
    9.0
    """
    return _stored_bits(engine.quantization, engine.dtype, is_sparse=is_sparse)


def _stored_bits(quantization: DType | None, dtype: DType, *, is_sparse: bool) -> float:
    stored = None if quantization is None else STORED_FORMATS.get(quantization)
    value_bits: float = DTYPE_BITS[quantization or dtype] if stored is None else stored.value_bits
    scale_bits = 0.0 if stored is None else stored.weight_bits - stored.value_bits
    return (value_bits / 2 + 1 if is_sparse else value_bits) + scale_bits


def weight_bytes(
    model: ModelSpec, engine: EngineSpec, *, n_expert_shards: int = 1, is_sparse: bool = False
) -> int:
    """Bytes of weights on one device, with the largest of ``n_expert_shards`` parts of the experts.

    Under tensor parallelism matrices are split over the devices; K and V projections over at
    most ``n_kv_heads`` of them; norms, biases, routers and MLA's down-projections are copied.
    vLLM splits the embedding, transformers copies it. Quantised: only the matrices of the
    layers; embedding, head, norms and routers stay in ``engine.dtype``, as in published int4 and
    float8 checkpoints.

    Raises
    ------
    SpecError
        The query heads cannot be split evenly.
    """
    n_devices = checked_tensor_parallel(model, engine)
    plain_bits = DTYPE_BITS[engine.dtype]
    held = {part: -(-part.n_copies // n_expert_shards) / part.n_copies for part in linears(model)}
    total_bits = sum(
        linear_bits(part, engine, is_sparse=is_sparse)
        * part.n_weights
        * share
        / n_shards(part, model, n_devices)
        for part, share in held.items()
    )
    total_bits += (_small_vectors(model) + _positions(model)) * plain_bits
    n_embedding_shards = n_devices if engine.engine == "vllm" else 1
    looked_up = _embedding_elements(model) + _per_layer_elements(model)
    total_bits += looked_up * plain_bits / n_embedding_shards
    if not model.tie_word_embeddings:
        total_bits += _embedding_elements(model) * plain_bits / n_devices
    return round(total_bits / 8)


def step_weight_bytes(
    model: ModelSpec,
    engine: EngineSpec,
    *,
    n_rows: int,
    n_logit_positions: int,
    n_sharing: int = 1,
    is_sparse: bool = False,
) -> float:
    """Bytes of weights that one device reads in a step of ``n_rows`` new tokens.

    Each matrix once, of the experts only those that some row is routed to, the head where logits
    are wanted; of the embedding only the rows looked up, which count as activations. ``n_sharing``
    replicas with as many rows each share the experts.
    """
    n_devices = checked_tensor_parallel(model, engine)
    plain_bits = DTYPE_BITS[engine.dtype]
    bits = 0.0
    for part in linears(model):
        n_sharing_part = n_sharing if part.n_copies > 1 else 1
        share_fraction = (
            expected_experts(part.n_copies, part.n_active_copies, n_rows * n_sharing_part)
            / part.n_copies
            / n_sharing_part
        )
        bits += (
            linear_bits(part, engine, is_sparse=is_sparse)
            * part.n_weights
            / n_shards(part, model, n_devices)
            * share_fraction
        )
    if n_logit_positions > 0:
        bits += _embedding_elements(model) * plain_bits / n_devices
    return (bits + _small_vectors(model) * plain_bits) / 8


def expected_experts(n_experts: int, n_experts_per_token: int, n_tokens: int) -> float:
    """Expected number of distinct experts of ``n_tokens`` tokens, if routing is independent.

    E·(1 - (1 - k/E)^n): a token leaves a given expert out with probability 1 - k/E. Real routing
    is correlated, so fewer are touched: this is an upper figure in expectation.

    Source
    ------
    MoESD (arXiv 2505.19645), number of activated experts N(t).

    Example
    -------
    >>> round(expected_experts(8, 2, 4), 4)
    5.4688
    """
    if n_experts == n_experts_per_token:
        return float(n_experts)
    return n_experts * (1.0 - (1.0 - n_experts_per_token / n_experts) ** n_tokens)


def linear_bits(part: Linear, engine: EngineSpec, *, is_sparse: bool = False) -> float:
    """Stored bits per weight of this matrix."""
    if not part.is_quantised:
        return DTYPE_BITS[engine.dtype]
    own = part.apart if part.apart is not None and part.apart[0] == engine.quantization else None
    stored = engine.quantization if own is None else own[1]
    return _stored_bits(stored, engine.dtype, is_sparse=is_sparse)


def n_shards(part: Linear, model: ModelSpec, n_devices: int) -> int:
    """Number of the ``n_devices`` devices over which this matrix is split."""
    if part.split == "none":
        return 1
    if part.split == "full_kv_heads" and model.attention.full is not None:
        return min(n_devices, model.attention.full.n_kv_heads)
    return min(n_devices, model.attention.n_kv_heads) if part.split == "kv_heads" else n_devices


def checked_tensor_parallel(model: ModelSpec, engine: EngineSpec) -> int:
    """The engine's tensor-parallel size, if the model's query heads can be split over it.

    Raises
    ------
    SpecError
        The matrices cannot be divided by this number.
    """
    n_devices = engine.tensor_parallel_size
    n_heads = model.attention.n_heads
    if n_heads % n_devices:
        allowed = [str(size) for size in range(1, n_heads + 1) if n_heads % size == 0]
        raise SpecError(
            f"{n_heads} query heads of {model.model_id!r} cannot be split over {n_devices} devices",
            where="--tp",
            allowed=", ".join(allowed),
        )
    return n_devices


def head_elements(model: ModelSpec) -> int:
    """Elements of the matrix that turns hidden states into logits."""
    return _embedding_elements(model)


def _attention(model: ModelSpec) -> list[Linear]:
    """Matrices of queries, keys, values and output; full layers separately where they differ."""
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
        n_queries, n_projected = heads.n_heads * kind.head_dim, kind.head_dim
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
            split="full_kv_heads" if prefix else "kv_heads",
        )
        out = Linear(
            name=f"{prefix}attention_out",
            n_in=heads.n_heads * kind.value_head_dim,
            n_out=hidden,
            n_layers=kind.n_layers,
            has_bias=heads.has_out_bias,
        )
        parts += [query, key_value, out]
    return [part for part in parts if part.n_layers] if heads.full is not None else parts


def _per_layer_inputs(model: ModelSpec) -> list[Linear]:
    """Gemma 4's inputs of each layer: a projection of the embedding, a gate and an output.

    Source: the class of transformers 5.23 (gemma4); vLLM 0.32.0 copies gates and outputs.
    """
    inputs = model.per_layer_inputs
    if inputs is None:
        return []
    part = partial(Linear, n_layers=model.n_layers, split="none")
    width, hidden = inputs.size, model.hidden_size
    return [
        Linear(name="layer_inputs", n_in=hidden, n_out=model.n_layers * width, n_layers=1),
        part(name="layer_input_gate", n_in=hidden, n_out=width),
        part(name="layer_input_out", n_in=width, n_out=hidden),
    ]


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
    """DeepSeek Sparse Attention's indexer: vLLM copies its matrices to each device.

    Source: DeepSeek-V3.2 (arXiv 2512.02556), section 2.1; queries start from MLA's own latent.
    """
    indexer, mla = model.indexer, model.mla
    if indexer is None:
        return []
    rank = None if mla is None else mla.q_lora_rank
    n_keys = indexer.head_dim
    if model.compressed is not None:  # keys and their gates, each of two overlapping blocks
        rank, n_keys = model.compressed.q_lora_rank, 4 * indexer.head_dim
    n_query_in = rank or model.hidden_size
    part = partial(Linear, n_layers=indexer.n_layers, split="none")
    return [
        part(name="index_query", n_in=n_query_in, n_out=indexer.n_heads * indexer.head_dim),
        part(name="index_key", n_in=model.hidden_size, n_out=n_keys),
        part(
            name="index_weights", n_in=model.hidden_size, n_out=indexer.n_heads, is_quantised=False
        ),
    ]


def _recurrent(model: ModelSpec) -> list[Linear]:
    """Linear attention: queries, keys, values and an output gate; two gates for each value head."""
    linear = model.recurrent
    if linear is None:
        return []
    part = partial(Linear, n_layers=linear.n_layers)
    n_in, n_gates = model.hidden_size, 2 * linear.n_value_heads
    parts = [
        part(name="linear_in", n_in=n_in, n_out=linear.conv_width + linear.value_width),
        part(name="linear_gates", n_in=n_in, n_out=n_gates, is_quantised=False),
        part(name="linear_out", n_in=linear.value_width, n_out=model.hidden_size),
    ]
    return parts if linear.has_decay_gates else [parts[0], parts[2]]


def _feed_forward(model: ModelSpec) -> list[Linear]:
    n_dense = model.n_layers if model.moe is None else model.moe.n_dense_layers
    parts = _dense_layers(model, n_dense) if n_dense else []
    if model.moe is not None and n_dense < model.n_layers:
        parts += _expert_layers(model, model.moe, model.n_layers - n_dense)
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
            n_out=moe.n_experts,
            n_layers=n_layers - moe.n_hashed_layers,
            has_bias=moe.has_bias or moe.has_router_bias,
        )
    ]
    if moe.n_hashed_layers:
        routers.append(
            gate(name="hashed_router", n_out=moe.n_experts, n_layers=moe.n_hashed_layers)
        )
    parts = [
        *routers,
        expert(name="experts_up", n_in=hidden, n_out=n_up * moe.intermediate_size),
        expert(name="experts_down", n_in=moe.intermediate_size, n_out=hidden),
    ]
    if shared := moe.n_shared_experts * moe.intermediate_size:
        parts += [
            part(name="shared_up", n_in=hidden, n_out=n_up * shared),
            part(name="shared_down", n_in=shared, n_out=hidden),
        ]
    if moe.has_shared_expert_gate:
        parts.append(gate(name="shared_gate", n_out=1))
    return parts


def _embedding_elements(model: ModelSpec) -> int:
    return model.vocab_size * (model.embedding_size or model.hidden_size)


def _positions(model: ModelSpec) -> int:
    return model.n_learned_positions * model.hidden_size if model.position == "learned" else 0


def _per_layer_elements(model: ModelSpec) -> int:
    """Elements of the per-layer input tables, which are looked up like the embedding."""
    inputs = model.per_layer_inputs
    return 0 if inputs is None else inputs.vocab_size * inputs.size * model.n_layers


def _small_vectors(model: ModelSpec) -> int:
    """Norms, biases, attention sinks, and vectors of linear attention."""
    mla = model.mla
    norm = model.hidden_size * (2 if model.norm_has_bias else 1)
    per_layer = 0
    if mla is not None:
        per_layer += mla.kv_lora_rank + (mla.q_lora_rank or 0)
    final = norm if model.has_final_norm else 0
    head_bias = model.vocab_size if model.has_head_bias else 0
    return (
        model.n_layers * model.norms_per_layer * norm
        + model.n_attention_layers * per_layer
        + _small_vectors_of_heads(model)
        + (0 if model.per_layer_inputs is None else model.per_layer_inputs.size)
        + _small_vectors_of_choice(model)
        + final
        + head_bias
        + sum(part.n_biases for part in linears(model))
    )


def _small_vectors_of_heads(model: ModelSpec) -> int:
    """Norms of queries and keys, and sinks; layers that share keys have no norm of their own."""
    heads, n_elements = model.attention, 0
    for kind in head_kinds(model):
        n_own = kind.n_layers - kind.n_shared_layers
        if heads.has_full_width_qk_norm and heads.has_qk_norm:
            n_elements += kind.n_layers * heads.n_heads * kind.head_dim
            n_elements += n_own * kind.n_kv_heads * kind.head_dim
        elif heads.has_qk_norm:
            n_elements += (kind.n_layers + n_own) * kind.head_dim
        if kind.has_sinks:
            n_elements += kind.n_layers * heads.n_heads
    return n_elements


def _small_vectors_of_choice(model: ModelSpec) -> int:
    """Norms and positions of indexers and compressors, streams, and linear attention's own."""
    indexer, linear, compressed = model.indexer, model.recurrent, model.compressed
    n_elements = 0 if indexer is None else indexer.n_layers * 2 * indexer.head_dim
    if compressed is not None:
        width, n_streams = model.attention.head_dim, compressed.n_streams
        n_keys = 0 if indexer is None else indexer.head_dim
        positions = compressed.fine_tokens * 2
        fine = positions * (width + n_keys) + width - n_keys  # the indexer has one norm, not two
        n_elements += (
            model.n_layers * (compressed.q_lora_rank + width)
            + compressed.n_fine_layers * fine
            + compressed.n_coarse_layers * (compressed.coarse_tokens + 1) * width
            + 2 * model.n_layers * ((2 + n_streams) * n_streams + 3)
            + n_streams
            + 1
        )
    if linear is not None:
        n_elements += linear.n_layers * linear.vector_elements
    return n_elements
