"""Do FLOP and bytes of a step come out as worked by hand?"""

import pytest
from hypothesis import given, strategies as st

from inferometer.inputs.catalog import find_model, load_models
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.kv_cache import kv_bytes_per_token
from inferometer.perfmodel.matrices import linears
from inferometer.perfmodel.roofline import (
    attention_flop,
    logits_bytes,
    matmul_flop_per_row,
    step_work,
)
from inferometer.perfmodel.types import BatchShape, decode_shape, prefill_shape
from inferometer.perfmodel.weights import n_active_parameters

MODELS = load_models()
BF16 = EngineSpec(dtype="bfloat16")
DIVISIBLE = [model for model in MODELS if model.attention.n_heads % 2 == 0]


def test_full_prefill_logits_of_qwen3b_are_9_27_gib():
    size_bytes = logits_bytes(find_model("qwen2.5-3b"), "bfloat16", batch_size=128, n_positions=256)
    assert size_bytes == 128 * 256 * 151_936 * 2
    assert round(size_bytes / 2**30, 2) == 9.27


def test_qwen3b_decode_step_by_hand():
    work = step_work(
        find_model("qwen2.5-3b"), BF16, decode_shape(batch_size=4, context_tokens=1000)
    )
    weights_in_layers = 36 * (2 * 2048 * 2048 + 2 * 2048 * 256 + 3 * 2048 * 11008)
    assert work.matmul_flop == 4 * 2 * weights_in_layers
    assert work.attention_flop == 36 * 4 * 16 * 128 * 4 * 1000
    assert work.logits_flop == 4 * 2 * 151_936 * 2048
    assert work.kv_read_bytes == 4 * 1000 * 36_864
    assert work.kv_write_bytes == 4 * 36_864
    assert (
        work.weight_bytes == 2 * 3_085_938_688
    )  # tied: the head is the embedding, so all of it is read
    per_layer = (2048 + 2048) + (2048 + 512) + (2048 + 2048) + (2048 + 2 * 11008) + (11008 + 2048)
    assert work.activation_bytes == 2 * 4 * (36 * per_layer + 151_936)
    assert work.link_bytes == 0
    assert work.n_link_messages == 0


def test_prefill_asks_for_the_last_position_only():
    model = find_model("qwen2.5-3b")
    work = step_work(model, BF16, prefill_shape(batch_size=2, prompt_tokens=100))
    assert work.logits_flop == 2 * 2 * 151_936 * 2048
    assert work.attention_flop == 36 * 4 * 16 * 128 * 2 * (100 * 101 // 2)


def test_decode_flop_are_two_per_active_weight():
    for name in ("llama-3.1-8b", "mixtral-8x7b"):
        model = find_model(name)
        work = step_work(model, BF16, decode_shape(batch_size=1, context_tokens=1))
        assert work.matmul_flop + work.logits_flop == pytest.approx(
            2 * n_active_parameters(model), rel=1e-3
        )  # norms multiply nothing


def test_latent_attention_is_absorbed_in_decode_and_expanded_in_prefill():
    model = find_model("deepseek-v3")
    decode = attention_flop(model, decode_shape(batch_size=1, context_tokens=1000))
    assert decode == 61 * 1000 * 2 * 128 * (512 + 64 + 512)
    prefill = attention_flop(model, prefill_shape(batch_size=1, prompt_tokens=1000))
    assert prefill == 61 * 500_500 * 2 * 128 * (192 + 128)


@given(st.sampled_from(MODELS), st.integers(1, 256), st.integers(1, 8192))
def test_work_grows_with_batch_and_context(model, batch_size, context_tokens):
    here = step_work(
        model, BF16, decode_shape(batch_size=batch_size, context_tokens=context_tokens)
    )
    more_sequences = step_work(
        model, BF16, decode_shape(batch_size=batch_size + 1, context_tokens=context_tokens)
    )
    longer = step_work(
        model, BF16, decode_shape(batch_size=batch_size, context_tokens=context_tokens + 1)
    )
    assert more_sequences.total_flop > here.total_flop
    assert more_sequences.memory_bytes > here.memory_bytes
    assert more_sequences.weight_bytes >= here.weight_bytes
    assert longer.attention_flop >= here.attention_flop
    assert longer.weight_bytes == here.weight_bytes
    assert longer.matmul_flop == here.matmul_flop


@given(st.sampled_from(DIVISIBLE), st.integers(1, 64), st.integers(1, 2048))
def test_two_devices_share_the_flop(model, batch_size, context_tokens):
    shape = decode_shape(batch_size=batch_size, context_tokens=context_tokens)
    one = step_work(model, BF16, shape)
    two = step_work(
        model, EngineSpec(engine="vllm", dtype="bfloat16", tensor_parallel_size=2), shape
    )
    copied = sum(
        2.0 * part.n_in * part.n_out * part.n_active_copies * part.n_layers
        for part in linears(model)
        if part.split == "none" or (part.split == "kv_heads" and part.n_kv_heads == 1)
    )
    assert 2 * two.matmul_flop == pytest.approx(one.matmul_flop + copied * batch_size)
    assert 2 * two.attention_flop == pytest.approx(one.attention_flop)
    assert 2 * two.logits_flop == pytest.approx(one.logits_flop)
    assert two.kv_read_bytes <= one.kv_read_bytes
    assert two.link_bytes > 0


@given(st.integers(1, 32), st.integers(2, 2000), st.data())
def test_a_prompt_in_two_chunks_costs_the_same_flop(batch_size, prompt_tokens, data):
    model = find_model("qwen3-8b")
    first = data.draw(st.integers(1, prompt_tokens - 1))
    whole = step_work(
        model, BF16, prefill_shape(batch_size=batch_size, prompt_tokens=prompt_tokens)
    )
    head = step_work(model, BF16, prefill_shape(batch_size=batch_size, prompt_tokens=first))
    tail = step_work(
        model,
        BF16,
        prefill_shape(batch_size=batch_size, prompt_tokens=prompt_tokens, cached_tokens=first),
    )
    assert head.matmul_flop + tail.matmul_flop == pytest.approx(whole.matmul_flop)
    assert head.attention_flop + tail.attention_flop == pytest.approx(whole.attention_flop)


def test_a_chunk_that_ends_no_prompt_needs_no_head():
    model = find_model("llama-2-7b")
    shape = BatchShape(
        n_prefill_requests=1,
        n_decode_requests=0,
        prefill_tokens=512,
        prefill_context_product_tokens2=512 * 513 // 2,
        decode_context_tokens=0,
        n_logit_positions=0,
    )
    work = step_work(model, BF16, shape)
    assert work.logits_flop == 0
    assert work.weight_bytes == 2 * (6_738_415_616 - 2 * 32000 * 4096)


def test_a_smaller_cache_format_halves_only_the_cache():
    model = find_model("llama-3.1-8b")
    shape = decode_shape(batch_size=8, context_tokens=1024)
    plain, small = (
        step_work(model, BF16, shape),
        step_work(model, EngineSpec(dtype="bfloat16", kv_cache_dtype="float8"), shape),
    )
    assert (
        small.kv_read_bytes
        == plain.kv_read_bytes / 2
        == 8 * 1024 * kv_bytes_per_token(model, "bfloat16") / 2
    )
    assert small.weight_bytes == plain.weight_bytes


def test_flop_per_row_of_llama_7b():
    assert matmul_flop_per_row(find_model("llama-2-7b")) == 2 * 32 * (
        4 * 4096 * 4096 + 3 * 4096 * 11008
    )
