"""Does the engine, where it is a textbook queue, wait as the textbook says?

Tolerances are intervals across repetitions.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from examples import examples
from hypothesis import given, strategies as st
from scipy import stats
from simulator_strategies import VLLMS, configs, costs, demands

from inferometer.records.types import RequestStatus
from inferometer.simulate.batch_config import NoBatching
from inferometer.simulate.demand import demand
from inferometer.simulate.outcome import Outcome
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

N_REPETITIONS, N_REQUESTS, N_WARM = 12, 8_000, 1_500
CONFIDENCE = 0.999
STEP_NS = 1_000_000


def one_seat(max_model_len=4096):
    """No batching: a queue with one server, whose service is one step for each output token."""
    return SchedulerConfig(
        num_blocks=max_model_len // 16 + 2,
        max_model_len=max_model_len,
        max_num_seqs=1,
        max_num_batched_tokens=64,
        enable_prefix_caching=False,
        async_scheduling=False,
    )


def interval(values):
    """Two-sided t interval of the mean of independent repetitions."""
    half = (
        stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1)
        * np.std(values, ddof=1)
        / np.sqrt(len(values))
    )
    return np.mean(values) - half, np.mean(values) + half


def mean_waits(lengths_of, rate_per_ns):
    """Mean wait of each repetition, the first requests left out."""
    config = one_seat()
    cost = linear_cost(launch_s=STEP_NS * 1e-9)
    waits = []
    for seed in range(N_REPETITIONS):
        rng = np.random.default_rng([20261121, seed])
        arrival = np.cumsum(rng.exponential(1 / rate_per_ns, N_REQUESTS)).astype(np.int64)
        table = simulate(
            demand(arrival, np.full(N_REQUESTS, 8), lengths_of(rng)), config, cost
        ).requests
        waits.append(np.mean((table.admitted_ns - table.intended_send_ns)[N_WARM:]))
    return np.array(waits)


@pytest.mark.parametrize(
    "load", [0.7, *(pytest.param(load, marks=pytest.mark.slow) for load in (0.3, 0.9))]
)
def test_m_d_1_waits_as_pollaczek_and_khinchine_say(load):
    service_ns = 20 * STEP_NS
    low, high = interval(mean_waits(lambda _: np.full(N_REQUESTS, 20), load / service_ns))
    assert low <= load * service_ns / (2 * (1 - load)) <= high


@pytest.mark.parametrize("load", [0.5, pytest.param(0.8, marks=pytest.mark.slow)])
def test_geometric_service_waits_as_pollaczek_and_khinchine_say(load):
    """M/M/1 in whole tokens: E[S^2] of a geometric length with mean m is m (2m - 1).

    As m grows the wait becomes M/M/1's.
    """
    mean = 20
    expected_ns = load / (2 * (1 - load)) * (2 * mean - 1) * STEP_NS
    waits = mean_waits(
        lambda rng: np.minimum(rng.geometric(1 / mean, N_REQUESTS), 4000), load / (mean * STEP_NS)
    )
    low, high = interval(waits)
    assert low <= expected_ns <= high
    m_m_1_ns = load / (1 - load) * mean * STEP_NS
    assert abs(expected_ns / m_m_1_ns - 1) < 1 / mean


@pytest.mark.parametrize("load", [0.4, pytest.param(0.8, marks=pytest.mark.slow)])
def test_no_batching_is_m_g_1(load):
    """Lengths of 5 or 95 tokens, evenly: Pollaczek and Khinchine's mean wait, load E[S^2] / (2 E[S] (1 - load))."""
    mean, mean_square = 50, (5**2 + 95**2) / 2
    config = NoBatching(num_blocks=300, max_model_len=4096)
    cost = linear_cost(launch_s=STEP_NS * 1e-9)
    waits = []
    for seed in range(N_REPETITIONS):
        rng = np.random.default_rng([13, seed])
        arrival = np.cumsum(rng.exponential(mean * STEP_NS / load, N_REQUESTS)).astype(np.int64)
        table = simulate(
            demand(arrival, np.full(N_REQUESTS, 8), rng.choice([5, 95], N_REQUESTS)), config, cost
        ).requests
        waits.append(np.mean((table.admitted_ns - table.intended_send_ns)[N_WARM:]))
    low, high = interval(np.array(waits))
    assert low <= load * mean_square * STEP_NS / (2 * mean * (1 - load)) <= high


@pytest.mark.parametrize(("n_slots", "load"), [(4, 0.8), (16, 0.9)])
def test_seats_that_do_not_slow_one_another_are_servers(n_slots, load):
    """M/M/c: every step takes the same, so each slot serves at its own pace; Erlang's C tells who waits (Erlang 1917).

    Lengths are geometric and service begins with a step: the theory's wait is right to one step.
    """
    mean = 40
    config = replace(one_seat(), max_num_seqs=n_slots, num_blocks=n_slots * 260)
    cost = linear_cost(launch_s=STEP_NS * 1e-9)
    offered = load * n_slots
    inverse = sum(
        math.factorial(n_slots) / (math.factorial(k) * offered ** (n_slots - k))
        for k in range(n_slots)
    ) * (1 - load)
    expected_ns = 1 / (1 + inverse) * mean * STEP_NS / (n_slots * (1 - load))
    waits = []
    for seed in range(N_REPETITIONS):
        rng = np.random.default_rng([11, seed])
        arrival = np.cumsum(rng.exponential(mean * STEP_NS / offered, N_REQUESTS)).astype(np.int64)
        lengths = np.minimum(rng.geometric(1 / mean, N_REQUESTS), 4000)
        table = simulate(demand(arrival, np.ones(N_REQUESTS), lengths), config, cost).requests
        waits.append(np.mean((table.admitted_ns - table.intended_send_ns)[N_WARM:]))
    low, high = interval(np.array(waits))
    assert low - STEP_NS <= expected_ns <= high + STEP_NS


