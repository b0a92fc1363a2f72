"""Is a run of decode steps that is taken at once the same as its steps one by one?

Where parts are recorded each step is taken for itself: that, and the plain simulator, are the truth.
"""

import numpy as np
import pytest
from examples import examples
from hypothesis import given, strategies as st
from reference.simulator import simulate_plainly
from simulator_strategies import (
    assert_equal,
    configs,
    demands,
    settings_of_batches,
    stateful_configs,
    windowed_configs,
)

from inferometer.records.types import ABSENT
from inferometer.simulate import run
from inferometer.simulate.batch_config import StaticBatching
from inferometer.simulate.demand import SharedBlocks, demand, with_contents
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

COST = linear_cost(
    launch_s=1e-3, per_row_s=2e-6, per_context_token_s=1e-8, per_prefill_pair_s=1e-10
)


@st.composite
def quiet_runs(draw):
    """Few requests at once, so that runs are long, in steps of 10 to 60 ns."""
    config = draw(configs() | windowed_configs() | stateful_configs())
    requests = draw(demands(config, scale=draw(st.sampled_from([1, 10, 100]))))
    cost = linear_cost(
        launch_s=draw(st.sampled_from([1e-8, 5e-8])),
        per_row_s=draw(st.sampled_from([0.0, 1e-9])),
        per_context_token_s=draw(st.sampled_from([0.0, 1e-10])),
    )
    return config, requests, cost


def check_same(requests, config, cost, **until):
    at_once = simulate(requests, config, cost, **until)
    one_by_one = simulate(requests, config, cost, record_parts=True, **until)
    assert_equal(at_once._replace(parts=one_by_one.parts), one_by_one)
    return at_once


@examples(400)
@given(quiet_runs(), st.none() | st.integers(0, 20_000))
def test_at_once_is_as_one_by_one(run, until_ns):
    config, requests, cost = run
    check_same(requests, config, cost, until_ns=until_ns)


@examples(400)
@given(settings_of_batches(), st.none() | st.integers(0, 40_000))
def test_steps_of_a_batch_at_once_are_as_one_by_one(run, until_ns):
    config, requests, cost = run
    check_same(requests, config, cost, until_ns=until_ns)


@pytest.mark.parametrize("is_streaming", [False, True])
def test_long_batches_of_unlike_answers_are_as_one_by_one(is_streaming):
    """Some clients leave while their batch runs, others come meanwhile."""
    rng = np.random.default_rng(5)
    n_requests = 60
    arrival = np.cumsum(rng.exponential(2e7, n_requests)).astype(np.int64)
    is_leaving = rng.random(n_requests) < 0.2
    requests = demand(
        arrival,
        rng.integers(1, 200, n_requests),
        rng.integers(1, 120, n_requests),
        abort_ns=np.where(is_leaving, arrival + 90_000_000, ABSENT),
    )
    batching = StaticBatching(
        max_batch_size=4, is_streaming=is_streaming, num_blocks=200, max_model_len=512
    )
    found = check_same(requests, batching, COST)
    assert found.steps is not None
    assert len(found.steps.start_ns) > 500


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(("num_blocks", "mean_ns"), [(60, 3e7), (300, 8e7), (5000, 3e8)])
def test_hundreds_of_requests(is_async, num_blocks, mean_ns, monkeypatch):
    """With prefixes, patience, followers, logs of 64 rows, and memory that is too small or is not."""
    monkeypatch.setattr(run, "_ROWS", 64)
    rng = np.random.default_rng(8)
    n_requests = 200
    arrival = np.cumsum(rng.exponential(mean_ns, n_requests)).astype(np.int64)
    prompt, most = rng.integers(1, 400, n_requests), rng.integers(1, 200, n_requests)
    follows = np.where(np.arange(n_requests) % 7 == 3, np.arange(n_requests) - 1, -1)
    is_leaving = rng.random(n_requests) < 0.1
    requests = demand(
        arrival,
        prompt,
        np.minimum(most, rng.integers(1, 400, n_requests)),
        max_tokens=most,
        follows=follows,
        think_ns=np.full(n_requests, 10_000_000),
        abort_ns=np.where(is_leaving, np.where(follows < 0, arrival, 0) + 50_000_000, ABSENT),
    )
    n_shared = rng.integers(0, 20, n_requests) % (prompt // 16 + 1)
    families = rng.integers(0, 3, n_requests)
    ids = np.concatenate(
        [family * 100 + np.arange(n) for family, n in zip(families, n_shared, strict=True)]
    )
    start = np.concatenate([[0], np.cumsum(n_shared)])
    requests = with_contents(requests, 16, SharedBlocks(start=start, ids=ids))
    config = SchedulerConfig(
        num_blocks=num_blocks, max_model_len=640, max_num_seqs=32, async_scheduling=is_async
    )
    fast = check_same(requests, config, COST)
    plain = simulate_plainly(requests, config, COST)
    assert_equal(fast, plain)
    assert (fast.requests.n_preemptions.sum() > 0) == (num_blocks == 60)
    assert fast.requests.cached_tokens.sum() > 0
