"""Are the fewest replicas found, is nothing pruned that was better, and does a longer simulation agree?"""

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import msgspec
import pytest

from inferometer.decide import sizing
from inferometer.decide.candidates import Alike, Grid, Offer, candidates_of
from inferometer.decide.lone_request import fewest_devices
from inferometer.decide.probing import FleetProbe, probe_of, worst_reading
from inferometer.decide.sizing import (
    fewest_replicas,
    most_of,
    most_promising_first,
    size_by_device,
    size_device,
)
from inferometer.decide.sizing_types import SizingQuestion, Task, costs_of, mean_tokens
from inferometer.decide.traffic import Traffic, at_load
from inferometer.errors import SpecError
from inferometer.fit.published.efficiencies import known_levels
from inferometer.inputs import catalog
from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.prices import ApiPrice
from inferometer.inputs.types import Constant, PriceSpec, Source
from inferometer.inputs.workload.reading import resolve_workload, with_changes
from inferometer.inputs.workload.replay import draw_workload
from inferometer.inputs.workload.types import WorkloadSpec

MODEL = catalog.find_model("llama-3.1-8b")
GRID = Grid(tensor_parallel_sizes=(1, 2), max_num_seqs=(64, 256), max_num_batched_tokens=(2048,))


def offer(device, usd_per_hour=2.0):
    price = PriceSpec(
        usd_per_hour=usd_per_hour, basis="test", source=Source(kind="config", where="a test")
    )
    return Offer(hardware=catalog.find_hardware(device), price=price)


def question(offered_load=12.0, slo="ttft:p95<1s, tpot:p95<100ms", **more):
    spec = resolve_workload("chat")
    return SizingQuestion(
        spec=spec,
        offered_load=offered_load,
        objective=parse_objective(slo),
        **({"n_requests": 300} | more),
    )


@pytest.fixture(scope="module")
def candidates():
    return candidates_of(MODEL, [offer("l40s")], GRID).possible


def test_one_replica_less_is_not_enough_in_short_runs(candidates):
    asked = question(offered_load=10.0)
    for candidate in candidates[:2]:
        probe = FleetProbe(
            fleet=Alike().fleet(candidate.deployment, "likely", 1),
            traffic=asked.traffic,
            objective=asked.objective,
        )
        enough = fewest_replicas(asked, candidate, most_of(asked, candidate)).n_replicas
        assert probe(asked.offered_load / enough, 0).margin_ratio <= 1
        assert enough == 1 or probe(asked.offered_load / (enough - 1), 0).margin_ratio > 1


def test_one_replica_less_is_not_enough_for_users_who_wait(candidates):
    users = with_changes(
        resolve_workload("chat"), {"arrivals": {"kind": "closed", "concurrency": 1}}, where="--set"
    )
    asked = replace(question(offered_load=150.0, slo="tpot:p95<60ms"), spec=users)
    probe = FleetProbe(
        fleet=Alike().fleet(candidates[0].deployment, "likely", 1),
        traffic=asked.traffic,
        objective=asked.objective,
    )
    found = fewest_replicas(asked, candidates[0], most_of(asked, candidates[0]))
    assert found.n_replicas > 1
    assert probe(150.0 / found.n_replicas, 0).margin_ratio <= 1
    assert probe(150.0 / (found.n_replicas - 1), 0).margin_ratio > 1


def test_the_burst_of_first_requests_does_not_decide_about_users(candidates):
    """A short probe of many users says what a long one says; in it their start is a sixth of all."""
    users = with_changes(
        resolve_workload("chat"), {"arrivals": {"kind": "closed", "concurrency": 1}}, where="--set"
    )
    asked = replace(question(slo="ttft:p95<1s"), spec=users)
    probe = FleetProbe(
        fleet=Alike().fleet(candidates[0].deployment, "likely", 1),
        traffic=asked.traffic,
        objective=asked.objective,
    )
    short, long = (
        worst_reading(probe.run_of(50.0, n_requests), asked.objective).margin_ratio
        for n_requests in (300, 4000)
    )
    assert short == pytest.approx(long, rel=0.5)
    assert len(probe.run_of(50.0, 300).requests.status) == 250
    assert len(probe.run_of(50.0, 80).requests.status) == 150, "some of each user are left"


