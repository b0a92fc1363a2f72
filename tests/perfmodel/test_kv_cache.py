"""Is the KV cache as large as the worked numbers say, and are windows and causality counted exactly?"""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from inferometer.inputs.catalog import find_model, load_models
from inferometer.inputs.model_config import model_from_config
from inferometer.inputs.types import EngineSpec, FullHeads, KvSharing
from inferometer.perfmodel.kv_cache import (
    KvGroups,
    cache_rows,
    decode_pairs,
    kv_block_bytes,
    kv_bytes,
    kv_bytes_per_token,
    kv_groups,
    kv_read_bytes,
    mean_cached_tokens,
    n_full_attention_layers,
    n_kv_shards,
    prefill_pairs,
    state_bytes,
    state_paging,
)
from inferometer.perfmodel.roofline import attention_flop, step_work
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


@pytest.mark.parametrize(
    ("name", "n_bytes"),
    [
        ("deepseek-r1-distill-qwen-1.5b", 28 * 2 * 2 * 128 * 2),
        ("deepseek-v2-lite", 27 * (512 + 64) * 2),
        ("devstral-2-123b", 88 * 2 * 8 * 128 * 2),
        ("devstral-small-2-24b", 40 * 2 * 8 * 128 * 2),
        ("exaone-4.0-32b", 64 * 2 * 8 * 128 * 2),
        ("falcon3-7b", 28 * 2 * 4 * 256 * 2),
        # Full layers have heads of 512; the last 20 and 18 layers have no cache of their own.
        ("gemma-4-e2b", (12 * 256 + 3 * 512) * 2 * 1 * 2),
        ("gemma-4-e4b", (20 * 256 + 4 * 512) * 2 * 2 * 2),
        ("gemma-4-12b", (40 * 8 * 256 + 8 * 1 * 512) * 2 * 2),
        ("glm-4.5-air", 46 * 2 * 8 * 128 * 2),
        ("glm-4.7", 92 * 2 * 8 * 128 * 2),
        ("glm-4.7-flash", 47 * (512 + 64) * 2),
        ("granite-4.0-h-tiny", 4 * 2 * 4 * 128 * 2),  # one layer of ten attends
        ("granite-4.0-h-small", 4 * 2 * 8 * 128 * 2),
        ("kimi-k2.7-code", 61 * (512 + 64) * 2),
        ("lfm2-1.2b", 6 * 2 * 8 * 64 * 2),
        ("lfm2-2.6b", 8 * 2 * 8 * 64 * 2),
        ("minimax-m3", 60 * 2 * 4 * 128 * 2 + 57 * 128 * 2),  # keys of the index in 57 layers
        ("ministral-3-3b", 26 * 2 * 8 * 128 * 2),
        ("ministral-3-8b", 34 * 2 * 8 * 128 * 2),
        ("mistral-nemo-12b", 40 * 2 * 8 * 128 * 2),
        ("nemotron-3.5-lightning-30b-a3b", 6 * 2 * 2 * 128 * 2),
        ("olmo-3-7b", 32 * 2 * 32 * 128 * 2),
        ("olmo-3.1-32b", 64 * 2 * 8 * 128 * 2),
        ("phi-3.5-mini", 32 * 2 * 32 * 96 * 2),
        ("phi-4-reasoning", 40 * 2 * 10 * 128 * 2),
        ("qwen3-coder-30b-a3b", 48 * 2 * 4 * 128 * 2),
        ("qwen3.5-4b", 8 * 2 * 4 * 256 * 2),  # one layer of four attends
        ("qwen3.8-27b", 16 * 2 * 4 * 256 * 2),
        ("smollm3-3b", 36 * 2 * 4 * 128 * 2),
    ],
)
def test_a_token_of_the_newer_models_takes_what_their_heads_make(name, n_bytes):
    """Layers that attend, keys and values, KV heads, their size, two bytes; or a latent's row."""
    assert kv_bytes_per_token(find_model(name), "bfloat16") == n_bytes


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


