"""Does a front end delay what the scheduler sees, and does the client count from its sending?"""

from dataclasses import replace

import numpy as np
import pytest

from inferometer.inputs.workload.reading import resolve_workload, with_changes
from inferometer.inputs.workload.replay import draw_workload
from inferometer.records.types import ABSENT, RequestStatus
from inferometer.simulate.demand import demand
from inferometer.simulate.fleet import ClusterConfig, Fleet
from inferometer.simulate.run import _with_waits, as_clients_see, delayed, run, simulate
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


@pytest.mark.parametrize("ratio", [1.5, 0.5])
def test_first_tokens_that_come_later_slow_no_step(ratio):
    chat = with_changes(resolve_workload("chat"), {"n_requests": 20}, where="here")
    plan = draw_workload(chat).plan
    config = replace(CONFIG, num_blocks=10**6, max_model_len=10**5)
    cost = linear_cost(launch_s=0.02)

    def ran(cost):
        cluster = ClusterConfig(engine=config, n_replicas=1)
        return run(Fleet(replicas=cluster, step_times=cost), plan)

    plain, late = ran(cost), ran(cost._replace(first_token_ratio=ratio))
    table = plain.requests
    waited_ns = (table.first_token_ns if ratio > 1 else table.admitted_ns) - table.sent_ns
    more_ns = late.requests.first_token_ns - table.first_token_ns
    assert np.abs(more_ns).max() >= 5 * 10**6
    assert more_ns == pytest.approx((ratio - 1) * waited_ns, abs=1)
    assert (late.requests.first_token_ns - table.sent_ns >= 2 * 10**7).all()  # its step
    assert late.requests.sent_ns.tolist() == table.sent_ns.tolist()
    generated = (one.requests.finished_ns - one.requests.first_token_ns for one in (plain, late))
    assert len({tuple(one.tolist()) for one in generated}) == 1
    assert late.steps.start_ns.tolist() == plain.steps.start_ns.tolist()


def test_a_client_that_left_did_so_when_it_did():
    requests = demand([0, 0], [4, 4], [30, 30], abort_ns=[3 * 10**9, ABSENT])
    done = simulate(requests, CONFIG, COST)
    seen = _with_waits(done, 1.5).requests
    assert done.requests.status[0] == RequestStatus.ABORTED
    assert seen.finished_ns[0] == done.requests.finished_ns[0]
    assert seen.finished_ns[1] > done.requests.finished_ns[1]
    assert _with_waits(done, 1.0) is done
