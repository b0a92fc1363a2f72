"""Is the step budget of a server found by load tests over HTTP, and can what is suggested next be pasted and served?

The server is emulated; ``bench/bench_black_box_vllm.py --limited`` asks the same of a real vLLM,
and enters it in the ledger.
"""

import json
import re
import shlex

import pytest
from command_line import run

from inferometer.records.reading import read_run
from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_process import start
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

pytestmark = pytest.mark.slow  # load tests of real seconds, and a fit

BUDGET, LONGEST = 256, 1024
PLAN = EmulatorPlan(
    model_name="m",
    fleet=lone_replica(
        SchedulerConfig(
            num_blocks=4000,
            max_model_len=LONGEST,
            max_num_seqs=16,
            max_num_batched_tokens=BUDGET,
            enable_prefix_caching=False,
        ),
        linear_cost(launch_s=8e-3, per_row_s=2e-4, per_request_s=3e-4, per_context_token_s=1e-7),
    ),
    mean_output_tokens=None,
)
WORKLOAD = """
[[classes]]
name = "long"
prompt_tokens = { kind = "lognormal", median = 160, sigma = 0.9, min = 8, max = 600 }
output_tokens = { kind = "lognormal", median = 24, sigma = 0.5, min = 4, max = 80 }
"""
ASKED = ("--model", "m", "--endpoint", "completions", "--prompts", "token-ids", "--no-report")


def fitted(folder, *names):
    """The limits and switches, by name."""
    known = f"max_model_len={LONGEST},enable_prefix_caching=off"
    words = ("--load", *names, "--force", "--known", known, "--out", "server.json", "--json")
    found = run("fit", *words, folder=folder)
    assert found.returncode == 0, found.stdout + found.stderr
    return {knob["name"]: knob for knob in json.loads(found.stdout)["server"]["knobs"]}


def test_a_step_budget_is_found_over_http_and_the_probe_of_what_is_open_is_served(tmp_path):
    (tmp_path / "long.toml").write_text(WORKLOAD)
    with start(PLAN) as emulator:
        for name, rate, seed in (("low", 4, 1), ("high", 10, 2)):
            traffic = ("--workload", "long.toml", "--rate", rate, "--for", "20s", "--seed", seed)
            loaded = run("load", emulator.url, *ASKED, *traffic, "--out", name, folder=tmp_path)
            assert loaded.returncode in {0, 3}, loaded.stderr
        check_served(fitted(tmp_path, "low")["max_num_seqs"]["probe"], tmp_path)
    found = fitted(tmp_path, "low", "high")["max_num_batched_tokens"]
    assert 128 <= found["low"] <= BUDGET <= found["high"] <= 512


def check_served(probe, folder):
    """As it is printed, but for fewer seconds: more of them would be answered no better."""
    _, *words = shlex.split(probe)
    seconds = int(re.fullmatch(r"(\d+)s", words[words.index("--for") + 1])[1])
    assert 60 <= seconds <= 300
    served = run(*words, "--for", "5s", "--no-report", "--out", "probe", folder=folder)
    assert served.returncode in {0, 3}, served.stderr
    assert set(read_run(folder / "probe").exchanges.error.tolist()) == {""}
