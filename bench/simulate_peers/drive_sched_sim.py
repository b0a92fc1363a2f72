"""Run sched-sim 0.2.1 over a workload: its chunked scheduler, driven as its own examples do.

Runs in its environment.
"""

import json
import sys
import time
from pathlib import Path

from sched_sim.core.event_engine import Simulator
from sched_sim.core.request import Request
from sched_sim.hardware.profile import HardwareProfile
from sched_sim.schedulers.factory import create_scheduler

N_PARAMETERS, KV_BYTES_PER_TOKEN, RESERVED_GIB = 1e6, 2 * 8 * 1 * 256 * 2, 0.5


def hardware(settings):
    """A launch takes what ours takes, then the longer of computing and reading; weights are too few to count."""
    weights_gib = N_PARAMETERS * 2 / 2**30
    kv_gib = (settings["num_blocks"] + 0.5) * settings["block_size"] * KV_BYTES_PER_TOKEN / 2**30
    return HardwareProfile(
        name="as ours",
        vram_gb=weights_gib + RESERVED_GIB + kv_gib,
        memory_bandwidth_gb_s=KV_BYTES_PER_TOKEN / settings["per_context_token_s"] / 1e9,
        fp16_tflops=2 * N_PARAMETERS / settings["per_row_s"] / 1e12,
        tensor_core_efficiency=1.0,
        kernel_launch_overhead_ms=1e3 * settings["launch_s"],
        model_name="as ours",
        parameter_count_billions=N_PARAMETERS / 1e9,
        num_layers=8,
        num_kv_heads=1,
        head_dim=256,
    )


def main():
    workload = json.loads(Path(sys.argv[1]).read_text())
    settings = workload["settings"]
    profile = hardware(settings)
    scheduler = create_scheduler(
        "chunked",
        profile,
        token_budget=settings["max_num_batched_tokens"],
        max_batch_size=settings["max_num_seqs"],
    )
    columns = zip(
        workload["arrival_ns"], workload["prompt_tokens"], workload["output_tokens"], strict=True
    )
    requests = [
        Request(
            request_id=str(i), arrived_at=arrival / 1e9, prompt_tokens=prompt, output_tokens=output
        )
        for i, (arrival, prompt, output) in enumerate(columns)
    ]
    simulator = Simulator(profile, scheduler)
    start_s = time.process_time()
    simulator.submit_workload(requests)
    metrics = simulator.run()
    cpu_s = time.process_time() - start_s
    ended_s = metrics.simulation_duration_s
    print(
        json.dumps(
            {
                "cpu_s": cpu_s,
                "n_done": metrics.completed_requests,
                "n_steps": metrics.total_iterations,
                "ended_s": ended_s,
            }
        )
    )


main()
