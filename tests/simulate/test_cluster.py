"""Do both simulators of a cluster say the same to the nanosecond, is one replica the engine alone, and is nothing ever lost?"""

import numpy as np
import pytest
from cluster_strategies import ENGINES, settings_of_clusters
from examples import examples
from hypothesis import given, strategies as st
from reference.cluster_run import simulate_cluster_plainly
from simulator_strategies import assert_equal
from whole_fleets import simulate_cluster

from inferometer.errors import SpecError
from inferometer.records.types import ABSENT, RequestStatus
from inferometer.simulate.demand import demand
from inferometer.simulate.fleet import ROUTERS, ClusterConfig
from inferometer.simulate.outcome import Outcome
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

COST = linear_cost(launch_s=1e-6)
"""1,000 ns a step, whatever it does."""
KINDS = [pytest.param(kind, marks=() if kind == "vllm" else pytest.mark.slow) for kind in ENGINES]
"""The loop is compiled for each kind of engine, which takes longer than a fast suite may: the
others are in the slow one, where the same process tests what it has compiled."""
BOTH = pytest.mark.parametrize("run", [simulate_cluster, simulate_cluster_plainly])


@pytest.mark.parametrize("kind", KINDS)
@examples(150)
@given(st.data())
def test_kernel_equals_reference(kind, data):
    cluster, requests, cost = data.draw(settings_of_clusters(kind))
    until_ns = data.draw(st.none() | st.integers(0, 1500))
    fast = simulate_cluster(requests, cluster, cost, until_ns=until_ns, record_parts=True)
    plain = simulate_cluster_plainly(requests, cluster, cost, until_ns=until_ns, record_parts=True)
    assert_equal(fast, plain)


@pytest.mark.parametrize("kind", KINDS)
@examples(150)
@given(st.data())
def test_one_replica_is_the_engine_alone(kind, data):
    cluster, requests, cost = data.draw(settings_of_clusters(kind, n_replicas=1))
    until_ns = data.draw(st.none() | st.integers(0, 1500))
    alone = simulate(requests, cluster.engine, cost, until_ns=until_ns, record_parts=True)
    together = simulate_cluster(requests, cluster, cost, until_ns=until_ns, record_parts=True)
    assert_equal(together, alone)


@examples(150)
@given(settings_of_clusters("vllm", can_abort=False, can_stop=False))
def test_nothing_is_lost(setting):
    """Every request is served by one replica, whole.

    What all replicas compute is what was asked for, less what was cached.
    """
    cluster, requests, cost = setting
    run = simulate_cluster(requests, cluster, cost)
    table, steps = run.requests, run.steps
    if run.visits is not None:
        assert np.array_equal(np.sort(run.visits.request_index), np.sort(table.request_index))
        assert np.all((run.visits.replica >= 0) & (run.visits.replica < cluster.n_replicas))
    for replica in range(cluster.n_replicas):
        own = steps.replica == replica
        ends = steps.start_ns[own] + steps.duration_ns[own]
        assert np.all(steps.start_ns[own][1:] >= ends[:-1])  # one device each
        if run.outcome is Outcome.FINISHED:
            assert run.busy_ns[replica] == steps.duration_ns[own].sum()
    if run.outcome is Outcome.FINISHED and not table.n_preemptions.any():
        served = table.status != RequestStatus.REJECTED
        needed = (table.prompt_tokens + table.output_tokens - 1 - table.cached_tokens)[served].sum()
        assert (steps.prefill_tokens + steps.n_decode_requests).sum() == needed


@examples(50)
@given(settings_of_clusters("vllm"))
def test_the_same_again(setting):
    cluster, requests, cost = setting
    assert_equal(
        simulate_cluster(requests, cluster, cost), simulate_cluster(requests, cluster, cost)
    )


def config(**changes):
    return SchedulerConfig(
        **({"num_blocks": 100, "max_model_len": 128, "async_scheduling": False} | changes)
    )