def test_top_k_attention_keeps_all_latents_and_reads_2048_of_them():
    model = find_model("glm-5")  # 78 layers: 512 + 64 numbers, and a key of 128 in 8 bit + scale
    assert kv_bytes_per_token(model, "bfloat16") == 78 * (576 * 2 + 132)
    assert kv_bytes(model, "bfloat16", context_tokens=9000) == 9000 * 78 * (576 * 2 + 132)
    shape = decode_shape(batch_size=3, context_tokens=9000)
    latents, keys = 2048 * 576 * 2, 9000 * 132
    assert kv_read_bytes(model, "bfloat16", shape) == 3 * 78 * (latents + keys)
    short = decode_shape(batch_size=3, context_tokens=1000)
    assert kv_read_bytes(model, "bfloat16", short) == 3 * 1000 * 78 * (576 * 2 + 132)


def test_top_k_attention_of_a_prompt_by_counting_its_pairs():
    model = find_model("glm-5")  # 64 heads absorbed: 576 for keys, 512 for values; 32 heads of 128
    seen = sum(min(position, 2048) for position in range(1, 5001))
    scored = sum(range(1, 5001))
    expected = 78 * (seen * 64 * 2 * (576 + 512) + scored * 32 * 2 * 128)
    assert attention_flop(model, prefill_shape(batch_size=1, prompt_tokens=5000)) == expected


def test_compressed_attention_keeps_a_window_and_blocks():
    """DeepSeek-V4-Pro: 61 windows of 128, 30 layers of blocks of 4, of which 1,024 are read, 31 of 128."""
    model, n_tokens = find_model("deepseek-v4-pro"), 8192
    window, fine, coarse = 61 * 128 * 512, 30 * n_tokens // 4, 31 * n_tokens // 128 * 512
    keys = fine * 128 * 8.25 / 8
    assert kv_bytes(model, "bfloat16", context_tokens=n_tokens) == (
        2 * (window + fine * 512 + coarse) + keys
    )
    shape = decode_shape(batch_size=2, context_tokens=n_tokens)
    read = 2 * (window + 30 * 1024 * 512 + coarse) + keys
    assert kv_read_bytes(model, "bfloat16", shape) == 2 * read
    pairs = 61 * 128 + 30 * 1024 + 31 * n_tokens / 128
    scores = 30 * n_tokens / 4 * 64 * 128 * 2
    assert attention_flop(model, shape) == 2 * (pairs * 128 * 512 * 4 + scores)


def test_linear_attention_keeps_a_state_of_constant_size():
    model = find_model("qwen3.5-397b-a17b")  # 15 of 60 layers attend, with two heads of 256
    state = 64 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 64 * 128) * 2
    assert state_bytes(model, "bfloat16") == 45 * state
    assert kv_bytes_per_token(model, "bfloat16") == 15 * 2 * 2 * 256 * 2
    engine = EngineSpec(dtype="bfloat16", tensor_parallel_size=2)
    work = step_work(model, engine, decode_shape(batch_size=5, context_tokens=700))
    assert work.kv_read_bytes == 5 * (700 * 15 * 2 * 2 * 256 * 2 + 2 * 45 * state) / 2


def total_pairs(model, shape, count):
    return sum(count(rows, shape) for rows in cache_rows(model))


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
    assert total_pairs(model, shape, prefill_pairs) == pytest.approx(
        batch_size * count_pairs(model, new_tokens=new_tokens, cached_tokens=cached_tokens)
    )
    assert mean_cached_tokens(shape) == pytest.approx(cached_tokens, abs=1e-6)


WHOLE = [model for model in MODELS if model.indexer is None and model.attention.kv_sharing is None]
"""Those whose decoding requests read all that they keep, and each of it once."""


@given(st.sampled_from(WHOLE), st.integers(1, 64), st.integers(1, 20_000))
def test_decode_reads_what_the_cache_holds(model, batch_size, context_tokens):
    shape = decode_shape(batch_size=batch_size, context_tokens=context_tokens)
    assert kv_read_bytes(model, "bfloat16", shape) == pytest.approx(
        batch_size * kv_bytes(model, "bfloat16", context_tokens=context_tokens)
    )


