"""The formula of the step-time model: what a step's time consists of.

For one step, with the work of ``step_work``::

    weights    W = layer weight bytes / weight_bytes_per_s + floor_s
    matmul     M = layer FLOP / matmul_flop_per_s · (rows / 1024)^sag
    layers     G = (W^b + M^b)^(1/b) · e^s(rows)            b: blend exponent, s: staircase
    logits     H = the same for the head, at the rows of the logits, without the floor
    kv         K = KV bytes of decoding requests · kv_traffic / kv_bytes_per_s,
               · mixed_kv_ratio in a step that also prefills
    attention  A = attention FLOP of prefilling requests / attention_flop_per_s
    link       C = link bytes / link_bytes_per_s + messages · message_s
    sequences  S = per_sequence_s · requests
    host       O = launch_s, · prefill_ratio in a step that prefills,
               · its root where that step is captured in pieces
    step       T = (O^p + (G + K + A + C + S)^p)^(1/p) + H      p: overlap exponent

Rows are the tokens that a step computes. p = 1: host and device work one after the other (a CPU).
p → ∞: a GPU whose host runs ahead, so that the longer of the two counts. The head's time is added,
since the head runs after everything else has been launched. b = 1: weights are read, then
multiplied; b → ∞: the roofline. Measured GEMM sweeps are between (b about 2 on A40, A100 and H100).
``mixed_kv_ratio``: an attention kernel for prompts and decodes together is tiled for prompts, and
reads the KV cache of decoding requests at a lower rate. The floor is the least time of a GPU's
small kernels. The sag is efficiency that falls (or rises) steadily with the rows, as under a power
cap; the staircase is the deviation at single row counts. An engine that captures graphs up to some
number of rows runs a step with prompts as graph pieces, with attention launched between them; a
larger step is launched kernel by kernel. With Qwen2.5-3B in vLLM, pieces took the host 11 to 15 ms,
kernels 46 ms, and the whole graph of a decode step 3 ms (bench/results/h100_vllm): the root of the
ratio is near. Letters of shapes: N steps, R knots of the staircase.

For the simulator, ``step_duration_s`` and what it calls (``CLOSED_FORM_PARTS``) use only floats, a
NamedTuple of arrays and ``math``: numba compiles them. Tests compare ``StepTimeModel.predict``.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from inferometer.inputs.types import EngineSpec, ModelSpec
from inferometer.perfmodel.roofline import ParallelPlan, step_work
from inferometer.perfmodel.types import BatchShape
from inferometer.records.columns import F64

CAPTURED_SHARE: Final = 0.5
"""Exponent of ``prefill_ratio`` if a step with prompts runs as captured graph pieces."""
VLLM_CAPTURED_TOKENS: Final = 512
CAPTURED_TOKENS_OF_A_SEQUENCE: Final = 2
"""vLLM captures sizes up to twice max_num_seqs, at most this many (``max_cudagraph_capture_size``)."""
REFERENCE_ROWS: Final = 1024
"""Rows at which ``matmul_flop_per_s`` is quoted, where the sag is 1."""

PARAMETERS: Final = (
    "launch_s",
    "weight_bytes_per_s",
    "kv_bytes_per_s",
    "matmul_flop_per_s",
    "attention_flop_per_s",
    "per_sequence_s",
    "link_bytes_per_s",
    "message_s",
    "floor_s",
    "prefill_ratio",
    "overlap_ratio",
    "blend_ratio",
    "mixed_kv_ratio",
    "sag_ratio",
)
"""Order of the parameters in every vector, which has their logarithms (of ``sag_ratio``, an
exponent around 0, the value itself)."""

_INDEX: Final = {name: index for index, name in enumerate(PARAMETERS)}
_SAG: Final = _INDEX["sag_ratio"]


class WorkColumns(NamedTuple):
    """The work of N steps, one array per kind of work."""

    n_rows: F64
    n_logit_positions: F64
    n_requests: F64
    n_prefill_requests: F64
    launched_share: F64
    """Exponent of ``prefill_ratio`` in each step: 1 with prompts, ½ in graph pieces, else 0."""
    layer_bytes: F64
    head_bytes: F64
    matmul_flop: F64
    logits_flop: F64
    kv_bytes: F64
    attention_flop: F64
    link_bytes: F64
    n_messages: F64


class Staircase(NamedTuple):
    """Log ratios of GEMM time to the smooth formula at R row counts, linear in log rows between."""

    log_rows: F64
    log_ratio: F64

    def at(self, n_rows: F64) -> F64:
        """The log ratios at these row counts; constant beyond the outermost knots.

        ``log_ratio`` may have further axes before the axis of the R knots.
        """
        if self.log_rows.size == 0:
            return np.zeros_like(n_rows)
        place = np.interp(
            np.log(np.maximum(n_rows, 1.0)),
            self.log_rows,
            np.arange(self.log_rows.size, dtype=np.float64),
        )
        below = np.floor(place).astype(np.int64)
        above = np.minimum(below + 1, self.log_rows.size - 1)
        share = place - below
        return np.asarray(
            self.log_ratio[..., below] * (1 - share) + self.log_ratio[..., above] * share,
            dtype=np.float64,
        )


NO_STAIRCASE: Final = Staircase(log_rows=np.empty(0), log_ratio=np.empty(0))


class TermColumns(NamedTuple):
    """The parts of N steps' times in seconds, by cause; they sum to the step's time.

    ``launch`` is the host's time that the device does not hide, and the floor; ``head_weights`` and
    ``head_matmul`` are those of the output head.
    """

    launch: F64
    weights: F64
    kv: F64
    matmul: F64
    attention: F64
    head_weights: F64
    head_matmul: F64
    per_sequence: F64
    communication: F64

    @property
    def total_s(self) -> F64:
        """The step's time."""
        total = self.launch
        for column in self[1:]:
            total = total + column
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParameters:
    """The physical parameters; the module's docstring defines each."""

    launch_s: float
    weight_bytes_per_s: float
    kv_bytes_per_s: float
    matmul_flop_per_s: float
    attention_flop_per_s: float
    per_sequence_s: float
    link_bytes_per_s: float
    message_s: float
    floor_s: float
    prefill_ratio: float
    overlap_ratio: float
    blend_ratio: float
    sag_ratio: float
    mixed_kv_ratio: float = 1.0

    def vector(self) -> F64:
        """The logarithms of the parameters (the sag itself), in the order of ``PARAMETERS``."""
        values = np.array([getattr(self, name) for name in PARAMETERS])
        return np.concatenate([np.log(values[:_SAG]), values[_SAG:]])


