"""Are models without attention, of Gemma 3n's kind and with fields of their own read as published?

Counts are those of the classes of transformers 5.23, built from these fields on the meta device,
or those of the published checkpoints.
"""

import json
from pathlib import Path

import pytest

from inferometer.errors import SpecError
from inferometer.inputs.model_config import model_from_config
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.kv_cache import (
    cache_rows,
    kv_bytes,
    kv_bytes_per_token,
    state_bytes,
    state_paging,
)
from inferometer.perfmodel.weights import (
    n_active_parameters,
    n_parameters,
    splits_heads,
    undivided_heads,
)

CASES = json.loads((Path(__file__).parent / "small_configs.json").read_text())


def read(config):
    return model_from_config(config, where="config.json", model_id="m")


FALCON_MAMBA_7B = {
    "model_type": "falcon_mamba",
    "num_hidden_layers": 64,
    "hidden_size": 4096,
    "intermediate_size": 8192,
    "expand": 16,  # which the stated size overrules
    "state_size": 16,
    "conv_kernel": 4,
    "time_step_rank": 256,
    "use_conv_bias": True,
    "use_bias": False,
    "tie_word_embeddings": False,
    "vocab_size": 65024,
}


def test_mamba_has_a_state_and_no_keys_and_values():
    """tiiuae/falcon-mamba-7b: 7,272,665,088 parameters in its checkpoint."""
    model = read(FALCON_MAMBA_7B)
    assert n_parameters(model) == 7_272_665_088
    assert (model.n_attention_layers, model.n_feed_forward_layers, model.n_blocks) == (0, 0, 64)
    assert kv_bytes_per_token(model, "bfloat16") == 0
    assert state_bytes(model, "bfloat16") == 64 * (8192 * 16 + 8192 * 3) * 2
    small = FALCON_MAMBA_7B | {"model_type": "mamba", "num_hidden_layers": 24, "hidden_size": 768}
    small |= {"intermediate_size": None, "expand": 2, "time_step_rank": 48, "vocab_size": 50280}
    # state-spaces/mamba-130m-hf
    assert n_parameters(read(small | {"tie_word_embeddings": None})) == 129_135_360


CODESTRAL = {
    "model_type": "mamba2",
    "num_hidden_layers": 64,
    "hidden_size": 4096,
    "num_heads": 128,
    "head_dim": 64,
    "n_groups": 8,
    "state_size": 128,
    "expand": 2,
    "vocab_size": 32768,
}


def test_mamba_2_alone():
    """mistralai/Mamba-Codestral-7B-v0.1: 7,285,403,648 parameters in its checkpoint."""
    model = read(CODESTRAL)
    assert n_parameters(model) == 7_285_403_648
    assert state_bytes(model, "bfloat16") == 64 * (128 * 64 * 128 + (8192 + 2 * 8 * 128) * 3) * 2


RECURRENT_GEMMA_2B = {
    "model_type": "recurrent_gemma",
    "num_hidden_layers": 26,
    "hidden_size": 2560,
    "lru_width": 2560,
    "num_attention_heads": 10,
    "num_key_value_heads": 1,
    "intermediate_size": 15360,
    "attention_window_size": 2048,
    "block_types": ["recurrent", "recurrent", "attention"],
    "vocab_size": 256000,
}


def test_recurrent_gemma_has_units_of_one_state_and_windows_of_attention():
    """google/recurrentgemma-2b: 2,682,862,080 parameters in its checkpoint."""
    model = read(RECURRENT_GEMMA_2B)
    assert n_parameters(model) == 2_682_862_080
    assert (model.n_attention_layers, model.recurrent.n_layers) == (8, 18)
    assert state_bytes(model, "bfloat16") == 18 * (2560 * 4 + 2560 * 3 * 2)
    assert kv_bytes_per_token(model, "bfloat16") == 8 * 2 * 256 * 2
    held = [kv_bytes(model, "bfloat16", context_tokens=n) for n in (1024, 2048, 8192)]
    assert held[0] < held[1] == held[2], "the window is all that is held"


