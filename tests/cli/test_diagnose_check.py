"""Did the change that diagnose advised do what was sealed? An emulated server, before and after it."""

import json
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import check_refused, run

from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_process import start
from inferometer.simulate import step_cost
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig

pytestmark = pytest.mark.slow  # the metrics of real seconds

FEW = SchedulerConfig(num_blocks=4000, max_model_len=1024, max_num_seqs=4)
WORKLOAD = """
n_requests = 400
[arrivals]
kind = "open"
rate_per_s = 8
[[classes]]
name = "short"
prompt_tokens = { kind = "uniform", low = 60, high = 140 }
output_tokens = { kind = "constant", value = 60 }
"""


def emulated(config):
    fleet = lone_replica(config, step_cost.linear_cost(launch_s=10e-3))
    return EmulatorPlan(model_name="m", fleet=fleet, mean_output_tokens=None)


@contextmanager
def loaded(url, folder):
    """Requests come to the server meanwhile; they end with the block."""
    (folder / "short.toml").write_text(WORKLOAD)
    words = ("load", url, "--model", "m", "--workload", "short.toml", "--no-report", "--out")
    load = subprocess.Popen(
        [Path(sys.executable).parent / "inferometer", *words, f"loaded-{url[-5:]}"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        load.terminate()
        load.wait(timeout=60)


def test_a_change_is_sealed_and_checked_on_the_changed_server(tmp_path):
    with start(emulated(FEW)) as server, loaded(server.url, tmp_path):
        words = ("--for", "11s", "--slo", "ttft:p95<300ms", "--out", "sealed", "--json")
        answer = json.loads(run("diagnose", server.url, *words, folder=tmp_path).stdout)
        assert (answer["cause"], answer["finding"]) == ("max_num_seqs", "limited")
        claims = {one["metric"]: one["predicted"] for one in answer["check"]["claims"]}
        assert set(claims) >= {"ttft_mean_s", "ttft_p95_s", "tpot_mean_s"}
        assert answer["check"]["command"].startswith(
            f"inferometer verify sealed --url {server.url}"
        )
        as_it_was = checked(server.url, tmp_path)
    assert as_it_was.returncode == 3
    assert "was not started anew" in as_it_was.stdout
    roomy = replace(FEW, max_num_seqs=int(answer["causes"][0]["change"].split()[1]))
    with start(emulated(roomy)) as server, loaded(server.url, tmp_path):
        found = checked(server.url, tmp_path, "--json")
    verdict = json.loads(found.stdout)
    measured = {one["claim"]["metric"]: one["outcome"] for one in verdict["experiment"]["claims"]}
    assert all(one is not None for one in measured.values()), found.stdout
    assert (
        measured["ttft_mean_s"]["measured"]["value"]
        < 0.2 * answer["latencies"][0]["simulated_s"]["value"]
    )
    assert verdict["experiment"]["promises"][0]["outcome"]["measured"] == "met"
    assert json.loads(checked("http://127.0.0.1:9", tmp_path, "--json").stdout) == verdict
    edited = tmp_path / "sealed" / "change.json"
    edited.write_text(edited.read_text().replace("--max-num-seqs", "--max-num-seqz"))
    check_refused(checked("http://127.0.0.1:9", tmp_path), 4, "one of them was edited")


def checked(url, folder, *words):
    return run("verify", "sealed", "--url", url, *words, folder=folder)