@pytest.mark.parametrize("load", [0.6, pytest.param(0.85, marks=pytest.mark.slow)])
def test_shortest_remaining_first_is_schrage_and_millers_queue(load):
    """Lengths of 20 or 200 steps, preempted without loss (swapped in no time).

    Schrage and Miller (Operations Research 14, 1966): the

    wait of length x is lambda E[min(S, x)^2] / 2 / (1 - load of shorter ones) / (1 - load up to x),
    and then it takes dt / (1 - load of those shorter than t) for each dt that is left. Who comes
    during a step waits for its end: right to one step.
    """
    short, long, share = 20, 200, 0.8
    mean = share * short + (1 - share) * long
    rate = load / mean
    shorter = rate * share * short
    short_steps = rate * short**2 / 2 / (1 - shorter) + short
    long_steps = (
        rate * (share * short**2 + (1 - share) * long**2) / 2 / (1 - shorter) / (1 - load)
        + short
        + (long - short) / (1 - shorter)
    )
    config = replace(
        one_seat(),
        policy="srpt",
        preemption_mode="swap",
        swap_bytes_per_s=math.inf,
        kv_block_bytes=1,
        num_blocks=600,
    )
    excess = []
    for seed in range(N_REPETITIONS):
        rng = np.random.default_rng([17, seed])
        arrival = np.cumsum(rng.exponential(STEP_NS / rate, N_REQUESTS)).astype(np.int64)
        lengths = np.where(rng.random(N_REQUESTS) < share, short, long)
        table = simulate(
            demand(arrival, np.ones(N_REQUESTS), lengths),
            config,
            linear_cost(launch_s=STEP_NS * 1e-9),
        ).requests
        steps = (table.finished_ns - table.intended_send_ns)[N_WARM:] / STEP_NS
        expected = np.where(lengths[N_WARM:] == short, short_steps, long_steps)
        excess.append(np.mean(steps - expected))
    low, high = interval(np.array(excess))
    assert low - 1 <= 0 <= high + 1


@pytest.mark.parametrize("load", [0.5, pytest.param(0.8, marks=pytest.mark.slow)])
def test_many_seats_share_the_processor(load):
    """Each row costs the same and each request gets one row a step.

    M/G/1 processor sharing, whose mean sojourn E[S]/(1 - load)

    does not depend on how lengths are distributed. A request that comes during a step waits for its
    end, which the theory's infinitely small steps do not know: at most one step more.
    """
    config = SchedulerConfig(
        num_blocks=300_000,
        max_model_len=8192,
        max_num_seqs=1000,
        max_num_batched_tokens=1000,
        enable_prefix_caching=False,
        async_scheduling=False,
    )
    row_ns, mean = 10_000, 50
    cost = linear_cost(launch_s=0, per_row_s=row_ns * 1e-9)
    for lengths_of in (
        lambda _: np.full(N_REQUESTS, mean),
        lambda rng: rng.choice([10, 90], N_REQUESTS),
    ):
        excess, steps = [], []
        for seed in range(N_REPETITIONS // 2):
            rng = np.random.default_rng([7, seed])
            arrival = np.cumsum(rng.exponential(mean * row_ns / load, N_REQUESTS)).astype(np.int64)
            run = simulate(demand(arrival, np.ones(N_REQUESTS), lengths_of(rng)), config, cost)
            sojourn = (run.requests.finished_ns - run.requests.intended_send_ns)[N_WARM:]
            excess.append(sojourn.mean() - mean * row_ns / (1 - load))
            steps.append(np.average(run.steps.duration_ns, weights=run.steps.duration_ns))
        low, high = interval(np.array(excess))
        assert low <= np.mean(steps)
        assert high >= 0


@st.composite
def busy_runs(draw):
    """All who run compute in every step: synchronous, a budget for all, no preemption, nobody leaves."""
    config = draw(
        configs(
            policies=VLLMS,
            async_scheduling=False,
            enable_chunked_prefill=True,
            max_num_batched_tokens=4096,
            scheduler_reserve_full_isl=True,
            num_blocks=2000,
            long_prefill_token_threshold=0,
        )
    )
    return config, draw(demands(config, can_abort=False)), draw(costs())


@examples(150)
@given(busy_runs())
def test_littles_law(run):
    """Requests in the engine, summed over time by steps, are the times in the engine, summed over requests: to the nanosecond.

    Those who wait are counted when a step begins, so each arrival during a step is missed for less
    than that step.
    """
    config, requests, cost = run
    outcome, _, table, steps, *_ = simulate(requests, config, cost)
    assert outcome is Outcome.FINISHED
    served = table.status != RequestStatus.REJECTED
    if not served.any():
        return
    in_service = (steps.n_prefill_requests + steps.n_decode_requests) * steps.duration_ns
    assert in_service.sum() == (table.finished_ns - table.admitted_ns)[served].sum()
    waited = (table.admitted_ns - table.intended_send_ns)[served].sum()
    seen_waiting = (steps.n_waiting_requests * steps.duration_ns).sum()
    assert 0 <= waited - seen_waiting <= served.sum() * steps.duration_ns.max()


def test_the_scheduler_is_work_conserving():
    """With requests left the device never idles, so the last token comes when all work is done, in whatever order it is served."""
    config = one_seat()
    cost = linear_cost(launch_s=STEP_NS * 1e-9)
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 50, 500)
    table = simulate(demand(np.zeros(500), np.full(500, 8), lengths), config, cost).requests
    assert table.finished_ns.max() == lengths.sum() * STEP_NS
