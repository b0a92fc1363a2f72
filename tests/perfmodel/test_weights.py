"""Are parameters and weight bytes those of the real models?"""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from inferometer.errors import SpecError
from inferometer.inputs.catalog import find_model, load_models
from inferometer.inputs.types import DTYPE_BITS, EngineSpec
from inferometer.perfmodel.matrices import linears, n_shards
from inferometer.perfmodel.weights import (
    STORED_FORMATS,
    expected_experts,
    n_active_parameters,
    n_parameters,
    splits_heads,
    step_weight_bytes,
    stored_weight_bits,
    weight_bytes,
)

COUNTS = tomllib.loads((Path(__file__).parent / "recorded_counts.toml").read_text())["counts"]
MODELS = load_models()
BF16 = EngineSpec(dtype="bfloat16")


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.model_id)
def test_parameters_are_those_that_transformers_built(model):
    total, active = COUNTS[model.model_id]
    assert n_parameters(model) == total
    assert n_active_parameters(model) == active


def test_every_model_has_a_recorded_count():
    assert {model.model_id for model in MODELS} == set(COUNTS)
    assert len(MODELS) >= 40


NAMED = {
    "minimax-m2.5": (230, 10),
    "glm-5": (744, 40),
    "deepseek-v3.2": (671, 37),
    "gemma-4-26b-a4b": (25.2, 3.8),
    "nemotron-3-nano-30b-a3b": (31.6, 3.2),
    "nemotron-3.5-lightning-30b-a3b": (31.6, 3.2),
    "ernie-4.5-21b-a3b": (21.8, 3),
    "ernie-4.5-vl-28b-a3b": (21.8, 3),
    "kimi-linear-48b-a3b": (49.1, 3.1),
    "lfm2-8b-a1b": (8.3, 1.5),
    "lfm2.5-8b-a1b": (8.5, 1.5),
}
"""Billions of parameters, all and active, on model cards; other names carry them."""


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.model_id)
def test_mixtures_are_as_large_as_their_cards_say(model):
    stated = re.search(r"-(\d+)b-a(\d+)b", model.model_id)
    named = None if stated is None else tuple(map(int, stated.groups()))
    card = NAMED.get(model.model_id, named)
    if card is None:
        pytest.skip("its name does not say")
    assert n_parameters(model) / 1e9 == pytest.approx(card[0], rel=0.02)
    # Cards round to billions, and count the embedding, the head, both or neither.
    ends = 0 if model.tie_word_embeddings else model.vocab_size * model.hidden_size
    active = n_active_parameters(model)
    assert (active - ends) / 1e9 - 0.5 <= card[1] <= (active + ends) / 1e9 + 0.5


def test_weights_of_qwen3b_by_hand():
    # 36 layers: q 2048·2048 + o 2048·2048 + k, v 2048·256 each + biases 2048 + 256 + 256 + mlp
    # 3·2048·11008 + norms 2·2048
    layer = 2 * 2048 * 2048 + 2 * 2048 * 256 + 2560 + 3 * 2048 * 11008 + 2 * 2048
    assert n_parameters(find_model("qwen2.5-3b")) == 36 * layer + 151936 * 2048 + 2048


def test_weight_bytes_are_two_per_parameter_in_16_bit():
    model = find_model("llama-2-7b")
    assert weight_bytes(model, BF16) == 2 * n_parameters(model)


def test_int4_keeps_embedding_and_head_in_16_bit():
    model = find_model("llama-2-7b")
    engine = EngineSpec(dtype="float16", quantization="int4")
    in_layers = sum(part.n_weights for part in linears(model))
    expected_bits = in_layers * (4 + 20 / 128) + (n_parameters(model) - in_layers) * 16
    assert weight_bytes(model, engine) == round(expected_bits / 8)
    assert (
        3.5e9 < weight_bytes(model, engine) < 4.0e9
    )  # published AWQ and GPTQ checkpoints of Llama-2-7B take 3.9 GB


@pytest.mark.parametrize(
    ("model_id", "n_bytes"), [("gpt-oss-20b", 13_761_264_768), ("gpt-oss-120b", 65_248_815_744)]
)
def test_gpt_oss_takes_what_its_checkpoint_s_index_says(model_id, n_bytes):
    assert (
        weight_bytes(find_model(model_id), EngineSpec(dtype="bfloat16", quantization="float4"))
        == n_bytes
    )


