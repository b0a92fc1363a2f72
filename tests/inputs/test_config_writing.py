"""Does a written configuration say the same model, to us and to transformers?"""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from inferometer.errors import SpecError
from inferometer.inputs.catalog import find_model, load_models
from inferometer.inputs.config_writing import _differences, config_from_model
from inferometer.inputs.model_config import model_from_config
from inferometer.inputs.types import AttentionSpec, MlpSpec, ModelSpec, MoeSpec, Source
from inferometer.perfmodel.kv_cache import kv_bytes, kv_bytes_per_token
from inferometer.perfmodel.weights import n_active_parameters, n_parameters

CASES = json.loads((Path(__file__).parent / "small_configs.json").read_text())
FLAT = [(name, index) for name, cases in CASES.items() for index in range(len(cases))]
MODELS = load_models()


def read(config):
    return model_from_config(config, where="here", model_id="m")


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.model_id)
def test_catalogue_models_survive_the_round_trip(model):
    config = json.loads(json.dumps(config_from_model(model, dtype="float16")))
    back = read(config)
    assert not _differences(back, model)
    assert back.checkpoint_dtype == "float16"
    assert config["architectures"]


@pytest.mark.parametrize(("model_type", "index"), FLAT)
def test_families_survive_the_round_trip(model_type, index):
    model = read(CASES[model_type][index] | {"model_type": model_type})
    assert not _differences(read(config_from_model(model)), model)


@st.composite
def models(draw):
    n_kv_heads = draw(st.integers(1, 8))
    n_layers = draw(st.integers(1, 80))
    has_experts = draw(st.booleans())
    n_experts = draw(st.integers(2, 256))
    return ModelSpec(
        model_id="m",
        architecture="mixtral"
        if has_experts
        else draw(st.sampled_from(["llama", "mistral", "granite"])),
        n_layers=n_layers,
        hidden_size=draw(st.integers(1, 512)) * 64,
        vocab_size=draw(st.integers(2, 300_000)),
        max_position_tokens=draw(st.integers(1, 1_000_000)),
        attention=AttentionSpec(
            n_heads=n_kv_heads * draw(st.integers(1, 8)),
            n_kv_heads=n_kv_heads,
            head_dim=draw(st.sampled_from([32, 64, 80, 128, 256])),
        ),
        mlp=MlpSpec(intermediate_size=draw(st.integers(1, 60_000))),
        source=Source(kind="config", where="here"),
        tie_word_embeddings=draw(st.booleans()),
        moe=MoeSpec(
            n_experts=n_experts,
            n_experts_per_token=draw(st.integers(1, n_experts)),
            intermediate_size=100,
        )
        if has_experts
        else None,
    )


@given(models())
def test_any_model_of_a_family_survives_the_round_trip(model):
    if model.moe is not None:  # Mixtral has one width for all
        model = replace(
            model, moe=replace(model.moe, intermediate_size=model.mlp.intermediate_size)
        )
    assert not _differences(read(config_from_model(model)), model)


def test_what_a_class_cannot_say_is_refused():
    model = find_model("llama-2-7b")
    with pytest.raises(SpecError, match="cannot say"):
        config_from_model(replace(model, norms_per_layer=4))
    with pytest.raises(SpecError, match="'newllama'"):
        config_from_model(replace(model, architecture="newllama"))


