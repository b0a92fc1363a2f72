"""Which number of replicas is enough, where a greater one may be worse?"""

import math
from dataclasses import replace

import pytest

from inferometer.decide.capacity import (
    CapacityQuestion,
    OutOfTimeError,
    Phases,
    Probe,
    Reading,
    find_capacity,
    no_limit,
)
from inferometer.decide.fewest import fewest_in_long_runs, first_that_lasts

IN_STEP = {25: "met", 26: "missed", 27: "missed", 36: "missed", 40: "met", 50: "missed"}
"""Of 200 users who send equal requests, as they were simulated on L4s: fewer miss, others stay open."""


def in_step(n_replicas):
    return IN_STEP.get(n_replicas, "missed" if n_replicas < 25 else "undecided")


def test_a_number_whose_next_ones_miss_is_not_the_fewest():
    """25 replicas were the answer, and 26 and 27 missed the SLO."""
    assert fewest_in_long_runs(22, in_step, Phases(no_limit)) == 25
    assert fewest_in_long_runs(22, in_step, Phases(no_limit), in_step) == 40


@pytest.mark.parametrize("first", [20, 30, 45])
def test_where_more_are_never_worse_the_next_numbers_change_nothing(first):
    def verdict(n_replicas):
        return "met" if n_replicas >= 37 else "missed"

    assert fewest_in_long_runs(first, verdict, Phases(no_limit), verdict) == 37


def test_where_none_lasts_the_first_that_meets_it_is_the_answer():
    def verdict(n_replicas):
        return "met" if n_replicas >= 25 and n_replicas % 2 else "missed"

    assert first_that_lasts(25, 44, verdict, lambda: False) is None
    assert fewest_in_long_runs(22, verdict, Phases(no_limit), verdict) == 25


def test_out_of_time_the_next_numbers_are_not_waited_for():
    looked = []

    def verdict(n_replicas):
        looked.append(n_replicas)
        if len(looked) > 6:
            raise OutOfTimeError
        return in_step(n_replicas)

    assert fewest_in_long_runs(25, verdict, Phases(no_limit), verdict) == 25
    assert first_that_lasts(25, 44, in_step, lambda: True) is None


def test_a_search_from_a_known_long_run_stays_on_its_side():
    """Short runs of users in step miss the SLO where long ones meet it: the headroom was -44 %."""

    def probe(load, effort):
        margin = 0.9 if effort and load < 210 else 1.2
        return Reading("met" if margin < 1 else "missed", margin, "", 1000, 1.0)

    known = Probe(offered_load=200.0, effort=2, reading=probe(200.0, 2))
    question = CapacityQuestion(
        kind="users", start_load=200.0, lowest_load=200.0, highest_load=6400.0, proof_effort=1
    )
    assert find_capacity(probe, question, (known,)).located_load is None
    asked = []

    def noted(load, effort):
        asked.append((load, effort))
        return probe(load, effort)

    found = find_capacity(noted, replace(question, first_effort=1), (known,))
    assert 200 <= found.met_load <= found.located_load < 210 <= found.missed_load
    assert found.is_resolved
    assert (200.0, 1) not in asked, "it is known"
    assert {effort for _, effort in asked} == {1}
    assert math.isfinite(found.located_load)


def test_far_within_the_limit_half_is_tried():
    """A trace of long prompts: short runs found 40, and time ended at 32 where 7 are enough."""

    def looked_at(is_far):
        looked = []

        def verdict(n_replicas):
            looked.append(n_replicas)
            return "met" if n_replicas >= 7 else "missed"

        found = fewest_in_long_runs(40, verdict, Phases(no_limit), None, is_far)
        assert found == 7
        return looked

    assert looked_at(lambda n: n >= 10)[:4] == [40, 20, 10, 5]
    assert looked_at(None)[:4] == [40, 38, 34, 26]
    assert len(looked_at(lambda n: n >= 10)) < len(looked_at(None))
