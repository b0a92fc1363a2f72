"""What is said of sweeps and loads that a real H200 and a real H100 made (bench/results), and is it what was measured there?"""

import csv
import json
import shutil
from pathlib import Path

import pytest
from command_line import run

RESULTS = Path(__file__).parents[2] / "bench" / "results"
RECORDS, OF_VLLM = RESULTS / "h200_transformers", RESULTS / "h100_vllm"
FIT = ("--fit", str(RECORDS / "step_time.json"))


def asked(*words, folder):
    outcome = run(*map(str, words), "--json", folder=folder)
    assert outcome.returncode in {0, 11}, outcome.stderr
    return json.loads(outcome.stdout)


def step_ms(run_name, prompt_tokens, batch_size):
    """The median decode step that was measured."""
    with (RECORDS / run_name / "sweep.csv").open() as lines:
        for row in csv.DictReader(lines):
            if (row["seq_len"], row["batch"]) == (str(prompt_tokens), str(batch_size)):
                return float(row["median_step_ms"])
    raise AssertionError("that point was not measured")


def test_steps_that_the_host_launches_gain_by_graphs_and_by_nothing_on_the_device(tmp_path):
    """Before, the changes of a fit's answer were those of a datasheet: int4 1.3x, graphs not at all."""
    point = ("--prompt", 512, "--batch", 1)
    answer = asked("predict", "qwen2.5-3b", *FIT, *point, "--what-if", folder=tmp_path)
    gains = {row["name"]: row["tpot_gain_ratio"] for row in answer["what_ifs"]}
    assert gains["--quantization int4"]["value"] == pytest.approx(1.0, abs=0.05)
    assert gains["--tp 2 --pp 1"]["value"] == pytest.approx(1.0, abs=0.05)
    measured = step_ms("eager", 512, 1) / step_ms("compiled", 512, 1)
    graphs = gains["--mode graphs"]
    assert graphs["low"] <= measured <= graphs["high"]
    assert graphs["value"] == pytest.approx(measured, rel=0.1)


def test_a_compiled_step_repeats_its_kv_heads_and_its_prefill_is_launched(tmp_path):
    """Held out, decode steps were off by 11 %; a prefill of 24.5 ms was explained to 8 ms."""
    fit = asked("fit", RECORDS / "compiled", "--out", tmp_path / "fit.json", folder=tmp_path)[
        "model"
    ]
    held_out = {one["phase"]: one["median_fraction"] for one in fit["held_out"]}
    assert held_out["decode"] < 0.07
    assert fit["kv_traffic_ratio"] == 17.0
    point = ("--fit", tmp_path / "fit.json", "--prompt", 512, "--batch", 1)
    answer = asked("predict", "qwen2.5-3b", *point, folder=tmp_path)["fitted"]
    assert answer["ttft_s"]["value"] == pytest.approx(24.5e-3, rel=0.05)
    assert answer["prefill_limited_by"] == "launch overhead"


@pytest.mark.parametrize("model", ["llama-3.1-8b", "smollm2-135m"])
def test_a_fit_is_carried_to_another_model(model, tmp_path):
    for prompt_tokens in (128, 1024):
        for batch_size in (1, 32):
            point = ("--prompt", prompt_tokens, "--batch", batch_size)
            answer = asked("predict", model, *FIT, "--transfer", *point, folder=tmp_path)
            tpot_s, ms = answer["fitted"]["tpot_s"], step_ms(model, prompt_tokens, batch_size)
            assert tpot_s["low"] * 1e3 <= ms <= tpot_s["high"] * 1e3
            assert tpot_s["value"] * 1e3 == pytest.approx(ms, rel=0.5)  # the host's own scatter


def test_what_the_host_does_is_carried_whole_to_another_format(tmp_path):
    point = ("--prompt", 512, "--batch", 1)
    plain = asked("predict", "qwen2.5-3b", *FIT, *point, folder=tmp_path)
    in_int4 = (*FIT, "--transfer", "--quantization", "int4", *point)
    packed = asked("predict", "qwen2.5-3b", *in_int4, folder=tmp_path)
    assert packed["fitted"]["tpot_s"]["value"] == pytest.approx(
        plain["fitted"]["tpot_s"]["value"], rel=0.05
    )


def test_a_fit_with_a_staircase_is_carried_to_more_devices(tmp_path):
    """It ended in a traceback: the staircase was kept, its covariance was not."""
    assert json.loads((RECORDS / "step_time.json").read_text())["staircase_log_ratio"]
    more = (*FIT, "--transfer", "--tp", 2, "--prompt", 512)
    assert asked("predict", "qwen2.5-3b", *more, folder=tmp_path)["fitted"]["tpot_s"]["value"] > 0


def test_what_was_sealed_is_judged_again_as_it_was(tmp_path):
    kept = tmp_path / "kept"
    shutil.copytree(RECORDS, kept)
    before = [json.loads(line) for line in (kept / "ledger.jsonl").read_text().splitlines()]
    words = ("verify", "plan.toml", "--out", "proof", "--ledger", "ledger.jsonl")
    answer = asked(*words, "--check", "unseen", folder=kept)
    verdicts = [one["outcome"]["verdict"] for one in answer["experiment"]["claims"]]
    assert (verdicts.count("held"), verdicts.count("undecided"), len(verdicts)) == (15, 3, 18)
    after = [json.loads(line) for line in (kept / "ledger.jsonl").read_text().splitlines()]
    assert after[: len(before)] == before


