"""Does the catalogue say where each number comes from, and does it find what is meant?"""

import msgspec
import pytest

from inferometer.errors import SpecError
from inferometer.inputs import catalog
from inferometer.inputs.catalog import (
    HardwareEntry,
    _model_entries,
    close_models,
    find_hardware,
    find_model,
    hardware_from_entry,
    known_model,
    load_hardware,
    load_models,
    model_from_entry,
    unsourced_constants,
)
from inferometer.inputs.resolve import resolve_model
from inferometer.inputs.types import Constant, Source
from inferometer.perfmodel.weights import n_active_parameters, n_parameters

DEVICES = load_hardware()
MODELS = load_models()
SOURCE = {"s": Source(kind="page", where="somewhere")}


def constants(device):
    found = [
        device.memory_bytes,
        device.memory_bytes_per_s,
        device.link_bytes_per_s,
        device.pcie_bytes_per_s,
        device.power_watt,
    ]
    found += [peak.flop_per_s for peak in (*device.peaks, *device.measured_peaks)]
    rates = (*device.kernels.dense, *device.kernels.experts)
    found += [device.kernels.message_s, device.kernels.reduce_bytes_per_s]
    found += [part for rate in rates for part in (rate.flop_per_s, rate.read_bytes_per_s)]
    return [part for part in found if part is not None]


def test_the_catalogue_is_as_large_as_promised():
    assert len(MODELS) >= 60
    assert sum(device.kind == "gpu" for device in DEVICES) >= 35


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.hardware_id)
def test_every_number_of_a_device_has_a_source(device):
    sources = [part.source for part in constants(device)] + [
        price.source for price in device.prices
    ]
    assert len(sources) >= 4
    assert all(source.where and source.kind for source in sources)
    assert all(isinstance(part, Constant) and part.value > 0 for part in constants(device)), (
        "an absent fact is None, not 0"
    )
    assert device.peaks


