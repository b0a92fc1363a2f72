"""inferometer capacity URL against an emulated server.

Does it find what the simulator says, go on, and outlive the server's death?
"""

import json
import shutil
import subprocess
import threading
from pathlib import Path
from typing import NamedTuple

import pytest
from command_line import run

from inferometer.decide.capacity import CapacityQuestion, find_capacity
from inferometer.decide.probing import reading_of
from inferometer.decide.traffic import at_load
from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.workload import reading, replay
from inferometer.records.request_summaries import judge_objective
from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_process import Emulator, start
from inferometer.simulate import run as simulating, simulated_run, step_cost
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig

pytestmark = pytest.mark.slow  # a search on the wall clock

SLO = "ttft:p50<40ms"
RESOLUTION = 0.6
NEAR_RATIO = 1.6
"""Users are whole, and the emulator's clock is a busy machine's."""
SOME_ANSWERS_BYTES = 20_000
CONFIG = SchedulerConfig(
    num_blocks=2000, max_model_len=512, max_num_seqs=4, enable_prefix_caching=False
)
PLAN = EmulatorPlan(
    model_name="m",
    fleet=lone_replica(CONFIG, step_cost.linear_cost(launch_s=6e-3)),
    mean_output_tokens=None,
)
WORKLOAD = """
n_requests = 400
[arrivals]
kind = "closed"
concurrency = 4
[[classes]]
name = "short"
prompt_tokens = { kind = "constant", value = 100 }
output_tokens = { kind = "constant", value = 8 }
"""


class Searched(NamedTuple):
    """A search that was made, and its server, which still runs."""

    emulator: Emulator
    folder: Path
    outcome: subprocess.CompletedProcess[str]

    @property
    def capacity(self):
        return capacity_of(self.outcome)


def asked(url, folder):
    flags = (
        "--workload",
        "short.toml",
        "--concurrency",
        "4",
        "--slo",
        SLO,
        "--probe-for",
        "1s",
        "--resolution",
        f"{RESOLUTION}",
    )
    return run("capacity", url, "--model", "m", *flags, "--out", "found", "--json", folder=folder)


def capacity_of(outcome):
    return json.loads(outcome.stdout)["levels"][0]["capacity"]


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("capacity")
    (folder / "short.toml").write_text(WORKLOAD)
    with start(PLAN) as emulator:
        made = Searched(emulator, folder, asked(emulator.url, folder))
        if "INVALID" in made.capacity["why"]:
            pytest.skip(f"this machine is too busy to load a server: {made.capacity['why']}")
        yield made


def simulated(folder):
    """What the same search says of the same server, simulated."""
    spec, objective = reading.resolve_workload(str(folder / "short.toml")), parse_objective(SLO)

    def probe(load, effort):
        plan = replay.draw_workload(at_load(spec, load, 200 * 2**effort)).plan
        said = simulating.simulate(
            simulating.demand_of(plan, CONFIG.block_size, has_contents=False),
            CONFIG,
            PLAN.fleet.step_times,
        )
        made = simulated_run.simulated_run(
            said, CONFIG, run_id="", created_utc="", command=(), tool_version=""
        )
        return reading_of(made, judge_objective(made, objective))

    ends = {"start_load": 4.0, "lowest_load": 1.0, "highest_load": 256.0}
    return find_capacity(
        probe, CapacityQuestion(kind="users", **ends, resolution_ratio=RESOLUTION, proof_effort=1)
    )


def test_the_bracket_is_around_what_the_simulator_says(searched):
    found, said = searched.capacity, simulated(searched.folder)
    assert said.is_resolved
    assert searched.outcome.returncode == (0 if found["is_resolved"] else 11)
    assert (
        said.met_load / NEAR_RATIO
        <= found["met_load"]
        < found["missed_load"]
        <= said.missed_load * NEAR_RATIO
    )


def test_the_same_command_asks_nothing_again(searched):
    manifests = sorted(searched.folder.glob("found/probe-*/manifest.json"))
    written_ns = [path.stat().st_mtime_ns for path in manifests]
    again = asked(searched.emulator.url, searched.folder)
    assert again.stdout == searched.outcome.stdout
    assert (
        again.stderr.count("had been made before")
        == len(searched.capacity["probes"])
        == len(manifests)
    )
    assert [path.stat().st_mtime_ns for path in manifests] == written_ns


def test_the_slo_of_a_class_counts(searched):
    """Without --slo, too: no server answers the second class's requests as fast as it wants."""
    second = WORKLOAD.partition("[[classes]]")[2].replace("short", "strict")
    own = 'slo = "ttft:p50<{}"\n'
    text = f"{WORKLOAD}{own.format('9s')}[[classes]]{second}{own.format('0.01ms')}"
    (searched.folder / "two.toml").write_text(text)
    words = (
        "--workload",
        "two.toml",
        "--concurrency",
        "4",
        "--probe-for",
        "1s",
        "--max-probes",
        "1",
    )
    words += ("--model", "m", "--out", "of-classes", "--json")
    outcome = run("capacity", searched.emulator.url, *words, folder=searched.folder)
    answer = json.loads(outcome.stdout)
    assert answer["objective"] == (
        "ttft:p50<9000ms; short: ttft:p50<9000ms; strict: ttft:p50<0.01ms"
    )
    [probe] = answer["levels"][0]["capacity"]["probes"]
    assert probe["verdict"] == "missed"


def test_a_server_that_dies_leaves_the_bracket_so_far(searched):
    """The last probe is made once more, and the server dies in it."""
    probes = searched.capacity["probes"]
    last = searched.folder / "found" / f"probe-{len(probes) - 1:02d}"
    shutil.rmtree(last)
    is_over = threading.Event()

    def die():
        while sum(
            log.stat().st_size for log in last.glob("raw/*")
        ) < SOME_ANSWERS_BYTES and not is_over.wait(0.02):
            pass
        searched.emulator.stop()

    killer = threading.Thread(target=die)
    killer.start()
    try:
        outcome = asked(searched.emulator.url, searched.folder)
    finally:
        is_over.set()
        killer.join()
    found = capacity_of(outcome)
    assert outcome.returncode == 11, outcome.stderr
    assert found["why"].startswith("a probe failed: the load test is INVALID: ")
    assert found["probes"] == probes[:-1]
    loads = {
        verdict: [
            one["offered_load"]
            for one in probes[:-1]
            if one["verdict"] == verdict and one["effort"] >= 1  # shorter probes prove nothing
        ]
        for verdict in ("met", "missed")
    }
    assert found["met_load"] == max(loads["met"], default=None)
    assert found["missed_load"] == min(loads["missed"], default=None)
    assert not found["is_resolved"]
