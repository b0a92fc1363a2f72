"""Weights of a model: how many, bytes on one device, and bytes that a step reads.

A model is a list of ``Linear`` maps (``perfmodel.matrices``) and some small vectors.
"""

import math
from collections.abc import Mapping
from typing import Final

from inferometer import suggestions
from inferometer.errors import SpecError
from inferometer.inputs.types import DTYPE_BITS, DType, EngineSpec, HardwareSpec, ModelSpec
from inferometer.perfmodel.kv_cache import head_kinds
from inferometer.perfmodel.matrices import Linear, StoredAs, linears, n_shards, stored_as
from inferometer.perfmodel.types import ASKED_FORMATS, STORED_FORMATS, StoredFormat

_HOPPER: Final = ("h100", "h20", "gh200")
"""Ids of the catalogue begin so; H200's too."""


def n_parameters(model: ModelSpec) -> int:
    """Number of parameters, a tied matrix counted once.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_model
    >>> n_parameters(find_model("qwen2.5-3b"))
    3085938688
    """
    head = 0 if model.tie_word_embeddings else embedding_elements(model)
    return (
        embedding_elements(model)
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
    lookup = (0 if model.tie_word_embeddings else embedding_elements(model)) + _positions(model)
    return n_parameters(model) - idle - lookup - _per_layer_elements(model)


def stored_weight_bits(engine: EngineSpec, *, is_sparse: bool = False) -> float:
    """Bits that the engine stores for a weight of the layers, scales included.

    int4 in groups of 128 takes 4.16, NVFP4 in groups of 16 4.5. 2:4 sparse weights store two of
    four neighbouring values, and two bits for each stored value that give its position: half of
    the value bits and one bit more for each weight. Scales are those of the dense matrix.

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
    return _stored_bits(engine.quantization, engine.dtype, ASKED_FORMATS, is_sparse=is_sparse)


def _stored_bits(
    quantization: DType | None,
    dtype: DType,
    formats: Mapping[DType, StoredFormat] = STORED_FORMATS,
    *,
    is_sparse: bool,
) -> float:
    stored = None if quantization is None else formats.get(quantization)
    value_bits: float = DTYPE_BITS[quantization or dtype] if stored is None else stored.value_bits
    scale_bits = 0.0 if stored is None else stored.weight_bits - stored.value_bits
    return (value_bits / 2 + 1 if is_sparse else value_bits) + scale_bits


def weight_bytes(
    model: ModelSpec, engine: EngineSpec, *, n_expert_shards: int = 1, is_sparse: bool = False
) -> int:
    """Bytes of weights on one device, with the largest of ``n_expert_shards`` parts of the experts.

    Under tensor parallelism matrices are split over the devices; K and V projections over at
    most ``n_kv_heads`` of them; norms, biases, routers and MLA's down-projections are copied.
    vLLM splits the embedding and a vision tower, transformers copies it. Quantised: only the matrices of the
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
        / n_shards(part, n_devices)
        for part, share in held.items()
    )
    total_bits += (_small_vectors(model) + _positions(model)) * plain_bits
    n_embedding_shards = n_devices if engine.engine == "vllm" else 1
    looked_up = embedding_elements(model) + _per_layer_elements(model) + model.n_tower_weights
    total_bits += looked_up * plain_bits / n_embedding_shards
    if not model.tie_word_embeddings:
        total_bits += embedding_elements(model) * _head_bits(model, engine) / n_devices
    return round(total_bits / 8)


