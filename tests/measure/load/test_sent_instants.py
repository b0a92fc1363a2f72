"""Do requests leave at the instants of their arrival process, whichever it is and however many client processes send?"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from arrival_tests import ARRIVALS, N_REQUESTS, check_dispersion, check_gaps, plan_of
from scipy import stats
from tiny_server import load

from inferometer.inputs.workload.plan import request_plan

pytestmark = pytest.mark.slow
SERVER = Path(__file__).parents[3] / "bench" / "answering_server.py"
PRIORITY = "import os; os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))"
RESOLUTION_S = 0.5e-3
"""Shorter gaps are not told apart: writing one request takes some 0.06 ms."""
SLOW = {("constant", 1), ("poisson", 4), ("gamma", 1)}
LATE_NS = 1e6
"""Where a hundredth of the requests leaves later than this, although the client goes first, the
machine stands still now and then."""


@pytest.fixture
def url():
    with subprocess.Popen(
        [sys.executable, SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.stdin.close()


@pytest.fixture(scope="module")
def is_prompt():
    """May the client interrupt its neighbours?

    Where it may not, it is as late as they let it be.
    """
    return (
        subprocess.run(
            [sys.executable, "-c", PRIORITY], capture_output=True, check=False
        ).returncode
        == 0
    )


@pytest.mark.parametrize(
    ("process", "n_processes"),
    [
        pytest.param(
            process, n_processes, marks=[pytest.mark.long] * ((process, n_processes) not in SLOW)
        )
        for process in ARRIVALS
        for n_processes in (1, 4)
    ],
)
def test_the_merged_process_is_the_asked_one(process, n_processes, url, is_prompt, tmp_path):
    plan = plan_of(process)
    instants = plan.arrival_ns
    loaded = load(url, plan, tmp_path, n_processes=n_processes)
    intended_ns = np.array(
        [
            loaded_frame.intended_ns
            for loaded_frame in sorted(loaded.requests, key=lambda one: one.request_index)
        ]
    )
    sent_ns = np.sort([frame.sent_ns for frame in loaded.requests])
    assert len(sent_ns) == N_REQUESTS
    assert (intended_ns == instants).all()
    assert (sent_ns >= np.sort(instants)).all(), "never early"
    assert {frame.error for frame in loaded.requests} == {""}
    check_dispersion(process, sent_ns)
    assert abs(stats.linregress(instants, sent_ns).slope - 1) < 1e-3, "the rate does not drift"
    if (
        is_prompt and np.percentile(sent_ns - np.sort(instants), 99) < LATE_NS
    ):  # else gaps are what the machine makes of them
        check_gaps(process, sent_ns, RESOLUTION_S)


def test_a_trace_is_replayed_in_its_order_and_spacing(url, is_prompt, tmp_path):
    """Bursts and pauses as recorded loads have them: 2,000 requests in some 10 s, of which many come together."""
    rng = np.random.default_rng(11)
    instants_ns = (
        np.cumsum(rng.lognormal(np.log(1e6), 1.5, 2000)).astype(np.int64) // 1_000_000 * 1_000_000
    )
    given = [np.full(len(instants_ns), length) for length in (5, 1)]
    plan = request_plan(
        "a trace", arrival_ns=instants_ns, prompt_tokens=given[0], output_tokens=given[1]
    )
    loaded = load(url, plan, tmp_path)
    frames = sorted(loaded.requests, key=lambda frame: (frame.sent_ns, frame.request_index))
    sent_ns, intended_ns = (
        np.array([getattr(frame, name) for frame in frames]) for name in ("sent_ns", "intended_ns")
    )
    assert (np.diff(intended_ns) >= 0).all(), "nobody overtakes"
    assert sorted(intended_ns.tolist()) == instants_ns.tolist()
    if is_prompt:
        assert np.median(np.abs(np.diff(sent_ns) - np.diff(intended_ns))) <= 1e6
        assert np.median(sent_ns - intended_ns) <= 1e6
