"""Do both simulators of prefill and decode pools say the same, is nothing lost between them, and is the link what it says?"""

import doctest
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from disaggregation_strategies import settings_of_disaggregated_runs
from examples import examples
from hypothesis import given, strategies as st
from reference.disaggregated_run import simulate_disaggregated_plainly
from simulator_strategies import assert_equal
from whole_fleets import PoolCosts, simulate_disaggregated

from inferometer.errors import SpecError
from inferometer.records.types import ABSENT, RequestStatus
from inferometer.simulate.demand import Demand, demand
from inferometer.simulate.fleet import ClusterConfig, DisaggregatedConfig, KvLink
from inferometer.simulate.gate_config import GateConfig
from inferometer.simulate.outcome import Outcome
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.sglang_config import SglangConfig
from inferometer.simulate.simulated_run import cautions_of
from inferometer.simulate.step_cost import linear_cost

PAGE = Path(__file__).parents[2] / "docs" / "disaggregation.md"
STEP = linear_cost(launch_s=1e-6)
"""1,000 ns a step, whatever it does."""
COSTS = PoolCosts(STEP, STEP)
BOTH = pytest.mark.parametrize("run", [simulate_disaggregated, simulate_disaggregated_plainly])
NO_LINK = KvLink(block_bytes=1)
LINK = KvLink(block_bytes=1000, bytes_per_s=1e9, latency_s=200e-9)
"""1,000 ns a block, and 200 more."""


def engine(**changes):
    return SchedulerConfig(
        **(
            {
                "num_blocks": 100,
                "max_model_len": 128,
                "async_scheduling": False,
                "enable_prefix_caching": False,
            }
            | changes
        )
    )


def pools(link=LINK, *, prefill=None, decode=None, n_prefill=1, n_decode=1, **changes):
    return DisaggregatedConfig(
        prefill=ClusterConfig(engine=prefill or engine(), n_replicas=n_prefill),
        decode=ClusterConfig(engine=decode or engine(), n_replicas=n_decode),
        link=link,
        **changes,
    )


@examples(300)
@given(settings_of_disaggregated_runs(), st.none() | st.integers(0, 1500))
def test_kernel_equals_reference(setting, until_ns):
    config, requests, costs = setting
    fast = simulate_disaggregated(requests, config, costs, until_ns=until_ns, record_parts=True)
    plain = simulate_disaggregated_plainly(
        requests, config, costs, until_ns=until_ns, record_parts=True
    )
    assert_equal(fast, plain)


@pytest.mark.slow
@examples(150)
@given(settings_of_disaggregated_runs(), st.sampled_from([1, 3, 0]))
def test_kernel_equals_reference_behind_a_gate(setting, max_in_flight):
    config, requests, costs = setting
    gate = GateConfig(max_in_flight=max_in_flight)
    fast = simulate_disaggregated(requests, config, costs, gate=gate, record_parts=True)
    assert_equal(
        fast, simulate_disaggregated_plainly(requests, config, costs, gate=gate, record_parts=True)
    )