def padding_bytes(
    model: ModelSpec, engine: EngineSpec, hardware: HardwareSpec, *, n_expert_shards: int = 1
) -> int:
    """Bytes of one device with which vLLM fills mxfp4 experts up to whole tiles of its kernels.

    gpt-oss-120b is 60.8 GiB without them. On Hopper Triton's kernels take the width of the
    experts as it is; 64.4 GiB of a log say that the width of the model is filled up there too.

    Source
    ------
    vLLM 0.32.0, ``mxfp4_round_up_hidden_size_and_intermediate_size``; model weights in logs of
    H100: 64.38 GiB (llm-d-incubation/llm-d-planner@e50305a, Triton), 65.97 GiB
    (vllm-project/vllm issue 23278, Marlin).
    """
    is_filled = engine.quantization == "float4" == model.checkpoint_dtype
    if model.moe is None or engine.engine != "vllm" or not is_filled:
        return 0
    n_tensor = engine.tensor_parallel_size
    n_split = 1 if n_expert_shards > 1 else n_tensor
    n_parts = n_expert_shards * n_tensor // n_split
    width = -(-model.moe.intermediate_size // n_split)
    is_hopper = hardware.hardware_id.startswith(_HOPPER)
    tile = 256 if hardware.vendor == "amd" else 64 if is_hopper else 128
    filled = (-(-model.hidden_size // 256) * 256) * (-(-width // tile) * tile)
    extra = sum(
        part.n_weights * linear_bits(part, engine, is_sparse=False) / 8
        for part in linears(model)
        if part.n_copies > 1
    )
    share = -(-model.moe.n_experts // n_parts) / model.moe.n_experts / n_split
    ratio = filled * n_split / (model.hidden_size * model.moe.intermediate_size)
    return round(extra * share * (ratio - 1))


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

    Each matrix is read once; of the experts only those to which some row is routed; the head if
    logits are computed. The embedding's rows count as activations. ``n_sharing`` replicas, with as
    many rows each, share the experts.
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
            * part.n_runs
            / n_shards(part, n_devices)
            * share_fraction
        )
    if n_logit_positions > 0:
        bits += embedding_elements(model) * _head_bits(model, engine) / n_devices
    return (bits + _small_vectors(model) * plain_bits) / 8


def expected_experts(n_experts: int, n_experts_per_token: int, n_tokens: int) -> float:
    """Expected number of distinct experts of ``n_tokens`` tokens, if routing is independent.

    E·(1 - (1 - k/E)^n): a token does not use a given expert with probability 1 - k/E. Real routing
    is correlated, so fewer experts are used: this is an upper bound of the expectation.

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
    if engine.quantization == "float4" and part.float4_bits is not None:
        return part.float4_bits
    return _bits_as(part.stored, engine, is_sparse=is_sparse)


def _bits_as(stored: StoredAs | None, engine: EngineSpec, *, is_sparse: bool = False) -> float:
    """Bits per weight of a matrix in the checkpoint's own format, or in the requested format.

    The checkpoint's format counts if the engine's quantisation is that of the checkpoint.
    """
    if stored is None or stored.whole != engine.quantization:
        return stored_weight_bits(engine, is_sparse=is_sparse)
    usual = _stored_bits(stored.own, engine.dtype, is_sparse=False)
    more = 0.0 if stored.weight_bits is None else stored.weight_bits - usual
    return _stored_bits(stored.own, engine.dtype, is_sparse=is_sparse) + more


def _head_bits(model: ModelSpec, engine: EngineSpec) -> float:
    """Bits per weight of the output head, which is quantised only if the checkpoint states it."""
    stored = stored_as(model, "head") if "head" in dict(model.stored_apart) else None
    if stored is None or stored == "none" or engine.quantization != stored.whole:
        return DTYPE_BITS[engine.dtype]
    return _bits_as(stored, engine)


def checked_tensor_parallel(model: ModelSpec, engine: EngineSpec) -> int:
    """The engine's tensor-parallel size, if the model's heads can be split over it.

    Raises
    ------
    SpecError
        The matrices cannot be divided by this number.
    """
    n_devices = engine.tensor_parallel_size
    n_heads = _n_divided_heads(model)
    # transformers keeps attention whole where its KV heads cannot be divided
    needs_kv = engine.engine != "transformers"

    def splits(size: int) -> bool:
        return splits_heads(model, size) if needs_kv else n_heads % size == 0

    if not splits(n_devices):
        sizes = [str(size) for size in range(1, n_heads + 1) if splits(size)]
        raise SpecError(
            f"{undivided_heads(model, n_devices)} of {model.model_id!r} cannot be split over"
            f" {n_devices} devices",
            where="--tp",
            allowed=", ".join(sizes),
            try_=suggestions.flags("--tp", max(n for n in map(int, sizes) if n < n_devices)),
        )
    return n_devices


def splits_heads(model: ModelSpec, n_devices: int) -> bool:
    """Can tensor parallelism divide the heads of this model over the devices?

    Each device has as many query heads. KV heads are split too, or each is copied to as many
    devices: four devices can do neither with phi-4's ten, and vLLM does not start (its
    ``total_num_kv_heads % tp_size == 0``, or the reverse).
    """
    takes_kv = model.mla is not None or _undivided_kv_heads(model, n_devices) is None
    return _n_divided_heads(model) % n_devices == 0 and takes_kv


def undivided_heads(model: ModelSpec, n_devices: int) -> str:
    """The heads that cannot be split over this number of devices: ``48 query heads``."""
    undivided = [n for n in _query_heads(model) if n % n_devices]
    return (
        f"{undivided[0]} query heads"
        if undivided
        else f"{_undivided_kv_heads(model, n_devices)} KV heads"
    )


def _undivided_kv_heads(model: ModelSpec, n_devices: int) -> int | None:
    """KV heads of some layer that the devices can neither divide nor copy evenly."""
    counts = (part.attention.n_kv_heads for part in model.parts)
    return next((n for n in counts if n % n_devices and n_devices % n), None)


def _n_divided_heads(model: ModelSpec) -> int:
    """Query heads, or what those of all kinds of layers have in common: all are divided."""
    return math.gcd(*_query_heads(model))


def _query_heads(model: ModelSpec) -> tuple[int, ...]:
    """Query heads of layers with a window, and of those without, of each shape."""
    shapes = [part.attention for part in model.parts]
    fulls = (None if one.full is None else one.full.n_heads for one in shapes)
    return (*(one.n_heads for one in shapes), *(n for n in fulls if n))


def embedding_elements(model: ModelSpec) -> int:
    """Elements of the embedding, and of the head that turns hidden states into logits."""
    return model.vocab_size * (model.embedding_size or model.hidden_size)


def _positions(model: ModelSpec) -> int:
    return model.n_learned_positions * model.hidden_size if model.position == "learned" else 0


def _per_layer_elements(model: ModelSpec) -> int:
    """Elements of further tables, which are looked up like the embedding: of layers, of n-grams."""
    inputs, ngrams = model.per_layer_inputs, model.ngrams
    of_layers = 0 if inputs is None else inputs.vocab_size * inputs.size * model.n_layers
    return of_layers + (0 if ngrams is None else ngrams.n_rows * ngrams.width)


def _small_vectors(model: ModelSpec) -> int:
    """Elements of all vectors: norms, biases, attention sinks, vectors of linear attention."""
    norm = model.hidden_size * (2 if model.norm_has_bias else 1)
    ends = norm * (model.has_final_norm + model.has_embedding_norm)
    head_bias = model.vocab_size if model.has_head_bias else 0
    return (
        sum(
            part.n_layers * part.norms_per_layer * norm
            + _small_vectors_of_heads(part)
            + _small_vectors_of_variants(part)
            for part in model.parts
        )
        + (0 if model.per_layer_inputs is None else model.per_layer_inputs.size)
        + (0 if model.ngrams is None else model.ngrams.n_vector_elements)
        + _small_vectors_of_streams(model)
        + ends
        + head_bias
        + sum(part.n_biases for part in linears(model))
    )


def _small_vectors_of_streams(model: ModelSpec) -> int:
    """Elements of the norms over all streams, two in a layer and one after the last; of scales."""
    streams = model.streams
    if streams is None:
        return 0
    if streams.rank is not None:
        return (2 * model.n_layers + 1) * streams.n_streams * model.hidden_size
    of_head = (streams.n_streams + 1) * streams.has_head
    return 2 * model.n_layers * (streams.n_numbers + streams.n_scales) + of_head


def _small_vectors_of_heads(model: ModelSpec) -> int:
    """Elements of query and key norms and of sinks; layers that share keys have no key norm."""
    heads, n_elements = model.attention, 0
    for kind in head_kinds(model):
        n_own = kind.n_layers - kind.n_shared_layers
        if heads.has_full_width_qk_norm and heads.has_qk_norm:
            n_elements += kind.n_layers * kind.n_heads * kind.head_dim
            n_elements += n_own * kind.n_kv_heads * kind.head_dim
        elif heads.has_qk_norm:
            n_elements += (kind.n_layers + n_own) * kind.head_dim
        if kind.has_sinks:
            n_elements += kind.n_layers * kind.n_heads
        n_elements += kind.n_layers * (heads.query_rank or 0)  # its norm
    return n_elements + _small_vectors_of_positions(model)


def _small_vectors_of_positions(model: ModelSpec) -> int:
    """Elements of learned relative positions, and of the convolutions beside them."""
    if (relative := model.relative) is None:
        return 0
    window, n_elements = model.attention.sliding_window_tokens or relative.extent, 0
    for kind, extent in zip(head_kinds(model), (relative.extent, window), strict=True):
        channels = kind.n_elements + 2 * model.hidden_size
        n_elements += kind.n_layers * (relative.dim * extent + channels * relative.conv_kernel)
    return n_elements


def _small_vectors_of_variants(model: ModelSpec) -> int:
    """Elements of the vectors of indexers, latent, compressed and linear attention."""
    indexer, linear, compressed = model.indexer, model.recurrent, model.compressed
    n_elements = 0
    if indexer is not None:  # norms, and the positions of tokens that share a key
        n_vectors = 2 + indexer.key_tokens * indexer.has_key_gate
        n_elements = indexer.n_layers * n_vectors * indexer.head_dim
    if (mla := model.mla) is not None:
        n_elements += model.n_attention_layers * (mla.kv_lora_rank + (mla.q_lora_rank or 0))
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
    if (moe := model.moe) is not None and moe.has_latent_norms:
        n_elements += model.n_expert_layers * 2 * (moe.latent_size or model.hidden_size)
    if model.shared is not None:  # norms before attention, twice as wide, and before the MLP
        n_elements += model.shared.n_stored * 3 * model.hidden_size
    if linear is not None:
        n_elements += linear.n_layers * linear.vector_elements
    return n_elements