@pytest.mark.slow
def test_vllm_launches_a_step_with_prompts_kernel_by_kernel_beyond_what_it_captures(tmp_path):
    """A prefill of 2,048 tokens takes as long as one of 1,024; one of 512 a quarter of it.

    Without that, prefills held out were off by 13.9 %.
    """
    fitted = asked("fit", OF_VLLM / "sweep", "--out", tmp_path / "fit.json", folder=tmp_path)
    held_out = {one["phase"]: one["median_fraction"] for one in fitted["model"]["held_out"]}
    assert held_out["prefill"] < 0.09
    assert held_out["decode"] < 0.03
    point = ("--fit", tmp_path / "fit.json", "--prompt", "512,513,2048", "--batch", 1)
    grid = asked("predict", "qwen2.5-3b", *point, folder=tmp_path)
    captured, launched, longer = (row["numbers"]["ttft_s"]["value"] for row in grid["points"])
    assert captured == pytest.approx(10.6e-3, rel=0.3)
    assert launched > 3 * captured
    assert longer == pytest.approx(46.1e-3, rel=0.1)
    assert longer < 1.1 * launched


@pytest.mark.slow
def test_the_simulator_launches_prompts_as_the_fit_does(tmp_path):
    """One request at a time: its TTFT is the prefill that ``predict`` says, captured or not."""
    asked("fit", OF_VLLM / "sweep", "--out", tmp_path / "fit.json", folder=tmp_path)
    for prompt_tokens in (256, 1024):
        point = ("--fit", tmp_path / "fit.json", "--prompt", prompt_tokens, "--batch", 1)
        step_s = asked("predict", "qwen2.5-3b", *point, folder=tmp_path)["fitted"]["ttft_s"][
            "value"
        ]
        words = ("--fit", tmp_path / "fit.json", "--workload", f"{prompt_tokens}x2")
        answer = asked(
            "simulate", "qwen2.5-3b", *words, "--concurrency", 1, "--requests", 20, folder=tmp_path
        )
        (likely, *_) = [one["summary"] for one in answer["levels"] if one["step_times"] == "likely"]
        (ttft,) = [one for one in likely["latencies"] if one["latency"] == "ttft"]
        assert ttft["mean"]["seconds"]["value"] == pytest.approx(step_s, rel=1e-3)


@pytest.mark.slow
def test_few_sequences_have_few_captured_sizes(tmp_path):
    """vLLM captures up to twice max_num_seqs: with 64 a prompt of 256 tokens is launched by kernels."""
    asked("fit", OF_VLLM / "sweep", "--out", tmp_path / "fit.json", folder=tmp_path)
    words = ("simulate", "qwen2.5-3b", "--fit", tmp_path / "fit.json", "--workload", "256x2")
    ttft_s = []
    for n_sequences in (64, 128):
        more = ("--max-num-seqs", n_sequences, "--concurrency", 1, "--requests", 20)
        answer = asked(*words, *more, folder=tmp_path)
        (likely, *_) = [one["summary"] for one in answer["levels"] if one["step_times"] == "likely"]
        (ttft,) = [one for one in likely["latencies"] if one["latency"] == "ttft"]
        ttft_s.append(ttft["mean"]["seconds"]["value"])
    assert ttft_s[0] == pytest.approx(46e-3, rel=0.15)
    assert ttft_s[1] < 0.4 * ttft_s[0]


@pytest.mark.slow
def test_without_graphs_a_step_takes_as_long_as_a_prefill_that_was_launched_by_kernels(tmp_path):
    """The host's 46 ms were measured: a datasheet's time of a usual host stood beside them."""
    asked("fit", OF_VLLM / "sweep", "--out", tmp_path / "fit.json", folder=tmp_path)
    point = ("--fit", tmp_path / "fit.json", "--prompt", 1024, "--batch", 1, "--what-if")
    answer = asked("predict", "qwen2.5-3b", *point, folder=tmp_path)
    (eager,) = [one for one in answer["what_ifs"] if one["name"] == "--mode eager"]
    decode_s = answer["fitted"]["tpot_s"]["value"]
    gain = eager["tpot_gain_ratio"]
    assert gain["value"] == pytest.approx(decode_s / 46e-3, rel=0.25)
    assert 0.05 < gain["low"] <= gain["high"] < 0.25
    assert eager["ttft_gain_ratio"]["value"] == pytest.approx(1, abs=0.1)


@pytest.mark.slow
def test_a_change_that_makes_prompts_short_enough_to_be_captured_says_so(tmp_path):
    """Half of 1,024 tokens in the prefix cache leave 512, which vLLM captures: 15 ms for 40."""
    fitted = asked("fit", OF_VLLM / "sweep", "--out", tmp_path / "fit.json", folder=tmp_path)
    assert fitted["model"]["captured_tokens"] == 512
    point = ("predict", "qwen2.5-3b", "--fit", tmp_path / "fit.json")
    long = asked(*point, "--prompt", 1024, "--what-if", folder=tmp_path)
    short = asked(*point, "--prompt", 512, folder=tmp_path)
    (hits,) = [one for one in long["what_ifs"] if one["name"] == "--prefix-hit 0.5"]
    ratio = long["fitted"]["ttft_s"]["value"] / short["fitted"]["ttft_s"]["value"]
    assert hits["ttft_gain_ratio"]["value"] == pytest.approx(ratio, rel=0.25)
