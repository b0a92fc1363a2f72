"""Is drift seen where there is some, and not where there is none?"""

import numpy as np
import pytest
import scipy.stats

from inferometer.stats.comparison import drift, lag_1_correlation_ratio


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
