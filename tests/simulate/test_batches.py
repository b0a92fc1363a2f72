"""Are batches formed and paid for as their rules say?

Both simulators, by hand and equal to the nanosecond.
"""

from dataclasses import replace
from heapq import heapreplace

import numpy as np
import pytest
from examples import examples
from hypothesis import given, strategies as st
from reference.simulator import simulate_plainly
from simulator_strategies import assert_equal, settings_of_batches

from inferometer.errors import SpecError
from inferometer.records.types import ABSENT, PartKind, RequestStatus
from inferometer.simulate.batch_config import DynamicBatching, NoBatching, StaticBatching
from inferometer.simulate.demand import demand
from inferometer.simulate.outcome import Outcome
from inferometer.simulate.run import simulate
from inferometer.simulate.simulated_run import cautions_of
from inferometer.simulate.step_cost import linear_cost

COST = linear_cost(launch_s=1e-6)  # 1,000 ns a step
BOTH = pytest.mark.parametrize("run", [simulate, simulate_plainly])
MEMORY = {"num_blocks": 100, "max_model_len": 64}
CONTEXT, GENERATION, ENDED = (int(kind) for kind in PartKind)


def admitted_ns(run, arrival, config, cost=COST, **columns):
    """When does each request leave the queue? One token each: a batch takes one step."""
    n_requests = len(arrival)
    table = run(
        demand(arrival, [4] * n_requests, [1] * n_requests, **columns), config, cost
    ).requests
    return table.admitted_ns[np.argsort(table.request_index)].tolist()


@examples(300)
@given(settings_of_batches(), st.none() | st.integers(0, 40_000))
def test_kernel_equals_reference(run, until_ns):
    config, requests, cost = run
    fast = simulate(requests, config, cost, until_ns=until_ns, record_parts=True)
    assert_equal(
        fast, simulate_plainly(requests, config, cost, until_ns=until_ns, record_parts=True)
    )


@examples(200)
@given(settings_of_batches())
def test_every_request_and_token_is_accounted_for(run):
    config, requests, cost = run
    outcome, _, table, steps, parts, n_never_sent, *_ = simulate(
        requests, config, cost, record_parts=True
    )
    assert outcome is Outcome.FINISHED
    assert n_never_sent == 0
    assert np.all(table.status != RequestStatus.UNFINISHED)
    done = np.isin(table.status, (RequestStatus.STOPPED, RequestStatus.LENGTH))
    wanted = np.minimum(requests.output_tokens, config.max_model_len - requests.prompt_tokens)[
        table.request_index
    ]
    assert np.array_equal(table.output_tokens[done], wanted[done])
    n_delivered = parts.n_delivered_tokens.sum()
    assert n_delivered <= table.output_tokens.sum(), (
        "an answer that was kept back is delivered by no step of its own"
    )
    assert n_delivered == table.output_tokens.sum() or config.rules.is_preserving
    assert np.all(steps.kv_blocks_used <= config.n_kv_blocks)
    assert np.all(steps.n_prefill_requests * steps.n_decode_requests == 0)
    assert np.all(parts.n_computed_tokens[parts.kind != CONTEXT] == 1)