@given(st.sampled_from(MODELS), st.integers(1, 50_000))
def test_cache_grows_with_context_and_never_faster_than_per_token(model, context_tokens):
    now = kv_bytes(model, "bfloat16", context_tokens=context_tokens)
    later = kv_bytes(model, "bfloat16", context_tokens=context_tokens + 1)
    assert 0 <= later - now <= kv_bytes_per_token(model, "bfloat16")


def test_an_empty_half_of_a_step_is_no_work():
    model = find_model("gemma-3-1b")
    assert total_pairs(model, decode_shape(batch_size=4, context_tokens=100), prefill_pairs) == 0
    assert total_pairs(model, prefill_shape(batch_size=4, prompt_tokens=100), decode_pairs) == 0


def test_cache_is_split_over_kv_heads_at_most_and_never_for_latents():
    engine = EngineSpec(tensor_parallel_size=16)
    assert n_kv_shards(find_model("llama-2-70b"), engine) == 8
    assert n_kv_shards(find_model("deepseek-v3"), engine) == 1


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("gemma-3-1b", KvGroups(4, 6, 1, 512)),
        ("gpt-oss-20b", KvGroups(12, 1, 1, 128)),
        ("mistral-7b-v0.1", KvGroups(32, 1, 0, 4096)),
        ("llama-3.1-8b", KvGroups(32, 0, 1, None)),
        ("deepseek-v3", KvGroups(61, 0, 1, None)),
    ],
)
def test_groups_of_layers(name, groups):
    """What vLLM makes of each: ``tests/simulate/test_vllm_twin.py`` asks it."""
    assert kv_groups(find_model(name)) == groups


def test_kinds_of_almost_equal_numbers_of_layers_are_padded():
    """As gpt-oss-20b with one more full layer: 12 and 13 make groups of 13."""
    model = find_model("gpt-oss-20b")
    attention = replace(model.attention, full_attention_every=None, n_full_attention_layers=13)
    model = replace(model, n_layers=25, attention=attention)
    assert kv_groups(model) == KvGroups(13, 1, 1, 128)


def test_a_block_of_a_group_is_as_much_smaller():
    model = find_model("gemma-3-27b")
    whole = kv_block_bytes(model, "bfloat16", block_tokens=16)
    of_group = kv_block_bytes(model, "bfloat16", block_tokens=16, is_grouped=True)
    assert whole == 16 * kv_bytes_per_token(model, "bfloat16")
    assert of_group * 62 == whole * 10


def with_full_heads(model, **fields):
    return replace(model, attention=replace(model.attention, full=FullHeads(**fields)))


# Sliding layers of gemma-3-27b have 16 KV heads of 128: 4096 numbers; 10 of its 62 are full.
@pytest.mark.parametrize(
    ("full", "groups", "block_layers"),
    [
        ({"n_kv_heads": 16, "head_dim": 256}, KvGroups(10, 6, 2, 1024), 10 * 4096),
        ({"n_kv_heads": 4, "head_dim": 256}, KvGroups(10, 12, 1, 1024), 10 * 2048),
        ({"n_kv_heads": 8, "head_dim": 160}, KvGroups(10, 6, 1, 1024), 10 * 4096),
    ],
)
def test_layers_of_more_bytes_take_more_blocks_or_the_others_are_padded(full, groups, block_layers):
    """As vLLM 0.32's ``unify_kv_cache_spec_page_size`` makes pages of one size.

    It makes the blocks of the smaller kind twice as long where sizes divide (as many bytes for the
    same tokens), and pads them (2560 to 4096 numbers) where they do not.
    """
    model = with_full_heads(find_model("gemma-3-27b"), **full)
    assert kv_groups(model) == groups
    n_bytes = kv_block_bytes(model, "bfloat16", block_tokens=16, is_grouped=True)
    assert n_bytes == 16 * block_layers * 2


