"""How long would steps take that consisted of measured kernels and of nothing else?

Between measured sizes times are linear in the size, as the physical axis is; a matrix wider than
any measured takes in proportion.
"""

from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from inferometer.errors import ModelError
from inferometer.perfmodel.communication import all_reduce
from inferometer.perfmodel.types import BatchShape
from inferometer.perfmodel.weights import checked_tensor_parallel, linears, n_shards
from inferometer.records.columns import F64
from inferometer.records.imports.kernel_tables import AttentionTable, GemmTable, KernelTables
from inferometer.spec.types import EngineSpec, ModelSpec

_FUSED: Final = {"query": "qkv", "key_value": "qkv"}
"""vLLM multiplies queries, keys and values at once."""

_SPLIT_INPUT: Final = {"attention_out", "mlp_down", "shared_down"}
"""Matrices whose rows, not columns, are split over devices."""


class KernelCurves(NamedTuple):
    """Seconds of one layer's matrix products and of the head over rows, of its experts over tokens.

    None where it has none.
    """

    rows: F64
    layer_s: F64
    head_s: F64
    tokens: F64
    experts_s: F64


def kernel_curves(model: ModelSpec, engine: EngineSpec, tables: KernelTables) -> KernelCurves:
    """The matrix products of this model on one of the engine's devices.

    Raises
    ------
    ModelError
        The tables know no kernels of these sizes.
    """
    n_devices = checked_tensor_parallel(model, engine)
    sizes: dict[str, tuple[float, float]] = {}
    for part in linears(model):
        if part.n_copies > 1:
            continue
        split = n_shards(part, model, n_devices)
        is_input = part.name in _SPLIT_INPUT
        name = _FUSED.get(part.name, part.name)
        n_before = sizes[name][0] if name in sizes else 0.0
        sizes[name] = (
            n_before + part.n_out / (1 if is_input else split),
            part.n_in / (split if is_input else 1),
        )
    rows = np.unique(tables.gemm.m)
    layer_s = np.sum(
        [_gemm_s(tables.gemm, rows, n_out, n_in) for n_out, n_in in sizes.values()], axis=0
    )
    head_s = _gemm_s(tables.gemm, rows, model.vocab_size / n_devices, model.hidden_size)
    tokens, experts_s = _experts(model, tables)
    return KernelCurves(
        rows=rows, layer_s=layer_s, head_s=head_s, tokens=tokens, experts_s=experts_s
    )


def kernel_step_s(
    model: ModelSpec,
    engine: EngineSpec,
    tables: KernelTables,
    curves: KernelCurves,
    shape: BatchShape,
) -> float:
    """A step of equal requests that either decode or prefill from the start."""
    n_devices = engine.tensor_parallel_size
    heads = model.attention
    n_heads, n_kv_heads = heads.n_heads // n_devices, max(heads.n_kv_heads // n_devices, 1)
    if shape.n_decode_requests:
        table, batch = tables.decode, shape.n_decode_requests
        tokens = shape.decode_context_tokens / batch
    else:
        table, batch = tables.prefill, shape.n_prefill_requests
        tokens = shape.prefill_tokens / batch
    attention_s = _attention_s(table, batch, tokens, (n_heads, n_kv_heads, heads.head_dim))
    layer_s = float(np.interp(shape.n_rows, curves.rows, curves.layer_s)) + attention_s
    if curves.tokens.size:
        layer_s += float(np.interp(shape.n_rows, curves.tokens, curves.experts_s))
    if n_devices > 1:
        reduce_s = _all_reduce_s(tables, n_devices, shape.n_rows * model.hidden_size * 2.0)
        layer_s += 2 * reduce_s
    return model.n_layers * layer_s + float(
        np.interp(shape.n_logit_positions, curves.rows, curves.head_s)
    )


