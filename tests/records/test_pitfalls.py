"""Does each pitfall speak beyond its limit, keep silent within it, and say nothing without a number?"""

from typing import get_args

import pytest

from inferometer.records.pitfalls import (
    PITFALLS,
    PitfallName,
    empty_share,
    found_sentence,
    judged,
    judged_all,
)


def test_each_name_has_one_row_with_a_reason_a_cure_and_what_would_refute_it():
    assert sorted(one.name for one in PITFALLS) == sorted(get_args(PitfallName))
    for one in PITFALLS:
        assert one.words
        assert one.why
        assert one.change
        assert one.refuted_by
        assert "{value" in one.number


@pytest.mark.parametrize("one", PITFALLS, ids=lambda one: one.name)
def test_a_number_beyond_the_limit_is_found_and_one_within_it_ruled_out(one):
    further = 1 if one.is_above else -1
    beyond, within = one.limit_ratio + further * 0.1, one.limit_ratio - further * 0.1
    found = judged(one.name, beyond)
    assert found.finding == "found"
    assert one.change in found.sentence
    assert found.evidence in found.sentence
    assert one.why in found.sentence
    assert judged(one.name, within).finding == "ruled out"
    assert judged(one.name, one.limit_ratio).finding == "ruled out"
    assert judged(one.name, None).finding == "not reported"
    assert judged(one.name, None).evidence == ""


def test_rows_come_in_the_order_of_the_table_and_only_found_ones_are_said():
    rows = judged_all({"too_little_load": 0.9, "preemption_thrash": 0.0, "refused": None})
    assert [one.name for one in rows] == ["refused", "preemption_thrash", "too_little_load"]
    assert found_sentence(rows) == rows[2].sentence
    assert found_sentence(rows[:2]) == ""


def test_half_a_block_of_each_sequence_is_empty():
    assert empty_share(1, 100.0) == 0.0
    assert empty_share(16, 7.5) == 0.5
