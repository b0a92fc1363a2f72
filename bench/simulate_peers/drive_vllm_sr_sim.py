"""Run vllm-sr-sim over a workload: a fleet of one GPU with a directly specified profile.

Runs in its environment.
"""

import json
import math
import sys
import time
from pathlib import Path

from fleet_sim import Fleet, FleetConfig, ManualProfile, PoolConfig, Request


def profile(workload):
    """An iteration takes the launch, and for each active sequence a row and its context, at the workload's mean length."""
    settings = workload["settings"]
    n_requests = len(workload["prompt_tokens"])
    mean_tokens = (sum(workload["prompt_tokens"]) + sum(workload["output_tokens"])) / n_requests
    per_sequence_s = settings["per_row_s"] + settings["per_context_token_s"] * mean_tokens
    max_ctx = settings["max_model_len"]
    return ManualProfile(
        name="as ours",
        W=settings["launch_s"],
        H=per_sequence_s * max_ctx / mean_tokens,
        calibration_ctx=max_ctx,
        chunk=settings["max_num_batched_tokens"],
        blk_size=settings["block_size"],
        total_kv_blks=settings["max_num_seqs"] * math.ceil(max_ctx / settings["block_size"]),
        max_slots=settings["max_num_seqs"],
        cost_per_hr=1.0,
    )


def main():
    workload = json.loads(Path(sys.argv[1]).read_text())
    columns = zip(
        workload["arrival_ns"], workload["prompt_tokens"], workload["output_tokens"], strict=True
    )
    requests = [
        (arrival / 1e9, Request(req_id=i, arrival_time=arrival / 1e9, l_in=prompt, l_out=output))
        for i, (arrival, prompt, output) in enumerate(columns)
    ]
    pool = PoolConfig(
        pool_id="one",
        gpu=profile(workload),
        n_gpus=1,
        max_ctx=workload["settings"]["max_model_len"],
    )
    fleet = Fleet(FleetConfig(pools=[pool]))
    start_s = time.process_time()
    result = fleet.run(requests)
    cpu_s = time.process_time() - start_s
    ended_s = max(request.end_time for request in result.completed)
    print(
        json.dumps(
            {"cpu_s": cpu_s, "n_done": len(result.completed), "n_steps": None, "ended_s": ended_s}
        )
    )


main()
