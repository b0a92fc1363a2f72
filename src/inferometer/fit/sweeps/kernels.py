"""Step-time model from measured kernels, before any step of the model is measured.

The closed form is fitted to steps composed of kernels. Between measured sizes times are linear
in the size; a matrix wider than any measured takes time in proportion. What kernels do not show
has a wide prior: host time, the small kernels between the large ones, and how much slower a
kernel is in a step than alone.
"""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from inferometer.errors import ModelError
from inferometer.fit.map import information_source
from inferometer.fit.sweeps.priors import BLEND_OF_GPU, ParameterPrior, Priors
from inferometer.fit.sweeps.regression import Data, StepTimePosterior, regress
from inferometer.inputs.types import EngineSpec, ModelSpec
from inferometer.perfmodel.matrices import linears, n_shards
from inferometer.perfmodel.roofline import all_reduce
from inferometer.perfmodel.steptime import (
    FittedParameter,
    StepTimeModel,
    TrainedOn,
    parameter_estimate,
)
from inferometer.perfmodel.steptime_limits import PhaseUncertainty, box_of
from inferometer.perfmodel.steptime_terms import PARAMETERS, parameters_of, work_columns
from inferometer.perfmodel.types import BatchShape, decode_shape, prefill_shape
from inferometer.perfmodel.weights import checked_tensor_parallel
from inferometer.records.columns import F64
from inferometer.records.imports.kernel_tables import AttentionTable, GemmTable, KernelTables

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
    """Times of this model's matrix products on one of the engine's devices.

    Raises
    ------
    ModelError
        The tables know no kernels of these sizes, or layers have different shapes.
    """
    if model.attention.full is not None or model.groups or model.n_loops > 1:
        raise ModelError(
            f"{model.model_id!r} has layers of different shapes, or runs them several times",
            where="the kernel tables",
        )
    n_devices = checked_tensor_parallel(model, engine)
    sizes: dict[str, tuple[float, float]] = {}
    for part in linears(model):
        if part.n_copies > 1:
            continue
        split = n_shards(part, n_devices)
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
    """Duration of a step of equal requests that all decode or all prefill from the start."""
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
    """Bytes/s sent and seconds per message, from large and small all-reduces."""
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


_NOISE_RATIO: Final = 0.03
_NOTHING_S: Final = 1e-9
_NO_LINK_BYTES_PER_S: Final = 1e9
"""Placeholder where nothing is sent."""
_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_CONTEXTS: Final = (512, 1024, 2048, 4096)
_MAX_TOKENS: Final = 2**18
"""Largest batch, as far as the tables go."""
_PROMPTS: Final = (128, 256, 512, 1024, 1536, 2048)


def model_from_kernels(
    model: ModelSpec,
    engine: EngineSpec,
    tables: KernelTables,
    *,
    hardware: str,
    n_linked: int | None = None,
) -> StepTimeModel:
    """Step-time model of these kernels; the prior covers what they do not show.

    ``n_linked`` devices exchange rows in every layer: None means those of the tensor-parallel
    group.

    Raises
    ------
    ModelError
        The tables know no kernels of these sizes.
    """
    pairs = [
        (batch, tokens)
        for batch in _BATCHES
        for tokens in _CONTEXTS
        if batch * tokens <= _MAX_TOKENS
    ]
    shapes = [decode_shape(batch_size=batch, context_tokens=tokens) for batch, tokens in pairs]
    shapes += [prefill_shape(batch_size=1, prompt_tokens=tokens) for tokens in _PROMPTS]
    curves = kernel_curves(model, engine, tables)
    seconds = np.array([kernel_step_s(model, engine, tables, curves, shape) for shape in shapes])
    data = Data(
        work=work_columns(model, engine, shapes, kv_traffic_ratio=1.0),
        log_s=np.log(seconds),
        noise=np.full(len(shapes), _NOISE_RATIO),
        is_prefill=np.array([shape.n_prefill_requests > 0 for shape in shapes]),
    )
    n_linked = engine.tensor_parallel_size if n_linked is None else n_linked
    link = link_of(tables, n_linked) if n_linked > 1 else (_NO_LINK_BYTES_PER_S, _NOTHING_S)
    posterior = regress(data, _priors(model, tables, curves, link))
    parameters = step_priors(model, posterior.vector, hardware, has_link=n_linked > 1)
    return _prior_model(model, engine, parameters, posterior, shapes, hardware)


