"""Does the memory budget add up, and is the largest batch the largest?"""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from inferometer.errors import SpecError
from inferometer.inputs.catalog import find_hardware, find_model, load_models
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.datasheet import logits_trap
from inferometer.perfmodel.kv_cache import kv_bytes
from inferometer.perfmodel.memory import (
    DEFAULT_UTILIZATION,
    MemoryQuestion,
    kv_blocks,
    largest_batch_size,
    memory_budget,
)
from inferometer.perfmodel.roofline import ParallelPlan
from inferometer.perfmodel.weights import weight_bytes

BF16 = EngineSpec(dtype="bfloat16")
GIB = 2**30
QUESTION = MemoryQuestion(
    model=find_model("llama-3.1-8b"),
    engine=BF16,
    hardware=find_hardware("l4"),
    context_tokens=1024,
    prompt_tokens=512,
    max_step_tokens=2048,
)
ON_H100 = replace(
    QUESTION,
    hardware=find_hardware("h100_sxm"),
    context_tokens=1,
    prompt_tokens=8192,
    max_step_tokens=8192,
)


def test_budget_by_hand():
    budget = memory_budget(QUESTION, 8)
    assert budget.total_bytes == 23_034 * 2**20
    assert budget.reserve_bytes == round(0.08 * 23_034 * 2**20 + 0.6 * GIB)
    assert budget.weight_bytes == 2 * 8_030_261_248
    assert budget.kv_bytes == 8 * 1024 * 131_072
    assert budget.activation_bytes == 2048 * (3 * 4096 + 3 * 14336) * 2
    assert budget.logits_bytes == 0, "eight sequences are sampled in the memory of activations"
    assert memory_budget(QUESTION, 512).logits_bytes == pytest.approx(
        4 * 512 * 128_256 * 4 - budget.activation_bytes
    )
    parts = (
        budget.reserve_bytes
        + budget.weight_bytes
        + budget.kv_bytes
        + budget.activation_bytes
        + budget.logits_bytes
    )
    assert budget.free_bytes == budget.total_bytes - parts


@given(
    st.sampled_from(load_models()),
    st.sampled_from(["l4", "a100_80gb_sxm", "h200_sxm"]),
    st.integers(2, 2048),
)
def test_the_largest_batch_fits_and_one_more_does_not(model, device, context_tokens):
    question = MemoryQuestion(
        model=model,
        engine=BF16,
        hardware=find_hardware(device),
        context_tokens=min(context_tokens, model.max_position_tokens),
        prompt_tokens=min(context_tokens, model.max_position_tokens),
        max_step_tokens=2048,
    )
    largest = largest_batch_size(question)
    assert largest == 0 or memory_budget(question, largest).fits
    assert not memory_budget(question, largest + 1).fits


@given(st.integers(16, 4096))
def test_less_memory_or_longer_context_never_holds_more(context_tokens):
    here = replace(QUESTION, context_tokens=context_tokens, prompt_tokens=16)
    assert largest_batch_size(
        replace(here, context_tokens=context_tokens + 64)
    ) <= largest_batch_size(here)
    assert largest_batch_size(replace(here, utilization_fraction=0.8)) <= largest_batch_size(here)
    assert largest_batch_size(replace(here, block_tokens=64)) <= largest_batch_size(here)
    smaller_cache = replace(here, engine=EngineSpec(dtype="bfloat16", kv_cache_dtype="float8"))
    assert largest_batch_size(smaller_cache) >= largest_batch_size(here)


def test_a_model_larger_than_memory_holds_nothing():
    question = replace(QUESTION, model=find_model("llama-2-70b"))
    assert largest_batch_size(question) == 0
    assert not memory_budget(question, 1).fits


def test_two_stages_hold_half_each():
    one, two = (
        memory_budget(QUESTION, 8),
        memory_budget(replace(QUESTION, plan=ParallelPlan(n_pipeline=2)), 8),
    )
    assert two.weight_bytes == weight_bytes(QUESTION.model, BF16) / 2
    assert two.kv_bytes == one.kv_bytes / 2


