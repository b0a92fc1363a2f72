"""Does a simulator get the requests that a plan says, with the contents that prefix caching finds again?"""

import numpy as np
import pytest

from inferometer.inputs.workload.plan import NONE, block_contents, request_plan
from inferometer.inputs.workload.reading import resolve_workload, with_changes
from inferometer.inputs.workload.replay import draw_workload
from inferometer.records.types import ABSENT
from inferometer.simulate.demand import contents_checked
from inferometer.simulate.run import delayed, demand_of, simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost


def plan_of(name="long-context", **changes):
    return draw_workload(with_changes(resolve_workload(name), changes, where="here")).plan


def test_columns_arrive():
    plan = plan_of(n_requests=300, tenants={"n_tenants": 3})
    assert len(np.unique(plan.tenant_index)) == 3
    requests = demand_of(plan, 16)
    for name in (
        "prompt_tokens",
        "output_tokens",
        "max_tokens",
        "priority",
        "class_index",
        "tenant_index",
        "follows",
        "joins",
        "accompanies",
    ):
        assert np.array_equal(getattr(requests, name), getattr(plan, name)), name
    leads = plan.follows == NONE
    assert np.array_equal(requests.arrival_ns[leads], plan.arrival_ns[leads])
    assert np.array_equal(requests.think_ns[~leads], plan.think_ns[~leads])
    assert np.all(requests.abort_ns == ABSENT)
    assert np.array_equal(requests.contents, block_contents(plan, 16).ids)


@pytest.mark.parametrize("block_size", [16, 48])
def test_contents_fit_the_engine(block_size):
    plan = plan_of(n_requests=100)
    config = SchedulerConfig(num_blocks=20_000, max_model_len=140_000, block_size=block_size)
    requests = demand_of(plan, block_size)
    assert contents_checked(requests, config) is requests
    assert demand_of(plan, block_size, has_contents=False).contents.size == 0


def test_an_endless_cache_finds_every_shared_block():
    """One request at a time and blocks for all: the hits are the shared prefixes, cut to blocks.

    Neither is the last token of a prompt a hit, nor is the last token of an answer in the cache: no
    step computes its keys.
    """
    plan = plan_of(n_requests=60, arrivals={"kind": "closed", "concurrency": 1})
    config = SchedulerConfig(
        num_blocks=200_000, max_model_len=140_000, max_num_batched_tokens=8192, block_size=16
    )
    table = simulate(demand_of(plan, 16), config, linear_cost(launch_s=1e-3)).requests
    computed = (plan.prompt_tokens + plan.output_tokens - 1)[plan.prefix_request]
    expected = (
        np.minimum(np.minimum(plan.prefix_tokens, computed), plan.prompt_tokens - 1) // 16 * 16
    )
    assert plan.prefix_tokens.sum() > 0.2 * plan.prompt_tokens.sum()
    assert np.array_equal(table.cached_tokens, expected)


def test_patience_counts_from_the_arrival():
    columns = {"arrival_ns": [5, 9], "prompt_tokens": [4, 4], "output_tokens": [2, 2]}
    plan = request_plan("here", **columns, abort_after_ns=[NONE, 10])
    assert demand_of(plan, 16).abort_ns.tolist() == [ABSENT, 19]


def test_the_patience_of_a_follower_begins_with_its_sending():
    plan = request_plan(
        "here",
        arrival_ns=[5, NONE],
        prompt_tokens=[4, 4],
        output_tokens=[2, 2],
        follows=[NONE, 0],
        think_ns=[NONE, 0],
        abort_after_ns=[NONE, 10],
    )
    assert demand_of(plan, 16).abort_ns.tolist() == [ABSENT, 10]
    assert delayed(demand_of(plan, 16), 1e-6).abort_ns.tolist() == [ABSENT, 10]
