"""Does `inferometer tune` answer, write its folder, plan, and refuse what cannot be?"""

import json
import re
import subprocess

import jsonschema
import pytest
from command_line import check_refused, run

import inferometer as im
from inferometer.api import tune_preset

NARROW = ("llama-3.1-8b", "--hardware", "h100_sxm", "--max-num-seqs", "8", "--requests", "300")
SLO = ("--slo", "ttft:p95<500ms, tpot:p95<40ms")
STEPS = ("--steps", "max_num_seqs,weight_precision")
QUICK = (*NARROW, *SLO, *STEPS, "--rate", "8")


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (("llama-3.1-8b", "--hardware", "h100_sxm"), 2, ("--slo", "ttft:p95<500ms")),
        ((*QUICK, "--steps", "seats"), 2, ("there is no step 'seats'", "max_num_seqs")),
        ((*QUICK, "--policy", "trtllm"), 2, ("playbook of trtllm", "vllm, sglang")),
        (("llama-3.1-8b", "--slo", "ttft:p95<1s"), 2, ("the step times are unknown",)),
        (("llama-3.1-8b", "--preset", "batch"), 2, ("depend on the device", "--hardware")),
        ((*NARROW, "--slo", "ttft<1s"), 2, ("'ttft<1s' is no threshold",)),
        ((*QUICK, "--concurrency", "4"), 2, ("both a rate and a concurrency",)),
        ((*QUICK, "--least-gain", "5"), 2, ("--least-gain",)),
    ],
)
def test_what_cannot_be_is_refused(words, code, what, tmp_path):
    check_refused(run("tune", *words, folder=tmp_path), code, *what)


@pytest.mark.slow
def test_the_answer_the_folder_and_python_are_the_same(tmp_path):
    printed = run("tune", *QUICK, "--json", "--out", "tuned", folder=tmp_path)
    assert printed.returncode in {0, 11}, printed.stderr
    answer = json.loads(printed.stdout)
    schema = json.loads(run("schema", "tune", "--json", folder=tmp_path).stdout)["schema"]
    jsonschema.validate(answer, schema)
    assert answer["is_confirmed"]
    assert json.loads((tmp_path / "tuned/answer.json").read_text()) == answer
    assert answer["command"] in (tmp_path / "tuned/serve.sh").read_text()
    subprocess.run(["sh", "-n", tmp_path / "tuned/serve.sh"], check=True)
    assert "<html" in (tmp_path / "tuned/index.html").read_text()
    again = im.tune(
        "llama-3.1-8b",
        hardware="h100_sxm",
        max_num_seqs=8,
        requests=300,
        slo=SLO[1],
        steps=STEPS[1],
        rate=8,
    )
    assert again.gain_fraction.value == answer["gain_fraction"]["value"]
    check_refused(run("tune", *QUICK, "--out", "tuned", folder=tmp_path), 2, "not empty")


@pytest.mark.slow
def test_lossy_steps_come_with_the_command_that_checks_them(tmp_path):
    shown = run("tune", *QUICK, "--verbose", folder=tmp_path).stdout
    assert "needs a quality check" in shown
    assert "inferometer quality FOLDER --quantization" in shown
    assert "max_num_seqs" in shown
    for box in ("baseline recorded", "SLOs set", "TP minimal", "dashboards, spans and alarms"):
        assert box in shown


@pytest.mark.slow
def test_a_dry_run_names_changes_simulations_and_time(tmp_path):
    printed = run("tune", *QUICK, "--dry-run", "--json", folder=tmp_path)
    plan = json.loads(printed.stdout)
    assert printed.returncode == 0
    assert [one["name"] for one in plan["steps"]] == ["max_num_seqs", "weight_precision"]
    assert plan["n_candidates"] == sum(len(one["changes"]) for one in plan["steps"]) > 10
    assert plan["n_restarts"] == 0
    done = json.loads(run("tune", *QUICK, "--json", folder=tmp_path).stdout)
    assert done["n_simulations"] <= plan["n_simulations"]


@pytest.mark.parametrize("policy", ["vllm", "sglang"])
@pytest.mark.parametrize("preset", ["interactive", "batch"])
def test_every_value_of_a_preset_has_a_reason(preset, policy, tmp_path):
    words = ("llama-3.1-8b", "--hardware", "h100_sxm", "--preset", preset, "--policy", policy)
    answer = json.loads(run("tune", *words, "--json", folder=tmp_path).stdout)
    assert len(answer["values"]) >= 10
    assert all(len(one["why"]) > 10 for one in answer["values"])
    assert answer["command"].startswith("vllm serve" if policy == "vllm" else "python -m sglang")
    named = {one["setting"]: one["value"] for one in answer["values"]}
    flag = "--max-num-seqs" if policy == "vllm" else "--max-running-requests"
    assert f"{flag} {named['max_num_seqs']} " in answer["command"]


