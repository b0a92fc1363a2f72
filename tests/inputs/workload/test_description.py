"""Are the few numbers of a plan right, and does the interval of its burstiness cover?"""

import numpy as np
import pytest
from scipy import stats

from inferometer.inputs.workload.arrivals import open_arrivals
from inferometer.inputs.workload.description import CONFIDENCE_FRACTION, describe
from inferometer.inputs.workload.plan import NONE, request_plan
from inferometer.inputs.workload.types import OpenArrivals


def plan_at(arrival_ns):
    ones = np.ones(len(arrival_ns), int)
    return request_plan("here", arrival_ns=arrival_ns, prompt_tokens=ones, output_tokens=ones)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [0.5, 1.0, 4.0])
def test_the_interval_of_burstiness_covers(shape):
    """Of 400 seeds, as many hold the true value as 95 % intervals do (binomial, level 0.001), less 2 points of small-sample bias."""
    arrivals = OpenArrivals(process="gamma", burstiness_ratio=shape)
    found = [
        describe(plan_at(open_arrivals(arrivals, seed, 1000, rate_per_s=5.0)))
        for seed in range(400)
    ]
    n_inside = sum(one.gap_cv_low_ratio <= shape**-0.5 <= one.gap_cv_high_ratio for one in found)
    assert n_inside >= stats.binom.ppf(1e-3, 400, CONFIDENCE_FRACTION - 0.02)


def test_rate_and_lengths():
    plan = request_plan(
        "here",
        arrival_ns=[10**9, 2 * 10**9, 4 * 10**9],
        prompt_tokens=[10, 20, 60],
        output_tokens=[1, 2, 3],
    )
    found = describe(plan)
    assert found.rate_per_s == 0.75
    assert found.span_s == 4
    assert (found.prompt.mean_tokens, found.prompt.p50_tokens, found.prompt.max_tokens) == (
        30,
        20,
        60,
    )
    assert found.gap_cv_ratio is None


def test_a_metronome_has_no_burstiness():
    found = describe(
        plan_at(open_arrivals(OpenArrivals(process="constant"), 0, 100, rate_per_s=3.0))
    )
    assert found.gap_cv_ratio == pytest.approx(0, abs=1e-6)


def test_what_cannot_be_told_is_none():
    batch = describe(plan_at(np.zeros(50, int)))
    assert (batch.rate_per_s, batch.gap_cv_ratio, batch.gap_cv_low_ratio) == (None, None, None)


def test_shared_prefixes_and_followers():
    plan = request_plan(
        "here",
        arrival_ns=[0, NONE, 5],
        prompt_tokens=[10, 30, 60],
        output_tokens=[5, 5, 5],
        follows=[NONE, 0, NONE],
        think_ns=[NONE, 0, NONE],
        session_index=[0, 0, 1],
        prefix_request=[NONE, 0, 0],
        prefix_tokens=[0, 15, 5],
    )
    found = describe(plan)
    assert found.shared_prefix_fraction == 0.2
    assert (found.n_followers, found.n_sessions) == (1, 2)
