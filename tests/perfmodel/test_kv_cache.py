"""Is the KV cache as large as the worked numbers say, and are windows and causality counted exactly?"""

import pytest
from hypothesis import given, strategies as st

from inferometer.inputs.catalog import find_model, load_models
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.kv_cache import (
    decode_pairs,
    kv_bytes,
    kv_bytes_per_token,
    kv_read_token_layers,
    mean_cached_tokens,
    n_full_attention_layers,
    n_kv_shards,
    prefill_pairs,
)
from inferometer.perfmodel.types import decode_shape, prefill_shape

GIB = 2**30
MODELS = load_models()


def test_qwen3b_takes_36864_bytes_a_token_and_its_batch_3_375_gib():
    model = find_model("qwen2.5-3b")
    assert kv_bytes_per_token(model, "bfloat16") == 36_864
    assert 128 * kv_bytes(model, "bfloat16", context_tokens=768) == 3.375 * GIB


@pytest.mark.parametrize(("batch_size", "gib"), [(1, 0.3125), (16, 5), (32, 10), (64, 20)])
def test_llama2_70b_as_published(batch_size, gib):
    model = find_model("llama-2-70b")
    assert batch_size * kv_bytes(model, "float16", context_tokens=1024) == gib * GIB
    assert batch_size * kv_bytes(model, "int8", context_tokens=1024) == gib / 2 * GIB
    assert batch_size * kv_bytes(model, "float8", context_tokens=1024) == gib / 2 * GIB


def test_latent_attention_keeps_one_row_of_576():
    assert kv_bytes_per_token(find_model("deepseek-v3"), "bfloat16") == 61 * (512 + 64) * 2


def test_full_layers_of_each_pattern():
    assert n_full_attention_layers(find_model("gemma-2-2b")) == 13
    assert n_full_attention_layers(find_model("gemma-3-4b")) == 5
    assert n_full_attention_layers(find_model("gpt-oss-20b")) == 12
    assert n_full_attention_layers(find_model("phi-3-mini-4k")) == 0


def test_windows_stop_growing():
    model = find_model("mistral-7b-v0.1")
    assert kv_bytes(model, "bfloat16", context_tokens=10_000) == kv_bytes(
        model, "bfloat16", context_tokens=4096
    )
    gemma = find_model("gemma-3-1b")  # 26 layers, 4 of them full, window 512
    assert (
        kv_bytes(gemma, "bfloat16", context_tokens=2000) == (4 * 2000 + 22 * 512) * 2 * 1 * 256 * 2
    )


def count_pairs(model, *, new_tokens, cached_tokens):
    window = model.attention.sliding_window_tokens or 10**9
    n_full = n_full_attention_layers(model)
    pairs = 0
    for position in range(cached_tokens + 1, cached_tokens + new_tokens + 1):
        pairs += n_full * position + (model.n_layers - n_full) * min(position, window)
    return pairs


@given(
    st.sampled_from(["gemma-3-1b", "gpt-oss-20b", "phi-3-mini-4k", "qwen2.5-0.5b"]),
    st.integers(1, 700),
    st.integers(0, 900),
    st.integers(1, 3),
)
def test_prefill_pairs_equal_a_count_of_every_pair(name, new_tokens, cached_tokens, batch_size):
    model = find_model(name)
    shape = prefill_shape(
        batch_size=batch_size, prompt_tokens=new_tokens + cached_tokens, cached_tokens=cached_tokens
    )
    assert prefill_pairs(model, shape) == pytest.approx(
        batch_size * count_pairs(model, new_tokens=new_tokens, cached_tokens=cached_tokens)
    )
    assert mean_cached_tokens(shape) == pytest.approx(cached_tokens, abs=1e-6)


@given(st.sampled_from(MODELS), st.integers(1, 64), st.integers(1, 20_000))
def test_decode_reads_what_the_cache_holds(model, batch_size, context_tokens):
    shape = decode_shape(batch_size=batch_size, context_tokens=context_tokens)
    rows = kv_read_token_layers(model, shape)
    assert rows == decode_pairs(model, shape)
    assert rows * kv_bytes_per_token(model, "bfloat16") / model.n_layers == pytest.approx(
        batch_size * kv_bytes(model, "bfloat16", context_tokens=context_tokens)
    )


@given(st.sampled_from(MODELS), st.integers(1, 50_000))
def test_cache_grows_with_context_and_never_faster_than_per_token(model, context_tokens):
    now = kv_bytes(model, "bfloat16", context_tokens=context_tokens)
    later = kv_bytes(model, "bfloat16", context_tokens=context_tokens + 1)
    assert 0 <= later - now <= kv_bytes_per_token(model, "bfloat16")


def test_an_empty_half_of_a_step_is_no_work():
    model = find_model("gemma-3-1b")
    assert prefill_pairs(model, decode_shape(batch_size=4, context_tokens=100)) == 0
    assert decode_pairs(model, prefill_shape(batch_size=4, prompt_tokens=100)) == 0


def test_cache_is_split_over_kv_heads_at_most_and_never_for_latents():
    engine = EngineSpec(tensor_parallel_size=16)
    assert n_kv_shards(find_model("llama-2-70b"), engine) == 8
    assert n_kv_shards(find_model("deepseek-v3"), engine) == 1