@examples(150)
@given(settings_of_disaggregated_runs())
def test_no_token_and_no_block_is_lost(setting):
    """Whoever comes when all others have ended finds both memories empty.

    Every answer is whole, and its tokens are those of its steps.
    """
    config, requests, costs = setting
    last = demand([10**9], [1], [2])
    together = Demand(
        *(np.concatenate([one, other]) for one, other in zip(requests[:8], last[:8], strict=True)),
        content_start=np.zeros(requests.n_requests + 2, np.int64),
        contents=np.empty(0, np.int32),
        follows=np.append(requests.follows, np.int32(-1)),
        joins=np.append(requests.joins, np.int32(-1)),
        accompanies=np.append(requests.accompanies, np.int32(-1)),
        think_ns=np.append(requests.think_ns, 0),
    )
    run = simulate_disaggregated(together, config, costs, record_parts=True)
    if run.outcome is not Outcome.FINISHED:
        return
    is_late = run.steps.start_ns >= 10**9
    size, n_drafts = (
        config.prefill.engine.block_size,
        max(one.num_speculative_tokens for one in config.engines),
    )
    if config.prefill.engine.max_model_len > 2:
        assert set(np.unique(run.steps.replica[is_late] >= config.prefill.n_replicas)) == {
            False,
            True,
        }
        assert np.all(run.steps.kv_blocks_used[is_late] <= -(-(4 + 3 * n_drafts) // size))
    table = run.requests
    delivered = np.bincount(
        run.parts.request_index, weights=run.parts.n_delivered_tokens, minlength=together.n_requests
    )
    assert np.array_equal(delivered[table.request_index], table.output_tokens)
    assert len(run.visits.request_index) <= 2 * len(table.request_index)


@BOTH
def test_steps_that_the_other_engine_counted_hold_nobody_up(run):
    """Prompts in many chunks, by steps launched ahead.

    The decode replica, at its third step, does not wait for the prefill replica's.
    """
    ahead = engine(async_scheduling=True, max_num_seqs=1, max_num_batched_tokens=1)
    found = run(demand([0], [8], [4]), pools(NO_LINK, prefill=ahead), COSTS)
    assert found.outcome is Outcome.FINISHED
    assert found.requests.finished_ns[0] == (8 + 4) * 1_000


@examples(100)
@given(settings_of_disaggregated_runs(can_abort=False, can_stop=False))
def test_what_travels_is_the_prompt(setting):
    config, requests, costs = setting
    run = simulate_disaggregated(requests, config, costs)
    moves, size = run.transfers, config.prefill.engine.block_size
    asked = moves.asked_ns != ABSENT
    prompts = requests.prompt_tokens[moves.request_index[asked]]
    assert np.all(moves.n_blocks[asked] <= -(-prompts // size))
    if not config.decode.engine.enable_prefix_caching:
        assert np.array_equal(moves.n_blocks[asked], -(-prompts // size))
    assert np.all(moves.prefilled_ns[asked] <= moves.asked_ns[asked])
    came = moves.received_ns != ABSENT
    taken_ns = (moves.n_blocks * config.link.block_ps + 500) // 1000 + config.link.latency_ns
    assert np.array_equal(moves.received_ns[came], (moves.begun_ns + taken_ns)[came])
    for ports in (
        (moves.source, moves.replica)
        if config.link.shape == "ports"
        else (np.zeros_like(moves.source),)
    ):
        for port in np.unique(ports[came]):
            own = came & (ports == port)
            order = np.argsort(moves.begun_ns[own], kind="stable")
            begun, ended = (
                moves.begun_ns[own][order],
                (moves.received_ns - config.link.latency_ns)[own][order],
            )
            assert np.all(np.sort(begun)[1:] >= np.sort(ended)[:-1])


@BOTH
def test_two_prompts_by_hand(run):
    """Both are computed in the first step.

    The link takes their 2 and 3 blocks one after the other; in the decode replica each computes

    its last prompt token again, which gives the first token of the answer.
    """
    found = run(demand([0, 0], [20, 40], [3, 3]), pools(), COSTS)
    assert found.transfers.n_blocks.tolist() == [2, 3]
    assert found.transfers.begun_ns.tolist() == [1000, 3000]
    assert found.transfers.received_ns.tolist() == [3200, 6200]
    assert found.requests.first_token_ns.tolist() == [4200, 7200]
    assert found.requests.finished_ns.tolist() == [6200, 9200]
    assert [column.tolist() for column in found.visits] == [
        [0, 0, 1, 1],
        [0, 1, 0, 1],
        [0, 3200, 0, 6200],
        [1000, 6200, 1000, 9200],
    ]


@BOTH
def test_the_prefill_replica_may_give_the_first_token(run):
    """One decode step less, and whoever wants one token never travels."""
    found = run(
        demand([0, 0, 0], [20, 40, 20], [3, 3, 1]), pools(answer_begins_at="prefill"), COSTS
    )
    assert found.requests.first_token_ns.tolist() == [1000, 1000, 1000]
    assert found.requests.finished_ns.tolist() == [5200, 8200, 1000]
    assert found.transfers.request_index.tolist() == [0, 1]


@BOTH
def test_every_replica_has_a_port_of_its_own(run):
    """Two senders and two receivers, pairwise: nobody waits.

    A shared link takes one after the other.
    """
    requests = demand([0, 0], [32, 32], [2, 2])
    assert run(requests, pools(n_prefill=2, n_decode=2), COSTS).transfers.begun_ns.tolist() == [
        1000,
        1000,
    ]
    shared = replace(LINK, shape="shared")
    assert run(
        requests, pools(shared, n_prefill=2, n_decode=2), COSTS
    ).transfers.begun_ns.tolist() == [1000, 3000]
    assert run(requests, pools(n_prefill=2), COSTS).transfers.begun_ns.tolist() == [
        1000,
        3000,
    ]  # one receiver


@BOTH
def test_without_room_there_the_prompt_stays_here(run):
    """The decode replica has 4 blocks, of which the first request takes 3 until 7,200 ns.

    Then the second is fetched. Its 3 blocks are

    kept where they were computed, so that the third, which needs 3 of the 5 there, begins its
    prefill only when they have arrived.
    """
    config = pools(
        prefill=engine(num_blocks=6, max_model_len=48, max_num_batched_tokens=256),
        decode=engine(num_blocks=5, max_model_len=48, max_num_batched_tokens=256),
    )
    found = run(demand([0, 100, 200], [40, 40, 40], [3, 3, 3]), config, COSTS)
    assert found.transfers.asked_ns.tolist() == [1000, 7200, 13400]
    assert found.transfers.received_ns.tolist() == [4200, 10400, 16600]
    assert found.requests.admitted_ns.tolist() == [0, 4200, 10400]
    assert found.requests.finished_ns.tolist() == [7200, 13400, 19600]


@BOTH
def test_who_goes_while_his_cache_travels_holds_both_memories_until_it_is_there(run):
    requests = demand([0, 0], [32, 32], [2, 2], abort_ns=[1500, ABSENT])
    small = engine(num_blocks=3, max_model_len=32 + 2, max_num_batched_tokens=256, block_size=17)
    found = run(requests, pools(decode=small, prefill=replace(small, num_blocks=100)), COSTS)
    assert found.requests.status.tolist() == [RequestStatus.ABORTED, RequestStatus.LENGTH]
    assert found.requests.finished_ns[0] == 1500
    assert found.transfers.asked_ns.tolist() == [1000, 3200]


@BOTH
def test_a_known_prefix_does_not_travel_again(run):
    """Two prompts of four blocks, three of which they share, one after the other."""
    config = engine(enable_prefix_caching=True)
    requests = demand([0, 50_000], [64, 64], [2, 2])
    contents = np.array([0, 1, 2, 3, 0, 1, 2, 4], np.int32)
    requests = requests._replace(contents=contents, content_start=np.array([0, 4, 8]))
    found = run(requests, pools(prefill=config, decode=config), COSTS)
    assert found.transfers.n_blocks.tolist() == [4, 1]
    assert found.requests.cached_tokens.tolist() == [0, 48]


@pytest.mark.parametrize("is_async", [False, True])
def test_alone_and_without_a_link_it_is_one_engine(is_async):
    """Requests far apart, a link that takes no time: the same steps as on one replica.

    Sampling the first token again is one more.
    """
    cost = linear_cost(launch_s=1e-6, per_row_s=1e-8, per_context_token_s=1e-9)
    requests = demand(np.arange(20) * 1_000_000, np.arange(20) * 5 + 1, np.arange(20) % 7 + 1)
    one = engine(async_scheduling=is_async)
    alone = simulate(requests, one, cost)
    config = pools(NO_LINK, prefill=one, decode=one, answer_begins_at="prefill")
    split = simulate_disaggregated(requests, config, PoolCosts(cost, cost))
    assert np.array_equal(split.requests.first_token_ns, alone.requests.first_token_ns)
    assert np.array_equal(split.requests.finished_ns, alone.requests.finished_ns)
    again = simulate_disaggregated(
        requests, replace(config, answer_begins_at="decode"), PoolCosts(cost, cost)
    )
    step_ns = 1000 + 10 + requests.prompt_tokens  # one row that looks back at the whole prompt
    assert np.array_equal(again.requests.first_token_ns, alone.requests.first_token_ns + step_ns)


def test_a_saturated_link_gives_its_own_rate():
    """Blocks come twice as fast as the link takes them.

    It is never idle, and requests leave at its rate, whatever else there is.
    """
    n_requests = 400
    requests = demand(np.arange(n_requests) * 1000, [32] * n_requests, [1] * n_requests)
    large = engine(num_blocks=4 * n_requests, max_num_batched_tokens=2048)
    found = simulate_disaggregated(requests, pools(prefill=large, decode=large), COSTS)
    assert np.all(np.diff(found.transfers.begun_ns) == 2000)
    assert found.transfers.received_ns[-1] - found.transfers.begun_ns[0] == n_requests * 2000 + 200


def test_waiting_for_the_link_is_that_of_one_server():
    """M/D/1: prompts come as a Poisson process through a prefill that takes no time to speak of.

    The link serves each in S.

    W = rho S / (2 (1 - rho)); the mean of batches of consecutive waits is held to it within four of
    its standard errors.
    """
    n_requests, service_ns, load = 60_000, 2000, 0.7
    generator = np.random.default_rng(3)
    arrival = np.cumsum(generator.exponential(service_ns / load, n_requests)).astype(np.int64)
    requests = demand(arrival, [32] * n_requests, [1] * n_requests)
    large = engine(num_blocks=100_000, max_num_batched_tokens=100_000, max_num_seqs=10_000)
    fast = linear_cost(launch_s=1e-9)
    found = simulate_disaggregated(
        requests, pools(prefill=large, decode=large), PoolCosts(fast, fast), record_steps=False
    )
    waits = (found.transfers.begun_ns - found.transfers.asked_ns).astype(float)
    batches = waits.reshape(60, -1).mean(axis=1)
    expected = load * service_ns / (2 * (1 - load))
    assert abs(batches.mean() - expected) < 4 * batches.std(ddof=1) / np.sqrt(len(batches))


def test_each_pool_has_its_own_steps():
    slow = linear_cost(launch_s=5e-6)
    found = simulate_disaggregated(demand([0], [16], [3]), pools(NO_LINK), PoolCosts(slow, STEP))
    assert found.steps.duration_ns.tolist() == [5000, 1000, 1000, 1000]
    assert found.steps.replica.tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("prompt_tokens", "output_tokens", "every_ns", "link", "what"),
    [
        (60, 2, 400, NO_LINK, "before the replicas that compute prompts"),
        (4, 40, 2000, NO_LINK, "before the replicas that generate"),
        (60, 2, 1500, LINK, "of KV caches on their way"),
        (4, 4, 5000, NO_LINK, None),
    ],
)
def test_the_pool_that_has_too_much_to_do_is_named(
    prompt_tokens, output_tokens, every_ns, link, what
):
    """A prompt of 60 takes one step of 1,000 ns, and 4,200 ns of the link; eight answers of 40 take 40 steps."""
    requests = demand(np.arange(300) * every_ns, [prompt_tokens] * 300, [output_tokens] * 300)
    memory = {"num_blocks": 200, "max_num_batched_tokens": 64}
    config = pools(
        link, prefill=engine(max_num_seqs=2, **memory), decode=engine(max_num_seqs=8, **memory)
    )
    cautions = cautions_of(simulate_disaggregated_plainly(requests, config, COSTS), config)
    assert [caution.code for caution in cautions] == (
        [] if what is None else ["overload", "bottleneck"]
    )
    assert what is None or what in cautions[1].text


@pytest.mark.parametrize(
    "changes",
    [
        {"prefill": SglangConfig(max_total_num_tokens=1000, context_length=128)},
        {"decode": engine(block_size=8)},
        {"decode": engine(max_model_len=64)},
        {"decode": engine(kv_allocation="contiguous")},
        {"decode": engine(policy="srpt")},
        {"prefill": engine(preemption_mode="swap", kv_block_bytes=1, swap_bytes_per_s=1.0)},
        {"answer_begins_at": "nobody"},
    ],
)
def test_what_cannot_be_is_refused(changes):
    with pytest.raises(SpecError):
        pools(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"block_bytes": 0},
        {"bytes_per_s": 0.0},
        {"bytes_per_s": 1e-3},
        {"latency_s": -1.0},
        {"shape": "ring"},
    ],
)
def test_what_is_no_link_is_refused(changes):
    with pytest.raises(SpecError):
        KvLink(**({"block_bytes": 1000} | changes))


def test_the_page_runs():
    found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.attempted >= 15
    assert found.failed == 0