def parameters_of(vector: F64) -> StepParameters:
    """The parameters of a vector: the inverse of ``StepParameters.vector``."""
    values = np.concatenate([np.exp(vector[:_SAG]), vector[_SAG:]]).tolist()
    return StepParameters(**dict(zip(PARAMETERS, values, strict=True)))


def work_columns(
    model: ModelSpec,
    engine: EngineSpec,
    shapes: Sequence[BatchShape],
    *,
    kv_traffic_ratio: float,
    plan: ParallelPlan | None = None,
    captured_tokens: int = 0,
) -> WorkColumns:
    """Work of these steps; the plan defaults to the engine's tensor parallelism.

    ``kv_traffic_ratio`` is the number of bytes that attention moves for each byte of KV cache
    that a decoding request holds; ``captured_tokens`` the most rows of a step with prompts that
    runs as captured graph pieces.
    """
    return _work_columns(model, engine, tuple(shapes), kv_traffic_ratio, plan, captured_tokens)


def term_columns(
    vector: F64, staircase: Staircase, work: WorkColumns, *, least_sag_ratio: float = 0.0
) -> TermColumns:
    """The parts of these steps' times by cause: the formula of the module's docstring.

    ``vector`` is one set of parameters, or K of them as (parameters, K, 1) with
    ``staircase.log_ratio`` as (K, R): the columns then are (K, N). ``least_sag_ratio`` is a lower
    bound of (rows / 1024)^sag, so that no product exceeds the device's peak.
    """
    value = dict(zip(PARAMETERS, np.exp(vector[:_SAG]), strict=False))
    blend, overlap, sag = value["blend_ratio"], value["overlap_ratio"], vector[_SAG]
    read = work.layer_bytes / value["weight_bytes_per_s"]
    layers = _gemm(
        read + value["floor_s"],
        work.matmul_flop / value["matmul_flop_per_s"],
        blend,
        _sagged(work.n_rows, sag, least_sag_ratio),
        staircase.at(work.n_rows),
    )
    head = _gemm(
        work.head_bytes / value["weight_bytes_per_s"],
        work.logits_flop / value["matmul_flop_per_s"],
        blend,
        _sagged(work.n_logit_positions, sag, least_sag_ratio),
        staircase.at(work.n_logit_positions),
    )
    kv = (
        work.kv_bytes
        / value["kv_bytes_per_s"]
        * np.where(work.n_prefill_requests > 0, value["mixed_kv_ratio"], 1.0)
    )
    attention = work.attention_flop / value["attention_flop_per_s"]
    communication = (
        work.link_bytes / value["link_bytes_per_s"] + work.n_messages * value["message_s"]
    )
    per_sequence = value["per_sequence_s"] * work.n_requests
    device = layers[0] + layers[1] + kv + attention + communication + per_sequence
    floor_share = value["floor_s"] / (read + value["floor_s"])
    return TermColumns(
        launch=_overlapped(host_s(vector, work), device, overlap)
        - device
        + layers[0] * floor_share,
        weights=layers[0] * (1 - floor_share),
        kv=kv,
        matmul=layers[1],
        attention=attention,
        head_weights=head[0],
        head_matmul=head[1],
        per_sequence=per_sequence,
        communication=communication,
    )


