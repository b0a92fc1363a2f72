"""What does an answer of `capacity` say of its interval, and what would narrow it?"""

import math
from dataclasses import replace

import pytest

from inferometer.api.capacity import lengthened, next_step_of
from inferometer.api.decision_pages import CapacityAnswer, CapacityRow, PacedCapacity, capacity_page
from inferometer.decide.capacity import (
    TIME_LIMIT,
    CapacityQuestion,
    Reading,
    find_capacity,
)
from inferometer.errors import EXIT_SLO_MISSED, EXIT_UNDECIDED
from inferometer.report.views import ProbeRow


def level(step_times, located, why="the longest probes stayed undecided"):
    row = CapacityRow(
        located_load=located,
        met_load=None if located is None else 18.2,
        missed_load=None if located is None else 20.6,
        is_located=True,
        is_resolved=False,
        why=why,
        weakest="tpot",
        probes=(),
    )
    return PacedCapacity(step_times=step_times, capacity=row, probe_s=1.0)


def users_within(capacity):
    """The users whose latency, which grows with them, is within its limit."""

    def probe(load, effort):
        return Reading("met" if load <= capacity else "missed", load / capacity, "", 100, 1.0)

    return find_capacity(
        probe,
        CapacityQuestion(kind="users", start_load=100, lowest_load=1, highest_load=10_000),
    )


@pytest.mark.parametrize("n_users", [142, 142.9])
def test_users_of_a_draw_are_rounded_down_once(n_users):
    """A server like the likely one carries the same users, however far short probes overrate both."""
    likely, same, slower = (users_within(n_users * factor) for factor in (1, 1.11, 1.11 * 0.7))
    as_likely, fewer = lengthened(likely, [same, same, slower])
    assert likely.located_load == as_likely.located_load == 142
    assert fewer.located_load == math.floor(n_users * 0.7)


@pytest.mark.parametrize(
    ("ends", "has_fit", "narrows"),
    [
        ((13.3, 32.0), False, "--fit FILE"),
        ((13.3, 32.0), True, "a fit of more measurements"),
        ((19.9, 20.2), False, "a larger --requests"),
        ((), False, "a larger --requests"),
        ((None, None), False, "a larger --requests"),
    ],
)
def test_what_narrows_the_interval_is_what_makes_it_wide(ends, has_fit, narrows):
    levels = (level("likely", 20.1), *(level("draw", end) for end in ends))
    assert narrows in next_step_of(levels, None, has_fit=has_fit)


def test_kv_blocks_that_are_drawn_too_are_named():
    """The interval was said to be that of the step times alone, and KV blocks were in it."""
    levels = (level("likely", 20.1), level("draw", 13.3), level("draw", 32.0))
    assert "or --num-blocks of the server's log" in next_step_of(
        levels, None, has_fit=False, has_blocks=True
    )
    assert "2 draws of the step times and of 1,487 to 2,384 KV blocks: " in trust_of(
        levels, n_kv_blocks_low=1487, n_kv_blocks_high=2384
    )


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("draw", "likely 20.1 requests/s, nowhere to 32 in 2 draws of the step times: a table"),
        ("slow", "likely 20.1 requests/s, slow nowhere, slow 32 requests/s: a table"),
    ],
)
def test_the_unit_stands_behind_its_number(kind, words):
    levels = (level("likely", 20.1), level(kind, None), level(kind, 32.0))
    assert words in trust_of(levels)


def test_draws_without_an_answer_are_not_draws_without_a_capacity():
    """A draw that no load satisfies is the interval's end; one that the time cut short is none."""
    levels = (level("likely", 20.1), level("draw", None, TIME_LIMIT), level("draw", 32.0))
    assert "32 to 32 in 1 draws of the step times (1 more were not located in time)" in trust_of(
        levels
    )
    (capacity,) = page_of((*levels, level("draw", None))).numbers
    assert (capacity.low, capacity.high) == (0.0, 32.0)


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("not even 0.0001 meets the SLO", "no load was found to meet the SLO (2 draws of the step"),
        (TIME_LIMIT, "no draw was located in time (2 draws of the step times)"),
    ],
)
def test_servers_that_cannot_serve_are_no_zero_draws(why, words):
    """It said "0 draws of the step times (19 more were not located in time)"."""
    nowhere = level("likely", None, "not even 0.0001 meets the SLO")
    text = trust_of((nowhere, level("draw", None, why), level("draw", None, why)))
    assert f"likely nowhere, {words}" in text
    assert "0 draws" not in text


def test_what_was_shown_at_the_end_of_the_time_is_told_with_its_width():
    assert "located within 13.2% when its time was over" in trust_of(
        (level("likely", 20.1, TIME_LIMIT),)
    )


def test_every_probe_of_the_terminal_is_on_the_page():
    probe = ProbeRow(
        offered_load=20.0,
        effort=2,
        n_requests=16_000,
        took_s=800.0,
        verdict="met",
        margin_ratio=0.9,
        why="tpot: 45 ms",
    )
    likely = level("likely", 20.1)
    page = page_of((replace(likely, capacity=replace(likely.capacity, probes=(probe,))),))
    assert page.table in [table for section in page.sections for table in section.tables]


@pytest.mark.parametrize(
    ("verdict", "exit_code"), [("missed", EXIT_SLO_MISSED), ("undecided", EXIT_UNDECIDED)]
)
def test_what_noise_leaves_open_at_the_lowest_load_is_not_missed(verdict, exit_code):
    """Too few requests decide nothing, and no load was shown to meet the SLO: it was called missed."""
    probe = ProbeRow(
        offered_load=1e-4,
        effort=0,
        n_requests=40,
        took_s=4e5,
        verdict=verdict,
        margin_ratio=1.1,
        why="tpot",
    )
    row = replace(level("likely", None).capacity, is_located=False, probes=(probe,))
    answer = answer_of((PacedCapacity(step_times="likely", capacity=row, probe_s=1.0),))
    assert replace(answer, is_located=False).exit_code == exit_code


@pytest.mark.parametrize(
    ("n_simulated", "words"),
    [(None, "simulated together"), (8, "8 simulated with their part of the load")],
)
def test_a_fleet_of_which_a_part_is_simulated_says_so(n_simulated, words):
    answer = replace(
        answer_of((level("likely", 20.1),)),
        n_replicas=60,
        router="least-loaded",
        n_simulated=n_simulated,
    )
    each = next(one for one in capacity_page(answer).numbers if one.name == "each replica")
    assert each.note == f"of 60 behind a least-loaded router, {words}"


def trust_of(levels, **more):
    (trust,) = (
        line for line in capacity_page(answer_of(levels, **more)).lines if line.label == "TRUST"
    )
    return trust.text


def page_of(levels):
    return capacity_page(answer_of(levels))


def answer_of(levels, **more):
    return CapacityAnswer(
        model_id="m",
        workload_name="chat",
        objective="tpot:p95<50ms",
        unit="requests/s",
        is_resolved=False,
        is_located=True,
        levels=levels,
        engine="vLLM",
        n_replicas=None,
        router=None,
        step_times_basis="published",
        step_times_from="a table",
        next_step=None,
        **more,
    )
