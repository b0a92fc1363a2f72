"""Is a request that follows another sent when it is due, whatever became of the other?

Both simulators, by hand.
"""

import numpy as np
import pytest
from reference.simulator import simulate_plainly

from inferometer.records.types import ABSENT, RequestStatus
from inferometer.simulate.demand import demand
from inferometer.simulate.outcome import Outcome
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.simulated_run import cautions_of
from inferometer.simulate.step_cost import linear_cost

CONFIG = SchedulerConfig(num_blocks=100, max_model_len=128, async_scheduling=False)
COST = linear_cost(launch_s=1e-6)  # 1,000 ns a step, whatever it does
BOTH = pytest.mark.parametrize("run", [simulate, simulate_plainly])


@BOTH
def test_a_closed_loop_of_one_client(run):
    """A service of 2 steps, a pause of 500 ns, and again; the last is not due before 9,000 ns."""
    requests = demand([100, 0, 9000], [5] * 3, [2] * 3, follows=[-1, 0, 1], think_ns=[0, 500, 500])
    table = run(requests, CONFIG, COST).requests
    assert table.intended_send_ns.tolist() == [100, 2600, 9000]
    assert table.finished_ns.tolist() == [2100, 4600, 11_000]


@BOTH
def test_rows_are_in_order_of_sending_and_found_again(run):
    """Two clients with two turns each: the second client's first turn comes before the first one's second."""
    requests = demand(
        [0, 0, 10, 0], [5] * 4, [3, 1, 1, 1], follows=[-1, 0, -1, 2], think_ns=[0, 100, 0, 50]
    )
    table = run(requests, CONFIG, COST).requests
    assert table.request_index.tolist() == [0, 2, 3, 1]
    assert table.intended_send_ns.tolist() == [0, 10, 2050, 3100]
    assert table.finished_ns.tolist() == [3000, 2000, 4000, 5000]


@BOTH
def test_without_a_pause_the_next_one_joins_the_very_next_step(run):
    requests = demand([0, 0, 0], [5] * 3, [1, 4, 1], follows=[-1, -1, 0])
    simulation = run(requests, CONFIG, COST)
    assert simulation.requests.admitted_ns.tolist() == [0, 0, 1000]
    assert simulation.steps.n_prefill_requests.tolist() == [2, 1, 0, 0]


@BOTH
def test_a_refusal_and_a_departure_are_ends_too(run):
    """Request 0 is too long, request 1's client leaves at 2,500 ns in the third step; each has a follower 100 ns later."""
    away_ns = [ABSENT, 2500, ABSENT, ABSENT]
    requests = demand(
        [7, 8, 0, 0],
        [200, 5, 5, 5],
        [1, 50, 1, 1],
        follows=[-1, -1, 0, 1],
        think_ns=[0, 0, 100, 100],
        abort_ns=away_ns,
    )
    table = run(requests, CONFIG, COST).requests
    assert table.status.tolist() == [
        RequestStatus.REJECTED,
        RequestStatus.ABORTED,
        RequestStatus.LENGTH,
        RequestStatus.LENGTH,
    ]
    assert table.intended_send_ns.tolist() == [7, 8, 107, 2600]


@BOTH
def test_a_follower_loses_patience_so_long_after_its_sending(run):
    """Request 1 is sent at 2,000 and has its second token at 4,000.

    Its client leaves at 4,500, and request 2 follows that.
    """
    away_ns = [ABSENT, 2500, 1600]
    requests = demand([0, 0, 0], [5] * 3, [2, 50, 50], follows=[-1, 0, 1], abort_ns=away_ns)
    table = run(requests, CONFIG, COST).requests
    assert table.status.tolist() == [
        RequestStatus.LENGTH,
        RequestStatus.ABORTED,
        RequestStatus.ABORTED,
    ]
    assert table.intended_send_ns.tolist() == [0, 2000, 4500]
    assert table.finished_ns.tolist() == [2000, 4500, 6100]
    assert table.output_tokens.tolist() == [2, 2, 1]


@BOTH
def test_a_follower_of_one_that_never_ends_never_comes_and_is_counted(run):
    config = SchedulerConfig(
        num_blocks=4,
        max_model_len=64,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        enable_prefix_caching=False,
    )
    simulation = run(demand([0, 0, 0], [60, 5, 5], [2, 1, 1], follows=[-1, 0, 1]), config, COST)
    assert simulation.outcome is Outcome.STUCK
    assert simulation.requests.request_index.tolist() == [0]
    assert simulation.n_never_sent == 2
    assert [caution.code for caution in cautions_of(simulation, config)] == ["stuck", "never sent"]


@BOTH
def test_a_follower_after_the_horizon_is_counted(run):
    simulation = run(
        demand([0, 0], [5, 5], [2, 2], follows=[-1, 0], think_ns=[0, 500]),
        CONFIG,
        COST,
        until_ns=2400,
    )
    assert simulation.outcome is Outcome.HORIZON
    assert simulation.n_never_sent == 1
    assert (
        run(
            demand([0, 0], [5, 5], [2, 2], follows=[-1, 0], think_ns=[0, 500]),
            CONFIG,
            COST,
            until_ns=2500,
        ).n_never_sent
        == 0
    )


