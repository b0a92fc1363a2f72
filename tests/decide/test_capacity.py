"""Does the search find where a promise breaks, prove both sides, spend little, and say unresolved where it is?"""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from inferometer.decide.capacity import (
    Capacity,
    CapacityQuestion,
    OutOfTimeError,
    Probe,
    Reading,
    find_capacity,
)
from inferometer.decide.traffic import plan_at
from inferometer.errors import MeasureError, SpecError, StoppedError
from inferometer.inputs.workload.reading import resolve_workload, with_changes


def question(**changes):
    return CapacityQuestion(
        **(
            {"kind": "requests_per_s", "start_load": 1.0, "lowest_load": 1e-4, "highest_load": 1e4}
            | changes
        )
    )


def told(capacity, *, steepness=3.0, took_s=60.0):
    """A server without noise whose margin reaches 1 at ``capacity``."""

    def probe(load, effort):
        margin = (load / capacity) ** steepness
        return Reading(
            "met" if margin <= 1 else "missed", margin, f"at {load:g}", 1000, took_s * 4**effort
        )

    return probe


def mm1(capacity_per_s, limit_s, *, seed=0):
    """A queue whose 95th percentile of the sojourn is known: ln(20) / (mu - lambda).

    Simulated, so that probes are noisy.
    """

    def probe(load, effort):
        n = 1000 * 16**effort
        rng = np.random.default_rng(seed)
        gaps, services = rng.exponential(1 / load, n), rng.exponential(1 / capacity_per_s, n)
        waits = np.zeros(n)
        for i in range(1, n):
            waits[i] = max(0.0, waits[i - 1] + services[i - 1] - gaps[i])
        batches = (waits + services).reshape(20, -1)
        p95 = float(np.quantile(batches, 0.95))
        spread = 2.1 * float(np.quantile(batches, 0.95, axis=1).std(ddof=1)) / math.sqrt(20)
        verdict = (
            "met"
            if p95 + spread <= limit_s
            else "missed"
            if p95 - spread > limit_s
            else "undecided"
        )
        return Reading(verdict, p95 / limit_s, "p95", n, n / load)

    return probe


@given(
    capacity=st.floats(1e-3, 1e3),
    start=st.floats(1e-3, 1e3),
    steepness=st.floats(0.2, 20),
    resolution=st.floats(0.01, 0.3),
)
@settings(max_examples=300, deadline=None)
def test_the_bracket_holds_the_truth_and_is_as_narrow_as_asked(
    capacity, start, steepness, resolution
):
    found = find_capacity(
        told(capacity, steepness=steepness),
        question(start_load=start, resolution_ratio=resolution, max_probes=100),
    )
    assert found.is_resolved, found.why
    assert found.met_load <= capacity * (1 + 1e-9)
    assert found.missed_load >= capacity * (1 - 1e-9)
    assert found.missed_load / found.met_load <= (1 + resolution) * (1 + 1e-6)


@given(capacity=st.integers(1, 500), start=st.integers(1, 500))
@settings(max_examples=200, deadline=None)
def test_users_are_whole(capacity, start):
    found = find_capacity(
        told(capacity + 0.5),
        question(kind="users", start_load=float(start), lowest_load=1.0, resolution_ratio=1e-6),
    )
    assert (found.met_load, found.missed_load) == (capacity, capacity + 1)
    assert found.located_load == capacity, "nobody serves half a user"


def test_nothing_is_located_above_what_was_kept_up_for_long():
    """A server of 19 requests/s took in 40 requests at 1,143 in a second, and these were located."""

    def probe(load, effort):
        burst = (2000, "300 requests are one burst") if load > 3 else None
        return Reading("met", load / 1000, "", 300, 300 / load, burst=burst)

    found = find_capacity(probe, question(highest_load=500.0))
    assert (found.located_load, found.is_located, found.is_resolved) == (None, False, False)
    assert 3 / 1.05 < found.met_load <= 3
    assert found.n_needed == 2000
    assert "300 requests are one burst" in found.why
    assert found.weakest is None, "a burst misses nothing"


def test_what_misses_first_is_what_the_longest_probes_saw():
    """A short run at a lower load may be late by chance; longer ones show that the load is carried."""

    def probe(load, effort):
        margin = load / (9.0 if effort == 0 else 10.0)
        verdict = "undecided" if effort == 0 else "met" if margin <= 1 else "missed"
        return Reading(verdict, margin, f"{load:.3g} by effort {effort}", 1000 * 4**effort, 1.0)

    found = find_capacity(probe, question(start_load=9.5, proof_effort=2))
    beyond = [one for one in found.probes if one.reading.margin_ratio > 1]
    assert min(beyond, key=lambda one: one.offered_load).effort == 0, "the case is the one meant"
    assert found.weakest.endswith("by effort 2")
    assert (
        found.weakest
        == min(
            (one for one in beyond if one.effort == 2), key=lambda one: one.offered_load
        ).reading.why
    )