PUBLISHED_BILLIONS = {
    "internvl3.5-8b": 8.19,
    "iquest-coder-v1-40b": 39.8,
    "minicpm-v-4.5": 8.19,
    "qwen1.5-0.5b": 0.464,
    "qwen1.5-1.8b": 1.837,
    "qwen1.5-4b": 3.95,
    "qwen1.5-7b": 7.72,
    "qwen1.5-14b": 14.2,
    "qwen1.5-32b": 32.5,
    "qwen1.5-72b": 72.3,
    "qwen1.5-110b": 111.2,
    "qwen2-0.5b": 0.494,
    "qwen2-1.5b": 1.54,
    "qwen2-7b": 7.62,
    "qwen2-72b": 72.7,
    "qwen1.5-moe-a2.7b": 14.3,
    "qwen2-57b-a14b": 57.4,
    "qwen2.5-vl-3b": 3.09,
    "qwen2.5-vl-32b": 32.8,
    "qwen2.5-vl-72b": 72.7,
    "qwen2.5-math-1.5b": 1.54,
    "qwen2.5-math-7b": 7.62,
    "qwen2.5-math-72b": 72.7,
    "qwen2.5-7b-1m": 7.62,
    "qwen2.5-14b-1m": 14.8,
    "qwq-32b-preview": 32.8,
    "aya-23-8b": 8.03,
    "command-r": 35,
    "command-r-08-2024": 32.3,
    "command-r-plus": 103.8,
    "command-r7b": 8.03,
    "command-a": 111.1,
    "yi-6b": 6.06,
    "yi-1.5-9b": 8.83,
    "yi-34b": 34.4,
    "internlm2-7b": 7.74,
    "internlm2-20b": 19.9,
    "internlm3-8b": 8.8,
    "baichuan2-7b": 7.51,
    "baichuan2-13b": 13.9,
    "llama-7b": 6.74,
    "llama-13b": 13,
    "llama-30b": 32.5,
    "llama-65b": 65.3,
    "open-llama-3b": 3.43,
    "codellama-70b": 69,
    "solar-10.7b": 10.7,
    "mistral-small-24b": 23.6,
    "mistral-small-22b": 22.2,
    "ministral-8b-2410": 8.02,
    "mistral-large-2411": 122.6,
    "mistral-large-3": 673,
    "deepseek-llm-7b": 6.91,
    "deepseek-llm-67b": 67.4,
    "deepseek-coder-1.3b": 1.35,
    "deepseek-coder-6.7b": 6.74,
    "deepseek-coder-33b": 33.3,
    "deepseek-moe-16b": 16.4,
    "deepseek-v2": 235.7,
    "moonlight-16b-a3b": 16,
    "deepseek-r1-distill-qwen-7b": 7.62,
    "deepseek-r1-distill-qwen-32b": 32.8,
    "deepseek-r1-0528-qwen3-8b": 8.19,
    "chatglm3-6b": 6.24,
    "glm-4-9b": 9.4,
    "glm-4-9b-0414": 9.4,
    "glm-4-32b-0414": 32.6,
    "glm-4.5v": 106.8,
    "gpt-j-6b": 6.05,
    "gpt-neox-20b": 20.6,
    "bloom-7b1": 7.07,
    "bloom-176b": 176.2,
    "falcon-7b": 6.92,
    "falcon-40b": 41.3,
    "falcon-180b": 178.6,
    "starcoder2-3b": 3.03,
    "starcoder2-7b": 7.17,
    "starcoder2-15b": 15.96,
    "starcoder-15b": 15.5,
    "stablelm-3b": 2.8,
    "stablelm-2-1.6b": 1.64,
    "phi-1.5": 1.42,
    "phi-2": 2.78,
    "phi-3-medium-4k": 13.96,
    "gemma-2b": 2.51,
    "gemma-7b": 8.54,
    "gemma-3-270m": 0.268,
    "olmo-2-7b": 7.3,
    "olmo-2-13b": 13.7,
    "olmo-2-32b": 32.2,
    "granite-3.3-8b": 8.17,
    "granite-3.3-2b": 2.53,
    "seed-oss-36b": 36.2,
    "ernie-4.5-0.3b": 0.361,
    "exaone-3.5-2.4b": 2.41,
    "exaone-3.5-7.8b": 7.82,
    "exaone-3.5-32b": 32,
    "minicpm-2b": 2.72,
    "smollm-135m": 0.1345,
    "smollm-360m": 0.362,
    "smollm-1.7b": 1.711,
    "distilgpt2": 0.0819,
    "pythia-14m": 0.01407,
    "pythia-70m": 0.0704,
    "pythia-1b": 1.012,
    "opt-2.7b": 2.65,
    "lfm2-350m": 0.354,
    "granite-4.0-micro": 3.4,
    "apertus-8b": 8.053,
    "apertus-70b": 70.6,
    "afm-4.5b": 4.6,
    "minitron-8b": 8.27,
    "nemotron-4-340b": 341,
    "openchat-3.5": 7.24,
    "minicpm4-8b": 8.18,
    "gpt-neo-1.3b": 1.3156,
    "redpajama-7b": 6.86,
    "granite-20b-code": 20.1,
    "mamba-2.8b": 2.768,
    "falcon-mamba-7b": 7.273,
    "exaone-4.0-1.2b": 1.28,
    "internvl3-8b": 7.61,
    "gemma-3n-e4b": 6.87,
    "gemma-3n-e2b": 4.46,
    "nemotron-h-8b": 8.1,
    "nemotron-h-56b": 56.3,
    "nemotron-nano-9b-v2": 8.89,
    "nemotron-nano-12b-v2": 12.31,
    "olmoe-1b-7b": 6.92,
    "ernie-4.5-21b-a3b": 21.8,
    "ernie-4.5-300b-a47b": 300.5,
    "jamba-1.5-mini": 51.6,
    "dbrx": 131.6,
    "lfm2-8b-a1b": 8.34,
    "ling-lite": 16.8,
    "ling-mini-2.0": 16.26,
    "ling-flash-2.0": 103,
    "ling-1t": 1000,
    "dots.llm1": 142.8,
    "hunyuan-a13b": 80.4,
    "phi-3.5-moe": 41.87,
    "minimax-m1": 456,
    "kimi-linear-48b-a3b": 49.1,
    "kimi-k2-0905": 1026,
    "grok-1": 314,
    "phi-3-small-8k": 7.39,
    "phi-3-small-128k": 7.39,
    "zamba2-1.2b": 1.22,
    "zamba2-2.7b": 2.66,
    "zamba2-7b": 7.36,
}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.model_id)
def test_every_model_has_a_source(model):
    """Where no repository states a shape, the published number of parameters is tested below."""
    if model.source.kind == "repository":
        assert "@" in model.source.where
    else:
        assert model.source.kind == "page"
        assert model.model_id in PUBLISHED_BILLIONS
    assert model.hf_id


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.hardware_id)
def test_peaks_are_dense_and_so_are_measured_ones(device):
    peaks = {peak.dtype: peak.flop_per_s.value for peak in device.peaks}
    if {"bfloat16", "float8"} <= set(peaks):
        assert peaks["float8"] <= 2.05 * peaks["bfloat16"], "a factor of 4 would be a sparse figure"
    if {"bfloat16", "float16"} <= set(peaks) and device.hardware_id not in {"gaudi3", "mi100"}:
        assert peaks["bfloat16"] == peaks["float16"]
    for measured in device.measured_peaks:
        assert measured.is_measured_matmul
        # Cards run above the clock of their datasheet; twice as much would be a sparse figure.
        assert measured.flop_per_s.value < 1.2 * peaks[measured.dtype]


