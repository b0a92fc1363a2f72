"""Do vision towers count in memory, about as many weights as transformers counts, and in no step?"""

from dataclasses import replace

import pytest

from inferometer.inputs.catalog import find_model, nameless
from inferometer.inputs.model_config import model_from_config
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.weights import n_parameters, step_weight_bytes, weight_bytes

TEXT = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}
TOWERS = (
    (
        "gemma-3-4b",
        2560,
        "Gemma3",
        {"num_hidden_layers": 27, "hidden_size": 1152, "intermediate_size": 4304},
    ),
    (
        "ministral-3-8b",
        4096,
        "Mistral3",
        {
            "model_type": "pixtral",
            "num_hidden_layers": 24,
            "hidden_size": 1024,
            "intermediate_size": 4096,
        },
    ),
    (
        "qwen2.5-vl-7b",
        3584,
        "Qwen2_5_VL",
        {
            "depth": 32,
            "hidden_act": "silu",
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "out_hidden_size": 3584,
            "spatial_merge_size": 2,
        },
    ),
    (
        "qwen3-vl-4b",
        2560,
        "Qwen3VL",
        {
            "depth": 24,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "out_hidden_size": 2560,
            "spatial_merge_size": 2,
            "deepstack_visual_indexes": [5, 11, 17],
        },
    ),
    (
        "qwen3-vl-8b",
        4096,
        "Qwen3VL",
        {
            "depth": 27,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "out_hidden_size": 4096,
            "spatial_merge_size": 2,
            "deepstack_visual_indexes": [8, 16, 24],
        },
    ),
    (
        "qwen3.5-27b",
        5120,
        "Qwen3_5",
        {
            "depth": 27,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "out_hidden_size": 5120,
            "spatial_merge_size": 2,
        },
    ),
    (
        "kimi-k2.5",
        7168,
        "Kimi_K25",
        {"num_hidden_layers": 27, "hidden_size": 1152, "intermediate_size": 4304},
    ),
)


def with_tower(tower, width):
    config = {
        "model_type": "llava",
        "text_config": TEXT | {"hidden_size": width},
        "vision_config": tower,
    }
    return model_from_config(config, where="config.json", model_id="m")


@pytest.mark.parametrize(("model_id", "width", "_", "tower"), TOWERS)
def test_a_file_s_tower_has_the_weights_of_the_catalogue_s(model_id, width, _, tower):
    model = with_tower(tower, width)
    assert model.n_tower_weights == pytest.approx(find_model(model_id).n_tower_weights, rel=0.12)
    assert f"about {model.n_tower_weights / 1e9:.2g}B weights" in model.note


@pytest.mark.slow
@pytest.mark.parametrize(("model_id", "width", "name", "tower"), TOWERS)
def test_towers_are_those_of_transformers(model_id, width, name, tower):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    vision = getattr(transformers, f"{'Pixtral' if name == 'Mistral3' else name}VisionConfig", None)
    vision = transformers.SiglipVisionConfig if vision is None else vision
    config = vision(**{name: value for name, value in tower.items() if name != "model_type"})
    with torch.device("meta"):
        built = transformers.AutoModel.from_config(config)
    counted = sum(one.numel() for one in built.parameters())
    assert with_tower(tower, width).n_tower_weights == pytest.approx(counted, rel=0.12)


def test_a_tower_is_memory_that_tensor_parallel_devices_share_and_no_step_reads():
    model = find_model("gemma-3-12b")
    language = replace(model, n_tower_weights=0)
    one = EngineSpec(engine="vllm", dtype="bfloat16", device="cuda")
    for engine in (one, replace(one, tensor_parallel_size=2)):
        more = weight_bytes(model, engine) - weight_bytes(language, engine)
        assert more == pytest.approx(2 * 437e6 / engine.tensor_parallel_size, rel=1e-6)
    shape = {"n_rows": 1, "n_logit_positions": 1}
    assert step_weight_bytes(model, one, **shape) == step_weight_bytes(language, one, **shape)
    assert n_parameters(model) == n_parameters(language)
    assert nameless(model) == nameless(language), "published rows are of both"


def test_a_tower_of_another_kind_is_named_and_not_counted():
    model = with_tower({"hidden_size": 2048, "model_type": "mobilenet"}, 64)
    assert model.n_tower_weights == 0
    assert model.note.startswith("vision_config is not counted")
