"""Are decode steps that a replica of several takes later the same as each in its time?

Where parts are recorded each step is taken for itself, as the plain simulator does.
"""

import numpy as np
import pytest
from cluster_strategies import settings_of_clusters, trtllm_configs
from disaggregation_strategies import settings_of_disaggregated_runs
from examples import examples
from hypothesis import given, strategies as st
from reference.cluster_run import simulate_cluster_plainly
from simulator_strategies import assert_equal, configs, demands, stateful_configs, windowed_configs
from test_groups import settings_of_groups
from whole_fleets import PoolCosts, simulate_cluster, simulate_disaggregated, simulate_groups

from inferometer.records.types import ABSENT
from inferometer.simulate import run
from inferometer.simulate.demand import demand
from inferometer.simulate.fleet import ROUTERS, ClusterConfig
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

UNTIL = st.none() | st.integers(0, 20_000)


@st.composite
def quick_costs(draw):
    """Steps of 10 to 60 ns, so that arrivals find replicas in the middle of runs."""
    return linear_cost(
        launch_s=draw(st.sampled_from([1e-8, 5e-8])),
        per_row_s=draw(st.sampled_from([0.0, 1e-9])),
        per_context_token_s=draw(st.sampled_from([0.0, 1e-10])),
    )


@st.composite
def quiet_clusters(draw, engines):
    """Few requests at once, so that runs are long."""
    engine = draw(engines)
    routers = [
        router for router in ROUTERS if router != "prefix-affine" or engine.enable_prefix_caching
    ]
    cluster = ClusterConfig(
        engine=engine,
        n_replicas=draw(st.integers(1, 4)),
        router=draw(st.sampled_from(routers)),
        seed=draw(st.integers(0, 5)),
    )
    requests = draw(demands(engine, scale=draw(st.sampled_from([1, 10, 100]))))
    return cluster, requests, draw(quick_costs())


def check_same(simulate, *what, **until):
    at_once = simulate(*what, **until)
    one_by_one = simulate(*what, record_parts=True, **until)
    assert_equal(at_once._replace(parts=one_by_one.parts), one_by_one)
    unrecorded = simulate(*what, record_steps=False, **until)
    assert_equal(unrecorded._replace(steps=at_once.steps, parts=None, holes=at_once.holes), at_once)
    return at_once


VLLM = configs() | windowed_configs() | stateful_configs()
KINDS = pytest.mark.parametrize(
    "engines",
    [VLLM, pytest.param(trtllm_configs(), marks=pytest.mark.slow)],
    ids=["vllm", "trtllm"],
)


@KINDS
@examples(400)
@given(st.data(), UNTIL)
def test_planned_steps_of_a_cluster_are_as_each_in_its_time(engines, data, until_ns):
    cluster, requests, cost = data.draw(quiet_clusters(engines))
    check_same(simulate_cluster, requests, cluster, cost, until_ns=until_ns)


@examples(200)
@given(settings_of_clusters("vllm"), UNTIL)
def test_planned_steps_of_full_replicas(setting, until_ns):
    cluster, requests, cost = setting
    check_same(simulate_cluster, requests, cluster, cost, until_ns=until_ns)


@examples(400)
@given(settings_of_disaggregated_runs(), quick_costs(), UNTIL)
def test_planned_steps_of_decode_replicas(setting, cost, until_ns):
    """Transfers that take no time make several events of one instant."""
    config, requests, costs = setting
    for one in (costs, PoolCosts(cost, cost)):
        check_same(simulate_disaggregated, requests, config, one, until_ns=until_ns)


@examples(200)
@given(settings_of_groups("vllm"), UNTIL)
def test_planned_steps_of_groups(setting, until_ns):
    placement, requests = setting
    check_same(simulate_groups, requests, placement, until_ns=until_ns)


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("n_rows", [64, 1 << 16])
@pytest.mark.parametrize(("num_blocks", "mean_ns"), [(60, 1e7), (300, 3e7), (5000, 1e8)])
def test_hundreds_of_requests(is_async, n_rows, num_blocks, mean_ns, monkeypatch):
    """With patience and followers, in small and large logs, as the plain simulator has it."""
    monkeypatch.setattr(run, "_ROWS", n_rows)
    rng = np.random.default_rng(8)
    n_requests = 300
    arrival = np.cumsum(rng.exponential(mean_ns, n_requests)).astype(np.int64)
    most = rng.integers(1, 200, n_requests)
    follows = np.where(np.arange(n_requests) % 7 == 3, np.arange(n_requests) - 1, -1)
    is_leaving = rng.random(n_requests) < 0.1
    requests = demand(
        arrival,
        rng.integers(1, 400, n_requests),
        np.minimum(most, rng.integers(1, 400, n_requests)),
        max_tokens=most,
        follows=follows,
        think_ns=np.full(n_requests, 10_000_000),
        abort_ns=np.where(is_leaving, np.where(follows < 0, arrival, 0) + 50_000_000, ABSENT),
    )
    engine = SchedulerConfig(
        num_blocks=num_blocks, max_model_len=640, max_num_seqs=32, async_scheduling=is_async
    )
    cluster = ClusterConfig(engine=engine, n_replicas=3, router="least-loaded")
    cost = linear_cost(
        launch_s=1e-3, per_row_s=2e-6, per_context_token_s=1e-8, per_prefill_pair_s=1e-10
    )
    fast = check_same(simulate_cluster, requests, cluster, cost)
    assert_equal(fast, simulate_cluster_plainly(requests, cluster, cost))
    assert (fast.requests.n_preemptions.sum() > 0) == (num_blocks == 60)