def test_the_heads_of_full_layers_alone_change_what_these_layers_read_and_compute():
    plain = find_model("gemma-3-27b")
    model = with_full_heads(plain, n_kv_heads=4, head_dim=512, value_head_dim=256)
    n_full, n_sliding, n_heads = 10, 52, plain.attention.n_heads
    shape = decode_shape(batch_size=1, context_tokens=8192)
    rows = 8192 * n_full * 4 * (512 + 256) + 1024 * n_sliding * 16 * 256
    assert kv_read_bytes(model, "bfloat16", shape) == 2 * rows
    flop = 8192 * n_full * 2 * n_heads * (512 + 256) + 1024 * n_sliding * 2 * n_heads * 256
    assert attention_flop(model, shape) == flop
    assert kv_bytes(model, "bfloat16", context_tokens=8192) == 2 * rows


def test_shared_layers_read_and_compute_but_keep_nothing():
    plain = find_model("gemma-3-27b")
    heads = replace(plain.attention, kv_sharing=KvSharing(n_layers=12, n_full_layers=2))
    shared, shape = replace(plain, attention=heads), decode_shape(batch_size=3, context_tokens=4000)
    assert attention_flop(shared, shape) == attention_flop(plain, shape)
    assert kv_read_bytes(shared, "bfloat16", shape) == kv_read_bytes(plain, "bfloat16", shape)
    of_layers = kv_bytes_per_token(plain, "bfloat16") // 62
    assert kv_bytes_per_token(shared, "bfloat16") == 50 * of_layers
    assert kv_groups(shared) == KvGroups(8, 6, 1, 1024)
    of_group = kv_block_bytes(shared, "bfloat16", block_tokens=16, is_grouped=True)
    assert of_group == 8 * 16 * of_layers


def test_the_cache_is_split_over_as_many_devices_as_the_layers_of_fewest_kv_heads_allow():
    model = with_full_heads(find_model("gemma-3-27b"), n_kv_heads=4, head_dim=512)
    engine = EngineSpec(dtype="bfloat16", tensor_parallel_size=8)
    assert n_kv_shards(model, engine) == 4
    assert n_kv_shards(find_model("gemma-3-27b"), engine) == 8


NEMOTRON_NANO_9B = {
    "model_type": "nemotron_h",
    "hidden_size": 4480,
    "intermediate_size": 15680,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 131072,
    "max_position_embeddings": 131072,
    "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
    "ssm_state_size": 128,
    "conv_kernel": 4,
    "n_groups": 8,
    "mamba_num_heads": 128,
    "mamba_head_dim": 80,
}


@pytest.mark.parametrize(
    ("model", "tokens", "n_blocks"),
    [
        # vLLM's logs: "Setting attention block size to N tokens".
        (find_model("qwen3-next-80b-a3b"), 544, 3),
        (find_model("qwen3.5-35b-a3b"), 1056, 3),
        # vllm-project/vllm issue 24280, where the state was of 16 bit: 4 and 27 layers.
        (
            model_from_config(
                NEMOTRON_NANO_9B | {"mamba_ssm_cache_dtype": "bfloat16"}, where="m", model_id="m"
            ),
            672,
            7,
        ),
    ],
)
def test_pages_of_states_are_as_long_as_vllm_makes_them(model, tokens, n_blocks):
    paging = state_paging(model, EngineSpec(dtype="bfloat16"), "bfloat16", block_tokens=16)
    assert (paging.block_tokens, paging.n_blocks, paging.fraction) == (tokens, n_blocks, 1)
    # Two devices halve both pages; keys of 8 bit are half as large, and blocks twice as long.
    two = EngineSpec(dtype="bfloat16", tensor_parallel_size=2)
    assert state_paging(model, two, "bfloat16", block_tokens=16).block_tokens == tokens
    longer = state_paging(model, two, "float8", block_tokens=16).block_tokens
    assert longer == pytest.approx(2 * tokens, abs=16)


def test_who_has_no_pages_of_states():
    engine = EngineSpec(dtype="bfloat16")
    for name in ("llama-3.1-8b", "gemma-3-27b", "deepseek-v3.2"):
        assert state_paging(find_model(name), engine, "bfloat16", block_tokens=16) is None
    latent = state_paging(find_model("kimi-k3"), engine, "bfloat16", block_tokens=16)
    assert latent.block_tokens % 128 == 0
    assert latent.n_blocks == 3  # 24 layers attend, 69 keep a state
