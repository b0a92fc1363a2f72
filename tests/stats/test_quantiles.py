"""Do quantile intervals cover what they say, and agree with scipy's binomial?"""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, strategies as st

from inferometer.stats.quantiles import (
    Ranks,
    interval_ranks,
    median_estimate,
    min_samples,
    quantile_estimate,
    relative_spread_ratio,
    resampled_medians,
)


@pytest.mark.parametrize(
    ("quantile_fraction", "needed"),
    [(0.5, 6), (0.9, 36), (0.95, 72), (0.99, 368), (0.1, 36), (0.999, 3688)],
)
def test_the_least_number_of_samples(quantile_fraction, needed):
    assert min_samples(quantile_fraction) == needed
    assert interval_ranks(needed, quantile_fraction) is not None
    assert interval_ranks(needed - 1, quantile_fraction) is None


@pytest.mark.parametrize("n_samples", [6, 7, 10, 37, 100, 1000])
@pytest.mark.parametrize("quantile_fraction", [0.5, 0.9, 0.95])
def test_ranks_are_the_tightest_that_the_binomial_allows(n_samples, quantile_fraction):
    ranks = interval_ranks(n_samples, quantile_fraction)
    below = scipy.stats.binom(n_samples, quantile_fraction)
    if ranks is None:
        assert n_samples < min_samples(quantile_fraction)
        return
    assert below.cdf(ranks.low - 1) <= 0.025 < below.cdf(ranks.low)
    assert below.sf(ranks.high - 1) <= 0.025 < below.sf(ranks.high - 2)


def test_the_interval_is_scipys():
    samples = np.random.default_rng(3).lognormal(size=400)
    ours = quantile_estimate(samples, 0.9)
    theirs = scipy.stats.quantile_test(samples, p=0.9).confidence_interval(0.95)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))


@pytest.mark.parametrize(
    ("n_samples", "quantile_fraction"), [(6, 0.5), (7, 0.5), (25, 0.5), (80, 0.95)]
)
def test_coverage_is_at_least_what_is_said(n_samples, quantile_fraction):
    """4,000 seeded experiments on a skewed distribution: the share of hits must be compatible with 95 % or more."""
    rng = np.random.default_rng(11)
    truth = scipy.stats.lognorm(1).ppf(quantile_fraction)
    n_experiments, n_hits = 4000, 0
    for samples in rng.lognormal(size=(n_experiments, n_samples)):
        estimate = quantile_estimate(samples, quantile_fraction)
        n_hits += estimate.low <= truth <= estimate.high
    upper = scipy.stats.binomtest(n_hits, n_experiments).proportion_ci(0.999).high
    assert upper >= 0.95, f"covered {n_hits / n_experiments:.3f}"


def test_too_few_samples_have_a_value_but_no_interval():
    estimate = quantile_estimate([1.0, 2.0, 3.0], 0.99)
    assert estimate.low is None
    assert "n = 3 is too small" in estimate.method
    assert "368" in estimate.method


def test_absent_samples_are_no_samples():
    assert median_estimate([np.nan, np.nan]) is None
    assert median_estimate([]) is None
    assert median_estimate([np.nan, 2.0]).n_samples == 1


@given(
    st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=60),
    st.sampled_from([0.5, 0.9, 0.95]),
    st.floats(0.1, 10),
)
def test_order_and_scale_do_not_matter(samples, quantile_fraction, factor_ratio):
    estimate = quantile_estimate(samples, quantile_fraction)
    assert estimate == quantile_estimate(samples[::-1], quantile_fraction)
    scaled = quantile_estimate([sample * factor_ratio for sample in samples], quantile_fraction)
    assert scaled.value == pytest.approx(estimate.value * factor_ratio)


def test_spread_is_robust_and_that_of_a_normal_sample():
    samples = np.random.default_rng(5).normal(100, 3, size=4001)
    assert relative_spread_ratio(samples) == pytest.approx(0.03, rel=0.05)
    samples[:400] = 1e6
    assert relative_spread_ratio(samples) == pytest.approx(0.03, rel=0.3)
    assert relative_spread_ratio([1.0, 2.0]) is None


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 95.0])
def test_percent_is_refused(fraction):
    with pytest.raises(ValueError, match="between 0 and 1"):
        interval_ranks(10, fraction)


@pytest.mark.parametrize("quantile", [0.01, 0.5, 0.95, 0.99])
def test_ranks_are_those_of_a_search_through_all(quantile):
    for n in (1, 5, 6, 36, 368, 2000):
        below = scipy.stats.binom.cdf(np.arange(n), n, quantile)
        above = scipy.stats.binom.sf(np.arange(n), n, quantile)
        n_low, n_high = int((below <= 0.025).sum()), int((above <= 0.025).sum())
        assert interval_ranks(n, quantile) == (
            Ranks(n_low, n + 1 - n_high) if n_low and n_high else None
        )


def test_groups_are_resampled_within_themselves():
    drawn = resampled_medians(
        [np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 30.0])], seed=1, n_resamples=50
    )
    assert drawn.shape == (50, 2)
    assert set(drawn[:, 0]) <= {1.0, 2.0, 3.0}
    assert set(drawn[:, 1]) <= {10.0, 20.0, 30.0}
