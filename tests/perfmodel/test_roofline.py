"""Are the bounds the work over the peaks, and is the limit named right?"""

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given, strategies as st

import inferometer as im
from inferometer.errors import SpecError
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.roofline import (
    Peaks,
    bound_peaks,
    compute_dtype,
    critical_batch_size,
    exact,
    intensity_flop_per_byte,
    joule_per_million_tokens,
    mbu_fraction,
    mfu_fraction,
    peaks_of,
    ridge_flop_per_byte,
    step_bound,
    step_work,
    usd_per_million_tokens,
)
from inferometer.perfmodel.types import StepWork, decode_shape, prefill_shape
from inferometer.stats.estimate import Estimate

BF16 = EngineSpec(dtype="bfloat16")
PEAKS = Peaks(
    kv_bytes_per_s=1e12,
    flop_per_s=100.0,
    memory_bytes_per_s=10.0,
    link_bytes_per_s=1.0,
    message_latency_s=0.5,
    compute_dtype="bfloat16",
)


def work(*, flop=0.0, moved_bytes=0.0, sent_bytes=0.0, n_messages=0):
    return StepWork(
        matmul_flop=flop,
        attention_flop=0.0,
        logits_flop=0.0,
        weight_bytes=moved_bytes,
        kv_read_bytes=0.0,
        kv_write_bytes=0.0,
        activation_bytes=0.0,
        link_bytes=sent_bytes,
        n_link_messages=n_messages,
    )


@pytest.mark.parametrize(
    ("step", "bound_by", "lower_s", "upper_s"),
    [
        (work(flop=300, moved_bytes=10), "compute", 3, 4),
        (work(flop=100, moved_bytes=20), "memory", 2, 3),
        (work(flop=100, moved_bytes=10, sent_bytes=3, n_messages=2), "link", 4, 6),
    ],
)
def test_bounds_by_hand(step, bound_by, lower_s, upper_s):
    bound = step_bound(step, PEAKS)
    assert (bound.bound_by, bound.lower_s, bound.upper_s) == (bound_by, lower_s, upper_s)


@given(st.floats(0, 1e15), st.floats(1, 1e12), st.floats(0, 1e9))
def test_the_lower_bound_is_between_a_third_of_the_upper_and_the_upper(
    flop, moved_bytes, sent_bytes
):
    bound = step_bound(work(flop=flop, moved_bytes=moved_bytes, sent_bytes=sent_bytes), PEAKS)
    assert bound.upper_s / 3 <= bound.lower_s * (1 + 1e-12)
    assert bound.lower_s <= bound.upper_s


@given(st.floats(1.0, 10.0), st.integers(1, 512), st.integers(1, 4096))
def test_better_hardware_is_never_slower(factor_ratio, batch_size, context_tokens):
    step = step_work(
        find_model("qwen2.5-3b"),
        BF16,
        decode_shape(batch_size=batch_size, context_tokens=context_tokens),
    )
    peaks = peaks_of(find_hardware("h100_sxm"), BF16)
    better = replace(
        peaks,
        flop_per_s=peaks.flop_per_s * factor_ratio,
        memory_bytes_per_s=peaks.memory_bytes_per_s * factor_ratio,
        kv_bytes_per_s=peaks.kv_bytes_per_s * factor_ratio,
    )
    assert step_bound(step, better).lower_s == pytest.approx(
        step_bound(step, peaks).lower_s / factor_ratio
    )


def test_databricks_worked_number():
    # A 7B model in 16 bit read in 14 ms is 1 TB/s (requirements, section 1).
    step = step_work(
        find_model("llama-2-7b"),
        EngineSpec(dtype="float16"),
        decode_shape(batch_size=1, context_tokens=1),
    )
    assert step.weight_bytes / 14e-3 == pytest.approx(1e12, rel=0.06)
    assert 14e9 / 14e-3 / 2e12 == 0.5


def test_the_limits_of_a_real_model_on_an_h100():
    model, peaks = find_model("llama-2-7b"), peaks_of(find_hardware("h100_sxm"), BF16)
    decode = step_work(model, BF16, decode_shape(batch_size=1, context_tokens=512))
    prefill = step_work(model, BF16, prefill_shape(batch_size=8, prompt_tokens=2048))
    assert step_bound(decode, peaks).bound_by == "memory"
    assert step_bound(prefill, peaks).bound_by == "compute"
    assert (
        intensity_flop_per_byte(decode)
        < ridge_flop_per_byte(peaks)
        < intensity_flop_per_byte(prefill)
    )


def test_critical_batch():
    peaks = peaks_of(find_hardware("h100_sxm"), BF16)
    assert critical_batch_size(find_model("llama-2-7b"), BF16, peaks) == ceil(989e12 / 3.35e12)
    mixture = critical_batch_size(find_model("mixtral-8x7b"), BF16, peaks)
    assert (
        3.3 < mixture / critical_batch_size(find_model("llama-2-7b"), BF16, peaks) < 4
    )  # nearly 8 / 2
    int4 = EngineSpec(dtype="bfloat16", quantization="int4")
    assert critical_batch_size(find_model("llama-2-7b"), int4, peaks) == ceil(
        989e12 / 3.35e12 * 4.15625 / 16
    )


