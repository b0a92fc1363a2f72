"""Are draws distributed as they say? Tests at the level 0.001, seeds fixed."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from inferometer.errors import SpecError
from inferometer.inputs.workload.arrivals import uniforms
from inferometer.inputs.workload.distributions import (
    Constant,
    Exponential,
    Lognormal,
    Normal,
    Pareto,
    Quantiles,
    Table,
    TraceLengths,
    Uniform,
    Zipf,
    mean_of,
    quantile,
    sampled,
)

LEVEL = 1e-3
U = uniforms(5, "test", 20_000)


@pytest.mark.parametrize(
    ("distribution", "known"),
    [
        (Uniform(low=10, high=50), stats.uniform(10, 40)),
        (Normal(mean=1000, sd=50), stats.norm(1000, 50)),
        (Lognormal(median=300, sigma=1.2), stats.lognorm(1.2, scale=300)),
        (Exponential(mean=128), stats.expon(scale=128)),
        (Pareto(low=20, exponent=1.7), stats.pareto(1.7, scale=20)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_continuous_draws(distribution, known):
    assert stats.kstest(quantile(distribution, U), known.cdf).pvalue > LEVEL


def test_zipf_draws():
    drawn = quantile(Zipf(exponent=1.1, low=2, high=9), U)
    values, counts = np.unique(drawn, return_counts=True)
    shares = values**-1.1
    assert values.tolist() == list(range(2, 10))
    assert stats.chisquare(counts, shares / shares.sum() * len(U)).pvalue > LEVEL


def test_table_draws_take_weights_and_order_values():
    drawn = quantile(Table(values=(40, 10, 30), weights=(1, 2, 0)), U)
    assert set(drawn) == {10.0, 40.0}
    assert stats.binomtest(int((drawn == 10).sum()), len(U), 2 / 3).pvalue > LEVEL
    assert (
        stats.binomtest(int((quantile(Table(values=(1, 2)), U) == 1).sum()), len(U), 0.5).pvalue
        > LEVEL
    )


def test_quantiles_are_those_of_the_table():
    table = Quantiles(fractions=(0, 0.5, 0.9, 1), values=(10, 100, 100, 400))
    assert quantile(table, np.array([0.0, 0.25, 0.5, 0.7, 0.95, 1.0])).tolist() == pytest.approx(
        [10, 55, 100, 100, 250, 400]
    )


def test_bounds_hold_and_collect_what_lies_beyond():
    drawn = quantile(Lognormal(median=100, sigma=2, min=50, max=500), U)
    assert drawn.min() == 50
    assert drawn.max() == 500
    beyond = 1 - stats.lognorm(2, scale=100).cdf(500)
    assert stats.binomtest(int((drawn == 500).sum()), len(U), beyond).pvalue > LEVEL


@pytest.mark.parametrize(
    ("distribution", "mean"),
    [
        (Constant(value=7), 7),
        (Uniform(low=1, high=3), 2),
        (Exponential(mean=400), 400),
        (Table(values=(1, 5), weights=(3, 1)), 2),
        (Zipf(exponent=1, high=2), 4 / 3),
    ],
)
def test_means(distribution, mean):
    assert mean_of(distribution) == pytest.approx(mean, rel=2e-3)


def test_a_mean_counts_from_the_smallest_allowed():
    assert mean_of(Constant(value=0), at_least=1) == 1


@given(st.floats(1, 1e5), st.floats(0, 4), st.floats(1.0, 10))
def test_a_longer_median_makes_every_draw_longer(median, sigma, factor):
    short = quantile(Lognormal(median=median, sigma=sigma), U[:100])
    assert np.all(quantile(Lognormal(median=median * factor, sigma=sigma), U[:100]) >= short)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Uniform(low=3, high=2), "low = 3 is above high = 2"),
        (lambda: Normal(mean=1, sd=1, min=9, max=8), "min = 9 is above max = 8"),
        (lambda: Pareto(low=10, exponent=1, max=9), "no value can come"),
        (lambda: Zipf(exponent=1, low=5, high=4), "no value can come"),
        (lambda: Table(values=()), "without values"),
        (lambda: Table(values=(1, 2), weights=(1,)), "1 weights for 2 values"),
        (lambda: Table(values=(1, 2), weights=(0, 0)), "every weight is 0"),
        (lambda: Quantiles(fractions=(0, 1), values=(1,)), "1 values for 2 fractions"),
        (lambda: Quantiles(fractions=(0.1, 1), values=(1, 2)), "from 0 to 1"),
        (lambda: Quantiles(fractions=(0, 0.5, 0.5, 1), values=(1, 2, 3, 4)), "do not grow"),
        (lambda: Quantiles(fractions=(0, 1), values=(2, 1)), "values fall"),
    ],
)
def test_distributions_without_support_are_refused(make, what):
    with pytest.raises(ValueError, match=what):
        make()


def test_a_trace_is_not_drawn_from_unread():
    with pytest.raises(SpecError, match="has not been read"):
        sampled(TraceLengths(path="x", column="prompt_tokens"))
