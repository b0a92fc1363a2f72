"""How often is a clean load test not VALID by chance, all checks together, and is a bad one still seen?

The runs are simulated, with a client's own small delays; no machine is in them.
"""

from dataclasses import replace

import numpy as np
import pytest
from tests.records.load_run import changed, load_run

from inferometer.records.validity import validity_of
from inferometer.simulate import one_engine
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost
from inferometer.simulate.workload_demand import demand_of
from inferometer.spec.workload import reading, replay

CONFIG = SchedulerConfig(num_blocks=20_000, max_model_len=8192, max_num_seqs=256)
COST = linear_cost(launch_s=8e-3, per_row_s=4e-5)
WORKLOAD = """n_requests = {n}
seed = {seed}
[arrivals]
{arrivals}
[[classes]]
name = "short"
prompt_tokens = {{ kind = "lognormal", median = 200, sigma = {sigma}, max = 4000 }}
output_tokens = {{ kind = "lognormal", median = {tokens}, sigma = {sigma}, max = 400 }}
"""
CASES = {
    "6 s": ('kind = "open"\nrate_per_s = 40.0', 240, 8, 0.1),
    "60 s": ('kind = "open"\nrate_per_s = 10.0', 600, 64, 0.8),
    "closed": ('kind = "closed"\nconcurrency = 16', 1000, 64, 0.8),
}


def clean(case, seed):
    """A run of this case as a client measures it that is late by 0.1 ms when it sends and by 0.5 ms when it reads."""
    arrivals, n, tokens, sigma = CASES[case]
    text = WORKLOAD.format(n=n, seed=seed, arrivals=arrivals, tokens=tokens, sigma=sigma)
    drawn = replay.draw_workload(reading.workload_from_text(text, where="the test"))
    served = one_engine.simulate(demand_of(drawn.plan, CONFIG.block_size, has_contents=False), CONFIG, COST).requests
    rng = np.random.default_rng((1, seed))

    def late_ns(typical_s):
        return (rng.lognormal(np.log(typical_s), 0.5, n) * 1e9).astype(np.int64)

    instants = {name: getattr(served, name) for name in ("intended_send_ns", "output_tokens", "prompt_tokens")}
    instants["sent_ns"] = served.intended_send_ns + late_ns(1e-4)
    instants["first_token_ns"] = served.first_token_ns + late_ns(5e-4)
    instants["finished_ns"] = np.maximum(instants["first_token_ns"] + 1, served.finished_ns + late_ns(5e-4))
    run = changed(load_run(n=n), "requests", **instants)
    return changed(run, "exchanges", asked_output_tokens=served.output_tokens, last_byte_ns=instants["finished_ns"] + 10_000)


def slower_ttft(run, factor):
    """TTFT so many times as long, with all that comes after it."""
    requests = run.requests
    more_ns = ((requests.first_token_ns - requests.intended_send_ns) * (factor - 1)).astype(np.int64)
    return changed(run, "requests", first_token_ns=requests.first_token_ns + more_ns, finished_ns=requests.finished_ns + more_ns)


def share_of(verdicts, n, run_of):
    return sum(validity_of(run_of(seed)).verdict in verdicts for seed in range(n)) / n


@pytest.mark.parametrize("case", CASES)
def test_clean_runs_are_valid(case):
    assert share_of({"VALID"}, 60, lambda seed: clean(case, seed)) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_of_a_thousand_clean_runs_95_in_100_are_valid(case):
    assert share_of({"VALID"}, 1000, lambda seed: clean(case, seed)) >= 0.95


def test_a_server_that_warms_up_or_slows_down_is_seen():
    begins = np.where(np.arange(600) < 60, 4.0, 1.0)
    assert share_of({"SUSPECT"}, 20, lambda seed: slower_ttft(clean("60 s", seed), begins)) >= 0.95
    assert share_of({"SUSPECT"}, 20, lambda seed: slower_ttft(clean("60 s", seed), np.linspace(1, 3, 600))) >= 0.95


def test_a_client_that_was_late_is_invalid():
    def late(seed):
        run = clean("6 s", seed)
        stands = np.random.default_rng(seed).random(240) < 0.03
        return changed(run, "requests", sent_ns=run.requests.sent_ns + np.where(stands, 60_000_000, 0))

    def asleep(seed):
        run = clean("6 s", seed)
        lag_ns = np.where(np.random.default_rng(seed).random(len(run.lags.lag_ns)) < 0.03, 60_000_000, run.lags.lag_ns)
        return replace(run, lags=run.lags._replace(lag_ns=lag_ns))

    for bad in (late, asleep):
        assert share_of({"INVALID"}, 20, bad) >= 0.9
