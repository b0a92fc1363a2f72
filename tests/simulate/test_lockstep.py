"""Do replicas that share experts take every step together, in both simulators alike, and is one of them the engine alone?"""

from dataclasses import replace

import numpy as np
import pytest
from cluster_strategies import clusters
from examples import examples
from hypothesis import given, strategies as st
from reference.cluster_run import simulate_cluster_plainly
from simulator_strategies import assert_equal, costs, demands, speculating_configs
from whole_fleets import simulate_cluster

from inferometer.errors import SpecError
from inferometer.records.types import RequestStatus
from inferometer.simulate.batch_config import StaticBatching
from inferometer.simulate.demand import demand
from inferometer.simulate.fleet import ClusterConfig, DisaggregatedConfig, KvLink
from inferometer.simulate.outcome import Outcome
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.sglang_config import SglangConfig
from inferometer.simulate.step_cost import linear_cost
from inferometer.simulate.trtllm_config import TrtllmConfig

BOTH = pytest.mark.parametrize("run", [simulate_cluster, simulate_cluster_plainly])
COST = linear_cost(launch_s=1e-6)
"""1,000 ns a step, whatever it does."""
ROWS = linear_cost(launch_s=1e-9, per_row_s=1e-6)._replace(expert_row_s=1e-7)
"""A step takes 1,000 ns for each row of the replica that has most, 100 ns for each row of the
group, and 1 ns."""


KINDS = pytest.mark.parametrize(
    "kind",
    ["vllm", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("sglang", "trtllm"))],
)
"""As in ``test_cluster.py``: the fast suite compiles one engine's loop alone."""


@st.composite
def groups(draw, kind="vllm", *, n_replicas=None):
    """Replicas in lockstep, of whatever the engine's rules allow, and what they are asked."""
    cluster, _ = draw(clusters(kind, n_replicas=n_replicas))
    engine = cluster.engine
    if kind == "vllm" and draw(st.sampled_from([False, False, True])):
        engine = draw(speculating_configs())
        engine = replace(
            engine,
            enable_prefix_caching=engine.enable_prefix_caching or cluster.router == "prefix-affine",
        )
    cluster = replace(cluster, engine=engine, in_lockstep=True)
    requests = draw(demands(engine))
    classes = draw(
        st.lists(st.integers(0, 2), min_size=requests.n_requests, max_size=requests.n_requests)
    )
    cost = draw(costs())._replace(
        expert_row_s=draw(st.sampled_from([0.0, 1e-9, 3e-9])),
        link_row_s=draw(st.sampled_from([0.0, 1e-10])),
    )
    return cluster, requests._replace(class_index=np.array(classes, np.int32)), cost


@KINDS
@examples(200)
@given(st.data(), st.none() | st.integers(0, 1500))
def test_kernel_equals_reference(kind, data, until_ns):
    cluster, requests, cost = data.draw(groups(kind))
    fast = simulate_cluster(requests, cluster, cost, until_ns=until_ns, record_parts=True)
    plain = simulate_cluster_plainly(requests, cluster, cost, until_ns=until_ns, record_parts=True)
    assert_equal(fast, plain)


@KINDS
@examples(150)
@given(st.data())
def test_one_replica_is_the_engine_alone(kind, data):
    """But that a group notes who waits, and what is held, when a step begins.

    An engine alone notes it when the step is decided.
    """
    cluster, requests, cost = data.draw(groups(kind, n_replicas=1))
    alone = simulate(requests, cluster.engine, cost, record_parts=True)
    group = simulate_cluster(requests, cluster, cost, record_parts=True)
    if alone.outcome is Outcome.LIVELOCK:
        return
    assert group.outcome is alone.outcome
    if cluster.engine.depth > 1:
        group = group._replace(
            steps=group.steps._replace(**{name: getattr(alone.steps, name) for name in NOTED})
        )
    assert_equal(group, alone)


NOTED = ("n_waiting_requests", "kv_blocks_used")


@KINDS
@examples(150)
@given(st.data())
def test_all_steps_begin_and_end_together(kind, data):
    """Steps that overlap are one, and nothing of what was asked is lost."""
    cluster, requests, cost = data.draw(groups(kind))
    run = simulate_cluster(requests, cluster, cost)
    steps = run.steps
    begins, group_of_row = np.unique(steps.start_ns, return_inverse=True)
    longest_ns = np.zeros(len(begins), np.int64)
    np.maximum.at(longest_ns, group_of_row, steps.duration_ns)
    is_short = steps.duration_ns < longest_ns[group_of_row]
    assert not steps.duration_ns[
        is_short
    ].any()  # somebody was only thrown out, and the step began at the same instant
    assert np.all(begins[1:] >= (begins + longest_ns)[:-1])
    if run.outcome is Outcome.FINISHED:
        for replica in range(cluster.n_replicas):
            assert run.busy_ns[replica] == steps.duration_ns[steps.replica == replica].sum()


def engine(**changes):
    return SchedulerConfig(
        **({"num_blocks": 100, "max_model_len": 128, "async_scheduling": False} | changes)
    )


def group_of(n_replicas=2, **changes):
    return ClusterConfig(engine=engine(**changes), n_replicas=n_replicas, in_lockstep=True)


def starts(run, replica):
    steps = run.steps
    own = steps.replica == replica
    return list(zip(steps.start_ns[own].tolist(), steps.duration_ns[own].tolist(), strict=True))


