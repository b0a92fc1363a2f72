"""What does a KV cache in one piece cost? Both simulators, by hand and equal to the nanosecond."""

import numpy as np
import pytest
from examples import examples
from hypothesis import given, strategies as st
from reference.simulator import simulate_plainly
from simulator_strategies import assert_equal, settings_of_a_run

from inferometer.errors import SpecError
from inferometer.simulate.demand import demand
from inferometer.simulate.outcome import Outcome
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

CONTIGUOUS = {"kv_allocation": "contiguous", "enable_prefix_caching": False}
COST = linear_cost(launch_s=1e-6)
BOTH = pytest.mark.parametrize("run", [simulate, simulate_plainly])


def config_of(**changes):
    values = {
        "num_blocks": 11,
        "max_model_len": 10,
        "block_size": 1,
        "max_num_seqs": 8,
        "async_scheduling": False,
    } | changes
    return SchedulerConfig(**values, enable_prefix_caching=False)


@examples(200)
@given(settings_of_a_run(CONTIGUOUS), st.none() | st.integers(0, 1500))
def test_kernel_equals_reference(run, until_ns):
    config, requests, cost = run
    fast = simulate(requests, config, cost, until_ns=until_ns, record_parts=True)
    assert_equal(
        fast, simulate_plainly(requests, config, cost, until_ns=until_ns, record_parts=True)
    )


@examples(150)
@given(settings_of_a_run(CONTIGUOUS))
def test_nobody_is_thrown_out_and_nothing_leaks(run):
    config, requests, cost = run
    simulation = simulate(requests, config, cost)
    holes, steps = simulation.holes, simulation.steps
    assert not simulation.requests.n_preemptions.any()
    if holes is None:
        assert len(steps.start_ns) == 0
        return
    assert np.array_equal(
        holes.free_blocks + steps.kv_blocks_used, np.full(len(steps.start_ns), config.n_kv_blocks)
    )
    assert np.all(holes.largest_hole_blocks <= holes.free_blocks)
    assert np.all((holes.largest_hole_blocks > 0) == (holes.free_blocks > 0))
    assert np.all(holes.compaction_debt_blocks <= steps.kv_blocks_used)
    assert np.all(holes.compaction_debt_blocks[steps.n_waiting_requests == 0] == 0)


@BOTH
def test_enough_is_free_but_not_in_one_piece(run):
    """Ten blocks: pieces of 3, 3, 3.

    When the outer two have gone 3 + 4 are free, and a request of 6 waits for the middle one, though

    to move that one's 3 blocks would do. Paged, it is admitted as soon as its prompt fits.
    """
    requests = demand([0, 0, 0, 500], [2, 1, 2, 5], [1, 2, 1, 1])
    simulation = run(requests, config_of(kv_allocation="contiguous"), COST)
    assert simulation.requests.admitted_ns.tolist() == [0, 0, 0, 2000]
    assert simulation.steps.kv_blocks_used.tolist() == [9, 3, 6]
    assert simulation.holes.free_blocks.tolist() == [1, 7, 4]
    assert simulation.holes.largest_hole_blocks.tolist() == [1, 4, 4]
    assert simulation.holes.compaction_debt_blocks.tolist() == [0, 3, 0]
    paged = run(requests, config_of(), COST)
    assert paged.holes is None
    assert paged.requests.admitted_ns.tolist() == [0, 0, 0, 1000]


@BOTH
def test_what_may_be_generated_is_lost_to_others(run):
    """Each says that it may generate 4 tokens and stops after one: 5 blocks each, two at once.

    Paged all four are in at once.
    """
    requests = demand([0] * 4, [1] * 4, [1] * 4, max_tokens=[4] * 4)
    assert run(
        requests, config_of(kv_allocation="contiguous"), COST
    ).requests.admitted_ns.tolist() == [0, 0, 1000, 1000]
    assert run(requests, config_of(), COST).requests.admitted_ns.tolist() == [0] * 4


@BOTH
def test_the_first_hole_is_taken_not_the_best(run):
    """Pieces of 3, 10, 2, 10 of 39 blocks; the 3 and the 2 go.

    A request of 2 takes the hole of 3, so that one of 3 goes behind all: 11

    of the 14 there stay in one piece.
    """
    requests = demand([0, 0, 0, 0, 500, 500], [2, 1, 1, 1, 1, 2], [1, 9, 1, 9, 1, 1])
    config = config_of(kv_allocation="contiguous", num_blocks=40, max_model_len=30)
    assert run(requests, config, COST).holes.largest_hole_blocks.tolist()[:2] == [14, 11]


@BOTH
def test_too_little_is_free_whatever_is_moved(run):
    requests = demand([0, 500], [3, 5], [3, 2])
    simulation = run(requests, config_of(kv_allocation="contiguous"), COST)
    assert simulation.outcome is Outcome.FINISHED
    assert simulation.holes.compaction_debt_blocks.tolist() == [0, -1, -1, 0, 0]


def test_shared_prefixes_are_refused():
    with pytest.raises(SpecError, match="enable_prefix_caching = True"):
        SchedulerConfig(num_blocks=11, max_model_len=10, kv_allocation="contiguous")