def test_experts_are_shared_and_nothing_else_is():
    """Qwen3-30B-A3B: 128 experts of 3 x 2048 x 768 in each of 48 layers, 16 bits each.

    A third of them is 43, where three share.
    """
    model, engine = find_model("qwen3-30b-a3b"), EngineSpec(dtype="bfloat16")
    expert_bytes = 48 * 3 * 2048 * 768 * 2
    whole_bytes = weight_bytes(model, engine)
    assert whole_bytes - weight_bytes(model, engine, n_expert_shards=2) == 64 * expert_bytes
    assert whole_bytes - weight_bytes(model, engine, n_expert_shards=3) == (128 - 43) * expert_bytes
    dense = find_model("llama-3.1-8b")
    assert weight_bytes(dense, engine, n_expert_shards=2) == weight_bytes(dense, engine)
    of_two = EngineSpec(dtype="bfloat16", tensor_parallel_size=2)
    held_bytes = weight_bytes(model, of_two) - weight_bytes(model, of_two, n_expert_shards=2)
    assert held_bytes == 64 * expert_bytes / 2


def test_the_logits_trap_of_qwen3b():
    trap = logits_trap(find_model("qwen2.5-3b"), BF16, batch_size=128, prompt_tokens=256)
    assert round(trap.all_bytes / GIB, 2) == 9.27
    assert trap.all_bytes == 256 * trap.last_bytes
    question = replace(QUESTION, has_all_logits=True, max_step_tokens=None)
    assert largest_batch_size(question) < largest_batch_size(
        replace(question, has_all_logits=False)
    )


def test_impossible_questions_are_refused():
    with pytest.raises(SpecError, match=r"memory utilization 1\.1"):
        replace(QUESTION, utilization_fraction=1.1)
    with pytest.raises(SpecError, match="200000 tokens of context"):
        replace(QUESTION, context_tokens=200_000)


@pytest.mark.parametrize(
    ("model", "hardware", "logged_gib"),
    [
        ("gpt-oss-120b", "h100_sxm", 64.38),
        ("gpt-oss-20b", "h100_sxm", 13.47),
        ("gpt-oss-120b", "a100_80gb_sxm", 65.97),
    ],
)
def test_mxfp4_experts_are_filled_up_to_whole_tiles(model, hardware, logged_gib):
    """Model weights in vLLM's logs, Triton's kernels (H100) and Marlin's (there on H100)."""
    engine = EngineSpec(engine="vllm", dtype="bfloat16", quantization="float4")
    question = MemoryQuestion(
        model=find_model(model),
        engine=engine,
        hardware=find_hardware(hardware),
        context_tokens=1024,
        prompt_tokens=512,
        max_step_tokens=2048,
    )
    assert memory_budget(question, 1).weight_bytes / 2**30 == pytest.approx(logged_gib, rel=0.01)
    split = replace(question, engine=replace(engine, tensor_parallel_size=4))
    share = memory_budget(split, 1).weight_bytes / memory_budget(question, 1).weight_bytes
    assert 0.25 < share < 0.29, "720 columns of each expert become 768"


@pytest.mark.parametrize(
    ("model", "quantization", "n_devices", "logged_gib"),
    [
        ("llama-3.1-8b", None, 1, 51.38),
        ("qwen3-0.6b", None, 1, 64.45),
        ("qwen3-32b", None, 1, 4.45),
        ("qwen3-32b", None, 2, 34.49),
        ("llama-3.3-70b", "float8", 2, 32.0),
        ("gpt-oss-20b", "float4", 1, 50.28),
    ],
)
def test_vllm_0_11_is_the_low_end(model, quantization, n_devices, logged_gib):
    """Its sampler sorts all logits when it profiles: "Available KV cache memory" in its logs, H100."""
    engine = EngineSpec(dtype="bfloat16", quantization=quantization, tensor_parallel_size=n_devices)
    question = replace(
        ON_H100, model=find_model(model), engine=engine, block_tokens=16, utilization_fraction=0.9
    )
    blocks = kv_blocks(question, "vllm", max_num_seqs=1024)
    block_gib = kv_bytes(question.model, "bfloat16", context_tokens=16) / n_devices / GIB
    buffers_gib = 0.5 * (n_devices - 1)
    assert blocks.low * block_gib + 0.8 + buffers_gib == pytest.approx(logged_gib, rel=0.035)
    assert blocks.low * block_gib < 1.01 * logged_gib < blocks.likely * block_gib
    assert blocks.likely < blocks.high


