"""Is TensorRT-LLM's in-flight batching simulated by its rules, and alike by both simulators?"""

import time

import numpy as np
import pytest
from examples import examples
from hypothesis import given, strategies as st
from reference.simulator import simulate_plainly
from reference.trtllm import TrtllmScheduler
from reference.trtllm_chunks import chunk_sizes
from simulator_strategies import assert_equal, costs, demands

from inferometer.errors import SpecError
from inferometer.records.types import ABSENT, RequestStatus
from inferometer.simulate.demand import SharedBlocks, demand, with_contents
from inferometer.simulate.outcome import Outcome
from inferometer.simulate.run import simulate
from inferometer.simulate.simulated_run import cautions_of
from inferometer.simulate.step_cost import linear_cost
from inferometer.simulate.trtllm_config import CAPACITY_POLICIES, CHUNKING_POLICIES, TrtllmConfig

COST = linear_cost(launch_s=1e-3)
MS = 1_000_000


@st.composite
def configs(draw):
    tokens_per_block = draw(st.sampled_from([1, 2, 4, 16]))
    max_seq_len = draw(st.integers(2, 60))
    is_chunked, policy = draw(st.booleans()), draw(st.sampled_from(CAPACITY_POLICIES))
    n_least = tokens_per_block if is_chunked else max_seq_len if policy == "MAX_UTILIZATION" else 1
    return TrtllmConfig(
        num_blocks=-(-max_seq_len // tokens_per_block) + draw(st.sampled_from([0, 1, 3, 10, 100])),
        max_seq_len=max_seq_len,
        max_batch_size=draw(st.integers(1, 12)),
        max_num_tokens=max(draw(st.sampled_from([4, 16, 64, 256])), n_least),
        tokens_per_block=tokens_per_block,
        capacity_scheduler_policy=policy,
        enable_chunked_prefill=is_chunked,
        enable_block_reuse=draw(st.sampled_from([True, True, False])),
        enable_prefix_aware_scheduling=draw(st.booleans()),
        context_chunking_policy=draw(st.sampled_from(CHUNKING_POLICIES)),
        disable_overlap_scheduler=draw(st.booleans()),
    )


@st.composite
def settings_of_a_run(draw, **kinds):
    config = draw(configs())
    return config, draw(demands(config, **kinds)), draw(costs())


def run_of(config, requests):
    """Both simulators' result, which is one."""
    fast = simulate(requests, config, COST, record_parts=True)
    assert_equal(fast, simulate_plainly(requests, config, COST, record_parts=True))
    assert fast.outcome is Outcome.FINISHED
    return fast


@examples(300)
@given(settings_of_a_run(), st.none() | st.integers(0, 1500))
def test_kernel_equals_reference(run, until_ns):
    config, requests, cost = run
    fast = simulate(requests, config, cost, until_ns=until_ns, record_parts=True)
    assert_equal(
        fast, simulate_plainly(requests, config, cost, until_ns=until_ns, record_parts=True)
    )


@st.composite
def quiet_runs(draw):
    """Few events, so that runs of steps are long, in steps of 10 to 60 ns."""
    config = draw(configs())
    requests = draw(demands(config, scale=draw(st.sampled_from([1, 10, 100]))))
    cost = linear_cost(
        launch_s=draw(st.sampled_from([1e-8, 5e-8])),
        per_row_s=draw(st.sampled_from([0.0, 1e-9])),
        per_context_token_s=draw(st.sampled_from([0.0, 1e-10])),
    )
    return config, requests, cost


@examples(400)
@given(quiet_runs(), st.none() | st.integers(0, 20_000))
def test_steps_at_once_are_as_one_by_one(run, until_ns):
    """Where parts are recorded each step is taken for itself."""
    config, requests, cost = run
    at_once = simulate(requests, config, cost, until_ns=until_ns)
    assert_equal(at_once, simulate_plainly(requests, config, cost, until_ns=until_ns))


def crowd(seed, policy, **more):
    """Requests most of which wait, for tokens of a step or for blocks; some share prefixes or leave."""
    rng = np.random.default_rng(seed)
    n_requests = 120
    arrival = np.sort(rng.integers(0, 200 * MS, n_requests))
    prompt, output = rng.integers(1, 257, n_requests), rng.integers(1, 150, n_requests)
    is_leaving = rng.random(n_requests) < 0.2
    abort = np.where(is_leaving, arrival + rng.integers(0, 900, n_requests) * MS, ABSENT)
    more_tokens = rng.integers(0, 2, n_requests) * 20  # of these the engine does not know the end
    requests = demand(arrival, prompt, output, max_tokens=output + more_tokens, abort_ns=abort)
    n_shared = rng.integers(0, 8, n_requests) % (prompt // 32 + 1)
    families = rng.integers(0, 12, n_requests)
    ids = np.concatenate(
        [100 * family + np.arange(n) for family, n in zip(families, n_shared, strict=True)]
    )
    start = np.concatenate([[0], np.cumsum(n_shared)])
    requests = with_contents(requests, 32, SharedBlocks(start=start, ids=ids))
    config = TrtllmConfig(max_seq_len=512, capacity_scheduler_policy=policy, **more)
    return requests, config


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("is_overlapped", [False, True])
@pytest.mark.parametrize("policy", CAPACITY_POLICIES)
@pytest.mark.parametrize(("num_blocks", "max_num_tokens"), [(40, 512), (100, 264)])
def test_requests_that_wait_change_no_step(
    is_chunked, is_overlapped, policy, num_blocks, max_num_tokens
):
    if policy == "MAX_UTILIZATION":
        max_num_tokens = 512
    cost = linear_cost(launch_s=1e-3, per_row_s=2e-6, per_context_token_s=1e-8)
    n_cached_tokens = 0
    for seed in (11, 14, 16, 22):  # of these many requests begin just after another one ends
        requests, config = crowd(
            seed,
            policy,
            num_blocks=num_blocks,
            max_num_tokens=max_num_tokens,
            enable_chunked_prefill=is_chunked,
            disable_overlap_scheduler=not is_overlapped,
        )
        at_once = simulate(requests, config, cost)
        one_by_one = simulate(requests, config, cost, record_parts=True)
        assert_equal(at_once._replace(parts=one_by_one.parts), one_by_one)
        n_cached_tokens += at_once.requests.cached_tokens.sum()
    assert n_cached_tokens > 0
    assert_equal(at_once, simulate_plainly(requests, config, cost))


def test_prompts_that_fill_a_step_cost_no_time_while_they_wait():
    """1,000 requests took 0.35 s of computing: each step looked at each of 512 that wait."""
    n_requests = 400
    requests = demand(np.zeros(n_requests, np.int64), [256] * n_requests, [128] * n_requests)
    config = TrtllmConfig(num_blocks=20_000, max_seq_len=512, max_num_tokens=256)

    def took_s(**record):
        began_s = time.process_time()
        run = simulate(requests, config, COST, **record)
        return time.process_time() - began_s, run

    took_s(), took_s(record_parts=True)
    (at_once_s, at_once), (one_by_one_s, one_by_one) = took_s(), took_s(record_parts=True)
    assert_equal(at_once._replace(parts=one_by_one.parts), one_by_one)
    assert len(at_once.steps.start_ns) == n_requests * 128
    assert at_once_s < one_by_one_s / 3


@pytest.mark.parametrize("policy", CAPACITY_POLICIES)
@pytest.mark.parametrize("chunking", CHUNKING_POLICIES)
def test_kernel_equals_reference_at_size(policy, chunking):
    rng = np.random.default_rng(5)
    arrival = np.cumsum(rng.exponential(2e6, 300)).astype(np.int64)
    requests = demand(
        arrival, rng.integers(1, 900, 300), rng.integers(1, 120, 300), max_tokens=np.full(300, 150)
    )
    config = TrtllmConfig(
        num_blocks=400,
        max_seq_len=2048,
        max_batch_size=64,
        max_num_tokens=1024,
        capacity_scheduler_policy=policy,
        enable_chunked_prefill=True,
        context_chunking_policy=chunking,
    )
    run = run_of(config, requests)
    assert (run.requests.n_preemptions.sum() > 0) == (policy == "MAX_UTILIZATION")


@examples(200)
@given(settings_of_a_run())
def test_every_request_is_served(run):
    """Nobody waits for ever: the first in the list can always go on, whatever the others hold."""
    config, requests, cost = run
    run = simulate(requests, config, cost)
    table, steps = run.requests, run.steps
    assert run.outcome is Outcome.FINISHED
    requests = requests._replace(
        **{
            name: getattr(requests, name)[table.request_index]
            for name in ("prompt_tokens", "output_tokens")
        }
    )
    is_done = np.isin(table.status, (RequestStatus.STOPPED, RequestStatus.LENGTH))
    expected = np.minimum(requests.output_tokens, config.max_seq_len - requests.prompt_tokens)
    assert np.array_equal(table.output_tokens[is_done], expected[is_done])
    assert np.all(steps.prefill_tokens + steps.n_decode_requests <= config.max_num_tokens)
    assert np.all(steps.n_prefill_requests + steps.n_decode_requests <= config.max_batch_size)
    assert np.all(steps.kv_blocks_used <= config.num_blocks)
    if config.capacity_scheduler_policy != "MAX_UTILIZATION":
        assert not table.n_preemptions.any()


@examples(200)
@given(settings_of_a_run(can_abort=False, can_stop=False))
def test_tokens_are_conserved(run):
    """Whoever is never paused computes its prompt and each output but the last once, and no more."""
    config, requests, cost = run
    run = simulate(requests, config, cost)
    table, steps = run.requests, run.steps
    if table.n_preemptions.any():
        return
    served = table.status != RequestStatus.REJECTED
    needed = (table.prompt_tokens - table.cached_tokens + table.output_tokens - 1)[served].sum()
    assert (steps.prefill_tokens + steps.n_decode_requests).sum() == needed


@examples(100)
@given(settings_of_a_run())
def test_blocks_are_never_lost(run):
    config, requests, cost = run
    schedule = TrtllmScheduler.schedule

    def checked(scheduler, now_ns):
        batch = schedule(scheduler, now_ns)
        held = {block for request in scheduler.active for block in request.blocks}
        assert scheduler.blocks.n_free == config.num_blocks - len(held)
        assert config.enable_block_reuse or len(held) == sum(
            len(request.blocks) for request in scheduler.active
        )
        assert len(scheduler.active) <= config.max_batch_size
        return batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrtllmScheduler, "schedule", checked)
        simulate_plainly(requests, config, cost)


@pytest.mark.parametrize(("max_tokens", "n_together"), [(16, 5), (32, 4), (48, 3)])
def test_no_evict_counts_what_is_declared_not_what_is_said(max_tokens, n_together):
    """16 blocks of 16 tokens, prompts of 32.

    Each request is promised blocks for 32 + max_tokens, though all say 4 tokens.
    """
    config = TrtllmConfig(
        num_blocks=16, max_seq_len=96, tokens_per_block=16, disable_overlap_scheduler=True
    )
    run = run_of(config, demand([0] * 6, [32] * 6, [4] * 6, max_tokens=[max_tokens] * 6))
    assert run.steps.n_prefill_requests[0] == n_together
    assert run.requests.first_token_ns.tolist() == [
        (1 + 4 * (i // n_together)) * MS for i in range(6)
    ]
    assert run.steps.kv_blocks_used.max() == n_together * 3  # 35 tokens each


def test_no_evict_stops_at_the_first_that_does_not_fit():
    """The second request needs more than is left: the third, which would fit, waits behind it."""
    config = TrtllmConfig(
        num_blocks=10, max_seq_len=160, tokens_per_block=16, disable_overlap_scheduler=True
    )
    run = run_of(config, demand([0, 0, 0], [32, 100, 10], [4, 4, 4], max_tokens=[40, 40, 4]))
    assert run.requests.admitted_ns.tolist() == [0, 4 * MS, 4 * MS]


def test_max_utilization_pauses_the_last_started_and_it_comes_back_first():
    """Four blocks of 4 tokens, three prompts of 4.

    The second tokens need three more blocks: the third request is paused. Tokens 9

    need two more: the second is paused. When the first is done the second comes back alone (9
    tokens, 3 blocks), then the third, before the fourth, which came while they waited.
    """
    config = TrtllmConfig(
        num_blocks=4,
        max_seq_len=16,
        tokens_per_block=4,
        capacity_scheduler_policy="MAX_UTILIZATION",
        disable_overlap_scheduler=True,
        enable_block_reuse=False,
    )
    run = run_of(config, demand([0, 0, 0, 1 * MS], [4, 4, 4, 4], [6, 6, 3, 2]))
    assert run.steps.n_preempted_requests.tolist() == [0, 1, 0, 0, 0, 1, 0, 0, 0]
    assert run.requests.n_preemptions.tolist() == [0, 1, 1, 0]
    assert (run.requests.first_token_ns // MS).tolist() == [1, 1, 1, 8]
    assert (run.requests.finished_ns // MS).tolist() == [6, 7, 9, 9]
    assert run.steps.prefill_tokens.tolist() == [12, 0, 0, 0, 0, 0, 9, 5 + 4, 0]
    assert run.steps.kv_blocks_used.tolist() == [3, 4, 4, 4, 4, 3, 3, 3, 4]


def test_static_batch_admits_nobody_until_all_are_done():
    """The short answer of the second request leaves its place empty until the first one ends."""
    config = TrtllmConfig(
        num_blocks=100,
        max_seq_len=64,
        max_batch_size=2,
        capacity_scheduler_policy="STATIC_BATCH",
        disable_overlap_scheduler=True,
    )
    run = run_of(config, demand([0, 0, 0], [8, 8, 8], [6, 2, 2]))
    assert (run.requests.first_token_ns // MS).tolist() == [1, 1, 7]
    in_flight = run_of(
        TrtllmConfig(
            num_blocks=100, max_seq_len=64, max_batch_size=2, disable_overlap_scheduler=True
        ),
        demand([0, 0, 0], [8, 8, 8], [6, 2, 2]),
    )
    assert (in_flight.requests.first_token_ns // MS).tolist() == [1, 1, 3]


def test_without_chunks_a_prompt_that_does_not_fit_holds_up_all_behind_it():
    config = TrtllmConfig(
        num_blocks=100, max_seq_len=64, max_num_tokens=64, disable_overlap_scheduler=True
    )
    run = run_of(config, demand([0, 0, 0], [40, 30, 10], [1, 1, 1]))
    assert run.steps.prefill_tokens.tolist() == [40, 40]
    chunked = TrtllmConfig(
        num_blocks=100,
        max_seq_len=64,
        max_num_tokens=64,
        enable_chunked_prefill=True,
        disable_overlap_scheduler=True,
    )
    run = run_of(chunked, demand([0, 0, 0], [40, 30, 10], [1, 1, 1]))
    assert run.steps.prefill_tokens.tolist() == [
        50,
        30,
    ]  # 40, none of the second (24 tokens are less than a block), the 10


@pytest.mark.parametrize(
    ("remaining", "budget", "unit", "by_arrival", "in_lockstep"),
    [
        ([100, 100], 128, 32, [100, 0], [64, 64]),
        ([100, 28], 120, 32, [100, 0], [64, 28]),
        ([100, 20], 120, 32, [100, 20], [100, 20]),
        ([40, 40, 40], 64, 32, [40, 0, 0], [32, 32, 0]),
        ([10, 100], 90, 32, [10, 64], [10, 64]),
        ([100, 9], 31, 32, [0, 9], [0, 9]),
    ],
)
def test_budgets_are_split_by_the_engines_rules(remaining, budget, unit, by_arrival, in_lockstep):
    assert chunk_sizes(remaining, budget, unit, "FIRST_COME_FIRST_SERVED") == by_arrival
    assert chunk_sizes(remaining, budget, unit, "EQUAL_PROGRESS") == in_lockstep


def test_overlap_knows_the_last_allowed_token_but_not_the_stop_token():
    """With overlap a request that stops by itself computes once more; one that ends by length does not."""
    config = TrtllmConfig(num_blocks=100, max_seq_len=128)
    run = run_of(config, demand([0], [10], [3], max_tokens=[10]))
    assert run.steps.n_decode_requests.sum() == 3
    run = run_of(config, demand([0], [10], [3]))
    assert run.steps.n_decode_requests.sum() == 2


def begins_alike(n_same, *lengths):
    """Requests of these prompts and answers of 2 tokens that come 20 ms apart and share their first ``n_same`` tokens."""
    n_requests, n_shared = len(lengths), n_same // 16
    shared = SharedBlocks(
        np.arange(n_requests + 1) * n_shared, np.tile(np.arange(n_shared), n_requests)
    )
    return with_contents(
        demand(np.arange(n_requests) * 20 * MS, lengths, [2] * n_requests), 16, shared
    )


def test_blocks_of_an_earlier_prompt_are_reused_but_never_its_last_token():
    """64 tokens are four blocks of 16.

    The second prompt is the same: its last block is computed again. The third goes on: it finds
    all.
    """
    run = run_of(
        TrtllmConfig(num_blocks=40, max_seq_len=128, tokens_per_block=16),
        begins_alike(64, 64, 64, 80),
    )
    assert run.requests.cached_tokens.tolist() == [0, 48, 64]
    assert run.steps.prefill_tokens[run.steps.n_prefill_requests > 0].tolist() == [64, 16, 16]
    off = TrtllmConfig(
        num_blocks=40, max_seq_len=128, tokens_per_block=16, enable_block_reuse=False
    )
    assert not run_of(off, begins_alike(64, 64, 64, 80)).requests.cached_tokens.any()


def test_free_blocks_are_taken_in_the_order_in_which_they_were_given_up():
    """Eight blocks: a prompt of 64 tokens leaves four in the tree, its tail first to go.

    Another one of 96 needs the four that were never

    used, and two of these: the two that begin the prompt are still there.
    """
    shared = SharedBlocks(np.array([0, 4, 4, 8]), np.array([*range(4), *range(4)]))
    requests = with_contents(demand([0, 20 * MS, 40 * MS], [64, 95, 64], [1, 1, 1]), 16, shared)
    run = run_of(TrtllmConfig(num_blocks=8, max_seq_len=112, tokens_per_block=16), requests)
    assert run.requests.cached_tokens.tolist() == [0, 0, 32]


@pytest.mark.parametrize(
    ("is_aware", "cached", "admitted"), [(True, [0, 48], [0, 1]), (False, [0, 0], [0, 0])]
)
def test_a_request_waits_for_another_one_that_computes_its_prefix(is_aware, cached, admitted):
    shared = SharedBlocks(np.array([0, 4, 8]), np.array([*range(4), *range(4)]))
    requests = with_contents(demand([0, 0], [64, 64], [2, 2]), 16, shared)
    config = TrtllmConfig(
        num_blocks=40,
        max_seq_len=128,
        tokens_per_block=16,
        disable_overlap_scheduler=True,
        enable_prefix_aware_scheduling=is_aware,
    )
    run = run_of(config, requests)
    assert run.requests.cached_tokens.tolist() == cached
    assert (run.requests.admitted_ns // MS).tolist() == admitted


def test_what_can_be_reused_costs_no_budget():
    """Two prompts of 80 tokens of which 64 are cached fit into one step of 40 tokens."""
    shared = SharedBlocks(np.array([0, 4, 8, 12]), np.tile(np.arange(4), 3))
    requests = with_contents(demand([0, 20 * MS, 20 * MS], [65, 80, 80], [1, 1, 1]), 16, shared)
    config = TrtllmConfig(
        num_blocks=40,
        max_seq_len=128,
        max_num_tokens=80,
        tokens_per_block=16,
        disable_overlap_scheduler=True,
    )
    assert run_of(config, requests).steps.prefill_tokens.tolist() == [65, 32]


def test_a_server_with_a_long_context_starts_and_refuses_prompts_beyond_its_budget_alone():
    """``_check_arguments`` of tensorrt_llm/llmapi/llm.py.

    Without chunked prefill a prompt has at most ``max_num_tokens``.
    """
    requests = demand([0, 0, 0], [8192, 8193, 100], [4, 4, 4])
    config = TrtllmConfig(num_blocks=4096, max_seq_len=131_072)
    run = run_of(config, requests)
    assert run.requests.status.tolist() == [
        RequestStatus.LENGTH,
        RequestStatus.REJECTED,
        RequestStatus.LENGTH,
    ]
    (caution,) = cautions_of(run, config)
    assert (
        caution.text
        == "1 of 3 requests were refused: their prompts have more than max_num_tokens = 8192 tokens"
    )
    assert caution.remedy == "--max-num-batched-tokens 131072, or --set enable_chunked_prefill=true"
    chunked = TrtllmConfig(num_blocks=4096, max_seq_len=131_072, enable_chunked_prefill=True)
    assert not np.any(run_of(chunked, requests).requests.status == RequestStatus.REJECTED)


def test_paused_requests_must_fit_into_a_step_again():
    with pytest.raises(SpecError, match="max_num_tokens = 8192"):
        TrtllmConfig(
            num_blocks=4096, max_seq_len=131_072, capacity_scheduler_policy="MAX_UTILIZATION"
        )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_tokens", 0),
        ("num_blocks", 3),
        ("max_batch_size", 0),
        ("tokens_per_block", 0),
        ("max_seq_len", 1),
    ],
)
def test_what_the_server_refuses_is_refused(name, value):
    with pytest.raises(SpecError, match=name):
        TrtllmConfig(**({"num_blocks": 8, "max_seq_len": 128} | {name: value}))
