"""Do both simulators say the same to the nanosecond, and is nothing ever lost?"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from examples import examples
from hypothesis import assume, given, strategies as st
from reference.simulator import simulate_plainly
from reference.vllm import Scheduler
from simulator_strategies import assert_equal, settings_of_a_run, settings_of_a_stateful_run

from inferometer.records.types import ABSENT, RequestStatus
from inferometer.simulate.demand import SharedBlocks, demand, with_contents
from inferometer.simulate.outcome import Outcome
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.sglang_config import SglangConfig
from inferometer.simulate.step_cost import linear_cost
from inferometer.simulate.trtllm_config import TrtllmConfig

DONE = (RequestStatus.STOPPED, RequestStatus.LENGTH)


@examples(300)
@given(settings_of_a_run() | settings_of_a_stateful_run(), st.none() | st.integers(0, 1500))
def test_kernel_equals_reference(run, until_ns):
    config, requests, cost = run
    fast = simulate(requests, config, cost, until_ns=until_ns, record_parts=True)
    plain = simulate_plainly(requests, config, cost, until_ns=until_ns, record_parts=True)
    assert_equal(fast, plain)


WINDOWS = {"sliding_window": 200, "num_sliding_groups": 2}
"""Beside a group of layers that attend to all."""


@pytest.mark.parametrize(
    ("is_async", "num_blocks", "windows"),
    [(False, 700, {}), (True, 700, {}), (True, 5000, {}), (True, 700, WINDOWS)],
)
def test_kernel_equals_reference_at_size(is_async, num_blocks, windows):
    """Hundreds of requests of hundreds of tokens, with a cache that is too small for all of them and one that is not."""
    rng = np.random.default_rng(5)
    n_requests = 400
    arrival = np.cumsum(rng.exponential(2e6, n_requests)).astype(np.int64)
    requests = demand(
        arrival,
        rng.integers(1, 900, n_requests),
        rng.integers(1, 120, n_requests),
        max_tokens=np.full(n_requests, 150),
    )
    n_shared = rng.integers(0, 20, n_requests) % (requests.prompt_tokens // 16 + 1)
    families = rng.integers(0, 5, n_requests)
    ids = np.concatenate(
        [family * 100 + np.arange(n) for family, n in zip(families, n_shared, strict=True)]
    )
    requests = with_contents(
        requests, 16, SharedBlocks(start=np.concatenate([[0], np.cumsum(n_shared)]), ids=ids)
    )
    config = SchedulerConfig(
        num_blocks=num_blocks,
        max_model_len=2048,
        max_num_seqs=64,
        async_scheduling=is_async,
        **windows,
    )
    cost = linear_cost(
        launch_s=1e-3, per_row_s=2e-6, per_context_token_s=1e-8, per_prefill_pair_s=1e-10
    )
    fast, plain = simulate(requests, config, cost), simulate_plainly(requests, config, cost)
    assert fast.outcome is plain.outcome is Outcome.FINISHED
    assert all(
        np.array_equal(one, other)
        for one, other in zip(fast.requests + fast.steps, plain.requests + plain.steps, strict=True)
    )
    assert (fast.requests.n_preemptions.sum() > 0) == (num_blocks == 700)
    assert fast.requests.cached_tokens.sum() > 0


@examples(200)
@given(settings_of_a_run())
def test_every_request_is_accounted_for(run):
    config, requests, cost = run
    outcome, _, table, steps, _, n_never_sent, *_ = simulate(requests, config, cost)
    assert len(table.status) + n_never_sent == requests.n_requests
    assert len(set(table.request_index)) == len(table.status)
    requests = requests._replace(
        **{
            name: getattr(requests, name)[table.request_index]
            for name in ("prompt_tokens", "output_tokens")
        }
    )
    is_done = np.isin(table.status, DONE)
    is_refused = table.status == RequestStatus.REJECTED
    expected = np.minimum(requests.output_tokens, config.max_model_len - requests.prompt_tokens)
    assert np.array_equal(table.output_tokens[is_done], expected[is_done])
    assert np.array_equal(
        is_refused,
        (requests.prompt_tokens >= config.max_model_len) & (table.status != RequestStatus.ABORTED),
    )
    assert outcome in {Outcome.FINISHED, Outcome.STUCK, Outcome.LIVELOCK}
    assert (outcome is Outcome.FINISHED) == (RequestStatus.UNFINISHED not in table.status)
    assert np.all((table.finished_ns == ABSENT) == (table.status == RequestStatus.UNFINISHED))
    assert np.all(table.first_token_ns[is_done] <= table.finished_ns[is_done])
    assert np.all(table.intended_send_ns[is_done] <= table.admitted_ns[is_done])
    assert np.all(table.admitted_ns[is_done] < table.first_token_ns[is_done])
    assert np.all(steps.start_ns[1:] >= steps.start_ns[:-1] + steps.duration_ns[:-1])
    assert np.all(steps.prefill_tokens + steps.n_decode_requests <= config.max_num_batched_tokens)
    assert np.all(steps.kv_blocks_used < config.num_blocks)


@examples(200)
@given(settings_of_a_run(can_abort=False, can_stop=False))
def test_tokens_are_conserved(run):
    """Without preemption each request computes its prompt but what was cached, and each output but the last, once."""
    config, requests, cost = run
    outcome, _, table, steps, *_ = simulate(requests, config, cost)
    if outcome is not Outcome.FINISHED or table.n_preemptions.any():
        return
    served = table.status != RequestStatus.REJECTED
    needed = (table.prompt_tokens + table.output_tokens - 1 - table.cached_tokens)[served].sum()
    assert (steps.prefill_tokens + steps.n_decode_requests).sum() == needed


@examples(100)
@given(settings_of_a_run())
def test_blocks_are_never_owned_twice_nor_lost(run):
    config, requests, cost = run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "schedule", after(Scheduler.schedule, check_blocks))
        patch.setattr(Scheduler, "update", after(Scheduler.update, check_blocks))
        simulate_plainly(requests, config, cost)


def check_blocks(scheduler):
    pool, config = scheduler.kv_cache.pool, scheduler._config
    owned = [block for request in scheduler.running for block in request.blocks]
    counts = np.bincount(owned, minlength=config.num_blocks)
    assert np.array_equal(counts, pool.ref_count)
    assert sorted(pool.free_queue) == [
        block for block in range(1, config.num_blocks) if counts[block] == 0
    ]
    for request in scheduler.running:
        assert len(set(request.blocks)) == len(request.blocks)
        assert len(request.blocks) * config.block_size >= request.num_computed_tokens
    assert len(scheduler.running) <= config.max_num_active


def after(method, check):
    def checked(scheduler, *arguments):
        result = method(scheduler, *arguments)
        check(scheduler)
        return result

    return checked


@examples(100)
@given(settings_of_a_run())
def test_a_cut_run_is_the_beginning_of_the_whole(run):
    config, requests, cost = run
    whole = simulate(requests, config, cost)
    until_ns = whole.end_ns // 2
    # What happens in the very nanosecond of the cut may fall on either side of it.
    assume(
        not any(
            np.any(getattr(whole.requests, name) == until_ns)
            for name in ("first_token_ns", "finished_ns", "admitted_ns")
        )
    )
    part = simulate(requests, config, cost, until_ns=until_ns)
    n_rows = len(part.requests.status)
    for name in ("first_token_ns", "finished_ns", "admitted_ns"):
        late, early = getattr(whole.requests, name)[:n_rows], getattr(part.requests, name)
        assert np.array_equal(whole.requests.request_index[:n_rows], part.requests.request_index)
        assert np.array_equal(early, np.where(late <= until_ns, late, ABSENT)), name
    n_steps = len(part.steps.start_ns)
    assert np.array_equal(part.steps.start_ns, whole.steps.start_ns[:n_steps])


def test_what_never_fits_is_named():
    """vLLM starts with exactly the blocks of one longest request, of which the null block takes one."""
    config = SchedulerConfig(
        num_blocks=4,
        max_model_len=64,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        enable_prefix_caching=False,
    )
    outcome, _, table, *_ = simulate(
        demand([0, 5], [60, 10], [2, 2]), config, linear_cost(launch_s=1e-3)
    )
    assert outcome is Outcome.STUCK
    assert np.all(table.status == RequestStatus.UNFINISHED)


@pytest.mark.slow
def test_a_livelock_is_named():
    """Two long prompts that throw each other out: priorities, a capped prefill and no reservation of the whole prompt."""
    config = SchedulerConfig(
        num_blocks=9,
        max_model_len=8,
        max_num_seqs=4,
        max_num_batched_tokens=8,
        block_size=1,
        enable_prefix_caching=False,
        policy="priority",
        scheduler_reserve_full_isl=False,
        long_prefill_token_threshold=1,
        async_scheduling=False,
    )
    found = set()
    rng = np.random.default_rng(0)
    for _ in range(300):
        requests = demand(
            np.zeros(5), rng.integers(4, 8, 5), np.ones(5), priority=rng.integers(0, 3, 5)
        )
        cost = linear_cost(launch_s=1e-3)
        outcome, _, table, *_ = simulate(requests, config, cost)
        assert outcome == simulate_plainly(requests, config, cost).outcome
        found.add(outcome)
        if outcome is Outcome.LIVELOCK:
            assert RequestStatus.UNFINISHED in table.status
    assert Outcome.LIVELOCK in found


def test_threads_change_nothing():
    config = SchedulerConfig(num_blocks=300, max_model_len=1024, max_num_seqs=32)
    cost = linear_cost(launch_s=1e-3, per_row_s=1e-6)
    rng = np.random.default_rng(1)
    workloads = [
        demand(
            np.sort(rng.integers(0, 10**9, 300)),
            rng.integers(1, 500, 300),
            rng.integers(1, 80, 300),
        )
        for _ in range(4)
    ]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda requests: simulate(requests, config, cost), workloads * 4))
    for requests, run in zip(workloads * 4, together, strict=True):
        alone = simulate(requests, config, cost)
        assert all(
            np.array_equal(one, other)
            for one, other in zip(
                alone.requests + alone.steps, run.requests + run.steps, strict=True
            )
        )


def _of(kind, n_blocks):
    if kind == "sglang":
        return SglangConfig(max_total_num_tokens=16 * n_blocks, context_length=4096, page_size=16)
    if kind == "trtllm":
        return TrtllmConfig(num_blocks=n_blocks, max_seq_len=4096, tokens_per_block=16)
    return SchedulerConfig(num_blocks=n_blocks, max_model_len=4096, max_num_seqs=8)


@pytest.mark.parametrize(
    "kind", ["vllm", *(pytest.param(one, marks=pytest.mark.slow) for one in ("sglang", "trtllm"))]
)
def test_blocks_that_no_request_can_take_cost_nothing(kind):
    """A toy model on a large GPU has 100 million: seconds and gigabytes, for as many records."""
    rng, n = np.random.default_rng(7), 60
    prompt, output = rng.integers(1, 600, n), rng.integers(1, 90, n)
    requests = demand(np.sort(rng.integers(0, 10**9, n)), prompt, output)
    starts = np.concatenate([[0], np.cumsum(prompt // 16)]).astype(np.int64)
    ids = np.concatenate(
        [np.where(np.arange(k) < 9, np.arange(k) + 100 * (i % 3), 1000 * i + np.arange(k))
         for i, k in enumerate(prompt // 16)]
    )  # fmt: skip
    shared = with_contents(requests, 16, SharedBlocks(start=starts, ids=ids))
    n_enough = int((-(-(prompt + output) // 16)).sum())  # none is taken twice
    few, many = (
        simulate(shared, _of(kind, n_blocks), linear_cost(launch_s=5e-3), record_steps=True)
        for n_blocks in (n_enough, 10**8)
    )
    assert (few.requests.cached_tokens > 0).any()
    assert_equal(few, many)
