"""Does a closed loop over prefill and decode workers obey the laws of queues, and a simulation of them?"""

from dataclasses import replace

import numpy as np
import pytest

from inferometer.fit.published.closed_loop import ClosedLoad, Workers, apart_schedule
from inferometer.perfmodel.roofline import ParallelPlan

LOAD = ClosedLoad(concurrency=64, prompt_tokens=1000, output_tokens=100)
ONE = Workers(n_workers=1, plan=ParallelPlan())
TWO = Workers(n_workers=2, plan=ParallelPlan(n_tensor=4, n_sharing=2))
FRONT_S = np.array([0.01])


def seen(load, prefill, decode, *, prompt_s, token_s, statistic="median"):
    """A prompt takes ``prompt_s`` and a step of b sequences ``token_s(b)``."""
    schedule = apart_schedule(load, prefill, decode, budget=2000)
    step_s = [
        shape.n_prefill_requests * prompt_s + token_s(shape.n_decode_requests)
        if shape.n_decode_requests
        else shape.n_prefill_requests * prompt_s
        for shape in schedule.shapes
    ]
    return schedule.seen(np.array([step_s]), FRONT_S, statistic)


def test_workers_and_devices():
    assert (TWO.n_replicas, TWO.n_devices) == (4, 16)


@pytest.mark.parametrize("concurrency", [1, 7, 64, 500])
@pytest.mark.parametrize("prompt_s", [1e-4, 0.02, 0.2])
@pytest.mark.parametrize("prefill", [ONE, TWO])
def test_littles_law_holds(concurrency, prompt_s, prefill):
    load = replace(LOAD, concurrency=concurrency)
    found = seen(load, prefill, TWO, prompt_s=prompt_s, token_s=lambda n: 0.01 + 1e-4 * n)
    in_system_s = found.ttft_s[0] + 99 * found.tpot_s[0]
    assert found.output_tokens_per_s[0] / 100 * in_system_s == pytest.approx(concurrency, rel=1e-3)


def test_free_prefill_leaves_decode_to_all_users():
    found = seen(LOAD, ONE, TWO, prompt_s=1e-9, token_s=lambda n: 0.01 + 1e-4 * n)
    assert found.tpot_s[0] == pytest.approx(0.01 + 1e-4 * 16, rel=0.01)
    assert found.ttft_s[0] == pytest.approx(FRONT_S[0], rel=0.01)


def test_slow_prefill_sets_the_rate_and_users_wait_there():
    found = seen(LOAD, ONE, TWO, prompt_s=0.5, token_s=lambda _: 1e-3)
    assert found.output_tokens_per_s[0] == pytest.approx(100 / 0.5, rel=0.01)
    assert found.ttft_s[0] == pytest.approx(64 * 0.5 - 99 * 1e-3, rel=0.02)


def test_the_first_wave_is_part_of_a_mean():
    kind = {"prompt_s": 0.02, "token_s": lambda n: 0.05 + 1e-4 * n}
    steady, mean = (seen(LOAD, ONE, TWO, **kind, statistic=name) for name in ("median", "mean"))
    wave_s = 0.02 + 0.02 * 63 / 2 + FRONT_S[0]
    assert mean.ttft_s[0] == pytest.approx(0.9 * steady.ttft_s[0] + 0.1 * wave_s)
    assert mean.tpot_s[0] == steady.tpot_s[0]
