"""Do the repeats that are named decide a comparison, and would fewer not?"""

import numpy as np
import pytest

from inferometer.stats.comparison import (
    compare,
    compare_pairs,
    repeats_to_decide,
)

RULE = {"margin_ratio": 0.02, "confidence_fraction": 0.95}
SPREAD = np.array([-1.5, -0.5, 0.5, 1.5]) / np.std([-1.5, -0.5, 0.5, 1.5], ddof=1)


def samples(*, scatter, shift):
    """Four repeats of each side whose scatter and shift are just these."""
    return np.exp(shift + scatter * SPREAD[[1, 3, 0, 2]]), np.exp(scatter * SPREAD)


@pytest.mark.parametrize("is_paired", [False, True])
@pytest.mark.parametrize(
    ("scatter", "shift"), [(0.02, 0.03), (0.02, 0.0), (0.05, 0.05), (0.05, -0.05)]
)
def test_the_repeats_that_are_named_decide_four_times_in_five(scatter, shift, is_paired):
    new, old = samples(scatter=scatter, shift=shift)
    n = repeats_to_decide(new, old, is_paired=is_paired, **RULE)
    of_pair = np.log(new / old).std(ddof=1) / np.sqrt(2) if is_paired else scatter
    rng, judge = np.random.default_rng(5), compare_pairs if is_paired else compare

    def decided_fraction(n_repeats):
        verdicts = [
            judge(
                rng.lognormal(shift, of_pair, n_repeats), rng.lognormal(0, of_pair, n_repeats)
            ).verdict
            for _ in range(100)
        ]
        return np.mean([verdict != "undecided" for verdict in verdicts])

    assert decided_fraction(n) > 0.7
    assert decided_fraction(n // 3) < 0.7


def test_few_repeats_name_no_number():
    new, old = samples(scatter=0.05, shift=0.01)
    assert repeats_to_decide(new[:3], old, is_paired=False, **RULE) is None
    assert repeats_to_decide([*new[:3], np.nan], old, is_paired=True, **RULE) is None


def test_where_more_are_needed_than_anybody_makes_no_number_is_named():
    new, old = samples(scatter=3.0, shift=np.log1p(0.02) / 2)
    assert repeats_to_decide(new, old, is_paired=False, **RULE) is None


def test_only_what_is_undecided_names_repeats():
    new, old = samples(scatter=0.05, shift=0.01)
    assert compare(new, old).n_to_decide > 4
    assert compare(10 * new, old).n_to_decide is None
