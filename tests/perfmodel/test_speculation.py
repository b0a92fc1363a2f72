"""Does speculation by a named method find its best number of draft tokens, and where it stops gaining?"""

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from inferometer.errors import SpecError
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.scenario import LIKELY, Scenario, expected_tokens, phases_at
from inferometer.perfmodel.whatif import METHODS, Draft, best_speculation, draft_cost_ratio

LARGE = Scenario(
    model=find_model("llama-3.1-70b"),
    engine=EngineSpec(dtype="bfloat16", tensor_parallel_size=4),
    hardware=find_hardware("h100_sxm"),
    batch_size=1,
    prompt_tokens=128,
    output_tokens=128,
)
SMALL = find_model("llama-3.2-1b")


def draft_of(name, acceptance_fraction=None):
    return Draft(name, SMALL if name == "draft_model" else None, acceptance_fraction)


@pytest.mark.parametrize("name", METHODS)
def test_the_best_number_of_tokens_is_the_best_of_all(name):
    found = best_speculation(LARGE, draft_of(name), largest_batch=512)
    gains = [one.tpot_gain_ratio for one in found.lengths]
    assert found.best_length.tpot_gain_ratio == max(gains) > 1
    assert [one.n_draft_tokens for one in found.lengths] == list(range(1, len(gains) + 1))
    for one in found.lengths:
        assert one.low_ratio <= one.tpot_gain_ratio <= one.high_ratio
    after = phases_at(replace(LARGE, speculation=found.best), LIKELY)
    assert phases_at(LARGE, LIKELY).tpot_s / after.tpot_s == pytest.approx(max(gains))


def test_drafts_gain_as_the_paper_says_where_checking_is_free_and_less_where_it_is_not():
    """Expected tokens bound the gain; the device's room decides how near it comes."""
    found = best_speculation(LARGE, Draft("ngram", None, 0.7), largest_batch=512)
    assert found.best_length.tpot_gain_ratio == pytest.approx(expected_tokens(found.best), rel=0.1)
    full = best_speculation(
        replace(LARGE, batch_size=128), Draft("ngram", None, 0.7), largest_batch=512
    )
    assert full.best.n_draft_tokens < found.best.n_draft_tokens
    assert full.best_length.tpot_gain_ratio < 0.75 * found.best_length.tpot_gain_ratio


@pytest.mark.slow
@settings(max_examples=20)  # each looks at 400 batches
@given(st.sampled_from(METHODS), st.floats(0.2, 0.9))
def test_nothing_gains_beyond_the_break_even_batch(name, acceptance_fraction):
    draft = draft_of(name, acceptance_fraction)
    found = best_speculation(LARGE, draft, largest_batch=1024)
    even = found.break_even_batch
    assert found.break_even_low_batch == even == found.break_even_high_batch, "it was stated"
    if 0 < even < 1024:
        at, beyond = (
            best_speculation(replace(LARGE, batch_size=size), draft, largest_batch=1)
            for size in (even, even + 1)
        )
        assert at.best_length.tpot_gain_ratio > 1 >= beyond.best_length.tpot_gain_ratio


def test_drafts_cost_what_they_compute():
    """n-gram nothing, a layer and the head a bit more than an eightieth, a small model its own step."""
    cost = {name: draft_cost_ratio(LARGE, draft_of(name), LIKELY) for name in METHODS}
    assert cost["ngram"] == 0
    assert cost["eagle"] == cost["mtp"]
    assert 1 / 80 < cost["eagle"] < 2 / 80
    assert 0 < cost["medusa"] == cost["redrafter"] < cost["eagle"] < cost["draft_model"] < 0.2
    with pytest.raises(SpecError, match="not named"):
        draft_cost_ratio(LARGE, Draft("draft_model"), LIKELY)


def test_no_draft_of_a_rejected_token_gains():
    found = best_speculation(LARGE, Draft("eagle", None, 0.0), largest_batch=256)
    assert found.break_even_batch == 0
    assert found.best_length.tpot_gain_ratio < 1
