"""Does the cluster's loop ask the gate as it wants to be asked, in both simulators alike?"""

import numpy as np
import pytest
from cluster_strategies import settings_of_clusters
from examples import examples
from gate_strategies import gate_configs, maybe
from hypothesis import given, strategies as st
from reference.cluster_run import simulate_cluster_plainly
from simulator_strategies import assert_equal
from whole_fleets import simulate_cluster

from inferometer.records.types import ABSENT, RequestStatus
from inferometer.simulate.demand import demand
from inferometer.simulate.fleet import ClusterConfig
from inferometer.simulate.gate_config import ClassRules, GateConfig, Reason
from inferometer.simulate.outcome import Outcome
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

COST = linear_cost(launch_s=1e-6)
BOTH = pytest.mark.parametrize("run", [simulate_cluster, simulate_cluster_plainly])
ENGINE = SchedulerConfig(num_blocks=100, max_model_len=128, max_num_seqs=4, async_scheduling=False)


@st.composite
def gated(draw, kind):
    cluster, requests, cost = draw(settings_of_clusters(kind))
    tenants = draw(
        st.lists(st.integers(0, 2), min_size=requests.n_requests, max_size=requests.n_requests)
    )
    gate = draw(gate_configs(max_in_flight=draw(maybe(3))))
    return cluster, gate, requests._replace(tenant_index=np.array(tenants, np.int32)), cost


BATCHES = pytest.param("batches", marks=pytest.mark.slow)


@pytest.mark.parametrize("kind", ["vllm", BATCHES])
@examples(200)
@given(st.data())
def test_kernel_equals_reference(kind, data):
    cluster, gate, requests, cost = data.draw(gated(kind))
    until_ns = data.draw(st.none() | st.integers(0, 1500))
    fast = simulate_cluster(
        requests, cluster, cost, gate=gate, until_ns=until_ns, record_parts=True
    )
    plain = simulate_cluster_plainly(
        requests, cluster, cost, gate=gate, until_ns=until_ns, record_parts=True
    )
    assert_equal(fast, plain)
    assert np.array_equal(fast.shed_reasons, plain.shed_reasons)


@examples(150)
@given(gated("vllm"))
def test_nobody_is_lost_at_the_gate(setting):
    cluster, gate, requests, cost = setting
    run = simulate_cluster(requests, cluster, cost, gate=gate)
    table = run.requests
    reasons = run.shed_reasons[table.request_index]
    is_away = reasons != Reason.NONE
    assert np.all(table.status[is_away] == RequestStatus.REJECTED)
    assert np.all(table.admitted_ns[is_away] == ABSENT)
    if run.outcome is Outcome.FINISHED:
        assert not np.any(table.status == RequestStatus.UNFINISHED)
    if run.visits is not None:
        assert not np.any(np.isin(run.visits.request_index, table.request_index[is_away]))


@BOTH
def test_the_shortest_first_by_hand(run):
    """One at a time on one server: 0 is let in at once.

    Of those who came since, 2 is shorter than 1. Each token takes 1,000 ns.
    """
    requests = demand([0, 10, 20], [5, 5, 5], [2, 9, 3])
    gate = GateConfig(order="shortest-remaining", max_in_flight=1)
    table = run(requests, ClusterConfig(engine=ENGINE), COST, gate=gate).requests
    assert table.intended_send_ns.tolist() == [0, 10, 20]
    assert table.admitted_ns.tolist() == [0, 5000, 2000]
    assert table.finished_ns.tolist() == [2000, 14_000, 5000]


@BOTH
def test_room_is_counted_over_all_replicas(run):
    """Two replicas with one place each: 0 and 1 go in, 2 when the first of them has ended, to where there is room."""
    requests = demand([0, 0, 0], [5] * 3, [4, 2, 1])
    made = run(
        requests,
        ClusterConfig(engine=ENGINE, n_replicas=2, router="least-loaded"),
        COST,
        gate=GateConfig(max_in_flight=1),
    )
    assert made.visits.replica.tolist() == [0, 1, 1]
    assert made.visits.arrived_ns.tolist() == [0, 0, 2000]
    assert made.requests.intended_send_ns.tolist() == [0, 0, 0]
    assert made.visits.left_ns.tolist() == [4000, 2000, 3000]