def built_on_meta(config):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    fields = {name: value for name, value in config.items() if name != "model_type"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers warns of its own defaults
        hf_config = transformers.AutoConfig.for_model(config["model_type"], **fields)
        with torch.device("meta"):
            return transformers.AutoModelForCausalLM.from_config(hf_config)


def count_on_meta(config):
    built = built_on_meta(config)
    # The correction of experts' scores is stored in checkpoints, but is a buffer in transformers.
    ends = ("e_score_correction_bias", "expert_bias")
    corrections = [part for name, part in built.named_buffers() if name.endswith(ends)]
    return sum(part.numel() for part in [*built.parameters(), *corrections])


# Not among the classes that transformers 5.23 builds by these names and fields.
UNBUILT = {
    "apertus", "baichuan", "bailing_moe", "bailing_moe_v2", "chatglm", "dbrx", "deepseek",
    "exaone", "glm5_next_text", "grok", "hunyuan_v1_dense", "hunyuan_v1_moe", "inkling_text", "internlm2", "internlm3", "longcat_flash",
    "minicpm", "mllama_text_model", "muse_glimmer_text", "muse_spark_text", "nanbeige", "nemotron-nas", "ouro",
    "phi3small", "qwen",
    "step3_text", "step3p5", "telechat",
}  # fmt: skip

# The classes of transformers 5.23 are Kimi Linear's, without gates and latent experts of Kimi K3, and
# Ling 3's, without the lightning attention of Ling 2.5. MiMo-V2's gives sliding layers twice as many
# KV heads, whatever the file says.
OTHERS_CLASS = {"kimi-k3", "ling-2.5-1t", "ling-2.6-1t", "mimo-v2.5-pro"}
OTHERS_CASE = ("bailing_hybrid", 1)
BUILT = [
    model
    for model in MODELS
    if model.model_id not in OTHERS_CLASS and model.architecture not in UNBUILT
]


def _built(model):
    """One of each family in the slow suite, all of them before a release."""
    first = next(one for one in BUILT if one.architecture == model.architecture)
    return pytest.param(
        model, id=model.model_id, marks=() if model is first else (pytest.mark.long,)
    )


@pytest.mark.slow
@pytest.mark.parametrize("model", [_built(model) for model in BUILT])
def test_transformers_builds_as_many_parameters(model):
    assert count_on_meta(config_from_model(model)) == n_parameters(model)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "index"), [one for one in FLAT if one[0] not in UNBUILT and one != OTHERS_CASE]
)
def test_transformers_builds_what_we_read_and_what_we_write(model_type, index):
    config = CASES[model_type][index] | {"model_type": model_type}
    model = read(config)
    assert count_on_meta(config_from_model(model)) == n_parameters(model)
    if model_type not in {"glm", "glm4", "phi3", "smollm3"} or "pad_token_id" in config:
        assert count_on_meta(config) == n_parameters(model)


def kinds(n_layers, every):
    return [
        "sliding_attention" if number % every else "full_attention"
        for number in range(1, n_layers + 1)
    ]


GEMMA4 = {
    "model_type": "gemma4_text",
    "vocab_size": 262144,
    "head_dim": 256,
    "global_head_dim": 512,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}
MIMO = {
    "model_type": "mimo_v2_flash",
    "vocab_size": 152576,
    "num_hidden_layers": 48,
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 192,
    "v_head_dim": 128,
    "sliding_window": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
}
TWO_SHAPES = {
    "gemma-4-default": {"model_type": "gemma4_text"},
    "gemma-4-31b": GEMMA4
    | {
        "num_hidden_layers": 60,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "num_global_key_value_heads": 4,
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0,
        "sliding_window": 1024,
        "layer_types": kinds(60, 6),
    },
    "gemma-4-26b-a4b": GEMMA4
    | {
        "num_hidden_layers": 30,
        "hidden_size": 2816,
        "intermediate_size": 2112,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0,
        "sliding_window": 1024,
        "enable_moe_block": True,
        "num_experts": 128,
        "top_k_experts": 8,
        "moe_intermediate_size": 704,
        "layer_types": kinds(30, 6),
    },
    "gemma-4-e2b": GEMMA4
    | {
        "num_hidden_layers": 35,
        "hidden_size": 1536,
        "intermediate_size": 6144,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "num_global_key_value_heads": None,
        "hidden_size_per_layer_input": 256,
        "num_kv_shared_layers": 20,
        "use_double_wide_mlp": True,
        "sliding_window": 512,
        "layer_types": kinds(35, 5),
    },
    "gemma-4-e4b": GEMMA4
    | {
        "num_hidden_layers": 42,
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "num_global_key_value_heads": None,
        "hidden_size_per_layer_input": 256,
        "num_kv_shared_layers": 18,
        "use_double_wide_mlp": False,
        "sliding_window": 512,
        "layer_types": kinds(42, 6),
    },
    "mimo-v2-default": {"model_type": "mimo_v2_flash"},
    "mimo-v2-flash": MIMO
    | {
        "swa_num_attention_heads": 64,
        "swa_num_key_value_heads": 8,
        "swa_head_dim": 192,
        "swa_v_head_dim": 128,
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "hybrid_layer_pattern": [int(n != 0 and (n + 1) % 6 != 0) for n in range(48)],
        "moe_layer_freq": [0] + [1] * 47,
    },
}


