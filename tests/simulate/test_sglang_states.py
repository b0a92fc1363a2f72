"""Does SGLang run as many sequences as its pool of recurrent states allows?"""

import pytest

from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.steptime_levels import datasheet_levels
from inferometer.simulate.deployment import Knobs, deploy


def config_of(own=None, model="qwen3.5-9b", **shared):
    model, hardware = find_model(model), find_hardware("h100_sxm")
    engine = EngineSpec(dtype="bfloat16", device="cuda")
    levels = datasheet_levels(model, engine, hardware)
    knobs = Knobs(policy="sglang", shared={**shared}, own=own or {})
    return deploy(model, engine, hardware, levels, knobs).config


def test_prefixes_have_states_of_the_pool_too():
    """All states of the pool went to running sequences, 511 of them, where SGLang runs a fifth."""
    alone = config_of({"disable_radix_cache": "true"}).max_running_requests
    assert config_of().max_running_requests == alone // 5
    in_turn = config_of({"disable_overlap_schedule": "true"})
    assert in_turn.max_running_requests == alone // 4


def test_convolutions_alone_have_no_tracked_states():
    without = config_of({"disable_radix_cache": "true"}, "lfm2-1.2b").max_running_requests
    assert config_of(model="lfm2-1.2b").max_running_requests == min(without, 2048)


@pytest.mark.parametrize("asked", [32, 400])
def test_a_number_of_requests_leaves_the_pool_as_it_is(asked):
    """With the radix cache, the pool's share is the states' whatever may run; and it is a limit."""
    usual, given = config_of(), config_of(max_num_seqs=asked)
    most = pytest.approx(usual.max_running_requests, rel=0.06)  # other logits, other activations
    assert given.max_running_requests == (asked if asked == 32 else most)
    assert given.max_total_num_tokens == pytest.approx(usual.max_total_num_tokens, rel=0.06)
    apart = config_of({"disable_radix_cache": "true"}, max_num_seqs=asked)
    assert apart.max_running_requests == asked
    assert apart.max_total_num_tokens > given.max_total_num_tokens


def test_models_of_attention_alone_run_the_default():
    assert config_of(model="qwen3-8b").max_running_requests == 2048
