"""KV cache and attention: stored and read bytes, recurrent states, and (query, key) pairs.

A row is what one layer stores for one token.
"""

import math
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

from inferometer.inputs.model_parts import CompressedSpec
from inferometer.inputs.types import DTYPE_BITS, Constant, DType, EngineSpec, ModelSpec, Source
from inferometer.perfmodel.types import BatchShape

_INDEX_KEY_BITS: Final = 8.25
"""Bits of an element of an indexer's key: 8, and a 32-bit scale for each 128 of them."""
_BLOCK_KEY_BITS: Final = 16.0
"""The same where whole blocks are chosen: vLLM 0.32.0, ``vllm/models/minimax_m3/common/indexer.py``."""
_LATENT_UNIT: Final = 128
"""Blocks of latent attention in models with recurrent states have a multiple of these tokens."""
_ALIKE_RATIO: Final = 1.5
"""If two kinds have numbers of layers that differ by less, KV groups have the larger number."""
_STATES_KEPT: Final = Constant(
    value=3,
    source=Source(
        kind="repository",
        where=(
            "sgl-project/sglang 0.5.23: mem_cache/kv_cache_configurator.py,"
            " MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO"
        ),
    ),
)
_STATES_TRACKED: Final = Constant(
    value=2,
    source=Source(
        kind="repository",
        where=(
            "sgl-project/sglang 0.5.23: mem_cache/allocation_sizing.py, get_mamba_tracking_slots;"
            " one without overlapped steps"
        ),
    ),
)
_TRACKED_KINDS: Final = frozenset({"delta", "kda", "lightning", "mamba2"})
"""Of the architectures in SGLang's ``_MAMBA_EXTRA_BUFFER_ARCHS`` (``arg_groups/overrides.py``)."""


class CacheRows(NamedTuple):
    """What the layers of one kind store for a token, and how many rows a query reads."""

    n_layers: int
    elements: float
    """Numbers that a layer stores for a token; of a row for several tokens, one token's share."""
    prefill_flop: float
    """FLOP of one (query, key) pair in a layer, on all devices together."""
    decode_flop: float
    most_kept_tokens: int | None = None
    """Rows that are stored for a sequence (the sliding window); None: all."""
    most_read_tokens: int | None = None
    """Rows that a query reads (the sliding window, or an indexer's choice); None: all."""
    bits: float | None = None
    """Bits of an element; None: those of the KV cache's format."""
    is_shared: bool = False
    """Are the rows those of an earlier layer, so that they are not stored again?"""


class HeadKind(NamedTuple):
    """The layers of one kind (full attention, or with a sliding window), and their heads."""

    n_layers: int
    n_shared_layers: int
    """Layers among them that read keys and values of earlier layers."""
    n_heads: int
    n_kv_heads: int
    head_dim: int
    value_head_dim: int
    has_value_projection: bool
    has_sinks: bool

    @property
    def n_elements(self) -> int:
        """Numbers that a layer stores for a token."""
        return self.n_kv_heads * (self.head_dim + self.value_head_dim)


def head_kinds(model: ModelSpec) -> tuple[HeadKind, HeadKind]:
    """Heads of the full-attention and of the sliding-window layers; either kind may have 0 layers.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_model
    >>> [(kind.n_layers, kind.n_elements) for kind in head_kinds(find_model("gemma-3-27b"))]
    [(10, 4096), (52, 4096)]
    """
    heads, n_full = model.attention, n_full_attention_layers(model)
    sharing = heads.kv_sharing
    n_shared, n_shared_full = (
        (0, 0) if sharing is None else (sharing.n_layers, sharing.n_full_layers)
    )
    sliding = HeadKind(
        n_layers=model.n_attention_layers - n_full,
        n_shared_layers=n_shared - n_shared_full,
        n_heads=heads.n_heads,
        n_kv_heads=heads.n_kv_heads,
        head_dim=heads.head_dim,
        value_head_dim=heads.value_head_dim or heads.head_dim,
        has_value_projection=True,
        has_sinks=heads.has_sinks,
    )
    full = sliding._replace(n_layers=n_full, n_shared_layers=n_shared_full)
    if (other := heads.full) is not None:
        full = full._replace(
            n_heads=other.n_heads or heads.n_heads,
            n_kv_heads=other.n_kv_heads,
            head_dim=other.head_dim,
            value_head_dim=other.value_head_dim or other.head_dim,
            has_value_projection=other.has_value_projection,
            has_sinks=other.has_sinks,
        )
    return full, sliding


