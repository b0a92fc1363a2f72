"""Do requests leave at the instants of their arrival process, whichever it is and however many client processes send?"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from tiny_server import load

from inferometer.spec.workload.plan import request_plan
from inferometer.spec.workload.reading import resolve_workload, with_changes
from inferometer.spec.workload.replay import draw_workload

pytestmark = pytest.mark.slow
SERVER = Path(__file__).parents[3] / "bench" / "answering_server.py"
N_REQUESTS, RATE_PER_S = 20_000, 1000.0
WINDOW_S = 0.2
RARE = 1e-4
"""A right client fails so often."""
ARRIVALS = {
    "constant": {"process": "constant"},
    "poisson": {"process": "poisson"},
    "gamma": {"process": "gamma", "burstiness_ratio": 0.25},
}
DISPERSION = {"constant": 0.0, "poisson": 1.0, "gamma": 4.0}
"""Variance over mean of counts in long windows: the squared variation of gaps (renewal theory)."""


@pytest.fixture
def url():
    with subprocess.Popen([sys.executable, SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.stdin.close()


@pytest.mark.parametrize("n_processes", [1, 4])
@pytest.mark.parametrize("process", ARRIVALS)
def test_the_merged_process_is_the_asked_one(process, n_processes, url, tmp_path):
    asked = {"arrivals": {"kind": "open", "rate_per_s": RATE_PER_S, **ARRIVALS[process]}, "n_requests": N_REQUESTS, "duration_s": None}
    instants = draw_workload(with_changes(resolve_workload("chat"), asked, where="the test")).plan.arrival_ns
    plan = request_plan("the test", arrival_ns=instants, prompt_tokens=np.full(N_REQUESTS, 8), output_tokens=np.full(N_REQUESTS, 4))
    loaded = load(url, plan, tmp_path, n_processes=n_processes)
    intended_ns = np.array([loaded_frame.intended_ns for loaded_frame in sorted(loaded.requests, key=lambda one: one.request_index)])
    sent_ns = np.sort([frame.sent_ns for frame in loaded.requests])
    assert (intended_ns == instants).all()
    assert (sent_ns >= np.sort(instants)).all(), "never early"
    assert {frame.error for frame in loaded.requests} == {""}
    counts = np.bincount((sent_ns / (WINDOW_S * 1e9)).astype(int))[1:-1]
    freedom = len(counts) - 1
    if process == "constant":
        assert abs(counts.mean() - RATE_PER_S * WINDOW_S) < 1
    else:
        statistic = freedom * counts.var(ddof=1) / counts.mean() / DISPERSION[process]
        assert RARE < stats.chi2.cdf(statistic, freedom) < 1 - RARE
    assert abs(stats.linregress(instants, sent_ns).slope - 1) < 1e-3, "the rate does not drift"
