"""Do the efficiencies in the package say what the tables say, and how sure they are?"""

import json
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest

from inferometer.fit.published import efficiencies
from inferometer.fit.published.efficiencies import SortOfServers, known_levels, published_steps
from inferometer.fit.published.priors import UNKNOWNS
from inferometer.inputs import catalog
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.roofline import peaks_of, step_work
from inferometer.perfmodel.steptime_levels import N_DRAWS
from inferometer.perfmodel.steptime_terms import shape_duration_s
from inferometer.perfmodel.types import decode_shape, prefill_shape
from inferometer.stats.estimate import Z_90

FILES = sorted(
    path
    for path in resources.files(efficiencies.__package__).joinpath(efficiencies.FOLDER).iterdir()
    if path.name.endswith(".json")
)
DECODE = decode_shape(batch_size=16, context_tokens=1024)


def steps(model, device, *, tp=1, framework="vllm", quantization=None):
    engine = EngineSpec(
        dtype="bfloat16", device="cuda", quantization=quantization, tensor_parallel_size=tp
    )
    return published_steps(find_model(model), engine, find_hardware(device), framework)


def half_width(fit, shape=DECODE):
    return float(fit.log_half_widths([shape], fit.work([shape]))[0])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_has_every_engine_kind_and_format_and_states_its_source(path):
    known = json.loads(path.read_bytes())
    ids = {one.hardware_id for one in catalog.load_hardware()} | {"nvidia", "amd"}
    assert known["device"] in ids
    assert known["fitted"]
    assert all(one["n_rows"] > 0 and one["licence"] for one in known["sources"])
    general = {
        (one["engine"], one["is_moe"], one["precision"])
        for one in known["efficiencies"]
        if one["model_id"] is None
    }
    assert len(general) == 3 * 2 * 3
    for one in known["efficiencies"]:
        assert (one["n_rows"] == 0) == (one["carried_from"] is not None)
        assert [of["phase"] for of in one["held_out"]] == ["decode", "prefill"]
        assert len(one["distances"]) == len(UNKNOWNS)
        assert min(one["decode_spread_ratio"], one["prefill_spread_ratio"]) > 0


# (model, device, tensor parallel, format, users, TPOT in ms): closed loops of vLLM with 1,024 tokens
# in and out, "Data from InferenceX, SemiAnalysis LLC", by silicon_sample.csv of aiconfigurator (095f58a)
FACTS = [
    ("llama-3.1-70b", "h100_sxm", 2, "float8", 4, 17.41),
    ("llama-3.1-70b", "b200_sxm", 1, "float8", 4, 16.34),
    ("llama-3.1-70b", "b200_sxm", 4, "float4", 4, 7.23),
    ("gpt-oss-120b", "mi300x", 2, "float4", 4, 6.50),
    ("gpt-oss-120b", "h200_sxm", 2, "float4", 4, 4.80),
]
MEAN_CONTEXT = round(0.9 * 1024 + 0.45 * 1024)


@pytest.mark.parametrize(("model", "device", "tp", "quantization", "users", "ms"), FACTS)
def test_decode_steps_are_those_of_the_table(model, device, tp, quantization, users, ms):
    fit = steps(model, device, tp=tp, quantization=quantization)
    shape = decode_shape(batch_size=users, context_tokens=MEAN_CONTEXT)
    predicted = fit.predict(shape).duration_s
    assert predicted.low * 0.95 < ms / 1e3 < predicted.high * 1.05
    most = 4.3 if "gpt-oss" in model else 1.7  # other people's servers of experts scatter
    assert predicted.high / predicted.low < most


def test_a_model_of_which_rows_exist_is_known_better_than_others_and_a_device_without_rows_less():
    own = steps("llama-3.1-70b", "h100_sxm", tp=4, quantization="float8")
    other = steps("llama-2-70b", "h100_sxm", tp=4, quantization="float8")
    elsewhere = steps("llama-2-70b", "a100_80gb_sxm", tp=4)
    assert half_width(own) < half_width(other) < half_width(elsewhere)
    assert "rows of llama-3.1-70b by vLLM on NVIDIA H100" in own.trained_on.hardware
    assert "rows of other models by vLLM on NVIDIA H100" in other.trained_on.hardware
    carried = steps("llama-3.1-70b", "a100_80gb_sxm", tp=4, quantization="float8")
    assert "of llama-3.1-70b by vLLM on NVIDIA B200" in carried.trained_on.hardware
    assert half_width(own) < half_width(carried)
    by_another = steps("minimax-m2.5", "h100_sxm", tp=8, framework="sglang", quantization="float8")
    assert "of minimax-m2.5 by vLLM on NVIDIA H100" in by_another.trained_on.hardware
    assert "other NVIDIA GPUs, none by vLLM" in elsewhere.trained_on.hardware
    assert own.subject.transferred_from is None
    assert elsewhere.subject.transferred_from == "other NVIDIA GPUs"