def test_a_block_of_a_model_without_attention_is_a_request_of_any_length():
    model = read(CODESTRAL)
    paging = state_paging(model, EngineSpec(dtype="bfloat16"), "bfloat16", block_tokens=16)
    assert (paging.n_blocks, paging.block_tokens) == (0, model.max_position_tokens)
    assert "no layer attends" in paging.words


def test_a_hybrid_without_attention_is_still_refused():
    bamba = CASES["bamba"][0] | {"model_type": "bamba", "attn_layer_indices": []}
    with pytest.raises(SpecError, match="has no layer that attends"):
        read(bamba)


GEMMA_3N_E4B = {
    "model_type": "gemma3n_text",
    "hidden_size": 2048,
    "intermediate_size": [16384] * 35,
    "num_hidden_layers": 35,
    "vocab_size": 262400,
    "num_kv_shared_layers": 15,
}


def test_gemma_3n_with_its_streams_and_what_its_files_leave_out():
    """google/gemma-3n-E4B's language model: 6.84 billion, of which a token multiplies 4.5."""
    nested = {"model_type": "gemma3n", "text_config": GEMMA_3N_E4B, "vision_config": {"depth": 2}}
    model = read(nested)
    assert n_parameters(model) == 6_835_235_568
    assert n_active_parameters(model) < 4.6e9
    # 20 layers store keys and values; of them every fifth attends to the whole context.
    assert kv_bytes_per_token(model, "bfloat16") == 20 * 2 * 2 * 256 * 2
    assert model.attention.full_attention_every == 5


def test_gemma_4_unified_has_no_inputs_of_each_layer():
    """Its class has no such field: that of Gemma 4 assumes 256, two thirds more parameters."""
    text = {"model_type": "gemma4_unified_text", "hidden_size": 2304, "num_hidden_layers": 30}
    model = read({"model_type": "gemma4_unified", "text_config": text})
    assert model.per_layer_inputs is None
    assert n_parameters(model) == 3_010_758_400
    assert model.max_position_tokens == 262_144


