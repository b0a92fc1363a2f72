"""Do the steps of a closed loop depend on nothing but lengths and scheduler, so that one simulation serves all step times?"""

import numpy as np
import pytest

from inferometer.fit.loads.load_tests import latencies
from inferometer.fit.published.closed_loop import ClosedLoad, loop_demand, loop_schedule
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.scenario import BEST, WORST
from inferometer.perfmodel.steptime import arrays_of
from inferometer.perfmodel.steptime_levels import datasheet_step_time
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig

LOAD = ClosedLoad(
    concurrency=12, prompt_tokens=300, output_tokens=60, least_share_ratio=0.8, n_rounds=5
)
CONFIG = SchedulerConfig(
    num_blocks=4000,
    max_model_len=512,
    max_num_seqs=16,
    max_num_batched_tokens=512,
    enable_prefix_caching=False,
)


@pytest.mark.parametrize("efficiency", [BEST, WORST])
@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_sums_of_steps_are_what_the_simulator_sees_with_these_step_times(efficiency, statistic):
    model = datasheet_step_time(
        find_model("llama-3.1-8b"),
        EngineSpec(dtype="bfloat16"),
        find_hardware("h100_sxm"),
        efficiency,
    )
    done = simulate(loop_demand(LOAD, pause_ns=1), CONFIG, arrays_of(model))
    seen = latencies(done.requests, done.requests)
    middle = getattr(np, statistic)
    schedule = loop_schedule(LOAD, CONFIG)
    summed = schedule.seen(
        model.terms(model.work(schedule.shapes)).total_s[None], np.zeros(1), statistic
    )
    assert summed.tpot_s[0] == pytest.approx(middle(seen.tpot_s), rel=0.01)
    assert summed.ttft_s[0] == pytest.approx(middle(seen.ttft_s), rel=0.02)
    assert summed.output_tokens_per_s[0] == pytest.approx(
        done.requests.output_tokens.sum() / done.end_ns * 1e9, rel=0.01
    )


def test_every_user_sends_again_when_its_answer_has_ended():
    requests = loop_demand(LOAD)
    assert requests.n_requests == 60
    assert (requests.follows[:12] == -1).all()
    assert (requests.follows[12:] == np.arange(48)).all()
    assert requests.prompt_tokens.min() >= 240
    assert requests.prompt_tokens.max() <= 300