@lru_cache(maxsize=64)
def cache_rows(model: ModelSpec) -> tuple[CacheRows, ...]:
    """The rows of each kind of layer; linear attention has none (``state_bytes``).

    2·n_heads·(head dim of keys + head dim of values) FLOP for each pair. Latent attention stores
    the latent and the shared rotary key of a token. In prefill it expands them (heads of 128 + 64
    and 128 in DeepSeek-V3); in decode it works on the latent itself, every head 512 + 64 and 512
    wide. Top-k attention does so in prefill too, and its indexer scores a small key of every token.

    Source
    ------
    Grouped queries: arXiv 2305.13245. Latent attention: arXiv 2405.04434, section 2.1. Top-k:
    DeepSeek-V3.2, arXiv 2512.02556, section 2.1; keys of 8 bit as vLLM and SGLang store them.
    """
    if model.groups or model.n_loops > 1:
        return _rows_of_groups(model)
    heads, mla, indexer = model.attention, model.mla, model.indexer
    if model.compressed is not None:
        return _compressed_rows(model, model.compressed)
    top_k = None if indexer is None else indexer.top_k_tokens
    if mla is not None:
        absorbed = 2.0 * heads.n_heads * (2 * mla.kv_lora_rank + mla.qk_rope_head_dim)
        expanded = (
            2.0 * heads.n_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim)
        )
        n_elements = mla.kv_lora_rank + mla.qk_rope_head_dim
        prefill_flop = absorbed if indexer else expanded
        rows = [CacheRows(model.n_attention_layers, n_elements, prefill_flop, absorbed)]
        rows = [rows[0]._replace(most_read_tokens=top_k)]
    else:
        rows = _rows_of_heads(model, top_k)
    if indexer is not None:
        scores, bits = 2.0 * indexer.n_heads * indexer.head_dim, _INDEX_KEY_BITS
        if indexer.chooses_blocks:
            bits, n_whole = _BLOCK_KEY_BITS, rows[0].n_layers - indexer.n_layers
            whole = rows[0]._replace(n_layers=n_whole, most_read_tokens=None)
            rows = [rows[0]._replace(n_layers=indexer.n_layers), whole]
        shared = indexer.key_tokens
        keys = CacheRows(
            indexer.n_layers, indexer.head_dim / shared, scores / shared, scores / shared, bits=bits
        )
        rows.append(keys)
    return tuple(rows)


def _rows_of_groups(model: ModelSpec) -> tuple[CacheRows, ...]:
    """The rows of all groups of layers, equal ones together, and of each loop over the layers."""
    n_layers: dict[CacheRows, int] = {}
    for part in replace(model, n_loops=1).parts:
        for rows in cache_rows(part):
            shape = rows._replace(n_layers=1)
            n_layers[shape] = n_layers.get(shape, 0) + rows.n_layers * model.n_loops
    return tuple(shape._replace(n_layers=n) for shape, n in n_layers.items() if n)


def _rows_of_heads(model: ModelSpec, top_k: int | None) -> list[CacheRows]:
    """Rows of keys and values: of full-attention layers, then of sliding-window layers."""
    window = model.attention.sliding_window_tokens
    found = list[CacheRows]()
    limits = ((None, top_k), (window, window))
    for kind, (kept, read) in zip(head_kinds(model), limits, strict=True):
        flop = 2.0 * kind.n_heads * (kind.head_dim + kind.value_head_dim)
        n_own = kind.n_layers - kind.n_shared_layers
        own = CacheRows(n_own, kind.n_elements, flop, flop, kept, read)
        if n_own or not found:
            found.append(own)
        if kind.n_shared_layers:
            found.append(own._replace(n_layers=kind.n_shared_layers, is_shared=True))
    return found


