"""Does a simulation without its steps say the same of its requests, in memory that does not grow with the steps?"""

import numpy as np

from inferometer.simulate import run
from inferometer.simulate.demand import demand
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

CONFIG = SchedulerConfig(
    num_blocks=600, max_model_len=512, max_num_seqs=2, enable_prefix_caching=False
)
COST = linear_cost(launch_s=0.001)


def test_requests_are_the_same_without_steps(monkeypatch):
    monkeypatch.setattr(run, "_ROWS", 64)
    random = np.random.default_rng(1)
    requests = demand(
        np.sort(random.integers(0, 10**10, 80)),
        random.integers(1, 200, 80),
        random.integers(1, 60, 80),
    )
    with_steps = simulate(requests, CONFIG, COST)
    without = simulate(requests, CONFIG, COST, record_steps=False)
    assert len(with_steps.steps.start_ns) > 10 * 64, "several logs were filled"
    assert without.steps is None
    assert (without.outcome, without.end_ns) == (with_steps.outcome, with_steps.end_ns)
    for one, other in zip(without.requests, with_steps.requests, strict=True):
        assert np.array_equal(one, other)
