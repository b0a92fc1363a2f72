"""How often is a clean load test not VALID by chance, all checks together, and is a bad one still seen?

The runs are simulated, with a client's own small delays; no machine is in them.
"""

from dataclasses import replace

import numpy as np
import pytest
from tests.records.load_run import changed, load_run

from inferometer.inputs.workload import reading, replay
from inferometer.records.validity import validity_of
from inferometer.simulate.run import demand_of, simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

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
CHAT = "chat preset at 5/s"
CASES = {
    "6 s": ('kind = "open"\nrate_per_s = 40.0', 240, 8, 0.1),
    "60 s": ('kind = "open"\nrate_per_s = 10.0', 600, 64, 0.8),
    "closed": ('kind = "closed"\nconcurrency = 16', 1000, 64, 0.8),
}


def workload_of(case, seed):
    if case == CHAT:
        changes = {"arrivals": {"kind": "open", "rate_per_s": 5.0}, "n_requests": 300, "seed": seed}
        return reading.with_changes(reading.resolve_workload("chat"), changes, where="the test")
    arrivals, n, tokens, sigma = CASES[case]
    text = WORKLOAD.format(n=n, seed=seed, arrivals=arrivals, tokens=tokens, sigma=sigma)
    return reading.workload_from_text(text, where="the test")


def clean(case, seed):
    """A run of this case as a client measures it that is late by 0.1 ms when it sends and by 0.5 ms when it reads."""
    drawn = replay.draw_workload(workload_of(case, seed))
    served = simulate(
        demand_of(drawn.plan, CONFIG.block_size, has_contents=False), CONFIG, COST
    ).requests
    rng, n = np.random.default_rng((1, seed)), len(served.intended_send_ns)

    def late_ns(typical_s):
        return (rng.lognormal(np.log(typical_s), 0.5, n) * 1e9).astype(np.int64)

    instants = {
        name: getattr(served, name)
        for name in ("intended_send_ns", "output_tokens", "prompt_tokens")
    }
    instants["sent_ns"] = served.intended_send_ns + late_ns(1e-4)
    instants["first_token_ns"] = served.first_token_ns + late_ns(5e-4)
    instants["finished_ns"] = np.maximum(
        instants["first_token_ns"] + 1, served.finished_ns + late_ns(5e-4)
    )
    run = changed(load_run(n=n), "requests", **instants)
    return changed(
        run,
        "exchanges",
        asked_output_tokens=served.output_tokens,
        last_byte_ns=instants["finished_ns"] + 10_000,
    )


def slower_ttft(run, factor):
    """TTFT so many times as long, with all that comes after it."""
    requests = run.requests
    more_ns = ((requests.first_token_ns - requests.intended_send_ns) * (factor - 1)).astype(
        np.int64
    )
    return changed(
        run,
        "requests",
        first_token_ns=requests.first_token_ns + more_ns,
        finished_ns=requests.finished_ns + more_ns,
    )


def share_of(verdicts, n, run_of):
    return sum(validity_of(run_of(seed)).verdict in verdicts for seed in range(n)) / n


@pytest.mark.slow
@pytest.mark.parametrize("case", [*CASES, CHAT])
def test_clean_runs_are_valid(case):
    assert share_of({"VALID"}, 60, lambda seed: clean(case, seed)) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [CHAT, *(pytest.param(one, marks=pytest.mark.long) for one in CASES)],
)
def test_of_a_thousand_clean_runs_95_in_100_are_valid(case):
    assert share_of({"VALID"}, 1000, lambda seed: clean(case, seed)) >= 0.95


def test_a_server_that_warms_up_or_slows_down_is_seen():
    begins = np.where(np.arange(600) < 60, 4.0, 1.0)
    assert share_of({"SUSPECT"}, 20, lambda seed: slower_ttft(clean("60 s", seed), begins)) >= 0.95
    assert (
        share_of(
            {"SUSPECT"}, 20, lambda seed: slower_ttft(clean("60 s", seed), np.linspace(1, 3, 600))
        )
        >= 0.95
    )


def deferred(instants_ns, begins_ns, ends_ns):
    """What is due while the client stands still happens when it goes on."""
    before = np.searchsorted(begins_ns, instants_ns, side="right") - 1
    until_ns = np.where(before >= 0, ends_ns[np.maximum(before, 0)], 0)
    return np.maximum(instants_ns, until_ns)


