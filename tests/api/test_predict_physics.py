"""Do links, latencies, modes, measured steps and speculation reach the datasheet's answer?"""

import re

import pytest

import inferometer as im
from inferometer.api import named_fit
from inferometer.api.predict_page import predict_page
from inferometer.errors import SpecError
from inferometer.inputs.catalog import find_hardware

SPLIT = {"hardware": "a100_80gb_sxm", "tp": 4, "datasheet": True}


def speeds(model="llama-2-70b", **words):
    return im.predict(model, **{**SPLIT, **words}).datasheet.speeds


def test_a_link_is_what_joins_the_devices():
    """Not all instances of the same eight devices are alike."""
    own, host, fast = speeds(), speeds(link="pcie4"), speeds(link="600GB/s")
    assert speeds(link="nvlink") == own
    assert host.ttft_s.value > 1.3 * own.ttft_s.value
    assert fast.ttft_s.value < own.ttft_s.value
    with pytest.raises(SpecError, match="no link of its own"):
        speeds("llama-3.1-8b", hardware="l4", link="nvlink")


def test_a_measured_latency_replaces_the_prior():
    n_messages = 2 * 80 + 1 + 1  # reductions of layers and embedding, and the gather of logits
    gained_s = speeds(all_reduce_us=112).tpot_s.value - speeds(all_reduce_us=12).tpot_s.value
    assert gained_s == pytest.approx(n_messages * 100e-6)
    assert speeds(all_reduce_us=12).tpot_s.value == speeds().tpot_s.value


def test_modes_are_ordered_for_a_small_model():
    small = {"model": "smollm2-135m", "tp": 1}
    eager, graphs, engine = (
        speeds(**small, mode=mode).tpot_s.value for mode in ("eager", "graphs", "engine")
    )
    assert graphs < engine < eager
    assert engine - graphs == pytest.approx(1e-3)
    assert eager == pytest.approx(30 * 0.72e-3)


def test_logits_of_all_positions_hold_less():
    words = {"hardware": "l4", "batch": 64, "prompt": 1024, "output": 32, "datasheet": True}
    last, every = (
        im.predict(
            "qwen2.5-3b", **words, mode="graphs", all_logits=is_all
        ).datasheet.sizes.largest_batch_size
        for is_all in (False, True)
    )
    assert every < last / 2
    scores = im.predict("qwen2.5-3b", **words, mode="eager").datasheet.sizes.memory
    assert scores.activation_bytes > 64 * 1024 * 1024 * 16 * 10


def test_a_serving_engine_holds_no_more_activations_than_those_of_its_largest_step():
    words = {"hardware": "b200_sxm", "tp": 8, "batch": 256, "prompt": 8192, "output": 1024}
    served, formed = (
        im.predict("qwen3.5-397b-a17b", **words, mode=mode).datasheet.sizes
        for mode in ("engine", "graphs")
    )
    kv_bytes = 256 * (8192 + 1024) * served.kv_bytes_per_token
    assert served.memory.fits  # 792 GB of weights and 72 GB of KV on 1.5 TB
    assert 256 < served.largest_batch_size < 256 * 1.5e12 / kv_bytes
    assert not formed.memory.fits  # all 2 million tokens of the prompts at once
    few, many = (
        im.predict("llama-3.1-8b", hardware="h100", batch=n).datasheet.sizes.memory
        for n in (32, 256)
    )
    assert few.activation_bytes == many.activation_bytes


def test_cautions_on_the_datasheets_step_times_stay_away_from_published_ones():
    words = {"hardware": "mi300x", "batch": 8}
    for what_if in (False, True):
        answer = im.predict("llama-3.1-8b", **words, what_if=what_if)
        assert answer.basis == "published"
        texts = [one.text for one in predict_page(answer).cautions]
        assert any("price" in text and "datasheet" not in text for text in texts)
        assert any("NVIDIA devices" in text for text in texts) == what_if
    by_datasheet = im.predict("llama-3.1-8b", **words, datasheet=True)
    assert any("NVIDIA devices" in one.text for one in predict_page(by_datasheet).cautions)


