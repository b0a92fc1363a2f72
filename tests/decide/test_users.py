"""Are users who wait sized by their steady state, however many there are and however short the run?"""

from dataclasses import replace

import pytest

from inferometer.api.sizing_cautions import few_of_each_user
from inferometer.decide import sizing
from inferometer.decide.artefacts.planning import operating_point
from inferometer.decide.candidates import Alike, Grid, Offer, candidates_of
from inferometer.decide.probing import FleetProbe, probe_of
from inferometer.decide.sizing_types import SizingQuestion, Task, costs_of, mean_tokens
from inferometer.inputs import catalog
from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.prices import ApiPrice
from inferometer.inputs.types import PriceSpec, Source
from inferometer.inputs.workload.reading import resolve_workload, with_changes

EACH = 40
"""Users of one replica."""
SOURCE = Source(kind="config", where="a test")
MODEL = catalog.find_model("llama-3.1-8b")
GRID = Grid(tensor_parallel_sizes=(1,), max_num_seqs=(64,), max_num_batched_tokens=(2048,))


@pytest.fixture(scope="module")
def candidate():
    price = PriceSpec(usd_per_hour=2.0, basis="test", source=SOURCE)
    offered = Offer(hardware=catalog.find_hardware("l40s"), price=price)
    return candidates_of(MODEL, [offered], GRID).possible[0]


def users_question(n_users, **more):
    """Users of ``chat`` who send the next request when they have their answer."""
    spec = with_changes(
        resolve_workload("chat"), {"arrivals": {"kind": "closed", "concurrency": 1}}, where="--set"
    )
    objective = parse_objective("ttft:p95<10s, tpot:p95<200ms")
    return SizingQuestion(
        spec=spec, offered_load=n_users, objective=objective, **({"n_requests": 300} | more)
    )


def fixed(candidate, n_replicas, **more):
    """This number of replicas with their users, sized."""
    fleets = Alike(n_replicas=n_replicas)
    asked = users_question(EACH * n_replicas, fleets=fleets, **more)
    return asked, sizing.size_device(Task(asked, (candidate,))).best


@pytest.fixture(scope="module")
def of_twenty(candidate):
    return fixed(candidate, 20)


def mean_s(kind):
    return kind.sized_at.served.summary.latency("e2e").mean.seconds.value


@pytest.mark.slow
def test_users_send_what_their_number_and_their_latency_say(of_twenty, candidate):
    """Little's law; of more than 8 replicas a part is simulated, and the rate is that of all."""
    _, twenty = of_twenty
    _, one = fixed(candidate, 1)
    assert twenty.requests_per_s == pytest.approx(EACH * 20 / mean_s(twenty), rel=0.1)
    assert twenty.requests_per_s == pytest.approx(20 * one.requests_per_s, rel=0.1)
    assert twenty.sized_at.served.in_flight_load == pytest.approx(EACH, rel=0.02)
    each, all_of_them = costs_of(one), costs_of(twenty)
    assert all_of_them.usd_per_million_output_tokens == pytest.approx(
        each.usd_per_million_output_tokens, rel=0.1
    )


@pytest.mark.parametrize("n_requests", [50, 4000])
def test_the_rate_of_users_does_not_depend_on_how_long_the_last_ones_are_alone(
    candidate, n_requests
):
    asked = users_question(EACH, n_requests=n_requests)
    probe = probe_of(asked, candidate, "likely", 1)
    users = probe.users_at_work(probe.run_of(EACH, n_requests), EACH, n_requests)
    assert users.requests_per_s == pytest.approx(3.9, rel=0.15)


def test_fewer_requests_than_a_few_of_each_user_are_not_simulated(candidate):
    """A probe of all first requests says the same of any number of users above it."""
    asked = users_question(EACH, requests_cap=100)
    probe = FleetProbe(
        fleet=Alike().fleet(candidate.deployment, "likely", 1),
        traffic=asked.traffic,
        objective=asked.objective,
    )
    readings = [probe(load, 0) for load in (100.0, 1000.0)]
    assert [one.n_requests for one in readings] == [300, 3000]
    assert readings[1].margin_ratio > 2 * readings[0].margin_ratio


def test_a_sizing_says_where_each_user_would_have_too_few_requests():
    """100 requests of 40 users are mostly their first ones: 160 are simulated."""
    (caution,) = few_of_each_user(users_question(EACH, requests_cap=100))
    assert "--requests 800" in caution.remedy
    for cap in (None, 160):
        assert not few_of_each_user(users_question(EACH, requests_cap=cap))
    rate = replace(users_question(EACH, requests_cap=100), spec=resolve_workload("chat"))
    assert not few_of_each_user(rate)


def test_the_break_even_of_users_is_compared_with_the_rate_that_they_send(of_twenty):
    """800 users are 120 requests/s, not 800: what needs 300 requests/s to break even is not carried."""
    _, kind = of_twenty
    tokens_in, tokens_out = mean_tokens(kind.sized_at.served)
    for rate_per_s, is_carried in ((10.0, True), (kind.offered_load / 2, False)):
        usd_per_million = kind.usd_per_hour / 3600 / rate_per_s / (tokens_in + tokens_out) * 1e6
        api = ApiPrice(
            name="one",
            input_usd_per_million_tokens=usd_per_million,
            output_usd_per_million_tokens=usd_per_million,
            source=SOURCE,
            date_utc="2026-11",
        )
        (compared,) = costs_of(kind, (api,)).apis
        assert compared.break_even_requests_per_s == pytest.approx(rate_per_s)
        assert compared.is_carried is is_carried


def test_a_replica_of_many_is_as_full_as_one_of_few(of_twenty):
    """Of more than 8 replicas a part is simulated: alerts and autoscaling count on one of them."""
    asked, kind = of_twenty
    at = operating_point(asked, kind, "likely", kind.offered_load)
    assert at.in_flight_load == pytest.approx(EACH, rel=0.02)
    assert at.requests_per_s * 20 == pytest.approx(kind.requests_per_s, rel=0.1)
    rate_per_s = kind.requests_per_s
    open_loop = replace(asked, spec=resolve_workload("chat"), offered_load=rate_per_s)
    at = operating_point(open_loop, kind, "likely", rate_per_s)
    assert EACH / 2 < at.in_flight_load < EACH
