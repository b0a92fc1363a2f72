"""In which format is each matrix of a quantised checkpoint counted?"""

import json
from pathlib import Path

import pytest

from inferometer.errors import SpecError
from inferometer.inputs.catalog import find_model
from inferometer.inputs.model_config import model_from_config, read_model_config
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.matrices import linears
from inferometer.perfmodel.weights import linear_bits, step_weight_bytes, weight_bytes

CASES = json.loads((Path(__file__).parent / "small_configs.json").read_text())
LLAMA = CASES["llama"][0] | {"model_type": "llama"}
QWEN = CASES["qwen3_moe"][0] | {"model_type": "qwen3_moe"}
DEEPSEEK_V4 = CASES["deepseek_v4"][0] | {"model_type": "deepseek_v4"}
INT4, FLOAT8, FLOAT4 = 4.15625, 8 + 32 / 128**2, 4.25


def read(config):
    return model_from_config(config, where="config.json", model_id="m")


def bits_of(model):
    """Bits for each matrix, scales included, where an engine serves the checkpoint as it is."""
    engine = EngineSpec(dtype="bfloat16", quantization=model.checkpoint_dtype)
    return {part.name: linear_bits(part, engine) for part in linears(model)}


def group(bits, kind, *targets):
    weights = {"num_bits": bits, "type": kind}
    return {"weights": weights} | ({"targets": list(targets)} if targets else {})


def grouped(*groups, ignore=()):
    named = {f"group_{index}": one for index, one in enumerate(groups)}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": named,
        "ignore": ["lm_head", *ignore],
    }


def test_deepseek_v4_stores_routed_experts_in_4_bit():
    stated = {"quantization_config": {"quant_method": "fp8"}, "expert_dtype": "fp4"}
    model = read(DEEPSEEK_V4 | stated)
    bits = bits_of(model)
    assert model.checkpoint_dtype == "float8"
    assert (bits["experts_up"], bits["experts_down"]) == (FLOAT4, FLOAT4)
    assert (bits["query_down"], bits["shared_up"], bits["router"]) == (FLOAT8, FLOAT8, 16)
    assert bits_of(read(DEEPSEEK_V4 | stated | {"expert_dtype": "fp8"}))["experts_up"] == FLOAT8
    odd = read(DEEPSEEK_V4 | stated | {"expert_dtype": "q7"})
    assert "expert_dtype = 'q7' is not known here: counted as float8" in odd.note
    unquantised = read(DEEPSEEK_V4 | {"expert_dtype": "fp4"})
    assert "without a quantization_config" in unquantised.note


@pytest.mark.parametrize(
    ("name", "gb"),
    # 277.0 and 1,547.4 billion weights of routed experts at 4.25 bit; the rest mostly at 8.
    [("deepseek-v4-flash", 155.6), ("deepseek-v4-pro", 850.0)],
)
def test_deepseek_v4_of_the_catalogue_is_as_large_as_its_files(name, gb):
    model = find_model(name)
    engine = EngineSpec(dtype="bfloat16", quantization="float8")
    assert weight_bytes(model, engine) / 1e9 == pytest.approx(gb, rel=0.01)


def test_another_format_that_somebody_asks_for_holds_for_all_matrices():
    model = find_model("deepseek-v4-flash")
    engine = EngineSpec(dtype="bfloat16", quantization="int8")
    by_name = {part.name: linear_bits(part, engine) for part in linears(model)}
    assert by_name["experts_up"] == by_name["query_up"] == 8.125


def test_an_older_key_is_read_where_the_usual_one_is_missing():
    older = {"compression_config": grouped(group(4, "int", "Linear"))}
    assert read(LLAMA | older).checkpoint_dtype == "int4"
    nested = {"model_type": "seer", "text_config": LLAMA} | older
    assert read(nested).checkpoint_dtype == "int4"
    usual = {"quantization_config": {"quant_method": "fp8"}}
    assert read(LLAMA | older | usual).checkpoint_dtype == "float8"


DOWN = group(8, "float", "re:.*down_proj")