def test_sessions_are_probed_until_new_ones_have_begun_for_longer_than_one_lasts(candidates):
    """Before their later turns come, a few sessions at once offer less than the load that they stand for."""
    text = """
name = "sessions"
[arrivals]
kind = "open"
rate_per_s = 1.0
[[classes]]
name = "chat"
prompt_tokens = { kind = "constant", value = 100 }
output_tokens = { kind = "constant", value = 8 }
[classes.sessions]
turns = { kind = "constant", value = 4 }
think_s = { kind = "constant", value = 20 }
"""
    spec = msgspec.toml.decode(text, type=WorkloadSpec)
    asked = replace(question(slo="ttft:p95<1s"), spec=spec)

    probe = FleetProbe(
        fleet=Alike().fleet(candidates[0].deployment, "likely", 1),
        traffic=replace(asked.traffic, n_requests=40),
        objective=asked.objective,
    )
    found = probe(1.0, 0)
    assert (found.verdict, found.burst) == ("met", None)
    assert found.n_requests > 10 * 4 * 15, "ten sessions' time of 60 s, four requests a session"
    assert probe(1e4, 0).margin_ratio > 1, "of 40 requests at once it is far below"


def test_a_rate_whose_requests_are_over_at_once_is_seen_to_grow_a_queue(candidates):
    """A limit of TPOT alone was met at 10,000 requests/s, of which the server completes 50."""
    spec = msgspec.toml.decode(
        """
name = "long answers"
[arrivals]
kind = "open"
[[classes]]
name = "all"
prompt_tokens = { kind = "constant", value = 10 }
output_tokens = { kind = "constant", value = 300 }
""",
        type=WorkloadSpec,
    )
    asked = replace(question(slo="tpot:p95<10s"), spec=spec)
    probe = FleetProbe(
        fleet=Alike().fleet(candidates[0].deployment, "likely", 1),
        traffic=replace(asked.traffic, n_requests=60),
        objective=asked.objective,
    )
    found = probe(1e3, 0)
    assert (found.verdict, found.margin_ratio) == ("missed", math.inf)
    assert found.n_requests > probe.n_requests(0), "of which none was answered in time"
    assert "the queue grows without bound" in found.why
    assert probe(0.5, 0).margin_ratio < 1


@pytest.mark.slow
def test_of_equally_many_the_one_with_more_headroom_is_taken():
    """Eight at once are enough, too, and often full."""
    grid = Grid(tensor_parallel_sizes=(1,), max_num_seqs=(8, 64), max_num_batched_tokens=(2048,))
    few, many = candidates_of(MODEL, [offer("l40s")], grid).possible
    asked = question(offered_load=0.6, n_requests=400)
    for tried in ((few, many), (many, few)):
        done = size_device(Task(asked, tried))
        margins = {id(one.candidate): one.margin_ratio for one in done.searched}
        assert {one.n_replicas for one in done.searched} == {1}
        assert margins[id(many)] < margins[id(few)] - 0.1
        assert done.best.candidate is many


@pytest.mark.slow
def test_nothing_that_was_not_searched_is_cheaper(candidates):
    tried = candidates[1:3]
    asked = question(n_requests=150)
    done = size_device(Task(asked, tried))
    alone = [size_device(Task(asked, (candidate,))).best for candidate in tried]
    cheapest = min(kind.usd_per_hour for kind in alone if kind is not None)
    assert done.best.usd_per_hour == pytest.approx(cheapest)