@BOTH
def test_padding_is_paid_and_the_longest_row_is_awaited(run):
    """10 ns a row.

    Prompts of 3 and 7 are computed as 2 x 7; request 0 wants one token, request 1 three; request 2
    waits for both.
    """
    config = StaticBatching(**MEMORY, max_batch_size=2)
    requests = demand([0, 0, 10], [3, 7, 5], [1, 3, 1])
    simulation = run(
        requests, config, linear_cost(launch_s=1e-6, per_row_s=1e-8), record_parts=True
    )
    table, steps, parts = simulation.requests, simulation.steps, simulation.parts
    assert steps.duration_ns.tolist() == [1140, 1020, 1020, 1050]
    assert steps.prefill_tokens.tolist() == [14, 0, 0, 5]
    assert steps.prefill_context_product_tokens2.tolist() == [3 * 4 // 2 + 7 * 8 // 2, 0, 0, 15]
    assert steps.decode_context_tokens.tolist() == [0, 4 + 8, 5 + 9, 0]
    assert table.first_token_ns.tolist() == [1140, 1140, 4230]
    assert table.finished_ns.tolist() == [1140, 3180, 4230]
    assert table.admitted_ns.tolist() == [0, 0, 3180]
    assert parts.kind.tolist() == [CONTEXT, CONTEXT, ENDED, GENERATION, ENDED, GENERATION, CONTEXT]
    assert parts.slot.tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert steps.kv_blocks_used.tolist() == [2, 2, 2, 1]


@BOTH
def test_without_streaming_all_answers_come_when_the_batch_is_over(run):
    config = StaticBatching(**MEMORY, max_batch_size=2, is_streaming=False)
    simulation = run(demand([0, 0], [3, 7], [1, 3]), config, COST, record_parts=True)
    assert simulation.requests.first_token_ns.tolist() == [3000, 3000]
    assert simulation.requests.finished_ns.tolist() == [3000, 3000]
    assert simulation.requests.output_tokens.tolist() == [1, 3]
    assert simulation.parts.n_delivered_tokens.tolist() == [0, 0, 0, 0, 1, 3]


@BOTH
def test_memory_is_reserved_for_whole_rows(run):
    """Blocks of 4: rows of 8 + 8 tokens take 4 blocks each; nine blocks hold two of them."""
    config = StaticBatching(num_blocks=9, max_model_len=16, max_batch_size=4, block_size=4)
    simulation = run(demand([0, 0, 0], [8, 3, 2], [1, 1, 1], max_tokens=[8, 8, 2]), config, COST)
    assert simulation.steps.n_prefill_requests.tolist() == [2, 1]
    assert simulation.steps.kv_blocks_used.tolist() == [8, 1]


@BOTH
def test_a_batch_waits_to_be_full_but_not_for_ever(run):
    config = StaticBatching(**MEMORY, max_batch_size=2, max_wait_ns=5000)
    assert admitted_ns(run, [0, 3000, 9000], config) == [3000, 3000, 14_000]


@BOTH
def test_a_row_whose_client_left_is_computed_on_but_not_awaited(run):
    config = StaticBatching(**MEMORY, max_batch_size=2)
    simulation = run(
        demand([0, 0, 0], [3, 3, 3], [50, 2, 1], abort_ns=[500, ABSENT, ABSENT]),
        config,
        COST,
        record_parts=True,
    )
    assert simulation.requests.status.tolist() == [
        RequestStatus.ABORTED,
        RequestStatus.LENGTH,
        RequestStatus.LENGTH,
    ]
    assert simulation.requests.finished_ns.tolist() == [500, 2000, 3000]
    assert simulation.requests.output_tokens.tolist() == [0, 2, 1]
    assert simulation.parts.kind.tolist() == [CONTEXT, CONTEXT, ENDED, GENERATION, CONTEXT]


@BOTH
def test_no_batching_serves_one_after_the_other(run):
    simulation = run(demand([0, 0, 9000], [3, 3, 3], [2, 3, 1]), NoBatching(**MEMORY), COST)
    assert simulation.requests.admitted_ns.tolist() == [0, 2000, 9000]
    assert simulation.requests.finished_ns.tolist() == [2000, 5000, 10_000]


@BOTH
def test_a_preferred_size_leaves_at_once_and_the_rest_waits_its_delay(run):
    config = DynamicBatching(**MEMORY, preferred_batch_size=(2, 4), max_queue_delay_microseconds=10)
    assert admitted_ns(run, [0, 0, 0], config) == [0, 0, 10_000]


@BOTH
def test_the_largest_preferred_size_within_reach_leaves_until_the_delay_is_over(run):
    """Ten at once, 4 preferred of at most 8: 4, 4, and 2 after the delay.

    If the first 4 take longer than the delay, the other 6 leave.
    """
    config = DynamicBatching(**MEMORY, preferred_batch_size=(4,), max_queue_delay_microseconds=10)
    assert admitted_ns(run, [0] * 10, config) == [0] * 4 + [1000] * 4 + [10_000] * 2
    assert admitted_ns(run, [0] * 10, config, linear_cost(launch_s=2e-5)) == [0] * 4 + [20_000] * 6


@BOTH
def test_a_window_is_open_until_its_first_request_is_old_or_the_batch_is_full(run):
    config = DynamicBatching(**MEMORY, max_batch_size=4, max_queue_delay_microseconds=10)
    assert admitted_ns(run, [0, 2000, 4000], config) == [10_000] * 3
    assert admitted_ns(run, [0, 1, 2, 3, 4], config) == [3] * 4 + [10_004]
    assert admitted_ns(run, [0, 0, 1, 1, 1], config, linear_cost(launch_s=3e-5)) == [1] * 4 + [
        30_001
    ]


@BOTH
def test_without_a_delay_whatever_waits_leaves(run):
    config = DynamicBatching(**MEMORY, max_batch_size=4)
    assert admitted_ns(run, [0, 1, 2, 3, 4, 5], config) == [0] + [1000] * 4 + [2000]
    preferring = DynamicBatching(**MEMORY, max_batch_size=4, preferred_batch_size=(2,))
    assert admitted_ns(run, [0, 1, 2, 3], preferring) == [0, 1000, 1000, 2000]


@BOTH
def test_whoever_waits_longer_than_the_timeout_is_refused_or_goes_last(run):
    """Steps of 3 us: at 3,000 request 1 has waited 2,500 ns, more than 2 us.

    Request 2 has waited exactly 2 us, which is in time.
    """
    slow = linear_cost(launch_s=3e-6)
    rejecting = DynamicBatching(**MEMORY, max_batch_size=1, default_timeout_microseconds=2)
    simulation = run(demand([0, 500, 1000], [4] * 3, [1] * 3), rejecting, slow)
    assert simulation.requests.status.tolist() == [
        RequestStatus.LENGTH,
        RequestStatus.REJECTED,
        RequestStatus.LENGTH,
    ]
    assert simulation.requests.finished_ns.tolist() == [3000, 3000, 6000]
    assert [caution.code for caution in cautions_of(simulation, rejecting)] == ["refused"]
    delaying = DynamicBatching(
        **MEMORY, max_batch_size=1, default_timeout_microseconds=2, timeout_action="DELAY"
    )
    assert admitted_ns(run, [0, 500, 1000], delaying, slow) == [0, 6000, 3000]


@BOTH
def test_a_timeout_ends_a_wait_for_company(run):
    config = DynamicBatching(
        **MEMORY, max_batch_size=2, max_queue_delay_microseconds=10, default_timeout_microseconds=2
    )
    simulation = run(demand([0], [4], [1]), config, COST)
    assert simulation.outcome is Outcome.FINISHED
    assert simulation.requests.status.tolist() == [RequestStatus.REJECTED]
    assert simulation.requests.finished_ns.tolist() == [2001]


@BOTH
def test_a_full_queue_refuses_by_level(run):
    """Two places a level behind the running request: the third of a level is refused when it comes."""
    config = DynamicBatching(**MEMORY, max_batch_size=1, max_queue_size=2, has_priority_levels=True)
    arrival = [0, 1, 2, 3, 4]
    simulation = run(
        demand(arrival, [4] * 5, [1] * 5, priority=[1, 1, 1, 1, 0]),
        config,
        linear_cost(launch_s=3e-6),
    )
    assert simulation.requests.status.tolist().count(RequestStatus.REJECTED) == 1
    assert simulation.requests.finished_ns.tolist() == [3000, 9000, 12_000, 3, 6000]


@BOTH
def test_instances_take_batches_side_by_side_from_one_queue(run):
    """Two of two each: the fifth request waits for the first to be done.

    A lone one waits for company, though a device is idle.
    """
    config = DynamicBatching(**MEMORY, max_batch_size=2, instance_count=2)
    simulation = run(demand([0] * 5, [4] * 5, [1, 3, 2, 2, 1]), config, COST, record_parts=True)
    assert simulation.requests.admitted_ns.tolist() == [0, 0, 0, 0, 2000]
    assert simulation.requests.finished_ns.tolist() == [3000, 3000, 2000, 2000, 3000]
    assert simulation.steps.start_ns.tolist() == [0, 0, 1000, 1000, 2000, 2000]
    assert simulation.steps.kv_blocks_used.max() == 4
    waiting = DynamicBatching(
        **MEMORY, max_batch_size=4, max_queue_delay_microseconds=10, instance_count=2
    )
    assert admitted_ns(run, [0, 0, 0, 0, 1, 2], waiting) == [0] * 4 + [10_001] * 2


@BOTH
def test_answers_can_be_kept_in_order(run):
    """Two devices.

    The second answer is there at 1,000, the third at 2,000 and its client leaves at 2,500; the
    first takes 3,000.
    """
    config = DynamicBatching(**MEMORY, max_batch_size=1, instance_count=2, preserve_ordering=True)
    requests = demand(
        [0] * 5, [4] * 5, [3, 1, 1, 1, 2], abort_ns=[ABSENT, ABSENT, 2500, ABSENT, ABSENT]
    )
    simulation = run(requests, config, COST, record_parts=True)
    table = simulation.requests
    assert table.admitted_ns.tolist() == [
        0,
        0,
        1000,
        2000,
        3000,
    ], "a device does not wait for answers that are kept back"
    assert table.first_token_ns.tolist() == [3000, 3000, ABSENT, 3000, 5000]
    assert table.finished_ns.tolist() == [3000, 3000, 2500, 3000, 5000]
    assert (
        table.status.tolist()
        == [RequestStatus.LENGTH] * 2 + [RequestStatus.ABORTED] + [RequestStatus.LENGTH] * 2
    )
    assert table.output_tokens.tolist() == [3, 1, 0, 1, 2]


@examples(100)
@given(settings_of_batches())
def test_order_is_preserved_and_changes_nothing_else(run):
    """Answers come in the order in which requests left the queue, when all before them would be there; steps are the same."""
    config, requests, cost = run
    if (
        not isinstance(config, DynamicBatching)
        or (requests.follows >= 0).any()
        or (requests.abort_ns != ABSENT).any()
    ):
        return
    free, kept = (
        simulate(requests, replace(config, preserve_ordering=keeps), cost)
        for keeps in (False, True)
    )
    assert free.steps.start_ns.tolist() == kept.steps.start_ns.tolist()
    done = np.isin(free.requests.status, (RequestStatus.STOPPED, RequestStatus.LENGTH))
    assert np.array_equal(free.requests.status, kept.requests.status)
    for instant in np.unique(free.requests.admitted_ns[done]):
        earlier = done & (free.requests.admitted_ns <= instant)
        now = done & (free.requests.admitted_ns == instant)
        assert kept.requests.finished_ns[now].max() == free.requests.finished_ns[earlier].max()


def test_instances_are_servers():
    """First come, first served by three.

    Whoever comes takes the server that is free first, to the nanosecond (Kiefer and Wolfowitz).
    """
    rng = np.random.default_rng(3)
    arrival, length = np.cumsum(rng.integers(1, 9_000, 4_000)), rng.geometric(0.1, 4_000)
    config = DynamicBatching(num_blocks=300, max_model_len=4096, max_batch_size=1, instance_count=3)
    simulation = simulate(demand(arrival, np.full(4_000, 4), length), config, COST)
    free_ns, expected = [0, 0, 0], []
    for come_ns, n_tokens in zip(arrival.tolist(), length.tolist(), strict=True):
        start_ns = max(come_ns, free_ns[0])
        heapreplace(free_ns, start_ns + n_tokens * 1000)
        expected.append(start_ns)
    assert simulation.requests.admitted_ns.tolist() == expected
    assert simulation.busy_ns.tolist() == [length.sum() * 1000 // 3]


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (lambda: StaticBatching(num_blocks=3, max_model_len=64), "num_blocks = 3"),
        (lambda: StaticBatching(**MEMORY, max_batch_size=0), "max_batch_size = 0"),
        (lambda: StaticBatching(**MEMORY, max_wait_ns=-1), "longest wait for a batch = -1"),
        (
            lambda: DynamicBatching(**MEMORY, preferred_batch_size=(2, 9)),
            "preferred_batch_size = .2, 9.",
        ),
        (lambda: DynamicBatching(**MEMORY, max_queue_size=-1), "max_queue_size = -1"),
        (lambda: DynamicBatching(**MEMORY, instance_count=0), "instance_count = 0"),
        (lambda: NoBatching(num_blocks=4, max_model_len=1), "max_model_len = 1"),
        (lambda: NoBatching(num_blocks=4, max_model_len=8, block_size=0), "block_size = 0"),
    ],
)
def test_impossible_batchers_are_refused(made, what):
    with pytest.raises(SpecError, match=what):
        made()