@pytest.mark.parametrize(
    "device", [one for one in DEVICES if one.kernels.dense], ids=lambda device: device.hardware_id
)
def test_kernels_stay_below_the_peaks_of_their_device(device):
    peaks = {peak.dtype: peak.flop_per_s.value for peak in device.peaks}
    narrow = {"float8": "float8", "nvfp4": "float4", "mxfp4": "float8"}
    fastest = {"bfloat16": "bfloat16", "int4": "bfloat16", **narrow}
    for rate in (*device.kernels.dense, *device.kernels.experts):
        assert (
            0.1 * peaks[fastest[rate.weights]]
            < rate.flop_per_s.value
            < peaks[fastest[rate.weights]]
        )
        assert (
            rate.read_bytes_per_s is None
            or 0.4 < rate.read_bytes_per_s.value / device.memory_bytes_per_s.value < 1
        )
    if device.kernels.reduce_bytes_per_s is not None:
        assert device.kernels.reduce_bytes_per_s.value < device.link_bytes_per_s.value


def test_units_of_a_device_that_is_known_by_heart():
    h100 = find_hardware("h100_sxm")
    assert 79 * 2**30 < h100.memory_bytes.value < 80 * 2**30, "what the driver leaves"
    assert h100.memory_bytes_per_s.value == 3.35e12
    assert h100.peak_flop_per_s("bfloat16").value == 989e12
    assert h100.peak_flop_per_s("int4") is None
    assert h100.link_bytes_per_s.value == 450e9
    assert h100.power_watt.value == 700
    assert h100.kernels.message_s.value == pytest.approx(5.4e-6)
    assert h100.kernels.reduce_bytes_per_s.value == 262e9
    assert find_hardware("l40s").link_bytes_per_s is None


def test_unsourced_numbers_are_named():
    assert "memory_bytes_per_s" in unsourced_constants(find_hardware("rtx_5070ti_laptop"))
    assert unsourced_constants(find_hardware("b200_sxm")) == ()
    assert any("price" in name for name in unsourced_constants(find_hardware("tpu_v6e")))


