"""Are replicas that come and go started in time or not, paid for while they are there, and never asked when gone?"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from inferometer.decide.candidates import Alike, Grid, Offer, candidates_of
from inferometer.decide.elastic import (
    Elastic,
    Scaling,
    Schedule,
    capacities_of,
    course_of,
    scheduled,
    static_peak,
    target_in_flight,
    target_utilization,
)
from inferometer.decide.probing import FleetProbe, run_plan
from inferometer.decide.sizing import size_device
from inferometer.decide.sizing_types import SizingQuestion, Task
from inferometer.decide.traffic import plan_at, steady
from inferometer.errors import SpecError
from inferometer.inputs import catalog
from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.workload.reading import resolve_workload, with_changes
from inferometer.inputs.workload.replay import draw_workload

POINTS = {
    "kind": "points",
    "at_s": [0, 300, 600],
    "ratios": [0.2, 1.0, 0.2],
    "interpolation": "steps",
}
SPEC = with_changes(
    resolve_workload("chat"),
    {
        "arrivals": {"kind": "open", "rate_per_s": 10.0, "process": "poisson", "profile": POINTS},
        "duration_s": 900.0,
    },
    where="a test",
)
SCALING = Scaling(
    capacities_per_s=(2.0, 4.0, 6.0, 8.0), target_fraction=0.5, start_up_s=90.0, window_s=60.0
)


@pytest.fixture(scope="module")
def elastic():
    offers = [
        Offer(hardware=catalog.find_hardware("l40s"), price=catalog.find_hardware("l40s").prices[0])
    ]
    grid = Grid(tensor_parallel_sizes=(1,), max_num_seqs=(256,), max_num_batched_tokens=(2048,))
    possible = candidates_of(catalog.find_model("llama-3.1-8b"), offers, grid).possible
    course = course_of(draw_workload(SPEC).plan, 60.0)
    objective = parse_objective("ttft:p95<1s, tpot:p95<100ms")
    question = SizingQuestion(
        spec=steady(SPEC), offered_load=max(course.rates_per_s), objective=objective, n_requests=300
    )
    kind = size_device(Task(question, possible)).best
    capacities = capacities_of(question, kind, question.offered_load / 0.7)
    scaling = Scaling(capacities_per_s=capacities, start_up_s=120.0, window_s=60.0)
    return Elastic(question=question, kind=kind, course=course, scaling=scaling)


def test_a_replica_is_ready_when_it_was_paid_for_as_long_as_it_starts():
    """A start of 90 s takes two windows of 60 s."""
    assert SCALING.n_start_windows == 2
    seen = target_utilization([1.0, 3.0, 3.0, 3.0, 3.0, 1.0], replace(SCALING, start_up_s=120.0))
    assert seen.paid == (1, 1, 3, 3, 3, 3)
    assert seen.ready == (1, 1, 1, 1, 3, 3)


def test_replicas_are_held_for_five_minutes():
    paid = target_utilization([3.0] + [1.0] * 9, SCALING).paid
    assert paid == (3, 3, 3, 3, 3, 3, 1, 1, 1, 1)


def test_what_is_known_beforehand_is_ready_in_time():
    rates = [1.0, 1.0, 1.0, 7.0, 3.0, 1.0, 1.0]
    known = scheduled(rates, SCALING)
    assert all(
        ready >= SCALING.needed(rate) for ready, rate in zip(known.ready, rates, strict=True)
    )
    assert known.paid == (1, 4, 4, 4, 2, 1, 1)
    assert static_peak(rates, SCALING).paid == (4,) * 7


def test_what_is_in_flight_is_spread():
    """Ten a replica at most, half of them wanted: 12 in flight ask for 3."""
    assert target_in_flight([4.0, 12.0, 4.0], 10.0, replace(SCALING, start_up_s=0.0)).ready == (
        1,
        1,
        3,
    )


def test_more_than_there_is_takes_all_there_is():
    assert SCALING.needed(100.0) == 4


@pytest.mark.slow
def test_replicas_that_stay_are_the_cluster(elastic):
    """The window's router with all replicas ready is the least-loaded router: every instant is the same."""
    n_windows = elastic.course.n_windows
    plan = elastic.course.plan
    candidate = elastic.kind.candidate.deployment
    probe = FleetProbe(
        fleet=Alike().fleet(candidate, "likely", 3),
        traffic=elastic.question.traffic,
        objective=elastic.question.objective,
    )
    plain, windowed = (
        run_plan(probe.fleet, plan).requests,
        elastic.run(Schedule((3,) * n_windows, (3,) * n_windows)).requests,
    )
    assert (plain.first_token_ns == windowed.first_token_ns).all()
    assert (plain.finished_ns == windowed.finished_ns).all()