@BOTH
def test_a_short_step_waits_for_a_long_one(run):
    """Replica 0 computes 30 rows, replica 1 four: 30 of its own and 34 of the group for both.

    Then each decodes, two rows in all.
    """
    made = run(demand([0, 0], [30, 4], [2, 2]), group_of(), ROWS)
    assert starts(made, 0) == starts(made, 1) == [(0, 33_401), (33_401, 1_201)]
    assert made.requests.finished_ns.tolist() == [34_602, 34_602]


@BOTH
def test_who_comes_to_an_idle_replica_waits_for_the_step_of_the_others(run):
    """Request 1 comes at 500 ns to a replica without work, whose dummy batch ends with the step of the other."""
    made = run(demand([0, 500], [5, 5], [3, 1]), group_of(), COST)
    assert starts(made, 0) == [(0, 1000), (1000, 1000), (2000, 1000)]
    assert starts(made, 1) == [(1000, 1000)]
    alone = run(demand([0, 500], [5, 5], [3, 1]), replace(group_of(), in_lockstep=False), COST)
    assert starts(alone, 1) == [(500, 1000)]


@BOTH
def test_what_was_decided_ahead_takes_in_who_comes_to_an_idle_replica(run):
    """At 0 replica 0 decides two steps; the second begins at 1,000 ns, with the one that came to replica 1 meanwhile."""
    made = run(
        demand([0, 500], [5, 5], [3, 1]),
        group_of(async_scheduling=True),
        ROWS._replace(expert_row_s=0.0),
    )
    assert starts(made, 0) == [(0, 5001), (5001, 5001), (10_002, 1001)]
    assert starts(made, 1) == [(5001, 5001)]


SGLANG = SglangConfig(max_total_num_tokens=1000, context_length=128)
TRTLLM = TrtllmConfig(num_blocks=100, max_seq_len=128)


@pytest.mark.parametrize("engine", [SGLANG, TRTLLM])
@pytest.mark.parametrize(
    "run",
    [pytest.param(simulate_cluster, marks=pytest.mark.slow), simulate_cluster_plainly],
)
def test_who_comes_after_all_have_decided_waits_one_step_more(run, engine):
    """As with vLLM just above, but at 0 both replicas decide the step that begins at 5,001 ns."""
    group = ClusterConfig(engine=engine, n_replicas=2, in_lockstep=True)
    requests, cost = demand([0, 500], [5, 5], [3, 1]), ROWS._replace(expert_row_s=0.0)
    made = run(requests, group, cost)
    assert starts(made, 0) == [(0, 5001), (5001, 1001), (6002, 5001)]
    assert starts(made, 1) == [(6002, 5001)]
    off = "overlap_schedule" if engine is SGLANG else "overlap_scheduler"
    in_turn = replace(group, engine=replace(engine, **{f"disable_{off}": True}))
    assert starts(run(requests, in_turn, cost), 1) == [(5001, 5001)]


@pytest.mark.parametrize(
    "run",
    [pytest.param(simulate_cluster, marks=pytest.mark.slow), simulate_cluster_plainly],
)
def test_prompts_of_one_are_in_a_step_with_decodes_of_another(run):
    """Where SGLang does not speculate; on one replica alone prompts come first."""
    group = ClusterConfig(
        engine=replace(SGLANG, disable_overlap_schedule=True), n_replicas=2, in_lockstep=True
    )
    made = run(demand([0, 500], [5, 5], [3, 3]), group, COST)
    steps = made.steps
    second = steps.start_ns == 1000
    assert steps.n_decode_requests[second].tolist() == [1, 0]
    assert steps.n_prefill_requests[second].tolist() == [0, 1]


@BOTH
def test_seats_and_blocks_are_of_each_replica(run):
    """Three requests of 60 tokens, two slots in all and blocks for one of them on each replica.

    The third waits for a replica's own.
    """
    made = run(
        demand([0, 0, 0], [60] * 3, [4] * 3),
        group_of(num_blocks=5, max_model_len=64, max_num_seqs=1),
        COST,
    )
    assert made.visits.replica.tolist() == [0, 1, 0]
    assert made.requests.finished_ns.tolist() == [4000, 4000, 8000]


@BOTH
def test_a_replica_whose_requests_never_fit_does_not_hold_up_the_others(run):
    small = group_of(
        num_blocks=4,
        max_model_len=64,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        enable_prefix_caching=False,
    )
    made = run(demand([0, 0, 0], [60, 10, 10], [2, 2, 2]), small, COST)
    assert made.outcome is Outcome.STUCK
    assert made.requests.status.tolist() == [
        RequestStatus.UNFINISHED,
        RequestStatus.LENGTH,
        RequestStatus.UNFINISHED,
    ]


@pytest.mark.parametrize(
    "refused",
    [
        engine(pipeline_parallel_size=2),
        engine(rules="sarathi", enable_prefix_caching=False),
        engine(kv_allocation="contiguous", enable_prefix_caching=False),
        StaticBatching(num_blocks=100, max_model_len=128),
    ],
)
def test_what_cannot_step_together_is_refused(refused):
    with pytest.raises(SpecError, match="lockstep") as refusal:
        ClusterConfig(engine=refused, n_replicas=2, in_lockstep=True)
    assert refusal.value.try_ in {"--policy vllm", "--pp 1"}


def test_pools_do_not_step_together():
    pool = group_of()
    with pytest.raises(SpecError, match="lockstep"):
        DisaggregatedConfig(
            prefill=pool, decode=replace(pool, in_lockstep=False), link=KvLink(block_bytes=1)
        )
