"""Does a config.json become the model it describes, and does a broken one get one clear error?"""

import json
from pathlib import Path

import pytest

from inferometer.errors import SpecError
from inferometer.inputs.catalog import find_model
from inferometer.inputs.config_families import FAMILIES
from inferometer.inputs.model_config import model_from_config, read_model_config
from inferometer.perfmodel.kv_cache import kv_bytes_per_token, state_bytes
from inferometer.perfmodel.weights import (
    n_active_parameters,
    n_parameters,
)

CASES = json.loads((Path(__file__).parent / "small_configs.json").read_text())
LLAMA = CASES["llama"][0] | {"model_type": "llama"}


def read(config):
    return model_from_config(config, where="config.json", model_id="m")


def test_every_family_has_a_case():
    assert set(CASES) == set(FAMILIES)


@pytest.mark.parametrize(
    ("model_type", "index"),
    [(name, index) for name, cases in CASES.items() for index in range(len(cases))],
)
def test_every_family_is_read(model_type, index):
    model = read(CASES[model_type][index] | {"model_type": model_type})
    assert model.architecture == model_type
    assert (model.n_layers, model.hidden_size, model.vocab_size) == (4, 64, 500)
    assert model.attention.n_heads == 4 or not model.n_attention_layers
    assert model.note == FAMILIES[model_type].note
    assert model.source.kind == "config"


def test_gemma3_nested_in_a_multimodal_configuration_with_what_its_files_leave_out():
    # The published gemma-3-4b text_config names five fields; the rest are the class's.
    config = {
        "model_type": "gemma3",
        "torch_dtype": "bfloat16",
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
        "vision_config": {"hidden_size": 1152},
    }
    model = read(config)
    assert (model.attention.n_heads, model.attention.n_kv_heads, model.attention.head_dim) == (
        8,
        4,
        256,
    )
    assert (model.vocab_size, model.tie_word_embeddings, model.checkpoint_dtype) == (
        262_208,
        True,
        "bfloat16",
    )
    assert (model.attention.sliding_window_tokens, model.attention.full_attention_every) == (
        1024,
        6,
    )


def test_a_window_that_the_file_turns_off():
    mistral = CASES["mistral"][0] | {"model_type": "mistral"}
    assert read(mistral).attention.sliding_window_tokens == 4096
    assert read(mistral | {"sliding_window": None}).attention.sliding_window_tokens is None


def test_which_layers_slide():
    switched = CASES["qwen2"][1] | {"model_type": "qwen2"}
    assert read(switched).attention.n_full_attention_layers == 2
    assert read(switched | {"use_sliding_window": False}).attention.sliding_window_tokens is None
    listed = CASES["gemma2"][0] | {"model_type": "gemma2"}
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"]
    assert read(listed | {"layer_types": kinds}).attention.n_full_attention_layers == 1
    assert (
        read(listed | {"layer_types": ["full_attention"] * 4}).attention.sliding_window_tokens
        is None
    )
    assert (
        read(listed | {"layer_types": ["sliding_attention"] * 4}).attention.full_attention_every
        is None
    )
    with pytest.raises(SpecError, match="layer_types has 2 entries"):
        read(listed | {"layer_types": ["full_attention"] * 2})


@pytest.mark.parametrize(
    ("fields", "dtype"),
    [
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float16"}, "float16"),
        ({"quantization_config": {"quant_method": "fp8"}}, "float8"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "int4"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "int8"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "float4"),
        ({"quantization_config": {"quant_method": "somethingelse"}}, None),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, None),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}, "float8"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, "float4"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}}, "int4"),
        (
            {
                "quantization_config": {
                    "quant_method": "quark",
                    "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}},
                }
            },
            "float8",
        ),
        ({}, None),
    ],
)
def test_the_format_of_the_checkpoint(fields, dtype):
    """Quantised weights of a format that nothing here knows are not taken as of 16 bits in silence."""
    model = read(LLAMA | fields)
    assert model.checkpoint_dtype == dtype
    is_unknown = dtype is None and "quantization_config" in fields
    assert ("is not known here" in (model.note or "")) == is_unknown


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": None}, "'num_hidden_layers' is missing"),
        ({"hidden_size": 0}, "hidden_size = 0"),
        ({"hidden_size": "64"}, "hidden_size = '64'"),
        ({"hidden_size": True}, "hidden_size = True"),
        ({"hidden_size": 65}, "hidden_size = 65 is no multiple"),
        ({"vocab_size": -1}, "vocab_size = -1"),
        ({"num_key_value_heads": 3}, "no multiple of n_kv_heads = 3"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes'"),
        ({"model_type": 7}, "model_type = 7"),
        ({"model_type": None}, "'model_type' is missing"),
    ],
)
def test_missing_and_impossible_fields_are_named(change, message):
    with pytest.raises(SpecError, match=message) as caught:
        read(LLAMA | change)
    assert caught.value.where == "config.json"
    assert caught.value.allowed


