"""Does the datasheets' answer hold together: bounds, rates, costs, memory, cautions?"""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from inferometer.errors import SpecError
from inferometer.inputs.catalog import find_hardware, find_model, load_hardware, load_models
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.datasheet import predict_scenario
from inferometer.perfmodel.roofline import ParallelPlan
from inferometer.perfmodel.scenario import Scenario, Speculation

FP16 = EngineSpec(engine="vllm", dtype="float16")
LLAMA = Scenario(
    model=find_model("llama-2-7b"),
    engine=FP16,
    hardware=find_hardware("a100_80gb_sxm"),
    batch_size=4,
    prompt_tokens=512,
    output_tokens=65,
)


def test_the_answer_by_hand():
    answer = predict_scenario(LLAMA)
    lower_s = (2 * (6_738_415_616 - 32000 * 4096) + 4 * (512 + 32) * 524_288) / 2.039e12
    assert answer.decode.bound.bound_by == "memory"
    assert answer.speeds.tpot_s.low == pytest.approx(
        lower_s, rel=0.01
    )  # activations and new KV rows come on top
    kv_s = 4 * (512 + 32) * 524_288 / 2.039e12
    fixed_s = 32 * 50e-6 + 1e-3
    likely_s = (lower_s - kv_s) / 0.77 + kv_s / 0.55 + fixed_s
    assert answer.speeds.tpot_s.value == pytest.approx(likely_s, rel=0.01)
    assert answer.speeds.mbu_fraction.value == pytest.approx(lower_s / likely_s, rel=0.01)
    prefill_s = answer.speeds.ttft_s.value - 5e-3
    bound_s = answer.prefill.bound.compute_s
    assert prefill_s == pytest.approx(bound_s / 0.5 + fixed_s)
    assert answer.speeds.mfu_fraction.value == pytest.approx(bound_s / prefill_s)
    assert answer.sizes.n_parameters == 6_738_415_616
    assert answer.sizes.kv_bytes_per_token == 524_288
    assert answer.sizes.weight_bytes == 2 * 6_738_415_616


def test_rates_and_costs_follow_from_the_times():
    answer = predict_scenario(LLAMA)
    speeds, costs = answer.speeds, answer.costs
    duration_s = speeds.ttft_s.value + 64 * speeds.tpot_s.value
    assert speeds.output_tokens_per_s.value == pytest.approx(4 * 65 / duration_s)
    assert speeds.total_tokens_per_s.value == pytest.approx(4 * (65 + 512) / duration_s)
    assert speeds.decode_tokens_per_s.value == pytest.approx(4 / speeds.tpot_s.value)
    assert costs.price is not None
    usd_per_s = costs.price.usd_per_hour / 3600
    assert costs.usd_per_million_tokens.value == pytest.approx(
        usd_per_s * 1e6 / speeds.output_tokens_per_s.value
    )
    assert costs.joule_per_million_tokens.value == pytest.approx(
        400 * 1e6 / speeds.output_tokens_per_s.value
    )


MODELS = [model for model in load_models() if model.max_position_tokens >= 1024]


@given(
    st.sampled_from(MODELS),
    st.sampled_from(load_hardware()),
    st.integers(1, 256),
    st.integers(1, 512),
    st.integers(1, 512),
)
def test_every_model_on_every_device_gets_an_ordered_answer_or_one_clear_refusal(
    model, hardware, batch_size, prompt_tokens, output_tokens
):
    scenario = Scenario(
        model=model,
        engine=EngineSpec(engine="vllm", dtype="bfloat16"),
        hardware=hardware,
        batch_size=batch_size,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
    )
    if hardware.peak_flop_per_s("bfloat16") is None:
        with pytest.raises(SpecError, match="no known rate"):
            predict_scenario(scenario)
        return
    answer = predict_scenario(scenario)
    speeds = answer.speeds
    for estimate in (
        speeds.ttft_s,
        speeds.tpot_s,
        speeds.output_tokens_per_s,
        speeds.mbu_fraction,
        speeds.mfu_fraction,
    ):
        assert 0 < estimate.low <= estimate.value <= estimate.high
        assert estimate.method.startswith("datasheet")
    assert speeds.mbu_fraction.high <= 1 + 1e-9
    assert speeds.mfu_fraction.high <= 1 + 1e-9
    assert speeds.tpot_s.low == pytest.approx(answer.decode.bound.lower_s)
    assert answer.sizes.memory.fits == (batch_size <= answer.sizes.largest_batch_size)
    assert (answer.costs.usd_per_million_tokens is None) == (not hardware.prices)


