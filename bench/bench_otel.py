"""What does tracing cost a load test: CPU with spans of 1, 10 and 100 % of requests, against none?

The real command against an emulated server, its spans through OpenTelemetry's own exporter to a
receiver of OTLP in another process. Rounds of four runs, in another order each; a ratio is that of
two runs of one round. The whole command's CPU is that of the operating system's account of it and
of its clients; the clients' own is what they send requests with.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from results_log import log_row

from inferometer.records.raw_log import EndFrame, RawLogReader, raw_logs
from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_process import start
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost
from inferometer.stats.quantiles import median_estimate

GOAL_RATIO = 1.01
"""At 10 %."""
FRACTIONS = (None, 0.01, 0.1, 1.0)
TESTS = Path(__file__).parents[1] / "tests"
WORKLOAD = """
[arrivals]
kind = "open"
rate_per_s = {rate}
[[classes]]
name = "short"
prompt_tokens = {{ kind = "constant", value = 200 }}
output_tokens = {{ kind = "constant", value = 64 }}
"""


def receive(pipe, folder):
    """Receive spans until the other end closes."""
    sys.path.insert(0, str(TESTS))
    from otlp_receiver import receiver

    with receiver(Path(folder) / "spans.jsonl") as collector:
        pipe.send(collector.url)
        pipe.recv()
        pipe.send(len(collector.spans))


def run_load(url, collector, folder, fraction, n_requests):
    """CPU seconds of the whole command, and of its client processes while they send."""
    line = [str(Path(sys.executable).parent / "inferometer"), "load", url, "--model", "m"]
    line += ["--workload", "short.toml", "--requests", str(n_requests), "--no-report"]
    line += ["--out", f"run-{fraction}"]
    if fraction is not None:
        line += ["--otlp-endpoint", collector, "--otlp-sample", str(fraction)]
    process = subprocess.Popen(
        line, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in {0, 3}, process.returncode
    ends = [
        frame
        for path in raw_logs(folder / f"run-{fraction}")
        for frame in RawLogReader(path)
        if isinstance(frame, EndFrame)
    ]
    return usage.ru_utime + usage.ru_stime, sum(end.cpu_s for end in ends)


def one_round(url, collector, order, n_requests, rate):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "short.toml").write_text(WORKLOAD.format(rate=rate))
        return {
            fraction: run_load(url, collector, folder, fraction, n_requests) for fraction in order
        }


def shown(ratios):
    estimate = median_estimate(ratios)
    interval = "" if estimate.low is None else f" [{estimate.low:.3f}, {estimate.high:.3f}]"
    return f"{estimate.value:.3f}{interval}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=100.0)
    asked = parser.parse_args()
    plan = EmulatorPlan(
        model_name="m",
        fleet=lone_replica(
            SchedulerConfig(num_blocks=20_000, max_model_len=16_384, max_num_seqs=256),
            linear_cost(launch_s=10e-3),
        ),
        mean_output_tokens=None,
    )
    here, there = multiprocessing.get_context("spawn").Pipe()
    with tempfile.TemporaryDirectory() as folder, start(plan) as emulator:
        process = multiprocessing.get_context("spawn").Process(
            target=receive, args=(there, folder), daemon=True
        )
        process.start()
        collector = here.recv()
        one_round(emulator.url, collector, FRACTIONS, 20, asked.rate)  # the first is not counted
        rounds = []
        for index in range(asked.rounds):
            turn = index % len(FRACTIONS)
            order = (*FRACTIONS[turn:], *FRACTIONS[:turn])
            rounds.append(one_round(emulator.url, collector, order, asked.requests, asked.rate))
            print(rounds[-1], flush=True)
        here.send("stop")
        n_spans = here.recv()
        process.join()
    none_s = median_estimate([one[None][0] for one in rounds]).value
    for fraction in FRACTIONS[1:]:
        whole = [one[fraction][0] / one[None][0] for one in rounds]
        clients = [one[fraction][1] / one[None][1] for one in rounds]
        log_row(
            f"tracing: spans of {fraction:.0%} of {asked.requests:,} requests, CPU ratio to none",
            f"whole command {shown(whole)}, its clients {shown(clients)} (n = {len(rounds)} each)",
            f"medians of pairs in turns, {asked.rate:g} requests/s of 64 tokens, {none_s:.2f} CPU s"
            f" without spans; {n_spans:,} spans received in all; goal {GOAL_RATIO} at 10 %",
        )


if __name__ == "__main__":
    main()