def _compressed_rows(model: ModelSpec, compressed: CompressedSpec) -> tuple[CacheRows, ...]:
    """DeepSeek-V4: each layer keeps a window; blocks of tokens share a row, counted by the token.

    Source: the class of transformers 5.23 (deepseek_v4), which cites the technical report.
    """
    width = model.attention.head_dim
    window = model.attention.sliding_window_tokens
    indexer = model.indexer
    flop = 4.0 * model.attention.n_heads * width
    fine, coarse = compressed.fine_tokens, compressed.coarse_tokens
    rows = [
        CacheRows(model.n_layers, width, flop, flop, window, window),
        CacheRows(compressed.n_coarse_layers, width / coarse, flop / coarse, flop / coarse),
    ]
    if indexer is not None:
        scores = 2.0 * indexer.n_heads * indexer.head_dim / fine
        keys = CacheRows(indexer.n_layers, indexer.head_dim / fine, scores, scores)
        chosen = CacheRows(compressed.n_fine_layers, width / fine, flop / fine, flop / fine)
        rows += [
            chosen._replace(most_read_tokens=indexer.top_k_tokens),
            keys._replace(bits=_INDEX_KEY_BITS),
        ]
    return tuple(rows)


def layer_bits(rows: CacheRows, dtype: DType) -> float:
    """Bits that all layers of this kind together store for a token."""
    return rows.n_layers * rows.elements * (rows.bits or DTYPE_BITS[dtype])


def state_bytes(model: ModelSpec, dtype: DType) -> int:
    """Bytes of the recurrent states of a sequence of any length, on all devices together.

    That is the state matrices, and the last inputs of the short convolution (in ``dtype``).
    """
    linear = model.recurrent
    if linear is None:
        return 0
    conv = linear.conv_width * (linear.conv_kernel - 1)
    bits = linear.state_elements * DTYPE_BITS[linear.state_dtype] + conv * DTYPE_BITS[dtype]
    return linear.n_layers * bits // 8


def states_of_sequence(model: ModelSpec, *, keeps_prefixes: bool, overlaps_steps: bool) -> int:
    """How many recurrent states SGLang has in its pool for each sequence that may run.

    With the radix cache, prefixes have states as well. No more sequences run than the pool's states
    by this number.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_model
    >>> model = find_model("qwen3.5-9b")
    >>> states_of_sequence(model, keeps_prefixes=True, overlaps_steps=True)
    5
    >>> states_of_sequence(model, keeps_prefixes=False, overlaps_steps=True)
    1
    """
    if not keeps_prefixes:
        return 1
    tracked = _STATES_TRACKED.value if overlaps_steps else 1
    is_tracked = model.recurrent is not None and model.recurrent.kind in _TRACKED_KINDS
    return int(_STATES_KEPT.value + tracked * is_tracked)


def kv_bytes_per_token(model: ModelSpec, dtype: DType) -> int:
    """Bytes of one more token in the cache, all devices together, while no layer's window is full.

    2 · n_layers · n_kv_heads · head_dim · bytes per element, of each kind of layer; for MLA
    n_layers · (latent rank + rotary dim) · bytes, and the indexers' keys.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_model
    >>> kv_bytes_per_token(find_model("qwen2.5-3b"), "bfloat16")
    36864
    """
    kept = (rows for rows in cache_rows(model) if not rows.is_shared)
    return int(sum(layer_bits(rows, dtype) for rows in kept)) // 8


def kv_bytes(model: ModelSpec, dtype: DType, *, context_tokens: int) -> int:
    """Bytes of a sequence of ``context_tokens`` in the cache.

    Sliding-window layers stop growing at the window.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_model
    >>> kv_bytes(find_model("llama-2-70b"), "float16", context_tokens=1024) / 2**30
    0.3125
    """
    return (
        int(
            sum(
                layer_bits(rows, dtype) * _at_most(context_tokens, rows.most_kept_tokens)
                for rows in cache_rows(model)
                if not rows.is_shared
            )
        )
        // 8
    )


