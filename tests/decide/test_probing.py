"""Is a probe of two pools without a prefix cache, where prompts share nothing, what it is with one?"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
from served_pages import poisson

from inferometer.decide import probing
from inferometer.simulate import run, step_cost
from inferometer.simulate.fleet import ClusterConfig, Fleet, KvLink, PrefillReplicas
from inferometer.simulate.scheduler_config import SchedulerConfig

STEPS = step_cost.linear_cost(launch_s=10e-3, per_row_s=2e-5)
PLAN = poisson(30.0, 20, seed=1, prompt=(200, 0.3), output=(60, 0.3))


def pools(num_blocks):
    engine = SchedulerConfig(num_blocks=num_blocks, max_model_len=900)
    replicas = ClusterConfig(engine=engine, n_replicas=2, router="least-loaded")
    link = KvLink(block_bytes=16 * 131_072, bytes_per_s=50e9)
    prefill = PrefillReplicas(replicas=replicas, step_times=STEPS, link=link)
    return Fleet(replicas=replicas, step_times=STEPS, prefill=prefill)


@pytest.mark.parametrize(("num_blocks", "n_simulations"), [(9000, 1), (130, 2)])
def test_two_pools_are_simulated_with_a_cache_only_where_one_is_of_use(
    num_blocks, n_simulations, monkeypatch
):
    """A preempted request finds its own blocks."""
    simulate, with_cache = run.run, []

    def noted(fleet, plan, **recording):
        with_cache.append(fleet.has_contents)
        return simulate(fleet, plan, **recording)

    monkeypatch.setattr(run, "run", noted)
    found = probing.run_plan(pools(num_blocks), PLAN).requests
    assert with_cache == [False, True][:n_simulations]
    expected = simulate(pools(num_blocks), PLAN).requests
    for name in expected._fields:
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name


def test_a_shared_prefix_is_looked_for(monkeypatch):
    prefixes = np.where(np.arange(PLAN.n_requests) > 0, 16, 0).astype(np.int32)
    firsts = np.where(prefixes > 0, 0, -1).astype(PLAN.prefix_request.dtype)
    plan = PLAN._replace(prefix_tokens=prefixes, prefix_request=firsts)
    fleet = pools(9000)
    known = probing._without_idle_cache(fleet, plan)
    assert known is fleet
    affine = replace(fleet.prefill.replicas, router="prefix-affine")
    fleet = replace(fleet, prefill=replace(fleet.prefill, replicas=affine))
    assert probing._without_idle_cache(fleet, PLAN) is fleet
