"""A step-time model as a simulator takes it: plain numbers, and a closed form that compiles.

``step_duration_s`` and the functions that it calls (``CLOSED_FORM_PARTS``) use floats, a
NamedTuple of arrays and ``math`` only, so that ``numba.njit`` compiles them as they stand; the
answer is that of ``StepTimeModel.predict`` (a test holds them together).
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Final, NamedTuple

import numpy as np

from inferometer.perfmodel.kv_cache import CacheRows, cache_rows, layer_bits, state_bytes
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.perfmodel.steptime_terms import REFERENCE_ROWS
from inferometer.perfmodel.types import BatchShape, decode_shape, prefill_shape
from inferometer.perfmodel.work import kv_dtype
from inferometer.records.columns import F64

_MAX_ROWS: Final = 2**20


class StepTimeArrays(NamedTuple):
    """A step-time model as plain numbers.

    Tables are over the logarithm of the rows, linear between, constant beyond.
    """

    launch_s: float
    prefill_launch_s: float
    overlap_ratio: float
    blend_ratio: float
    sag_ratio: float
    per_sequence_s: float
    read_log_rows: F64
    read_s: F64
    """Seconds to read the layers' weights, floor included: one entry unless a mixture of experts
    reads more with more rows."""
    matmul_row_s: float
    """Seconds of matrix products per row, at 1024 rows."""
    head_read_s: float
    head_row_s: float
    kv_token_s: float
    attention_pair_s: float
    message_s: float
    """Seconds of messages in every step; 0 without parallelism."""
    link_row_s: float
    link_logit_s: float
    window_tokens: float
    """Sliding window, or the most tokens that top-k attention reads; infinite where there is none."""
    full_share_ratio: float
    """Share of ``kv_token_s`` that grows with the whole context."""
    staircase_log_rows: F64
    staircase_log_ratio: F64
    computes_all_logits: bool
    expert_row_s: float = 0.0
    """Seconds of matrix products per row of all replicas that share their experts; 0 where
    nothing is shared."""
    mixed_kv_ratio: float = 1.0
    """Time of ``kv_token_s`` in a step that also prefills, relative to one that does not."""
    full_pair_share_ratio: float = 1.0
    """Share of ``attention_pair_s`` that grows with the whole context."""
    kv_sequence_s: float = 0.0
    """Seconds to read and write the recurrent state of a decoding request."""


def arrays_of(model: StepTimeModel) -> StepTimeArrays:
    """The numbers of a model. A test with dense, MoE, sliding and split models checks them all."""
    physical, posterior = model.physical(), model.posterior()
    as_asked = replace(model, computes_all_logits=False)
    rows = (
        np.unique(np.round(np.geomspace(1, _MAX_ROWS, 161)))
        if model.model.moe is not None
        else np.ones(1)
    )
    token = decode_shape(batch_size=1, context_tokens=1)
    prompt = prefill_shape(batch_size=1, prompt_tokens=1)
    two_rows = replace(token, n_decode_requests=2, decode_context_tokens=2)
    probed = as_asked.work([token, two_rows, replace(token, n_logit_positions=2), prompt])
    link_bytes = probed.link_bytes.tolist()
    kinds, engine = cache_rows(model.model), model.engine
    limits = [rows.most_read_tokens for rows in kinds if rows.most_read_tokens is not None]
    state = (
        2 * state_bytes(model.model, engine.dtype) / engine.tensor_parallel_size
    ) * model.kv_traffic_ratio
    layer_bytes = as_asked.work(
        [replace(token, n_decode_requests=int(n), decode_context_tokens=int(n)) for n in rows]
    ).layer_bytes
    return StepTimeArrays(
        launch_s=physical.launch_s,
        prefill_launch_s=physical.launch_s * physical.prefill_ratio,
        overlap_ratio=physical.overlap_ratio,
        blend_ratio=physical.blend_ratio,
        sag_ratio=physical.sag_ratio,
        per_sequence_s=physical.per_sequence_s,
        read_log_rows=np.log(rows),
        read_s=layer_bytes / physical.weight_bytes_per_s + physical.floor_s,
        matmul_row_s=float(probed.matmul_flop[0]) / physical.matmul_flop_per_s,
        head_read_s=float(probed.head_bytes[0]) / physical.weight_bytes_per_s,
        head_row_s=float(probed.logits_flop[0]) / physical.matmul_flop_per_s,
        kv_token_s=(float(probed.kv_bytes[0]) - state) / physical.kv_bytes_per_s,
        attention_pair_s=float(probed.attention_flop[3]) / physical.attention_flop_per_s,
        message_s=float(probed.n_messages[0]) * physical.message_s,
        link_row_s=(link_bytes[1] - link_bytes[0]) / physical.link_bytes_per_s,
        link_logit_s=(link_bytes[2] - link_bytes[0]) / physical.link_bytes_per_s,
        window_tokens=float(min(limits)) if limits else math.inf,
        full_share_ratio=_full_share(kinds, [layer_bits(rows, kv_dtype(engine)) for rows in kinds]),
        staircase_log_rows=(
            posterior.staircase.log_rows if posterior.staircase.log_rows.size else np.zeros(1)
        ),
        staircase_log_ratio=(
            posterior.staircase.log_ratio if posterior.staircase.log_ratio.size else np.zeros(1)
        ),
        computes_all_logits=model.computes_all_logits,
        mixed_kv_ratio=physical.mixed_kv_ratio,
        full_pair_share_ratio=_full_share(
            kinds, [rows.n_layers * rows.prefill_flop for rows in kinds]
        ),
        kv_sequence_s=state / physical.kv_bytes_per_s,
    )


def _full_share(kinds: Sequence[CacheRows], costs: Sequence[float]) -> float:
    """Share of these costs in layers that read the whole context."""
    full = [cost for rows, cost in zip(kinds, costs, strict=True) if rows.most_read_tokens is None]
    return sum(full) / sum(costs)


def slowed(arrays: StepTimeArrays, factor_ratio: float) -> StepTimeArrays:
    """The step times of a machine on which every step takes ``factor_ratio`` times as long."""
    return arrays._replace(
        **{
            name: getattr(arrays, name) * factor_ratio
            for name in arrays._fields
            if name.endswith("_s")
        }
    )


def step_duration_s(
    arrays: StepTimeArrays,
    n_prefill_requests: int,
    n_decode_requests: int,
    prefill_tokens: int,
    prefill_context_product_tokens2: int,
    decode_context_tokens: int,
    n_logit_positions: int,
) -> float:
    """Duration of a step with these sufficient statistics."""
    return group_step_duration_s(
        arrays,
        n_prefill_requests,
        n_decode_requests,
        prefill_tokens,
        prefill_context_product_tokens2,
        decode_context_tokens,
        n_logit_positions,
        prefill_tokens + n_decode_requests,
    )


def group_step_duration_s(  # noqa: PLR0913, PLR0917 -- compiled code takes plain numbers
    arrays: StepTimeArrays,
    n_prefill_requests: int,
    n_decode_requests: int,
    prefill_tokens: int,
    prefill_context_product_tokens2: int,
    decode_context_tokens: int,
    n_logit_positions: int,
    n_group_rows: int,
) -> float:
    """The same with ``n_group_rows`` rows of all replicas through the experts that they share."""
    n_rows, n_group_rows = max(prefill_tokens + n_decode_requests, 1), max(n_group_rows, 1)
    read_s = _interpolated(arrays.read_log_rows, arrays.read_s, math.log(n_group_rows))
    layers_s = _product_s(
        arrays,
        read_s,
        arrays.matmul_row_s * n_rows + arrays.expert_row_s * n_group_rows,
        n_group_rows,
    )
    if arrays.computes_all_logits:
        n_logit_positions = n_rows
    head_s = 0.0
    if n_logit_positions > 0:
        head_s = _product_s(
            arrays, arrays.head_read_s, arrays.head_row_s * n_logit_positions, n_logit_positions
        )
    device_s = layers_s + arrays.per_sequence_s * (n_prefill_requests + n_decode_requests)
    if n_decode_requests > 0:
        seen_tokens = min(decode_context_tokens, arrays.window_tokens * n_decode_requests)
        share = arrays.full_share_ratio
        kv_s = arrays.kv_token_s * (share * decode_context_tokens + (1 - share) * seen_tokens)
        kv_s += arrays.kv_sequence_s * n_decode_requests
        device_s += kv_s * arrays.mixed_kv_ratio if n_prefill_requests > 0 else kv_s
    if n_prefill_requests > 0 and prefill_tokens > 0:
        device_s += arrays.attention_pair_s * _pairs(
            arrays, n_prefill_requests, prefill_tokens, prefill_context_product_tokens2
        )
    device_s += (
        arrays.message_s
        + arrays.link_row_s * n_group_rows
        + arrays.link_logit_s * n_logit_positions
    )
    host_s = arrays.prefill_launch_s if n_prefill_requests > 0 else arrays.launch_s
    largest_s, smaller_s = max(host_s, device_s), min(host_s, device_s)
    step_s = largest_s * math.pow(
        1 + math.pow(smaller_s / largest_s, arrays.overlap_ratio), 1 / arrays.overlap_ratio
    )
    return step_s + head_s


def _product_s(arrays: StepTimeArrays, read_s: float, multiply_s: float, n_rows: int) -> float:
    multiply_s *= math.pow(n_rows / REFERENCE_ROWS, arrays.sag_ratio)
    largest_s, smaller_s = max(read_s, multiply_s), min(read_s, multiply_s)
    smooth_s = largest_s * math.pow(
        1 + math.pow(smaller_s / largest_s, arrays.blend_ratio), 1 / arrays.blend_ratio
    )
    return smooth_s * math.exp(
        _interpolated(arrays.staircase_log_rows, arrays.staircase_log_ratio, math.log(n_rows))
    )


def _interpolated(places: F64, values: F64, place: float) -> float:
    """Linear between the places, constant beyond.

    Bisection by hand: numba's np.interp takes a microsecond, this a few nanoseconds.
    """
    low, high = 0, len(places) - 1
    if place <= places[low]:
        return float(values[low])
    if place >= places[high]:
        return float(values[high])
    while high - low > 1:
        middle = (low + high) // 2
        if places[middle] <= place:
            low = middle
        else:
            high = middle
    share = (place - places[low]) / (places[high] - places[low])
    return float(values[low] + share * (values[high] - values[low]))


def _pairs(
    arrays: StepTimeArrays,
    n_prefill_requests: int,
    prefill_tokens: int,
    prefill_context_product_tokens2: int,
) -> float:
    """(query, key) pairs of the mean layer, by cost, as ``kv_cache.prefill_pairs`` counts them."""
    if math.isinf(arrays.window_tokens):
        return prefill_context_product_tokens2
    new_tokens = prefill_tokens / n_prefill_requests
    cached_tokens = max(
        prefill_context_product_tokens2 / prefill_tokens - (new_tokens + 1) / 2, 0.0
    )
    growing_tokens = min(max(arrays.window_tokens - cached_tokens, 0.0), new_tokens)
    windowed = (
        growing_tokens * (cached_tokens + (growing_tokens + 1) / 2)
        + (new_tokens - growing_tokens) * arrays.window_tokens
    )
    share = arrays.full_pair_share_ratio
    return share * prefill_context_product_tokens2 + (1 - share) * n_prefill_requests * windowed


CLOSED_FORM_PARTS: Final = (
    "_interpolated",
    "_product_s",
    "_pairs",
    "group_step_duration_s",
    "step_duration_s",
)
"""Names of the functions that a compiler needs, each after those that it calls."""


def shape_duration_s(arrays: StepTimeArrays, shape: BatchShape) -> float:
    """Duration of a step of this shape."""
    return step_duration_s(arrays, *astuple(shape))
