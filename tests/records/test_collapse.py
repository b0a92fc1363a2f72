"""Are collapses flagged where the published runs had them, and healthy growth not?"""

from pathlib import Path

import pytest

from inferometer.inputs.types import SweepPoint
from inferometer.records.reading import read_run
from inferometer.records.summaries import collapses, flag_text, token_cost_changes
from inferometer.records.sweep_csv import TableFacts, read_sweep_csv

FIXTURES = Path(__file__).parent / "fixtures"


def point(prompt_tokens, batch_size):
    return SweepPoint(prompt_tokens=prompt_tokens, batch_size=batch_size, gen_tokens=33)


def test_the_published_second_run_collapses_at_4096(make_run):
    """5,066 ms of prefill at 4,096 tokens (1.237 ms per token) after 0.367 ms per token at 3,072."""
    times = {
        point(3072, 1): ([0.367e-3 * 3072], [32 * 0.033]),
        point(4096, 1): ([5.066], [32 * 0.036]),
    }
    run = make_run(times)
    (found,) = collapses(run)
    assert (found.phase, found.axis) == ("prefill", "prompt")
    assert found.previous == point(3072, 1)
    assert found.flag == "COLLAPSE_PREFILL(x3.4)"
    assert flag_text(token_cost_changes(run), 1) == "COLLAPSE_PREFILL(x3.4)"
    assert flag_text(token_cost_changes(run), 0) == ""


def test_the_published_first_run_does_not_collapse():
    """Not even from batch 16 to 64, where the step takes 2.05x the time for 4x the tokens."""
    assert collapses(read_run(FIXTURES / "t1_prompt_axis.csv")) == ()
    batches = read_sweep_csv(
        FIXTURES / "t1_batch_axis.md", TableFacts(prompt_tokens=128, gen_tokens=32)
    )
    assert collapses(batches) == ()
    steps = [
        change.ratio.value for change in token_cost_changes(batches) if change.phase == "decode"
    ]
    assert steps[-1] == pytest.approx(64.221 / 64 / (31.288 / 16))


def test_both_axes_of_a_grid(make_run):
    """Decode collapses at the far corner, against both of its neighbours."""
    decode_s = {(128, 1): 1.0, (256, 1): 1.0, (128, 2): 1.0, (256, 2): 8.0}
    run = make_run(
        {
            point(*key): ([0.1 * key[0] * key[1]] * 7, [seconds] * 7)
            for key, seconds in decode_s.items()
        }
    )
    found = collapses(run)
    assert [(change.axis, change.phase, change.ratio.value) for change in found] == [
        ("batch", "decode", pytest.approx(4.0)),
        ("prompt", "decode", pytest.approx(8.0)),
    ]
    assert flag_text(found, 3) == "COLLAPSE_DECODE(x8.0)"
    assert found[0].ratio.low == pytest.approx(4.0)


def test_a_point_without_times_is_nobodys_previous_point(make_run):
    run = make_run(
        {point(128, 1): ([0.1], [1.0]), point(256, 1): ([], []), point(512, 1): ([0.4], [1.0])}
    )
    assert {change.previous for change in token_cost_changes(run)} == {point(128, 1)}


def test_both_phases_in_one_flag(make_run):
    run = make_run({point(128, 1): ([0.1], [1.0]), point(256, 1): ([0.6], [2.5])})
    assert flag_text(token_cost_changes(run), 1) == "COLLAPSE_PREFILL(x3.0) COLLAPSE_DECODE(x2.5)"