def test_this_machine_with_a_known_gpu_is_that_gpu(monkeypatch):
    """It was a datasheet under the words "measured ceilings", with twenty times the interval."""
    monkeypatch.setattr(named_fit, "this_hardware", lambda: find_hardware("NVIDIA H200"))
    here = im.predict("llama-3.1-8b", hardware="this")
    there = im.predict("llama-3.1-8b", hardware="h200_sxm")
    assert here.basis == there.basis == "published"
    assert here.fitted.tpot_s == there.fitted.tpot_s


def test_one_token_has_no_decode():
    """The first token comes out of the prefill: no TPOT, no decoding, as many answers as tokens."""
    asked = {"hardware": "h100_sxm", "batch": 8, "prompt": 2048}
    shown = str(im.predict("llama-3.1-8b", output=1, **asked))
    assert "TPOT" not in shown.split("TRUST", maxsplit=1)[0]
    assert "decod" not in shown.split("TRUST", maxsplit=1)[0]
    ttft_s = im.predict("llama-3.1-8b", output=1, **asked).answered.ttft_s.value
    answered = re.search(r"answered\s+([\d.]+) requests/s", shown)
    assert float(answered.group(1)) == pytest.approx(8 / ttft_s, rel=0.01)
    assert "TPOT" in str(im.predict("llama-3.1-8b", output=2, **asked)).split("TRUST")[0]


@pytest.mark.parametrize(("model", "batch"), [("qwen3-30b-a3b", 1), ("qwen3-30b-a3b", 16)])
def test_intervals_of_published_rows_begin_above_the_roofline(model, batch):
    """The efficiencies of other devices reach below it: 78 ms where L40S needs 102 to read the weights."""
    answer = im.predict(model, hardware="l40s", prompt=1024, output=64, batch=batch)
    assert answer.basis == "published"
    least_s = [phase.bound.lower_s for phase in (answer.datasheet.prefill, answer.datasheet.decode)]
    found = [answer.answered.ttft_s, answer.answered.tpot_s]
    for one, bound_s in zip(found, least_s, strict=True):
        assert bound_s * 0.999 <= one.low <= one.value
    assert answer.answered.e2e_s.low >= 0.999 * (least_s[0] + 63 * least_s[1])


@pytest.mark.parametrize("n_prompts", [32, 128])
def test_prompts_of_a_large_batch_take_the_steps_that_the_engine_takes(n_prompts):
    """One step of 131,072 tokens came out at 87 % of the H100's peak; the engine takes 16 steps."""
    words = {"hardware": "h100_sxm", "prompt": 1024, "output": 16}
    one_step = im.predict("llama-3.1-8b", batch=8, **words)  # 8192 tokens
    many = im.predict("llama-3.1-8b", batch=n_prompts, **words)
    front_s = one_step.answered.ttft_s.value * 0.1
    one_s, all_s = (answer.answered.ttft_s.value for answer in (one_step, many))
    assert n_prompts / 8 * (one_s - front_s) < all_s <= n_prompts / 8 * one_s
    run = im.simulate(
        "llama-3.1-8b", hardware="h100_sxm", workload="1024x2", concurrency=n_prompts,
        requests=n_prompts,
    )  # fmt: skip
    assert all_s == pytest.approx(run.levels[0].summary.span_s, rel=0.1)


def test_steps_of_the_prompts_follow_one_another_through_the_stages():
    """Each micro-batch waited for the whole one before it: 6.5 s where the simulator needs 4.6."""
    words = {"hardware": "h100_sxm", "tp": 4, "pp": 2}
    found = im.predict("llama-3.1-70b", batch=64, prompt=2048, output=4, **words)
    run = im.simulate(
        "llama-3.1-70b", workload="2048x2", concurrency=64, requests=64, **words
    )  # fmt: skip
    assert found.basis == "published"
    assert found.answered.ttft_s.value == pytest.approx(run.levels[0].summary.span_s, rel=0.05)
    by_datasheet = im.predict("llama-3.1-70b", batch=64, prompt=2048, datasheet=True, **words)
    one_stage = im.predict(
        "llama-3.1-70b", batch=64, prompt=2048, datasheet=True, hardware="h100_sxm", tp=4
    )
    ratio = by_datasheet.answered.ttft_s.value / one_stage.answered.ttft_s.value
    assert 0.5 < ratio < 0.6, "two stages, sixteen steps: 8.5 of their ways against 16"


