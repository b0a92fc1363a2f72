"""Are models of 2026, and others with layers of their own, counted as their checkpoints are?

Numbers are those of the published files of weights, or of the classes of transformers 5.23.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from inferometer.errors import SpecError
from inferometer.inputs.catalog import find_model
from inferometer.inputs.model_config import model_from_config
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.kv_cache import cache_rows, kv_bytes_per_token, state_bytes
from inferometer.perfmodel.matrices import linears
from inferometer.perfmodel.roofline import matmul_flop_per_row, step_work
from inferometer.perfmodel.types import decode_shape
from inferometer.perfmodel.weights import n_active_parameters, n_parameters, step_weight_bytes
from inferometer.verify.seals import model_facts

CASES = json.loads((Path(__file__).parent / "small_configs.json").read_text())
BF16 = EngineSpec(engine="vllm", dtype="bfloat16")
LLAMA = CASES["llama"][0] | {"model_type": "newcomer", "head_dim": 16}


def read(config):
    return model_from_config(config, where="config.json", model_id="m")


WHOLE = {
    "granite-4.1-30b": 28_865_728_512,
    "intellect-3": 106_852_251_264,
    "kolibri-1": 78_103_074_560,
    "laguna-s-2.1": 117_561_977_600,
    "laguna-xs.2": 33_442_617_088,
    "lfm2.5-8b-a1b": 8_467_856_832,
    "ling-2.5-1t": 1_012_231_160_320,
    "mellum2-12b-a2.5b": 12_149_923_072,
    "nanbeige4.1-3b": 3_933_637_120,
    "nanbeige4.2-3b": 4_169_800_704,
    "north-mini-code": 30_484_303_872,
    "trinity-large": 398_635_286_016,
}
"""Elements of the files of weights, where they hold the language model alone."""


@pytest.mark.parametrize(("name", "n_weights"), WHOLE.items())
def test_as_many_parameters_as_the_checkpoint_has(name, n_weights):
    assert n_parameters(find_model(name)) == n_weights


WITHOUT = {
    # Name: (elements of the files, layers of multi-token prediction over all layers, tower)
    "step-3.5-flash": (199_384_301_376, 3 / 45),
    "hy3-preview": (298_786_155_776, 1 / 80),
    "hy4-preview": (779_960_992_733, 1 / 78),
    "ling-2.6-1t": (1_025_414_425_344, 1 / 80),
    "ling-3.0-flash": (127_486_405_600, 1 / 42),
    "glm-5.3-flash": (321_323_031_390, 1 / 45),
    "qwen3.8-flash-next": (179_999_981_424, 1 / 48),
    "mimo-v2.5-pro": (1_023_182_841_600, 3 / 70),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_what_the_checkpoint_has_more_is_its_layers_of_multi_token_prediction(name):
    """They are not counted, and a layer of them is at most about as large as another."""
    total, share = WITHOUT[name]
    model = find_model(name)
    more = total - n_parameters(model) - model.n_tower_weights
    assert 0 < more < 1.2 * share * total


def test_a_looped_model_reads_its_weights_and_keeps_keys_in_each_loop():
    """Nanbeige 4.2: 22 layers that run twice; its loops were not read."""
    model = find_model("nanbeige4.2-3b")
    once = replace(model, n_loops=1)
    assert n_parameters(model) == n_parameters(once)
    assert kv_bytes_per_token(model, "bfloat16") == 2 * kv_bytes_per_token(once, "bfloat16")
    assert matmul_flop_per_row(model) == 2 * matmul_flop_per_row(once)
    assert model.n_blocks == 2 * once.n_blocks
    twice, single = (
        step_weight_bytes(one, BF16, n_rows=1, n_logit_positions=0) for one in (model, once)
    )
    norms = single - 2 * sum(part.n_weights for part in linears(once))
    assert twice - norms == pytest.approx(2 * (single - norms))


def test_loops_of_an_unknown_model_are_read():
    assert read(LLAMA | {"num_loops": 3}).n_loops == 3
    assert read(LLAMA | {"total_ut_steps": 4}).n_loops == 4
    with pytest.raises(SpecError, match="'loop_num'"):  # IQuest's second loop has a window
        read(LLAMA | {"loop_num": 2})


def test_blocks_that_layers_share_are_stored_once_and_read_by_each():
    """Zamba2 7B: 13 of its 81 layers use two blocks in turn."""
    model = find_model("zamba2-7b")
    assert (model.n_attention_layers, model.n_feed_forward_layers) == (13, 13)
    parts = [part for part in linears(model) if part.name == "mlp_up"]
    assert [(part.n_layers, part.n_runs) for part in parts] == [(1, 7), (1, 6)]
    assert kv_bytes_per_token(model, "bfloat16") == 13 * 2 * 32 * 224 * 2
    stored = 2 * sum(part.n_weights for part in linears(model))
    assert step_weight_bytes(model, BF16, n_rows=1, n_logit_positions=0) > 1.4 * stored
    assert state_bytes(model, "bfloat16") > 0


def test_layers_that_attend_to_images_alone_are_memory():
    """Llama 3.2 Vision: a text passes the layers of Llama 3.1."""
    text = CASES["llama"][0] | {"model_type": "mllama_text_model", "num_hidden_layers": 5}
    model = read({"model_type": "mllama", "text_config": text | {"cross_attention_layers": [1]}})
    plain = read(CASES["llama"][0] | {"model_type": "llama"})
    assert n_parameters(model) == n_parameters(plain)
    of_layer = n_parameters(read(text | {"cross_attention_layers": []})) - n_parameters(plain)
    norms_of_heads = 2 * plain.attention.head_dim
    assert model.n_tower_weights == of_layer + norms_of_heads
    assert "attend to images alone" in model.note
    vision = find_model("llama-3.2-11b-vision")
    assert n_parameters(vision) + vision.n_tower_weights == 10_670_220_835
    assert n_parameters(vision) == n_parameters(find_model("llama-3.1-8b"))


def test_longcat_has_two_mlps_and_experts_in_each_layer():
    """Of 560 billion weights a token uses 27; a third of its experts have none."""
    model = find_model("longcat-flash")
    assert n_parameters(model) / 1e9 == pytest.approx(560, rel=0.002)
    assert n_active_parameters(model) / 1e9 == pytest.approx(27, rel=0.01)
    assert (model.n_layers, model.n_feed_forward_layers, model.n_expert_layers) == (56, 84, 28)
    assert model.moe.n_experts_per_token == 8
    assert kv_bytes_per_token(model, "bfloat16") == 56 * 576 * 2


def test_grok_2_has_an_mlp_beside_its_experts():
    model = find_model("grok-2")
    assert n_parameters(model) / 1e9 == pytest.approx(269.5, rel=1e-3)
    assert n_active_parameters(model) / 1e9 == pytest.approx(115, rel=0.02)
    assert (model.n_expert_layers, model.n_feed_forward_layers) == (64, 128)


def test_tables_of_n_grams_are_memory_alone():
    """Qwen 3.8 Flash Next: 51 of its 177 billion weights."""
    model = find_model("qwen3.8-flash-next")
    table = model.ngrams.n_rows * model.ngrams.width
    assert n_parameters(model) == 176_943_899_520
    assert table == 320_001_536 * 160
    assert n_active_parameters(model) < 7e9
    work = step_work(model, BF16, decode_shape(batch_size=1, context_tokens=1000))
    assert work.weight_bytes < 2 * n_active_parameters(model) * 1.001
    # 12 layers store keys and values, and a key of 128 numbers for each four tokens.
    assert kv_bytes_per_token(model, "bfloat16") == 12 * (2 * 2 * 256 * 2 + 128 * 2 // 4)


def test_latent_attention_to_chosen_tokens_beside_states():
    """GLM-5.3 Flash: 11 of its 45 layers attend, to 2,048 tokens each."""
    model = find_model("glm-5.3-flash")
    assert (model.n_attention_layers, model.recurrent.n_layers) == (11, 34)
    latent, keys = cache_rows(model)
    assert (latent.n_layers, latent.elements, latent.most_read_tokens) == (11, 512, 2048)
    assert (keys.n_layers, keys.elements) == (11, 128 / 4)


def test_step_3_projects_queries_through_a_narrow_matrix():
    model = find_model("step-3")
    assert n_parameters(model) / 1e9 == pytest.approx(316, rel=0.002)
    assert n_active_parameters(model) / 1e9 == pytest.approx(38, rel=0.01)
    assert kv_bytes_per_token(model, "bfloat16") == 61 * 2 * 256 * 2
    assert [part.n_out for part in linears(model)][:2] == [2048, 64 * 256]


def test_lists_of_layers_may_have_entries_for_layers_that_are_not_run():
    """Step 3.5 Flash lists its three layers of multi-token prediction too, and was refused."""
    kinds = ["full_attention", "sliding_attention"] * 2
    config = LLAMA | {"sliding_window": 64, "layer_types": [*kinds, "sliding_attention"]}
    assert read(config | {"num_nextn_predict_layers": 1}) == read(config | {"layer_types": kinds})
    with pytest.raises(SpecError, match="5 entries"):
        read(config)


def test_a_gate_of_each_head_is_read_for_an_unknown_model():
    gate = 4 * 64 * 4  # heads, width and layers
    plain, gated = read(LLAMA), read(LLAMA | {"use_head_wise_attn_gate": True})
    assert n_parameters(gated) - n_parameters(plain) == gate


def test_a_file_with_another_models_type_is_known_by_its_class():
    config = CASES["grok"][0] | {"model_type": "git"}
    with pytest.raises(SpecError, match="'git'"):
        read(config)
    assert read(config | {"architectures": ["Grok1ForCausalLM"]}).architecture == "grok"


def test_sums_of_models_that_have_none_of_the_new_parts_are_as_before():
    """Seals are older than these fields."""
    facts = model_facts(find_model("qwen2.5-3b"))
    newer = {"groups", "n_loops", "shared", "streams", "ngrams", "relative"}
    assert not newer & facts.keys()
    assert not {"has_head_gate", "query_rank"} & facts["attention"].keys()
    assert {"groups"} == newer & model_facts(find_model("llama-3.1-nemotron-ultra-253b")).keys()
    assert {"n_loops"} == newer & model_facts(find_model("ouro-2.6b")).keys()
