"""Do both simulators of replicas of different kinds say the same, and does each request go where the rules say?"""

from dataclasses import replace

import numpy as np
import pytest
from cluster_strategies import ENGINES, clusters, engines
from examples import examples
from hypothesis import assume, given, strategies as st
from reference.cluster_run import simulate_groups_plainly
from simulator_strategies import assert_equal, costs, demands
from whole_fleets import simulate_cluster, simulate_groups

from inferometer.errors import SpecError
from inferometer.records.types import ABSENT
from inferometer.simulate.demand import demand
from inferometer.simulate.fleet import Dealt, Fleet, Placement, ReplicaGroup
from inferometer.simulate.gate_config import GateConfig
from inferometer.simulate.outcome import Outcome
from inferometer.simulate.run import simulate_fleet
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.sglang_config import SglangConfig
from inferometer.simulate.step_cost import linear_cost

ENGINE = SchedulerConfig(num_blocks=100, max_model_len=128)
FAST, SLOW = linear_cost(launch_s=1e-6), linear_cost(launch_s=4e-6)
KINDS = [pytest.param(kind, marks=() if kind == "vllm" else pytest.mark.slow) for kind in ENGINES]
"""As in ``test_cluster.py``."""
BOTH = pytest.mark.parametrize("run", [simulate_groups, simulate_groups_plainly])


@st.composite
def placements(draw, kind, first, scale):
    """One to three groups with different engines and step times, the last of which takes all."""
    rules = {
        "classes": st.sets(st.integers(0, 2), max_size=2).map(tuple),
        "tenants": st.sets(st.integers(0, 1), max_size=1).map(tuple),
        "min_prompt_tokens": st.sampled_from([0, 0, 8]),
        "max_prompt_tokens": st.none() | st.integers(0, 40),
    }

    def goes(other):
        mine, its = ((type(one), one.block_size, one.n_instances) for one in (first, other))
        return mine == its

    groups = []
    for place in range(draw(st.integers(1, 3))):
        engine = draw(engines(kind).map(lambda pair: pair[0]).filter(goes)) if place else first
        groups.append(
            ReplicaGroup(
                engine=engine,
                step_times=draw(costs(scale=scale)),
                n_replicas=draw(st.integers(1, 3)),
            )
        )
    ruled = [
        replace(one, **{name: draw(rule) for name, rule in rules.items()}) for one in groups[:-1]
    ]
    return Placement(groups=(*ruled, groups[-1]), keeps_sessions=draw(st.booleans()))


@st.composite
def settings_of_groups(draw, kind):
    """Groups, and requests of three classes and two tenants."""
    engine, scale = draw(engines(kind))
    requests = draw(demands(engine, scale=scale))

    def drawn(most):
        numbers = st.lists(
            st.integers(0, most), min_size=requests.n_requests, max_size=requests.n_requests
        )
        return np.array(draw(numbers), np.int32)

    return draw(placements(kind, engine, scale)), requests._replace(
        class_index=drawn(2), tenant_index=drawn(1)
    )


@pytest.mark.parametrize("kind", KINDS)
@examples(200)
@given(st.data())
def test_kernel_equals_reference(kind, data):
    placement, requests = data.draw(settings_of_groups(kind))
    until_ns = data.draw(st.none() | st.integers(0, 1500))
    fast = simulate_groups(requests, placement, until_ns=until_ns, record_parts=True)
    plain = simulate_groups_plainly(requests, placement, until_ns=until_ns, record_parts=True)
    assert_equal(fast, plain)


@examples(50)
@given(clusters("vllm"), st.data())
def test_one_group_is_a_cluster_of_equal_replicas(cluster_and_scale, data):
    cluster, _ = cluster_and_scale
    cluster = replace(cluster, router="least-loaded", class_replicas=())
    requests, cost = data.draw(demands(cluster.engine)), data.draw(costs())
    group = ReplicaGroup(engine=cluster.engine, step_times=cost, n_replicas=cluster.n_replicas)
    assert_equal(
        simulate_groups(requests, Placement(groups=(group,)), record_parts=True),
        simulate_cluster(requests, cluster, cost, record_parts=True),
    )


@examples(200)
@given(settings_of_groups("vllm"))
def test_a_group_by_itself_does_what_it_does_among_the_others(groups_and_requests):
    """What the search for the smallest number of a group rests on: of several replicas, who is next among equals
    depends on the others."""
    placement, requests = groups_and_requests
    lone = tuple(replace(group, n_replicas=1) for group in placement.groups)
    placement = replace(placement, groups=lone)
    requests = requests._replace(
        arrival_ns=np.sort(requests.arrival_ns),
        follows=np.full_like(requests.follows, -1),
        joins=np.full_like(requests.joins, -1),
        accompanies=np.full_like(requests.accompanies, -1),
        abort_ns=np.full_like(requests.abort_ns, ABSENT),
    )
    group_index = placement.group_of(requests)
    assume(not any(group.engine.acceptance for group in placement.groups))  # drawn by place
    whole = simulate_groups(requests, placement)
    assume(whole.outcome is Outcome.FINISHED)
    for place in set(group_index.tolist()):
        alone = Placement(groups=(without_rules(placement.groups[place]),))
        own = Dealt(placement, place).own(requests)
        found = simulate_groups(own, alone).requests
        rows = group_index == place
        assert found.finished_ns.tolist() == whole.requests.finished_ns[rows].tolist()
        assert found.first_token_ns.tolist() == whole.requests.first_token_ns[rows].tolist()
        assert found.cached_tokens.tolist() == whole.requests.cached_tokens[rows].tolist()


