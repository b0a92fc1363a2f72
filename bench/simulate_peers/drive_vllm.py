"""Run the real scheduler and engine loop of vLLM 0.32.0 over a workload, on a virtual clock.

Runs in vLLM's environment.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from cases import Case, CaseRequest
from vllm_driver import VllmFactory
from vllm_engine_loop import Loop

from inferometer.records.types import ABSENT
from inferometer.simulate.demand import demand
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost


class CountingLoop(Loop):
    """Notes how many batches the device was given."""

    n_steps = 0

    def step(self):
        self.n_steps += 1
        return super().step()


def main():
    workload = json.loads(Path(sys.argv[1]).read_text())
    settings = workload["settings"]
    names = ("num_blocks", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size")
    config = SchedulerConfig(
        **{name: settings[name] for name in names},
        enable_prefix_caching=False,
        async_scheduling=False,
    )
    columns = zip(
        workload["arrival_ns"], workload["prompt_tokens"], workload["output_tokens"], strict=True
    )
    rows = tuple(
        CaseRequest(
            prompt=(1,) * prompt,
            outputs=(2,) * output,
            max_tokens=output,
            priority=0,
            arrival_step=0,
            arrival=arrival,
            abort_step=None,
        )
        for arrival, prompt, output in columns
    )
    cost = linear_cost(launch_s=settings["launch_s"], per_row_s=settings["per_row_s"])
    requests = demand(
        *(np.array(workload[name]) for name in ("arrival_ns", "prompt_tokens", "output_tokens"))
    )
    loop = CountingLoop(Case(seed=0, config=config, requests=rows), requests, VllmFactory(), cost)
    start_s = time.process_time()
    _, last = loop.run(max_steps=sys.maxsize)
    cpu_s = time.process_time() - start_s
    done = [when for when in last if when != ABSENT]
    print(
        json.dumps(
            {
                "cpu_s": cpu_s,
                "n_done": len(done),
                "n_steps": loop.n_steps,
                "ended_s": max(done) / 1e9,
            }
        )
    )


main()