def _priors(
    model: ModelSpec, tables: KernelTables, curves: KernelCurves, link: tuple[float, float]
) -> Priors:
    """Wide priors, as kernels decide; no host time; the link has its own table."""
    widest = tables.gemm.n * tables.gemm.k
    large = (widest >= np.quantile(widest, 0.7)) & (tables.gemm.m <= 4)
    read = float(np.median(2.0 * widest[large] / tables.gemm.duration_s[large]))
    flop = float(np.max(2.0 * widest * tables.gemm.m / tables.gemm.duration_s))
    table = {
        "launch_s": (_NOTHING_S, 0.0),
        "weight_bytes_per_s": (read, 0.2),
        "kv_bytes_per_s": (read, 0.3),
        "matmul_flop_per_s": (0.8 * flop, 0.3),
        "attention_flop_per_s": (0.3 * flop, 0.7),
        "per_sequence_s": (_NOTHING_S, 0.0),
        "link_bytes_per_s": (link[0], 0.0),
        "message_s": (link[1], 0.0),
        "floor_s": (float(curves.layer_s.min()) * 0.1 * model.n_layers, 1.0),
        "prefill_ratio": (1.0, 0.0),
        "overlap_ratio": (4.0, 0.0),
        "blend_ratio": (BLEND_OF_GPU, 0.3),
        "mixed_kv_ratio": (1.0, 0.0),
    }
    parameters = [
        ParameterPrior(
            mean_ratio=float(np.log(table[name][0])),
            sd_ratio=table[name][1],
            why="kernels",
        )
        for name in PARAMETERS[:-1]
    ]
    parameters.append(ParameterPrior(mean_ratio=0.0, sd_ratio=0.1, why="kernels"))
    return Priors(parameters=tuple(parameters), staircase_ratios=(0.0, 0.03, 0.06, 0.1))


def _prior_model(
    model: ModelSpec,
    engine: EngineSpec,
    parameters: dict[str, ParameterPrior],
    posterior: StepTimePosterior,
    shapes: list[BatchShape],
    hardware: str,
) -> StepTimeModel:
    """Kernels as in a step, with priors for the rest."""
    free = tuple(name for name in PARAMETERS if parameters[name].sd_ratio > 0)
    rows = tuple(round(float(row)) for row in np.exp(posterior.staircase.log_rows))
    deviations = [parameters[name].sd_ratio for name in free] + [_NOISE_RATIO] * len(rows)
    return StepTimeModel(
        model=model,
        engine=engine,
        parameters=tuple(prior_parameter(name, parameters[name]) for name in PARAMETERS),
        kv_traffic_ratio=1.0,
        staircase_rows=rows,
        staircase_log_ratio=tuple(posterior.staircase.log_ratio.tolist()),
        free=(*free, *(f"rows {row}" for row in rows)),
        covariance=tuple(tuple(row) for row in np.diag(np.square(deviations)).tolist()),
        uncertainties=(
            PhaseUncertainty(phase="prefill", spread_ratio=posterior.spreads.prefill_ratio),
            PhaseUncertainty(phase="decode", spread_ratio=posterior.spreads.decode_ratio),
        ),
        box=box_of(shapes),
        trained_on=TrainedOn(
            run_ids=(),
            hardware=hardware,
            attention_implementation=None,
            n_observations=len(shapes),
            n_configurations=len(shapes),
            is_drift_removed=False,
        ),
        held_out=(),
    )