def host_s(vector: F64, work: WorkColumns) -> F64:
    """(N) Host time to launch each step."""
    launch, prefill = np.exp(vector[_INDEX["launch_s"]]), np.exp(vector[_INDEX["prefill_ratio"]])
    return np.asarray(launch * prefill**work.launched_share, dtype=np.float64)


_LEAST_OVERLAP: Final = 0.1
"""Lower bound of the overlap exponent, which keeps times finite during the fit's search; 1 already
means that nothing overlaps."""


def _overlapped(host: F64, device: F64, overlap: F64) -> F64:
    """Time of host and device together: (host^p + device^p)^(1/p), p being the overlap exponent."""
    largest, power = np.maximum(host, device), np.maximum(overlap, _LEAST_OVERLAP)
    return np.asarray(
        largest * ((host / largest) ** power + (device / largest) ** power) ** (1 / power),
        dtype=np.float64,
    )


def _sagged(n_rows: F64, sag: F64, least_ratio: float) -> F64:
    """Time per row at ``n_rows`` rows, relative to that at ``REFERENCE_ROWS``: the sag."""
    ratio = (np.maximum(n_rows, 1.0) / REFERENCE_ROWS) ** sag
    return np.asarray(np.maximum(ratio, least_ratio), dtype=np.float64)


def _gemm(read: F64, multiply: F64, blend: F64, sagged: F64, log_stair: F64) -> tuple[F64, F64]:
    """Time of matrix products, divided between reading and multiplying in proportion."""
    multiply = multiply * sagged
    largest = np.maximum(np.maximum(read, multiply), np.finfo(float).tiny)
    read_part, multiply_part = (read / largest) ** blend, (multiply / largest) ** blend
    both = read_part + multiply_part
    shown = np.where(both > 0, largest * both ** (1 / blend), 0.0) * np.exp(log_stair)
    share = np.divide(read_part, both, out=np.zeros_like(both), where=both > 0)
    return shown * share, shown * (1 - share)


@lru_cache(maxsize=64)
def _work_columns(
    model: ModelSpec,
    engine: EngineSpec,
    shapes: tuple[BatchShape, ...],
    kv_traffic_ratio: float,
    plan: ParallelPlan | None,
    captured_tokens: int,
) -> WorkColumns:
    """Work columns, cached and therefore read-only."""
    rows = [
        _work_of(model, engine, shape, kv_traffic_ratio, plan, captured_tokens) for shape in shapes
    ]
    columns = np.array(rows, dtype=np.float64).reshape(len(rows), len(WorkColumns._fields)).T
    columns.flags.writeable = False
    return WorkColumns(*columns)


def _work_of(
    model: ModelSpec,
    engine: EngineSpec,
    shape: BatchShape,
    kv_traffic_ratio: float,
    plan: ParallelPlan | None,
    captured_tokens: int,
) -> tuple[float, ...]:
    work = step_work(model, engine, shape, plan=plan)
    layers = step_work(model, engine, replace(shape, n_logit_positions=0), plan=plan)
    prefill = step_work(
        model,
        engine,
        replace(shape, n_decode_requests=0, decode_context_tokens=0, n_logit_positions=0),
        plan=plan,
    )
    return (
        shape.n_rows,
        shape.n_logit_positions,
        shape.n_prefill_requests + shape.n_decode_requests,
        shape.n_prefill_requests,
        0.0
        if shape.n_prefill_requests == 0
        else 1.0
        if shape.n_rows > captured_tokens
        else CAPTURED_SHARE,
        layers.weight_bytes,
        work.weight_bytes - layers.weight_bytes,
        work.matmul_flop,
        work.logits_flop,
        (work.kv_read_bytes - prefill.kv_read_bytes) * kv_traffic_ratio,
        prefill.attention_flop,
        work.link_bytes,
        work.n_link_messages,
    )


class StepTimeArrays(NamedTuple):
    """A step-time model as plain numbers.

    Tables are over the log of the rows (computed tokens): linear in between, constant beyond.
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
    singly_s: float = 0.0
    """Least time of the layers where each kernel is launched by itself; 0 with captured graphs."""
    first_token_ratio: float = 1.0
    """TTFT over what these steps make of it, waited in no step; below 1: of the wait before them."""


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
    link_s = arrays.message_s + arrays.link_row_s * n_group_rows
    device_s = max(device_s + (link_s + arrays.link_logit_s * n_logit_positions), arrays.singly_s)
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
