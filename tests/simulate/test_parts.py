"""Do the parts of steps say who did what, and when each token came? Both simulators."""

from types import SimpleNamespace

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from reference.simulator import simulate_plainly
from simulator_strategies import settings_of_a_run

from inferometer.records.latencies import token_gaps, token_times
from inferometer.records.types import ABSENT, PartKind
from inferometer.simulate.demand import demand
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.simulated_run import simulated_run
from inferometer.simulate.step_cost import linear_cost

COST = linear_cost(launch_s=1e-6)


@pytest.mark.parametrize("run", [simulate, simulate_plainly])
def test_chunks_seats_and_tokens_by_hand(run):
    """Six tokens a step.

    Request 0's prompt of 9 takes two chunks, request 1 (3) joins in the second step and gets the
    next slot;

    when 0 is done, 2 takes its slot, the lowest free one.
    """
    config = SchedulerConfig(
        num_blocks=20,
        max_model_len=32,
        max_num_seqs=2,
        max_num_batched_tokens=6,
        async_scheduling=False,
    )
    parts = run(demand([0, 0, 0], [9, 3, 2], [2, 3, 1]), config, COST, record_parts=True).parts
    rows = list(zip(*(column.tolist() for column in parts), strict=True))
    context, generation = int(PartKind.CONTEXT), int(PartKind.GENERATION)
    assert rows == [
        (0, 0, 0, context, 6, 0),
        (1, 0, 0, context, 3, 1),
        (1, 1, 1, context, 3, 1),
        (2, 0, 0, generation, 1, 1),
        (2, 1, 1, generation, 1, 1),
        (3, 1, 1, generation, 1, 1),
        (3, 2, 0, context, 2, 1),
    ]


def test_a_step_wasted_behind_a_stop_token_delivers_nothing():
    config = SchedulerConfig(num_blocks=20, max_model_len=32)
    parts = simulate(demand([0], [4], [2], max_tokens=[9]), config, COST, record_parts=True).parts
    assert parts.n_delivered_tokens.tolist() == [1, 1, 0]


@pytest.mark.parametrize("run", [simulate, simulate_plainly])
def test_one_prefill_at_a_time(run):
    """The workload above: request 1 may begin only when the chunks of request 0 are through, in the third step."""
    config = SchedulerConfig(
        num_blocks=20,
        max_model_len=32,
        max_num_seqs=3,
        max_num_batched_tokens=6,
        async_scheduling=False,
        one_prefill_at_a_time=True,
    )
    parts = run(demand([0, 0, 0], [9, 3, 2], [2, 3, 1]), config, COST, record_parts=True).parts
    assert list(zip(parts.step_index, parts.request_index, parts.kind, strict=True)) == [
        (0, 0, PartKind.CONTEXT),
        (1, 0, PartKind.CONTEXT),
        (2, 0, PartKind.GENERATION),
        (2, 1, PartKind.CONTEXT),
        (3, 1, PartKind.GENERATION),
        (3, 2, PartKind.CONTEXT),
        (4, 1, PartKind.GENERATION),
    ]


def test_nobody_asked():
    simulation = simulate(
        demand([0], [4], [2]), SchedulerConfig(num_blocks=20, max_model_len=32), COST
    )
    assert simulation.parts is None


@examples(150)
@given(settings_of_a_run())
def test_parts_agree_with_steps_and_requests(run):
    config, requests, cost = run
    _, _, table, steps, parts, *_ = simulate(requests, config, cost, record_parts=True)
    is_context = parts.kind == PartKind.CONTEXT
    n_steps = len(steps.start_ns)
    count = lambda rows, weights=None: np.bincount(parts.step_index[rows], weights, n_steps)  # noqa: E731
    assert np.array_equal(count(is_context), steps.n_prefill_requests)
    assert np.array_equal(count(~is_context), steps.n_decode_requests)
    assert np.array_equal(
        count(is_context, parts.n_computed_tokens[is_context]), steps.prefill_tokens
    )
    assert len(set(zip(parts.step_index.tolist(), parts.slot.tolist(), strict=True))) == len(
        parts.slot
    )
    assert not config.one_prefill_at_a_time or np.all(steps.n_prefill_requests <= 1)
    assert np.all((parts.slot >= 0) & (parts.slot < config.max_num_active))
    tokens = token_times(SimpleNamespace(steps=steps, parts=parts))
    n_delivered = np.bincount(tokens.request_index, minlength=requests.n_requests)[
        table.request_index
    ]
    assert np.array_equal(n_delivered, table.output_tokens)
    for index, first, last, n in zip(
        table.request_index,
        table.first_token_ns,
        table.finished_ns,
        table.output_tokens,
        strict=True,
    ):
        times = tokens.time_ns[tokens.request_index == index]
        assert n == 0 or times[0] == first
        assert n < requests.output_tokens[index] or times[-1] == last
        assert (n == 0) == (first == ABSENT)
    gaps = token_gaps(tokens)
    assert len(gaps.gap_ns) == np.maximum(table.output_tokens - 1, 0).sum()
    assert np.all(gaps.gap_ns >= 0)


def test_a_run_carries_its_parts():
    config = SchedulerConfig(num_blocks=2000, max_model_len=2048, max_num_seqs=64)
    rng = np.random.default_rng(6)
    requests = demand(
        np.sort(rng.integers(0, 10**7, 3000)),
        rng.integers(1, 500, 3000),
        rng.integers(1, 300, 3000),
    )
    simulation = simulate(requests, config, COST, record_parts=True)
    run = simulated_run(
        simulation,
        config,
        run_id="one",
        created_utc="2026-11-21T00:00:00Z",
        command=("test",),
        tool_version="0",
    )
    assert run.parts is simulation.parts
    assert len(run.parts.slot) > 1 << 18  # more than one piece of the log
    assert len(token_times(run).time_ns) == run.requests.output_tokens.sum()