def replicas_of(run, router, requests, *, n_replicas=3, engine=None, **changes):
    cluster = ClusterConfig(
        engine=engine or config(), n_replicas=n_replicas, router=router, **changes
    )
    visits = run(requests, cluster, COST).visits
    assert np.array_equal(visits.request_index, np.arange(requests.n_requests))
    return visits.replica.tolist()


@BOTH
def test_round_robin_by_hand(run):
    assert replicas_of(run, "round-robin", demand(range(5), [5] * 5, [3] * 5)) == [0, 1, 2, 0, 1]


@BOTH
def test_least_loaded_by_hand(run):
    """Requests 0 and 1 take a step, 2 takes nine.

    At 1,500 ns replicas 0 and 1 are free again; of these the next behind the last one.
    """
    requests = demand([0, 0, 0, 1500, 1500, 1500], [5] * 6, [1, 1, 9, 9, 9, 9])
    assert replicas_of(run, "least-loaded", requests) == [0, 1, 2, 0, 1, 2]
    assert replicas_of(run, "least-loaded", requests, n_replicas=2) == [0, 1, 0, 1, 0, 1]


@BOTH
def test_a_router_knows_at_once_who_has_gone(run):
    """Both replicas have one request each; replica 1 loses its client in the middle of a step, and gets the next one."""
    requests = demand([0, 0, 500], [5] * 3, [9] * 3, abort_ns=[ABSENT, 400, ABSENT])
    assert replicas_of(run, "least-loaded", requests, n_replicas=2) == [0, 1, 1]


@BOTH
def test_classes_have_replicas_of_their_own(run):
    requests = demand(np.zeros(6), [5] * 6, [3] * 6, class_index=[0, 0, 1, 1, 1, 2])
    own = ((0,), (1, 2), (2,))
    assert replicas_of(run, "class-aware", requests, class_replicas=own) == [0, 0, 1, 2, 1, 2]
    assert replicas_of(run, "class-aware", requests) == [0, 0, 1, 1, 1, 2]
    with pytest.raises(SpecError, match="3 classes"):
        replicas_of(run, "class-aware", requests, class_replicas=own[:2])


@BOTH
def test_vllms_front_end_by_hand(run):
    """Six that stay come at once, of which nothing is reported: what was sent counts, by either rule.

    Where every step of 1,000 ns is reported at once, the older rule knows at 1,200 ns that one runs
    on each replica since 1,000 ns, and has forgotten what it sent to replica 0 at 1,100 ns.
    """
    burst = demand([0, 0, 0, 1, 1, 1], [5] * 6, [9] * 6)
    assert (
        replicas_of(run, "vllm", burst)
        == replicas_of(run, "vllm-0.19", burst)
        == [0, 1, 2, 0, 1, 2]
    )
    later = demand([0, 0, 0, 1100, 1200, 2100], [5] * 6, [9] * 6)
    assert replicas_of(run, "vllm", later, report_interval_s=0.0) == [0, 1, 2, 0, 1, 2]
    assert replicas_of(run, "vllm-0.19", later, report_interval_s=0.0) == [0, 1, 2, 0, 0, 1]


@BOTH
def test_vllms_front_end_shuns_who_waits_for_memory(run):
    """Replica 0 has 7 of 8 blocks in use and one who waits for more, which counts as 6 x 3/8 = 2.25 beside the two in flight.

    Who comes later goes to replica 1 up to the fourth in flight there.
    """
    tight = config(block_size=16, enable_prefix_caching=False, num_blocks=9)
    requests = demand(
        [0, 0, 10, *range(1500, 7500, 1000)], [100, 5, 100, *[5] * 6], [20, 1, *[20] * 7]
    )
    fair = replicas_of(run, "least-loaded", requests, engine=tight, n_replicas=2)
    assert fair == [0, 1, 0, 1, 1, 0, 1, 0, 1]
    assert replicas_of(
        run, "vllm", requests, engine=tight, n_replicas=2, report_interval_s=0.0
    ) == [0, 1, 0, *[1] * 5, 0]


