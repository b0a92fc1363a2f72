"""Client processes on two real Ray nodes, the second by another clock.

One schedule, whole records, a death that costs little.
"""

import json
import subprocess
import time

import numpy as np
import psutil
import pytest
from scipy import stats
from tests.measure.executors.ray_nodes import environment, two_nodes

from inferometer.inputs.workload.reading import resolve_workload
from inferometer.inputs.workload.replay import draw_workload
from inferometer.records.raw_log import RawLogReader, RequestFrame, raw_logs
from inferometer.records.reading import read_run
from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_process import start
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

pytestmark = pytest.mark.slow
AHEAD_S = 5000
RARE = 1e-4
PLAN = EmulatorPlan(
    model_name="m",
    fleet=lone_replica(
        SchedulerConfig(num_blocks=20_000, max_model_len=16_384, max_num_seqs=256),
        linear_cost(launch_s=2e-3),
    ),
    mean_output_tokens=None,
)
WORKLOAD = """
n_requests = {n}
[arrivals]
kind = "open"
rate_per_s = {rate}
process = "{process}"
[[classes]]
name = "short"
prompt_tokens = {{ kind = "constant", value = 10 }}
output_tokens = {{ kind = "constant", value = 4 }}
"""


@pytest.fixture(scope="module")
def nodes():
    with two_nodes(ahead_s=AHEAD_S) as running:
        yield running


@pytest.fixture(scope="module")
def url():
    with start(PLAN) as emulator:
        yield emulator.url


def asked(url, nodes, folder, *, n=200, rate=40.0, process="poisson"):
    (folder / "short.toml").write_text(WORKLOAD.format(n=n, rate=rate, process=process))
    words = (
        "load",
        url,
        "--model",
        "m",
        "--workload",
        "short.toml",
        "--out",
        "run",
        "--processes",
        4,
    )
    return (*words, "--executor", "ray", "--ray-address", nodes.address)


@pytest.mark.parametrize("process", [pytest.param("constant", marks=pytest.mark.long), "poisson"])
def test_the_merged_process_is_the_asked_one(process, url, nodes, tmp_path):
    outcome = nodes.run(
        *asked(url, nodes, tmp_path, n=1200, rate=60.0, process=process), "--json", folder=tmp_path
    )
    assert outcome.returncode in {
        0,
        3,
    }, outcome.stderr  # a busy machine makes an INVALID run, and says so
    stored = read_run(tmp_path / "run")
    instants = draw_workload(resolve_workload(str(tmp_path / "short.toml"))).plan.arrival_ns
    assert stored.requests.request_index.tolist() == list(range(1200))
    assert (stored.exchanges.error == "").all()
    assert np.bincount(stored.exchanges.process_index).tolist() == [300] * 4
    doubt_ns = max(clock.error_s for clock in stored.manifest.clocks) * 1e9 + 1
    assert np.abs(stored.requests.intended_send_ns - instants).max() <= doubt_ns
    assert (stored.requests.sent_ns >= stored.requests.intended_send_ns).all(), "never early"
    counts = np.bincount((stored.requests.intended_send_ns / 1e9).astype(int))[1:-1]
    freedom = len(counts) - 1
    if process == "constant":
        assert abs(counts.mean() - 60) < 1
    else:
        assert (
            RARE < stats.chi2.cdf(freedom * counts.var(ddof=1) / counts.mean(), freedom) < 1 - RARE
        )
    check_clocks(stored, json.loads(outcome.stdout))


def check_clocks(stored, answer):
    """Two processes by the driver's own clock, two by one that is 5,000 s ahead: exactly, for nothing else moves it."""
    for clock in stored.manifest.clocks:
        ahead_ns = AHEAD_S * 10**9 if clock.process_index % 2 else 0
        for reading in (clock.before, clock.after):
            assert abs(reading.offset_ns - ahead_ns) <= reading.doubt_ns < 20e6
        assert clock.before.at_ns < 0 < clock.after.at_ns
    assert len(stored.manifest.clocks) == 4
    reasons = {one["check"]: one for one in answer["requests"]["online"]["validity"]["reasons"]}
    assert "4 processes may be off by" in reasons["host clocks"]["text"]


def test_finished_requests_reach_the_driver_within_two_seconds(url, nodes, tmp_path):
    child = begun(nodes, asked(url, nodes, tmp_path, n=320), tmp_path)
    try:
        first_s, seen = wait_for_log(tmp_path), []
        while child.poll() is None:
            seen.append((time.monotonic() - first_s, n_requests(tmp_path)))
            time.sleep(0.3)
    finally:
        child.communicate(timeout=90)
    on_the_way = [(at_s, n) for at_s, n in seen if 2 < at_s < 7]
    assert on_the_way
    assert all(n >= 40 * (at_s - 2) * 0.7 for at_s, n in on_the_way), on_the_way


def test_an_actor_that_dies_costs_the_others_nothing_and_the_same_command_goes_on(
    url, nodes, tmp_path
):
    words = asked(url, nodes, tmp_path, n=320)
    child = begun(nodes, words, tmp_path)
    wait_for_log(tmp_path)
    time.sleep(2)
    victim = next(
        actor
        for raylet in nodes.raylets
        for actor in raylet.children()
        if "HostedClient" in " ".join(actor.cmdline())
    )
    victim.kill()
    _, stderr = child.communicate(timeout=120)
    assert child.returncode == 3, stderr
    assert "a client process died: client process" in stderr
    assert "Traceback" not in stderr
    kept = [n_of(path) for path in raw_logs(tmp_path / "run")]
    assert sorted(kept)[1:] == [80, 80, 80]
    assert sorted(kept)[0] > 10, "what it had sent before is kept too"
    again = nodes.run(*words, folder=tmp_path)
    assert again.returncode in {0, 3}, again.stderr
    stored = read_run(tmp_path / "run")
    assert sorted(stored.requests.request_index.tolist()) == list(range(320))
    assert {"CLIENT_DIED", "RESUMED"} <= {caution.code for caution in stored.manifest.cautions}
    assert len(stored.manifest.clocks) == 8, "two sessions of four processes"


def begun(nodes, words, folder):
    return subprocess.Popen(
        nodes.line(*words),
        cwd=folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_log(folder):
    for _ in range(1200):
        if n_requests(folder) > 4:
            return time.monotonic()
        time.sleep(0.1)
    raise AssertionError("nothing was sent")


def n_requests(folder):
    return sum(n_of(path) for path in raw_logs(folder / "run"))


def n_of(path):
    return sum(isinstance(frame, RequestFrame) for frame in RawLogReader(path))


def test_nothing_is_left_on_the_hosts(nodes):
    clients = [one for raylet in nodes.raylets for one in raylet.children(recursive=True)]
    assert not [
        one
        for one in clients
        if one.is_running() and "inferometer.measure.load.worker" in cmdline(one)
    ]


def cmdline(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