@BOTH
@pytest.mark.parametrize("limit", ["memory", "step budget"])
def test_the_order_holds_where_the_engine_lacks_memory_or_budget(run, limit):
    """Never more than 4 of 100 places are taken.

    The first long request runs, the second waits in the engine for blocks or for tokens of a

    step; the third long one and the short one wait at the gate, and the short one goes first,
    though it came last.
    """
    engine = {
        "memory": SchedulerConfig(
            num_blocks=10, max_model_len=128, max_num_seqs=100, async_scheduling=False
        ),
        "step budget": SchedulerConfig(
            num_blocks=1000,
            max_model_len=128,
            max_num_seqs=96,
            max_num_batched_tokens=96,
            async_scheduling=False,
            enable_prefix_caching=False,
        ),
    }[limit]
    requests = demand([0, 10, 20, 30], [96, 96, 96, 16], [3, 3, 3, 3])
    table = run(
        requests, ClusterConfig(engine=engine), COST, gate=GateConfig(order="shortest-remaining")
    ).requests
    assert np.argsort(table.first_token_ns, kind="stable").tolist() == [0, 1, 3, 2]
    plain = run(requests, ClusterConfig(engine=engine), COST).requests
    assert np.argsort(plain.first_token_ns, kind="stable").tolist() == [0, 1, 2, 3]


@BOTH
def test_a_gate_that_only_orders_by_arrival_costs_nothing(run):
    """What the engine could admit is always there.

    First come, first served at the gate is first come, first served without one.
    """
    rng = np.random.default_rng(4)
    engine = SchedulerConfig(
        num_blocks=60,
        max_model_len=128,
        max_num_seqs=64,
        max_num_batched_tokens=128,
        enable_prefix_caching=False,
    )
    requests = demand(
        np.cumsum(rng.integers(0, 800, 150)), rng.integers(1, 100, 150), rng.integers(1, 20, 150)
    )
    gated, plain = (
        run(requests, ClusterConfig(engine=engine), COST, gate=gate)
        for gate in (GateConfig(), None)
    )
    assert gated.n_held > 30
    assert plain.n_held == 0
    assert gated.end_ns <= 1.01 * plain.end_ns
    assert np.mean(gated.requests.first_token_ns) <= 1.02 * np.mean(plain.requests.first_token_ns)


@BOTH
def test_who_is_turned_away_or_leaves_the_queue_is_told_and_followed(run):
    """A queue of one place: 2 finds it full, at once followed by 3; the client of 1 gives up at the gate."""
    requests = demand(
        [0, 10, 20, 0],
        [5] * 4,
        [3, 2, 2, 1],
        follows=[-1, -1, -1, 2],
        abort_ns=[ABSENT, 500, ABSENT, ABSENT],
    )
    gate = GateConfig(max_in_flight=1, max_queue=1)
    made = run(requests, ClusterConfig(engine=ENGINE), COST, gate=gate)
    by_request = np.argsort(made.requests.request_index)
    status, finished = (
        made.requests.status[by_request].tolist(),
        made.requests.finished_ns[by_request].tolist(),
    )
    assert status == [
        RequestStatus.LENGTH,
        RequestStatus.ABORTED,
        RequestStatus.REJECTED,
        RequestStatus.REJECTED,
    ]
    assert finished == [3000, 500, 20, 20]
    assert made.shed_reasons.tolist() == [
        Reason.NONE,
        Reason.NONE,
        Reason.QUEUE_FULL,
        Reason.QUEUE_FULL,
    ]


@BOTH
def test_answers_are_cut_as_their_class_is(run):
    requests = demand([0, 0], [5, 5], [9, 9], class_index=[0, 1])
    gate = GateConfig(classes=(ClassRules(), ClassRules(max_tokens=4)))
    table = run(requests, ClusterConfig(engine=ENGINE), COST, gate=gate).requests
    assert table.output_tokens.tolist() == [9, 4]
