"""Is the cheapest way to give groups of replicas classes of requests found, as a search of all ways finds it?"""

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from inferometer.decide.group_routing import FREE, NEVER, Cost, Part, cheapest_sets
from inferometer.decide.group_splitting import whole_percents
from inferometer.inputs.workload.plan import request_plan
from inferometer.simulate.demand import Route
from inferometer.simulate.fleet import Placement, ReplicaGroup
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

ENGINE = SchedulerConfig(num_blocks=1000, max_model_len=4000)
STEPS = linear_cost(launch_s=1e-3)


@st.composite
def priced(draw):
    """Of up to 3 groups and 4 streams; some pairs cannot be."""
    n_streams, n_groups = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    price = st.integers(1, 20).map(lambda one: Cost(one, 1, 1, 1)) | st.just(NEVER)
    of_sets = st.lists(price, min_size=2**n_streams - 1, max_size=2**n_streams - 1)
    return [[FREE, *draw(of_sets)] for _ in range(n_groups)]


@given(priced())
def test_as_cheap_as_the_cheapest_of_all_ways(costs):
    n_streams = len(costs[0]).bit_length() - 1
    prices = []
    for chosen in itertools.product(range(len(costs)), repeat=n_streams):
        sets = [
            sum(1 << stream for stream in range(n_streams) if chosen[stream] == place)
            for place in range(len(costs))
        ]
        prices.append(sum(costs[place][members].price for place, members in enumerate(sets)))
    found = cheapest_sets(costs)
    if found is None:
        assert min(prices) == float("inf")
        return
    assert sum(found) == 2**n_streams - 1, "each stream in one group"
    assert sum(costs[place][members].price for place, members in enumerate(found)) == min(prices)


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=4))
def test_weights_are_whole_percents_and_small_ones_go(raw):
    weights = np.array(raw) / sum(raw)
    parts = [Part(0, place, float(one)) for place, one in enumerate(weights)]
    found = whole_percents(parts)
    assert sum(round(100 * one.weight) for one in found) == 100
    assert all(one.weight >= 0.02 for one in found) or len(found) == 1
    assert all(round(100 * one.weight, 9) % 1 == 0 for one in found)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(50, 400))
def test_a_route_meets_its_weights_and_more_requests_are_the_same_ones(raw, n_requests):
    weights = tuple(one / sum(raw) for one in raw)
    route = Route(0, tuple(range(5, 5 + len(raw))), weights)
    shared = route.shared(n_requests)
    counts = [int((shared == group).sum()) for group in route.targets]
    assert np.abs(np.array(counts) - n_requests * np.array(weights)).max() < 4
    assert route.shared(2 * n_requests)[:n_requests].tolist() == shared.tolist()


def test_a_route_takes_those_whom_just_its_groups_let_in():
    """Prompts up to 100 tokens may go to both groups, longer ones to the second alone."""
    plan = request_plan(
        "here",
        arrival_ns=range(6),
        prompt_tokens=[50, 500, 60, 70, 600, 80],
        output_tokens=[2] * 6,
        class_index=[0, 0, 0, 0, 0, 1],
    )
    groups = tuple(
        ReplicaGroup(engine=ENGINE, step_times=STEPS, max_prompt_tokens=most)
        for most in (100, None)
    )
    placed = Placement(groups=groups)
    assert placed.group_of(plan).tolist() == [0, 1, 0, 0, 1, 0]
    to_second = Route(0, (1,), (1.0,), takers=(0, 1))
    routed = Placement(groups=groups, routes=(to_second,))
    assert routed.group_of(plan).tolist() == [1, 1, 1, 1, 1, 0]
    of_all = Placement(groups=groups, routes=(Route(0, (0, 1), (0.5, 0.5)),))
    assert of_all.group_of(plan).tolist() == [0, 1, 0, 1, 0, 0], "each second of the class"


def test_no_way_where_a_stream_has_no_group():
    assert cheapest_sets([[FREE, NEVER], [FREE, NEVER]]) is None
    assert cheapest_sets([[FREE, NEVER], [FREE, Cost(1, 1, 1, 1)]]) == (0, 1)


def test_costs_compare_by_price_then_devices():
    assert min(Cost(1, 9, 9, 9), Cost(2, 1, 1, 1)) == Cost(1, 9, 9, 9)
    assert FREE.plus(Cost(1, 2, 3, 1)) == pytest.approx(Cost(1, 2, 3, 1))
