"""Is the bootstrap scipy's, seeded, and does it cover?"""

import numpy as np
import pytest
import scipy.stats

from inferometer.stats.quantiles import MIN_SAMPLES, bootstrap_estimate, resampled_medians


def means(resamples):
    return resamples.mean(axis=1)


def test_it_is_scipys_bca():
    samples = np.random.default_rng(2).lognormal(size=30)
    ours = bootstrap_estimate(samples, means, name="mean", seed=1, n_resamples=20_000)
    theirs = scipy.stats.bootstrap(
        (samples,), np.mean, n_resamples=20_000, method="BCa", rng=np.random.default_rng(8)
    ).confidence_interval
    width = theirs.high - theirs.low
    assert ours.low == pytest.approx(theirs.low, abs=0.03 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.03 * width)


def test_the_same_seed_gives_the_same_interval():
    samples = np.random.default_rng(2).lognormal(size=30)
    assert bootstrap_estimate(samples, means, name="mean", seed=1) == bootstrap_estimate(
        samples, means, name="mean", seed=1
    )
    assert bootstrap_estimate(samples, means, name="mean", seed=1) != bootstrap_estimate(
        samples, means, name="mean", seed=2
    )


def test_coverage_of_a_mean():
    """A bootstrap is approximate: with 20 samples of a normal it must be compatible with at least 91 %."""
    rng = np.random.default_rng(4)
    n_experiments = 800
    n_hits = sum(
        estimate.low <= 10 <= estimate.high
        for samples in rng.normal(10, 1, size=(n_experiments, 20))
        if (estimate := bootstrap_estimate(samples, means, name="mean", seed=6, n_resamples=500))
    )
    interval = scipy.stats.binomtest(n_hits, n_experiments).proportion_ci(0.999)
    assert interval.high >= 0.91
    assert interval.low <= 0.97


def test_too_few_samples_and_none():
    assert bootstrap_estimate([], means, name="mean", seed=1) is None
    few = bootstrap_estimate([1.0] * (MIN_SAMPLES - 1), means, name="mean", seed=1)
    assert few.low is None
    assert "too small" in few.method


def test_samples_that_do_not_vary():
    estimate = bootstrap_estimate([2.0] * 10, means, name="mean", seed=1)
    assert (estimate.low, estimate.value, estimate.high) == (2.0, 2.0, 2.0)


def test_groups_are_resampled_within_themselves():
    drawn = resampled_medians(
        [np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 30.0])], seed=1, n_resamples=50
    )
    assert drawn.shape == (50, 2)
    assert set(drawn[:, 0]) <= {1.0, 2.0, 3.0}
    assert set(drawn[:, 1]) <= {10.0, 20.0, 30.0}
