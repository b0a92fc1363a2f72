"""Does a front end delay what the scheduler sees, and does the client count from its sending?"""

import numpy as np
import pytest

from inferometer.simulate.demand import demand
from inferometer.simulate.run import as_clients_see, delayed, simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

CONFIG = SchedulerConfig(num_blocks=100, max_model_len=100, async_scheduling=False)
COST = linear_cost(launch_s=1.0)
DELAY_S = 0.25


def seen(requests):
    done = simulate(delayed(requests, DELAY_S), CONFIG, COST)
    return as_clients_see(done, requests, DELAY_S).requests


def test_the_first_token_comes_so_much_later():
    table = seen(demand([0, 10**10], [4, 4], [2, 2]))
    assert table.sent_ns.tolist() == [0, 10**10]
    assert (table.first_token_ns - table.sent_ns).tolist() == [1_250_000_000] * 2
    assert ((table.finished_ns - table.first_token_ns) == 10**9).all()


def test_a_follower_is_sent_when_the_end_was_seen():
    table = seen(demand([0, 0], [4, 4], [1, 1], follows=[-1, 0], think_ns=[0, 5 * 10**8]))
    assert table.intended_send_ns.tolist() == [0, 1_250_000_000 + 5 * 10**8]


def test_a_beam_search_passes_the_front_end_once():
    """A search of two beams and two tokens, and a client that sends again when it has seen the end of both."""
    table = seen(
        demand(
            *([0] * 4, [4, 5, 5, 4], [1] * 4),
            follows=[-1, 0, 0, 1],
            joins=[-1, -1, 3, -1],
            accompanies=[-1, -1, 1, -1],
            think_ns=[0] * 4,
        )
    )
    first_ns = 1_250_000_000
    soon_ns = 1
    assert table.intended_send_ns.tolist()[:3] == [0, first_ns + soon_ns, first_ns + soon_ns]
    both_ns = int(table.finished_ns[1:3].max())
    assert both_ns == first_ns + 10**9 + soon_ns
    assert table.intended_send_ns[3] == both_ns
    assert table.finished_ns[3] == both_ns + first_ns


@pytest.mark.parametrize("delay_s", [0.0, 1e-10])
def test_no_delay_changes_nothing(delay_s):
    requests = demand([0, 3], [4, 4], [2, 2])
    assert np.array_equal(delayed(requests, delay_s).arrival_ns, requests.arrival_ns)
