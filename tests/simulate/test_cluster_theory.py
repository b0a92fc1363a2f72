"""Do routers do what the theory of load balancing and of caches says?

Tolerances are intervals across repetitions.
"""

from functools import cache

import numpy as np
import pytest
from scipy import stats
from whole_fleets import simulate_cluster

from inferometer.records.types import RequestStatus
from inferometer.simulate.demand import SharedBlocks, demand, with_contents
from inferometer.simulate.fleet import ClusterConfig
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.simulated_run import cautions_of, replica_shares
from inferometer.simulate.step_cost import linear_cost

N_REPLICAS, N_REPETITIONS, N_REQUESTS, N_WARM = 4, 16, 12_000, 2_000
CONFIDENCE = 0.999
STEP_NS, MEAN_TOKENS, LOAD = 1_000_000, 20, 0.8
COST = linear_cost(launch_s=STEP_NS * 1e-9)


def engine(n_slots, **changes):
    """A step of all slots takes as long as of one: servers side by side."""
    values = {
        "num_blocks": 2000,
        "max_model_len": 4096,
        "max_num_seqs": n_slots,
        "max_num_batched_tokens": 64,
    }
    return SchedulerConfig(**values, enable_prefix_caching=False, async_scheduling=False, **changes)


@cache
def requests_of(seed):
    """Poisson arrivals for a load of 0.8 on all servers together, geometric lengths."""
    rng = np.random.default_rng([20261121, seed])
    arrival = np.cumsum(
        rng.exponential(MEAN_TOKENS * STEP_NS / LOAD / N_REPLICAS, N_REQUESTS)
    ).astype(np.int64)
    return demand(
        arrival,
        np.full(N_REQUESTS, 8),
        np.minimum(rng.geometric(1 / MEAN_TOKENS, N_REQUESTS), 4000),
    )


@cache
def mean_waits(router):
    """Mean wait of each repetition, the first requests left out; "central" is one queue for all servers."""
    waits = []
    for seed in range(N_REPETITIONS):
        if router == "central":
            table = simulate(requests_of(seed), engine(N_REPLICAS), COST).requests
        else:
            cluster = ClusterConfig(
                engine=engine(1), n_replicas=N_REPLICAS, router=router, seed=seed
            )
            table = simulate_cluster(requests_of(seed), cluster, COST).requests
        waits.append(np.mean((table.admitted_ns - table.intended_send_ns)[N_WARM:]))
    return np.array(waits)


def interval(values):
    """Two-sided t interval of the mean of independent repetitions."""
    half = (
        stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1)
        * np.std(values, ddof=1)
        / np.sqrt(len(values))
    )
    return np.mean(values) - half, np.mean(values) + half


def test_random_routing_is_as_many_queues_of_one_server():
    """A Poisson stream split at random is Poisson streams: Pollaczek and Khinchine's wait of each, E[S^2] = m (2m - 1)."""
    low, high = interval(mean_waits("random"))
    assert low <= LOAD / (2 * (1 - LOAD)) * (2 * MEAN_TOKENS - 1) * STEP_NS <= high


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ("round-robin", "random"),
        pytest.param("power-of-two", "random", marks=pytest.mark.slow),
        pytest.param("least-loaded", "power-of-two", marks=pytest.mark.slow),
        ("least-loaded", "round-robin"),
        ("central", "least-loaded"),
    ],
)
def test_who_knows_more_waits_less(better, worse):
    """The same requests on both: the difference of the mean waits is above 0."""
    low, _ = interval(mean_waits(worse) - mean_waits(better))
    assert low > 0


@pytest.mark.parametrize(
    "router", ["random", "round-robin", "least-loaded", "power-of-two", "class-aware"]
)
def test_a_replica_is_busy_as_long_as_its_tokens_take(router):
    """The utilisation law, to the nanosecond: each token takes a step of its own."""
    cluster = ClusterConfig(engine=engine(1), n_replicas=N_REPLICAS, router=router)
    run = simulate_cluster(requests_of(0), cluster, COST, record_steps=False)
    shares = replica_shares(run)
    assert [share.output_tokens * STEP_NS for share in shares] == run.busy_ns.tolist()
    assert sum(share.n_requests for share in shares) == N_REQUESTS
    assert [share.busy_fraction for share in shares] == (run.busy_ns / run.end_ns).tolist()


