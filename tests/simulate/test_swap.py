"""Is nothing lost between device and host, and when does swapping pay?

Both simulators, by hand and equal to the nanosecond.
"""

from dataclasses import replace

import pytest
from examples import examples
from hypothesis import given, strategies as st
from reference.simulator import simulate_plainly
from reference.vllm import Scheduler
from simulator_strategies import assert_equal, settings_of_a_swapping_run
from test_kernel import after, check_blocks

from inferometer.errors import SpecError
from inferometer.simulate.demand import demand
from inferometer.simulate.outcome import Outcome
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

BOTH = pytest.mark.parametrize("run", [simulate, simulate_plainly])
COST = linear_cost(launch_s=1e-6, per_row_s=1e-8)  # 1,000 ns a step and 10 ns a row
RECOMPUTE = SchedulerConfig(
    num_blocks=11,
    max_model_len=32,
    max_num_seqs=4,
    max_num_batched_tokens=64,
    block_size=4,
    enable_prefix_caching=False,
    async_scheduling=False,
)
SWAP = replace(
    RECOMPUTE,
    preemption_mode="swap",
    kv_block_bytes=1000,
    swap_space_bytes=8000,
    swap_bytes_per_s=100e9,
)  # 10 ns a block
TWO = demand([0, 0], [19, 18], [6, 6])
"""5 blocks each, which is all; request 0 wants a sixth for its 21st token, which throws out
request 1."""


@examples(300)
@given(settings_of_a_swapping_run(), st.none() | st.integers(0, 1500))
def test_kernel_equals_reference(run, until_ns):
    config, requests, cost = run
    fast = simulate(requests, config, cost, until_ns=until_ns, record_parts=True)
    assert_equal(
        fast, simulate_plainly(requests, config, cost, until_ns=until_ns, record_parts=True)
    )


@examples(150)
@given(settings_of_a_swapping_run())
def test_no_block_is_lost_or_owned_twice_here_or_there(run):
    config, requests, cost = run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "schedule", after(Scheduler.schedule, check_both))
        patch.setattr(Scheduler, "update", after(Scheduler.update, check_both))
        simulation = simulate_plainly(requests, config, cost)
    assert simulation.outcome is not Outcome.LOG_FULL


def check_both(scheduler):
    check_blocks(scheduler)
    waiting = scheduler.waiting.in_order()
    assert (
        scheduler.n_host_free + sum(request.num_host_blocks for request in waiting)
        == scheduler._config.n_host_blocks
    )
    assert scheduler.n_host_free >= 0
    assert all(request.num_host_blocks == 0 for request in scheduler.running)
    for request in waiting:
        if request.num_host_blocks:
            assert (
                request.num_host_blocks * scheduler._config.block_size
                >= request.num_computed_tokens
            )


@BOTH
def test_a_swap_by_hand(run):
    """Step 2 copies 5 blocks out, and computes one token of request 0.

    When that is done, step 6 copies them back, and computes one.
    """
    simulation = run(TWO, SWAP, COST, record_parts=True)
    assert simulation.requests.n_preemptions.tolist() == [0, 1]
    assert simulation.requests.output_tokens.tolist() == [6, 6]
    assert simulation.steps.duration_ns.tolist() == [
        1370,
        1020,
        1060,
        1010,
        1010,
        1010,
        1060,
        1010,
        1010,
        1010,
    ]
    assert simulation.steps.n_preempted_requests.tolist() == [0, 0, 1] + [0] * 7
    assert simulation.steps.prefill_tokens.tolist() == [37] + [0] * 9
    assert simulation.parts.n_computed_tokens.sum() == 37 + 5 + 5


@BOTH
@pytest.mark.parametrize(("space_bytes", "n_prefills"), [(0, 3), (4999, 3), (5000, 2)])
def test_a_full_host_means_to_compute_again(run, space_bytes, n_prefills):
    simulation = run(TWO, replace(SWAP, swap_space_bytes=space_bytes), COST)
    assert simulation.requests.n_preemptions.sum() == 1
    assert simulation.steps.n_prefill_requests.sum() == n_prefills
    if n_prefills == 3:
        assert_equal(simulation, run(TWO, RECOMPUTE, COST))


@BOTH
@pytest.mark.parametrize("block_ns", [5, 18, 19, 20, 100])
def test_swapping_pays_where_copying_is_faster_than_computing(run, block_ns):
    """The same steps either way.

    5 blocks twice, against 20 tokens rather than 1 when it runs again. 19 ns a block is break-even.
    """
    swapped = run(TWO, replace(SWAP, swap_bytes_per_s=1000 / (block_ns * 1e-9)), COST)
    again = run(TWO, RECOMPUTE, COST)
    assert swapped.end_ns - again.end_ns == 2 * 5 * block_ns - (20 - 1) * 10
    assert (swapped.end_ns < again.end_ns) == (block_ns < 19)


@pytest.mark.parametrize(
    "knobs",
    [
        {"swap_bytes_per_s": None},
        {"kv_block_bytes": None},
        {"swap_bytes_per_s": 0.0},
        {"swap_space_bytes": -1},
    ],
)
def test_what_cannot_be_is_refused(knobs):
    with pytest.raises(SpecError, match="the scheduler's configuration"):
        replace(SWAP, **knobs)
