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
from inferometer.perfmodel.weights import n_parameters

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


def count_on_meta(config):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    fields = {name: value for name, value in config.items() if name != "model_type"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers warns of its own defaults
        hf_config = transformers.AutoConfig.for_model(config["model_type"], **fields)
        with torch.device("meta"):
            built = transformers.AutoModelForCausalLM.from_config(hf_config)
    # DeepSeek's score correction is stored in checkpoints, but is a buffer in transformers.
    corrections = [
        part for name, part in built.named_buffers() if name.endswith("e_score_correction_bias")
    ]
    return sum(part.numel() for part in [*built.parameters(), *corrections])


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.model_id)
def test_transformers_builds_as_many_parameters(model):
    assert count_on_meta(config_from_model(model)) == n_parameters(model)


@pytest.mark.slow
@pytest.mark.parametrize(("model_type", "index"), FLAT)
def test_transformers_builds_what_we_read_and_what_we_write(model_type, index):
    config = CASES[model_type][index] | {"model_type": model_type}
    model = read(config)
    assert count_on_meta(config_from_model(model)) == n_parameters(model)
    if model_type not in {"glm", "glm4", "phi3", "smollm3"} or "pad_token_id" in config:
        assert count_on_meta(config) == n_parameters(model)