@pytest.mark.parametrize(
    ("config", "n_expected", "kv_elements"),
    [
        (  # bigscience/bloom-7b1, whose file has the older names
            {"model_type": "bloom", "n_embed": 4096, "n_layer": 30, "num_attention_heads": 32,
             "seq_length": 2048, "vocab_size": 250880},
            7_069_016_064,
            30 * 2 * 4096,
        ),
        (  # databricks/dbrx-base
            {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40,
             "max_seq_len": 32768, "vocab_size": 100352, "tie_word_embeddings": False,
             "attn_config": {"kv_n_heads": 8, "clip_qkv": 8},
             "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}},
            131_596_523_520,
            40 * 2 * 8 * 128,
        ),
        (  # THUDM/chatglm3-6b
            {"model_type": "chatglm", "num_layers": 28, "hidden_size": 4096,
             "num_attention_heads": 32, "kv_channels": 128, "multi_query_attention": True,
             "multi_query_group_num": 2, "ffn_hidden_size": 13696, "padded_vocab_size": 65024,
             "vocab_size": 65024, "seq_length": 8192, "add_qkv_bias": True,
             "tie_word_embeddings": False},
            6_243_584_000,
            28 * 2 * 2 * 128,
        ),
        (  # THUDM/glm-4-9b-chat
            {"model_type": "chatglm", "num_layers": 40, "hidden_size": 4096,
             "num_attention_heads": 32, "kv_channels": 128, "multi_query_attention": True,
             "multi_query_group_num": 2, "ffn_hidden_size": 13696, "padded_vocab_size": 151552,
             "vocab_size": 151552, "seq_length": 131072, "add_qkv_bias": True,
             "tie_word_embeddings": False},
            9_399_951_360,
            40 * 2 * 2 * 128,
        ),
        (  # Qwen/Qwen-7B
            {"model_type": "qwen", "num_hidden_layers": 32, "hidden_size": 4096,
             "num_attention_heads": 32, "intermediate_size": 22016, "vocab_size": 151936,
             "max_position_embeddings": 32768, "seq_length": 8192, "no_bias": True,
             "tie_word_embeddings": False},
            7_721_324_544,
            32 * 2 * 4096,
        ),
        (  # EleutherAI/gpt-neo-1.3B
            {"model_type": "gpt_neo", "num_layers": 24, "hidden_size": 2048, "num_heads": 16,
             "attention_types": [[["global", "local"], 12]], "window_size": 256,
             "vocab_size": 50257, "max_position_embeddings": 2048},
            1_315_575_808,
            24 * 2 * 2048,
        ),
        (  # LGAI-EXAONE/EXAONE-3.0-7.8B-Instruct
            {"model_type": "exaone", "num_layers": 32, "hidden_size": 4096,
             "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
             "vocab_size": 102400, "max_position_embeddings": 4096, "tie_word_embeddings": False},
            7_818_448_896,
            32 * 2 * 8 * 128,
        ),
        (  # the class of Muse Glimmer with its defaults, whose queries have a gate
            {"model_type": "muse_glimmer_text", "num_hidden_layers": 52, "hidden_size": 6656,
             "intermediate_size": 19968, "num_attention_heads": 32, "num_key_value_heads": 2,
             "head_dim": 128, "vocab_size": 202048, "max_position_embeddings": 131072,
             "sliding_window": 2048, "tie_word_embeddings": False},
            27_854_780_928,
            52 * 2 * 2 * 128,
        ),
    ],
    ids=["bloom", "dbrx", "chatglm3", "glm4", "qwen", "gpt_neo", "exaone", "muse_glimmer"],
)  # fmt: skip
def test_files_with_fields_of_their_own(config, n_expected, kv_elements):
    model = read(config)
    assert (n_parameters(model), model.note) == (n_expected, None)
    assert kv_bytes_per_token(model, "bfloat16") == 2 * kv_elements


def test_minimax_m3_reads_chosen_blocks_in_all_but_the_first_layers():
    """Its language model has 426.2 billion parameters by its class; vLLM stores its keys apart."""
    dense_first = [0] * 3 + [1] * 57
    chosen = {
        "use_sparse_attention": True,
        "sparse_index_dim": 128,
        "sparse_num_index_heads": 4,
        "sparse_topk_blocks": 16,
        "sparse_block_size": 128,
        "sparse_attention_freq": dense_first,
    }
    text = {
        "model_type": "minimax_m3_text",
        "intermediate_size": 3072,
        "moe_layer_freq": dense_first,
        "sparse_attention_config": chosen,
    }
    model = read({"model_type": "minimax_m3_vl", "text_config": text})
    assert n_parameters(model) == 426_174_572_928
    # Keys and values of 4 heads in each layer, and the indexer's key, of 16 bits in any case.
    assert kv_bytes_per_token(model, "float8") == 60 * 2 * 4 * 128 + 57 * 128 * 2
    read_tokens = {rows.most_read_tokens: rows.n_layers for rows in cache_rows(model)[:2]}
    assert read_tokens == {2048: 57, None: 3}
    whole = read(text | {"sparse_attention_config": chosen | {"use_sparse_attention": False}})
    assert whole.indexer is None
    assert {rows.most_read_tokens for rows in cache_rows(whole)} == {None}


LLAMA = CASES["llama"][0] | {"model_type": "newcomer"}


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model_type": "zamba"}, "attention blocks that layers share"),
        ({"model_type": "rwkv7"}, "time mixing"),
        ({"model_type": "jetmoe"}, "experts in attention"),
        ({"model_type": "LLaDA"}, "a diffusion model"),
        ({"model_type": "clip", "text_config": LLAMA, "vision_config": {}}, "is an encoder"),
        ({"text_config": LLAMA | {"model_type": "siglip_text_model"}}, "is an encoder"),
        ({"model_type": "deepseek_v41"}, "tables of n-grams"),
        ({"engram_layer_ids": [1]}, "'engram_layer_ids'"),
        ({"local_layer_ids": [0, 1], "sliding_window_size": 64}, "'local_layer_ids'"),
        ({"H_cycles": 2}, "'H_cycles'"),
        ({"loop_num": 2}, "'loop_num'"),
        ({"ple_layer_ids": [1]}, "'ple_layer_ids'"),
        # Windows of latents, and a choice of tokens whose number no field states.
        ({"kv_lora_rank": 16, "layer_types": ["sliding_attention"] * 4}, "'layer_types'"),
        ({"layer_types": ["indexed_attention"] * 4}, "'layer_types'"),
    ],
)
def test_what_would_be_read_wrongly_is_refused(changes, what):
    with pytest.raises(SpecError, match=what) as refused:
        read(LLAMA | changes)
    assert refused.value.allowed
    assert read(LLAMA | {"ple_layer_ids": []}).note


