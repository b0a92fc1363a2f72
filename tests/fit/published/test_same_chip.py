"""Are devices with more bandwidth, and narrower formats, never slower where nothing else differs?"""

import itertools

import pytest

from inferometer.fit.published.efficiencies import published_steps
from inferometer.fit.published.priors import UNKNOWNS, device_prior, has_same_chip
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.scenario import BEST
from inferometer.perfmodel.steptime_levels import datasheet_step_time
from inferometer.perfmodel.types import decode_shape, prefill_shape

MODELS = (
    "llama-3.1-8b",
    "llama-3.1-70b",
    "qwen3-30b-a3b",
    "gpt-oss-120b",
    "deepseek-v3",
    "minimax-m2.5",
    "qwen3.5-397b-a17b",
    "kimi-k2.5",
)
FORMATS = (None, "float8", "float4", "int4")
DECODES = [
    decode_shape(batch_size=users, context_tokens=tokens)
    for users, tokens in itertools.product((1, 4, 16, 64, 256), (512, 4096, 32768))
]
PREFILLS = [
    prefill_shape(batch_size=n, prompt_tokens=tokens)
    for n, tokens in itertools.product((1, 4), (128, 1024, 8192))
]
ROUNDING = 1 + 1e-9


def engine_of(n_tensor, quantization):
    return EngineSpec(
        dtype="bfloat16",
        device="cuda",
        quantization=quantization,
        tensor_parallel_size=n_tensor,
    )


def published_s(model, device, framework, n_tensor, quantization, shapes):
    engine = engine_of(n_tensor, quantization)
    fit = published_steps(find_model(model), engine, find_hardware(device), framework)
    return fit.terms(fit.work(shapes)).total_s


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("h100_sxm", "h800_sxm", True),
        ("a100_80gb_sxm", "a800_80gb_sxm", True),
        ("gb200", "gb300", True),
        ("a10", "gb10", False),
        ("t4", "v100_sxm2_16gb", False),
    ],
)
def test_devices_of_one_chip_agree_in_16_and_32_bit(one, other, is_same):
    """A10 and GB10 have the same rate in 16 bit alone; without bfloat16 nothing tells."""
    assert has_same_chip(find_hardware(one), find_hardware(other)) is is_same


@pytest.mark.parametrize("framework", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(
    ("less", "more"),
    [("h100_sxm", "h200_sxm"), ("b200_sxm", "b300_sxm"), ("mi300x", "mi325x")],
)
def test_more_bandwidth_on_the_same_chip_is_never_slower(less, more, framework):
    if framework == "trtllm" and find_hardware(less).vendor != "nvidia":
        pytest.skip("TensorRT-LLM runs on NVIDIA's")
    for model, n_tensor, weights in itertools.product(MODELS, (1, 4, 8), FORMATS):
        asked = (framework, n_tensor, weights, DECODES + PREFILLS)
        slow_s, fast_s = (published_s(model, device, *asked) for device in (less, more))
        assert (fast_s <= slow_s * ROUNDING).all(), (model, n_tensor, weights)


@pytest.mark.parametrize(
    ("less", "more"),
    [("h100_sxm", "h200_sxm"), ("b200_sxm", "b300_sxm"), ("mi300x", "mi325x")],
)
def test_nor_is_it_by_the_datasheet_alone(less, more):
    for model, n_tensor, weights in itertools.product(MODELS, (1, 4, 8), FORMATS):
        engine = engine_of(n_tensor, weights)
        times_s = []
        for device in map(find_hardware, (less, more)):
            steps = datasheet_step_time(find_model(model), engine, device, BEST)
            times_s.append(steps.terms(steps.work(DECODES + PREFILLS)).total_s)
        assert (times_s[1] <= times_s[0] * ROUNDING).all(), (model, n_tensor, weights)


def test_what_is_expected_before_any_row_grows_with_the_memory_too():
    for model, weights in itertools.product(MODELS, FORMATS):
        slow, fast = (
            device_prior(find_model(model), engine_of(8, weights), find_hardware(device))
            for device in ("h100_sxm", "h200_sxm")
        )
        rates = [k for k, name in enumerate(UNKNOWNS) if name.endswith("_per_s")]
        assert (fast.mean[rates] >= slow.mean[rates]).all(), (model, weights)
        assert (fast.upper[rates] >= slow.upper[rates]).all(), (model, weights)


@pytest.mark.parametrize("framework", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("device", ["h100_sxm", "h200_sxm"])
def test_four_bit_on_hopper_saves_bytes_and_no_products(device, framework):
    """No units for 4 bit: weights are read in half of 8 bit's bytes, and widened to be multiplied.

    So a token of few users takes no longer, but for a few percent where weights are a small part of
    it or are widened no faster than H200's memory brings those of 8 bit; one of 70B on one device
    takes less, and a long prompt longer.
    """
    few = [shape for shape in DECODES if shape.n_decode_requests <= 4]
    long = [shape for shape in PREFILLS if shape.prefill_tokens >= 8192]
    for model, n_tensor in itertools.product(MODELS, (1, 4, 8)):
        decode, prefill = (
            [
                published_s(model, device, framework, n_tensor, weights, shapes)
                for weights in ("float4", "float8")
            ]
            for shapes in (few, long)
        )
        assert (decode[0] <= 1.06 * decode[1]).all(), (model, n_tensor)
        assert (prefill[0] >= prefill[1]).all(), (model, n_tensor)
    four, eight = (
        published_s("llama-3.1-70b", device, framework, 1, weights, few)
        for weights in ("float4", "float8")
    )
    assert (four < eight).all()


def test_a_model_is_known_by_its_rows_in_other_formats_and_on_the_other_device_of_a_chip():
    kimi = [
        published_steps(
            find_model("kimi-k2.5"), engine_of(8, "int4"), find_hardware(device), "vllm"
        )
        for device in ("h100_sxm", "h200_sxm")
    ]
    assert ", and of kimi-k2.5 by vLLM on NVIDIA H200" in kimi[0].trained_on.hardware
    assert kimi[0].subject.transferred_from is None  # others have rows there
    assert "rows of kimi-k2.5 by vLLM on NVIDIA H200" in kimi[1].trained_on.hardware
    assert kimi[1].subject.transferred_from is None
    narrow = published_steps(
        find_model("minimax-m2.5"), engine_of(8, "float4"), find_hardware("h200_sxm"), "vllm"
    )
    assert " in fp8 (" in narrow.trained_on.hardware


def test_kernels_that_widen_four_bit_weights_are_no_faster_for_units_that_they_do_not_use():
    """A token of Kimi K2.5 in int4 takes 10.05 ms on eight B200 and 10.43 on eight H200, which have
    three fifths of the bandwidth; 4 users of 1,024 tokens, by silicon_sample.csv."""
    shape = [decode_shape(batch_size=4, context_tokens=1400)]
    b200, h200 = (
        published_s("kimi-k2.5", device, "vllm", 8, "int4", shape)[0]
        for device in ("b200_sxm", "h200_sxm")
    )
    assert b200 == pytest.approx(0.01005, rel=0.1)
    assert h200 == pytest.approx(0.01043, rel=0.1)
