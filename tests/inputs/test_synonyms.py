"""Are the names understood that people and tools type?"""

import pytest

from inferometer.errors import SpecError
from inferometer.inputs.catalog import find_hardware, known_model, load_hardware, load_models
from inferometer.inputs.synonyms import (
    counted_devices,
    known_format,
    model_form,
    named_weights,
    number_format,
    plain_number,
)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("fp8", "float8"),
        ("FP16", "float16"),
        ("bf16", "bfloat16"),
        ("torch.bfloat16", "bfloat16"),
        ("awq", "int4"),
        ("fp8_e4m3", "float8"),
        ("nvfp4", "float4"),
        ("w8a8", "int8"),
        ("half", "float16"),
        ("none", "none"),
        ("Q4_K_M", "int4"),
        ("q4-k-m", "int4"),
        ("IQ4_XS", "int4"),
        ("UD-Q4_K_XL", "int4"),
        ("Q8_0", "int8"),
        ("Q6_K", None),
    ],
)
def test_formats(typed, meant):
    assert known_format(typed) == meant


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("2x3090", (2, "3090")),
        ("4 x 4090", (4, "4090")),
        ("8xH100", (8, "H100")),
        ("8 H100", (8, "H100")),
        ("8x H100 SXM", (8, "H100 SXM")),
        ("2 xeon_8480p", (2, "xeon_8480p")),
        ("24 GB", None),
        ("5090 laptop", None),
        ("2x24GB", None),
        ("p5.48xlarge", (8, "h100_sxm")),
        ("ml.p5en.48xlarge", (8, "h200_sxm")),
        ("a3-highgpu-2g", (2, "h100_sxm")),
        ("a2-megagpu-16g", (16, "a100_40gb_sxm")),
        ("ND H100 v5", (8, "h100_sxm")),
        ("Standard_NC48ads_A100_v4", (2, "a100_80gb_pcie")),
        ("g6e.12xlarge", (4, "l40s")),
        ("g5.2xlarge", (1, "a10g")),
        ("p5.2xlarge", None),
        ("Standard_NV36ads_A10_v5", (1, "a10")),
        ("Standard_NV6ads_A10_v5", None),
        ("Standard_NC64as_T4_v3", (4, "t4")),
        ("gpu_8x_h100_sxm5", (8, "h100_sxm")),
        ("gpu_1x_gh200", (1, "gh200_96gb")),
        ("gpu_8x_v100_n", (8, "v100_sxm2_16gb")),
        ("p3.8xlarge", (4, "v100_sxm2_16gb")),
        ("trn2.48xlarge", (16, "trainium2")),
        ("inf2.24xlarge", (6, "inferentia2")),
        ("g4-standard-96", (2, "rtx_pro_6000_server")),
        ("ct6e-standard-8t", (8, "tpu_v6e")),
        ("VM.GPU.A10.2", (2, "a10")),
        ("3090", None),
    ],
)
def test_numbers_of_devices(typed, meant):
    assert counted_devices(typed) == meant


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("Llama-3.1-8B-Instruct-Q4_K_M", ("Llama-3.1-8B-Instruct", "int4")),
        ("Qwen3-8B-Q8_0.gguf", ("Qwen3-8B", "int8")),
        ("llama3.1:8b-instruct-q4_0", ("llama3.1:8b-instruct", "int4")),
        ("Qwen3-30B-A3B-UD-Q4_K_XL", ("Qwen3-30B-A3B", "int4")),
        ("Qwen3-8B-Q5_K_M", None),
    ],
)
def test_formats_of_llama_cpp_in_names(typed, meant):
    assert named_weights(typed) == meant