@pytest.mark.parametrize(
    ("name", "model_id"),
    [
        ("qwen2.5-3b", "qwen2.5-3b"),
        ("Qwen/Qwen2.5-3B-Instruct", "qwen2.5-3b"),
        ("meta-llama/Llama-2-70b-chat-hf", "llama-2-70b"),
        ("google/gemma-2-2b-it", "gemma-2-2b"),
        ("SmolLM2-135M-Instruct", "smollm2-135m"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
        ("Qwen/Qwen3-Next-80B-A3B-Thinking", "qwen3-next-80b-a3b"),
        ("moonshotai/Kimi-K2-Instruct", "kimi-k2"),
        ("moonshotai/Kimi-K2-Thinking", "kimi-k2-thinking"),
        ("unsloth/Kimi-K2-Thinking", "kimi-k2-thinking"),
        ("kimi-k2", "kimi-k2"),
    ],
)
def test_models_are_found_by_id_and_by_hub_name(name, model_id):
    assert find_model(name).model_id == model_id


@pytest.mark.parametrize(
    ("name", "billions", "active", "stored"),
    [
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 80, 3, "bfloat16"),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", 480, 35, "bfloat16"),
        ("google/gemma-4-31B-it", 31, 31, "bfloat16"),
        ("google/gemma-4-26B-A4B-it", 25.2, 3.8, "bfloat16"),
        ("Qwen/Qwen3.6-27B", 27, 26, "bfloat16"),
        ("Qwen/Qwen3-VL-235B-A22B-Instruct", 235, 22, "bfloat16"),
        ("XiaomiMiMo/MiMo-V2-Flash", 309, 15, "float8"),
        ("deepseek-ai/DeepSeek-V3.1", 671, 37, "float8"),
        ("moonshotai/Kimi-K2-Thinking", 1026, 32, "int4"),
        ("zai-org/GLM-5.2", 744, 40, "bfloat16"),
        # Cards count the embedding among the active ones.
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 31.6, 3.2, "bfloat16"),
        ("nemotron-3-super-120b-a12b", 120.6, 12.3, "bfloat16"),
        ("nemotron-3-ultra-550b-a55b", 549, 55, "bfloat16"),
        ("moonshotai/Kimi-K3", 2780, 104, "float4"),
        ("moonshotai/Kimi-K2.6", 1026, 32, "int4"),
        ("MiniMaxAI/MiniMax-M3", 427, 24.7, "bfloat16"),
        ("zai-org/GLM-4.7-Flash", 30, 3.5, "bfloat16"),
        ("zai-org/GLM-4.5-Air", 106, 12.5, "bfloat16"),
        ("zai-org/GLM-4.7", 355, 32.6, "bfloat16"),
        ("nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16", 31.6, 3.2, "bfloat16"),
        ("ibm-granite/granite-4.0-h-small", 32.2, 9, "bfloat16"),
        ("ibm-granite/granite-4.0-h-tiny", 6.94, 1.3, "bfloat16"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", 30.5, 3.3, "bfloat16"),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", 15.7, 2.4, "bfloat16"),
        # Without encoders: 0.05, 0.5 and 0.5 billions.
        ("google/gemma-4-12B-it", 11.95, 11.9, "bfloat16"),
        ("google/gemma-4-E4B-it", 7.5, 4.5, "bfloat16"),
        ("google/gemma-4-E2B-it", 4.63, 2.3, "bfloat16"),
    ],
)
def test_models_of_2025_and_2026_have_the_size_and_the_format_of_their_cards(
    name, billions, active, stored
):
    model = find_model(name)
    assert n_parameters(model) / 1e9 == pytest.approx(billions, rel=0.01)
    assert n_active_parameters(model) / 1e9 == pytest.approx(active, abs=0.6)
    assert model.checkpoint_dtype == stored


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # As llama.cpp counts them in the vendors' checkpoints.
        ("Qwen/Qwen3.5-0.8B", 752_393_024),
        ("Qwen/Qwen3.5-2B", 1.88e9),
        ("Qwen/Qwen3.5-4B", 4.21e9),
        ("Qwen/Qwen3.5-9B", 8.95e9),
        ("mistralai/Ministral-3-8B-Instruct-2512", 8.49e9),
        ("mistralai/Ministral-3-14B-Instruct-2512", 13.51e9),
        ("mistralai/Devstral-Small-2-24B-Instruct-2512", 23.57e9),
        # As their cards state them.
        ("LiquidAI/LFM2-1.2B", 1.17e9),
        ("LiquidAI/LFM2-2.6B", 2.57e9),
        ("HuggingFaceTB/SmolLM3-3B", 3.08e9),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 1.78e9),
        # The size of the file, of which each weight takes two bytes.
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", 27.51 * 2**30 / 2),
    ],
)
def test_small_models_have_as_many_parameters_as_their_checkpoints(name, parameters):
    assert n_parameters(find_model(name)) == pytest.approx(parameters, rel=0.003)


