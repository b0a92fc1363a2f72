"""What becomes of pairs whose servers die, or change their version?"""

import socket
import sys

import psutil
import pytest

from inferometer.api import tune_pairs
from inferometer.api.load_request import Load
from inferometer.api.workload import Workload
from inferometer.decide.tuning.start_command import parse_start, with_words
from inferometer.errors import MeasureError
from inferometer.inputs.objectives import parse_objective
from inferometer.measure.served import served
from inferometer.records import durability

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


def bench_of(folder, port, version=None):
    durability.make_folder(folder)
    workload = Workload(workload="64x16", rate=10.0, requests=40)
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


def check_nobody_is_left(port):
    assert not [
        one.pid
        for one in psutil.process_iter(["cmdline"])
        if str(port) in (one.info.get("cmdline") or ())
    ]


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
