"""Do changes gain what they can, and no more?"""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from inferometer.errors import SpecError
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.kv_cache import kv_bytes
from inferometer.perfmodel.scenario import Scenario
from inferometer.perfmodel.whatif import (
    Change,
    what_if,
    with_attention_kernel,
    with_devices,
    with_eager,
    with_graphs,
    with_kv_dtype,
    with_kv_heads,
    with_prefix_hits,
    with_quantization,
    with_sequence_parallelism,
    with_window,
)

BASE = Scenario(
    model=find_model("llama-2-7b"),
    engine=EngineSpec(engine="vllm", dtype="bfloat16"),
    hardware=find_hardware("h100_sxm"),
    batch_size=1,
    prompt_tokens=512,
    output_tokens=128,
)


def test_half_the_bytes_are_half_the_time_where_weights_limit():
    wide = replace(BASE, engine=replace(BASE.engine, dtype="float32"))
    halved = what_if(wide, Change(name="bfloat16", scenario=BASE))
    assert halved.tpot_gain_ratio.high == pytest.approx(2, rel=0.01), "at the peaks"
    assert 1.6 < halved.tpot_gain_ratio.value < 2, "a layer's fixed time stays"
    assert halved.weight_bytes_saved == 2 * 6_738_415_616
    quantised = what_if(BASE, with_quantization(BASE, "float8"))
    assert 1.4 < quantised.tpot_gain_ratio.value < 2
    assert quantised.change.needs is not None


def test_a_smaller_cache_gains_with_the_batch():
    large = replace(BASE, batch_size=64, prompt_tokens=2048)
    gains = [
        what_if(scenario, with_kv_dtype(scenario, "float8")).tpot_gain_ratio.value
        for scenario in (BASE, large)
    ]
    assert gains[0] < 1.02
    assert gains[1] > 1.6


def test_grouped_queries_shrink_the_cache():
    large = replace(BASE, batch_size=64, prompt_tokens=2048)
    change = what_if(large, with_kv_heads(large, 4))
    assert change.after.sizes.kv_bytes_per_token == 524_288 / 8
    assert change.tpot_gain_ratio.value > 3
    with pytest.raises(SpecError, match="no multiple"):
        with_kv_heads(BASE, 5)
    with pytest.raises(SpecError, match="latent"):
        with_kv_heads(replace(BASE, model=find_model("deepseek-v3")), 8)


@given(st.sampled_from([2, 4, 8]))
def test_more_devices_are_faster_but_never_cheaper_for_a_model_that_fits_on_one(n_tensor):
    change = what_if(BASE, with_devices(BASE, n_tensor=n_tensor))
    assert 1 < change.tpot_gain_ratio.value < n_tensor
    assert change.throughput_gain_ratio.value < 1


def test_a_prefix_cache_shortens_the_first_token_only():
    plain = what_if(BASE, with_prefix_hits(BASE, 0.0))
    assert plain.ttft_gain_ratio.value == plain.tpot_gain_ratio.value == 1
    long = replace(BASE, prompt_tokens=3000)
    change = what_if(long, with_prefix_hits(long, 0.9))
    assert 4 < change.ttft_gain_ratio.value < 10.5
    assert change.tpot_gain_ratio.value == 1


def test_graphs_remove_what_the_host_takes():
    eager = replace(BASE, model=find_model("smollm2-135m"), mode="eager")
    assert with_eager(BASE).scenario == replace(BASE, mode="eager")
    change = what_if(eager, with_graphs(eager))
    assert change.tpot_gain_ratio.value > 10


def test_launching_by_kernels_takes_no_less_than_a_measured_captured_step():
    captured = replace(BASE, mode="graphs", launch_overhead_s=0.1)
    floor = what_if(captured, with_eager(captured))
    assert floor.tpot_gain_ratio.high <= 1 + 1e-9
    known = replace(captured, kernels_launch_ratio=10.0)
    assert what_if(known, with_eager(known)).tpot_gain_ratio.value == pytest.approx(0.1, rel=0.05)


def test_intervals_hold_the_gain():
    change = what_if(BASE, with_devices(BASE, n_tensor=8))
    assert change.tpot_gain_ratio.low < change.tpot_gain_ratio.value < change.tpot_gain_ratio.high


def test_storing_scores_costs_as_the_square_of_the_prompt():
    slow = with_attention_kernel(BASE)
    assert slow.scenario.attention == "stored scores"
    gains = [
        what_if(scenario, with_attention_kernel(scenario)).ttft_gain_ratio.value
        for scenario in (BASE, replace(BASE, prompt_tokens=3968))
    ]
    assert 1 > gains[0] > gains[1]
    assert gains[1] < 0.7
    eager = replace(BASE, mode="eager")  # which stores them unless its kernel is another
    assert with_attention_kernel(eager).scenario.attention == "tiled"
    assert what_if(eager, with_attention_kernel(eager)).ttft_gain_ratio.value > 1


def test_split_sequences_send_the_same_bytes_in_more_messages():
    two = with_devices(BASE, n_tensor=2).scenario
    change = with_sequence_parallelism(two)
    assert change.scenario.used_plan.has_sequence_parallelism
    gain = what_if(two, change)
    assert gain.tpot_gain_ratio.value < 1
    assert gain.ttft_gain_ratio.value < 1.01
    with pytest.raises(SpecError, match="no tensor parallelism"):
        with_sequence_parallelism(BASE)


def test_sinks_and_a_window_end_the_growth_of_the_cache():
    long = replace(BASE, model=find_model("llama-3.1-8b"))
    before = replace(long, prompt_tokens=65_536)
    change = with_window(before, window_tokens=4092, n_sinks=4)
    gain = what_if(before, change)
    model = change.scenario.model
    per_token = kv_bytes(model, "bfloat16", context_tokens=1)
    assert kv_bytes(model, "bfloat16", context_tokens=4096) == 4096 * per_token
    assert kv_bytes(model, "bfloat16", context_tokens=65_536) == 4096 * per_token
    assert gain.tpot_gain_ratio.value > 1
    assert gain.ttft_gain_ratio.value > 1
    short = replace(long, prompt_tokens=1024)
    unchanged = what_if(short, with_window(short, window_tokens=4092, n_sinks=4))
    assert unchanged.tpot_gain_ratio.value == pytest.approx(1)
    mistral = replace(BASE, model=find_model("mistral-7b-v0.1"))
    with pytest.raises(SpecError, match="windowed already"):
        with_window(mistral, window_tokens=1024, n_sinks=4)
