"""Run Vidur over a workload.

Its Sarathi scheduler and its metrics, step times by formula, not by its random forest. Runs where
it is.
"""

import csv
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from vidur.config import ClusterConfig, MetricsConfig, SimulationConfig
from vidur.config.config import SarathiSchedulerConfig, TraceRequestGeneratorConfig
from vidur.entities import ExecutionTime
from vidur.execution_time_predictor import ExecutionTimePredictorRegistry
from vidur.simulator import Simulator


class AsOurs:
    """What a batch takes: the launch, its rows and its context, as one number where the forest has a dozen to look up."""

    def __init__(self, settings):
        self._settings = settings
        self.n_steps = 0

    def get_execution_time(self, batch, _pipeline_stage):
        settings = self._settings
        self.n_steps += 1
        context = sum(request.num_processed_tokens for request in batch.requests)
        seconds = (
            settings["launch_s"]
            + settings["per_row_s"] * batch.total_num_tokens
            + settings["per_context_token_s"] * context
        )
        return ExecutionTime(1, 1e3 * seconds, *[0] * 18)


def main():
    workload = json.loads(Path(sys.argv[1]).read_text())
    settings = workload["settings"]
    folder = Path(tempfile.mkdtemp())
    os.chdir(folder)
    with Path("trace.csv").open("w", newline="") as trace:
        writer = csv.writer(trace)
        writer.writerow(["arrived_at", "num_prefill_tokens", "num_decode_tokens"])
        arrivals = (when / 1e9 for when in workload["arrival_ns"])
        writer.writerows(
            zip(arrivals, workload["prompt_tokens"], workload["output_tokens"], strict=True)
        )
    step_times = AsOurs(settings)
    ExecutionTimePredictorRegistry.get = classmethod(lambda *_, **__: step_times)
    scheduler = SarathiSchedulerConfig(
        batch_size_cap=settings["max_num_seqs"],
        block_size=settings["block_size"],
        num_blocks=settings["num_blocks"],
        watermark_blocks_fraction=0.0,
        chunk_size=settings["max_num_batched_tokens"],
    )
    simulator = Simulator(
        SimulationConfig(
            log_level="warning",
            cluster_config=ClusterConfig(replica_scheduler_config=scheduler),
            request_generator_config=TraceRequestGeneratorConfig(
                trace_file="trace.csv", max_tokens=settings["max_model_len"]
            ),
            metrics_config=MetricsConfig(enable_chrome_trace=False, store_plots=False),
        )
    )
    requests = [event._request for _, event in simulator._event_queue]  # noqa: SLF001
    start_s = time.process_time()
    simulator.run()
    cpu_s = time.process_time() - start_s
    n_done = sum(request.completed for request in requests)
    ended_s = float(max(request.completed_at for request in requests))
    print(
        json.dumps(
            {"cpu_s": cpu_s, "n_done": n_done, "n_steps": step_times.n_steps, "ended_s": ended_s}
        ),
        flush=True,
    )
    os._exit(0)  # no plots


main()
