"""Are the intervals of a closed loop's rates narrow, and do they still hold what other runs do?"""

import heapq

import numpy as np
import pytest

from inferometer.records.rates import Rates, closed_loop_rates, is_closed_loop, window_rates

N_RUNS = 200


def closed_loop(seed, n_users, n_requests, sigma):
    """Instants of requests whose times are lognormal, sent by users who wait for their answers."""
    rng = np.random.default_rng(seed)
    took_ns = (1e9 * rng.lognormal(0.0, sigma, n_requests)).astype(np.int64)
    begun_ns, ended_ns = np.zeros(n_requests, np.int64), np.zeros(n_requests, np.int64)
    free_ns = [0] * n_users
    for i in range(n_requests):
        begun_ns[i] = heapq.heappop(free_ns)
        ended_ns[i] = begun_ns[i] + took_ns[i]
        heapq.heappush(free_ns, int(ended_ns[i]))
    return begun_ns, ended_ns


def rates_of(begun_ns, ended_ns):
    edges_ns = np.linspace(0, ended_ns.max(), 41)
    done = np.histogram(ended_ns, edges_ns)[0].astype(float)
    windows = window_rates(done, 0 * done, done, edges_ns, 1.0)
    prompts = np.zeros(len(begun_ns), np.int32)

    def output_until(at_ns):
        share = (at_ns[:, None] - begun_ns) / (ended_ns - begun_ns)
        return np.clip(share, 0, 1).sum(axis=1)

    return windows, closed_loop_rates(begun_ns, ended_ns, prompts, output_until, windows)


@pytest.mark.parametrize(("n_users", "n_requests", "sigma"), [(8, 160, 0.8), (32, 320, 0.4)])
def test_the_interval_of_a_short_closed_loop_holds_what_other_runs_do(n_users, n_requests, sigma):
    """Before, it was up to five times as wide as the spread of runs, and held all of them."""
    found, before = list[Rates](), list[Rates]()
    for seed in range(N_RUNS):
        begun_ns, ended_ns = closed_loop(seed, n_users, n_requests, sigma)
        assert is_closed_loop(begun_ns, ended_ns)
        windows, rates = rates_of(begun_ns, ended_ns)
        before.append(windows)
        found.append(rates)
    for name in ("completed_requests_per_s", "output_tokens_per_s"):
        estimates = [getattr(one, name) for one in found]
        truth = np.mean([one.value for one in estimates])
        needed = 1.96 * np.std([one.value for one in estimates])
        holds = np.mean([one.low <= truth <= one.high for one in estimates])
        half = np.mean([one.high - one.low for one in estimates]) / 2
        old = np.mean([getattr(one, name).high - getattr(one, name).low for one in before]) / 2
        assert holds > 0.89, "0.95, less four standard errors"
        assert half < 1.4 * needed, (half, needed)
        assert half < 0.8 * old


@pytest.mark.parametrize(("n_users", "n_requests", "sigma"), [(32, 128, 0.4), (8, 120, 1.2)])
def test_few_or_very_unequal_answers_have_the_interval_of_windows(n_users, n_requests, sigma):
    windows, rates = rates_of(*closed_loop(1, n_users, n_requests, sigma))
    assert rates == windows


def test_arrivals_of_their_own_are_no_closed_loop():
    rng = np.random.default_rng(3)
    begun_ns = np.sort(rng.integers(0, 10**11, 100))
    for took_ns in (10**6, 10**9, 10**10):
        assert not is_closed_loop(begun_ns, begun_ns + took_ns)
    assert not is_closed_loop(np.zeros(5, np.int64), np.arange(1, 6))