def stalled(run, seed):
    """The same load by a client that stands still: seldom or often, for 20 to 800 ms.

    Sends, reads and probes wait alike.
    """
    rng, requests = np.random.default_rng((7, seed)), run.requests
    every_s, typical_s = (
        float(np.exp(rng.uniform(*np.log(bounds)))) for bounds in ((0.3, 20.0), (0.02, 0.8))
    )
    end_ns = int(requests.finished_ns.max())
    n = max(int(end_ns / 1e9 / every_s), 1)
    begins_ns = np.sort((rng.random(n) * end_ns).astype(np.int64))
    ends_ns = np.maximum.accumulate(
        begins_ns + (rng.lognormal(np.log(typical_s), 0.5, n) * 1e9).astype(np.int64)
    )
    sent_ns = np.maximum(requests.sent_ns, deferred(requests.intended_send_ns, begins_ns, ends_ns))
    later_ns = sent_ns - requests.sent_ns
    first_ns = deferred(requests.first_token_ns + later_ns, begins_ns, ends_ns)
    finished_ns = np.maximum(
        first_ns + 1, deferred(requests.finished_ns + later_ns, begins_ns, ends_ns)
    )
    fired_ns = np.maximum(
        deferred(run.lags.due_ns, begins_ns, ends_ns), run.lags.due_ns + run.lags.lag_ns
    )
    late = changed(
        run, "requests", sent_ns=sent_ns, first_token_ns=first_ns, finished_ns=finished_ns
    )
    late = changed(late, "exchanges", last_byte_ns=finished_ns + 10_000)
    return replace(late, lags=run.lags._replace(lag_ns=fired_ns - run.lags.due_ns))


def ttft_p99_s(run):
    return np.quantile(
        (run.requests.first_token_ns - run.requests.intended_send_ns) / 1e9,
        0.99,
        method="inverted_cdf",
    )


def verdicts_by_error(seeds):
    """Of stalled clients: verdicts by how far p99 TTFT is off the same load's without the stalls."""
    found = {"wrong": [], "moved": [], "right": []}
    for seed in seeds:
        run = clean(tuple(CASES)[seed % len(CASES)], seed)
        late = stalled(run, seed)
        error_s = ttft_p99_s(late) - ttft_p99_s(run)
        found["wrong" if error_s > 0.05 else "moved" if error_s > 0.02 else "right"].append(
            validity_of(late).verdict
        )
    return found


@pytest.mark.slow
def test_a_client_that_was_late_is_invalid():
    found = verdicts_by_error(range(3000, 3060))
    assert len(found["wrong"]) >= 20
    assert found["wrong"].count("INVALID") >= 0.95 * len(found["wrong"])
    assert "VALID" not in found["moved"]


@pytest.mark.slow
def test_of_500_clients_that_stand_still_95_in_100_of_the_wrong_are_invalid():
    """And of 20 to 50 ms nobody says that nothing speaks against them."""
    found = verdicts_by_error(range(10_000, 10_500))
    assert len(found["wrong"]) >= 150
    assert found["wrong"].count("INVALID") >= 0.95 * len(found["wrong"])
    assert found["moved"].count("VALID") <= 0.05 * len(found["moved"])


def test_a_hundredth_and_less_of_delays_that_move_p99_are_seen():
    """Two of 240 requests are half a second late: they lie beyond p99, and push there who lay before it."""
    rng = np.random.default_rng(5)
    run = load_run(
        n=240,
        ttft_s=np.where(np.arange(240) < 6, 1.0 + 0.2 * np.arange(240), 0.1)
        * rng.lognormal(0, 0.01, 240),
    )
    is_hit = np.isin(np.arange(240), (100, 200))
    sent_ns = run.requests.intended_send_ns + np.where(is_hit, 3_000_000_000, 0)
    late = changed(
        run,
        "requests",
        sent_ns=sent_ns,
        first_token_ns=run.requests.first_token_ns + (sent_ns - run.requests.sent_ns),
    )
    assert ttft_p99_s(late) - ttft_p99_s(run) > 0.05
    assert np.quantile(sent_ns - run.requests.intended_send_ns, 0.99, method="inverted_cdf") == 0
    assert (
        next(one for one in validity_of(late).reasons if one.check == "client delay").verdict
        == "INVALID"
    )
