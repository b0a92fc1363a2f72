"""Does a simulated run look like any other, and does it confess what it leaves out?"""

import numpy as np
import pytest

from inferometer.records.types import ABSENT, Phase, RequestStatus
from inferometer.simulate.demand import demand
from inferometer.simulate.outcome import Outcome
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.simulated_run import cautions_of, simulated_run
from inferometer.simulate.step_cost import linear_cost

CONFIG = SchedulerConfig(num_blocks=100, max_model_len=128, async_scheduling=False)
COST = linear_cost(launch_s=1e-3)


def test_a_run_of_the_common_type():
    simulation = simulate(demand([0, 500_000], [10, 20], [3, 3]), CONFIG, COST)
    run = simulated_run(
        simulation,
        CONFIG,
        run_id="one",
        created_utc="2026-11-21T00:00:00Z",
        command=("test",),
        tool_version="0",
    )
    assert run.manifest.origin == "simulated"
    assert run.manifest.cautions == ()
    assert run.requests.first_token_ns.tolist() == [1_000_000, 2_000_000]
    assert run.requests.finished_ns.tolist() == [3_000_000, 4_000_000]
    assert run.requests.admitted_ns.tolist() == [0, 1_000_000]
    assert run.requests.status.tolist() == [RequestStatus.LENGTH] * 2
    assert run.steps.phase.tolist() == [Phase.PREFILL, Phase.MIXED, Phase.DECODE, Phase.DECODE]
    assert run.steps.duration_ns.tolist() == [1_000_000] * 4
    assert run.steps.decode_context_tokens.tolist() == [0, 11, 12 + 21, 22]


def test_asynchronous_scheduling_delays_an_arrival_by_a_step_and_wastes_one_after_a_stop_token():
    config = SchedulerConfig(num_blocks=100, max_model_len=128, async_scheduling=True)
    requests = demand([0, 500_000], [10, 20], [3, 3], max_tokens=[10, 3])
    run = simulate(requests, config, COST)
    assert run.requests.first_token_ns.tolist() == [1_000_000, 3_000_000]
    assert run.requests.finished_ns.tolist() == [3_000_000, 5_000_000]
    assert run.requests.status.tolist() == [RequestStatus.STOPPED, RequestStatus.LENGTH]
    assert (run.steps.n_prefill_requests + run.steps.n_decode_requests).tolist() == [1, 1, 2, 2, 1]


def test_those_whose_users_left_are_confessed():
    requests = demand([0, 0], [10, 20], [90, 3], abort_ns=[20_000_000, ABSENT])
    (caution,) = cautions_of(simulate(requests, CONFIG, COST), CONFIG)
    assert caution.code == "left"
    assert caution.text.startswith("the users of 1 of 2 requests left before")


def test_the_unfinished_and_the_refused_are_confessed():
    requests = demand([0, 0, 0], [10, 20, 200], [90, 3, 3])
    simulation = simulate(requests, CONFIG, COST, until_ns=50_000_000)
    assert simulation.outcome is Outcome.HORIZON
    assert simulation.end_ns == 50_000_000
    assert {caution.code for caution in cautions_of(simulation, CONFIG)} == {
        "unfinished",
        "rejected",
    }
    assert simulation.requests.output_tokens.tolist() == [50, 3, 0]
    assert all(caution.remedy for caution in cautions_of(simulation, CONFIG))


@pytest.mark.parametrize(
    ("load", "slots", "num_blocks", "is_named"),
    [
        (0.5, 8, 2000, False),
        (0.9, 8, 2000, False),
        (1.3, 8, 2000, True),
        (3.0, 8, 2000, True),
        (0.5, 3000, 50, False),
        (3.0, 3000, 50, True),
    ],
)
def test_a_load_above_capacity_is_named(load, slots, num_blocks, is_named):
    config = SchedulerConfig(
        num_blocks=num_blocks,
        max_model_len=512,
        max_num_seqs=slots,
        max_num_batched_tokens=8192,
        enable_prefix_caching=False,
    )
    n_requests, mean = 2000, 40
    for seed in range(10):
        rng = np.random.default_rng(seed)
        arrival = np.cumsum(rng.exponential(mean * 1e6 / 8 / load, n_requests)).astype(np.int64)
        simulation = simulate(
            demand(arrival, np.full(n_requests, 5), rng.integers(1, 2 * mean, n_requests)),
            config,
            COST,
        )
        assert [caution.code for caution in cautions_of(simulation, config)] == [
            "overload"
        ] * is_named


@pytest.mark.parametrize(("load", "codes"), [(0.8, []), (0.95, []), (1.5, ["behind"])])
def test_a_queue_that_grows_beside_many_that_are_served_is_named(load, codes):
    """A run in which no more come than the slots hold twice over: who is served is no excuse."""
    slots, mean_tokens, n_requests = 500, 40, 2000
    config = SchedulerConfig(
        num_blocks=20_000,
        max_model_len=512,
        max_num_seqs=slots,
        max_num_batched_tokens=8192,
        enable_prefix_caching=False,
    )
    for seed in range(5):
        rng = np.random.default_rng(seed)
        gap_ns = mean_tokens * 1e6 / slots / load
        arrival = np.cumsum(rng.exponential(gap_ns, n_requests)).astype(np.int64)
        simulation = simulate(
            demand(arrival, np.full(n_requests, 5), rng.integers(1, 2 * mean_tokens, n_requests)),
            config,
            COST,
        )
        assert [caution.code for caution in cautions_of(simulation, config)] == codes


def test_a_configuration_that_never_ends_is_confessed():
    config = SchedulerConfig(
        num_blocks=4,
        max_model_len=64,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        enable_prefix_caching=False,
    )
    simulation = simulate(demand([0], [60], [2]), config, COST)
    (caution,) = cautions_of(simulation, config)
    assert caution.code == "stuck"
    (livelock,) = cautions_of(simulation._replace(outcome=Outcome.LIVELOCK), config)
    assert livelock.code == "livelock"
    assert np.all(simulation.requests.status == RequestStatus.UNFINISHED)