_SMALL_KERNEL_S: Final = 2.8e-6
_N_SMALL: Final = 6
"""Kernels of a layer beside its matrix products and attention where torch.compile fused what it
could: two norms with their residual sums, norms of queries and keys with rotation, the write to
the cache, the activation, a copy."""
_N_SMALL_EXPERTS: Final = 12
"""More in a layer of experts: router, softmax with top-k, sort, permutation, gather, weighted sum
and their copies."""
_IN_A_STEP: Final = (0.93, 0.06)
"""Speed of a kernel in a step relative to alone, and its standard deviation (log): steady clocks
are lower, caches are not warm."""
_MIXED_OF_A_HEAD: Final = 0.4
"""Slowness of reading the cache in a step that also prefills, for each query head of a KV head.

The kernel for single tokens multiplies a group's query heads as rows of one tile; FlashAttention
2's kernel for prompts has a tile for each of them, one row of it in use. Set on first halves of
vLLM's published runs on RTX PRO 6000: 1.45 in groups of 4 (llama-3.1-8b), 3.3 in groups of 8
(qwen3-32b); qwen3-30b-a3b, which did not set it, says 4.2."""
_LARGEST_GROUP: Final = 8
"""Larger groups were not measured."""
_PACKING: Final = ("h100", "h200", "gh200", "b200", "gb200", "b300", "gb300")
"""Devices on which vLLM runs FlashAttention 3 or 4, which pack groups in both cases
(``get_flash_attn_version``). No such run was measured: groups of 4 stand for them."""
_USUAL_GROUP: Final = 4


def step_priors(
    model: ModelSpec, vector: F64, hardware: str, *, has_link: bool
) -> dict[str, ParameterPrior]:
    """Prior of each parameter in a step, from the fit ``vector`` to kernels alone."""
    fitted = parameters_of(vector)
    ratio, uncertainty = _IN_A_STEP
    n_small = _N_SMALL + (_N_SMALL_EXPERTS if model.moe is not None else 0)
    small_s = n_small * _SMALL_KERNEL_S * model.n_layers
    alone = "kernels alone, slowed as in a step"
    table = {
        "launch_s": (
            5e-3,
            0.7,
            "what vLLM's host does between steps, mostly hidden behind the device",
        ),
        "weight_bytes_per_s": (ratio * fitted.weight_bytes_per_s, uncertainty, alone),
        "kv_bytes_per_s": (ratio * fitted.kv_bytes_per_s, 2 * uncertainty, alone),
        "matmul_flop_per_s": (ratio * fitted.matmul_flop_per_s, 2 * uncertainty, alone),
        "attention_flop_per_s": (ratio * fitted.attention_flop_per_s, 0.3, alone),
        "per_sequence_s": (5e-6, 1.0, "sampling and bookkeeping of a request"),
        "link_bytes_per_s": (
            fitted.link_bytes_per_s,
            0.5 if has_link else 0.0,
            "all-reduce alone; where the devices sit is not known",
        ),
        "message_s": (fitted.message_s, 0.7 if has_link else 0.0, "small all-reduces"),
        "floor_s": (
            fitted.floor_s + small_s,
            0.5,
            f"{n_small} small kernels a layer beside what the tables show",
        ),
        "prefill_ratio": (1.0, 0.0, "a prefill is launched like a decode step"),
        "overlap_ratio": (fitted.overlap_ratio, 0.0, "host runs ahead"),
        "blend_ratio": (fitted.blend_ratio, 0.1, "kernels"),
        "mixed_kv_ratio": (
            _mixed_ratio(model, hardware),
            0.5,
            "one attention kernel for prompts and single tokens suits prompts",
        ),
    }
    parameters = {
        name: ParameterPrior(mean_ratio=math.log(value), sd_ratio=sd, why=why)
        for name, (value, sd, why) in table.items()
    }
    return parameters | {
        "sag_ratio": ParameterPrior(mean_ratio=fitted.sag_ratio, sd_ratio=0.05, why="kernels")
    }


def _mixed_ratio(model: ModelSpec, hardware: str) -> float:
    n_heads = model.attention.n_heads / model.attention.n_kv_heads
    group = _USUAL_GROUP if hardware.startswith(_PACKING) else min(n_heads, _LARGEST_GROUP)
    return max(1.0, _MIXED_OF_A_HEAD * group)


def prior_parameter(name: str, prior: ParameterPrior) -> FittedParameter:
    """A parameter of the prior, with the prior's interval."""
    estimate = parameter_estimate(
        name, prior.mean_ratio, prior.sd_ratio, n_samples=1, method=prior.why
    )
    if prior.sd_ratio == 0:
        estimate = replace(estimate, low=None, high=None)
    informed_by = information_source(prior.sd_ratio, prior.sd_ratio)
    return FittedParameter(name=name, estimate=estimate, informed_by=informed_by)
