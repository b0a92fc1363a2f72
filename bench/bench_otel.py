"""What does tracing cost a load test: CPU with spans of 1, 10 and 100 % of requests, against none?

The real command against an emulated server, its spans and metrics through OpenTelemetry's own
exporters to a receiver of OTLP in another process. Rounds of four runs, in another order each; a
ratio is that of two runs of one round. The whole command's CPU is the operating system's account
of it and of its clients; the clients' own is what they send requests with.

Runs on a machine with other work differ by more than tracing costs. So its parts are measured by
themselves too, each many times in a process of its own: what a run pays once (the SDK's imports,
the exports' connections, the metrics), what each traced stream pays after the run, and what each
stream pays while it is sent (the header ``traceparent``).
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from results_log import log_row

from inferometer.inputs.spans import span_ids
from inferometer.measure import otlp
from inferometer.records import raw_log, reading, request_spans
from inferometer.records.raw_log import EndFrame, RawLogReader, raw_logs
from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_process import start
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost
from inferometer.stats.quantiles import median_estimate

GOAL_RATIO = 1.01
"""At 10 %."""
FRACTIONS = (0.01, 0.1, 1.0)
SPAWN = multiprocessing.get_context("spawn")
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


def measure_parts(pipe, url, run_folder):
    """CPU seconds: once a run, of 1,000 traced streams, of 1,000 headers."""
    run, sessions = reading.read_run(run_folder), raw_log.session_frames(run_folder)
    n_streams = len(run.requests.sent_ns)
    ids = span_ids("bench", sample_fraction=1.0)
    times_s = [time.process_time()]
    sender = otlp.SpanSender(url, "bench")
    sender.check()
    points = request_spans.request_metrics(run, sessions)
    assert otlp.send_metrics(url, "bench", points) == 7
    times_s.append(time.process_time())
    assert sender.send(request_spans.request_spans(run, sessions, ids)) > 2 * n_streams
    times_s.append(time.process_time())
    for row in range(1000):
        ids.traceparent(row)
    times_s.append(time.process_time())
    once_s, spans_s, headers_s = (later - before for before, later in pairwise(times_s))
    pipe.send((once_s, spans_s * 1000 / n_streams, headers_s))


def parts(url, collector, n_requests, rate, n_times):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "short.toml").write_text(WORKLOAD.format(rate=rate))
        run_load(url, collector, folder, None, n_requests)
        found = []
        for _ in range(n_times):
            here, there = SPAWN.Pipe()
            process = SPAWN.Process(
                target=measure_parts, args=(there, collector, folder / "run-None")
            )
            process.start()
            found.append(here.recv())
            process.join()
    return found


def one_round(url, collector, order, n_requests, rate):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "short.toml").write_text(WORKLOAD.format(rate=rate))
        return {
            fraction: run_load(url, collector, folder, fraction, n_requests) for fraction in order
        }


def shown(ratios):
    estimate = median_estimate(ratios)
    return f"{estimate.value:.3f} {interval(estimate)}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--parts", type=int, default=11, help="Times that the parts are measured.")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--fractions", type=float, nargs="+", default=FRACTIONS)
    asked = parser.parse_args()
    fractions = (None, *asked.fractions)
    plan = EmulatorPlan(
        model_name="m",
        fleet=lone_replica(
            SchedulerConfig(num_blocks=20_000, max_model_len=16_384, max_num_seqs=256),
            linear_cost(launch_s=10e-3),
        ),
        mean_output_tokens=None,
    )
    here, there = SPAWN.Pipe()
    with tempfile.TemporaryDirectory() as folder, start(plan) as emulator:
        process = SPAWN.Process(target=receive, args=(there, folder), daemon=True)
        process.start()
        collector = here.recv()
        one_round(emulator.url, collector, fractions, 20, asked.rate)  # the first is not counted
        rounds = []
        for index in range(asked.rounds):
            turn = index % len(fractions)
            order = (*fractions[turn:], *fractions[:turn])
            rounds.append(one_round(emulator.url, collector, order, asked.requests, asked.rate))
            print(rounds[-1], flush=True)
        costs = parts(emulator.url, collector, asked.requests, asked.rate, asked.parts)
        here.send("stop")
        n_spans = here.recv()
        process.join()
    none_s = median_estimate([one[None][0] for one in rounds]).value
    for fraction in asked.fractions:
        whole = [one[fraction][0] / one[None][0] for one in rounds]
        clients = [one[fraction][1] / one[None][1] for one in rounds]
        log_row(
            f"tracing: spans of {fraction:.0%} of {asked.requests:,} requests, CPU ratio to none",
            f"whole command {shown(whole)}, its clients {shown(clients)} (n = {len(rounds)} each)",
            f"medians of pairs in turns, {asked.rate:g} requests/s of 64 tokens, {none_s:.2f} CPU s"
            f" without spans; {n_spans:,} spans received in all; goal {GOAL_RATIO} at 10 %;"
            f" {beside()}",
        )
    once_s, spans_s, headers_s = (median_estimate(one) for one in zip(*costs, strict=True))
    added_s = 0.1 * spans_s.value + headers_s.value
    clients_s = median_estimate([one[None][1] for one in rounds]).value
    shares = [added_s / (took_s * 1000 / asked.requests) for took_s in (none_s, clients_s)]
    log_row(
        "tracing: what it costs by parts, CPU",
        f"{once_s.value * 1e3:.0f} ms once a run; of 1,000 streams {spans_s.value * 1e3:.0f} ms if"
        f" all are traced, {spans_s.value * 1e2:.1f} ms of 10 %;"
        f" {headers_s.value * 1e3:.1f} ms of headers",
        f"medians of {len(costs)}; once {interval(once_s)} s, spans {interval(spans_s)} s; at 10 %,"
        f" without what is paid once, {shares[0]:.2%} of the whole command's {none_s:.2f} s and"
        f" {shares[1]:.2%} of its clients' {clients_s:.2f} s for {asked.requests:,} streams of 64"
        f" chunks; what is paid once is {once_s.value / none_s:.1%} of the command's, less in longer"
        f" runs; {beside()}",
    )


def beside():
    return f"load average {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"


def interval(estimate):
    return "" if estimate.low is None else f"[{estimate.low:.3f}, {estimate.high:.3f}]"


if __name__ == "__main__":
    main()
