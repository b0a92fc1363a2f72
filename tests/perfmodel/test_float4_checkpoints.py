"""What 4-bit float checkpoints leave in more bits."""

import pytest

from inferometer.inputs.catalog import find_model, load_models
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.matrices import linears
from inferometer.perfmodel.weights import linear_bits, weight_bytes

FLOAT4 = EngineSpec(dtype="bfloat16", quantization="float4")


NAMED = [model for model in load_models() if model.float4_bits]


@pytest.mark.parametrize("model", NAMED, ids=lambda model: model.model_id)
def test_every_matrix_that_is_named_is_one_of_its_model(model):
    found = {part.name.removeprefix("full_") for part in linears(model)}
    assert dict(model.float4_bits).keys() <= found


def test_gemmas_attention_stays_in_16_bits():
    """A log of vLLM says 31.04 GiB."""
    bits = {part.name: linear_bits(part, FLOAT4) for part in linears(find_model("gemma-4-31b"))}
    assert (bits["query"], bits["full_key_value"], bits["mlp_up"]) == (16, 16, 4.5)
    assert 30 < weight_bytes(find_model("gemma-4-31b"), FLOAT4) / 2**30 < 31.5


def test_other_formats_and_models_are_as_before():
    model, other = find_model("gemma-4-31b"), find_model("llama-3.1-8b")
    int4 = EngineSpec(dtype="bfloat16", quantization="int4")
    assert len({linear_bits(part, int4) for part in linears(model)}) == 1
    assert {linear_bits(part, FLOAT4) for part in linears(other)} == {4.5}


def test_a_part_of_nemotrons_recurrent_layers_counts_by_its_share():
    """6 of 23 in 16 bits."""
    nano = linears(find_model("nemotron-3-nano-30b-a3b"))
    bits = {part.name: linear_bits(part, FLOAT4) for part in nano}
    assert bits["linear_in"] == pytest.approx((6 * 16 + 17 * 4.5) / 23, abs=0.03)
    assert (bits["experts_up"], bits["query"]) == (4.5, 16)


def test_deepseeks_attention_but_its_output_is_in_16_bits():
    bits = {part.name: linear_bits(part, FLOAT4) for part in linears(find_model("deepseek-v3"))}
    assert {bits["query_up"], bits["key_value_down"]} == {16}
    assert {bits["attention_out"], bits["experts_up"], bits["shared_down"]} == {4.5}