def link_of(tables: KernelTables, n_devices: int) -> tuple[float, float]:
    """Bytes/s that a device sends and seconds for a message, as large and as small all-reduces show them."""
    mine = tables.all_reduce.n_devices == n_devices
    if not mine.any():
        raise ModelError(
            f"no all-reduce over {n_devices} devices was measured", where="the kernel tables"
        )
    size, duration_s = tables.all_reduce.message_bytes[mine], tables.all_reduce.duration_s[mine]
    sent = np.array([all_reduce(float(value), n_devices).sent_bytes for value in size])
    is_large = size >= 2**22
    slope_s, _ = np.polyfit(sent[is_large], duration_s[is_large], 1, w=1 / duration_s[is_large])
    return float(1 / slope_s), float(np.median(duration_s[size <= 2**16]))


def _gemm_s(table: GemmTable, rows: F64, n_out: float, n_in: float) -> F64:
    """Linear in both sizes between the measured ones."""
    widths, depths = np.unique(table.n), np.unique(table.k)
    widest = min(float(widths[-1]), n_out)

    def along_depth(width: float) -> F64 | None:
        found = {
            depth: curve
            for depth in depths
            if (curve := _curve(table, rows, width, float(depth))) is not None
        }
        return _between(found, n_in)

    found = {
        float(width): curve for width in widths if (curve := along_depth(float(width))) is not None
    }
    between = _between(found, widest)
    if between is None:
        raise ModelError(
            f"no matrix product {n_in:.0f} x {n_out:.0f} was measured", where="the kernel tables"
        )
    return np.asarray(between * (n_out / widest), dtype=np.float64)


def _curve(table: GemmTable, rows: F64, width: float, depth: float) -> F64 | None:
    mine = (table.n == width) & (table.k == depth)
    if not mine.any():
        return None
    order = np.argsort(table.m[mine])
    return np.asarray(
        np.interp(rows, table.m[mine][order], table.duration_s[mine][order]), dtype=np.float64
    )


def _between(found: dict[float, F64], size: float) -> F64 | None:
    places = sorted(found)
    if size in found:
        return found[size]
    for low, high in pairwise(places):
        if low < size < high:
            share = (size - low) / (high - low)
            return np.asarray((1 - share) * found[low] + share * found[high], dtype=np.float64)
    return None


def _experts(model: ModelSpec, tables: KernelTables) -> tuple[F64, F64]:
    if model.moe is None:
        return np.empty(0), np.empty(0)
    table, moe = tables.experts, model.moe
    mine = (table.hidden_size == model.hidden_size) & (
        table.intermediate_size == moe.intermediate_size
    )
    mine &= (table.n_experts == moe.n_experts) & (
        table.n_experts_per_token == moe.n_experts_per_token
    )
    if not mine.any():
        raise ModelError(
            f"no experts of the sizes of {model.model_id} were measured", where="the kernel tables"
        )
    order = np.argsort(table.n_tokens[mine])
    return table.n_tokens[mine][order], table.duration_s[mine][order]


def _attention_s(
    table: AttentionTable, batch: float, tokens: float, heads: tuple[int, int, int]
) -> float:
    mine = (
        (table.n_heads == heads[0]) & (table.n_kv_heads == heads[1]) & (table.head_dim == heads[2])
    )
    if not mine.any():
        raise ModelError(
            f"no attention of {heads[0]} heads, {heads[1]} KV heads and width {heads[2]} was"
            " measured",
            where="the kernel tables",
        )
    by_batch: dict[float, F64] = {}
    for size in np.unique(table.batch_size[mine]).tolist():
        rows = mine & (table.batch_size == size)
        if table.tokens[rows].min() <= tokens <= table.tokens[rows].max():
            order = np.argsort(table.tokens[rows])
            by_batch[size] = np.array(
                [np.interp(tokens, table.tokens[rows][order], table.duration_s[rows][order])]
            )
    between = _between(by_batch, batch)
    if between is None:
        raise ModelError(
            f"no attention of {batch:.0f} x {tokens:.0f} tokens was measured",
            where="the kernel tables",
        )
    return float(between[0])


def _all_reduce_s(tables: KernelTables, n_devices: int, message_bytes: float) -> float:
    mine = tables.all_reduce.n_devices == n_devices
    order = np.argsort(tables.all_reduce.message_bytes[mine])
    return float(
        np.interp(
            message_bytes,
            tables.all_reduce.message_bytes[mine][order],
            tables.all_reduce.duration_s[mine][order],
        )
    )