@pytest.mark.parametrize(("name", "billions"), PUBLISHED_BILLIONS.items())
def test_other_models_have_as_many_parameters_as_published(name, billions):
    """As their cards, names or files of weights state them, rounded as there."""
    assert n_parameters(find_model(name)) / 1e9 == pytest.approx(billions, rel=0.006)


def test_a_name_means_one_model():
    names = [name.lower() for one in _model_entries() for name in one.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "model_id"),
    [
        ("lmsys/vicuna-7b-v1.5", "llama-2-7b"),
        ("zai-org/GLM-4.6-FP8", "glm-4.7"),
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "mistral-small-24b"),
        ("CohereForAI/c4ai-command-r-plus", "command-r-plus"),
        ("HuggingFaceH4/zephyr-7b-beta", "mistral-7b-v0.1"),
    ],
)
def test_tunes_are_found_by_the_model_whose_shape_they_have(name, model_id):
    found = resolve_model(name, load_format="dummy").spec
    assert (found.model_id, found.hf_id) == (model_id, name)


@pytest.mark.parametrize(
    "name", ["qwen2.5-3c", "", "llama", "Qwen/Qwen2.5-3B-Math", "meta-llama/Llama-2-7b-70b"]
)
def test_a_name_that_is_not_quite_right_is_not_guessed(name):
    assert known_model(name) is None


def test_an_unknown_model_names_what_is_close():
    with pytest.raises(SpecError) as caught:
        find_model("llama3.1-9b")
    assert "llama-3.1-8b" in str(caught.value)
    assert caught.value.exit_code == 2
    assert close_models("Qwen/qwen3-0.5b")[0] == "qwen3-0.6b"


def test_a_model_entry_with_a_typo_is_refused():
    entry = {"model_id": "x", "n_layer": 3, "source": "s"}
    with pytest.raises(SpecError, match="n_layer"):
        model_from_entry(entry, SOURCE, where="here")
    with pytest.raises(SpecError, match="model 'x'") as caught:
        model_from_entry({"model_id": "x", "source": "s"}, SOURCE, where="here")
    assert caught.value.where == "here"


def test_an_entry_whose_source_is_missing_is_refused():
    text = 'hardware_id="x"\nname="x"\nvendor="v"\nkind="gpu"\nmemory_gib={value=1,source="t"}\n'
    text += 'memory_gb_per_s={value=1,source="s"}\npeaks_tflop_per_s.float32={value=1,source="s"}'
    entry = msgspec.toml.decode(text, type=HardwareEntry)
    with pytest.raises(SpecError, match="source 't'"):
        hardware_from_entry(entry, SOURCE, where="here")


def test_list_prices_of_one_provider_are_of_one_kind():
    """Else a sizing over two of its devices warns that their rents do not compare."""
    kinds = {
        price.basis
        for device in catalog.load_hardware()
        for price in device.prices
        if "nebius" in price.source.where
    }
    assert kinds == {"on-demand list"}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("h100", "bfloat16"), ("t4", "float16"), ("v100", "float16"), ("m3-max", "float16")],
)
def test_the_format_that_nobody_asks_for_is_one_of_the_device(name, dtype):
    assert find_hardware(name).usual_dtype == dtype


def test_every_device_has_a_usual_format_with_a_rate():
    without = {
        one.hardware_id for one in load_hardware() if one.peak_flop_per_s(one.usual_dtype) is None
    }
    assert {one for one in without if find_hardware(one).kind != "cpu"} == set()


def test_blackwell_is_told_by_its_four_bit_products():
    found = {one.hardware_id for one in load_hardware() if one.is_blackwell}
    assert {"b200_sxm", "b300_sxm", "gb200", "gb300", "rtx_pro_6000_server"} <= found
    assert not found & {"h100_sxm", "h200_sxm", "l40s", "mi355x"}, "MI355X is not NVIDIA's"