def test_what_makes_the_answer_less_good_is_said():
    too_large = predict_scenario(replace(LLAMA, hardware=find_hardware("t4"), batch_size=64))
    assert any("does not fit" in caution for caution in too_large.cautions)
    assert any("pcie_bytes_per_s" in caution for caution in too_large.cautions)
    assert not any("does not fit" in caution for caution in predict_scenario(LLAMA).cautions)
    int4 = replace(LLAMA, engine=replace(FP16, quantization="int4"))
    assert (
        sum("int4" in caution or "4-bit" in caution for caution in predict_scenario(int4).cautions)
        == 2
    )
    assert any(
        "MI300X" in caution
        for caution in predict_scenario(replace(LLAMA, hardware=find_hardware("mi300x"))).cautions
    )
    p40 = predict_scenario(replace(LLAMA, hardware=find_hardware("p40")))
    assert any("compute capability" in caution for caution in p40.cautions)


def test_launch_overhead_is_a_floor_in_the_best_case_and_is_added_in_the_worst():
    plain, slow = (
        predict_scenario(LLAMA).speeds.tpot_s,
        predict_scenario(replace(LLAMA, launch_overhead_s=0.05)).speeds.tpot_s,
    )
    assert (slow.low, slow.value) == (0.05, 0.05)
    assert slow.high == pytest.approx(plain.high + 0.05)


def test_a_pipeline_keeps_latency_and_divides_memory():
    one, two = (
        predict_scenario(LLAMA),
        predict_scenario(replace(LLAMA, plan=ParallelPlan(n_pipeline=2))),
    )
    assert two.sizes.memory.weight_bytes == one.sizes.memory.weight_bytes / 2
    assert two.speeds.tpot_s.value == pytest.approx(one.speeds.tpot_s.value, rel=0.2)
    assert two.costs.power_watt == 2 * one.costs.power_watt


def test_speculation_yields_tokens_at_the_cost_of_its_draft():
    free = Speculation(n_draft_tokens=4, acceptance_fraction=0.8, draft_cost_ratio=0.0)
    plain, sped = (
        predict_scenario(replace(LLAMA, batch_size=1)),
        predict_scenario(replace(LLAMA, batch_size=1, speculation=free)),
    )
    assert plain.speeds.tpot_s.value / sped.speeds.tpot_s.value == pytest.approx(
        3.3616, rel=0.01
    )  # bound by memory: verifying is free
    useless = replace(free, acceptance_fraction=0.0, draft_cost_ratio=0.1)
    slowed = predict_scenario(replace(LLAMA, batch_size=1, speculation=useless))
    assert slowed.speeds.tpot_s.value > 1.35 * plain.speeds.tpot_s.value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch = 0"),
        ({"prompt_tokens": 0}, "prompt = 0"),
        ({"output_tokens": -1}, "output = -1"),
        ({"prefix_hit_fraction": 1.0}, "hit rate"),
        ({"plan": ParallelPlan(n_tensor=2)}, "2 tensor-parallel"),
    ],
)
def test_impossible_questions_are_refused(change, message):
    with pytest.raises(SpecError, match=message):
        replace(LLAMA, **change)


def test_too_long_a_context_is_refused():
    with pytest.raises(SpecError, match="tokens of context"):
        predict_scenario(replace(LLAMA, prompt_tokens=5000))
