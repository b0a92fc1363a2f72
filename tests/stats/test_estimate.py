"""Do estimates stay consistent, and judgements stay undecided where they must?"""

import math

import pytest
from hypothesis import given, strategies as st

from inferometer.stats.estimate import Z_90, Estimate, judge


def estimate_of(value, low=None, high=None):
    return Estimate(
        value=value, low=low, high=high, confidence_fraction=0.95, n_samples=7, method="test"
    )


@pytest.mark.parametrize(
    ("estimate", "verdict"),
    [
        (estimate_of(0.3, 0.2, 0.4), "met"),
        (estimate_of(0.3, 0.2, 0.5), "met"),
        (estimate_of(0.7, 0.6, 0.8), "missed"),
        (estimate_of(0.4, 0.3, 0.6), "undecided"),
        (estimate_of(0.1), "undecided"),
        (None, "undecided"),
    ],
)
def test_judgements(estimate, verdict):
    assert judge(estimate, 0.5) == verdict


@pytest.mark.parametrize("bad", [{"n_samples": 0}, {"low": 0.1}, {"low": 0.6, "high": 0.9}])
def test_impossible_estimates_are_not_born(bad):
    fields = {
        "value": 0.5,
        "low": None,
        "high": None,
        "confidence_fraction": 0.95,
        "n_samples": 7,
        "method": "test",
    }
    with pytest.raises(ValueError, match=r"sample|ends|outside"):
        Estimate(**(fields | bad))


@given(st.floats(0.1, 10), st.floats(0.1, 10))
def test_scaling_and_inverting(value, factor_ratio):
    estimate = estimate_of(value, value * 0.9, value * 1.1)
    assert estimate.scaled(factor_ratio).high == pytest.approx(value * 1.1 * factor_ratio)
    inverted = estimate.inverted(factor_ratio)
    assert inverted.low == pytest.approx(factor_ratio / (value * 1.1))
    assert inverted.inverted(factor_ratio).value == pytest.approx(value)
    assert estimate_of(value).inverted().low is None


def test_what_cannot_be_scaled_or_inverted():
    with pytest.raises(ValueError, match="not positive"):
        estimate_of(1.0).scaled(0)
    with pytest.raises(ValueError, match="invert"):
        estimate_of(1.0, 0.0, 2.0).inverted()


def test_another_error_moves_both_ends_in_logarithms():
    one = estimate_of(2.0, 1.0, 8.0)
    assert one.spread(0.0) == one
    wide = one.spread(0.3)
    assert wide.value == 2.0
    assert math.log(wide.high / 2) == pytest.approx(math.hypot(math.log(4), Z_90 * 0.3))
    assert math.log(2 / wide.low) == pytest.approx(math.hypot(math.log(2), Z_90 * 0.3))
    assert estimate_of(2.0).spread(0.3).high is None
