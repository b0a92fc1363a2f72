"""Are the requests that a server got rebuilt from its histograms, and from the order of its counters?"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from served_pages import poisson, served_pages

from inferometer.decide.diagnosis.traffic import drawn_requests, lengths_of
from inferometer.decide.diagnosis.window import Lengths, observed_window
from inferometer.inputs.workload.plan import NONE
from inferometer.records.server_series import Growth
from inferometer.simulate import step_cost
from inferometer.simulate.scheduler_config import SchedulerConfig

START_S, FOR_S, RATE = 15.0, 20.0, 12.0
STEPS = step_cost.linear_cost(launch_s=10e-3, per_row_s=2e-5)
CONFIG = SchedulerConfig(num_blocks=20_000, max_model_len=20_100, max_num_batched_tokens=8192)


def test_lengths_have_the_histograms_mean():
    edges = np.array([100.0, 200.0, 500.0, 1000.0, np.inf])
    rng = np.random.default_rng(3)
    true = rng.lognormal(np.log(300), 0.6, 4000)
    bounds = np.concatenate([[0.0], edges])
    counts, _ = np.histogram(true, bounds)
    sums, _ = np.histogram(true, bounds, weights=true)
    seen = Growth(len(true), float(true.sum()), edges, counts.astype(float))
    drawn = lengths_of(Lengths(seen, sums / counts), 4000, rng)
    assert drawn.mean() == pytest.approx(true.mean(), rel=0.02)
    assert np.quantile(drawn, 0.95) == pytest.approx(np.quantile(true, 0.95), rel=0.25)


def test_a_long_prompt_comes_when_it_came_and_is_as_long():
    plan = poisson(RATE, round(RATE * (START_S + FOR_S)), seed=1, prompt=(300, 0.3))
    came_s = plan.arrival_ns / 1e9 - START_S
    rows = [int(np.argmax(came_s > at_s)) for at_s in (3.0, 9.0, 14.0)]
    prompts = plan.prompt_tokens.copy()
    prompts[rows] = 12_345
    plan = plan._replace(prompt_tokens=prompts)
    samples, _ = served_pages(CONFIG, STEPS, plan, start_s=START_S, for_s=FOR_S)
    drawn, before_s = drawn_requests(observed_window(samples), np.random.default_rng(1))
    long = np.flatnonzero(drawn.prompt_tokens > 5000)
    at_s = np.sort(drawn.arrival_ns[long] / 1e9 - before_s)
    within = at_s[at_s > 0.6]
    assert within == pytest.approx(came_s[rows], abs=1.0)
    assert np.sort(drawn.prompt_tokens[long])[-3:] == pytest.approx(12_345, rel=0.1)


def test_each_bucket_has_the_mean_of_its_own_lengths():
    plan = poisson(RATE, round(RATE * (START_S + FOR_S)), seed=2, prompt=(150, 0.01))
    samples, _ = served_pages(CONFIG, STEPS, plan, start_s=START_S, for_s=FOR_S)
    lengths = observed_window(samples).prompt_lengths
    bucket = int(np.argmax(lengths.seen.counts))
    assert lengths.means[bucket] == pytest.approx(150, abs=2)


def closed(n_users=24, **words):
    plan = poisson(1.0, 900, seed=5, prompt=(200, 0.3), output=(30, 0.3), users=n_users)
    config = SchedulerConfig(num_blocks=20_000, max_model_len=20_100, max_num_seqs=8)
    return observed_window(served_pages(config, STEPS, plan, start_s=5.0, for_s=30.0, **words)[0])


def test_a_closed_loop_is_one_though_some_users_are_between_two_requests_at_a_few_scrapes():
    window = closed()
    assert window.is_closed_loop
    waiting = window.waiting.copy()
    waiting[[7, 20, 33]] -= 9
    assert replace(window, waiting=waiting).is_closed_loop
    waiting[::3] -= 5
    assert not replace(window, waiting=waiting).is_closed_loop


def test_a_load_test_in_a_closed_loop_is_one_though_it_begins_and_ends_without_requests():
    window = closed()
    waiting, running = window.waiting.copy(), window.running.copy()
    waiting[[0, -1]] = running[[0, -1]] = 0
    known = replace(window, waiting=waiting, running=running, n_users=24)
    assert not replace(known, n_users=None).is_closed_loop
    assert known.is_closed_loop
    plan, _ = drawn_requests(known, np.random.default_rng(1))
    assert (plan.follows == NONE).sum() == 24