def test_stored_formats_cost_more_than_their_values():
    for dtype, stored in STORED_FORMATS.items():
        assert stored.weight_bits > stored.value_bits == DTYPE_BITS[dtype]
    assert STORED_FORMATS["float4"].weight_bits == 4.25  # MXFP4 as gpt-oss stores it
    assert stored_weight_bits(EngineSpec(quantization="float4")) == 4.5  # NVFP4
    assert stored_weight_bits(BF16) == 16


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.model_id)
@pytest.mark.parametrize("n_devices", [2, 4, 8])
def test_tensor_parallel_weights_sum_to_the_whole_plus_the_copies(model, n_devices):
    if not splits_heads(model, n_devices):
        with pytest.raises(SpecError, match="cannot be split"):
            weight_bytes(model, EngineSpec(engine="vllm", tensor_parallel_size=n_devices))
        return
    whole = weight_bytes(model, EngineSpec(engine="vllm", dtype="bfloat16"))
    split = weight_bytes(
        model, EngineSpec(engine="vllm", dtype="bfloat16", tensor_parallel_size=n_devices)
    )
    embeddings = (
        model.vocab_size
        * (model.embedding_size or model.hidden_size)
        * (1 if model.tie_word_embeddings else 2)
    )
    if (each := model.per_layer_inputs) is not None:  # vLLM splits this table by its rows, too
        embeddings += model.n_layers * each.size * each.vocab_size
    if (table := model.ngrams) is not None:
        embeddings += table.n_rows * table.width
    small = n_parameters(model) - sum(part.n_weights for part in linears(model)) - embeddings
    copies = (n_devices - 1) * small
    copies += sum(
        part.n_weights * (n_devices // n_shards(part, n_devices) - 1) for part in linears(model)
    )
    assert n_devices * split == pytest.approx(whole + 2 * copies, abs=n_devices)


def test_transformers_copies_the_embedding_to_each_device():
    model = find_model("llama-2-70b")
    vllm = weight_bytes(model, EngineSpec(engine="vllm", dtype="bfloat16", tensor_parallel_size=8))
    transformers = weight_bytes(
        model, EngineSpec(engine="transformers", dtype="bfloat16", tensor_parallel_size=8)
    )
    assert transformers - vllm == 7 * 2 * 32000 * 8192 // 8


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(SpecError, match="14 query heads") as caught:
        weight_bytes(find_model("qwen2.5-0.5b"), EngineSpec(tensor_parallel_size=4))
    assert caught.value.allowed == "1, 2, 7, 14"
    with pytest.raises(SpecError, match="2 KV heads"):  # copied, but seven do not share them evenly
        weight_bytes(find_model("qwen2.5-0.5b"), EngineSpec(engine="vllm", tensor_parallel_size=7))


def test_a_step_reads_everything_but_the_embedding_of_an_untied_model():
    model = find_model("llama-2-7b")
    read = step_weight_bytes(model, BF16, n_rows=1, n_logit_positions=1)
    assert read == 2 * (n_parameters(model) - 32000 * 4096)
    without_logits = step_weight_bytes(model, BF16, n_rows=1, n_logit_positions=0)
    assert read - without_logits == 2 * 32000 * 4096


def test_one_token_reads_the_active_weights_of_a_mixture():
    model = find_model("mixtral-8x7b")
    assert step_weight_bytes(model, BF16, n_rows=1, n_logit_positions=1) == pytest.approx(
        2 * n_active_parameters(model)
    )


@given(st.integers(1, 256), st.data(), st.integers(1, 4096))
def test_expected_experts_stays_between_k_and_all(n_experts, data, n_tokens):
    k = data.draw(st.integers(1, n_experts))
    expected = expected_experts(n_experts, k, n_tokens)
    assert k - 1e-9 <= expected <= n_experts + 1e-9
    assert expected_experts(n_experts, k, n_tokens + 1) >= expected - 1e-9
    assert expected_experts(n_experts, k, 1) == pytest.approx(k)


@given(st.sampled_from(MODELS), st.sampled_from(["int8", "int4", "float8", "float4"]))
def test_quantised_weights_are_smaller(model, quantization):
    assert weight_bytes(
        model, EngineSpec(dtype="bfloat16", quantization=quantization)
    ) < weight_bytes(model, BF16)
