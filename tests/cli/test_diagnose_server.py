"""inferometer diagnose URL against an emulated server under load, and of the load test afterwards."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run

from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_process import start
from inferometer.simulate import step_cost
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig

pytestmark = pytest.mark.slow  # the metrics of real seconds

CONFIG = SchedulerConfig(
    num_blocks=4000, max_model_len=1024, max_num_seqs=4, enable_prefix_caching=False
)
PLAN = EmulatorPlan(
    model_name="m",
    fleet=lone_replica(CONFIG, step_cost.linear_cost(launch_s=10e-3)),
    mean_output_tokens=None,
)
WORKLOAD = """
n_requests = 260
[arrivals]
kind = "open"
rate_per_s = 10
[[classes]]
name = "short"
prompt_tokens = { kind = "constant", value = 100 }
output_tokens = { kind = "constant", value = 60 }
"""


def test_a_full_batch_is_found_live_and_in_the_stored_load_test(tmp_path):
    (tmp_path / "short.toml").write_text(WORKLOAD)
    words = ("--model", "m", "--workload", "short.toml", "--out", "loaded")
    inferometer = Path(sys.executable).parent / "inferometer"
    with start(PLAN) as emulator:
        load = subprocess.Popen(
            [inferometer, "load", emulator.url, *words],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        live = run(
            "diagnose",
            emulator.url,
            "--for",
            "24s",
            "--slo",
            "ttft:p95<200ms",
            "--json",
            folder=tmp_path,
        )
        load.wait(timeout=120)
    later = run("diagnose", "loaded", "--json", folder=tmp_path)
    for outcome, code in ((live, 10), (later, 0)):
        assert outcome.returncode == code, outcome.stderr
        answer = json.loads(outcome.stdout)
        assert (answer["finding"], answer["cause"]) == ("limited", "max_num_seqs")
        assert answer["limits"][0] == {"name": "max_num_seqs", "low": 4, "high": 4}
