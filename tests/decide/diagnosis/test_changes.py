"""Is a change predicted as it is made: to the value that is advised, of any server there may be?"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from served_pages import poisson, served_pages
from tests.decide.diagnosis.test_diagnosis import FOR_S, PLAN, ROOMY, START_S, STEPS

from inferometer.decide.diagnosis import causes
from inferometer.decide.diagnosis.limit_draws import budgets_drawn, config_drawn, limits_around
from inferometer.decide.diagnosis.rebuilding import Fitted, Rebuilt, under_fresh_requests
from inferometer.decide.diagnosis.window import observed_window

P95_TTFT = (("ttft", 0.95),)


def server(**limits):
    start_ns, until_ns = (round(at_s * 1e9) for at_s in (START_S, START_S + FOR_S))
    config = replace(ROOMY, **limits)
    return Rebuilt(config=config, steps=STEPS, plan=PLAN, start_ns=start_ns, until_ns=until_ns)


def cause(name):
    return next(one for one in causes.CAUSES if one.name == name)


def test_all_draws_get_the_advised_value_whichever_limit_each_has_now():
    for name, limits, value in (
        ("small_step_budget", [{"max_num_batched_tokens": n} for n in (256, 300, 420)], 1024),
        ("max_num_seqs", [{"max_num_seqs": n} for n in (4, 6, 9)], 24),
    ):
        draws = [server(**one) for one in limits]
        change = causes.Change(value, 4.0, ())
        (after,) = causes.predicted_with(draws, cause(name), change, P95_TTFT)
        assert after.low == after.high
        moved = causes.predicted_with(draws, cause("overload"), causes.Change(2, 2.0, ()), P95_TTFT)
        assert moved[0].low < moved[0].high


def test_a_value_that_a_draw_cannot_have_is_the_nearest_that_it_can():
    few_rows = server(max_num_seqs=8, max_num_batched_tokens=16)
    at_most = server(max_num_seqs=16, max_num_batched_tokens=16)
    both = [
        causes.predicted_with([one], cause("max_num_seqs"), causes.Change(64, 8.0, ()), P95_TTFT)
        for one in (few_rows, at_most)
    ]
    assert both[0] == both[1]


@pytest.mark.parametrize("names", ["vllm", "sglang"])
def test_steps_beside_a_queue_show_the_budget_that_it_waits_for(names):
    """Three quarters of the draws had another: near its limit each of them has another queue."""
    short = replace(ROOMY, max_num_batched_tokens=150, max_num_seqs=64)
    plan = poisson(32.0, 1200, seed=2, prompt=(500, 0.5), output=(60, 0.5))
    samples, _ = served_pages(short, STEPS, plan, start_s=START_S, for_s=FOR_S, names=names)
    window, rng = observed_window(samples), np.random.default_rng(1)
    assert window.waiting.mean() > 2
    drawn = np.array(budgets_drawn(window, {}, 60, rng))
    near = np.abs(drawn - 150) <= 8
    assert 0.3 < near.mean() < 0.7
    configs = [config_drawn(window, {}, PLAN, 4096, rng) for _ in range(60)]
    assert min(one.max_num_seqs for one in configs) > window.running.max()  # a peak is no limit
    assert set(budgets_drawn(window, {"max_num_batched_tokens": 512}, 9, rng)) == {512}


def test_a_batch_that_was_never_full_may_have_any_limit_beyond_what_ran():
    samples, _ = served_pages(ROOMY, STEPS, PLAN, start_s=START_S, for_s=FOR_S)
    window, rng = observed_window(samples), np.random.default_rng(1)
    drawn = {limits_around(ROOMY, window, {}, rng).max_num_seqs for _ in range(60)}
    assert len(drawn) >= 3
    assert min(drawn) > window.running.max()
    known = {limits_around(ROOMY, window, {"max_num_seqs": 256}, rng)[1] for _ in range(20)}
    assert known == {256}


def test_alike_draws_do_not_say_the_same_of_larger_steps():
    samples, _ = served_pages(ROOMY, STEPS, PLAN, start_s=START_S, for_s=FOR_S)
    window, one = observed_window(samples), server()
    draw = Fitted(one, one.simulation(record_steps=True), {}, 0.0)
    fresh = under_fresh_requests(window, [draw] * 9)
    assert len({server.steps.blend_ratio for server in fresh}) == 9
    assert {server.config.max_num_seqs for server in fresh} == {256}