def sessions(n_sessions, n_turns):
    """Each turn's prompt is all that was said before and 64 tokens more; blocks of 16."""
    rng = np.random.default_rng(3)
    n_requests, spoken = n_sessions * n_turns, 64 + 32
    session, turn = np.divmod(np.arange(n_requests), n_turns)
    prompt = turn * spoken + 64
    n_shared = (prompt + 32) // 16
    ids = np.concatenate(
        [which * 10_000 + np.arange(n) for which, n in zip(session, n_shared, strict=True)]
    )
    requests = demand(
        np.where(
            turn == 0, np.repeat(np.sort(rng.integers(0, 20_000_000_000, n_sessions)), n_turns), 0
        ),
        prompt,
        np.full(n_requests, 32),
        follows=np.where(turn == 0, -1, np.arange(n_requests) - 1),
        think_ns=np.full(n_requests, 100_000_000),
    )
    return with_contents(
        requests, 16, SharedBlocks(start=np.concatenate([[0], np.cumsum(n_shared)]), ids=ids)
    )


def test_sessions_find_their_prefixes_where_they_were_sent_before():
    """All turns but the first find all full blocks of what was said.

    A router that does not care, in one of four cases or so.
    """
    requests = sessions(120, 6)
    config = SchedulerConfig(
        num_blocks=20_000, max_model_len=4096, max_num_seqs=64, async_scheduling=False
    )
    cached = {}
    for router in ("prefix-affine", "round-robin", "least-loaded", "random"):
        cluster = ClusterConfig(engine=config, n_replicas=N_REPLICAS, router=router)
        table = simulate_cluster(
            requests, cluster, linear_cost(launch_s=5e-3, per_row_s=2e-5)
        ).requests
        assert np.all(table.status == RequestStatus.LENGTH)
        cached[router] = int(table.cached_tokens.sum())
    alone = simulate(requests, config, linear_cost(launch_s=5e-3, per_row_s=2e-5)).requests
    assert cached["prefix-affine"] == int(alone.cached_tokens.sum())
    assert (
        max(cached["round-robin"], cached["least-loaded"], cached["random"])
        < 0.6 * cached["prefix-affine"]
    )


@pytest.mark.parametrize(("load", "code"), [(0.5, None), (1.5, "overload")])
def test_the_overload_of_a_cluster_is_named(load, code):
    cluster = ClusterConfig(engine=engine(1), n_replicas=N_REPLICAS, router="least-loaded")
    requests = requests_of(0)
    requests = requests._replace(arrival_ns=(requests.arrival_ns * LOAD / load).astype(np.int64))
    cautions = cautions_of(
        simulate_cluster(requests, cluster, COST, record_steps=False), cluster.engine
    )
    assert [caution.code for caution in cautions] == ([] if code is None else [code])


def test_one_replica_that_has_too_much_to_do_is_named():
    """Nine in ten requests are of the class that replica 0 serves alone."""
    requests = requests_of(0)
    classes = (np.random.default_rng(1).random(N_REQUESTS) > 0.9).astype(np.int32)
    cluster = ClusterConfig(
        engine=engine(1),
        n_replicas=N_REPLICAS,
        router="class-aware",
        class_replicas=((0,), (1, 2, 3)),
    )
    slow = requests._replace(class_index=classes, arrival_ns=requests.arrival_ns * 2)
    cautions = cautions_of(
        simulate_cluster(slow, cluster, COST, record_steps=False), cluster.engine
    )
    assert [caution.code for caution in cautions] == ["overload", "uneven"]
    assert cautions[1].text.endswith("not on the others: replica 0")
