"""Do statistics of a rate sweep give back the step times of the server that they are of?"""

from dataclasses import replace

import numpy as np
import pytest

from inferometer.errors import ModelError
from inferometer.fit.loads.requests import STATISTICS, RateStatistics, fit_rates
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.steptime import arrays_of
from inferometer.perfmodel.steptime_levels import datasheet_step_time
from inferometer.simulate.demand import demand
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig

CONFIG = SchedulerConfig(
    num_blocks=20_000, max_model_len=512, max_num_seqs=128, max_num_batched_tokens=2048
)
ENGINE = EngineSpec(engine="vllm", mode="compiled", dtype="bfloat16", device="cuda")
FRONT_END_S = 4e-3


def prior():
    """The datasheet's steps, of which the bandwidth is not known."""
    model = datasheet_step_time(find_model("llama-3.1-8b"), ENGINE, find_hardware("h100_sxm"))
    model = replace(
        model, parameters=tuple(replace(one, informed_by="prior") for one in model.parameters)
    )
    return replace(model, free=("weight_bytes_per_s",), covariance=((0.3**2,),))


def truth():
    return replace(
        prior(),
        parameters=tuple(
            replace(one, estimate=replace(one.estimate, value=2e12, low=None, high=None))
            if one.name == "weight_bytes_per_s"
            else one
            for one in prior().parameters
        ),
    )


def published(rate_per_s, seed, served_fraction=1.0):
    rng = np.random.default_rng(100 + seed)
    arrival_ns = np.cumsum(rng.exponential(1e9 / rate_per_s, 300)).astype(np.int64)
    done = simulate(
        demand(arrival_ns, np.full(300, 200), np.full(300, 40)), CONFIG, arrays_of(truth())
    ).requests
    ends_ns = {"ttft": done.first_token_ns, "e2e": done.finished_ns}
    seconds = {name: (at_ns - done.sent_ns) / 1e9 + FRONT_END_S for name, at_ns in ends_ns.items()}
    values = [
        np.mean(seconds[name]) if at is None else np.quantile(seconds[name], at)
        for name, at in STATISTICS
    ]
    return RateStatistics(
        offered_per_s=rate_per_s,
        completed_per_s=served_fraction * rate_per_s,
        n_requests=300,
        n_failed=0,
        prompt_tokens=200.0,
        output_tokens=40.0,
        seconds=tuple(float(value) for value in values),
    )


def test_the_step_times_come_back_and_the_rate_that_was_held_out_is_met():
    rates = [published(rate, seed) for seed, rate in enumerate((2.0, 10.0, 20.0, 30.0))]
    fit = fit_rates([*rates, published(80.0, 9, served_fraction=0.7)], CONFIG, prior())
    assert fit.n_rates == 3
    assert fit.held_out == rates[2]
    found = next(one.estimate for one in fit.model.parameters if one.name == "weight_bytes_per_s")
    assert found.value == pytest.approx(2e12, rel=0.05)
    assert fit.model.front_end_s.value == pytest.approx(FRONT_END_S, rel=0.3)
    errors = np.array(fit.simulated_s) / np.array(fit.held_out.seconds) - 1
    assert (np.abs(errors) < 0.15).all()


def test_rates_beyond_what_the_server_carries_teach_nothing():
    with pytest.raises(ModelError, match="1 of 2 rates at which the server kept up"):
        fit_rates([published(5.0, 0), published(80.0, 1, served_fraction=0.5)], CONFIG, prior())