@pytest.mark.parametrize(
    "groups",
    [
        (DOWN, group(4, "int", "re:.*(q|k|v|o|gate|up)_proj")),
        (group(4, "int", "re:.*(q|k|v|o|gate|up)_proj"), DOWN),
        (DOWN, group(4, "int", "Linear")),
        (group(4, "int", "Linear"), DOWN),
    ],
)
def test_each_matrix_counts_by_the_group_that_targets_it(groups):
    model = read(LLAMA | {"quantization_config": grouped(*groups)})
    bits = bits_of(model)
    assert (model.checkpoint_dtype, model.note) == ("int4", None)
    assert bits.pop("mlp_down") == FLOAT8
    assert set(bits.values()) == {INT4}


def test_two_groups_that_target_the_same_matrix_count_as_the_wider():
    both = group(4, "int", "re:.*mlp.*"), group(8, "float", "re:.*_proj")
    for groups in (both, both[::-1]):
        assert set(bits_of(read(LLAMA | {"quantization_config": grouped(*groups)})).values()) == {
            FLOAT8
        }


def test_groups_that_differ_by_layer_count_as_most_do_with_a_note():
    first = group(8, "float", "re:.*layers.0.mlp.down_proj")
    for groups in ((first, group(4, "int", "Linear")), (group(4, "int", "Linear"), first)):
        model = read(LLAMA | {"quantization_config": grouped(*groups)})
        assert set(bits_of(model).values()) == {INT4}
        assert model.note == (
            "1 of 4 matrices of mlp down are in float8 in the checkpoint: counted as in int4"
        )


def test_deepseek_v4_in_two_formats_by_its_own_names():
    """As RedHatAI/DeepSeek-V4-Flash-NVFP4-FP8 states it."""
    attention = group(8, "float", "re:.*attn.*(fused_wqa_wkv|wq_b|wo_a|wo_b)$")
    stated = grouped(attention, group(4, "float", "re:.*ffn.*(gate|up|down)_proj$"))
    model = read(DEEPSEEK_V4 | {"quantization_config": stated, "expert_dtype": "fp4"})
    bits = bits_of(model)
    assert (model.checkpoint_dtype, model.note) == ("float4", None)
    assert {bits["experts_up"], bits["shared_down"]} == {FLOAT4}
    names = ("query_down", "query_up", "key_value", "attention_out_grouped", "attention_out")
    assert {bits[name] for name in names} == {FLOAT8}
    assert bits["compress_fine"] == 16


EVERY = [f"model.layers.{index}.self_attn.{one}_proj" for index in range(4) for one in "qkvo"]