def test_who_is_gone_is_not_asked_and_finishes(elastic):
    ready = (3,) * 8 + (1,) * (elastic.course.n_windows - 8)
    run = elastic.run(Schedule(ready, ready))
    replica = np.empty(len(run.requests.status), np.int64)
    replica[run.visits.request_index] = run.visits.replica
    window = elastic.course.window_index
    assert (replica < np.array(ready)[window]).all()
    assert set(replica[window < 8]) == {0, 1, 2}
    late = (replica > 0) & (run.requests.finished_ns > 8 * 60 * 10**9)
    assert late.any(), "somebody was still being served when his replica was let go"


def test_each_policy_pays_for_what_it_starts(elastic):
    said = {outcome.name: outcome for outcome in elastic.outcomes()}
    assert set(said) == {"static peak", "scheduled", "target utilisation", "target in flight"}
    static, known = said["static peak"], said["scheduled"]
    n_static = static.schedule.ready[0]
    assert static.replica_s == pytest.approx(n_static * elastic.course.span_s, rel=0.02)
    assert static.usd == pytest.approx(
        static.replica_s / 3600 * elastic.kind.candidate.usd_per_hour_of(1)
    )
    assert known.replica_s < static.replica_s
    assert all(outcome.replica_s >= sum(outcome.schedule.paid) * 60.0 for outcome in said.values())
    assert static.slo_met_fraction >= said["target utilisation"].slo_met_fraction
    assert said["target utilisation"].slo_met_fraction < 1, (
        "a step is not seen before it comes, and a start takes two windows"
    )


def test_a_policy_that_looks_back_saw_what_came_of_it(elastic):
    settled = elastic.outcomes()[-1]
    again = elastic.run(settled.schedule)
    ends_ns = (np.arange(elastic.course.n_windows) + 1) * 60 * 10**9
    came, left = again.requests.intended_send_ns, again.requests.finished_ns
    in_flight = [float(((came <= end) & (left > end)).sum()) for end in ends_ns]
    most = elastic.kind.sized_at.served.in_flight_load
    assert settled.has_converged
    assert target_in_flight(in_flight, most, elastic.scaling) == settled.schedule


def test_capacities_grow_with_replicas(elastic):
    capacities = elastic.scaling.capacities_per_s
    assert all(more >= less for less, more in pairwise(capacities))
    assert capacities[-1] >= elastic.question.offered_load / 0.7


def test_a_steady_workload_is_stretched():
    slow, fast = (plan_at(steady(SPEC), rate_per_s, 200) for rate_per_s in (1.0, 4.0))
    assert slow.arrival_ns[-1] / fast.arrival_ns[-1] == pytest.approx(4, rel=1e-6)
    assert (slow.prompt_tokens == fast.prompt_tokens).all()


@pytest.mark.parametrize("window_s", [1e-3, 5 * 3600.0])
def test_a_window_longer_than_the_traffic_or_one_of_too_many_is_refused(window_s):
    """An hour at 8 requests/s in a window of five was 1.6 requests/s, which was sized for."""
    with pytest.raises(SpecError, match=r"windows of .* in traffic of ") as refused:
        course_of(draw_workload(SPEC).plan, window_s)
    assert refused.value.where == "--window"


def test_traffic_shorter_than_the_shortest_window_is_one_window_of_its_own_length():
    plan = draw_workload(SPEC).plan
    brief = plan._replace(arrival_ns=plan.arrival_ns // round(plan.arrival_ns.max() / 10e9))
    course = course_of(brief)
    (rate_per_s,) = course.rates_per_s
    assert rate_per_s == pytest.approx(plan.n_requests / 10, rel=0.05)
