"""Do requests leave at the instants of their arrival process, whichever it is and however many client processes send?"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from arrival_tests import ARRIVALS, N_REQUESTS, check_dispersion, check_gaps, plan_of
from scipy import stats
from tiny_server import load

pytestmark = pytest.mark.slow
SERVER = Path(__file__).parents[3] / "bench" / "answering_server.py"
PRIORITY = "import os; os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))"
RESOLUTION_S = 0.5e-3
"""Shorter gaps are not told apart: writing one request takes some 0.06 ms."""


@pytest.fixture
def url():
    with subprocess.Popen([sys.executable, SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.stdin.close()


@pytest.fixture(scope="module")
def is_prompt():
    """May the client interrupt its neighbours? Where it may not, it is as late as they let it be."""
    return subprocess.run([sys.executable, "-c", PRIORITY], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("n_processes", [1, 4])
@pytest.mark.parametrize("process", ARRIVALS)
def test_the_merged_process_is_the_asked_one(process, n_processes, url, is_prompt, tmp_path):
    plan = plan_of(process)
    instants = plan.arrival_ns
    loaded = load(url, plan, tmp_path, n_processes=n_processes)
    intended_ns = np.array([loaded_frame.intended_ns for loaded_frame in sorted(loaded.requests, key=lambda one: one.request_index)])
    sent_ns = np.sort([frame.sent_ns for frame in loaded.requests])
    assert len(sent_ns) == N_REQUESTS
    assert (intended_ns == instants).all()
    assert (sent_ns >= np.sort(instants)).all(), "never early"
    assert {frame.error for frame in loaded.requests} == {""}
    check_dispersion(process, sent_ns)
    assert abs(stats.linregress(instants, sent_ns).slope - 1) < 1e-3, "the rate does not drift"
    if is_prompt:
        check_gaps(process, sent_ns, RESOLUTION_S)