def test_the_window_of_an_unknown_model_is_in_the_layers_that_its_fields_state():
    windowed = LLAMA | {"sliding_window": 64, "layer_types": None}
    assert read(windowed).attention.full_attention_every is None
    # As Qwen-like files write it: a window that is off.
    off = read(windowed | {"use_sliding_window": False}).attention
    assert (off.sliding_window_tokens, off.full_attention_every) == (None, 1)
    some = read(windowed | {"global_attn_every_n_layers": 2}).attention
    assert (some.sliding_window_tokens, some.full_attention_every) == (64, 2)


@pytest.mark.parametrize("name", ["num_attention_groups", "multi_query_group_num", "num_kv_heads"])
def test_the_kv_heads_of_an_unknown_model_by_any_name(name):
    """Otherwise each query head counted as a KV head: eight times Step-3.5's cache."""
    config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert read(config).attention.n_kv_heads == 4
    assert read(config | {name: 2}).attention.n_kv_heads == 2


def test_experts_in_the_words_of_step_and_moondream():
    experts = {
        "moe_num_experts": 8,
        "moe_top_k": 2,
        "moe_layers_enum": "2,3",
        "share_expert_dim": 32,
    }
    step = read(LLAMA | experts | {"moe_intermediate_size": 32}).moe
    assert (step.n_experts_per_token, step.n_dense_layers, step.n_shared_experts) == (2, 2, 1)
    moondream = {"num_local_experts": 8, "num_experts_per_tok": 2, "moe_expert_inner_dim": 48}
    moe = read(LLAMA | moondream | {"moe_start_layer": 1}).moe
    assert (moe.intermediate_size, moe.n_dense_layers) == (48, 1)
    assert read(LLAMA | {"moe_num_experts": 0}).moe is None


def test_latent_attention_and_experts_in_the_words_of_pangu():
    """Pangu Ultra MoE has 718 billion parameters; without these names it was 43, with heads' KV."""
    model = read({
        "model_type": "pangu_ultra_moe", "num_hidden_layers": 61, "hidden_size": 7680,
        "intermediate_size": 18432, "num_attention_heads": 128, "num_key_value_heads": 128,
        "vocab_size": 153600, "max_position_embeddings": 131072, "num_routed_experts": 256,
        "num_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
        "num_dense_layers": 3, "attention_kv_lora_dim": 512, "attention_q_lora_dim": 1536,
        "attention_qk_dim": 128, "attention_qk_rope_dim": 64, "attention_v_dim": 128,
        "tie_word_embeddings": False,
    })  # fmt: skip
    assert n_parameters(model) == pytest.approx(718e9, rel=0.002)
    assert kv_bytes_per_token(model, "bfloat16") == 61 * 576 * 2


