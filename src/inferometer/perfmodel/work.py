"""Work of a step: FLOP, bytes of weights, KV cache and activations, and bytes over links.

A multiplication and an addition are two FLOP. Counted are matrix products and attention; norms,
activation functions, softmax and sampling are left out (below 1 % of the FLOP of any model of
the catalogue).
"""

from inferometer.inputs.types import DTYPE_BITS, DType, EngineSpec, ModelSpec
from inferometer.perfmodel.communication import ParallelPlan, plan_of, step_traffic
from inferometer.perfmodel.kv_cache import (
    decode_pairs,
    kv_elements_per_token_layer,
    kv_read_token_layers,
    n_kv_shards,
    prefill_pairs,
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
    >>> work = step_work(find_model("qwen2.5-3b"), EngineSpec(dtype="bfloat16"), decode_shape(batch_size=1, context_tokens=512))
    >>> work.kv_read_bytes / 512
    36864.0
    """
    plan = plan or plan_of(engine)
    n_devices = checked_tensor_parallel(model, engine)
    row_bytes = (
        kv_elements_per_token_layer(model)
        * DTYPE_BITS[kv_dtype(engine)]
        / 8
        / n_kv_shards(model, engine)
    )
    traffic = step_traffic(
        model, engine.dtype, plan, n_rows=shape.n_rows, n_logit_positions=shape.n_logit_positions
    )
    return StepWork(
        matmul_flop=matmul_flop_per_row(model, n_devices) * shape.n_rows,
        attention_flop=attention_flop(model, shape) / n_devices,
        logits_flop=2.0 * head_elements(model) * shape.n_logit_positions / n_devices,
        weight_bytes=step_weight_bytes(
            model, engine, n_rows=shape.n_rows, n_logit_positions=shape.n_logit_positions
        ),
        kv_read_bytes=kv_read_token_layers(model, shape) * row_bytes,
        kv_write_bytes=shape.n_rows * model.n_layers * row_bytes,
        activation_bytes=activation_bytes(model, engine, shape),
        link_bytes=traffic.sent_bytes,
        n_link_messages=traffic.n_messages,
    )


def matmul_flop_per_row(model: ModelSpec, n_devices: int = 1) -> float:
    """FLOP of the layers' matrices for one new token on one device: 2 per weight that it uses."""
    return sum(
        2.0
        * part.n_in
        * part.n_out
        * part.n_active_copies
        * part.n_layers
        / n_shards(part, model, n_devices)
        for part in linears(model)
    )


def attention_flop(model: ModelSpec, shape: BatchShape) -> float:
    """FLOP of scores and their weighted sums, causal, on all devices together.

    For each (query, key) pair and layer 2·n_heads·(head dim of keys + head dim of values). MLA
    in prefill expands the latent (heads of 128 + 64 and 128 in DeepSeek-V3); in decode it works
    on the latent itself, every head 512 + 64 and 512 wide (arXiv 2405.04434, weight absorption).
    """
    heads, mla = model.attention, model.mla
    if mla is None:
        return (
            4.0
            * heads.n_heads
            * heads.head_dim
            * (prefill_pairs(model, shape) + decode_pairs(model, shape))
        )
    expanded = 2.0 * heads.n_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim)
    absorbed = 2.0 * heads.n_heads * (2 * mla.kv_lora_rank + mla.qk_rope_head_dim)
    return expanded * prefill_pairs(model, shape) + absorbed * decode_pairs(model, shape)


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