@pytest.mark.parametrize(
    ("model", "of", "framework", "quantization"),
    [
        ("deepseek-r1", "deepseek-v3", "sglang", "float8"),
        ("llama-3.3-70b", "llama-3.1-70b", "vllm", "float8"),
        ("minimax-m2.7", "minimax-m2.5", "vllm", "float8"),
    ],
)
def test_a_model_takes_the_time_of_the_one_with_its_matrices(model, of, framework, quantization):
    """Rows of DeepSeek-V3 are R1's too: it was predicted by those of all other models."""
    options = {"tp": 8, "framework": framework, "quantization": quantization}
    own, alike = (steps(one, "h200_sxm", **options) for one in (of, model))
    assert f"of {of} by" in alike.trained_on.hardware
    times = [one.predict(DECODE).duration_s for one in (own, alike)]
    assert times[0].value == times[1].value
    assert "other models" in steps("glm-4.7", "h200_sxm", **options).trained_on.hardware


def test_gpus_without_a_link_of_their_own_are_joined_by_pcie():
    """RTX PRO 6000 in pairs, of which no row is in the tables: 30.6 ms at batch 16, as a fit of
    LLMServingSim's measured run of Qwen3-32B says (casys-kaist/LLMServingSim@5daddb2, MIT)."""
    pair = steps("qwen3-32b", "rtx_pro_6000_server", tp=2)
    predicted = pair.predict(decode_shape(batch_size=16, context_tokens=512)).duration_s
    assert predicted.value == pytest.approx(0.0306, rel=0.15)
    assert predicted.low < 0.0306 < predicted.high
    assert "PCIe" in pair.trained_on.hardware
    eight = steps("qwen3-32b", "l40s", tp=8)
    prefill = prefill_shape(batch_size=4, prompt_tokens=1024)
    assert half_width(eight, prefill) > half_width(steps("qwen3-32b", "l40s"), prefill)
    linked = steps("qwen3-32b", "a100_80gb_sxm", tp=8)
    assert not linked.free, "the rows say how fast NVLink is"


def test_a_format_that_the_tables_lack_is_known_less():
    known, unpacked = (
        steps("llama-3.1-70b", "h100_sxm", tp=2, quantization=name) for name in (None, "int4")
    )
    assert half_width(unpacked) > half_width(known)


def test_what_no_table_is_like_is_answered_by_the_datasheet():
    cpu = catalog.load_hardware()
    device = next(one for one in cpu if one.kind == "cpu")
    engine = EngineSpec(dtype="float32", device="cpu")
    model = find_model("smollm2-135m")
    assert published_steps(model, engine, device, "vllm") is None
    assert known_levels(model, engine, device).basis == "datasheet"
    gpu = find_hardware("h100_sxm")
    half = EngineSpec(dtype="bfloat16", device="cuda")
    assert known_levels(model, half, gpu).basis == "published"
    assert known_levels(model, half, gpu, is_datasheet=True).basis == "datasheet"


def test_draws_are_as_far_apart_as_the_interval_of_a_step():
    fit = steps("llama-3.1-8b", "h100_sxm")
    levels = known_levels(fit.model, fit.engine, find_hardware("h100_sxm"))
    assert len(levels.draws) == N_DRAWS
    times_s = [shape_duration_s(draw.steps, DECODE) for draw in levels.draws]
    assert len(set(times_s)) == N_DRAWS
    waits = [end.first_token_ratio for end in (levels.fast, levels.slow)]
    assert waits[0] < 1 < waits[1] < np.exp(Z_90 * fit.first_token_spread_ratio)
    for end, draw in ((levels.fast, levels.draws[0]), (levels.slow, levels.draws[-1])):
        assert end == draw.steps._replace(first_token_ratio=end.first_token_ratio)


@pytest.mark.parametrize("framework", ["vllm", "sglang", "trtllm", "static"])
def test_every_gpu_of_these_vendors_is_answered(framework):
    for device in catalog.load_hardware():
        is_able = device.peak_flop_per_s("bfloat16") is not None
        vendors = {"nvidia"} if framework == "trtllm" else {"nvidia", "amd"}
        if device.kind == "gpu" and device.vendor in vendors and is_able:
            fit = steps("llama-3.1-8b", device.hardware_id, framework=framework)
            assert fit is not None, device.hardware_id
            shapes = [DECODE, prefill_shape(batch_size=1, prompt_tokens=1024)]
            times = [one.duration_s.value for one in fit.predict_all(shapes)]
            assert np.isfinite(times).all()
            # faster than reading the weights at the datasheet's bandwidth no step can be
            floor_s = 16e9 / device.memory_bytes_per_s.value
            assert times[0] > floor_s


