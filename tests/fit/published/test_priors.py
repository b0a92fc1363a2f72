"""What is believed of a device before it was seen, against what kernels and datasheets say of it."""

import numpy as np
import pytest

from inferometer.fit.published.priors import UNKNOWNS, device_prior
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec

FP8 = EngineSpec(dtype="bfloat16", quantization="float8", tensor_parallel_size=8)
FP4 = EngineSpec(dtype="bfloat16", quantization="float4", tensor_parallel_size=8)


def believed(name, model, engine, device):
    return float(
        np.exp(
            device_prior(find_model(model), engine, find_hardware(device)).mean[
                UNKNOWNS.index(name)
            ]
        )
    )


def ratio(name, model, engine, device, than):
    return believed(name, model, engine, device) / believed(name, model, engine, than)


def test_memory_that_kernels_do_not_reach_is_not_expected():
    """H200 has 43 % more bandwidth than H100; what unpacks 4-bit experts is no faster for it, what reads 8-bit ones is."""
    assert ratio(
        "weight_bytes_per_s", "gpt-oss-120b", FP4, "h200_sxm", "h100_sxm"
    ) == pytest.approx(1.0, abs=0.05)
    assert ratio("weight_bytes_per_s", "deepseek-v3", FP8, "h200_sxm", "h100_sxm") == pytest.approx(
        4.8 / 3.35, rel=0.05
    )


@pytest.mark.parametrize("device", ["rtx_3090", "rtx_4090", "l4", "h20"])
def test_four_bits_are_not_unpacked_at_the_rate_of_slow_matrix_units(device):
    """GeForce, L4 and H20 have few matrix units for their vector units, which unpack: a token of
    gpt-oss-20b took 6.8 ms on RTX 3090 and 5.2 ms on RTX 4090 (llama.cpp), as its bytes say."""
    one = EngineSpec(dtype="bfloat16", quantization="float4")
    bits16 = EngineSpec(dtype="bfloat16")
    reads = [
        believed("weight_bytes_per_s", "gpt-oss-20b", engine, device) for engine in (one, bits16)
    ]
    assert reads[0] > 0.45 * reads[1]


def test_products_of_geforce_reach_their_peak():
    """Half of the rate with 16-bit sums: nothing starves it. llama.cpp's prompts of Llama-3-8B run
    at 0.9 of the peak of RTX 3090 and 0.85 of RTX 4090's; one that nobody measured is like them."""
    bits16 = EngineSpec(dtype="bfloat16")
    shares = [
        believed("matmul_flop_per_s", "llama-3-8b", bits16, device)
        / find_hardware(device).peak_flop_per_s("bfloat16").value
        for device in ("rtx_3090", "rtx_4090", "rtx_4080", "a40")
    ]
    assert min(shares[:3]) > 0.9 > shares[3]


def test_small_messages_are_not_faster_on_a_faster_link():
    assert (
        find_hardware("b200_sxm").link_bytes_per_s.value
        == 2 * find_hardware("h200_sxm").link_bytes_per_s.value
    )
    assert ratio("message_s", "deepseek-v3", FP8, "b200_sxm", "h200_sxm") == pytest.approx(
        1.0, rel=0.05
    )


def test_the_all_reduce_that_engines_do_not_launch_on_blackwell_tells_nothing_of_it():
    """Alone it takes half as long again as on H200; fused with the norm it is another kernel."""
    b200, h200 = (find_hardware(name).kernels.message_s.value for name in ("b200_sxm", "h200_sxm"))
    assert b200 > 1.4 * h200
    assert believed("message_s", "deepseek-v3", FP8, "b200_sxm") < 1.5 * b200
    assert believed("message_s", "deepseek-v3", FP8, "h200_sxm") > 1.5 * h200


@pytest.mark.parametrize("model", ["deepseek-v3", "llama-3.1-70b"])
def test_a_device_without_kernels_is_believed_by_its_best_product(model):
    """MI300X reaches half of its peak with the best product, H100 four fifths."""
    peaks = [find_hardware(name).peak_flop_per_s("float8").value for name in ("mi300x", "h100_sxm")]
    found = ratio("matmul_flop_per_s", model, FP8, "mi300x", "h100_sxm") / (peaks[0] / peaks[1])
    assert not find_hardware("mi300x").kernels.experts
    assert 0.5 < found < 0.75


def test_a_device_of_which_only_the_datasheet_is_known_has_a_belief():
    l4 = find_hardware("l4")
    assert l4.kernels.message_s is None
    assert (
        0.3 * l4.memory_bytes_per_s.value
        < believed("weight_bytes_per_s", "llama-3.1-8b", FP8, "l4")
        < l4.memory_bytes_per_s.value
    )
    assert (
        believed("matmul_flop_per_s", "llama-3.1-8b", FP8, "l4")
        < l4.peak_flop_per_s("float8").value
    )