def test_kv_heads_are_split_or_copied_evenly():
    """Ten KV heads over four devices had an answer; vLLM does not start so."""
    for n_devices in (1, 2):
        assert im.predict("phi-4", hardware="h100_sxm", tp=n_devices).datasheet.sizes.memory.fits
    with pytest.raises(SpecError, match="10 KV heads of 'phi-4' cannot be split over 4") as caught:
        im.predict("phi-4", hardware="h100_sxm", tp=4)
    assert (caught.value.allowed, caught.value.try_) == ("1, 2, 5, 10, 20, 40", "tp=2")
    with pytest.raises(SpecError, match="40 query heads"):
        im.predict("phi-4", hardware="h100_sxm", tp=3)
    copied = im.predict("qwen2.5-0.5b", hardware="h100_sxm", tp=14)  # two KV heads, seven times
    assert copied.datasheet.sizes.memory.fits
    sized = im.size(
        "phi-4", gpus="l4", tp="2,4", rate=0.5, slo="ttft:p95<60s", workload="64x16",
        probe_requests=100, max_num_seqs="16", max_num_batched_tokens="2048", executor="inline",
    )  # fmt: skip
    assert sized.pick.n_devices == 2
    assert "does not divide its 10 KV heads" in str(sized)


@pytest.mark.parametrize(
    ("asked", "what", "try_"),
    [
        ({"quantization": "float8"}, "no known rate in float8", "quantization='int8'"),
        ({"dtype": "bfloat16"}, "no known rate in bfloat16", "dtype='float16'"),
        ({"dtype": "bfloat16", "quantization": "int8"}, "rate in bfloat16", "dtype='float16'"),
    ],
)
def test_a_format_without_a_rate_is_answered_with_one_that_has(asked, what, try_):
    """`allowed` had only the formats of products, where int8 and int4 weights are widened."""
    with pytest.raises(SpecError, match=what) as caught:
        im.predict("llama-3.1-8b", hardware="apple_m3_10", **asked)
    assert caught.value.try_ == try_
    assert "quantization" not in asked or "dtype" in asked or "int4" in caught.value.allowed
    option, value = try_.replace("'", "").split("=")
    assert im.predict("llama-3.1-8b", hardware="apple_m3_10", **asked | {option: value}).answered


def test_an_answer_of_one_token_has_no_tpot():
    found = im.predict("llama-3.1-8b", hardware="h100_sxm", output=1).answered
    assert found.tpot_s is found.tokens_per_s_per_user is found.decode_tokens_per_s is None
    assert found.e2e_s.value == pytest.approx(found.ttft_s.value)


def test_a_grid_over_one_token_and_more_has_tpot_where_there_is_one():
    grid = im.predict(
        "llama-3.1-8b", hardware="h100_sxm", output=[1, 64], batch=[1, 8], prompt=[64, 512]
    )
    for row in grid.rows():
        single = row["output"] == 1
        names = ("tpot_s", "decode_tokens_per_s", "mbu_fraction", "decode_limited_by")
        assert all((row[name] is None) == single for name in names)
    sentences = " ".join(one.sentence for one in grid.findings)
    assert "nan" not in sentences


@pytest.mark.parametrize(
    ("model", "n_devices", "gigabytes"), [("gemma-3-27b", 8, 6.86), ("llama-3.1-8b", 8, 2.01)]
)
def test_serving_engines_divide_the_embedding(model, n_devices, gigabytes):
    """All parameters over the devices, but for norms: as vLLM, SGLang and TensorRT-LLM divide them."""
    answer = im.predict(model, hardware="h100_sxm", tp=n_devices)
    assert answer.datasheet.sizes.weight_bytes / 1e9 == pytest.approx(gigabytes, rel=0.01)