@pytest.mark.parametrize("name", TWO_SHAPES)
def test_layers_of_two_shapes_survive_the_round_trip_and_need_no_caution(name):
    model = read(TWO_SHAPES[name])
    assert model.note is None
    assert not _differences(read(config_from_model(model)), model)


@pytest.mark.parametrize(
    ("name", "n_expected", "kv_token_bytes"),
    [
        ("gemma-4-default", 5_077_177_856, 143_360),
        ("gemma-4-31b", 30_697_345_280, 901_120),
        ("gemma-4-26b-a4b", 25_233_141_760, 225_280),
        ("gemma-4-e2b", 4_628_569_344, 18_432),
        ("gemma-4-e4b", 7_463_013_376, 57_344),
        ("mimo-v2-default", 308_778_780_864, 222_720),
        ("mimo-v2-flash", 308_778_780_864, 222_720),
    ],
)
def test_layers_of_two_shapes_are_counted(name, n_expected, kv_token_bytes):
    """The numbers are those of transformers 5.23, which the test below asks."""
    model = read(TWO_SHAPES[name])
    assert n_parameters(model) == n_expected
    assert kv_bytes_per_token(model, "bfloat16") == kv_token_bytes


def test_what_gemma_4_looks_up_or_shares_is_no_active_weight_and_no_cache():
    effective = read(TWO_SHAPES["gemma-4-e2b"])
    assert n_parameters(effective) - n_active_parameters(effective) == 262_144 * 256 * 35
    alone = read(TWO_SHAPES["gemma-4-e2b"] | {"num_kv_shared_layers": 0})
    assert kv_bytes_per_token(alone, "bfloat16") == 2 * 2 * 256 * (28 + 2 * 7)
    # Past the window only full layers grow: 10 of 4 KV heads of 512, keys and values.
    large = read(TWO_SHAPES["gemma-4-31b"])
    grown = [kv_bytes(large, "bfloat16", context_tokens=n) for n in (2000, 2001)]
    assert grown[1] - grown[0] == 10 * 2 * 4 * 512 * 2


@pytest.mark.slow
@pytest.mark.parametrize("name", TWO_SHAPES)
def test_transformers_builds_layers_of_two_shapes_as_they_are_counted(name):
    config = TWO_SHAPES[name]
    model, built = read(config), built_on_meta(config)
    assert count_on_meta(config) == n_parameters(model)
    assert count_on_meta(config_from_model(model)) == n_parameters(model)
    n_kept = 0
    for layer in built.model.layers:
        heads = layer.self_attn
        if not getattr(heads, "is_kv_shared_layer", False):
            n_keys = heads.k_proj.out_features
            n_kept += n_keys + n_keys // heads.head_dim * getattr(
                heads, "v_head_dim", heads.head_dim
            )
    assert kv_bytes_per_token(model, "bfloat16") == 2 * n_kept
    saved = built.config.to_dict()  # has the shape of each layer instead of two head sizes
    assert not _differences(read(saved), model)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"swa_num_attention_heads": 32}, "swa_num_attention_heads = 32"),
        ({"num_key_value_heads": "four"}, "num_key_value_heads = 'four'"),
        ({"num_key_value_heads": 48}, "no multiple of n_kv_heads = "),
    ],
)
def test_heads_that_no_layer_can_have_are_refused(fields, what):
    with pytest.raises(SpecError, match=what):
        read(MIMO | fields)


def test_layers_that_share_keys_need_one_of_each_kind_that_has_them():
    with pytest.raises(SpecError, match="num_kv_shared_layers = 34"):
        read(TWO_SHAPES["gemma-4-e2b"] | {"num_kv_shared_layers": 34})
