"""What does a KV cache in one piece cost? Both simulators, by hand and equal to the nanosecond."""

import math
from dataclasses import replace

import numpy as np
import pytest
from examples import examples
from hypothesis import given, strategies as st
from reference.cluster_run import simulate_cluster_plainly
from reference.simulator import simulate_plainly
from simulator_strategies import assert_equal, settings_of_a_run
from whole_fleets import simulate_cluster

from inferometer.errors import SpecError
from inferometer.records.types import ABSENT
from inferometer.simulate.demand import demand
from inferometer.simulate.fleet import ClusterConfig
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


COMPACTED = CONTIGUOUS | {"kv_block_bytes": 1000}
RATES = st.sampled_from([2e10, 3e11, math.inf])


def compacted_runs(**kinds):
    """50 ns, 3 ns or nothing for a block, in steps of some tens of ns."""
    return RATES.flatmap(
        lambda rate: settings_of_a_run(COMPACTED | {"compaction_bytes_per_s": rate}, **kinds)
    )


@examples(300)
@given(compacted_runs(), st.none() | st.integers(0, 1500))
def test_the_kernel_moves_what_the_reference_moves(run, until_ns):
    config, requests, cost = run
    fast = simulate(requests, config, cost, until_ns=until_ns, record_parts=True)
    assert_equal(
        fast, simulate_plainly(requests, config, cost, until_ns=until_ns, record_parts=True)
    )


@st.composite
def crowded_runs(draw):
    """Pieces of very different sizes, more than fit, whose clients sometimes go away: there is always something to move."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, is_large = draw(st.integers(10, 60)), rng.random(60) < 0.3
    outputs = np.where(is_large, rng.integers(1, 25, 60), rng.integers(1, 8, 60))[:n]
    requests = demand(
        np.sort(rng.integers(0, 40_000, n)),
        np.where(is_large, 14, 2)[:n],
        outputs,
        max_tokens=outputs + rng.integers(0, 3, n),
        priority=rng.integers(0, 3, n),
    )
    leaves_ns = requests.arrival_ns + rng.integers(0, 60_000, n)
    config = config_of(
        kv_allocation="contiguous",
        num_blocks=41,
        max_model_len=40,
        kv_block_bytes=1000,
        compaction_bytes_per_s=draw(st.sampled_from([2e9, 6e9, 3e10, math.inf])),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        async_scheduling=draw(st.booleans()),
        watermark_fraction=draw(st.sampled_from([0.0, 0.1])),
    )
    return config, requests._replace(abort_ns=np.where(rng.random(n) < 0.3, leaves_ns, ABSENT))


@examples(200)
@given(crowded_runs())
def test_the_kernel_moves_what_the_reference_moves_in_a_crowd(run):
    config, requests = run
    fast = simulate(requests, config, COST, record_parts=True)
    assert_equal(fast, simulate_plainly(requests, config, COST, record_parts=True))
    assert fast.outcome is Outcome.FINISHED


@examples(100)
@given(compacted_runs(), st.sampled_from(["round-robin", "least-loaded"]))
def test_replicas_move_each_its_own(run, router):
    config, requests, cost = run
    cluster = ClusterConfig(engine=config, n_replicas=2, router=router)
    assert_equal(
        simulate_cluster(requests, cluster, cost), simulate_cluster_plainly(requests, cluster, cost)
    )


@examples(150)
@given(compacted_runs())
def test_pieces_that_move_stay_whole_and_apart(run):
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
    assert np.all(holes.compaction_debt_blocks <= 2 * steps.kv_blocks_used)
    assert np.all(holes.moved_blocks >= 0)
    without = simulate(requests, replace(config, compaction_bytes_per_s=0.0), cost)
    assert np.all(without.holes.moved_blocks == ABSENT)
    # rows know what waits as steps begin: requests that end at one instant, one after the other, let
    # pieces move between two rows without a debt in either
    if not holes.moved_blocks.any():
        assert_equal(
            simulation._replace(holes=None, steps=None), without._replace(holes=None, steps=None)
        )


def compacting(block_ns=250):
    return config_of(
        kv_allocation="contiguous",
        num_blocks=16,
        kv_block_bytes=1000,
        compaction_bytes_per_s=1000 / (block_ns * 1e-9),
    )


@BOTH
def test_a_piece_slides_while_steps_run_until_whoever_waits_fits(run):
    """Pieces of 4, 6 and 5 of 15 blocks; the outer two go, and somebody waits who needs 8.

    The middle one slides at 250 ns a block, in 1500 of the two steps of 1000 ns that follow. Until
    then it takes the 4 blocks before it too, so that the largest hole is that of 5.
    """
    requests = demand([0, 0, 0, 500], [3, 1, 4, 7], [1, 5, 1, 1])
    simulation = run(requests, compacting(), COST)
    assert simulation.requests.admitted_ns.tolist() == [0, 0, 0, 3000]
    holes = simulation.holes
    assert holes.free_blocks.tolist() == [0, 9, 9, 1, 9]
    assert holes.largest_hole_blocks.tolist() == [0, 5, 5, 1, 9]
    assert holes.compaction_debt_blocks.tolist() == [0, 6, 6, 0, 0]
    assert holes.moved_blocks.tolist() == [0, 0, 0, 6, 0]
    patient = run(requests, replace(compacting(), compaction_bytes_per_s=0.0), COST)
    assert patient.requests.admitted_ns.tolist() == [0, 0, 0, 5000]


@BOTH
def test_whoever_ends_under_way_leaves_where_it_was_and_where_it_was_to_go(run):
    requests = demand([0, 0, 0, 500], [3, 4, 4, 7], [1, 2, 1, 1])
    simulation = run(requests, compacting(), COST)
    assert simulation.requests.admitted_ns.tolist() == [0, 0, 0, 2000]
    assert simulation.holes.moved_blocks.tolist() == [0, 0, 0]


def test_where_holes_made_them_wait_compaction_lets_them_in_earlier():
    """400 requests of very different lengths in 200 blocks, more than can be served at once."""
    rng = np.random.default_rng(3)
    prompts, outputs = rng.choice([3, 60], 400, p=[0.7, 0.3]), rng.integers(5, 40, 400)
    requests = demand(np.arange(400) * 1500, prompts, outputs)
    config = config_of(
        kv_allocation="contiguous",
        num_blocks=201,
        max_model_len=100,
        max_num_seqs=64,
        kv_block_bytes=1000,
    )
    means = []
    for rate in (0.0, 1e9, 1e12):
        found = simulate(requests, replace(config, compaction_bytes_per_s=rate), COST)
        waits_ns = found.requests.admitted_ns - found.requests.sent_ns
        in_debt = float(np.mean(found.holes.compaction_debt_blocks > 0))
        means.append((float(waits_ns.mean()), in_debt))
    assert means[0][0] > means[1][0] > means[2][0]
    assert means[0][1] > 0.1 > means[2][1]


def test_moving_needs_a_rate_pieces_and_the_bytes_of_a_block():
    with pytest.raises(SpecError, match=r"compaction_bytes_per_s = 1\.0"):
        config_of(compaction_bytes_per_s=1.0, kv_block_bytes=1)
    with pytest.raises(SpecError, match="kv_block_bytes = None"):
        config_of(kv_allocation="contiguous", compaction_bytes_per_s=1.0)
    with pytest.raises(SpecError, match=r"compaction_bytes_per_s = -1\.0"):
        config_of(kv_allocation="contiguous", compaction_bytes_per_s=-1.0, kv_block_bytes=1)
