"""Work of a step: FLOP, bytes of weights, KV cache and activations, and bytes over links.

A multiplication and an addition are two FLOP. Counted are matrix products and attention; norms,
activation functions, softmax and sampling are left out (below 1 % of the FLOP of any model of
the catalogue).
"""

from inferometer.inputs.types import DTYPE_BITS, DType, EngineSpec, ModelSpec
from inferometer.perfmodel.communication import ParallelPlan, plan_of, step_traffic
from inferometer.perfmodel.kv_cache import (
    cache_rows,
    decode_pairs,
    kv_bytes_per_token,
    kv_read_bytes,
    n_kv_shards,
    prefill_pairs,
    state_bytes,
)
from inferometer.perfmodel.types import BatchShape, StepWork
from inferometer.perfmodel.weights import (
    checked_tensor_parallel,
    head_elements,
    linears,
    n_shards,
    step_weight_bytes,
)


def step_work(
    model: ModelSpec, engine: EngineSpec, shape: BatchShape, *, plan: ParallelPlan | None = None
) -> StepWork:
    """Work of one device of the tensor-parallel group in this step.

    With pipeline parallelism the stages follow one another: the work of a step is that of one
    device after the other, so it does not shrink; only the hand-over is added.

    Example
    -------
    >>> from inferometer.perfmodel.types import decode_shape
    >>> from inferometer.inputs.catalog import find_model
    >>> shape = decode_shape(batch_size=1, context_tokens=512)
    >>> work = step_work(find_model("qwen2.5-3b"), EngineSpec(dtype="bfloat16"), shape)
    >>> work.kv_read_bytes / 512
    36864.0
    """
    plan = plan or plan_of(engine)
    n_devices = checked_tensor_parallel(model, engine)
    n_kv, n_requests = (
        n_kv_shards(model, engine),
        shape.n_prefill_requests + shape.n_decode_requests,
    )
    states = 2 * n_requests * state_bytes(model, engine.dtype) / n_devices  # read and written
    traffic = step_traffic(
        model, engine.dtype, plan, n_rows=shape.n_rows, n_logit_positions=shape.n_logit_positions
    )
    return StepWork(
        matmul_flop=matmul_flop_per_row(model, n_devices) * shape.n_rows,
        attention_flop=attention_flop(model, shape) / n_devices,
        logits_flop=2.0 * head_elements(model) * shape.n_logit_positions / n_devices,
        weight_bytes=step_weight_bytes(
            model,
            engine,
            n_rows=shape.n_rows,
            n_logit_positions=shape.n_logit_positions,
            n_sharing=plan.n_sharing,
        ),
        kv_read_bytes=kv_read_bytes(model, kv_dtype(engine), shape) / n_kv + states,
        kv_write_bytes=shape.n_rows * kv_bytes_per_token(model, kv_dtype(engine)) / n_kv,
        activation_bytes=activation_bytes(model, engine, shape),
        link_bytes=traffic.sent_bytes,
        n_link_messages=traffic.n_messages,
    )


def matmul_flop_per_row(model: ModelSpec, n_devices: int = 1) -> float:
    """FLOP of the layers' matrices for one new token on one device: 2 per weight that it uses.

    And of linear attention's state: the gated delta rule decays it, reads it with the key, adds an
    outer product, and reads it with the query, 7 FLOP for each element (arXiv 2412.06464,
    equation 10); chunks of a prompt are computed with about as many.
    """
    linear = model.recurrent
    state = 0.0 if linear is None else 7.0 * linear.n_layers * linear.state_elements / n_devices
    return state + sum(
        2.0
        * part.n_in
        * part.n_out
        * part.n_active_copies
        * part.n_layers
        / n_shards(part, model, n_devices)
        for part in linears(model)
    )


def attention_flop(model: ModelSpec, shape: BatchShape) -> float:
    """FLOP of scores and their weighted sums, causal, on all devices together."""
    return sum(
        rows.prefill_flop * prefill_pairs(rows, shape)
        + rows.decode_flop * decode_pairs(rows, shape)
        for rows in cache_rows(model)
    )


def activation_bytes(model: ModelSpec, engine: EngineSpec, shape: BatchShape) -> float:
    """Bytes of activations on one device: each matrix loads its input and stores its output once.

    Counting loads and stores of each operator is the method of arXiv 2402.16363 (LLM-Viewer).
    Fused kernels move less, unfused norms and activation functions more. Logits are stored once.
    """
    n_devices = checked_tensor_parallel(model, engine)
    per_row = sum(
        part.n_active_copies
        * part.n_layers
        * (part.n_in + part.n_out / n_shards(part, model, n_devices))
        for part in linears(model)
    )
    logits = shape.n_logit_positions * model.vocab_size / n_devices
    return (shape.n_rows * per_row + logits) * DTYPE_BITS[engine.dtype] / 8


def logits_bytes(model: ModelSpec, dtype: DType, *, batch_size: int, n_positions: int) -> int:
    """Bytes of the logits of ``n_positions`` positions of each of ``batch_size`` sequences.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_model
    >>> round(logits_bytes(find_model("qwen2.5-3b"), "bfloat16", batch_size=128, n_positions=256) / 2**30, 2)
    9.27
    """
    return batch_size * n_positions * model.vocab_size * DTYPE_BITS[dtype] // 8


def kv_dtype(engine: EngineSpec) -> DType:
    """The number format of the KV cache: ``kv_cache_dtype``, or else that of the activations."""
    return engine.kv_cache_dtype or engine.dtype