@pytest.mark.slow
@pytest.mark.long
def test_a_ten_times_longer_simulation_picks_the_same(candidates):
    """As many of the same device and TP for the same money; which of several max_num_seqs carries
    a little more of the same load the noise of the shorter one may decide."""
    short, long = (
        size_device(Task(question(n_requests=n), candidates)).best for n in (1000, 10_000)
    )
    picks = [
        (one.layout.partition(", max_num_seqs")[0], one.n_replicas, one.usd_per_hour)
        for one in (short, long)
    ]
    assert picks[0] == picks[1]


@pytest.fixture(scope="module")
def best(candidates):
    """Several replicas of an L40S."""
    return size_device(Task(question(), candidates)).best


@pytest.mark.slow
def test_the_pick_is_judged_at_three_paces(best):
    likely, fast, slow = (best.paces[pace] for pace in ("likely", "fast", "slow"))
    assert best.sized_at is likely
    assert likely.served.verdict == "met"
    assert slow.n_replicas is None or slow.n_replicas >= best.n_replicas
    assert fast.n_replicas <= best.n_replicas
    assert best.verdict in {"met", "undecided"}
    assert likely.capacity.met_load >= 12.0


def test_the_pick_is_simulated_whole_and_with_one_replica_less(best):
    """The fewest behind the router: one less does not keep the promise, so one more is what a failure asks for."""
    asked = question()
    whole, less = (
        FleetProbe(
            fleet=Alike().fleet(best.candidate.deployment, "likely", n_replicas),
            traffic=asked.traffic,
            objective=asked.objective,
        )
        for n_replicas in (best.n_replicas, best.n_replicas - 1)
    )
    assert best.n_replicas > 1
    assert (best.sized_at.served.n_replicas, best.without_one.n_replicas) == (
        best.n_replicas,
        best.n_replicas - 1,
    )
    assert whole(12.0, 2).verdict == "met"
    assert "met" not in {less(12.0, 2).verdict, best.without_one.verdict}
    assert best.n_replicas_if_one_fails == best.n_replicas + 1
    summary, n_in_flight = (
        best.sized_at.served.summary,
        best.sized_at.served.in_flight_load * best.n_replicas,
    )
    assert n_in_flight == pytest.approx(
        12.0 * summary.latency("e2e").percentile(0.5).seconds.value, rel=0.6
    ), "Little's law, roughly: a median"


@pytest.mark.slow
def test_a_router_needs_no_more_replicas_than_chance(candidates, best):
    dealt = size_device(Task(question(fleets=Alike(router="random")), candidates)).best
    assert dealt.usd_per_hour >= best.usd_per_hour


@pytest.mark.slow
def test_sized_for_the_slow_end_the_promise_is_kept_at_all_paces(candidates, best):
    sure = size_device(
        Task(question(slo="ttft:p95<4s, tpot:p95<200ms", pace="slow"), candidates)
    ).best
    assert sure.verdict == "met"
    assert sure.paces["slow"].n_replicas <= sure.n_replicas


def test_costs_apart_add_up_to_the_whole(best):
    api = ApiPrice(
        name="one",
        input_usd_per_million_tokens=0.5,
        output_usd_per_million_tokens=1.5,
        source=Source(kind="config", where="a test"),
        date_utc="2026-11",
    )
    costs = costs_of(best, (api,))
    tokens_in, tokens_out = mean_tokens(best.sized_at.served)
    hourly = 12.0 * 3600 / 1e6
    paid = hourly * (
        tokens_in * costs.input_usd_per_million_tokens
        + tokens_out * costs.output_usd_per_million_tokens
    )
    assert paid == pytest.approx(best.usd_per_hour)
    assert hourly * tokens_out * costs.usd_per_million_output_tokens == pytest.approx(
        best.usd_per_hour
    )
    assert 0 < costs.prompt_time_fraction < 1
    (compared,) = costs.apis
    assert compared.usd_per_hour == pytest.approx(hourly * (0.5 * tokens_in + 1.5 * tokens_out))
    assert compared.break_even_requests_per_s / 12.0 == pytest.approx(
        best.usd_per_hour / compared.usd_per_hour
    )
    watt = best.candidate.offer.hardware.power_watt.value
    assert costs.output_joule_per_token == pytest.approx(
        watt * best.n_devices / (12.0 * tokens_out)
    )


