"""inferometer diagnose URL against an emulated server under load, of the load test afterwards, and by Prometheus."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from command_line import check_refused, run
from tests.decide.peers import program, prometheus

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
SCRAPES = """
global:
  scrape_interval: 15s
scrape_configs:
  - job_name: emulator
    static_configs: [{{targets: ["{address}"]}}]
"""


def test_a_full_batch_is_found_live_in_the_stored_load_test_and_by_prometheus(tmp_path):
    program("prometheus", "prometheus")
    (tmp_path / "short.toml").write_text(WORKLOAD)
    with start(PLAN) as emulator:
        address = emulator.url.removeprefix("http://")
        (tmp_path / "prometheus.yml").write_text(SCRAPES.format(address=address))
        (tmp_path / "prometheus-rules.yaml").write_text("groups: []\n")
        with prometheus(tmp_path) as server:
            began = datetime.now(UTC) + timedelta(seconds=3)
            live = loaded_and_diagnosed(emulator.url, tmp_path)
            later = run("diagnose", "loaded", "--json", folder=tmp_path)
            times = f"{began.isoformat()}..{(began + timedelta(seconds=30)).isoformat()}"
            past = ("--prometheus", f"http://127.0.0.1:{server.port}", "--range", times)
            by_prometheus = run("diagnose", emulator.url, *past, "--json", folder=tmp_path)
            check_refused(
                run("diagnose", "a:1", *past, folder=tmp_path), 3, "did not scrape a:1", address
            )
    for outcome, code in ((live, 10), (later, 0), (by_prometheus, 0)):
        assert outcome.returncode == code, outcome.stderr
        answer = json.loads(outcome.stdout)
        assert (answer["finding"], answer["cause"]) == ("limited", "max_num_seqs")
        assert answer["limits"][0] == {"name": "max_num_seqs", "low": 4, "high": 4}
    assert json.loads(by_prometheus.stdout)["when"].startswith(f"{began:%Y-%m-%dT%H:%M:%S}..")


def loaded_and_diagnosed(url, folder):
    """What is said of the server while a load test runs."""
    words = ("--model", "m", "--workload", "short.toml", "--out", "loaded")
    inferometer = Path(sys.executable).parent / "inferometer"
    load = subprocess.Popen(
        [inferometer, "load", url, *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    slo = ("--slo", "ttft:p95<200ms")
    live = run("diagnose", url, "--for", "24s", *slo, "--json", folder=folder)
    load.wait(timeout=120)
    return live
