"""What becomes of pairs whose servers die, or change their version?"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from command_line import run

from inferometer.api import tune_pairs
from inferometer.api.load_request import Load
from inferometer.api.workload import Workload
from inferometer.decide.tuning.start_command import parse_start, with_words
from inferometer.errors import MeasureError
from inferometer.inputs.objectives import parse_objective
from inferometer.measure.served import PlaceFault, served
from inferometer.records import run_folder

EMULATE = f"{sys.executable} -m inferometer emulate llama-3.1-8b --hardware h100_sxm"
DIES = (
    "import socket, subprocess, sys, time\n"
    "server = subprocess.Popen(sys.argv[2:])\n"
    "while socket.socket().connect_ex(('127.0.0.1', int(sys.argv[1]))): time.sleep(0.1)\n"
    "time.sleep(2); server.kill()\n"
    "sys.exit('torch.OutOfMemoryError: CUDA out of memory')"
)


@pytest.fixture
def port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


ONCE = (
    "import pathlib, socket, subprocess, sys, time\n"
    "server = subprocess.Popen(sys.argv[3:])\n"
    "flag = pathlib.Path(sys.argv[2])\n"
    "if flag.exists(): sys.exit(server.wait())\n"
    "flag.touch()\n"
    "while socket.socket().connect_ex(('127.0.0.1', int(sys.argv[1]))): time.sleep(0.1)\n"
    "time.sleep(3); server.kill(); server.wait(); sys.exit(1)\n"
)
"""A server that dies under its first load, and never again."""
PROXY = Path(__file__).parent / "metrics_proxy.py"


def bench_of(folder, port, version=None, n_requests=40, rate=10.0):
    run_folder.make_folder(folder)
    workload = Workload(workload="64x16", rate=rate, requests=n_requests)
    return tune_pairs.Bench(
        url=f"http://127.0.0.1:{port}",
        load=Load(workload=workload, model="llama-3.1-8b"),
        objective=parse_objective("ttft:p95<300ms"),
        goal="interactive",
        folder=folder,
        start_timeout_s=60.0,
        least_gain_ratio=0.02,
        version=version,
    )


def comparison(port, changed=None):
    start = with_words(parse_start(EMULATE), ("--port", str(port)))
    words = start.words if changed is None else changed
    return tune_pairs.Comparison("faults", (start, start._replace(words=words)), 3, 1, 1)


def any_left(port):
    return [
        one.pid
        for one in psutil.process_iter(["cmdline"])
        if str(port) in (one.info.get("cmdline") or ())
    ]


def check_nobody_is_left(port):
    assert not any_left(port)


@pytest.mark.slow
def test_a_changed_server_that_dies_is_a_fault_that_stays_and_another_version_ends_it(
    tmp_path, port
):
    plain = comparison(port).commands[0]
    with served(bench_of(tmp_path, port).start(plain, tmp_path / "first.log")) as facts:
        pass
    bench = bench_of(tmp_path, port, version=facts.version)
    dies = (sys.executable, "-c", DIES, str(port), *plain.words)
    found = tune_pairs.compared(bench, comparison(port, dies))
    assert (found.ending, found.gain) == ("fault", None)
    assert "it ended under load" in found.fault
    assert "CUDA out of memory" in found.fault
    check_nobody_is_left(port)
    n_logs = len(list(tmp_path.rglob("*.log")))
    assert tune_pairs.compared(bench, comparison(port, dies)) == found
    assert len(list(tmp_path.rglob("*.log"))) == n_logs
    newer = bench_of(tmp_path / "newer", port, version="0.0.1")
    with pytest.raises(
        MeasureError, match=r"emulating vLLM.* now, and was 0\.0\.1 at the beginning"
    ):
        tune_pairs.compared(newer, comparison(port))
    check_nobody_is_left(port)


def version_of(folder, port):
    run_folder.make_folder(folder)
    plain = comparison(port).commands[0]
    with served(bench_of(folder, port).start(plain, folder / "first.log")) as facts:
        return facts.version


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [3, pytest.param(4, marks=pytest.mark.long)]
)  # who comes first: the side that dies, or the other one
def test_a_run_whose_server_died_is_made_again(seed, tmp_path, port):
    bench = bench_of(tmp_path, port, version_of(tmp_path, port))
    plain = comparison(port).commands[0]
    dies = (sys.executable, "-c", ONCE, str(port), str(tmp_path / "died"), *plain.words)
    pair = (plain._replace(words=dies), plain)
    wanted = tune_pairs.Comparison("once", pair, seed, 1, 1)
    found = tune_pairs.compared(bench, wanted)
    assert (len(found.log_ratios), found.lost_fraction) == (1, 0.0)
    aside = bench.place(wanted) / "interrupted"
    assert (aside / "a-pair-00-0").is_dir()
    assert tune_pairs.compared(bench, wanted) == found
    check_nobody_is_left(port)


@pytest.mark.slow
def test_a_port_that_is_taken_meanwhile_is_no_fault_of_the_change(tmp_path, port):
    bench = bench_of(tmp_path, port, version_of(tmp_path, port), rate=20.0)
    wanted = comparison(port, (*comparison(port).commands[0].words, "--max-num-seqs", "64"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        with pytest.raises(PlaceFault, match="something listens there already"):
            tune_pairs.compared(bench, wanted)
    assert not list(tmp_path.rglob("fault.txt"))
    assert len(tune_pairs.compared(bench, wanted).log_ratios) == 1
    check_nobody_is_left(port)


@pytest.mark.slow
def test_requests_that_both_lose_are_said_and_those_that_the_change_loses_end_it(tmp_path, port):
    bench = bench_of(tmp_path, port, version_of(tmp_path, port), n_requests=100, rate=25.0)
    plain = comparison(port).commands[0]
    loses, more = (
        plain._replace(words=(*plain.words, "--fault", f"http-500:{share}"))
        for share in ("0.04", "0.4")
    )
    both = tune_pairs.compared(bench, tune_pairs.Comparison("both", (loses, loses), 3, 1, 1))
    assert both.ending != "fault"
    assert 0 < both.lost_fraction < 0.2
    found = tune_pairs.compared(bench, tune_pairs.Comparison("more", (loses, more), 3, 1, 1))
    assert found.ending == "fault"
    assert "of the requests failed in 1 pair" in found.fault
    assert "without it" in found.fault
    check_nobody_is_left(port)


TUNE = ("--slo", "ttft:p95<300ms, tpot:p95<30ms", "--rate", "20", "--workload", "64x16")
BOUNDS = ("--for", "2s", "--steps", "max_num_seqs", "--pairs", "4", "--out", "tuned")


@pytest.mark.slow
def test_metrics_that_vanish_are_said_and_clients_decide(tmp_path, port):
    start = f"{sys.executable} {PROXY} 2 {EMULATE}"
    outcome = run(
        "tune", f"http://127.0.0.1:{port}", "--start", start, *TUNE, *BOUNDS, "--json",
        folder=tmp_path,
    )  # fmt: skip
    assert outcome.stdout, outcome.stderr
    answer = json.loads(outcome.stdout)
    assert "METRICS_GONE" in [one["code"] for one in answer["cautions"]], answer["cautions"]
    assert answer["same_gain_fraction"] is not None
    check_nobody_is_left(port)


@pytest.mark.slow
def test_a_tuning_that_is_killed_goes_on_where_it_was(tmp_path, port):
    words = (
        "tune", f"http://127.0.0.1:{port}", "--start", EMULATE, *TUNE, *BOUNDS, "--json"
    )  # fmt: skip
    killed = subprocess.Popen(
        [sys.executable, "-m", "inferometer", *words],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until_s = time.monotonic() + 300
    while len(list(tmp_path.glob("tuned/same-*/?/pair-??/manifest.json"))) < 3:
        assert killed.poll() is None
        assert time.monotonic() < until_s
        time.sleep(0.2)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    until_s = time.monotonic() + 20
    while any_left(port) and time.monotonic() < until_s:
        time.sleep(0.2)
    check_nobody_is_left(port)
    whole = {
        path: path.stat().st_mtime_ns
        for path in tmp_path.glob("tuned/same-*/?/pair-00/manifest.json")
    }
    assert len(whole) == 2
    outcome = run(*words, folder=tmp_path)
    answer = json.loads(outcome.stdout)
    assert [one["name"] for one in answer["steps"]] == ["max_num_seqs"]
    assert all(path.stat().st_mtime_ns == at_ns for path, at_ns in whole.items())
    again = run(*words, folder=tmp_path)
    assert json.loads(again.stdout) == answer
    n_stored = again.stderr.count("the test had been made before")
    assert again.stderr.count("sending") == n_stored > 0
    check_nobody_is_left(port)
