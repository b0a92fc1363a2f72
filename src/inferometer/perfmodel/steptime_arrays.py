"""The step-time model for the simulator: plain numbers, and a formula that numba can compile.

``step_duration_s`` and the functions that it calls (``CLOSED_FORM_PARTS``) use only floats, a
NamedTuple of arrays and ``math``, so that ``numba.njit`` compiles them unchanged. The result is
the same as that of ``StepTimeModel.predict`` (a test compares them). ``steptime.arrays_of``
computes the numbers; changes there need no new compilation.
"""

import math
from dataclasses import astuple
from typing import Final, NamedTuple

import numpy as np

from inferometer.perfmodel.steptime_terms import REFERENCE_ROWS
from inferometer.perfmodel.types import BatchShape
from inferometer.records.columns import F64


class StepTimeArrays(NamedTuple):
    """A step-time model as plain numbers.

    Tables are over the logarithm of the row count: linear between entries, constant beyond them. A
    row is a token that the step computes.
    """

    launch_s: float
    prefill_launch_s: float
    overlap_ratio: float
    blend_ratio: float
    sag_ratio: float
    per_sequence_s: float
    read_log_rows: F64
    read_s: F64
    """Seconds to read the layers' weights, with the floor; one entry, or (experts) one for each of
    ``read_log_rows``."""
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
    """Sliding window, or the most tokens that top-k attention reads; infinite: no limit."""
    full_share_ratio: float
    """Share of ``kv_token_s`` that grows with the whole context."""
    staircase_log_rows: F64
    staircase_log_ratio: F64
    computes_all_logits: bool
    expert_row_s: float = 0.0
    """Seconds of the experts' matrix products per row of all replicas that share the experts; 0 if
    none are shared."""
    mixed_kv_ratio: float = 1.0
    """Factor on ``kv_token_s`` in a step that also prefills."""
    full_pair_share_ratio: float = 1.0
    """Share of ``attention_pair_s`` that grows with the whole context."""
    kv_sequence_s: float = 0.0
    """Seconds to read and write the recurrent state of a decoding request."""
    least_sag_ratio: float = 0.0
    """Lower bound of the factor on ``matmul_row_s`` at more rows: no product beats the peak."""
    captured_tokens: float = 0.0
    """The most rows of a step with prompts that runs as captured graph pieces."""
    captured_launch_s: float = 0.0


def slowed(arrays: StepTimeArrays, factor_ratio: float) -> StepTimeArrays:
    """Step times that are all ``factor_ratio`` times as long."""
    return arrays._replace(
        **{
            name: getattr(arrays, name) * factor_ratio
            for name in arrays._fields
            if name.endswith("_s")
        }
    )


def no_faster(arrays: StepTimeArrays, fastest: StepTimeArrays) -> StepTimeArrays:
    """The step times with each part at least as long as on the ``fastest`` machine."""
    bounded = arrays._replace(
        **{
            name: max(getattr(arrays, name), getattr(fastest, name))
            for name in arrays._fields
            if name.endswith("_s") and name != "read_s"
        },
        read_s=np.maximum(arrays.read_s, fastest.read_s),
    )
    of_peak = fastest.matmul_row_s / bounded.matmul_row_s if bounded.matmul_row_s > 0 else 0.0
    return bounded._replace(least_sag_ratio=of_peak)


def step_duration_s(
    arrays: StepTimeArrays,
    n_prefill_requests: int,
    n_decode_requests: int,
    prefill_tokens: int,
    prefill_context_product_tokens2: int,
    decode_context_tokens: int,
    n_logit_positions: int,
) -> float:
    """Duration of a step with these counts (the fields of ``BatchShape``)."""
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
    """Duration of a step of a replica that shares experts with others.

    The experts compute ``n_group_rows`` rows, those of all replicas of the group.
    """
    n_rows, n_group_rows = max(prefill_tokens + n_decode_requests, 1), max(n_group_rows, 1)
    if arrays.computes_all_logits:
        n_logit_positions = n_rows
    return whole_duration_s(
        arrays,
        layers_duration_s(arrays, n_rows, n_group_rows),
        head_duration_s(arrays, n_logit_positions),
        n_prefill_requests,
        n_decode_requests,
        prefill_tokens,
        prefill_context_product_tokens2,
        decode_context_tokens,
        n_logit_positions,
        n_group_rows,
    )


def layers_duration_s(arrays: StepTimeArrays, n_rows: int, n_group_rows: int) -> float:
    """Time of all layers' matrix products, which depends only on the numbers of rows."""
    read_s = _interpolated(arrays.read_log_rows, arrays.read_s, math.log(n_group_rows))
    multiply_s = arrays.matmul_row_s * n_rows + arrays.expert_row_s * n_group_rows
    return _product_s(arrays, read_s, multiply_s, n_group_rows)


def head_duration_s(arrays: StepTimeArrays, n_logit_positions: int) -> float:
    """Time of the output head, which depends only on the number of logit positions."""
    if n_logit_positions == 0:
        return 0.0
    multiply_s = arrays.head_row_s * n_logit_positions
    return _product_s(arrays, arrays.head_read_s, multiply_s, n_logit_positions)


def whole_duration_s(  # noqa: PLR0913, PLR0917 -- compiled code takes plain numbers
    arrays: StepTimeArrays,
    layers_s: float,
    head_s: float,
    n_prefill_requests: int,
    n_decode_requests: int,
    prefill_tokens: int,
    prefill_context_product_tokens2: int,
    decode_context_tokens: int,
    n_logit_positions: int,
    n_group_rows: int,
) -> float:
    """Duration of a step, given the times of its layers' matrix products and of the head."""
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
    host_s = arrays.launch_s
    if n_prefill_requests > 0:
        is_captured = prefill_tokens + n_decode_requests <= arrays.captured_tokens
        host_s = arrays.captured_launch_s if is_captured else arrays.prefill_launch_s
    largest_s, smaller_s = max(host_s, device_s), min(host_s, device_s)
    step_s = largest_s * math.pow(
        1 + math.pow(smaller_s / largest_s, arrays.overlap_ratio), 1 / arrays.overlap_ratio
    )
    return step_s + head_s


def _product_s(arrays: StepTimeArrays, read_s: float, multiply_s: float, n_rows: int) -> float:
    multiply_s *= max(math.pow(n_rows / REFERENCE_ROWS, arrays.sag_ratio), arrays.least_sag_ratio)
    largest_s, smaller_s = max(read_s, multiply_s), min(read_s, multiply_s)
    smooth_s = largest_s * math.pow(
        1 + math.pow(smaller_s / largest_s, arrays.blend_ratio), 1 / arrays.blend_ratio
    )
    return smooth_s * math.exp(
        _interpolated(arrays.staircase_log_rows, arrays.staircase_log_ratio, math.log(n_rows))
    )


def _interpolated(places: F64, values: F64, place: float) -> float:
    """Interpolate linearly between ``places``; constant beyond the first and the last.

    Bisection is written out: numba's np.interp takes a microsecond, this a few nanoseconds.
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
    """(query, key) pairs of the mean layer, weighted by cost (see ``kv_cache.prefill_pairs``)."""
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
    "layers_duration_s",
    "head_duration_s",
    "whole_duration_s",
    "group_step_duration_s",
    "step_duration_s",
)
"""Names of the functions to compile, each after the functions that it calls."""


def shape_duration_s(arrays: StepTimeArrays, shape: BatchShape) -> float:
    """Duration of a step of this shape."""
    return step_duration_s(arrays, *astuple(shape))