def test_a_familys_own_names_are_used_in_errors():
    with pytest.raises(SpecError, match="field 'n_layer' is missing"):
        read({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_positions": 10, "vocab_size": 5})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "bert"}, "an encoder"),
        (LLAMA | {"model_type": "esm"}, "an encoder"),
        (LLAMA | {"model_type": "next", "architectures": ["NextForMaskedLM"]}, "an encoder"),
        (
            LLAMA | {"model_type": "next", "architectures": ["NextModel"], "is_decoder": False},
            "an encoder",
        ),
        (LLAMA | {"model_type": "newcomer", "mamba_d_state": 16}, "here .field 'mamba_d_state'"),
    ],
)
def test_models_that_are_no_decoders_are_refused(config, message):
    with pytest.raises(SpecError, match=message):
        read(config)


def test_experts_that_are_more_than_there_are():
    config = CASES["mixtral"][0] | {"model_type": "mixtral", "num_experts_per_tok": 9}
    with pytest.raises(SpecError, match="num_experts_per_tok = 9") as caught:
        read(config)
    assert caught.value.allowed == "at most num_local_experts = 8"


def test_an_unknown_type_with_the_fields_of_llama_is_read_with_a_note():
    model = read(LLAMA | {"model_type": "newllama"})
    assert model.architecture == "newllama"
    assert "newllama" in (model.note or "")
    moe = read(
        LLAMA
        | {
            "model_type": "newmoe",
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
        }
    )
    assert moe.moe is not None
    assert moe.moe.intermediate_size == 32
    with pytest.raises(SpecError, match="is missing"):
        read({"model_type": "alien"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", 2**31 - 1),
        ("num_attention_heads", 10**9),
        ("vocab_size", 2**63),
        ("hidden_size", 10**4000),
        ("vocab_size", 1e300),
    ],
)
def test_counts_are_bounded(field, value):
    with pytest.raises(SpecError, match=field) as caught:
        model_from_config(LLAMA | {field: value}, where="here", model_id="x")
    assert "up to" in caught.value.allowed or isinstance(value, float)
    assert len(str(caught.value)) < 300


def test_a_name_of_a_family_is_short():
    with pytest.raises(SpecError, match="model_type") as caught:
        model_from_config(LLAMA | {"model_type": "x" * 140_000}, where="here", model_id="x")
    assert len(str(caught.value)) < 500


def test_files(tmp_path):
    folder = tmp_path / "tiny-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    model = read_model_config(folder)
    assert model == read_model_config(folder / "config.json")
    assert model.model_id == "tiny-llama"
    assert model.source.where == "tiny-llama/config.json", (
        "the record must not say where this machine keeps it"
    )


def test_a_file_of_another_name_and_one_with_an_infinity(tmp_path):
    """Nemotron's files hold ``Infinity``, as Python's JSON writes it."""
    file = tmp_path / "tiny-llama.json"
    file.write_text(json.dumps(LLAMA | {"time_step_limit": [0.0, float("inf")]}))
    assert "Infinity" in file.read_text()
    assert read_model_config(file).model_id == "tiny-llama"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1]", b"\xff\xfe{}", b'{"model_type": "llama"', b'{"a": ' + b"[" * 10_000],
)
def test_a_broken_file_is_one_clear_error(tmp_path, content):
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(
        SpecError, match=r"the configuration is (damaged|empty|in UTF-16)|nested more than 64 deep"
    ) as caught:
        read_model_config(file)
    assert caught.value.where == str(file)
    with pytest.raises(SpecError, match="cannot be read"):
        read_model_config(tmp_path / "nothing.json")


