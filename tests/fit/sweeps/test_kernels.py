"""Do steps composed of kernels add up, and does the closed form fitted to them find the device that made them?"""

import math
from dataclasses import replace

import numpy as np
import pytest

from inferometer.errors import ModelError
from inferometer.fit.sweeps.kernels import (
    kernel_curves,
    kernel_step_s,
    link_of,
    model_from_kernels,
    step_priors,
)
from inferometer.inputs.catalog import find_model
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.types import decode_shape, prefill_shape
from inferometer.records.imports.kernel_tables import (
    AttentionTable,
    ExpertTable,
    GemmTable,
    KernelTables,
    ReduceTable,
)

BYTES_PER_S, FLOP_PER_S, ATTENTION_FLOP_PER_S, LINK_BYTES_PER_S, MESSAGE_S = (
    1.5e12,
    4e14,
    2e14,
    4e10,
    8e-6,
)
LLAMA = find_model("llama-3.1-8b")


def engine(n_tensor=1):
    return EngineSpec(
        engine="vllm",
        mode="compiled",
        dtype="bfloat16",
        device="cuda",
        tensor_parallel_size=n_tensor,
    )


def made_tables():
    """A device whose kernels take the root of the summed squares of reading and multiplying."""
    sizes = np.array([128, 512, 1024, 2048, 4096, 8192, 16384, 65536], dtype=np.float64)
    m, n, k = (
        axis.ravel()
        for axis in np.meshgrid(
            [1, 8, 32, 64, 128, 256, 512, 1024, 2048], sizes, sizes, indexing="ij"
        )
    )
    gemm = GemmTable(
        m=m, n=n, k=k, duration_s=np.hypot(2 * n * k / BYTES_PER_S, 2 * m * n * k / FLOP_PER_S)
    )
    batch, tokens = (
        axis.ravel()
        for axis in np.meshgrid([1, 4, 16, 64, 256], [1, 512, 1024, 2048, 4096], indexing="ij")
    )
    heads = [np.full(batch.size, value, dtype=np.float64) for value in (32, 8, 128)]
    decode = AttentionTable(
        batch * 1.0, tokens * 1.0, *heads, duration_s=batch * tokens * 2 * 8 * 128 * 2 / BYTES_PER_S
    )
    long = np.array([1, 128, 256, 512, 1024, 1536, 2048], dtype=np.float64)
    heads = [np.full(long.size, value, dtype=np.float64) for value in (32, 8, 128)]
    pairs = long * (long + 1) / 2
    prefill = AttentionTable(
        np.ones(long.size), long, *heads, duration_s=4 * 32 * 128 * pairs / ATTENTION_FLOP_PER_S
    )
    size = 2.0 ** np.arange(9, 28)
    none = np.empty(0)
    return KernelTables(
        gemm=gemm,
        decode=decode,
        prefill=prefill,
        experts=ExpertTable(none, none, none, none, none, none),
        all_reduce=ReduceTable(np.full(size.size, 2.0), size, MESSAGE_S + size / LINK_BYTES_PER_S),
    )


def test_a_decode_step_adds_up():
    """Batch 1: every weight read once, and the cache."""
    tables = made_tables()
    curves = kernel_curves(LLAMA, engine(), tables)
    step_s = kernel_step_s(
        LLAMA, engine(), tables, curves, decode_shape(batch_size=1, context_tokens=1024)
    )
    layer_weights = 4096 * (6144 + 4096) + 3 * 4096 * 14336
    read_s = 2 * (32 * layer_weights + 128_256 * 4096) / BYTES_PER_S
    kv_s = 32 * 1024 * 2 * 8 * 128 * 2 / BYTES_PER_S
    assert step_s == pytest.approx(read_s + kv_s, rel=1e-3)


def test_a_prefill_adds_up():
    tables = made_tables()
    curves = kernel_curves(LLAMA, engine(), tables)
    step_s = kernel_step_s(
        LLAMA, engine(), tables, curves, prefill_shape(batch_size=1, prompt_tokens=1024)
    )
    layer_weights = 4096 * (6144 + 4096) + 3 * 4096 * 14336
    products_s = np.hypot(
        2 * 32 * layer_weights / BYTES_PER_S, 2 * 1024 * 32 * layer_weights / FLOP_PER_S
    )
    attention_s = 32 * 4 * 32 * 128 * 1024 * 1025 / 2 / ATTENTION_FLOP_PER_S
    assert step_s == pytest.approx(
        products_s + attention_s + 2 * 128_256 * 4096 / BYTES_PER_S, rel=1e-3
    )


