"""Is warm-up found where it is, and seldom where there is none; is a drift told from a long memory?"""

import numpy as np
import pytest

from inferometer.stats.autocorrelated import MIN_SAMPLES
from inferometer.stats.warm_up import MSER_BATCH, mser, trend, warm_up


def autoregressive(rng, n, memory, spread=0.3):
    noise = rng.normal(size=n + 200) * spread * np.sqrt(1 - memory**2)
    x = np.zeros(n + 200)
    for i in range(1, n + 200):
        x[i] = memory * x[i - 1] + noise[i]
    return np.exp(x[200:])


def queue(rng, n, load, skipped=0):
    """Sojourn times of M/M/1, from an empty start or after so many."""
    gaps, work = rng.exponential(1 / load, n + skipped), rng.exponential(1, n + skipped)
    waits = np.zeros(n + skipped)
    for i in range(1, n + skipped):
        waits[i] = max(0, waits[i - 1] + work[i - 1] - gaps[i])
    return (waits + work)[skipped:]


def mser_by_hand(samples):
    means = (
        np.asarray(samples)[: len(samples) // MSER_BATCH * MSER_BATCH]
        .reshape(-1, MSER_BATCH)
        .mean(axis=1)
    )
    errors = [means[cut:].var() / (len(means) - cut) for cut in range(len(means) // 2 + 1)]
    return int(np.argmin(errors)) * MSER_BATCH


def test_mser_is_that_of_the_definition():
    rng = np.random.default_rng(1)
    for n in (10, 57, 200):
        samples = rng.normal(size=n) + np.exp(-np.arange(n) / 20) * 3
        assert mser(samples) == mser_by_hand(samples)
    assert mser([1.0] * 9) == 0


def share(n, count):
    return sum(count() for _ in range(n)) / n


@pytest.mark.parametrize("memory", [0.0, 0.5])
@pytest.mark.parametrize("n", [100, 1000])
def test_steady_samples_are_seldom_said_to_warm_up_or_drift(n, memory):
    rng = np.random.default_rng(n)
    assert share(60, lambda: warm_up(autoregressive(rng, n, memory)) > 0) <= 0.05
    assert share(60, lambda: trend(autoregressive(rng, n, memory)).is_drifting) <= 0.05


def test_a_steady_queue_is_seldom_said_to_drift():
    rng = np.random.default_rng(5)
    assert share(40, lambda: warm_up(queue(rng, 2000, 0.8, 1000)) > 0) <= 0.15
    assert share(40, lambda: trend(queue(rng, 2000, 0.8, 1000)).is_drifting) <= 0.1


@pytest.mark.parametrize("slower", [2.0, 0.5])
def test_a_warm_up_is_found_where_it_ends(slower):
    rng = np.random.default_rng(7)
    cuts = []
    for _ in range(40):
        samples = autoregressive(rng, 400, 0.3)
        samples[:40] *= slower
        cuts.append(warm_up(samples))
    assert 35 <= np.median(cuts) <= 45
    assert np.mean(np.array(cuts) > 0) >= 0.95


def test_overload_and_slow_drift_are_drifts():
    rng = np.random.default_rng(9)
    assert share(30, lambda: trend(queue(rng, 400, 1.3)).is_drifting) >= 0.95
    assert (
        share(
            30, lambda: trend(autoregressive(rng, 400, 0.3) * np.linspace(1, 1.5, 400)).is_drifting
        )
        >= 0.9
    )


def test_what_does_not_matter_is_left_alone():
    assert not trend(np.linspace(1, 1.05, 1000)).is_drifting
    assert warm_up([1.05] * 40 + [1.0] * 400) == 0


def test_few_samples_tell_nothing():
    assert trend(np.linspace(1, 9, MIN_SAMPLES - 1)) is None
    assert warm_up([9.0] * 5 + [1.0] * (MIN_SAMPLES - 6)) == 0


def test_samples_that_do_not_vary():
    assert trend([3.0] * 100) == trend([5.0] * 100)
    assert not trend([3.0] * 100).is_drifting
    assert warm_up([9.0] * 10 + [3.0] * 100) == 10
