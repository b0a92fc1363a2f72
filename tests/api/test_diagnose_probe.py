"""Does a small load identify the limits of an emulated server, and does it send what it says?"""

from types import SimpleNamespace

import numpy as np
import pytest

from inferometer.api.diagnose_probe import Probe, probe
from inferometer.serve.emission_log import read_emission_log
from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_process import start
from inferometer.simulate import step_cost
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig

IDLE = SimpleNamespace(
    prompt_lengths=SimpleNamespace(most_tokens=600.0), running=np.zeros(4), waiting=np.zeros(4)
)


def found(max_num_seqs, budget, log):
    config = SchedulerConfig(
        num_blocks=4000,
        max_model_len=2048,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
    )
    fleet = lone_replica(config, step_cost.linear_cost(launch_s=10e-3))
    with start(EmulatorPlan(model_name="m", fleet=fleet, emission_log=log)) as emulator:
        return probe(emulator.url, IDLE)


@pytest.mark.slow
def test_limits_are_identified_by_what_was_announced(tmp_path):
    probed = found(4, 64, tmp_path / "log")
    assert probed.max_num_seqs == 4
    assert probed.least_budget_tokens <= 64 <= probed.most_budget_tokens
    assert 0.005 < probed.idle_ttft_s < 0.2
    assert probed.n_requests == 3 + 7 + 32
    sent = read_emission_log(tmp_path / "log").requests
    assert len(sent) == probed.n_requests
    assert probed.limits["max_num_seqs"] == 4


@pytest.mark.slow
def test_limits_that_are_not_reached_stay_open(tmp_path):
    probed = found(256, 2048, tmp_path / "log")
    assert (probed.max_num_seqs, probed.least_budget_tokens) == (None, None)
    assert probed.limits == {}


def test_a_range_with_one_usual_budget_names_it():
    facts = {"n_requests": 1, "most_tokens": 1, "idle_ttft_s": None}
    one = Probe(max_num_seqs=8, least_budget_tokens=50, most_budget_tokens=90, **facts)
    assert one.limits == {"max_num_seqs": 8, "max_num_batched_tokens": 64}
    two = Probe(max_num_seqs=None, least_budget_tokens=50, most_budget_tokens=130, **facts)
    assert two.limits == {}
