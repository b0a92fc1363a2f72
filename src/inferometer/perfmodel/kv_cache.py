"""Bytes of the KV cache per token and per sequence, and (query, key) pairs of attention."""

from inferometer.inputs.types import DTYPE_BITS, DType, EngineSpec, ModelSpec
from inferometer.perfmodel.types import BatchShape


def kv_elements_per_token_layer(model: ModelSpec) -> int:
    """Numbers that a layer stores for a token.

    K and V of each KV head, or MLA's latent row and shared rotary key.

    Source
    ------
    Grouped queries: arXiv 2305.13245. Latent attention: arXiv 2405.04434, section 2.1.4.
    """
    if model.mla is not None:
        return model.mla.kv_lora_rank + model.mla.qk_rope_head_dim
    return 2 * model.attention.n_kv_heads * model.attention.head_dim


def kv_bytes_per_token(model: ModelSpec, dtype: DType) -> int:
    """Bytes of one more token in the cache, all devices together, while no layer's window is full.

    2 · n_layers · n_kv_heads · head_dim · bytes per element; for MLA n_layers · (latent rank +
    rotary dim) · bytes.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_model
    >>> kv_bytes_per_token(find_model("qwen2.5-3b"), "bfloat16")
    36864
    """
    return model.n_layers * kv_elements_per_token_layer(model) * DTYPE_BITS[dtype] // 8


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
        kept_token_layers(model, context_tokens)
        * kv_elements_per_token_layer(model)
        * DTYPE_BITS[dtype]
        // 8
    )


def kept_token_layers(model: ModelSpec, context_tokens: int) -> int:
    """(token, layer) rows that a sequence of ``context_tokens`` stores."""
    n_full, window_tokens = n_full_attention_layers(model), model.attention.sliding_window_tokens
    n_sliding = model.n_layers - n_full
    return n_full * context_tokens + n_sliding * min(
        context_tokens, window_tokens or context_tokens
    )


def n_full_attention_layers(model: ModelSpec) -> int:
    """Number of layers that attend to the whole context.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_model
    >>> [n_full_attention_layers(find_model(name)) for name in ("gemma-3-1b", "mistral-7b-v0.1", "llama-2-7b")]
    [4, 0, 32]
    """
    heads = model.attention
    if heads.sliding_window_tokens is None:
        return model.n_layers
    if heads.n_full_attention_layers is not None:
        return heads.n_full_attention_layers
    return 0 if heads.full_attention_every is None else model.n_layers // heads.full_attention_every


def n_kv_shards(model: ModelSpec, engine: EngineSpec) -> int:
    """Devices over which the cache is split: at most n_kv_heads; MLA's latent is on each."""
    return (
        1 if model.mla is not None else min(engine.tensor_parallel_size, model.attention.n_kv_heads)
    )


def decode_pairs(model: ModelSpec, shape: BatchShape) -> float:
    """(query, key, layer) triples of the decoding requests; windows apply to the mean context."""
    if shape.n_decode_requests == 0:
        return 0.0
    mean_tokens = shape.decode_context_tokens / shape.n_decode_requests
    n_full, window_tokens = n_full_attention_layers(model), model.attention.sliding_window_tokens
    seen_tokens = mean_tokens if window_tokens is None else min(mean_tokens, window_tokens)
    return shape.n_decode_requests * (
        n_full * mean_tokens + (model.n_layers - n_full) * seen_tokens
    )


def prefill_pairs(model: ModelSpec, shape: BatchShape) -> float:
    """(query, key, layer) triples of the prefilling requests, causal.

    Full layers: the shape's context product. Sliding layers: sum over the q new tokens of min(c
    + j, window), of the mean request (exact where all requests of the step are alike).
    """
    if shape.n_prefill_requests == 0 or shape.prefill_tokens == 0:
        return 0.0
    n_full, window_tokens = n_full_attention_layers(model), model.attention.sliding_window_tokens
    full = float(shape.prefill_context_product_tokens2)
    if window_tokens is None or n_full == model.n_layers:
        return model.n_layers * full
    new_tokens = shape.prefill_tokens / shape.n_prefill_requests
    cached_tokens = mean_cached_tokens(shape)
    growing_tokens = min(max(window_tokens - cached_tokens, 0.0), new_tokens)
    windowed = (
        growing_tokens * (cached_tokens + (growing_tokens + 1) / 2)
        + (new_tokens - growing_tokens) * window_tokens
    )
    return n_full * full + (model.n_layers - n_full) * shape.n_prefill_requests * windowed


def mean_cached_tokens(shape: BatchShape) -> float:
    """Cached tokens of the mean prefilling request before the step.

    The c of q·(c + (q + 1)/2).
    """
    if shape.prefill_tokens == 0:
        return 0.0
    new_tokens = shape.prefill_tokens / shape.n_prefill_requests
    return max(
        shape.prefill_context_product_tokens2 / shape.prefill_tokens - (new_tokens + 1) / 2, 0.0
    )


def kv_read_token_layers(model: ModelSpec, shape: BatchShape) -> float:
    """(token, layer) rows of the cache that the step reads, each once per request that needs it.

    A decoding request reads all that it attends to. A prefilling request reads, at best, its
    cached and its new rows once (a kernel that tiles queries reads them again for each tile;
    that is not a bound).
    """
    rows = decode_pairs(model, shape)
    if shape.n_prefill_requests == 0:
        return rows
    new_tokens = shape.prefill_tokens / shape.n_prefill_requests
    cached_tokens = mean_cached_tokens(shape)
    n_full, window_tokens = n_full_attention_layers(model), model.attention.sliding_window_tokens
    seen_tokens = cached_tokens if window_tokens is None else min(cached_tokens, window_tokens)
    per_request = n_full * (cached_tokens + new_tokens) + (model.n_layers - n_full) * (
        seen_tokens + new_tokens
    )
    return rows + shape.n_prefill_requests * per_request
