"""Do requests come as the process says? Tests at the level 0.001, seeds fixed."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from inferometer.errors import SpecError
from inferometer.inputs.workload.arrivals import (
    gamma_draws,
    open_arrivals,
    profile_integral_s,
    unit_gaps,
)
from inferometer.inputs.workload.types import Bursts, OpenArrivals, Points, Ramp

LEVEL = 1e-3
N = 20_000


def instants_s(n=N, seed=0, rate=1.0, **arrivals):
    return open_arrivals(OpenArrivals(**arrivals), seed, n, rate_per_s=rate) / 1e9


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_poisson_gaps_are_exponential_and_counts_are_poisson(seed):
    at_s = instants_s(seed=seed, rate=5.0)
    assert stats.kstest(np.diff(at_s), "expon", args=(0, 1 / 5)).pvalue > LEVEL
    counts = np.bincount(at_s.astype(int))[:-1]
    dispersion = (
        counts.var(ddof=1) / counts.mean() * (len(counts) - 1)
    )  # chi-square where counts are Poisson
    assert LEVEL < stats.chi2.cdf(dispersion, len(counts) - 1) < 1 - LEVEL


@pytest.mark.parametrize("shape", [0.05, 0.3, 1.0, 2.5, 40.0])
def test_gamma_gaps_have_the_shape(shape):
    gaps = unit_gaps(OpenArrivals(process="gamma", burstiness_ratio=shape), 4, N)
    assert stats.kstest(gaps, "gamma", args=(shape, 0, 1 / shape)).pvalue > LEVEL
    mean_error = np.sqrt(1 / shape / N) * stats.norm.ppf(1 - LEVEL / 2)
    assert abs(gaps.mean() - 1) < mean_error


def test_a_gamma_draw_does_not_depend_on_how_many_are_drawn():
    assert np.array_equal(gamma_draws(0.7, 1, "x", 5000)[:700], gamma_draws(0.7, 1, "x", 700))


@given(st.floats(0.01, 1e4), st.sampled_from(["poisson", "gamma", "constant"]))
def test_another_rate_stretches_the_same_pattern(rate, process):
    slow = open_arrivals(OpenArrivals(process=process, burstiness_ratio=0.5), 9, 50, rate_per_s=1.0)
    fast = open_arrivals(
        OpenArrivals(process=process, burstiness_ratio=0.5), 9, 50, rate_per_s=rate
    )
    assert np.all(np.abs(fast * rate - slow) <= rate * 0.5 + 1)  # each rounded to a nanosecond


def test_constant_arrivals_are_a_metronome():
    assert instants_s(4, rate=2.0, process="constant").tolist() == [0.5, 1.0, 1.5, 2.0]


def test_a_ramp_is_solved_exactly():
    """The rate goes 0 to 4/s in 8 s: t²/4 requests by t, then 4/s."""
    at_s = instants_s(20, process="constant", profile=Ramp(from_ratio=0, to_ratio=4, over_s=8))
    n = np.arange(1, 21)
    assert at_s == pytest.approx(np.where(n <= 16, 2 * np.sqrt(n), 8 + (n - 16) / 4), abs=1e-9)


def test_a_falling_ramp_comes_to_rest():
    """4/s to 0 in 8 s are 16 requests; the rest never come."""
    at_s = instants_s(40, process="constant", profile=Ramp(from_ratio=4, to_ratio=0, over_s=8))
    assert len(at_s) == 16
    assert at_s[:15] == pytest.approx(8 - np.sqrt(64 - 4 * np.arange(1, 16)), abs=1e-9)


def test_bursts_come_in_their_windows():
    at_s = instants_s(rate=2.0, profile=Bursts(on_s=3, off_s=7, on_ratio=3, off_ratio=0.5))
    is_on = at_s % 10 < 3
    expected = np.array([3 * 3, 7 * 0.5]) / 12.5
    assert stats.chisquare([is_on.sum(), (~is_on).sum()], expected * len(at_s)).pvalue > LEVEL
    assert np.all(np.diff(at_s) >= 0)


def test_silent_phases_are_silent():
    at_s = instants_s(2000, profile=Bursts(on_s=2, off_s=5, on_ratio=1))
    assert np.all(at_s % 7 <= 2 + 1e-9)


@pytest.mark.parametrize("interpolation", ["steps", "lines"])
@pytest.mark.parametrize("repeat_s", [None, 60.0])
def test_a_profile_is_a_change_of_clock(interpolation, repeat_s):
    """The integral of the rate between arrivals of a Poisson process is exponential, whatever the rate does."""
    profile = Points(
        at_s=(0, 10, 30), ratios=(1, 4, 0.25), interpolation=interpolation, repeat_s=repeat_s
    )
    at_s = instants_s(3000, rate=3.0, profile=profile)
    grid = np.linspace(0, at_s[-1], 2_000_001)
    phase = grid % repeat_s if repeat_s else grid
    knots, ratios = [0, 10, 30, repeat_s or 1e12], [1, 4, 0.25, 1 if repeat_s else 0.25]
    rate = (
        np.interp(phase, knots, ratios)
        if interpolation == "lines"
        else np.array(ratios)[np.searchsorted(knots, phase, "right") - 1]
    )
    integral = np.concatenate([[0], np.cumsum((rate[1:] + rate[:-1]) / 2 * np.diff(grid))]) * 3.0
    gaps = np.diff(np.interp(at_s, grid, integral))
    assert stats.kstest(gaps, "expon").pvalue > LEVEL


@pytest.mark.parametrize(
    ("profile", "what"),
    [
        (Points(at_s=(0, 1), ratios=(1,)), "2 instants and 1 ratios"),
        (Points(at_s=(1, 2), ratios=(1, 1)), "at_s ="),
        (Points(at_s=(0, 5, 5), ratios=(1, 1, 1)), "at_s ="),
        (Points(at_s=(0, 5), ratios=(1, 1), repeat_s=5), "repeat_s = 5"),
        (Points(at_s=(0,), ratios=(0,)), "the rate is 0"),
        (Points(at_s=(), ratios=()), "0 instants"),
        (Ramp(from_ratio=0, to_ratio=0, over_s=1), "the rate is 0"),
        (Ramp(from_ratio=0, to_ratio=1, over_s=1e-320), "a piece of the rate.s profile lasts"),
    ],
)
def test_impossible_profiles_are_refused(profile, what):
    with pytest.raises(SpecError, match=what):
        instants_s(3, profile=profile)


def test_arrivals_know_their_own_keys_only():
    with pytest.raises(msgspec.ValidationError, match="rate_per_s"):
        msgspec.convert({"rate_per_s": 0}, OpenArrivals)


@pytest.mark.parametrize(
    "profile",
    [
        Ramp(from_ratio=1.0, to_ratio=4.0, over_s=60.0),
        Bursts(on_s=10.0, off_s=20.0, on_ratio=3.0, off_ratio=0.5),
        Points(at_s=(0.0, 20.0, 50.0), ratios=(1.0, 3.0, 0.5), interpolation="lines"),
        Points(at_s=(0.0, 20.0), ratios=(1.0, 3.0), interpolation="steps", repeat_s=35.0),
    ],
)
def test_the_integral_of_a_profile_counts_the_arrivals(profile):
    arrivals = OpenArrivals(rate_per_s=100.0, process="constant", profile=profile)
    at_s = open_arrivals(arrivals, 1, 100_000, rate_per_s=100.0) / 1e9
    expected = 100.0 * profile_integral_s(profile, 123.0)
    assert np.sum(at_s <= 123.0) == pytest.approx(expected, abs=1)
