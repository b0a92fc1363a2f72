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
    return as_clients_see(simulate(delayed(requests, DELAY_S), CONFIG, COST), DELAY_S).requests


def test_the_first_token_comes_so_much_later():
    table = seen(demand([0, 10**10], [4, 4], [2, 2]))
    assert table.sent_ns.tolist() == [0, 10**10]
    assert (table.first_token_ns - table.sent_ns).tolist() == [1_250_000_000] * 2
    assert ((table.finished_ns - table.first_token_ns) == 10**9).all()


def test_a_follower_is_sent_when_the_end_was_seen():
    table = seen(demand([0, 0], [4, 4], [1, 1], follows=[-1, 0], think_ns=[0, 5 * 10**8]))
    assert table.intended_send_ns.tolist() == [0, 1_250_000_000 + 5 * 10**8]


@pytest.mark.parametrize("delay_s", [0.0, 1e-10])
def test_no_delay_changes_nothing(delay_s):
    requests = demand([0, 3], [4, 4], [2, 2])
    assert np.array_equal(delayed(requests, delay_s).arrival_ns, requests.arrival_ns)
