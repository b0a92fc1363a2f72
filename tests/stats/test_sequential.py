"""Does the interval of pairs hold at every look, and does it decide as soon as it may?"""

import math

import numpy as np
import pytest
from scipy.optimize import brentq

from inferometer.stats.comparison import decide_pairs, is_futile, pair_gain

N_MOST = 8


def bayes_factor(logs, prior_variance=8.0):
    """Rouder et al. (2009), equation 3, written out for a normal prior of this variance."""
    n, t = len(logs), np.mean(logs) / np.std(logs, ddof=1) * math.sqrt(len(logs))
    shrunk, free = 1 + n * prior_variance, n - 1
    return (1 + t**2 / free) ** (n / 2) / (
        math.sqrt(shrunk) * (1 + t**2 / (shrunk * free)) ** (n / 2)
    )


@pytest.mark.parametrize("n", [3, 4, 6, 8, 20])
def test_the_interval_inverts_the_bayes_factor(n):
    logs = np.random.default_rng(n).normal(0.05, 0.02, n)
    gain = pair_gain(logs.tolist(), confidence_fraction=0.9)
    mean = float(logs.mean())
    edge = brentq(
        lambda at: math.log(bayes_factor(logs - at)) - math.log(10), mean - 5, mean - 1e-9
    )
    assert math.log1p(gain.low) == pytest.approx(edge, abs=1e-9)
    assert math.log1p(gain.high) == pytest.approx(2 * mean - edge, abs=1e-9)


def test_one_disturbed_pair_of_many_does_not_hide_a_gain():
    logs = [0.05, 0.06, 0.04, 0.05, 0.055, 0.045]
    for outlier in (1.4, -1.4):
        gain = pair_gain([*logs, outlier], confidence_fraction=0.9)
        assert decide_pairs(gain, least_gain_ratio=0.02) == "keep"
        assert gain.value == pytest.approx(0.05, abs=0.01)
    honest = [0.2, -0.1, 0.3, -0.2, 0.1, 0.0]
    assert pair_gain(honest, confidence_fraction=0.9).value == pytest.approx(
        math.expm1(np.mean(honest))
    )


def test_pairs_end_where_more_would_not_decide():
    limits = {"n_most": 10, "least_gain_ratio": 0.02, "confidence_fraction": 0.9}
    assert is_futile([0.01, -0.02, 0.0], **limits)
    assert is_futile([0.1, -0.1, 0.02, -0.03], **limits)
    assert not is_futile([0.01, -0.02], **limits)
    assert not is_futile([0.05, 0.07, 1.4], **limits)
    assert not is_futile([0.03, 0.06, 0.02, 0.07], **limits)


def test_too_few_pairs_have_no_interval():
    assert pair_gain([], confidence_fraction=0.9) is None
    two = pair_gain([0.1, 0.1], confidence_fraction=0.9)
    assert (two.low, two.high) == (None, None)
    assert decide_pairs(two, least_gain_ratio=0.02) == "go on"


def first_decisions(effect, scatter, n_runs, seed, draw):
    """How often a change is kept when its pairs are looked at one by one, from the third on."""
    rng, n_kept = np.random.default_rng(seed), 0
    for _ in range(n_runs):
        logs = effect + scatter * draw(rng, N_MOST)
        for n in range(3, N_MOST + 1):
            gain = pair_gain(logs[:n].tolist(), confidence_fraction=0.9)
            decision = decide_pairs(gain, least_gain_ratio=0.02)
            if decision != "go on":
                n_kept += decision == "keep"
                break
    return n_kept / n_runs


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng, n: rng.standard_normal(n),
        lambda rng, n: rng.standard_t(3, n),
        lambda rng, n: rng.uniform(-2, 2, n),
    ],
    ids=["normal", "heavy tails", "uniform"],
)
@pytest.mark.parametrize("scatter", [0.01, 0.03, 0.1])
def test_what_does_nothing_is_seldom_kept(scatter, draw):
    assert first_decisions(0.0, scatter, 1000, 7, draw) <= 0.05


def test_a_true_gain_is_found():
    found = first_decisions(math.log1p(0.05), 0.02, 1000, 8, lambda rng, n: rng.standard_normal(n))
    assert found >= 0.9


def test_what_gains_too_little_for_sure_ends_the_pairs():
    gain = pair_gain([0.001, -0.001, 0.0, 0.001], confidence_fraction=0.9)
    assert decide_pairs(gain, least_gain_ratio=0.02) == "drop"
