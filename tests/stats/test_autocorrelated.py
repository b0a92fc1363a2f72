"""Do intervals of one run hold the truth as often as they say, though its samples depend on one another?"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.signal import lfilter
from scipy.special import ndtri
from scipy.stats import binom

from inferometer.stats.autocorrelated import (
    MIN_SAMPLES,
    grouped_share,
    independent_samples,
    run_mean_estimate,
    run_quantile_estimate,
    run_quantile_estimates,
    run_share_estimate,
)
from inferometer.stats.estimate import judge

N_RUNS = 200


def chain(rng, n, correlation):
    """A stationary sequence of standard normals in which neighbours correlate."""
    noise = rng.standard_normal(n) * math.sqrt(1 - correlation**2)
    noise[0] = rng.standard_normal()
    return lfilter([1.0], [1.0, -correlation], noise)


def misses(correlation, n, quantile):
    """(runs with an interval, those of them whose interval misses the truth)"""
    rng = np.random.default_rng(3)
    found = [run_quantile_estimate(chain(rng, n, correlation), quantile) for _ in range(N_RUNS)]
    with_interval = [estimate for estimate in found if estimate.low is not None]
    return len(with_interval), sum(
        not estimate.low <= ndtri(quantile) <= estimate.high for estimate in with_interval
    )


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9, 0.97])
@pytest.mark.parametrize("quantile", [0.5, 0.95])
def test_intervals_hold_the_truth(correlation, quantile):
    n_with, n_missed = misses(correlation, 4000, quantile)
    assert n_with > 0.8 * N_RUNS
    assert n_missed <= binom.ppf(0.999, n_with, 0.05)


def test_an_interval_that_believes_in_independence_would_miss():
    """The same check catches an interval that takes 4000 dependent samples for 4000 independent ones."""
    rng = np.random.default_rng(3)
    half = 1.96 * math.sqrt(math.pi / 2) / math.sqrt(4000)
    n_missed = sum(abs(np.median(chain(rng, 4000, 0.9))) > half for _ in range(N_RUNS))
    assert n_missed > binom.ppf(0.999, N_RUNS, 0.05)


def test_a_run_too_short_for_its_own_memory_has_no_interval():
    ramp = run_quantile_estimate(np.arange(1000.0), 0.95)
    assert ramp.low is None
    assert "too small" in ramp.method
    assert run_quantile_estimate(np.random.default_rng(0).random(MIN_SAMPLES - 1), 0.5).low is None
    assert run_quantile_estimate(np.random.default_rng(0).random(60), 0.99).low is None
    assert run_quantile_estimate([], 0.5) is None


def test_what_never_ended_bounds_from_below_only():
    rng = np.random.default_rng(1)
    seen = rng.exponential(1.0, 2000)
    never = rng.random(2000) < 0.08
    upper = np.where(never, np.inf, seen)
    at_p50, at_p95 = (run_quantile_estimate(seen, q, upper=upper) for q in (0.5, 0.95))
    assert at_p50.high < 1.1
    assert at_p95.high == math.inf
    assert at_p95.low < 3.0 < at_p95.value * 1.2
    assert judge(at_p95, 5.0) == "undecided"
    assert judge(at_p95, 1.0) == "missed"


def waves_and_spikes(seed):
    """One wave of 6 % of the samples holds the p90, above it independent ones hold the p95."""
    rng = np.random.default_rng(seed)
    samples = rng.uniform(1.0, 2.0, 4000)
    samples[1000:1240] = rng.uniform(5.0, 6.0, 240)
    return np.where(rng.random(4000) < 0.055, rng.uniform(8.0, 10.0, 4000), samples)


def test_no_end_of_an_interval_decreases_from_quantile_to_quantile():
    fractions = (0.5, 0.9, 0.95, 0.97, 0.99)
    widened = set()
    for seed in range(20):
        samples = waves_and_spikes(seed)
        never = np.where(samples > np.quantile(samples, 0.998), np.inf, samples)
        found = run_quantile_estimates(samples, fractions, upper=never)
        with_interval = [estimate for estimate in found if estimate.low is not None]
        for lower, higher in itertools.pairwise(with_interval):
            assert lower.low <= higher.low
            assert lower.high <= higher.high
        alone = tuple(run_quantile_estimate(samples, one, upper=never) for one in fractions)
        assert all(a == b for at, a, b in zip(fractions, alone, found, strict=True) if at != 0.97)
        widened |= {at for at, one in zip(fractions, found, strict=True) if "widened" in one.method}
    assert 0.95 in widened


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=300),
    st.sampled_from([0.5, 0.9, 0.99]),
    st.floats(0.1, 1e3),
)
def test_value_is_a_sample_and_scales(samples, quantile, factor):
    estimate = run_quantile_estimate(samples, quantile)
    assert estimate.value in samples
    assert np.mean(np.asarray(samples) <= estimate.value) >= quantile - 1e-12
    scaled = run_quantile_estimate(np.asarray(samples) * factor, quantile)
    assert scaled.value == pytest.approx(estimate.value * factor)


def test_worth_of_sequences():
    rng = np.random.default_rng(5)
    assert independent_samples(rng.random(4000) < 0.5) > 1500
    assert independent_samples(np.repeat(rng.random(40) < 0.5, 100)) < 100
    assert independent_samples(np.ones(500, np.bool_)) == 500


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_mean_of_a_run(correlation):
    rng = np.random.default_rng(9)
    n_missed = 0
    for _ in range(N_RUNS):
        samples = chain(rng, 4000, correlation)
        estimate = run_mean_estimate(
            samples.reshape(40, 100).mean(axis=1), float(samples.mean()), name="mean"
        )
        n_missed += not estimate.low <= 0 <= estimate.high
    assert n_missed <= binom.ppf(0.999, N_RUNS, 0.05)
    assert run_mean_estimate([1.0] * 12, 1.0, name="mean").low is None


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_share_of_a_run(share):
    rng = np.random.default_rng(4)
    limit = ndtri(share)
    found = [run_share_estimate(chain(rng, 4000, 0.9) < limit, name="share") for _ in range(N_RUNS)]
    n_missed = sum(
        not estimate.low <= share <= estimate.high for estimate in found if estimate.low is not None
    )
    assert n_missed <= binom.ppf(0.999, N_RUNS, 0.05)
    assert run_share_estimate([], name="share") is None
    assert run_share_estimate([True] * 10, name="share").low is None
    everything = run_share_estimate([True] * 1000, name="share")
    assert (everything.value, everything.high) == (1.0, 1.0)
    assert 0.99 < everything.low < 1.0


@pytest.mark.parametrize("alike", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("share", [0.6, 0.9])
def test_intervals_of_groups_hold_the_truth(alike, share):
    """Of 15 groups of 8, whose members do as their group does with this chance."""
    rng = np.random.default_rng(5)
    n_missed = 0
    for _ in range(N_RUNS):
        own, of_group = (rng.random((15, n)) < share for n in (8, 1))
        found = grouped_share(np.where(rng.random((15, 8)) < alike, of_group, own).tolist())
        n_missed += not found.low <= share <= found.high
    assert n_missed <= binom.ppf(0.999, N_RUNS, 0.1)


def test_groups_that_do_not_differ_are_worth_a_sample_each():
    found = grouped_share([[True] * 8] * 5)
    assert found.high == 1
    assert found.low == pytest.approx(0.05 ** (1 / 5))
    assert grouped_share([[True] * 8]).low is None