def test_three_times_fewer_probe_seconds_than_a_linear_sweep_of_the_same_precision():
    """A sweep that knows as much: from half to twice the capacity in steps of 5 %."""
    capacity, resolution = 7.3, 0.05
    found = find_capacity(
        told(capacity),
        question(start_load=capacity / 3, resolution_ratio=resolution, proof_effort=0),
    )
    loads = np.arange(capacity / 2, 2 * capacity, resolution * capacity)
    sweep_s = 60.0 * len(loads)
    assert found.is_resolved
    assert sweep_s >= 3 * found.probe_s, (sweep_s, found.probe_s, len(found.probes))


@pytest.mark.parametrize("seed", range(5))
def test_a_noisy_queue_is_bracketed_round_its_formula(seed):
    """P95 of the sojourn in M/M/1 is ln(20) / (mu - lambda).

    With mu = 10 and a limit of 1 s the capacity is 10 - ln(20) = 7.004.
    """
    found = find_capacity(mm1(10.0, 1.0, seed=seed), question(start_load=2.0, proof_effort=1))
    truth = 10 - math.log(20)
    assert found.met_load < truth < found.missed_load
    assert found.missed_load / found.met_load < 1.35
    assert found.is_resolved == (found.missed_load / found.met_load <= 1.05 * (1 + 1e-9))


def test_what_probes_cannot_decide_is_called_unresolved():
    def foggy(load, effort):
        verdict = "undecided" if 5 < load < 8 else "met" if load <= 5 else "missed"
        return Reading(verdict, load / 6, "", 100, 1.0)

    found = find_capacity(foggy, question())
    assert not found.is_resolved
    assert "undecided" in found.why
    assert found.met_load <= 5
    assert found.missed_load >= 8
    assert found.located_load == pytest.approx(6, rel=0.05)


def noisy(capacity, noise_ratio):
    """A server whose probes of more requests know the margin better, each effort twice as well."""

    def probe(load, effort):
        margin, spread = (load / capacity) ** 2, noise_ratio / 2**effort
        ends = margin * (1 - spread), margin * (1 + spread)
        verdict = "met" if ends[1] <= 1 else "missed" if ends[0] > 1 else "undecided"
        return Reading(verdict, margin, "", 1000 * 4**effort, 1.0, ends)

    return probe


def test_probes_get_longer_until_noise_leaves_nothing_open():
    """At effort 2 the noise hides 7 % of the load; the search goes on to where it hides less than was requested."""
    short = find_capacity(noisy(7.0, 0.6), question(resolution_ratio=0.03))
    found = find_capacity(noisy(7.0, 0.6), question(resolution_ratio=0.03, most_effort=9))
    assert not short.is_resolved
    assert found.is_resolved, found.why
    assert found.met_load < 7 < found.missed_load <= 1.03 * found.met_load * (1 + 1e-9)


def test_what_noise_hides_is_located_with_its_interval():
    found = find_capacity(noisy(7.0, 0.6), question(resolution_ratio=0.03))
    assert found.is_located
    assert found.located_load == pytest.approx(7, rel=0.03)
    assert found.met_load < 7 < found.missed_load < 1.3 * found.met_load
    assert len(found.probes) < 20


def test_probes_that_get_no_longer_are_not_repeated():
    """A trace has the requests that it has."""

    def trace(load, effort):
        return Reading("undecided", load / 7, "", min(1000 * 4**effort, 3000), 1.0, None)

    found = find_capacity(trace, question(most_effort=9, highest_load=20.0))
    assert max(probe.effort for probe in found.probes) == 2
    assert found.located_load == pytest.approx(7, rel=0.05)


def test_the_time_limit_ends_the_search_with_what_is_known():
    left_s = iter(range(16, -1000, -1))
    found = find_capacity(
        noisy(7.0, 0.6),
        question(resolution_ratio=0.01, most_effort=9, time_left_s=lambda: float(next(left_s))),
    )
    assert found.why == "the time limit"
    assert 3 <= len(found.probes) <= 10
    assert not found.is_resolved


def test_one_probe_and_how_margins_grow_elsewhere_tell_about_where():
    """Draws of step times have time for few probes; the outermost ones are the interval's ends."""
    for start in (2.0, 20.0):
        left_s = iter((9.0, 9.0, -1.0, -1.0, -1.0))
        found = find_capacity(
            told(7.0),
            question(
                start_load=start,
                proof_effort=None,
                steepness_ratio=3.0,
                time_left_s=lambda left_s=left_s: next(left_s),
            ),
        )
        assert (len(found.probes), found.located_load) == (1, None)
        assert found.guessed_load == pytest.approx(7.0)
    assert find_capacity(told(7.0), question()).guessed_load is None
    assert find_capacity(told(7.0), question()).steepness_ratio == pytest.approx(3.0)


