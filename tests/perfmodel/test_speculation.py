"""Are the gains of speculative decoding those of the paper, and is the verification the right step?"""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from inferometer.errors import SpecError
from inferometer.perfmodel.scenario import (
    Speculation,
    expected_tokens,
    verification_shape,
    walltime_ratio,
)


def speculation(n_draft_tokens, acceptance_fraction, draft_cost_ratio=0.0):
    return Speculation(
        n_draft_tokens=n_draft_tokens,
        acceptance_fraction=acceptance_fraction,
        draft_cost_ratio=draft_cost_ratio,
    )


def test_expected_tokens_against_a_simulation():
    rng = np.random.default_rng(7)
    accepted = np.cumprod(rng.random((200_000, 5)) < 0.7, axis=1).sum(axis=1)
    error = 4 * accepted.std() / np.sqrt(len(accepted))
    assert abs(expected_tokens(speculation(5, 0.7)) - (accepted.mean() + 1)) < error


@given(st.integers(1, 20), st.floats(0, 1))
def test_expected_tokens_is_the_geometric_sum(n_draft_tokens, acceptance):
    expected = expected_tokens(speculation(n_draft_tokens, acceptance))
    assert expected == pytest.approx(
        sum(acceptance**power for power in range(n_draft_tokens + 1)), rel=1e-6
    )
    assert 1 <= expected <= n_draft_tokens + 1 + 1e-9


def test_walltime_of_the_paper():
    # arXiv 2211.17192, table 1: acceptance 0.8, 5 tokens, a free draft: 3.69 times; with 2 tokens
    # 2.44.
    assert walltime_ratio(speculation(5, 0.8)) == pytest.approx(3.69, abs=0.005)
    assert walltime_ratio(speculation(2, 0.8)) == pytest.approx(2.44, abs=0.005)


def test_the_verification_visits_the_pairs_of_the_plain_steps():
    shape = verification_shape(speculation(3, 0.5), batch_size=2, context_tokens=101)
    assert shape.prefill_tokens == 2 * 4
    assert shape.prefill_context_product_tokens2 == 2 * (101 + 102 + 103 + 104)
    assert shape.n_logit_positions == 8


@pytest.mark.parametrize(
    ("k", "acceptance", "cost"), [(0, 0.5, 0.1), (2, -0.1, 0.1), (2, 1.1, 0.1), (2, 0.5, -1)]
)
def test_impossible_speculation_is_refused(k, acceptance, cost):
    with pytest.raises(SpecError, match="speculation"):
        speculation(k, acceptance, cost)
