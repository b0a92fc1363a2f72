"""Is a simulation refused for its memory only where it certainly takes more than is free?"""

import numpy as np
import pytest

from inferometer.api import memory_check
from inferometer.errors import SpecError
from inferometer.inputs.workload.plan import request_plan
from inferometer.simulate.fleet import ClusterConfig
from inferometer.simulate.scheduler_config import SchedulerConfig


def check(n_replicas, n_requests):
    ones = np.ones(n_requests, np.int64)
    plan = request_plan(
        "the test", arrival_ns=ones, prompt_tokens=512 * ones, output_tokens=16 * ones
    )
    engine = SchedulerConfig(num_blocks=10**8, max_model_len=4096, enable_prefix_caching=False)
    cluster = ClusterConfig(engine=engine, n_replicas=n_replicas)
    memory_check.check_drawn(plan, cluster, record_steps=False, n_replicas=n_replicas)


def test_blocks_that_no_request_can_take_need_no_memory(monkeypatch):
    """100 million of each replica, of a small model on a large device, counted as 19 GB."""
    monkeypatch.setattr(memory_check, "available_bytes", lambda: 10**8)
    check(n_replicas=8, n_requests=1000)
    with pytest.raises(SpecError, match="simulating 200,000 requests takes"):
        check(n_replicas=8, n_requests=200_000)