def test_an_interactive_preset_has_the_smaller_steps():
    answers = {
        name: im.tune("llama-3.1-8b", hardware="h100_sxm", preset=name)
        for name in ("interactive", "batch")
    }
    budgets = {
        name: int(one.value)
        for name, answer in answers.items()
        for one in answer.values
        if one.setting == "max_num_batched_tokens"
    }
    assert budgets["interactive"] < budgets["batch"]


@pytest.mark.slow
def test_sglang_is_tuned_by_its_own_flags(tmp_path):
    words = ("llama-3.1-8b", "--hardware", "h100_sxm", "--policy", "sglang", "--max-num-seqs", "8")
    steps = ("--steps", "max_num_seqs,prefill_shaping,scheduling", "--requests", "200")
    printed = run("tune", *words, *SLO, *steps, "--rate", "8", "--json", folder=tmp_path)
    answer = json.loads(printed.stdout)
    assert answer["is_confirmed"]
    chosen = {one["name"]: one for one in answer["settings"]}["max_running_requests"]
    assert f"--max-running-requests {chosen['value']} " in answer["command"]
    assert "gains in every pair" in chosen["why"]


def preset(name, **more):
    return im.tune("llama-3.1-8b", preset=name, **more)


def test_a_preset_that_no_batch_can_keep_is_not_called_within_its_limit():
    """On an L4 the weights alone take 16 GB / 300 GB/s = 54 ms a step."""
    at_once, budget = preset("interactive", hardware="l4").values[:2]
    assert at_once.value == "8"
    assert "beyond a TPOT of 50 ms already" in at_once.why
    assert "the smallest, and more than twice a TPOT" in budget.why
    assert re.search(r"step of [\d.]+ ms \[[\d.]+ ms, [\d.]+ ms\]", at_once.why)


def test_a_step_time_too_uncertain_to_choose_by_is_named(monkeypatch):
    """SGLang's published first tokens scatter by a factor of 8 between mixtures of experts."""
    monkeypatch.setattr(tune_preset, "_WIDE_RATIO", 5.0)
    answer = im.tune("qwen3-30b-a3b", hardware="h100_sxm", preset="interactive", policy="sglang")
    budget = answer.values[1]
    assert "an expected step full of prompts" in budget.why
    assert "at most twice a TPOT of 50 ms, though not the slowest" in budget.why
    assert re.search(r"a step full of prompts is known to a factor of [6-9] only", answer.trust)
    assert "inferometer load URL --out runs/NAME" in answer.trust
    certain = preset("interactive", hardware="h100_sxm")
    assert "published rows" in certain.trust
    assert "undecided" not in certain.trust


def test_the_interval_of_a_step_is_that_of_all_draws_of_its_shape():
    """The draw with the fastest request has a slower decode step here than the likely one."""
    at_once = im.tune("llama-3.1-70b", hardware="l4", tp=8, preset="interactive").values[0]
    numbers = re.search(r"step of ([\d.]+) ms \[([\d.]+) ms, ([\d.]+) ms\]", at_once.why)
    likely, least, most = map(float, numbers.groups())
    assert least < likely < most


def test_the_command_of_a_preset_has_its_values():
    answer = preset("batch", hardware="h100_sxm", policy="sglang")
    named = {one.flag: one.value for one in answer.values}
    for flag in ("--mem-fraction-static", "--schedule-policy", "--stream-interval"):
        assert f"{flag} {named[flag]}" in answer.command
    held = int(re.search(r"holds (\d+) sequences", answer.values[0].why)[1])
    weights_bytes, token_bytes = 8.03e9 * 2, 32 * 2 * 8 * 128 * 2
    cache_bytes = float(named["--mem-fraction-static"]) * 80 * 2**30 - weights_bytes
    assert held == pytest.approx(cache_bytes / token_bytes / 2048, rel=0.05)


def test_the_next_command_of_a_preset_is_of_the_same_server():
    model, server = "llama-3.1-70b", {"hardware": "h100_sxm", "tp": 2, "quantization": "float8"}
    step = im.tune(model, preset="interactive", **server).next_step
    assert f"tune {model} --hardware h100_sxm --tp 2 --quantization float8 " in step


@pytest.mark.parametrize("words", [("--slo", "tpot:p95<15ms"), ("--rate", "3"), ("--goal", "cost")])
def test_a_preset_passes_over_nothing(words, tmp_path):
    flags = ("llama-3.1-8b", "--hardware", "h100_sxm", "--preset", "batch", *words)
    check_refused(run("tune", *flags, folder=tmp_path), 2, words[0], "without --preset")