@pytest.mark.parametrize("quantization", [None, "float8"])
@pytest.mark.parametrize("device", ["h200_sxm", "l40s", "mi300x"])
@pytest.mark.parametrize("model", ["mistral-large-2407", "llama-3.1-8b", "qwen3-30b-a3b"])
def test_no_step_and_no_draw_is_faster_than_the_peaks_of_the_datasheet(model, device, quantization):
    hardware, fit = find_hardware(device), steps(model, device, quantization=quantization)
    shapes = [
        decode_shape(batch_size=1, context_tokens=512),
        decode_shape(batch_size=128, context_tokens=2048),
        prefill_shape(batch_size=1, prompt_tokens=1024),
        prefill_shape(batch_size=16, prompt_tokens=1024),
    ]
    peaks = peaks_of(hardware, fit.engine)
    fastest = max(peaks.flop_per_s, hardware.peak_flop_per_s(quantization or "bfloat16").value)
    draws = known_levels(fit.model, fit.engine, hardware).draws
    for shape, predicted in zip(shapes, fit.predict_all(shapes), strict=True):
        work = step_work(fit.model, fit.engine, shape)
        read_s = (work.weight_bytes + work.kv_read_bytes) / peaks.memory_bytes_per_s
        least_s = max(work.total_flop / fastest, read_s if shape.n_decode_requests else 0.0)
        assert least_s * 0.999 < predicted.duration_s.low < predicted.duration_s.value
        assert predicted.duration_s.value < predicted.duration_s.high
        assert min(shape_duration_s(draw.steps, shape) for draw in draws) > 0.999 * least_s


BATCHES, PROMPTS = (1, 4, 16, 64, 256), (128, 512, 2048, 8192)
SCANNED = [decode_shape(batch_size=n, context_tokens=1024) for n in BATCHES] + [
    prefill_shape(batch_size=1, prompt_tokens=n) for n in PROMPTS
]


def scanned_s(model, device, **options):
    """Times of decode steps by batch, and of prefills by prompt."""
    predicted = steps(model, device, **options).predict_all(SCANNED)
    times = np.array([one.duration_s.value for one in predicted])
    return times[: len(BATCHES)], times[len(BATCHES) :]