@pytest.mark.parametrize("config", [QWEN, LLAMA])
@pytest.mark.parametrize(
    "stated",
    [
        grouped(group(4, "int", "Linear"), ignore=["re:.*self_attn.*", "re:.*mlp.gate$"]),
        grouped(group(4, "int"), ignore=EVERY),
        {"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["self_attn", "mlp.gate"]},
        {"quant_method": "gptq", "bits": 4, "modules_to_not_convert": ["model.layers.*.self_attn"]},
        {"quant_method": "gptq", "bits": 4, "dynamic": {"-:.*self_attn.*": {}}},
        {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ", "exclude_modules": ["*self_attn*"]},
    ],
)
def test_attention_that_a_checkpoint_leaves_in_16_bit(config, stated):
    """However the tool lists it; `mlp.gate` is the router and no `gate_proj`."""
    model = read(config | {"quantization_config": stated})
    bits = bits_of(model)
    assert (model.checkpoint_dtype, model.note) == ("int4", None)
    assert {bits.pop(name) for name in ("query", "key_value", "attention_out")} == {16}
    bits.pop("router", None)
    assert set(bits.values()) == {INT4}


def test_attention_in_16_bit_beside_experts_and_shared_experts():
    """Kimi-K2.5 stores int4 experts, as compressed-tensors states it; modelopt's NVFP4 is alike."""
    mixture = CASES["deepseek_v3"][0] | {"model_type": "deepseek_v3"}
    for kind, expected in (("int", INT4), ("float", FLOAT4)):
        stated = grouped(group(4, kind), ignore=["re:.*self_attn.*"])
        bits = bits_of(read(mixture | {"quantization_config": stated}))
        assert {bits[name] for name in bits if "query" in name or "key_value" in name} == {16}
        assert {bits["attention_out"], bits["router"]} == {16}
        assert {bits[name] for name in bits if "experts" in name or "shared" in name} == {expected}


@pytest.mark.parametrize("key", ["ignore", "modules_to_not_convert"])
def test_one_matrix_of_one_layer_does_not_stand_for_all_attention(key):
    stated = {"quant_method": "awq", "bits": 4, key: ["lm_head", "model.layers.0.self_attn.q_proj"]}
    model = read(QWEN | {"quantization_config": stated})
    assert model.stored_apart == ()
    assert model.note == (
        "1 of 4 matrices of query are in 16 bit in the checkpoint: counted as in int4"
    )


def test_layers_of_full_attention_among_linear_ones_are_all_of_attention():
    hybrid = CASES["qwen3_next"][0] | {"model_type": "qwen3_next"}
    stated = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.3.self_attn"]}
    bits = bits_of(read(hybrid | {"quantization_config": stated}))
    assert (bits["query"], bits["linear_in"], bits["experts_up"]) == (16, FLOAT8, FLOAT8)


@pytest.mark.parametrize("pattern", ["re:(", "re:(.+)+x", "re:" + "a" * 2000, "re:(a*)*{"])
def test_a_pattern_that_is_none_is_named(pattern):
    model = read(LLAMA | {"quantization_config": grouped(group(4, "int"), ignore=[pattern])})
    assert model.stored_apart == ()
    assert "not read in quantization_config: ['re:" in model.note


@pytest.mark.parametrize("targets", [["re:.*c_attn"], ["re:.*c_attn", 7]])
def test_targets_of_unknown_names_count_as_the_widest_group(targets):
    groups = {"a": {"targets": targets, "weights": {"num_bits": 4, "type": "int"}}, "b": 3}
    stated = {"quant_method": "compressed-tensors", "config_groups": groups}
    model = read(LLAMA | {"quantization_config": stated})
    assert (model.checkpoint_dtype, model.stored_apart) == ("int4", ())
    assert "targets of quantization_config are not known here" in model.note


def test_a_group_of_unknown_bits_counts_as_16_with_a_note():
    groups = group(3, "int", "re:.*down_proj"), group(4, "int", "Linear")
    model = read(LLAMA | {"quantization_config": grouped(*groups)})
    assert (model.checkpoint_dtype, bits_of(model)["mlp_down"]) == ("int4", 16)
    assert "weights of 3 bits" in model.note


@pytest.mark.parametrize(
    ("stated", "part", "expected"),
    [
        # Kimi-K2.5's files are 594 GB: int4 in groups of 32, each with a scale of 16 bit.
        (grouped(group(4, "int") | {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}),
         "mlp_up", 4.5),
        (grouped({"weights": {"num_bits": 4, "type": "int", "group_size": 32, "symmetric": False}}),
         "mlp_up", 4.625),
        (grouped({"weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}), "mlp_up", 8),
        (grouped({"weights": {"num_bits": 4, "type": "float", "group_size": 16}}), "mlp_up", 4.5),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, "query", 4.5),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "query", 4.5),
        ({"quant_method": "mxfp4"}, "query", FLOAT4),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64}, "query", 4 + 20 / 64),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "query", 4),
        ({"quant_method": "awq", "bits": 4, "q_group_size": 128}, "query", INT4),
        ({"quant_method": "awq", "bits": 4, "group_size": "all"}, "query", INT4),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "query", 4.5),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
         "query", 4.127),
    ],
)  # fmt: skip
def test_scales_count_by_the_groups_that_the_file_states(stated, part, expected):
    model = read(LLAMA | {"quantization_config": stated})
    assert bits_of(model)[part] == pytest.approx(expected)
    sparse = EngineSpec(dtype="bfloat16", quantization=model.checkpoint_dtype)
    by_name = {one.name: linear_bits(one, sparse, is_sparse=True) for one in linears(model)}
    assert by_name[part] < expected
    # Somebody who asks for another format gets its usual groups.
    asked = EngineSpec(dtype="bfloat16", quantization="float8")
    assert {linear_bits(one, asked) for one in linears(model)} == {FLOAT8}