def test_energy_is_what_was_measured_or_an_upper_bound_or_nothing(best):
    """J per token: the power of all devices / the tokens that come out; nobody's power is no power, and never 0."""
    served, offered = best.sized_at.served, best.candidate.offer
    out_per_s = best.requests_per_s * mean_tokens(served)[1]
    measured = Constant(value=250.0, source=Source(kind="measured", where="a sweep"))
    nobodys = replace(offered, hardware=replace(offered.hardware, power_watt=None))
    by_power = [
        (replace(offered, power=measured), measured),
        (offered, offered.hardware.power_watt),
    ]
    for changed, power in by_power:
        costs = costs_of(replace(best, candidate=replace(best.candidate, offer=changed)))
        assert costs.output_joule_per_token == pytest.approx(
            power.value * best.n_devices / out_per_s
        )
        assert costs.power_from == power.source
    unknown = costs_of(replace(best, candidate=replace(best.candidate, offer=nobodys)))
    assert (unknown.output_joule_per_token, unknown.power_from) == (None, None)


def test_bursts_are_dealt_among_the_replicas(candidates):
    """A burst that is dealt is smaller for each.

    Fewer replicas do than if each got whole bursts, and one less does not.
    """
    spec = with_changes(
        resolve_workload("chat"),
        {"arrivals": {"process": "gamma", "burstiness_ratio": 0.05}},
        where="a test",
    )
    asked, candidate = replace(question(n_requests=150), spec=spec), candidates[0]
    enough = fewest_replicas(asked, candidate, most_of(asked, candidate)).n_replicas

    def margin(n_replicas, n_asked):
        return probe_of(asked, candidate, "likely", n_asked)(
            asked.offered_load * n_asked / n_replicas, 0
        ).margin_ratio

    assert margin(enough, enough) <= 1 < margin(enough - 1, enough - 1)
    assert margin(enough, 1) > 1


def test_a_fit_is_the_only_candidate_of_its_device(candidates):
    fitted = replace(offer("l40s"), step_times=candidates[0].deployment.step_times)
    possible = candidates_of(MODEL, [fitted], GRID).possible
    assert {candidate.n_devices for candidate in possible} == {1}
    assert {candidate.deployment.step_times.origin for candidate in possible} == {
        fitted.step_times.origin
    }


def test_a_promise_that_idle_replicas_break_says_so(candidates):
    done = size_device(Task(question(slo="ttft:p95<1ms", n_requests=150), candidates[:1]))
    assert done.best is None
    assert any(
        "not even idle replicas meet the SLO; ttft:p95<1ms" in one.why for one in done.searched
    )


@pytest.mark.slow
def test_devices_are_answered_in_order_and_by_any_map():
    offers = [offer("h100_sxm", 3.0), offer("l40s", 1.0)]
    possible = candidates_of(
        MODEL, offers, replace(GRID, tensor_parallel_sizes=(1,), max_num_seqs=(256,))
    ).possible
    asked = question(n_requests=150)
    here = size_by_device(asked, possible)
    backwards = size_by_device(
        asked,
        possible,
        lambda function, parts: [function(part) for part in list(parts)[::-1]][::-1],
    )
    assert [done.best.hardware_id for done in here] == ["h100_sxm", "l40s"]
    assert [(d.best.layout, d.best.n_replicas) for d in here] == [
        (d.best.layout, d.best.n_replicas) for d in backwards
    ]


