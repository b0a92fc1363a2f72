from inferometer.report.tables import estimate_cell, notes_text, statistic_text
from inferometer.stats.estimate import Estimate

GOOD = Estimate(value=2.0, low=1.9, high=2.2, confidence_fraction=0.95, n_samples=7, method="order")
BARE = Estimate(
    value=2.0, low=None, high=None, confidence_fraction=0.95, n_samples=3, method="too few"
)


def test_absent_is_a_dash():
    assert estimate_cell(None) == "–"


def test_no_interval_says_n():
    assert estimate_cell(BARE) == "2 (n too small: 3)"


def test_statistic_of_nothing_but_bare():
    assert statistic_text([BARE, None]) == "median of 3 repetitions, n too small for an interval"


def test_statistic_of_both():
    assert statistic_text([GOOD, BARE]) == "median of 3–7 repetitions, 95 % interval"
    assert notes_text([GOOD, BARE], has_flags=True) == "no bar: n too small · hollow: flagged"
    assert notes_text([GOOD]) == ""