@BOTH
def test_prefixes_go_where_they_are_known(run):
    """Three families of prompts of two blocks each, none of which is done when the last one comes.

    Without a bound each family stays where its first member went. Where more than 1.5 times the
    least requests are one too many: 3 leaves two on replica 2, so that 4 and 5 go to the least
    loaded, 0 and 1; now 6 finds its prefix on both, and takes the first, 7 the less loaded.
    """
    families = [0, 1, 2, 2, 1, 0, 0, 0]
    requests = demand(np.arange(8), [8] * 8, [4] * 8)
    _, contents = np.unique(
        [(10 * family, 10 * family + 1, 100 + i) for i, family in enumerate(families)],
        return_inverse=True,
    )
    requests = requests._replace(
        contents=contents.ravel().astype(np.int32), content_start=np.arange(9) * 3
    )
    engine = config(block_size=4)
    assert replicas_of(run, "prefix-affine", requests, engine=engine) == families
    assert replicas_of(run, "prefix-affine", requests, engine=engine, balance_abs_threshold=0) == [
        0,
        1,
        2,
        2,
        0,
        1,
        0,
        1,
    ]


@BOTH
def test_followers_are_sent_from_where_their_leader_ended(run):
    """Request 1 follows 0, which ends on replica 0 at 2,000 ns; it goes where the router sends it, at 2,700 ns."""
    requests = demand([0, 0], [5, 5], [2, 1], follows=[-1, 0], think_ns=[0, 700])
    result = run(requests, ClusterConfig(engine=config(), n_replicas=2), COST)
    assert result.requests.intended_send_ns.tolist() == [0, 2700]
    assert [column.tolist() for column in result.visits] == [
        [0, 1],
        [0, 1],
        [0, 2700],
        [2000, 3700],
    ]


@BOTH
def test_what_never_fits_anywhere_is_named(run):
    small = SchedulerConfig(
        num_blocks=4,
        max_model_len=64,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        enable_prefix_caching=False,
    )
    cluster = ClusterConfig(engine=small, n_replicas=2)
    result = run(demand([0, 0, 0], [60, 10, 10], [2, 2, 2]), cluster, COST)
    assert result.outcome is Outcome.STUCK
    assert result.requests.status.tolist() == [
        RequestStatus.UNFINISHED,
        RequestStatus.LENGTH,
        RequestStatus.UNFINISHED,
    ]


def test_random_and_power_of_two_draw_evenly_and_as_the_seed_says():
    requests = demand(
        np.arange(6000) * 10_000, [5] * 6000, [1] * 6000
    )  # nobody is there when the next one comes
    for router in ("random", "power-of-two"):
        drawn = replicas_of(simulate_cluster, router, requests, seed=7)
        counts = np.bincount(drawn, minlength=3)
        assert np.all(np.abs(counts - 2000) < 5 * np.sqrt(6000 * 2 / 9))
        assert drawn == replicas_of(simulate_cluster, router, requests, seed=7)
        assert drawn != replicas_of(simulate_cluster, router, requests, seed=8)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_replicas": 0},
        {"router": "best"},
        {"router": "prefix-affine", "engine": config(enable_prefix_caching=False)},
        {"class_replicas": ((0,), (3,)), "n_replicas": 2},
        {"class_replicas": ((0,), ())},
        {"report_interval_s": -1.0},
        {"report_interval_s": float("nan")},
    ],
)
def test_what_cannot_be_is_refused(changes):
    with pytest.raises(SpecError):
        ClusterConfig(**({"engine": config()} | changes))


def test_every_router_is_tried():
    assert set(ROUTERS) == {
        "random",
        "round-robin",
        "least-loaded",
        "power-of-two",
        "prefix-affine",
        "class-aware",
        "vllm",
        "vllm-0.19",
    }