def n_full_attention_layers(model: ModelSpec) -> int:
    """Number of layers that attend to the whole context.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_model
    >>> [n_full_attention_layers(find_model(name)) for name in ("gemma-3-1b", "mistral-7b-v0.1", "llama-2-7b")]
    [4, 0, 32]
    """
    if model.groups:
        return sum(n_full_attention_layers(part) for part in model.parts)
    heads = model.attention
    if heads.sliding_window_tokens is None:
        return model.n_attention_layers
    if heads.n_full_attention_layers is not None:
        return heads.n_full_attention_layers
    return 0 if heads.full_attention_every is None else model.n_layers // heads.full_attention_every


class KvGroups(NamedTuple):
    """How vLLM divides a model's layers into groups with KV block tables, from one pool."""

    n_layers: int
    """Layers in a group, padding included: a block holds its tokens' KV in these layers."""
    n_sliding: int
    n_full: int
    window_tokens: int | None
    """None if no layer has a sliding window."""


def kv_groups(model: ModelSpec) -> KvGroups:
    """The groups of vLLM's hybrid KV cache manager, those with a window first.

    If all layers are of one kind, they are one group. If there are two kinds, a group has as many
    layers as the kind with fewer layers; or as the kind with more, if that has less than 1.5 times
    as many. Latent, compressed and linear attention are one group here. Learned sinks (gpt-oss) are
    one number per head and no token: they need no block. Layers that read the keys and values of
    other layers are in no group.

    If full-attention layers have other heads, vLLM gives the kind with fewer bytes per token longer
    blocks of the same bytes, or pads its blocks if the bytes do not divide. Here all blocks have
    the same number of tokens and the bytes of the smaller kind, and the larger kind needs several
    blocks for the same tokens. The bytes in use are the same, and the number of blocks is that
    multiple of the number in vLLM's log. Layouts of vLLM that pack blocks of different layers side
    by side (not the default of its attention on GPUs) use less memory.

    Source
    ------
    vLLM 0.32.0, ``vllm/v1/core/kv_cache_utils.py``: ``_get_kv_cache_groups_uniform_page_size``,
    ``unify_kv_cache_spec_page_size``.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_model
    >>> kv_groups(find_model("gemma-3-27b"))
    KvGroups(n_layers=10, n_sliding=6, n_full=1, window_tokens=1024)
    """
    n_all, (n_full, n_sliding) = model.n_attention_layers, _own_layers(model)
    window_tokens = model.attention.sliding_window_tokens
    if window_tokens is None or n_sliding == 0 or model.recurrent is not None:
        return KvGroups(n_full + n_sliding, 0, 1, None)
    if model.mla is not None or model.compressed is not None or model.indexer is not None:
        return KvGroups(n_all, 0, 1, None)
    if n_full == 0:
        return KvGroups(n_sliding, 1, 0, window_tokens)
    fewer, more = sorted((n_full, n_sliding))
    n_layers = more if more < _ALIKE_RATIO * fewer else fewer
    n_blocks_full, n_blocks_sliding = _blocks_of_a_layer(model)
    return KvGroups(
        n_layers,
        -(-n_sliding // n_layers) * n_blocks_sliding,
        -(-n_full // n_layers) * n_blocks_full,
        window_tokens,
    )


def group_words(model: ModelSpec) -> str:
    """Text about KV blocks of a model with sliding windows, which continues a sentence on them."""
    groups = kv_groups(model)
    sinks = "; learned sinks hold no block" * model.attention.has_sinks
    if model.attention.full is not None:
        sinks += (
            "; layers whose heads keep more bytes take more of them, where vLLM makes the others'"
            " blocks longer, so that its log counts fewer"
        )
    return (
        f"; each for one of {groups.n_sliding + groups.n_full} groups of {groups.n_layers} layers;"
        f" those with a window of {groups.window_tokens:,} tokens ({groups.n_sliding}) give back"
        f" what leaves it{sinks}"
    )


def _own_layers(model: ModelSpec) -> tuple[int, int]:
    """The numbers of full-attention and of sliding-window layers that store keys and values."""
    kinds = [head_kinds(part) for part in model.parts]
    n_full, n_sliding = (
        sum(kind.n_layers - kind.n_shared_layers for kind in one)
        for one in zip(*kinds, strict=True)
    )
    return n_full, n_sliding


def _blocks_of_a_layer(model: ModelSpec) -> tuple[int, int]:
    """Blocks that a full-attention and a sliding-window layer need for the same tokens.

    The layer with fewer bytes per token needs 1; both need 1 if the bytes do not divide.
    """
    full, sliding = head_kinds(model)
    fewer, more = sorted((full.n_elements, sliding.n_elements))
    if more % fewer:
        return 1, 1
    ratio = more // fewer
    return (ratio, 1) if full.n_elements == more else (1, ratio)


def kv_block_fraction(model: ModelSpec) -> float:
    """Bytes of a group's block relative to a block of all layers (``kv_groups``).

    Example
    -------
    >>> from inferometer.inputs.catalog import find_model
    >>> round(kv_block_fraction(find_model("gemma-3-27b")), 3)
    0.161
    """
    groups, (n_full, n_sliding) = kv_groups(model), _own_layers(model)
    full, sliding = head_kinds(model)
    if model.attention.full is None or groups.window_tokens is None or not n_full * n_sliding:
        return groups.n_layers / (n_full + n_sliding)
    sizes = (full.n_elements, sliding.n_elements)
    block = max(sizes) if _blocks_of_a_layer(model) == (1, 1) else min(sizes)
    return groups.n_layers * block / (n_full * sizes[0] + n_sliding * sizes[1])


def kv_block_bytes(
    model: ModelSpec, dtype: DType, *, block_tokens: int, is_grouped: bool = False
) -> int:
    """Bytes of a KV block on all devices: of all layers, or of a group.

    Of a model without attention: a sequence's state (``state_paging``).
    """
    if not model.n_attention_layers:
        return state_bytes(model, dtype)
    whole_bytes = kv_bytes_per_token(model, dtype) * block_tokens
    if not is_grouped:
        return whole_bytes
    return round(whole_bytes * kv_block_fraction(model))


class StatePaging(NamedTuple):
    """How vLLM stores the states of recurrent layers in KV blocks, whose pages have equal bytes."""

    block_tokens: int
    """Tokens in a block, so that their keys and values are at least as large as a layer's state."""
    n_blocks: int
    """Blocks that a request holds for its states, whatever its length."""
    fraction: float
    """Bytes of a block, padding included, relative to its tokens' KV in all attention layers."""

    @property
    def words(self) -> str:
        """Text about these blocks, which continues a sentence on their number."""
        if self.n_blocks == 0:
            return "; each is the state of one request, whatever its length (no layer attends)"
        return (
            f"; of {self.block_tokens:,} tokens, as long as a state's page is large, and each"
            f" request holds {self.n_blocks} for its states (vLLM starts with at most as many"
            " sequences as there are blocks)"
        )


def state_paging(
    model: ModelSpec, engine: EngineSpec, dtype: DType, *, block_tokens: int
) -> StatePaging | None:
    """KV blocks of a model with recurrent layers; None for other models, and with sliding windows.

    Layers are divided into groups as in ``kv_groups``; each layer's state in a group takes a block.
    With prefix caching a request holds a second such block for two steps at the end of each block,
    and states of earlier prompts are cached only at the ends of steps; neither is modelled.
    Where no layer attends, a block is the state of a request of any length: vLLM makes it as long
    as the longest context, and does not cache prefixes.

    Source
    ------
    vLLM 0.32.0, ``Platform._align_hybrid_block_size``. Its log of Qwen3-Next has 544 tokens, padded
    by 1.49 %; of Nemotron Nano 9B v2 (vllm-project/vllm issue 24280) 672.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_model
    >>> model, engine = find_model("qwen3.5-35b-a3b"), EngineSpec(dtype="bfloat16")
    >>> state_paging(model, engine, "bfloat16", block_tokens=16)
    StatePaging(block_tokens=1056, n_blocks=3, fraction=1.0)
    """
    linear, n_full = model.recurrent, model.n_attention_layers
    is_windowed = model.attention.sliding_window_tokens is not None
    if linear is not None and not n_full:
        return StatePaging(block_tokens=model.max_position_tokens, n_blocks=0, fraction=1.0)
    if linear is None or is_windowed or model.indexer is not None:
        return None
    n_states = linear.n_layers
    fewer, more = sorted((n_full, n_states))
    n_layers = more if more < _ALIKE_RATIO * fewer else fewer
    n_groups, n_state_groups = -(-n_full // n_layers), -(-n_states // n_layers)
    token_bytes = kv_bytes_per_token(model, dtype) / n_full / n_kv_shards(model, engine)
    page_bytes = state_bytes(model, engine.dtype) / n_states / engine.tensor_parallel_size
    unit = max(block_tokens, _LATENT_UNIT) if model.mla is not None else block_tokens
    return StatePaging(
        block_tokens=max(math.ceil(page_bytes / (unit * token_bytes)), 1) * unit,
        n_blocks=-(-n_state_groups // n_groups),
        fraction=n_groups * n_layers / n_full,
    )


def n_kv_shards(model: ModelSpec, engine: EngineSpec) -> int:
    """The number of devices over which the KV cache is split: at most n_kv_heads; 1 for MLA.

    If layers differ in their numbers of KV heads, the smallest number counts, so that bytes per
    device are an upper bound.
    """
    shapes = [part.attention for part in model.parts]
    n_heads = min(one.n_kv_heads for heads in shapes for one in (heads, heads.full or heads))
    return 1 if model.mla is not None else min(engine.tensor_parallel_size, n_heads)


def decode_pairs(rows: CacheRows, shape: BatchShape) -> float:
    """The number of (query, key, layer) triples of the decoding requests of a step.

    Limits such as a sliding window are applied to the mean context.
    """
    if shape.n_decode_requests == 0:
        return 0.0
    mean_tokens = shape.decode_context_tokens / shape.n_decode_requests
    return shape.n_decode_requests * rows.n_layers * _at_most(mean_tokens, rows.most_read_tokens)


def prefill_pairs(rows: CacheRows, shape: BatchShape) -> float:
    """The number of (query, key, layer) triples of the prefilling requests of a step (causal).

    With a limit of keys per query (a window): the sum over the q new tokens j of the mean request,
    after c cached ones, of min(c + j, limit). That is exact if all requests of the step are equal.
    """
    if shape.n_prefill_requests == 0 or shape.prefill_tokens == 0:
        return 0.0
    limit = rows.most_read_tokens
    if limit is None:
        return rows.n_layers * float(shape.prefill_context_product_tokens2)
    new_tokens = shape.prefill_tokens / shape.n_prefill_requests
    cached_tokens = mean_cached_tokens(shape)
    growing_tokens = min(max(limit - cached_tokens, 0.0), new_tokens)
    limited = (
        growing_tokens * (cached_tokens + (growing_tokens + 1) / 2)
        + (new_tokens - growing_tokens) * limit
    )
    return rows.n_layers * shape.n_prefill_requests * limited


def mean_cached_tokens(shape: BatchShape) -> float:
    """Cached tokens of the mean prefilling request before the step.

    The c that solves p = q·(c + (q + 1)/2) for the shape's context product p and its new tokens q.
    """
    if shape.prefill_tokens == 0:
        return 0.0
    new_tokens = shape.prefill_tokens / shape.n_prefill_requests
    return max(
        shape.prefill_context_product_tokens2 / shape.prefill_tokens - (new_tokens + 1) / 2, 0.0
    )


def kv_read_bytes(model: ModelSpec, dtype: DType, shape: BatchShape) -> float:
    """Bytes of the cache that the step reads, each row once per request that needs it.

    A decoding request reads all that it attends to. A prefilling request reads, at best, its
    cached and its new rows once (a kernel that tiles queries reads them again for each tile;
    that is not a bound).
    """
    return sum(_rows_read(rows, shape) * layer_bits(rows, dtype) for rows in cache_rows(model)) / 8


def _rows_read(rows: CacheRows, shape: BatchShape) -> float:
    """Rows that the step reads in one layer of this kind."""
    n_read = decode_pairs(rows._replace(n_layers=1), shape)
    if shape.n_prefill_requests == 0:
        return n_read
    new_tokens = shape.prefill_tokens / shape.n_prefill_requests
    cached_tokens = _at_most(mean_cached_tokens(shape), rows.most_kept_tokens)
    return n_read + shape.n_prefill_requests * (cached_tokens + new_tokens)


def _at_most(n_tokens: float, limit: int | None) -> float:
    return n_tokens if limit is None else min(n_tokens, limit)