def test_a_search_that_somebody_stops_is_no_probe_that_failed():
    """Its exit code is the signal's, also after the first probe."""

    def stopped(load, effort):
        if load > 1:
            raise StoppedError("the probe was stopped", where="out", command=("inferometer",))
        return told(7.0)(load, effort)

    with pytest.raises(StoppedError):
        find_capacity(stopped, question())


def test_nothing_is_located_where_longer_probes_miss_far_below_when_the_time_is_over():
    """Rare prompts are too long for the server: short probes see none of them, long ones at any load."""

    def refusing(load, effort):
        if effort == 2:
            return Reading("missed", math.inf, "2 were refused", 16_000, 1.0)
        return told(7.0)(load, effort)._replace(verdict="undecided", n_requests=1000 * 4**effort)

    seen = []
    found = find_capacity(
        lambda load, effort: seen.append(load) or refusing(load, effort),
        question(time_left_s=lambda: 1e9 if len(seen) < 16 else -1.0),
    )
    assert found.why == "the time limit"
    assert found.missed_load < 3
    assert (found.located_load, found.is_located) == (None, False)
    assert find_capacity(refusing, question()).why.startswith("not even 0.0001 meets")


@pytest.mark.parametrize(("missed", "is_located"), [(7.2, True), (8.0, False)])
def test_loads_shown_within_5_per_cent_are_near_enough_when_the_time_is_over(missed, is_located):
    known = [
        Probe(offered_load=load, effort=2, reading=told(7.1)(load, 2)) for load in (7.0, missed)
    ]
    found = find_capacity(
        told(7.1), question(resolution_ratio=0.01, time_left_s=lambda: -1.0), known
    )
    assert (found.why, found.is_located, found.is_resolved) == (
        "the time limit",
        is_located,
        False,
    )


def test_a_probe_that_is_given_up_ends_the_search_with_what_is_known():
    def endless(load, effort):
        if effort > 0:
            raise OutOfTimeError
        return told(7.0)(load, effort)

    found = find_capacity(endless, question())
    assert found.why == "the time limit"
    assert found.located_load == pytest.approx(7, rel=0.05)


def test_long_probes_outrule_short_ones():
    """A queue that grows slowly looks short in a short run."""

    def slow(load, effort):
        limit = 10 if effort == 0 else 6
        return Reading("met" if load < limit else "missed", load / limit, "", 100, 1.0)

    found = find_capacity(slow, question())
    assert found.met_load < 6 <= found.missed_load <= 6.4
    assert found.located_load == pytest.approx(6, rel=0.06)


def test_nothing_keeps_it_or_nothing_breaks_it():
    never = find_capacity(told(1e-9), question())
    assert (never.met_load, never.located_load) == (None, None)
    assert "not even 0.0001 meets" in never.why
    always = find_capacity(told(1e9), question())
    assert always.missed_load is None
    assert always.met_load == 1e4
    assert "nothing up to 10000 misses" in always.why


def test_a_server_that_dies_leaves_the_bracket_so_far():
    n_asked = 0

    def dying(load, effort):
        nonlocal n_asked
        n_asked += 1
        if n_asked > 4:
            raise MeasureError("the server is gone")
        return told(7.0)(load, 0)

    found = find_capacity(dying, question())
    assert found.why == "a probe failed: the server is gone"
    assert len(found.probes) == 4
    assert not found.is_resolved
    assert found.met_load == pytest.approx(
        4.76837158203125
    )  # 1, 1.25, 1.953, 4.768: all met, by short probes
    assert found.missed_load is None


def test_a_server_that_was_never_there_is_an_error():
    def gone(load, effort):
        raise MeasureError("no server")

    with pytest.raises(MeasureError, match="no server"):
        find_capacity(gone, question())


def test_the_number_of_probes_is_bounded():
    def moody(load, effort):
        return Reading("undecided", 0.5 if load < 7 else 2.0, "", 10, 1.0)

    found = find_capacity(moody, question(max_probes=15))
    assert len(found.probes) <= 15
    assert isinstance(found, Capacity)


@pytest.mark.parametrize(
    "changes",
    [
        {"start_load": 0.0},
        {"lowest_load": 2.0},
        {"highest_load": math.inf},
        {"resolution_ratio": 0.0},
    ],
)
def test_impossible_questions(changes):
    with pytest.raises(SpecError):
        question(**changes)


@pytest.mark.parametrize("arrivals", [{}, {"arrivals": {"concurrency": 4, "kind": "closed"}}])
def test_a_short_trace_is_searched_with_the_requests_that_it_has(tmp_path, arrivals):
    """1,000 requests of a trace of 3 were asked for, and refused."""
    path = tmp_path / "log.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,9,3\n50,8,2\n90,7,1\n")
    spec = with_changes(resolve_workload(str(path)), arrivals, where="the test")
    plans = [plan_at(spec, load, 1000) for load in (2.0, 4.0)]
    assert [plan.n_requests for plan in plans] == [3, 3]
    if not arrivals:
        slow, fast = (plan.arrival_ns for plan in plans)
        assert slow[1:] == pytest.approx(2 * fast[1:], rel=1e-6)