def test_blackwell_multiplies_four_bit_weights_as_they_are():
    assert ratio("matmul_flop_per_s", "deepseek-v3", FP4, "b200_sxm", "h200_sxm") > 4
    assert ratio("matmul_flop_per_s", "deepseek-v3", FP4, "mi355x", "b200_sxm") == pytest.approx(
        1.0, rel=0.3
    )


def test_attention_computes_in_16_bit_whatever_the_format_of_the_weights():
    assert believed("attention_flop_per_s", "deepseek-v3", FP8, "h200_sxm") == pytest.approx(
        believed("attention_flop_per_s", "deepseek-v3", EngineSpec(dtype="bfloat16"), "h200_sxm")
    )


def test_a_layer_of_more_parts_has_more_small_kernels():
    """Latent attention and experts (61 layers), the same with an indexer in every layer, and neither (80 layers)."""
    plain, latent, sparse = (
        believed("floor_s", name, FP8, "h200_sxm") / find_model(name).n_layers
        for name in ("llama-3.1-70b", "deepseek-v3", "deepseek-v3.2")
    )
    assert plain == pytest.approx(10 * 2.8e-6)
    assert 2 * plain < latent < sparse < 4 * plain
    assert sparse - latent == pytest.approx(plain, rel=0.1)


def test_shared_experts_and_norms_of_queries_are_kernels_too():
    """Of a layer: 16 with experts alone; a shared expert 3, its gate 2; norms in heads 2, over all 5."""
    engine = EngineSpec(dtype="bfloat16")
    kernels = {
        name: believed("floor_s", name, engine, "b200_sxm") / 2.8e-6 / find_model(name).n_layers
        for name in ("mixtral-8x7b", "qwen3-235b-a22b", "minimax-m2.5", "qwen3-next-80b-a3b")
    }
    of_full_layers = 2 * 12 / 48  # the others of Qwen3-Next are recurrent, without such norms
    assert list(kernels.values()) == pytest.approx([16, 18, 21, 16 + 5 + of_full_layers])


@pytest.mark.parametrize("device", ["rtx_3090", "a100_80gb_sxm", "h20", "h200_nvl"])
@pytest.mark.parametrize("quantization", [None, "float4"])
def test_experts_reach_no_more_of_the_peak_than_the_best_product(device, quantization):
    """Bandwidth helps few tokens an expert: up to 0.78 of H100's peak, of which dense ones reach 0.75."""
    bits16 = EngineSpec(dtype="bfloat16")
    widened = EngineSpec(dtype="bfloat16", quantization=quantization)
    dense = believed("matmul_flop_per_s", "llama-3-8b", bits16, device)
    found = believed("matmul_flop_per_s", "gpt-oss-20b", widened, device)
    assert found <= 1.01 * 0.78 / 0.75 * dense


def test_all_reduces_over_pcie_are_those_that_two_devices_reach():
    """RTX PRO 6000 in pairs: an all-reduce of 16 MiB in 473 µs, a small one in 4.3 (aic-kernels)."""
    engine = EngineSpec(dtype="bfloat16", tensor_parallel_size=2)
    prior = device_prior(find_model("qwen3-32b"), engine, find_hardware("rtx_pro_6000_server"))
    link_bytes_per_s, message_s = (
        float(np.exp(prior.mean[UNKNOWNS.index(name)]))
        for name in ("link_bytes_per_s", "message_s")
    )
    assert 0.4 * 35.5e9 < link_bytes_per_s < 35.5e9, "slower in a step than timed alone"
    assert 4.3e-6 < message_s < 3 * 4.3e-6


def test_a_small_all_reduce_over_pcie_takes_longer_with_each_further_device():
    """L40S and RTX PRO 6000: 4 to 5 µs between two devices, 13 between four, 24 between eight."""
    two, eight = (
        np.exp(
            device_prior(
                find_model("llama-3.1-70b"),
                EngineSpec(dtype="bfloat16", tensor_parallel_size=n),
                find_hardware("l40s"),
            ).mean[UNKNOWNS.index("message_s")]
        )
        for n in (2, 8)
    )
    assert eight / two == pytest.approx(24 / 4.5, rel=0.4)


def test_an_engine_that_launches_prompts_without_a_graph_takes_the_hosts_time_for_each_layer():
    """SGLang: 0.16 s for 1,024 tokens of DeepSeek, on MI355X as on B200 and from 16 to 64 users."""
    deepseek, place = find_model("deepseek-v3"), UNKNOWNS.index("prefill_ratio")
    hardware = find_hardware("mi355x")
    host_s = {
        name: float(
            np.exp(
                device_prior(deepseek, FP4, hardware, name).mean[
                    [place, UNKNOWNS.index("launch_s")]
                ]
            ).prod()
        )
        for name in ("sglang", "vllm")
    }
    assert 0.08 < host_s["sglang"] < 0.16
    assert host_s["vllm"] < 0.01