def test_a_model_of_next_month_is_read_by_its_fields():
    """Unknown names with fields that are understood get a typed architecture, and a note that says so."""
    sparse = CASES["glm_moe_dsa"][0] | {"model_type": "glm6"}
    model = read(sparse)
    known = read(sparse | {"model_type": "glm_moe_dsa"})
    assert (model.mla, model.indexer) == (known.mla, known.indexer)
    assert model.moe.n_experts == 8
    assert "'glm6' is not known here" in model.note
    assert "latent, top-k, a mixture of experts" in model.note
    hybrid = CASES["qwen3_5_moe_text"][0] | {"model_type": "qwen4", "attn_output_gate": True}
    model = read(hybrid)
    known = read(hybrid | {"model_type": "qwen3_5_moe_text"})
    assert model.recurrent == known.recurrent
    assert (model.n_attention_layers, model.attention.has_output_gate) == (1, True)
    assert "gated linear, three such layers to one full (assumed)" in model.note


@pytest.mark.parametrize(
    ("field", "value"),
    [("sparse_attention_config", {}), ("linear_attn_config", {}), ("mamba_num_heads", 64)],
)
def test_layers_of_unknown_kinds_are_named(field, value):
    with pytest.raises(SpecError, match=f"not known here .field '{field}'") as refused:
        read(LLAMA | {"model_type": "newer", field: value})
    assert "inferometer load URL --model MODEL" in refused.value.try_


@pytest.mark.parametrize("ratios", [[0, 4, 128], [0, 4, 128, 7], "all", [0, 4, 128, [4]]])
def test_compressed_attention_states_each_layer(ratios):
    config = CASES["deepseek_v4"][0] | {"model_type": "deepseek_v4", "compress_ratios": ratios}
    with pytest.raises(SpecError, match="compress_ratios"):
        read(config)


def test_llama_4_counts_its_shared_expert_and_its_dense_layers():
    """The published 109 B and 400 B, less the vision tower."""
    scout, maverick = find_model("llama-4-scout"), find_model("llama-4-maverick")
    assert n_parameters(scout) == pytest.approx(107.8e9, rel=1e-3)
    assert n_parameters(maverick) == pytest.approx(400.7e9, rel=1e-3)
    assert n_active_parameters(maverick) == pytest.approx(16.2e9, rel=0.01)
    listed = CASES["llama4_text"][0] | {
        "model_type": "llama4",
        "layer_types": ["chunked_attention"] * 3 + ["full_attention"],
    }
    assert read(listed).attention.full_attention_every == 4


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # Counts of transformers' own class, built from the same fields on the meta device.
        ({"hidden_act": "relu2"}, 8_030_261_248 - 32 * 4096 * 14336),
        ({"model_type": "bitnet", "hidden_act": "relu2"}, 8_030_261_248),
        ({"hidden_act": "silu"}, 8_030_261_248),
    ],
)
def test_the_activation_says_whether_an_unknown_mlp_has_a_gate(changes, expected):
    llama = {
        "model_type": "newcomer",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
    }
    assert n_parameters(read(llama | changes)) == expected


def test_experts_in_the_words_of_ernie():
    """baidu/ERNIE-4.5-21B-A3B: its class has 21,825,437,888 parameters."""
    model = read(
        {
            "model_type": "ernie4_5_moe",
            "num_hidden_layers": 28,
            "hidden_size": 2560,
            "num_attention_heads": 20,
            "num_key_value_heads": 4,
            "intermediate_size": 12288,
            "moe_intermediate_size": 1536,
            "moe_k": 6,
            "moe_num_experts": 64,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "vocab_size": 103424,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
        }
    )
    assert n_parameters(model) == 21_825_437_888
    assert (model.moe.n_experts_per_token, model.moe.n_shared_experts) == (6, 2)


def test_falcon_has_one_kv_head_whatever_its_file_says():
    falcon = CASES["falcon"][0] | {"model_type": "falcon", "new_decoder_architecture": False}
    for said in ({}, {"num_kv_heads": 4}):
        assert read(falcon | {"multi_query": True} | said).attention.n_kv_heads == 1
    assert read(falcon | {"multi_query": False, "num_kv_heads": 2}).attention.n_kv_heads == 2


def test_a_window_of_0_is_none():
    qwen = CASES["qwen2_moe"][0] | {"model_type": "qwen2_moe", "sliding_window": 0}
    assert read(qwen).attention.sliding_window_tokens is None