def test_what_is_multiplied_in_which_format():
    assert compute_dtype(EngineSpec(dtype="bfloat16", quantization="float8")) == "float8"
    assert compute_dtype(EngineSpec(dtype="bfloat16", quantization="int4")) == "bfloat16"
    assert (
        peaks_of(
            find_hardware("h100_sxm"), EngineSpec(dtype="bfloat16", quantization="float8")
        ).flop_per_s
        == 1979e12
    )


def test_a_format_that_the_device_lacks_is_refused():
    with pytest.raises(SpecError, match="bfloat16") as caught:
        peaks_of(find_hardware("v100_sxm2_32gb"), BF16)
    assert caught.value.allowed == "float32, float16, int8"
    with pytest.raises(SpecError, match="float8") as caught:
        peaks_of(find_hardware("mi210"), EngineSpec(dtype="bfloat16", quantization="float8"))
    assert caught.value.where == "--quantization"


def test_int8_weights_are_widened_where_int8_products_are_slower_than_those_of_16_bit():
    engine = EngineSpec(dtype="bfloat16", quantization="int8")
    for device in ("b300_sxm", "gb300"):
        assert peaks_of(find_hardware(device), engine) == peaks_of(find_hardware(device), BF16)
    assert peaks_of(find_hardware("h100_sxm"), engine).compute_dtype == "int8"


def test_int8_weights_are_widened_where_there_are_no_int8_products():
    engine = EngineSpec(engine="llama.cpp", dtype="float16", quantization="int8")
    for device in ("apple_m3_max_40", "ryzen_ai_max_395"):
        widened = peaks_of(find_hardware(device), engine)
        assert widened == peaks_of(find_hardware(device), replace(engine, quantization=None))


def test_float8_weights_are_widened_where_a_device_does_not_multiply_them():
    widened = peaks_of(
        find_hardware("a100_80gb_sxm"), EngineSpec(dtype="bfloat16", quantization="float8")
    )
    assert widened == peaks_of(find_hardware("a100_80gb_sxm"), BF16)


def test_devices_without_a_link_use_pcie_or_refuse():
    assert peaks_of(find_hardware("l40s"), BF16).link_bytes_per_s == 31.5e9
    alone = peaks_of(find_hardware("apple_m4_max_40"), EngineSpec(dtype="float16"))
    assert alone.link_bytes_per_s is None
    assert step_bound(work(flop=1, moved_bytes=1), alone).link_s == 0
    with pytest.raises(SpecError, match="no link"):
        step_bound(work(sent_bytes=1), alone)


WORK = StepWork(
    matmul_flop=6.0,
    attention_flop=3.0,
    logits_flop=1.0,
    weight_bytes=14e9,
    kv_read_bytes=0.0,
    kv_write_bytes=5.0,
    activation_bytes=7.0,
    link_bytes=0.0,
    n_link_messages=0,
)


def measured(value, low, high):
    return Estimate(
        value=value, low=low, high=high, confidence_fraction=0.95, n_samples=7, method="median"
    )


def test_a_7b_model_at_14_ms_moves_1_tb_per_s_which_is_half_of_2():
    used = mbu_fraction(measured(14e-3, 13e-3, 15e-3), WORK, exact(2e12))
    assert used.value == pytest.approx(0.5)
    assert used.low < 0.5 < used.high
    assert used.n_samples == 7


def test_mbu_counts_weights_and_cache_read_and_mfu_all_flop():
    work = StepWork(
        **{name: getattr(WORK, name) for name in StepWork.__slots__} | {"kv_read_bytes": 14e9}
    )
    assert mbu_fraction(exact(1.0), work, exact(28e9)).value == 1
    assert mfu_fraction(exact(2.0), WORK, exact(10.0)).value == 0.5


def test_no_interval_in_no_interval_out():
    assert mbu_fraction(exact(14e-3), WORK, exact(2e12)).low is None


def test_doubts_of_time_and_ceiling_add_up():
    time_only = mbu_fraction(measured(1.0, 0.9, 1.1), WORK, exact(1e12))
    both = mbu_fraction(measured(1.0, 0.9, 1.1), WORK, measured(1e12, 0.9e12, 1.1e12))
    assert both.high - both.low > time_only.high - time_only.low


def test_cost_and_energy():
    rate = measured(1000.0, 800.0, 1250.0)
    cost = usd_per_million_tokens(rate, usd_per_hour=3.6)
    assert (cost.low, cost.value, cost.high) == pytest.approx((0.8, 1.0, 1.25))
    energy = joule_per_million_tokens(rate, power_watt=700)
    assert (energy.low, energy.value, energy.high) == pytest.approx(
        (700e6 / 1250, 700e3, 700e6 / 800)
    )


def test_four_bit_weights_are_bounded_by_what_computes_in_four_bits():
    """Published prefills of gpt-oss-120b on B200 are shorter than bfloat16's peak allows."""
    narrow = EngineSpec(dtype="bfloat16", quantization="float4")
    b200, h100 = find_hardware("b200_sxm"), find_hardware("h100_sxm")
    assert bound_peaks(b200, narrow).flop_per_s == 9000e12
    assert peaks_of(b200, narrow).flop_per_s == 2250e12
    assert bound_peaks(h100, narrow) == peaks_of(h100, narrow)
    answer = im.predict("gpt-oss-120b", hardware="b200", batch=200, prompt=1000)
    assert answer.datasheet.prefill.bound.lower_s < answer.fitted.ttft_s.value