def test_what_does_not_fit_is_refused_with_the_reason():
    big = catalog.find_model("llama-3.1-70b")
    made = candidates_of(
        big,
        [offer("l40s")],
        replace(GRID, tensor_parallel_sizes=(1, 3), pipeline_parallel_sizes=(1,)),
    )
    assert made.possible == ()
    assert any("no memory" in one.why for one in made.refused)
    assert any(
        "tensor parallelism does not divide its 64 query heads" in one.why for one in made.refused
    )


def test_a_model_that_no_node_holds_is_spread_over_several():
    """405 G parameters of 2 bytes are 810 GB; 8 devices of 80 GB hold 640."""
    big = catalog.find_model("llama-3.1-405b")
    grid = replace(GRID, tensor_parallel_sizes=(8,), max_num_seqs=(64,))
    (found,) = candidates_of(big, [offer("h100_sxm")], grid).possible
    assert (found.parallelism, found.n_devices, found.usd_per_hour_of(1)) == ("TP8 PP2", 16, 32.0)
    assert found.deployment.config.max_model_len == big.max_position_tokens
    assert (
        candidates_of(
            big, [offer("h100_sxm")], replace(grid, pipeline_parallel_sizes=(1,))
        ).possible
        == ()
    )
    asked = replace(grid, pipeline_parallel_sizes=(2, 4))
    assert [one.parallelism for one in candidates_of(big, [offer("h100_sxm")], asked).possible] == [
        "TP8 PP2",
        "TP8 PP4",
    ]


def test_one_stage_is_enough_where_it_holds_whole_contexts(candidates):
    assert {candidate.parallelism for candidate in candidates} == {"TP1", "TP2"}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
def test_other_engines_are_sized_by_their_own_rules(engine):
    grid = replace(GRID, policy=engine, tensor_parallel_sizes=(1,), max_num_seqs=(256,))
    made = candidates_of(MODEL, [offer("h100_sxm")], grid).possible
    assert {type(one.deployment.config).__name__.lower() for one in made} == {f"{engine}config"}
    assert size_device(Task(question(offered_load=4.0), made)).best.n_replicas == 1


def test_other_knobs_are_tried_and_named():
    grid = replace(
        GRID,
        tensor_parallel_sizes=(1,),
        max_num_seqs=(256,),
        own=(("enable_prefix_caching", ("true", "false")),),
    )
    made = candidates_of(MODEL, [offer("l40s")], grid).possible
    assert [candidate.deployment.config.enable_prefix_caching for candidate in made] == [
        True,
        False,
    ]
    assert made[1].layout == "TP1 bfloat16, max_num_seqs 256, enable_prefix_caching false"
    with pytest.raises(SpecError, match="vllm has no enable_magic"):
        candidates_of(MODEL, [offer("l40s")], replace(grid, own=(("enable_magic", ("true",)),)))


def test_traffic_turns_faster_with_the_same_requests():
    spec = resolve_workload("chat")
    slow, fast = (draw_workload(at_load(spec, load, 300)).plan for load in (2.0, 8.0))
    assert (slow.prompt_tokens == fast.prompt_tokens).all()
    assert (slow.output_tokens == fast.output_tokens).all()
    assert slow.arrival_ns[-1] / fast.arrival_ns[-1] == pytest.approx(4, rel=1e-6)


def test_traffic_of_users_is_turned_by_their_number():
    users = with_changes(
        resolve_workload("chat"), {"arrivals": {"kind": "closed", "concurrency": 2}}, where="a test"
    )
    assert Traffic(spec=users).kind == "users"
    turned = at_load(users, 7.0, 100)
    assert turned.arrivals.concurrency == 7
    plan = draw_workload(turned).plan
    assert (plan.follows == -1).sum() == 7, "each user's first request follows nobody"


class _CountedClock:
    """Seconds that pass each time somebody looks."""

    def __init__(self, limit_s):
        self._left_s = limit_s

    def __call__(self):
        self._left_s -= 1.0
        return self._left_s