def test_deepseek_v4_as_transformers_writes_it_is_the_published_one():
    published = CASES["deepseek_v4"][0] | {"model_type": "deepseek_v4"}
    kinds = {
        0: "sliding_attention",
        4: "compressed_sparse_attention",
        128: "heavily_compressed_attention",
    }
    ratios = published["compress_ratios"][: published["num_hidden_layers"]]
    n_hashed = published.get("num_hash_layers", 0)
    written = {
        k: v for k, v in published.items() if k not in {"compress_ratios", "num_hash_layers"}
    }
    written["layer_types"] = [kinds[one] for one in ratios]
    written["mlp_layer_types"] = ["hash_moe"] * n_hashed + ["moe"] * (len(ratios) - n_hashed)
    assert read(written) == read(published)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"layer_types": ["hybrid"] * 4}, "layers of a kind that is not known"),
        ({"layer_types": ["linear_attention"] * 4}, "layers of a kind that is not known"),
        ({"block_configs": [{"attention": {"no_op": True}}] * 4}, "block_configs has an entry"),
        ({"type_vocab_size": 2}, "is an encoder"),
    ],
)
def test_an_unknown_model_with_layers_of_another_kind_is_refused(fields, what):
    with pytest.raises(SpecError, match=what):
        read(LLAMA | {"model_type": "newcomer"} | fields)


def test_fields_that_give_layers_another_shape_are_named():
    odd = {"swa_head_dim": 32, "num_global_key_value_heads": 2, "hidden_size_per_layer_input": 8}
    note = read(LLAMA | {"model_type": "newcomer"} | odd).note
    assert all(name in note for name in odd)
    assert "not read" not in read(LLAMA | {"model_type": "newcomer", "global_head_dim": None}).note


@pytest.mark.parametrize(
    ("quantised", "is_noted"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}, True),
        ({"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, True),
        ({"quant_method": "fp8", "kv_cache_scheme": None}, False),
        ({"quant_method": "awq", "bits": 4}, False),
    ],
)
def test_a_checkpoint_with_a_cache_of_8_bits_says_so(quantised, is_noted):
    note = read(LLAMA | {"quantization_config": quantised}).note
    assert (note is not None and "--kv-dtype float8" in note) == is_noted


def test_the_tower_of_a_multimodal_file_is_named():
    nested = {"model_type": "seer", "text_config": LLAMA, "vision_config": {"hidden_size": 64}}
    assert read(nested).note == "vision_config is not counted: its weights come on top"
    assert read(nested | {"vision_config": None}).note is None


@pytest.mark.parametrize(
    "fields",
    [{"hidden_act": ["relu2"]}, {"quantization_config": {"quant_method": "gptq", "bits": [4]}}],
)
def test_a_list_for_a_word_is_read_as_nothing_that_is_known(fields):
    plain = LLAMA | {"model_type": "next_month"}
    assert n_parameters(read(plain | fields)) == n_parameters(read(plain))