def without_rules(group):
    return ReplicaGroup(
        engine=group.engine, step_times=group.step_times, n_replicas=group.n_replicas
    )


def test_a_group_whose_requests_wait_for_others_is_not_simulated_by_itself():
    requests = demand([0, 0], [10, 90], [3, 3], follows=[-1, 0])
    groups = (
        ReplicaGroup(engine=ENGINE, step_times=FAST, max_prompt_tokens=20),
        ReplicaGroup(engine=ENGINE, step_times=SLOW),
    )
    with pytest.raises(SpecError, match="follows one that is left out"):
        Dealt(Placement(groups=groups), 1).own(requests)


def test_who_waits_for_several_waits_for_the_same_ones_in_its_group():
    """Requests 1, 3, 4, 5 are one group's: the last comes when both 3 and 4 have ended."""
    prompts, follows = [90, 10, 90, 10, 10, 10], [-1, -1, 0, 1, 1, 3]
    groups = (
        ReplicaGroup(engine=ENGINE, step_times=FAST, max_prompt_tokens=20),
        ReplicaGroup(engine=ENGINE, step_times=SLOW),
    )
    dealt = Dealt(Placement(groups=groups), 0)
    joins = [-1, -1, -1, -1, 5, -1]
    own = dealt.own(demand([0] * 6, prompts, [3] * 6, follows=follows, joins=joins))
    assert own.follows.tolist() == [-1, 0, 0, 1]
    assert own.joins.tolist() == [-1, -1, 3, -1]
    follows_too = [*follows[:5], follows[4]]
    together = demand([0] * 6, prompts, [3] * 6, follows=follows_too, accompanies=[-1] * 5 + [4])
    assert dealt.own(together).accompanies.tolist() == [-1, -1, -1, 2]
    joins[2] = 5
    with pytest.raises(SpecError, match="follows one that is left out"):
        dealt.own(demand([0] * 6, prompts, [3] * 6, follows=follows, joins=joins))


@BOTH
def test_the_first_group_that_may_take_it_does_at_its_own_pace(run):
    """Three short and two long prompts: 1,000 ns a step on the first replica, 4,000 on the second."""
    requests = demand([0] * 5, [10, 90, 10, 90, 10], [3] * 5)
    placement = Placement(
        groups=(
            ReplicaGroup(engine=ENGINE, step_times=FAST, max_prompt_tokens=20),
            ReplicaGroup(engine=ENGINE, step_times=SLOW),
        )
    )
    found = run(requests, placement)
    assert found.visits.replica[np.argsort(found.visits.request_index)].tolist() == [0, 1, 0, 1, 0]
    assert found.requests.finished_ns.tolist() == [3000, 12_000, 3000, 12_000, 3000]


@BOTH
def test_a_session_stays_where_its_first_turn_went(run):
    """The second turn is too long for the first group."""
    requests = demand([0, 0], [10, 90], [3, 3], follows=[-1, 0])
    groups = (
        ReplicaGroup(engine=ENGINE, step_times=FAST, max_prompt_tokens=20),
        ReplicaGroup(engine=ENGINE, step_times=SLOW),
    )
    for keeps, replicas in ((True, [0, 0]), (False, [0, 1])):
        found = run(requests, Placement(groups=groups, keeps_sessions=keeps))
        assert found.visits.replica[np.argsort(found.visits.request_index)].tolist() == replicas


def test_a_request_that_no_group_takes_is_named():
    group = ReplicaGroup(engine=ENGINE, step_times=FAST, classes=(1,))
    with pytest.raises(SpecError, match="no group takes request 0"):
        simulate_groups(demand([0], [8], [2]), Placement(groups=(group,)))


def test_groups_that_do_not_go_together_are_refused():
    one = ReplicaGroup(engine=ENGINE, step_times=FAST)
    drafting = {"num_speculative_tokens": 2, "acceptance_fraction": 0.5}
    others = [
        SglangConfig(max_total_num_tokens=1000, context_length=128),
        replace(ENGINE, block_size=32),
    ]
    for other in others:
        with pytest.raises(SpecError, match="one engine and one size"):
            Placement(groups=(one, replace(one, engine=other)))
    with pytest.raises(SpecError, match="draw differently"):
        Placement(
            groups=(
                replace(one, engine=replace(ENGINE, **drafting)),
                replace(one, engine=replace(ENGINE, **drafting | {"acceptance_fraction": 0.6})),
            )
        )
    with pytest.raises(SpecError, match="no groups"):
        Placement(groups=())
    placement = Placement(groups=(one,))
    behind_gate = Fleet(
        replicas=placement.cluster, step_times=FAST, placement=placement, gate=GateConfig()
    )
    with pytest.raises(SpecError, match="groups alone"):
        simulate_fleet(behind_gate, demand([0], [8], [2]))


def test_a_replica_without_pieces_of_memory_has_no_holes():
    contiguous = replace(ENGINE, kv_allocation="contiguous", enable_prefix_caching=False)
    placement = Placement(
        groups=(
            ReplicaGroup(engine=contiguous, step_times=FAST, max_prompt_tokens=20),
            ReplicaGroup(engine=replace(ENGINE, enable_prefix_caching=False), step_times=SLOW),
        )
    )
    requests = demand([0] * 5, [10, 90, 10, 90, 10], [3] * 5)
    fast, plain = (one(requests, placement) for one in (simulate_groups, simulate_groups_plainly))
    assert_equal(fast, plain)
    is_paged = fast.steps.replica == 1
    assert (fast.holes.largest_hole_blocks[is_paged] == ABSENT).all()
    assert (fast.holes.largest_hole_blocks[~is_paged] != ABSENT).all()