DEVICES = ["h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm", "a100_80gb_sxm", "l40s", "mi300x"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-27b", "llama-3.1-70b", "mixtral-8x7b"])
def test_more_work_takes_longer_and_a_narrower_format_does_not(model, device):
    """Models of which most have no rows: the formats' rows are those of other models and engines."""
    wide, narrow = scanned_s(model, device), scanned_s(model, device, quantization="float8")
    for decode_s, prefill_s in (wide, narrow):
        assert (np.diff(decode_s) > 0).all()
        assert (np.diff(prefill_s) > 0).all()
    assert (narrow[0] <= 1.05 * wide[0]).all()
    if find_model(model).moe is None:  # grouped products in 8 bit gain little, and rows scatter
        is_unpacked = find_hardware(device).peak_flop_per_s("float8") is None
        most_ratio = 1.15 if is_unpacked else 1.05  # prompts compute in 16 bit, and unpack besides
        assert (narrow[1] <= most_ratio * wide[1]).all()


@pytest.mark.parametrize("device", ["v100_sxm2_32gb", "b300_sxm", "gb300"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-27b", "mixtral-8x7b"])
def test_int8_weights_are_widened_where_int8_products_are_the_slower_ones(model, device):
    dtype = find_hardware(device).usual_dtype
    engine = EngineSpec(dtype=dtype, device="cuda", tensor_parallel_size=4)
    wide, narrow = (
        published_steps(
            find_model(model), replace(engine, quantization=one), find_hardware(device), "vllm"
        ).predict_all(SCANNED)
        for one in (None, "int8")
    )
    for of_wide, of_narrow in zip(wide, narrow, strict=True):
        assert of_narrow.duration_s.value <= 1.01 * of_wide.duration_s.value


@pytest.mark.parametrize("device", ["h100_sxm", "h200_sxm", "b200_sxm", "a100_80gb_sxm"])
@pytest.mark.parametrize("model", ["llama-3.1-70b", "mixtral-8x7b"])
def test_two_linked_devices_are_faster_than_one(model, device):
    one, two = scanned_s(model, device), scanned_s(model, device, tp=2)
    assert (two[0] < one[0]).all()
    assert (two[1] < one[1]).all()
    work = step_work(find_model(model), EngineSpec(dtype="bfloat16"), SCANNED[-1])
    peak = find_hardware(device).peak_flop_per_s("bfloat16").value
    best = {"a100_80gb_sxm": 0.87}.get(device, 0.8)
    assert work.total_flop / one[1][-1] / peak < best, "of the peak, as the best product alone"


def test_rows_of_a_model_elsewhere_are_named_beside_those_of_the_device():
    """They were named alone, and what was measured on the device was called measured nowhere."""
    h100, l40s = (steps("llama-3.1-8b", one).trained_on.hardware for one in ("h100_sxm", "l40s"))
    assert h100.split(" (")[0].endswith(
        " published rows of other models by vLLM on NVIDIA H100 SXM5 80GB,"
        " and of llama-3.1-8b by TensorRT-LLM on NVIDIA H100 SXM5 80GB"
    )
    assert steps("llama-3.1-8b", "h100_sxm").subject.transferred_from is None
    assert l40s.startswith("published rows of other NVIDIA GPUs, and of llama-3.1-8b by")
    assert ", none by vLLM on NVIDIA L40S (" in l40s
    assert steps("llama-3.1-8b", "l40s").subject.transferred_from == "other NVIDIA GPUs"


def test_every_kind_of_server_has_one_entry_of_what_others_published():
    path = resources.files(efficiencies.__package__).joinpath(efficiencies.SERVERS_FILE)
    known = json.loads(path.read_bytes())
    sorts = [tuple(one["sort"]) for one in known["servers"]]
    assert len(sorts) == len(set(sorts)) == 4 * 3 * 2 + 1
    assert efficiencies.SHARED in sorts
    assert known["sources"]
    for one in known["servers"]:
        assert one["n_values"] >= one["n_sources"]
        assert 1.0 <= one["slower_ratio"] < 2.0, "rows are of launches that know the model"
        assert 0.0 < one["spread_ratio"] <= 0.5


def test_replicas_that_share_experts_are_as_slow_as_others_are_also_of_a_model_with_rows(
    monkeypatch,
):
    """Data-parallel attention: laboratories tune it, and other people's servers take longer."""
    others = efficiencies.servers_of_others(efficiencies.SHARED)
    engine = EngineSpec(dtype="bfloat16", device="cuda", quantization="float8")
    of = find_model("deepseek-v3"), engine, find_hardware("h200_sxm")

    def levels(n_sharing):
        efficiencies.published_steps.cache_clear()
        found = known_levels(*of, framework="sglang", n_sharing=n_sharing)
        return shape_duration_s(found.likely, DECODE), found.origin

    alone_s, alone = levels(1)
    shared_s, shared = levels(8)
    with monkeypatch.context() as patch:
        found = efficiencies.servers_of_others
        patch.setattr(
            efficiencies, "servers_of_others", lambda sort: replace(found(sort), slower_ratio=1.0)
        )
        assert levels(1)[0] == alone_s
        as_rows_s = levels(8)[0]
    efficiencies.published_steps.cache_clear()
    assert shared_s / as_rows_s == pytest.approx(others.slower_ratio, rel=1e-6)
    assert f"{others.slower_ratio:g} times as long, by {others.n_sources} sources" in shared
    assert "times as long" not in alone
    assert "servers that share experts" in shared


@pytest.mark.parametrize("shape", [DECODE, prefill_shape(batch_size=1, prompt_tokens=2048)])
def test_a_model_without_rows_is_as_slow_as_others_servers_are_and_one_with_rows_is_as_they_say(
    monkeypatch, shape
):
    """All of a step by the same factor: weights, cache, products, launches and links."""

    def durations():
        efficiencies.published_steps.cache_clear()
        models = (("qwen3-30b-a3b", 1), ("gpt-oss-120b", 1), ("qwen3-235b-a22b", 4))
        return [steps(model, "h100_sxm", tp=tp).predict(shape).duration_s.value
                for model, tp in models]  # fmt: skip

    others = efficiencies.servers_of_others(SortOfServers("nvidia", "vllm", is_moe=True))
    seen = durations()
    with monkeypatch.context() as patch:
        alike = replace(others, slower_ratio=1.0)
        patch.setattr(efficiencies, "servers_of_others", lambda *_: alike)
        by_rows = durations()
    efficiencies.published_steps.cache_clear()
    assert others.slower_ratio > 1.1
    for k in (0, 2):
        assert seen[k] / by_rows[k] == pytest.approx(others.slower_ratio, rel=1e-6)
    told = steps("qwen3-30b-a3b", "h100_sxm").trained_on.hardware
    factor = (
        f"; steps {others.slower_ratio:g} times as long, by {others.n_sources} sources of other"
    )
    assert factor in told
    own = steps("gpt-oss-120b", "h100_sxm", quantization="float4").trained_on.hardware
    assert "times as long" not in own


def test_dense_servers_on_amd_differ_more():
    """Published rows there are of one model and of tuned starts; those of experts scatter anywhere."""
    amd, nvidia = (half_width(steps("llama-3.1-8b", device)) for device in ("mi300x", "h100_sxm"))
    assert amd > 1.3 * nvidia
    assert amd >= np.log(1.4)  # measured, of four dense models
