"""Are the fewest replicas found, is nothing pruned that was better, and does a longer simulation agree?"""

from dataclasses import replace

import pytest

from inferometer.decide.candidates import Grid, Offer, candidates_of
from inferometer.decide.probing import ReplicaProbe, Traffic, at_load
from inferometer.decide.sizing import fewest_replicas, most_of, size_by_device, size_device
from inferometer.decide.sizing_types import SizingQuestion, Task
from inferometer.spec import catalog
from inferometer.spec.objectives import parse_objective
from inferometer.spec.types import PriceSpec, Source
from inferometer.spec.workload.reading import resolve_workload, with_changes
from inferometer.spec.workload.replay import draw_workload

MODEL = catalog.find_model("llama-3.1-8b")
GRID = Grid(tensor_parallel_sizes=(1, 2), max_num_seqs=(64, 256), max_num_batched_tokens=(2048,))


def offer(device, usd_per_hour=2.0):
    price = PriceSpec(usd_per_hour=usd_per_hour, basis="test", source=Source(kind="config", where="a test"))
    return Offer(hardware=catalog.find_hardware(device), price=price)


def question(rate_per_s=12.0, slo="ttft:p95<1s, tpot:p95<100ms", **more):
    spec = resolve_workload("chat")
    return SizingQuestion(spec=spec, rate_per_s=rate_per_s, objective=parse_objective(slo), **({"n_requests": 300} | more))


@pytest.fixture(scope="module")
def candidates():
    return candidates_of(MODEL, [offer("l40s")], GRID).possible


def test_one_replica_less_is_not_enough_in_short_runs(candidates):
    asked = question()
    for candidate in candidates[:2]:
        probe = ReplicaProbe(
            deployment=candidate.deployment,
            step_times=candidate.deployment.step_times.likely,
            traffic=asked.traffic,
            objective=asked.objective,
        )
        enough = fewest_replicas(asked, candidate, most_of(asked, candidate)).n_replicas
        assert probe(asked.rate_per_s / enough, 0).margin_ratio <= 1
        assert enough == 1 or probe(asked.rate_per_s / (enough - 1), 0).margin_ratio > 1


def test_nothing_that_was_not_searched_is_cheaper(candidates):
    done = size_device(Task(question(), candidates))
    alone = [size_device(Task(question(), (candidate,))).best for candidate in candidates]
    cheapest = min(kind.usd_per_hour for kind in alone if kind is not None)
    assert done.best.usd_per_hour == pytest.approx(cheapest)


@pytest.mark.slow
def test_a_ten_times_longer_simulation_picks_the_same(candidates):
    short, long = (size_device(Task(question(n_requests=n), candidates)).best for n in (1000, 10_000))
    assert (short.layout, short.n_replicas) == (long.layout, long.n_replicas)


def test_the_pick_is_judged_at_three_paces(candidates):
    best = size_device(Task(question(), candidates)).best
    assert best.likely.verdict == "met"
    assert best.slow.n_replicas is None or best.slow.n_replicas >= best.n_replicas
    assert best.fast.n_replicas <= best.n_replicas
    assert best.verdict in {"met", "undecided"}
    assert best.headroom_fraction >= 0
    tokens_per_hour = best.output_tokens_per_s * 3600
    assert best.usd_per_million_output_tokens == pytest.approx(best.usd_per_hour / tokens_per_hour * 1e6)
    assert best.output_tokens_per_s == pytest.approx(12.0 * best.likely.summary.output_tokens / best.likely.summary.n_requests, rel=0.15)


def test_a_promise_that_idle_replicas_break_says_so(candidates):
    done = size_device(Task(question(slo="ttft:p95<1ms"), candidates))
    assert done.best is None
    assert any("not even idle replicas keep the promise; ttft:p95<1ms" in one.why for one in done.searched)


def test_devices_are_answered_in_order_and_by_any_map():
    offers = [offer("h100_sxm", 3.0), offer("l40s", 1.0)]
    possible = candidates_of(MODEL, offers, replace(GRID, tensor_parallel_sizes=(1,))).possible
    here = size_by_device(question(), possible)
    backwards = size_by_device(question(), possible, lambda function, parts: [function(part) for part in list(parts)[::-1]][::-1])
    assert [done.best.hardware_id for done in here] == ["h100_sxm", "l40s"]
    assert [(d.best.layout, d.best.n_replicas) for d in here] == [(d.best.layout, d.best.n_replicas) for d in backwards]


def test_what_does_not_fit_is_refused_with_the_reason():
    big = catalog.find_model("llama-3.1-70b")
    made = candidates_of(big, [offer("l40s")], replace(GRID, tensor_parallel_sizes=(1, 3)))
    assert made.possible == ()
    assert any("no memory" in one.why for one in made.refused)
    assert any("64 heads are not divided by 3" in one.why for one in made.refused)


def test_traffic_turns_faster_with_the_same_requests():
    spec = resolve_workload("chat")
    slow, fast = (draw_workload(at_load(spec, load, 300)).plan for load in (2.0, 8.0))
    assert (slow.prompt_tokens == fast.prompt_tokens).all()
    assert (slow.output_tokens == fast.output_tokens).all()
    assert slow.arrival_ns[-1] / fast.arrival_ns[-1] == pytest.approx(4, rel=1e-6)


def test_traffic_of_users_is_turned_by_their_number():
    users = with_changes(resolve_workload("chat"), {"arrivals": {"kind": "closed", "concurrency": 2}}, where="a test")
    assert Traffic(spec=users).kind == "users"
    turned = at_load(users, 7.0, 100)
    assert turned.arrivals.concurrency == 7
    plan = draw_workload(turned).plan
    assert (plan.follows == -1).sum() == 7, "each user's first request follows nobody"
