"""Are two sets of repeats told apart when they differ, called equivalent when they do not, and left undecided otherwise?"""

import itertools

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, strategies as st

from inferometer.stats.comparison import (
    compare,
    compare_pairs,
    drift,
    lag_1_correlation_ratio,
    ratio_estimate,
)

positives = st.lists(st.floats(0.1, 10), min_size=1, max_size=12)


@pytest.mark.parametrize(("n_new", "n_old"), [(4, 4), (5, 7), (7, 7), (12, 3)])
def test_the_interval_holds_exactly_the_shifts_that_mann_whitney_does_not_reject(n_new, n_old):
    rng = np.random.default_rng(n_new * 100 + n_old)
    new, old = rng.lognormal(size=n_new), rng.lognormal(size=n_old)
    ratio = ratio_estimate(new, old)
    for shift, is_inside in (
        (ratio.low * 0.999, False),
        (ratio.low * 1.001, True),
        (ratio.high * 0.999, True),
        (ratio.high * 1.001, False),
    ):
        p_value = scipy.stats.mannwhitneyu(new / shift, old, method="exact").pvalue
        assert (p_value > 0.05) == is_inside


@pytest.mark.parametrize(("n_new", "n_old"), [(3, 3), (1, 30), (2, 5)])
def test_too_few_repeats_are_undecided(n_new, n_old):
    compared = compare(np.linspace(1, 1.1, n_new), np.linspace(10, 11, n_old))
    assert compared.ratio.low is None
    assert compared.verdict == "undecided"


def test_coverage_and_false_alarms():
    """2,000 seeded pairs of 7 repeats with a true ratio of 1.1 and of 1: covered in >= 95 %, significant in <= 5 %."""
    rng = np.random.default_rng(9)
    n_experiments, n_hits, n_alarms = 2000, 0, 0
    for _ in range(n_experiments):
        old, new = np.exp(rng.normal(0, 0.05, (2, 7)))
        ratio = ratio_estimate(new * 1.1, old)
        n_hits += ratio.low <= 1.1 <= ratio.high
        n_alarms += compare(new, old, margin_ratio=0).verdict != "undecided"
    assert scipy.stats.binomtest(n_hits, n_experiments).proportion_ci(0.999).high >= 0.95
    assert scipy.stats.binomtest(n_alarms, n_experiments).proportion_ci(0.999).low <= 0.05


def test_verdicts():
    rng = np.random.default_rng(1)
    old = rng.normal(100, 1, 30)
    assert compare(old * 1.2, old).verdict == "higher"
    assert compare(old * 0.8, old).verdict == "lower"
    assert compare(rng.normal(100, 1, 30), old).verdict == "equivalent"
    assert compare(rng.normal(100, 30, 7), rng.normal(100, 30, 7)).verdict == "undecided"


def test_a_real_but_irrelevant_difference_is_equivalence():
    old = np.linspace(100, 100.1, 20)
    compared = compare(old * 1.005, old, margin_ratio=0.02)
    assert compared.ratio.low > 1
    assert compared.verdict == "equivalent"


def test_many_repeats_use_the_normal_approximation_and_agree_with_the_exact_interval():
    rng = np.random.default_rng(6)
    new, old = rng.lognormal(size=51), rng.lognormal(size=51)
    ratio = ratio_estimate(new, old)
    for shift in (ratio.low, ratio.high):
        p_value = scipy.stats.mannwhitneyu(new / shift, old, method="asymptotic").pvalue
        assert p_value == pytest.approx(0.05, abs=0.005)


@given(positives, positives)
def test_swapping_the_sides_inverts_the_ratio(new, old):
    one, other = ratio_estimate(new, old), ratio_estimate(old, new)
    assert one.value * other.value == pytest.approx(1)
    if one.low is not None:
        assert one.low * other.high == pytest.approx(1)


def test_mann_whitney_counts_by_brute_force():
    from inferometer.stats.comparison import _mann_whitney_counts

    counts = [0] * 13
    for places in itertools.combinations(range(7), 3):
        counts[sum(place - i for i, place in enumerate(places))] += 1
    assert _mann_whitney_counts(3, 4) == tuple(counts)


def test_nothing_to_compare():
    assert compare([], [1.0]) is None
    with pytest.raises(ValueError, match="positive"):
        compare([0.0], [1.0])


def test_pairs_cancel_what_both_share():
    """A machine that is twice as slow for some pairs hides 3 % from the unpaired test and not from the paired one."""
    rng = np.random.default_rng(3)
    shared = np.exp(rng.normal(0, 0.5, 12))
    old, new = (
        shared * np.exp(rng.normal(0, 0.005, 12)),
        1.03 * shared * np.exp(rng.normal(0, 0.005, 12)),
    )
    assert compare(new, old).verdict == "undecided"
    assert compare_pairs(new, old).verdict == "higher"


def test_pairs_raise_no_false_alarms_and_cover():
    rng = np.random.default_rng(5)
    n_experiments, n_alarms, n_hits = 2000, 0, 0
    for _ in range(n_experiments):
        shared = rng.lognormal(size=8)
        old, new = shared * np.exp(rng.normal(0, 0.05, (2, 8)))
        n_alarms += compare_pairs(new, old, margin_ratio=0).verdict != "undecided"
        ratio = compare_pairs(1.1 * new, old).ratio
        n_hits += ratio.low <= 1.1 <= ratio.high
    assert scipy.stats.binomtest(n_alarms, n_experiments).proportion_ci(0.999).low <= 0.05
    assert scipy.stats.binomtest(n_hits, n_experiments).proportion_ci(0.999).high >= 0.95


def test_five_pairs_or_absent_halves_are_undecided():
    assert compare_pairs([1.0] * 5, [2.0] * 5).verdict == "undecided"
    assert compare_pairs([1.0] * 5 + [np.nan], [2.0] * 6).ratio.n_samples == 5
    assert compare_pairs([np.nan], [2.0]) is None


def test_a_slowdown_is_seen():
    rng = np.random.default_rng(3)
    samples = 10 * np.linspace(1, 1.3, 42) * np.exp(rng.normal(0, 0.01, 42))
    found = drift(samples)
    assert found.verdict == "higher"
    assert found.ratio.low < 1.2 < found.ratio.high
    assert drift(samples[::-1]).verdict == "lower"


def test_steady_samples_drift_less_than_the_margin():
    assert drift(np.random.default_rng(3).normal(10, 0.05, 60)).verdict == "equivalent"


def test_false_alarms_are_rare():
    rng = np.random.default_rng(5)
    n_alarms = sum(
        drift(samples, margin_ratio=0).verdict in {"lower", "higher"}
        for samples in np.exp(rng.normal(0, 0.1, (1000, 24)))
    )
    assert scipy.stats.binomtest(n_alarms, 1000).proportion_ci(0.999).low <= 0.05


@pytest.mark.parametrize("samples", [[], [1.0], [1.0, 2.0]])
def test_too_few_samples(samples):
    assert drift(samples) is None


def test_few_samples_are_undecided():
    assert drift([1.0, 1.0, 9.0]).verdict == "undecided"


def test_correlation_of_neighbours():
    rng = np.random.default_rng(5)
    independent = rng.normal(size=5000)
    assert abs(lag_1_correlation_ratio(independent)) < 0.06
    walk = scipy.signal.lfilter([1], [1, -0.8], independent)
    assert lag_1_correlation_ratio(walk) == pytest.approx(0.8, abs=0.05)
    assert lag_1_correlation_ratio([1.0] * 20) is None
    assert lag_1_correlation_ratio([1.0, 2.0]) is None
