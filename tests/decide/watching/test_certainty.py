"""Is a verdict on a watched percentile given only where the window carries it?"""

import numpy as np
import pytest

from inferometer.decide.watching.intervals import Certainty, certainty_of, verdict_of

EDGES = np.array([0.05, 0.1, 0.2, 0.3, 0.5, 1.0, np.inf])


def gained(latencies_s, n_scrapes=60):
    """(T, B) What the buckets had gained at each scrape; requests came evenly over the scrapes."""
    scrape = np.arange(len(latencies_s)) * n_scrapes // max(len(latencies_s), 1)
    each = np.zeros((n_scrapes + 1, len(EDGES)))
    np.add.at(each, (scrape + 1, np.searchsorted(EDGES, latencies_s)), 1)
    return np.cumsum(each, axis=0)


def judged(latencies_s, limit_s, fraction=0.95, n_scrapes=60):
    found = certainty_of(EDGES, gained(latencies_s, n_scrapes), fraction)
    return verdict_of(found, limit_s), found


@pytest.mark.parametrize(
    ("n", "fraction", "n_needed"),
    [(12, 0.95, 72), (71, 0.95, 72), (72, 0.95, None), (100, 0.99, 368), (12, 0.5, 40)],
)
def test_a_limit_is_met_only_when_there_are_enough_requests(n, fraction, n_needed):
    verdict, found = judged(np.full(n, 0.01), 0.5, fraction)
    assert found.n_needed == n_needed
    assert verdict == ("undecided" if n_needed else "met")


def test_nothing_observed_is_undecided():
    assert judged(np.empty(0), 0.5) == ("undecided", None)
    assert certainty_of(np.empty(0), np.empty((3, 0)), 0.95) is None


def test_a_limit_is_missed_when_few_requests_show_it():
    assert judged(np.full(4, 0.7), 0.5)[0] == "undecided"
    verdict, found = judged(np.full(8, 0.7), 0.5)
    assert (verdict, found.low_s, found.high_s) == ("missed", 0.5, None)
    assert judged(np.r_[np.full(11, 0.01), 0.7], 0.5)[0] == "undecided"


def test_an_interval_goes_to_the_edges_of_buckets():
    latencies_s = np.tile([0.15] * 9 + [0.4], 40)
    verdict, found = judged(latencies_s, 0.4)
    assert found == Certainty(0.3, 0.5, None)
    assert verdict == "undecided"
    assert judged(latencies_s, 0.5)[0] == "met"
    assert judged(latencies_s, 0.3)[0] == "missed"


def test_requests_that_are_late_together_count_for_fewer():
    """Ten of them behind one another in a queue, again and again."""
    rng = np.random.default_rng(3)
    late = np.repeat(rng.random(40) < 0.05, 10)
    _, found = judged(np.where(late, 0.7, 0.01), 0.5)
    _, alone = judged(np.where(rng.permutation(late), 0.7, 0.01), 0.5)
    assert found.n_needed is not None
    assert found.n_needed > 400
    assert alone.n_needed is None


@pytest.mark.parametrize("n", [72, 150, 600])
def test_a_limit_at_the_percentile_is_seldom_judged(n):
    """The p95 of the distribution is just above the limit, or just below it."""
    rng = np.random.default_rng(n)
    above, below = ("met", 0.055), ("missed", 0.045)
    for wrong, share in (above, below):
        verdicts = [judged(np.where(rng.random(n) < share, 0.7, 0.01), 0.5)[0] for _ in range(400)]
        assert verdicts.count(wrong) <= 400 * 0.05