TWO_KINDS = CASES["llama"][0] | {
    "model_type": "newcomer", "num_hidden_layers": 8, "hidden_size": 512, "head_dim": 64,
    "num_attention_heads": 8, "num_key_value_heads": 4, "sliding_window": 128,
    "layer_types": ["full_attention", *["sliding_attention"] * 3] * 2,
}  # fmt: skip
OTHER = "attention_other_setting"
OF_EACH = "num_attention_heads_per_layer"
SLIDING = {"attention_type": "sliding_attention", "num_attention_heads": 12, "head_dim": 64}


@pytest.mark.parametrize("own", [{OTHER: SLIDING}, {OF_EACH: [8, 12, 12, 12] * 2}])
def test_query_heads_of_sliding_layers_that_differ_are_counted(own):
    """Step 3.5 Flash: 96 beside 64, a tenth of its active parameters, which were not counted."""
    plain, model = read(TWO_KINDS), read(TWO_KINDS | own)
    more = 6 * 4 * 64 * 512 * 2  # queries and their output, of four more heads in six layers
    assert n_parameters(model) - n_parameters(plain) == more
    assert kv_bytes_per_token(model, "bfloat16") == kv_bytes_per_token(plain, "bfloat16")
    assert (model.attention.n_heads, model.attention.full.n_heads) == (12, 8)
    full, sliding = cache_rows(model)
    assert sliding.decode_flop == 1.5 * full.decode_flop
    assert "not read" not in model.note
    assert [tp for tp in range(1, 13) if splits_heads(model, tp)] == [1, 2, 4]
    assert undivided_heads(model, 6) == "8 query heads", "the sliding layers' twelve can be divided"
    assert model.attention.shape_text == "12, 4, 64; full layers 8, 4, 64"


def test_heads_of_another_size_are_named_as_not_read():
    own = {OTHER: SLIDING | {"head_dim": 32}}
    model = read(TWO_KINDS | own)
    assert n_parameters(model) == n_parameters(read(TWO_KINDS))
    assert f"not read: {OTHER}" in model.note


def test_query_heads_of_many_numbers_are_counted_layer_by_layer():
    model, plain = read(TWO_KINDS | {OF_EACH: [8, 12, 12, 16] * 2}), read(TWO_KINDS)
    more = 2 * (4 + 4 + 8) * 64 * 512 * 2  # queries and their output
    assert n_parameters(model) - n_parameters(plain) == more
    assert "not read" not in model.note
    assert [tp for tp in range(1, 13) if splits_heads(model, tp)] == [1, 2, 4]


def test_kv_heads_that_differ_between_layers_are_counted():
    """DeciLM-7B: its four heads were taken as 32."""
    config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    name = "num_key_value_heads_per_layer"
    assert read(config | {name: [2, 2, 2, 2]}).attention.n_kv_heads == 2
    differing = read(config | {name: [2, 4, 2, 2]})
    assert kv_bytes_per_token(differing, "bfloat16") == (3 * 2 + 4) * 2 * 16 * 2


def test_more_dense_layers_than_there_are_need_no_memory():
    kimi = CASES["kimi_linear"][0] | {"model_type": "kimi_linear", "mlp_layer_types": None}
    assert read(kimi | {"first_k_dense_replace": 10**9}).n_expert_layers == 0
    with pytest.raises(SpecError, match="first_k_dense_replace"):
        read(kimi | {"first_k_dense_replace": 10**30})


def test_the_thinker_of_an_omni_model_is_its_language_model():
    text = CASES["qwen2"][0] | {"model_type": "qwen2_5_omni_text"}
    thinker = {"text_config": text, "audio_config": {"d_model": 8}, "vision_config": {"depth": 2}}
    omni = {
        "model_type": "qwen2_5_omni",
        "thinker_config": thinker | {"model_type": "qwen2_5_omni_thinker"},
        "talker_config": {"hidden_size": 8},
    }
    model = read(omni)
    assert n_parameters(model) == n_parameters(read(text | {"model_type": "qwen2"}))
    assert all(name in model.note for name in ("talker_config", "audio_config", "vision_config"))