def test_two_devices_halve_the_matrices():
    curves, halves = (kernel_curves(LLAMA, engine(n_tensor), made_tables()) for n_tensor in (1, 2))
    assert halves.layer_s == pytest.approx(curves.layer_s / 2, rel=1e-6)


def test_the_link_is_found():
    link_bytes_per_s, message_s = link_of(made_tables(), 2)
    assert link_bytes_per_s == pytest.approx(LINK_BYTES_PER_S, rel=0.01)
    assert message_s == pytest.approx(MESSAGE_S, rel=0.1)


def test_the_device_is_found():
    """Kernels in a step are believed to be 7 % slower than alone, with small kernels between them.

    A step takes a little longer.
    """
    tables = made_tables()
    curves, model = (
        kernel_curves(LLAMA, engine(), tables),
        model_from_kernels(LLAMA, engine(), tables, hardware="made"),
    )
    physical = model.physical()
    assert physical.matmul_flop_per_s == pytest.approx(0.93 * FLOP_PER_S, rel=0.06)
    assert physical.attention_flop_per_s == pytest.approx(
        0.93 * ATTENTION_FLOP_PER_S, rel=0.5
    )  # little of any step
    assert physical.kv_bytes_per_s == pytest.approx(0.93 * BYTES_PER_S, rel=0.06)
    shapes = [decode_shape(batch_size=batch, context_tokens=1024) for batch in (1, 16, 64, 256)]
    shapes += [prefill_shape(batch_size=1, prompt_tokens=tokens) for tokens in (256, 1024, 2048)]
    for shape in shapes:
        assert (
            1.0
            < model.predict(shape).duration_s.value
            / kernel_step_s(LLAMA, engine(), tables, curves, shape)
            < 1.17
        )


def test_links_are_open_only_where_there_are_some():
    alone, linked = (
        model_from_kernels(LLAMA, engine(), made_tables(), hardware="made", n_linked=n)
        for n in (1, 2)
    )
    assert "link_bytes_per_s" not in alone.free
    assert "link_bytes_per_s" in linked.free
    assert linked.physical().link_bytes_per_s == pytest.approx(LINK_BYTES_PER_S, rel=0.01)


def test_kernels_that_nobody_measured():
    with pytest.raises(ModelError, match="no attention of 32 heads, 4 KV heads"):
        model_from_kernels(find_model("qwen3-30b-a3b"), engine(), _with_experts(), hardware="made")
    with pytest.raises(ModelError, match="no experts of the sizes"):
        kernel_curves(find_model("qwen3-30b-a3b"), engine(), made_tables())
    with pytest.raises(ModelError, match="no all-reduce over 4 devices"):
        link_of(made_tables(), 4)


def _with_experts():
    columns = [
        np.array([1.0, 2048.0]),
        *(np.full(2, value, dtype=np.float64) for value in (2048, 768, 8, 128)),
        np.array([1e-4, 1e-3]),
    ]
    return made_tables()._replace(experts=ExpertTable(*columns))


def test_a_step_with_prompts_reads_the_cache_once_for_each_query_head_of_a_group():
    """FlashAttention 2 packs a group for single tokens alone; on Hopper version 3 packs it always."""
    alone = model_from_kernels(LLAMA, engine(), made_tables(), hardware="made").physical()

    def mixed(n_kv_heads, hardware):
        heads = replace(LLAMA.attention, n_kv_heads=n_kv_heads)
        model = replace(LLAMA, attention=heads)
        priors = step_priors(model, alone.vector(), hardware, has_link=False)
        return math.exp(priors["mixed_kv_ratio"].mean_ratio)

    assert mixed(8, "l40s") == pytest.approx(1.6)
    assert mixed(4, "l40s") == pytest.approx(3.2)
    assert mixed(1, "l40s") == pytest.approx(3.2), "no group larger than 8 was measured"
    assert mixed(32, "l40s") == 1
    assert mixed(4, "h100_sxm") == pytest.approx(1.6)