MINIMAX = {
    "model_type": "minimax_m1",
    "num_hidden_layers": 80,
    "hidden_size": 6144,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 9216,
    "num_local_experts": 32,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 0,
    "vocab_size": 200064,
    "max_position_embeddings": 10240000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def test_minimax_attends_only_in_the_layers_that_its_list_says():
    """MiniMax-M1: the published 456 B and 45.9 B, KV in 10 of 80 layers, a state in the others."""
    model = read(MINIMAX | {"attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10})
    assert model.note is None
    assert n_parameters(model) / 1e9 == pytest.approx(456, rel=1e-3)
    assert n_active_parameters(model) / 1e9 == pytest.approx(45.9, rel=0.03)
    assert kv_bytes_per_token(model, "bfloat16") == 10 * 2 * 8 * 128 * 2
    assert state_bytes(model, "bfloat16") == 70 * 64 * 128 * 128 * 2
    kinds = (["linear_attention"] * 7 + ["full_attention"]) * 10
    assert read(MINIMAX | {"model_type": "minimax", "layer_types": kinds}) == model
    with pytest.raises(SpecError, match="attn_type_list has 3 entries"):
        read(MINIMAX | {"attn_type_list": [0, 1, 1]})
    with pytest.raises(SpecError, match="attn_type_list has 80 entries"):
        read(MINIMAX | {"attn_type_list": [2] * 80})


@pytest.mark.parametrize("model_type", ["newcomer", "minimax_m2"])
def test_linear_layers_of_unknown_sizes_are_refused(model_type):
    config = CASES["minimax_m2"][0] | {"model_type": model_type}
    assert read(config | {"attn_type_list": [1, 1, 1, 1]}).recurrent is None
    with pytest.raises(SpecError, match="'attn_type_list'"):
        read(config | {"attn_type_list": [0, 0, 0, 1]})


def test_ring_linear_is_refused_for_its_groups_of_layers():
    with pytest.raises(SpecError, match="'layer_group_size'"):
        read(CASES["qwen3_moe"][0] | {"model_type": "bailing_moe_linear", "layer_group_size": 8})


def test_granite_4_without_state_space_layers_is_the_dense_model_that_it_is():
    """ibm-granite/granite-4.0-micro has 3,402,836,480 parameters by its class of transformers."""
    granite = {
        "model_type": "granitemoehybrid",
        "hidden_size": 2560,
        "intermediate_size": 8192,
        "shared_intermediate_size": 8192,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "layer_types": ["attention"] * 40,
        "mamba_d_state": 256,
        "mamba_n_heads": 128,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "vocab_size": 100352,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    }
    model = read(granite)
    assert (n_parameters(model), model.moe, model.note) == (3_402_836_480, None, None)
    with pytest.raises(SpecError, match="no field says which layers attend"):
        read(granite | {"layer_types": None})
    with pytest.raises(SpecError, match="has no layer that attends"):
        read(granite | {"layer_types": ["mamba"] * 40})
    with pytest.raises(SpecError, match="layer_types has 40 entries"):
        read(granite | {"layer_types": ["hyena"] * 40})


GRANITE_4_H_SMALL = {
    "model_type": "granitemoehybrid",
    "num_hidden_layers": 40,
    "hidden_size": 4096,
    "intermediate_size": 768,
    "shared_intermediate_size": 1536,
    "num_local_experts": 72,
    "num_experts_per_tok": 10,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 100352,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "mamba_d_conv": 4,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 128,
    "layer_types": ["attention" if index in {5, 15, 25, 35} else "mamba" for index in range(40)],
}


def test_mamba_2_beside_attention():
    """Granite 4.0 H Small: 32 billion parameters, 9 active; its class of transformers has as many."""
    model = read(GRANITE_4_H_SMALL)
    assert n_parameters(model) == 32_207_337_984
    assert n_active_parameters(model) == pytest.approx(8.8e9, rel=0.01)
    assert (model.n_attention_layers, model.recurrent.n_layers) == (4, 36)
    assert kv_bytes_per_token(model, "bfloat16") == 4 * 2 * 8 * 128 * 2
    # A matrix of 64 x 128 for each of 128 heads, and three columns of the convolution's channels.
    a_layer = 128 * 64 * 128 * 2 + (8192 + 2 * 128) * 3 * 2
    assert state_bytes(model, "bfloat16") == 36 * a_layer


NEMOTRON_3_NANO = {
    "model_type": "nemotron_h",
    "num_hidden_layers": 52,
    "hidden_size": 2688,
    "intermediate_size": 1856,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "n_shared_experts": 1,
    "n_routed_experts": 128,
    "num_experts_per_tok": 6,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
    "use_conv_bias": True,
    "mamba_ssm_cache_dtype": "float32",
    "vocab_size": 131072,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}


def test_layers_that_are_one_block_alone():
    """Nemotron 3 Nano: 31.6 billion parameters, 3.2 active without the embedding, as NVIDIA states."""
    model = read(NEMOTRON_3_NANO)
    assert n_parameters(model) == pytest.approx(31.58e9, rel=1e-3)
    assert n_active_parameters(model) == pytest.approx(3.2e9, rel=0.02)
    assert (model.n_attention_layers, model.recurrent.n_layers) == (6, 23)
    assert (model.n_feed_forward_layers, model.n_expert_layers, model.n_blocks) == (23, 23, 52)
    assert kv_bytes_per_token(model, "bfloat16") == 6 * 2 * 2 * 128 * 2
    a_layer = 64 * 64 * 128 * 4 + (4096 + 2 * 8 * 128) * 3 * 2  # the state of 32 bit
    assert state_bytes(model, "bfloat16") == 23 * a_layer
    halved = read(NEMOTRON_3_NANO | {"mamba_ssm_cache_dtype": "float16"})
    assert state_bytes(halved, "bfloat16") < 0.55 * state_bytes(model, "bfloat16")
    pattern = NEMOTRON_3_NANO["hybrid_override_pattern"].replace("*", "G")
    with pytest.raises(SpecError, match="hybrid_override_pattern has 52 entries"):
        read(NEMOTRON_3_NANO | {"hybrid_override_pattern": pattern})


def test_experts_that_see_a_latent():
    """Nemotron 3 Super: 120.6 billion parameters, 12 active; routed experts see 1,024 channels."""
    pattern = (
        "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
    )
    model = read(NEMOTRON_3_NANO | {
        "num_hidden_layers": 88, "hidden_size": 4096, "hybrid_override_pattern": pattern,
        "moe_intermediate_size": 2688, "moe_shared_expert_intermediate_size": 5376,
        "moe_latent_size": 1024, "n_routed_experts": 512, "num_experts_per_tok": 22,
        "mamba_num_heads": 128,
    })  # fmt: skip
    assert n_parameters(model) == pytest.approx(120.67e9, rel=1e-3)
    assert n_active_parameters(model) == pytest.approx(12.2e9, rel=0.01)


def test_two_mixers_in_each_layer():
    """Falcon-H1: each layer attends and keeps a state; and has an MLP."""
    model = read(CASES["falcon_h1"][0] | {"model_type": "falcon_h1"})
    assert (model.n_attention_layers, model.recurrent.n_layers, model.n_blocks) == (4, 4, 12)
    assert kv_bytes_per_token(model, "bfloat16") == 4 * 2 * 2 * 16 * 2


def test_the_older_mamba_and_plain_convolutions():
    jamba = read(CASES["jamba"][0] | {"model_type": "jamba"})
    assert jamba.recurrent.kind == "mamba1"
    assert state_bytes(jamba, "bfloat16") == 3 * (128 * 8 + 128 * 3) * 2
    assert jamba.n_expert_layers == 2
    lfm = read(CASES["lfm2"][0] | {"model_type": "lfm2"})
    assert lfm.mlp.intermediate_size == 112  # two thirds of 150, in multiples of 16
    assert state_bytes(lfm, "bfloat16") == 3 * 64 * 2 * 2


def test_kimi_delta_attention_beside_latent_attention():
    """Kimi-Linear-48B-A3B: 49.1 billion parameters by its class; states of 32 bit as vLLM keeps them."""
    full = [4, 8, 12, 16, 20, 24, 27]
    kimi = CASES["kimi_linear"][0] | {
        "model_type": "kimi_linear", "num_hidden_layers": 27, "hidden_size": 2304,
        "intermediate_size": 9216, "moe_intermediate_size": 1024, "num_experts": 256,
        "num_experts_per_token": 8, "num_attention_heads": 32, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 163840,
        "max_position_embeddings": None, "model_max_length": 1048576,
        "linear_attn_config": {"full_attn_layers": full, "head_dim": 128, "num_heads": 32,
                               "short_conv_kernel_size": 4},
    }  # fmt: skip
    model = read(kimi)
    assert n_parameters(model) == pytest.approx(49_122_681_728)
    assert n_active_parameters(model) == pytest.approx(3.1e9, rel=0.01)
    assert model.max_position_tokens == 1048576
    assert kv_bytes_per_token(model, "bfloat16") == 7 * 576 * 2
    assert state_bytes(model, "bfloat16") == 20 * (32 * 128 * 128 * 4 + 3 * 4096 * 3 * 2)
    gated = kimi | {"mla_use_output_gate": True}
    gated["linear_attn_config"] = kimi["linear_attn_config"] | {"use_full_rank_gate": True}
    more = n_parameters(read(gated)) - n_parameters(model)
    assert more == 7 * 2304 * 4096 + 20 * (2304 * 4096 - 128 * (2304 + 4096))


@pytest.mark.parametrize(
    ("stated", "n_expected"),
    [
        # Vicuna-7B with 64 rows more for the images' tokens, and Mistral-7B: their classes' counts.
        ({"model_type": "llama", "vocab_size": 32064}, 6_738_415_616 + 2 * 64 * 4096),
        ({"model_type": "mistral", "sliding_window": None}, 7_241_732_096),
    ],
)
def test_a_nested_llama_leaves_its_sizes_to_its_class(stated, n_expected):
    nested = {"model_type": "llava", "text_config": stated, "vision_config": {"hidden_size": 1024}}
    assert n_parameters(read(nested)) == n_expected
    with pytest.raises(SpecError, match="is missing"):
        read(stated)


def test_a_state_of_linear_attention_that_no_field_states_is_of_the_models_own_format():
    """vLLM's log of Qwen3-Next has blocks of 544 tokens: 16-bit states; of float32 they were 1056."""
    hybrid = CASES["qwen3_next"][0] | {"model_type": "qwen3_next", "mamba_ssm_dtype": None}
    assert read(hybrid).recurrent.state_dtype == "bfloat16"
    assert read(hybrid | {"mamba_ssm_dtype": "float32"}).recurrent.state_dtype == "float32"


@pytest.mark.parametrize(
    ("outer", "inner", "family"),
    [
        ("qwen2_5_vl", "qwen2_5_vl_text", "qwen2"),
        ("qwen3_vl", "qwen3_vl_text", "qwen3"),
        ("qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_moe"),
    ],
)
def test_the_language_model_of_qwens_multimodal_files(outer, inner, family):
    text = CASES[family][0]
    nested = {"model_type": outer, "text_config": text | {"model_type": inner}}
    plain = read(text | {"model_type": family})
    model = read(nested | {"vision_config": {"depth": 2}})
    assert n_parameters(model) == n_parameters(plain)
    assert (model.architecture, model.note) == (
        family, "vision_config is not counted: its weights come on top"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("scaling", "factor"),
    [
        ({"type": "dynamic", "factor": 2.0}, 2),  # InternLM2.5: 65,536 of 32,768
        ({"rope_type": "linear", "factor": 4}, 4),  # DeepSeek Coder
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 1),
        ({"rope_type": "llama3", "factor": 8.0}, 1),
        ({"rope_type": "linear", "factor": None}, 1),
        (None, 1),
    ],
)
def test_the_longest_context_is_the_one_that_vllm_derives(scaling, factor):
    plain = read(LLAMA).max_position_tokens
    for name in ("rope_scaling", "rope_parameters"):
        assert read(LLAMA | {name: scaling}).max_position_tokens == factor * plain
    gemma = CASES["gemma3_text"][0] | {"model_type": "gemma3_text", "rope_scaling": scaling}
    assert read(gemma).max_position_tokens == gemma["max_position_embeddings"]


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config"])
def test_the_language_model_of_a_multimodal_file_is_found_by_any_of_its_keys(key):
    """InternVL writes llm_config, DeepSeek-VL2 language_config."""
    nested = {"model_type": "internvl_chat", key: LLAMA, "vision_config": {"depth": 2}}
    assert n_parameters(read(nested)) == n_parameters(read(LLAMA))


def test_numbers_for_each_layer_that_are_equal_are_one():
    """Hunyuan-A13B lists its experts' sizes for each layer."""
    hunyuan = CASES["hunyuan_v1_moe"][0] | {"model_type": "hunyuan_v1_moe"}
    names = "moe_intermediate_size", "moe_topk", "num_shared_expert"
    listed = hunyuan | {name: [hunyuan[name]] * 4 for name in names}
    assert n_parameters(read(listed)) == n_parameters(read(hunyuan))
    differing = read(hunyuan | {"moe_intermediate_size": [32, 64, 64, 64]})
    assert [group.moe.intermediate_size for group in differing.groups] == [32, 64]
    with pytest.raises(SpecError, match="moe_intermediate_size"):
        read(hunyuan | {"moe_intermediate_size": [32, 64, 64]})


def test_streams_of_an_unknown_model_are_refused():
    with pytest.raises(SpecError, match="'altup_num_inputs'"):
        read(LLAMA | {"model_type": "newcomer", "altup_num_inputs": 4})


def test_a_missing_field_is_named_with_the_type_that_lacks_it():
    bloom = {"model_type": "bloom", "hidden_size": 64, "n_layer": 2, "n_head": 4}
    with pytest.raises(
        SpecError, match="'vocab_size' is missing for model_type = 'bloom'"
    ) as refused:
        model_from_config(bloom, where="config.json", model_id="bloom")
    assert "add it to a copy" in refused.value.try_