@pytest.mark.parametrize("n_devices", [2, 4, 8])
def test_a_group_of_vllm_has_buffers_on_every_device(n_devices):
    """0.25 GiB for each other device, in vLLM's logs; the high end is without them."""
    engine = EngineSpec(dtype="bfloat16", tensor_parallel_size=n_devices)
    question = replace(ON_H100, model=find_model("qwen3-32b"), engine=engine, block_tokens=16)
    block_gib = kv_bytes(question.model, "bfloat16", context_tokens=16) / n_devices / GIB
    budget = memory_budget(question, 256)
    room_gib = (budget.free_bytes + budget.kv_bytes) / GIB
    blocks = kv_blocks(question, "vllm", max_num_seqs=256)
    lacking_gib = 0.25 * (n_devices - 1)
    assert blocks.likely * block_gib == pytest.approx(room_gib - lacking_gib, abs=0.01)
    assert blocks.high * block_gib == pytest.approx(room_gib + 0.8, abs=0.01)
    assert kv_blocks(question, "static", max_num_seqs=256).likely > blocks.likely


def test_sglang_reserves_a_share_and_no_step():
    """Its log with ``mem_fraction_static`` 0.93: 16.46 GiB; other versions choose other shares."""
    engine = EngineSpec(dtype="bfloat16", quantization="float8", tensor_parallel_size=4)
    question = replace(
        ON_H100, model=find_model("qwen3-235b-a22b"), engine=engine, utilization_fraction=0.93
    )
    token_gib = kv_bytes(question.model, "bfloat16", context_tokens=1) / 4 / GIB
    given = kv_blocks(question, "sglang", max_num_seqs=256)
    assert given.likely * token_gib == pytest.approx(16.46, rel=0.02)
    usual = kv_blocks(replace(question, utilization_fraction=None), "sglang", max_num_seqs=256)
    assert usual.low < 0.6 * usual.high, "0.5.3 reserves 13 GiB of these, 0.5.18 four"


def test_tensorrt_llm_shares_what_is_free():
    question = replace(QUESTION, hardware=find_hardware("h100_sxm"), block_tokens=16)
    free = memory_budget(replace(question, utilization_fraction=1.0), 256)
    blocks = kv_blocks(question, "trtllm", max_num_seqs=256)
    block_bytes = kv_bytes(question.model, "bfloat16", context_tokens=16)
    room = 0.9 * (free.free_bytes + free.kv_bytes)
    assert blocks.likely * block_bytes == pytest.approx(room, rel=1e-4)
    assert blocks.quantile(0.0) == blocks.low < blocks.quantile(0.5) == blocks.likely
    given = kv_blocks(replace(question, utilization_fraction=0.8), "trtllm", max_num_seqs=256)
    assert given.likely * block_bytes == pytest.approx(room * 0.8 / 0.9, rel=1e-4)


@pytest.mark.parametrize("policy", ["vllm", "sglang", "trtllm"])
def test_a_given_share_is_not_taken_for_the_default(policy):
    """``--gpu-memory-utilization 0.92`` changed nothing on engines with a default of their own."""
    question = replace(ON_H100, model=find_model("qwen3-8b"), block_tokens=16)
    given, usual = (
        kv_blocks(replace(question, utilization_fraction=share), policy, max_num_seqs=256)
        for share in (DEFAULT_UTILIZATION.value, None)
    )
    assert (given == usual) is (policy == "vllm")