def test_experts_beside_the_mlp_have_names_of_their_own():
    """Gemma-4-26B-A4B-NVFP4 leaves `mlp*` in 16 bit and quantises `experts`."""
    gemma = next(one for one in CASES["gemma4_text"] if one.get("enable_moe_block"))
    stated = grouped(group(4, "float"), ignore=["model.layers.*.mlp*", "*router*", "*self_attn*"])
    model = read(gemma | {"model_type": "gemma4_text", "quantization_config": stated})
    bits = bits_of(model)
    assert model.note is None
    assert (bits["experts_up"], bits["shared_up"], bits["full_query"]) == (FLOAT4, 16, 16)


def test_nvfp4_experts_beside_a_method_of_8_bit():
    """nvidia/DeepSeek-V4-Flash-NVFP4: vLLM reads all but the experts in the format of the method."""
    stated = grouped(group(4, "float", "Linear"), ignore=["*.attn.*", "*.ffn.shared_experts.*"])
    stated |= {"quant_method": "fp8", "moe_quant_algo": "NVFP4", "group_size": 16}
    model = read(DEEPSEEK_V4 | {"quantization_config": stated})
    bits = bits_of(model)
    assert (model.checkpoint_dtype, bits["experts_up"], bits["query_up"]) == ("float8", 4.5, FLOAT8)


def mixed_layers():
    """As ModelOpt lists single layers of several algorithms."""
    nvfp4, fp8 = {"quant_algo": "W4A16_NVFP4", "group_size": 16}, {"quant_algo": "FP8"}
    listed = {
        f"model.layers.{index}.self_attn.{one}_proj": fp8 for index in range(4) for one in "qk"
    }
    listed |= {f"model.layers.{index}.mlp.{one}_proj": nvfp4
               for index in range(4) for one in ("gate", "up", "down")}  # fmt: skip
    return {"quant_algo": "MIXED_PRECISION", "quantized_layers": listed | {"lm_head": nvfp4}}


def test_layers_that_are_listed_singly_count_by_their_own_algorithm_and_so_does_the_head():
    model = read(LLAMA | {"quantization_config": {"quant_method": "modelopt"} | mixed_layers()})
    bits = bits_of(model)
    assert (bits["mlp_up"], bits["query"], bits["attention_out"]) == (4.5, FLOAT8, 16)
    engine = EngineSpec(dtype="bfloat16", quantization="float4")
    plain = read(LLAMA | {"quantization_config": {"quant_method": "modelopt"} | mixed_layers()
                          | {"ignore": ["lm_head"]}})  # fmt: skip
    saved_bits = 8 * (weight_bytes(plain, engine) - weight_bytes(model, engine))
    assert not model.tie_word_embeddings
    assert saved_bits == pytest.approx(11.5 * model.vocab_size * model.hidden_size)
    read_bytes = [
        step_weight_bytes(one, engine, n_rows=1, n_logit_positions=1) for one in (plain, model)
    ]
    assert 8 * (read_bytes[0] - read_bytes[1]) == pytest.approx(saved_bits)


def test_the_switch_of_gptq_for_the_head():
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    assert "head" not in dict(read(LLAMA | {"quantization_config": gptq}).stored_apart)
    switched = read(LLAMA | {"quantization_config": gptq | {"lm_head": True}})
    assert dict(switched.stored_apart) == {"head": "int4"}


def test_formats_in_a_file_beside_the_configuration(tmp_path):
    """ModelOpt before 0.31 wrote them there (nvidia/DeepSeek-V3.1-NVFP4); vLLM reads it."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    beside = tmp_path / "hf_quant_config.json"
    beside.write_text(json.dumps({"quantization": {"quant_algo": "NVFP4", "group_size": 16,
                                                   "exclude_modules": ["*self_attn*"]}}))  # fmt: skip
    model = read_model_config(tmp_path)
    assert model.checkpoint_dtype == "float4"
    assert (bits_of(model)["mlp_up"], bits_of(model)["query"]) == (4.5, 16)
    own = LLAMA | {"quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "config.json").write_text(json.dumps(own))
    assert read_model_config(tmp_path).checkpoint_dtype == "float8"
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    beside.write_text("[]")
    with pytest.raises(SpecError, match="hf_quant_config"):
        read_model_config(tmp_path)
    beside.write_text("{}")
    assert read_model_config(tmp_path).checkpoint_dtype is None
