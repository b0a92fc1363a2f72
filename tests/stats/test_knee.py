"""Is the knee where it is known to be, and undecided where nobody can know?"""

import numpy as np
import pytest
import scipy.stats

from inferometer.records.curves import find_knee

BATCHES = 2.0 ** np.arange(8)


def additive(x):
    """Costs add up: a doubling buys 1.5x at batch 16 / 2 = 8."""
    return 16 + x


def roofline(x):
    """Flat to 20, then proportional: 2 · 20 / (2 · x) = 1.5 at x = 40 / 3."""
    return np.maximum(20, x)


def repeats_of(time_at, *, noise, n_repeats, seed, batches=BATCHES):
    rng = np.random.default_rng(seed)
    return [x / time_at(x) * np.exp(rng.normal(0, noise, n_repeats)) for x in batches]


@pytest.mark.parametrize(("time_at", "truth"), [(additive, 8.0), (roofline, 40 / 3)])
def test_known_knees(time_at, truth):
    knee = find_knee(BATCHES, repeats_of(time_at, noise=0.002, n_repeats=7, seed=1), seed=2)
    assert knee.status == "found"
    assert knee.at.low <= truth <= knee.at.high
    assert knee.at.value == pytest.approx(truth, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("time_at", "truth"), [(additive, 8.0), (roofline, 40 / 3)])
def test_coverage(time_at, truth):
    """40 seeded sweeps with 5 % of noise: the interval holds the truth in a share compatible with 95 %."""
    knees = [
        find_knee(BATCHES, repeats_of(time_at, noise=0.05, n_repeats=7, seed=seed), seed=seed)
        for seed in range(40)
    ]
    found = [knee.at for knee in knees if knee.status == "found"]
    n_hits = sum(at.low <= truth <= at.high for at in found)
    assert len(found) > 25
    assert scipy.stats.binomtest(n_hits, len(found)).proportion_ci(0.99).high >= 0.95


def test_no_knee_within_what_was_measured():
    beyond = find_knee(
        BATCHES, repeats_of(lambda x: 1000 + x, noise=0.01, n_repeats=7, seed=1), seed=2
    )
    assert (beyond.status, beyond.at) == ("beyond", None)
    before = find_knee(
        BATCHES, repeats_of(lambda x: 0.1 + x, noise=0.01, n_repeats=7, seed=1), seed=2
    )
    assert (before.status, before.at) == ("before", None)


def test_noise_leaves_it_undecided():
    knee = find_knee(BATCHES, repeats_of(additive, noise=1.0, n_repeats=5, seed=3), seed=2)
    assert knee.status == "undecided"


def test_single_repeats_have_a_value_and_no_interval():
    knee = find_knee(BATCHES, repeats_of(additive, noise=0, n_repeats=1, seed=1), seed=2)
    assert knee.status == "undecided"
    assert knee.at.value == pytest.approx(8, rel=0.02)
    assert knee.at.low is None


def test_order_of_the_points_does_not_matter():
    repeats = repeats_of(additive, noise=0.02, n_repeats=7, seed=1)
    shuffled = [3, 1, 7, 0, 2, 6, 5, 4]
    one = find_knee(BATCHES[shuffled], [repeats[i] for i in shuffled], seed=2)
    assert one == find_knee(BATCHES, repeats, seed=2)


def test_points_without_samples_do_not_count():
    repeats = repeats_of(additive, noise=0.02, n_repeats=7, seed=1)
    with_gaps = find_knee([*BATCHES, 256.0, 512.0], [*repeats, [np.nan] * 7, []], seed=2)
    assert with_gaps == find_knee(BATCHES, repeats, seed=2)


def test_few_points_take_one_line_and_refuse_what_does_not_fit():
    few = 2.0 ** np.arange(1, 6, 1.33)
    assert (
        find_knee(
            few, repeats_of(additive, noise=0.005, n_repeats=7, seed=1, batches=few), seed=2
        ).status
        == "found"
    )
    bent = find_knee(
        few,
        repeats_of(lambda x: np.maximum(9, x), noise=0.005, n_repeats=7, seed=1, batches=few),
        seed=2,
    )
    assert bent.status == "undecided"
    assert "misses a point" in bent.why


@pytest.mark.parametrize("batches", [[], [1.0], [1.0, 2.0], [4.0, 5.0, 6.0]])
def test_too_few_points(batches):
    knee = find_knee(batches, [[1.0] * 7 for _ in batches], seed=1)
    assert (knee.status, knee.at) == ("undecided", None)