@pytest.mark.slow
@pytest.mark.parametrize("n_looks", [3, 60])
def test_a_sizing_ends_in_time_with_what_is_known(candidates, n_looks):
    asked = question(offered_load=100.0, time_limit=lambda: _CountedClock(float(n_looks)))
    done = size_device(Task(asked, candidates))
    if done.best is None:
        assert not all(one.is_examined for one in done.searched)
    else:
        free = size_device(Task(question(offered_load=100.0), candidates)).best
        assert done.best.n_devices == pytest.approx(free.n_devices, rel=0.3)


def test_each_parallelism_gets_its_turn_before_other_knobs():
    """One replica of one device looked best, needed 155 of them, and took the time of all others."""
    grid = Grid(max_num_seqs=(64, 256), max_num_batched_tokens=(2048, 8192))
    tried = candidates_of(catalog.find_model("llama-3.1-70b"), [offer("mi300x")], grid).possible
    spec = resolve_workload("2048x256")
    asked = replace(question(10.0, "ttft:p95<2s, tpot:p95<50ms"), spec=spec)
    turns = most_promising_first(asked, tried)
    assert sorted(map(id, tried)) == sorted(id(one) for _, one in turns)
    assert {one.parallelism for _, one in turns[:4]} == {"TP1", "TP2", "TP4", "TP8"}
    assert [bound for bound, _ in turns[:4]] == sorted(bound for bound, _ in turns[:4])


def test_what_the_time_limit_leaves_out_says_with_how_few_devices_it_might_do(candidates):
    asked = question(offered_load=100.0, time_limit=lambda: _CountedClock(3.0))
    searched = size_device(Task(asked, candidates)).searched
    left_out = [one for one in searched if not one.is_examined]
    assert left_out
    assert all(one.least_devices == fewest_devices(asked, one.candidate) for one in left_out)


@pytest.mark.parametrize(("verdict", "found"), [("met", 4), ("undecided", 4), ("missed", None)])
def test_a_fixed_number_that_noise_leaves_open_is_not_missed(verdict, found):
    """Four replicas at 0.21 times their limit, undecided for want of samples, were called missed."""
    runs = SimpleNamespace(verdict={4: verdict}.get)
    question = SimpleNamespace(fleets=SimpleNamespace(n_replicas=4))
    assert sizing._replicas_that_last(question, 4, runs, None) == found


@pytest.mark.parametrize(
    ("slow", "likely", "fast", "settled"),
    [
        ("met", "undecided", "undecided", ("met", "met")),
        ("met", "missed", "undecided", ("missed", "undecided")),
        ("undecided", "undecided", "undecided", ("undecided", "undecided")),
        ("missed", "met", "undecided", ("met", "met")),
    ],
)
def test_what_slower_steps_meet_is_not_left_open_at_faster_ones(slow, likely, fast, settled):
    """Out of time the runs at likely step times were short, and a met SLO was called undecided."""

    @dataclass(frozen=True)
    class Answer:
        served: object

    @dataclass(frozen=True)
    class Served:
        verdict: str

    verdicts = {"likely": likely, "fast": fast, "slow": slow}
    paces = {pace: Answer(Served(verdict)) for pace, verdict in verdicts.items()}
    found = sizing._decided(paces)
    assert tuple(found[pace].served.verdict for pace in ("likely", "fast")) == settled
    assert found["slow"].served.verdict == slow


def test_settings_of_the_engine_share_their_step_times(monkeypatch):
    """They were computed for each of 96 kinds of replica: 1.6 s before the first simulation."""
    asked = []

    def counted(model, engine, *given, **named):
        asked.append(engine)
        return known_levels(model, engine, *given, **named)

    monkeypatch.setattr("inferometer.decide.candidates.known_levels", counted)
    grid = Grid(max_num_seqs=(64, 256), max_num_batched_tokens=(2048, 8192))
    possible = candidates_of(MODEL, [offer("l40s")], grid).possible
    assert len(possible) >= 16
    assert len(asked) == len(set(asked)) == 4
