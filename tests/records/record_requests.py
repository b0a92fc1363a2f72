"""Makes fixtures/version_2, a simulated run of requests as schema version 2 stores it.

``python tests/records/record_requests.py``.

A load just above what 8 slots and 140 KV blocks can do: preemptions, requests that are refused, one
that goes away, some that are not done at the end. The record is kept; it is made anew only while
version 2 has not been released.
"""

import shutil
import sys
from pathlib import Path

import numpy as np

from inferometer.records.store import write_run
from inferometer.simulate.demand import demand
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.simulated_run import simulated_run
from inferometer.simulate.step_cost import linear_cost

FOLDER = Path(__file__).parent / "fixtures" / "version_2"
N_REQUESTS = 600


def recorded_run():
    rng = np.random.default_rng(7)
    arrival_ns = np.cumsum(rng.exponential(0.11e9, N_REQUESTS)).astype(np.int64)
    is_batch = rng.random(N_REQUESTS) < 0.25
    prompt = np.where(
        is_batch, rng.integers(400, 900, N_REQUESTS), rng.integers(20, 200, N_REQUESTS)
    )
    prompt[50] = 3000  # longer than the model can remember
    output = np.where(is_batch, rng.integers(1, 40, N_REQUESTS), rng.integers(1, 160, N_REQUESTS))
    abort_ns = np.full(N_REQUESTS, np.iinfo(np.int64).min)
    abort_ns[100] = arrival_ns[100] + 50_000_000
    asked = demand(
        arrival_ns, prompt, output, class_index=is_batch.astype(np.int32), abort_ns=abort_ns
    )
    config = SchedulerConfig(
        num_blocks=140,
        max_model_len=2048,
        max_num_seqs=8,
        max_num_batched_tokens=512,
        enable_prefix_caching=False,
    )
    cost = linear_cost(
        launch_s=8e-3, per_row_s=40e-6, per_request_s=100e-6, per_context_token_s=0.5e-6
    )
    simulation = simulate(
        asked, config, cost, until_ns=int(arrival_ns[-1]) + 200_000_000, record_parts=True
    )
    return simulated_run(
        simulation,
        config,
        run_id="version-2",
        created_utc="2026-11-21T12:00:00Z",
        command=("tests/records/record_requests.py",),
        tool_version="0.1.0",
    )


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    run = recorded_run()
    write_run(FOLDER, run)
    statuses = np.bincount(run.requests.status, minlength=6).tolist()
    sys.stdout.write(
        f"{statuses} by status, {len(run.steps.start_ns)} steps, {run.requests.n_preemptions.sum()}"
        " preemptions\n"
    )
    sys.stdout.write(
        "".join(f"{caution.code}: {caution.text}\n" for caution in run.manifest.cautions)
    )
