"""Is the steady part of a run that between its warm-up and its drain, with its own numbers?"""

import numpy as np
import pytest
from tests.records.load_run import load_run

from inferometer.records.request_summaries import summarise_requests, summarise_steady
from inferometer.records.steady_state import steady_state


def times_s(n, seed=3, *, first=1.0, n_first=0, last=1.0, n_last=0, mean_s=0.02):
    found = mean_s * np.random.default_rng(seed).lognormal(0, 0.1, n)
    found[:n_first] *= first
    found[n - n_last :] *= last
    return found


def test_a_steady_run_is_steady_from_end_to_end():
    run = load_run()
    steady = steady_state(run)
    assert (steady.n_warm_up, steady.n_steady, steady.n_drain, steady.is_reached) == (
        0,
        400,
        0,
        True,
    )
    assert steady.drifting == ()
    assert {one.latency for one in steady.trends} == {"ttft", "tpot"}


def test_a_start_up_burst_and_a_drain_are_told_apart():
    run = load_run(
        ttft_s=times_s(400, first=6, n_first=30),
        tpot_s=times_s(400, last=0.5, n_last=40, mean_s=0.005),
    )
    steady = steady_state(run)
    assert 30 <= steady.n_warm_up <= 50
    assert 35 <= steady.n_drain <= 60
    assert steady.warm_up_shown_by == "ttft"
    assert steady.n_warm_up + steady.n_steady + steady.n_drain == 400
    whole, part = summarise_requests(run), summarise_steady(run, steady)
    assert whole.latency("ttft").percentile(0.95).seconds.value > 0.1
    assert part.latency("ttft").percentile(0.95).seconds.value < 0.03
    assert part.n_requests == steady.n_steady


def test_rates_of_the_steady_state_are_between_its_first_and_last_sending():
    run = load_run(ttft_s=times_s(400, first=6, n_first=30))
    steady = steady_state(run)
    summary = summarise_steady(run, steady)
    assert summary.span_s == pytest.approx((steady.end_ns - steady.start_ns) / 1e9)
    finished = run.requests.finished_ns
    n_done = ((finished >= steady.start_ns) & (finished <= steady.end_ns)).sum()
    assert summary.completed_requests_per_s.value == pytest.approx(n_done / summary.span_s)
    assert summary.name == "steady state"


def test_latency_that_rises_is_no_steady_state():
    steady = steady_state(load_run(ttft_s=np.linspace(0.02, 2, 400)))
    assert [one.latency for one in steady.drifting] == ["ttft"]
    assert steady.n_steady == 400


def test_a_run_that_changes_in_the_middle_reaches_no_steady_state():
    steady = steady_state(load_run(ttft_s=times_s(400, first=5, n_first=200)))
    assert (steady.is_reached, steady.n_warm_up, steady.n_steady, steady.n_drain) == (
        False,
        0,
        400,
        0,
    )


def test_too_few_requests_tell_nothing():
    assert steady_state(load_run(n=39)) is None