def test_a_closed_loop_never_has_more_requests_than_clients():
    """Eight clients with forty turns each.

    Their cycle is service and pause, so that the response-time law holds exactly.
    """
    n_clients, n_turns, think_ns = 8, 40, 700
    index = np.arange(n_clients * n_turns)
    rng = np.random.default_rng(4)
    requests = demand(
        np.zeros(len(index)),
        rng.integers(1, 60, len(index)),
        rng.integers(1, 9, len(index)),
        follows=np.where(index < n_clients, -1, index - n_clients),
        think_ns=np.full(len(index), think_ns),
    )
    table = simulate(requests, CONFIG, COST).requests
    by_request = np.argsort(table.request_index)
    sent, finished = (
        column[by_request].reshape(n_turns, n_clients)
        for column in (table.intended_send_ns, table.finished_ns)
    )
    assert np.array_equal(sent[1:], finished[:-1] + think_ns)
    moments = np.sort(table.intended_send_ns)
    inside = np.searchsorted(moments, moments, side="right") - np.searchsorted(
        np.sort(table.finished_ns), moments, side="right"
    )
    assert inside.max() == n_clients


@BOTH
def test_all_that_follow_one_are_sent_at_its_end_and_who_waits_for_them_at_the_last_of_theirs(run):
    """A planner, three subtasks of 1, 4 and 2 steps, the second after a pause, and a synthesis.

    The planner ends at 2,000 ns; the subtasks at 3,000, 6,000 + 500 and 4,000.
    """
    requests = demand(
        [0] * 5,
        [5] * 5,
        [2, 1, 4, 2, 1],
        follows=[-1, 0, 0, 0, 0],
        joins=[-1, 4, 4, 4, -1],
        think_ns=[0, 0, 500, 0, 100],
    )
    table = run(requests, CONFIG, COST).requests
    by_request = np.argsort(table.request_index)
    assert table.intended_send_ns[by_request].tolist() == [0, 2000, 2500, 2000, 7100]
    assert table.finished_ns[by_request].tolist() == [2000, 3000, 7000, 4000, 8100]


@BOTH
def test_one_that_waits_for_several_is_sent_whatever_their_ends_and_not_before_its_earliest(run):
    """Requests 1 and 2, which come by themselves, are too long, and left by its client at 2,500 ns."""
    requests = demand(
        [7, 8, 9, 0, 3000],
        [5, 200, 5, 5, 5],
        [1, 1, 50, 1, 1],
        follows=[-1, -1, -1, 0, 3],
        joins=[-1, 3, 3, -1, -1],
        abort_ns=[ABSENT, ABSENT, 2500, ABSENT, ABSENT],
    )
    table = run(requests, CONFIG, COST).requests
    assert table.status.tolist()[1:3] == [RequestStatus.REJECTED, RequestStatus.ABORTED]
    sent_ns = dict(zip(table.request_index.tolist(), table.intended_send_ns.tolist(), strict=True))
    assert sent_ns[3] == 2500
    assert sent_ns[4] >= 3000


@BOTH
def test_one_that_waits_for_one_that_never_ends_never_comes(run):
    config = SchedulerConfig(
        num_blocks=4,
        max_model_len=64,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        enable_prefix_caching=False,
    )
    requests = demand(
        [0, 0, 0], [5, 60, 5], [1, 2, 1], follows=[-1, 0, 0], joins=[-1, 2, -1], think_ns=[0] * 3
    )
    simulation = run(requests, config, COST)
    assert simulation.outcome is Outcome.STUCK
    assert simulation.n_never_sent == 1


@BOTH
def test_who_accompanies_another_waits_for_the_same_ends(run):
    """A request of 2 steps, two of 1 and 3 steps, and three that all wait for both of these.

    The last of them ends at 5,000 ns; each comes after its own pause, or when it may.
    """
    requests = demand(
        [0, 0, 0, 0, 0, 9000],
        [5] * 6,
        [2, 1, 3, 1, 2, 1],
        follows=[-1, 0, 0, 1, 1, 1],
        joins=[-1, -1, 3, -1, -1, -1],
        accompanies=[-1, -1, 1, -1, 3, 3],
        think_ns=[0, 0, 0, 100, 100, 300],
    )
    table = run(requests, CONFIG, COST).requests
    by_request = np.argsort(table.request_index)
    assert table.intended_send_ns[by_request].tolist() == [0, 2000, 2000, 5100, 5100, 9000]
    assert table.finished_ns[by_request].tolist() == [2000, 3000, 5000, 6100, 7100, 10_000]


@BOTH
def test_who_follows_one_that_joins_it_waits_for_one_end(run):
    requests = demand([0, 0], [5, 5], [2, 1], follows=[-1, 0], joins=[1, -1])
    assert run(requests, CONFIG, COST).requests.intended_send_ns.tolist() == [0, 2000]