def test_a_format_that_is_known_but_not_possible_here_is_refused_with_what_is():
    with pytest.raises(SpecError, match="'awq' is not possible") as caught:
        number_format("awq", allowed=("bfloat16", "float32"), where="--dtype")
    assert "bfloat16" in caught.value.allowed
    with pytest.raises(SpecError, match="not a number format") as caught:
        number_format("bfloat15", allowed=("bfloat16", "float32"), where="--dtype")
    assert caught.value.try_ == "--dtype bfloat16"


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [("Q6_K", "int8"), ("q5_k_m", "int8"), ("Q2_K", "int4"), ("IQ3_XXS", "int4")],
)
def test_a_format_of_other_widths_is_answered_with_the_nearest(typed, nearest):
    with pytest.raises(SpecError, match="not a number format") as caught:
        number_format(typed, allowed=("int8", "int4"), where="--quantization")
    assert caught.value.try_ == f"--quantization {nearest}"
    with pytest.raises(SpecError, match="not a number format") as caught:
        number_format(typed, allowed=("float32",), where="--dtype")
    assert caught.value.try_ is None


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("h100", "h100_sxm"),
        ("rtx4060laptop", "rtx_4060_laptop"),
        ("H100", "h100_sxm"),
        ("NVIDIA H100 80GB HBM3", "h100_sxm"),
        ("NVIDIA H100 PCIe", "h100_pcie"),
        ("NVIDIA H100 NVL", "h100_nvl"),
        ("h200", "h200_sxm"),
        ("NVIDIA H200 NVL", "h200_nvl"),
        ("a100", "a100_80gb_sxm"),
        ("A100-40GB", "a100_40gb_sxm"),
        ("NVIDIA A100 80GB PCIe", "a100_80gb_pcie"),
        ("mi300", "mi300x"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("NVIDIA GeForce RTX 4090", "rtx_4090"),
        ("4090", "rtx_4090"),
        ("NVIDIA GeForce RTX 5070 Ti Laptop GPU", "rtx_5070ti_laptop"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx_6000_ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx_pro_6000_server"),
        ("Tesla V100-SXM2-32GB", "v100_sxm2_32gb"),
        ("Intel(R) Xeon(R) Platinum 8480+", "xeon_8480p"),
        ("AMD EPYC 9654 96-Core Processor", "epyc_9654"),
        ("v5e", "tpu_v5e"),
        ("H100SXM", "h100_sxm"),
        ("a100sxm4-80gb", "a100_80gb_sxm"),
    ],
)
def test_devices(typed, meant):
    assert find_hardware(typed).hardware_id == meant


@pytest.mark.parametrize(
    "typed",
    [
        "NVIDIA A100X",
        "NVIDIA GH200 480GB",
        "NVIDIA H20-3e",
        "rtx 6000",
        "NVIDIA",
        "h1000",
        "Intel(R) Xeon(R) Processor",
    ],
)
def test_a_device_that_is_not_in_the_catalogue_is_not_taken_for_another(typed):
    with pytest.raises(SpecError):
        find_hardware(typed)


def test_every_device_and_model_is_found_by_its_own_names():
    for device in load_hardware():
        assert find_hardware(device.hardware_id) is device
        assert find_hardware(device.name) is device
    for model in load_models():
        assert known_model(model.model_id) is model
        assert known_model(model.hf_id) is model


def test_no_two_models_share_a_form():
    forms = [
        form
        for model in load_models()
        for form in {model_form(model.model_id), model_form(model.hf_id)}
    ]
    assert len(forms) == len(set(forms))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("llama-3.3-70b", "llama-3.3-70b"),
        ("llama3.1:8b", "llama-3.1-8b"),
        ("deepseek-r1:7b", "deepseek-r1-distill-qwen-7b"),
        ("deepseek-r1:32b", "deepseek-r1-distill-qwen-32b"),
        ("tinyllama", "tinyllama-1.1b"),
        ("Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("qwen-2.5-7b", "qwen2.5-7b"),
        ("mistral-7b", "mistral-7b-v0.3"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-r1"),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", "qwen3-30b-a3b-2507"),
        ("qwen3-coder:30b", "qwen3-coder-30b-a3b"),
        ("gemma4:e4b", "gemma-4-e4b"),
        ("ministral-3:8b", "ministral-3-8b"),
        ("mistralai/Ministral-3-14B-Reasoning-2512", "ministral-3-14b"),
        ("mistralai/Ministral-3-3B-Base-2512", "ministral-3-3b"),
        ("granite4:tiny-h", "granite-4.0-h-tiny"),
        ("deepseek-r1:1.5b", "deepseek-r1-distill-qwen-1.5b"),
        ("allenai/Olmo-3-7B-Think", "olmo-3-7b"),
        ("LiquidAI/LFM2.5-1.2B-Instruct", "lfm2-1.2b"),
    ],
)
def test_models(typed, meant):
    assert known_model(typed).model_id == meant


@pytest.mark.parametrize(
    ("text", "try_"),
    [
        ("5000tok/s", "--rate 10, where a request has 500 of these tokens: 5000 tokens/s / 500"),
        (
            "5k tokens per second",
            "--rate 10, where a request has 500 of these tokens: 5000 tokens/s / 500",
        ),
        (
            "108M tokens/day",
            "--rate 2.5, where a request has 500 of these tokens: 1250 tokens/s / 500",
        ),
        ("90k tpm", "--rate 3, where a request has 500 of these tokens: 1500 tokens/s / 500"),
        ("5/fortnight", None),
        ("90%", None),
    ],
)
def test_a_rate_in_another_unit_names_those_that_are_read(text, try_):
    with pytest.raises(SpecError, match="is not a rate of requests") as refused:
        plain_number(text, "rate")
    assert "5/s, 300/min" in refused.value.allowed
    assert refused.value.try_ == try_


@pytest.mark.parametrize("text", ["1e-3", "0.5", "x", "inf"])
def test_a_rate_without_a_unit_is_left_to_the_option(text):
    assert plain_number(text, "rate") == text
