"""Does the interval of pairs hold at every look, and does it decide as soon as it may?"""

import math

import numpy as np
import pytest
from scipy.optimize import brentq

from inferometer.stats.comparison import (
    decide_pairs,
    is_futile,
    judge_pairs,
    pair_gain,
    sign_evidence,
)

N_MOST = 8
LIMITS = {"least_gain_ratio": 0.02, "confidence_fraction": 0.9}


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
    assert is_futile([0.01, -0.02, 0.0, 0.0], **limits)
    assert is_futile([0.1, -0.1, 0.02, -0.03], **limits)
    assert not is_futile([0.01, -0.02, 0.0], **limits)  # one of three may be an outlier
    assert not is_futile([0.05, 0.07, 1.4], **limits)
    assert not is_futile([0.03, 0.06, 0.02, 0.07], **limits)


def test_too_few_pairs_have_no_interval():
    assert pair_gain([], confidence_fraction=0.9) is None
    two = pair_gain([0.1, 0.1], confidence_fraction=0.9)
    assert (two.low, two.high) == (None, None)
    assert decide_pairs(two, least_gain_ratio=0.02) == "go on"
    assert pair_gain([0.1], confidence_fraction=0.5).low is None


def test_two_pairs_show_a_gain_far_above_their_scatter_to_a_confirmation():
    """Student's t of two equal sides exceeds such a ratio in 1.4 % of cases (one degree of freedom)."""
    limits = LIMITS | {"confidence_fraction": 0.5}
    assert judge_pairs([[1.40, 1.44]], **limits).decision == "keep"
    assert judge_pairs([[0.05, 0.06]], **limits).decision == "go on"
    rng, n_runs = np.random.default_rng(12), 4000
    n_kept = sum(
        judge_pairs([pair], **limits).decision == "keep"
        for pair in rng.standard_normal((n_runs, 2)).tolist()
    )
    assert n_kept / n_runs <= 0.02


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


def test_a_gain_that_differs_much_from_pair_to_pair_is_found_by_its_signs():
    logs = [0.02, 0.9, 0.05, 0.4, 1.4, 0.03, 0.1]
    assert judge_pairs([logs], **LIMITS).decision == "keep"
    assert judge_pairs([logs[:5]], **LIMITS).decision == "go on"
    mostly_nothing = [0.003, 0.002, 0.9, 0.004, 0.8, 0.001, 0.002]
    assert judge_pairs([mostly_nothing], **LIMITS).decision != "keep"


def test_what_draws_explain_is_no_scatter():
    rng = np.random.default_rng(3)
    draws = rng.normal(0, 0.5, 6)
    logs = math.log1p(0.2) + draws + rng.normal(0, 0.01, 6)
    assert judge_pairs([logs.tolist()], **LIMITS).decision == "go on"
    judged = judge_pairs([logs.tolist(), (logs - draws).tolist()], **LIMITS)
    assert judged.decision == "keep"
    assert judged.gain.value == pytest.approx(0.2, abs=0.02)
    assert judged.gain.confidence_fraction == pytest.approx(0.975)


def test_bets_on_signs_are_a_martingale():
    """Each next pair is worth as much in the mean as what came before."""
    for signs in ([], [1], [1, -1, 1], [1] * 9):
        both = (sign_evidence([*signs, 1]) + sign_evidence([*signs, -1])) / 2
        assert both == pytest.approx(sign_evidence(signs) if signs else 1.0)


@pytest.mark.parametrize("scatter", [0.01, 0.03, 0.1])
@pytest.mark.parametrize("explained", [False, True])
def test_equal_servers_are_seldom_found_different(scatter, explained):
    """Also where what is believed of draws is wrong."""
    rng, n_kept, n_runs = np.random.default_rng(11), 0, 400
    for _ in range(n_runs):
        logs = scatter * rng.standard_t(4, N_MOST)
        series = [logs, logs - rng.normal(0, 0.1, N_MOST)] if explained else [logs]
        for n in range(3, N_MOST + 1):
            decision = judge_pairs([one[:n].tolist() for one in series], **LIMITS).decision
            if decision != "go on":
                n_kept += decision == "keep"
                break
    assert n_kept / n_runs <= 0.04
