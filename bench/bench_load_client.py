"""What does the load client cost, how exact are its instants, and how far is its TTFT from the truth?

Cost: CPU seconds of the client's processes per 1,000 streamed requests of 64 tokens. Truth: the
emission log of an emulated server on this machine, which says when each token was written.
Exactness: sent instants against a server that answers at once.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from results_log import log_row
from scipy import stats

from inferometer.inputs.plans import LoadPlan
from inferometer.inputs.workload.plan import request_plan
from inferometer.inputs.workload.reading import resolve_workload, with_changes
from inferometer.inputs.workload.replay import draw_workload
from inferometer.measure.load.load_test import LoadQuestion, run_session
from inferometer.measure.load.messages import ClientLimits
from inferometer.measure.load.schedule import Past
from inferometer.measure.load.target import Secrets
from inferometer.records.raw_log import (
    EndFrame,
    RawLogReader,
    RequestFrame,
    SessionFrame,
    int64s,
    raw_logs,
)
from inferometer.serve.emission_log import EmissionKind, read_emission_log
from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_process import start
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost
from inferometer.stats.quantiles import median_estimate

COST_BOUND_S = 2.0
START_BOUND_S = 1.0
TTFT_BOUND_S = 0.002
SPACING_BOUND_S = 0.001
HERE = Path(__file__).parent


def make(url, plan, folder, *, n_processes=1):
    """A load test: its request frames, its ends, and the CLOCK_MONOTONIC of its instant 0."""
    load = LoadPlan(
        url=url,
        served_model="m",
        endpoint="completions",
        workload=resolve_workload("chat"),
        n_processes=n_processes,
    )
    question = LoadQuestion(
        load=load,
        plan=plan,
        past=Past(),
        folder=folder,
        id_prefix="b",
        secrets=Secrets(),
        limits=ClientLimits(),
    )
    outcome = run_session(question, lambda _: None)
    assert not outcome.dead_processes
    frames = [frame for path in raw_logs(folder) for frame in RawLogReader(path)]
    requests = sorted(
        (one for one in frames if isinstance(one, RequestFrame)), key=lambda one: one.request_index
    )
    assert all(one.error == "" for one in requests), {one.error for one in requests}
    origins = {one.origin_monotonic_ns for one in frames if isinstance(one, SessionFrame)}
    return requests, [one for one in frames if isinstance(one, EndFrame)], origins.pop()


def arriving(n_requests, rate_per_s, process="poisson", **arrivals):
    """Requests of 64 tokens at these arrivals."""
    changes = {
        "arrivals": {"kind": "open", "rate_per_s": rate_per_s, "process": process, **arrivals},
        "n_requests": n_requests,
        "duration_s": None,
    }
    instants = draw_workload(
        with_changes(resolve_workload("chat"), changes, where="the benchmark")
    ).plan.arrival_ns
    return request_plan(
        "the benchmark",
        arrival_ns=instants,
        prompt_tokens=np.full(n_requests, 32),
        output_tokens=np.full(n_requests, 64),
    )


def bench_cost_and_truth(n_runs, n_requests, rate_per_s):
    """Against an emulated server: 5 ms a token."""
    config = SchedulerConfig(num_blocks=20_000, max_model_len=512, max_num_seqs=256)
    costs, p50s, p99s = [], [], []
    for index in range(n_runs):
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "emissions.bin"
            plan = EmulatorPlan(
                model_name="m",
                fleet=lone_replica(config, linear_cost(launch_s=5e-3)),
                mean_output_tokens=None,
                emission_log=log,
            )
            with start(plan) as emulator:
                requests, ends, origin_ns = make(
                    emulator.url,
                    arriving(n_requests, rate_per_s, "constant"),
                    Path(folder) / str(index),
                )
                emulator.stop()
            costs.append(sum(end.cpu_s for end in ends) / len(requests) * 1000)
            errors_s = ttft_errors_s(requests, origin_ns, read_emission_log(log))
            p50s.append(float(np.median(errors_s)))
            p99s.append(float(np.quantile(errors_s, 0.99)))
    cost = median_estimate(np.array(costs))
    log_row(
        "load client: CPU per 1,000 streams of 64 tokens",
        f"{cost.value:.2f} s {spread(costs)}",
        f"bound {COST_BOUND_S} s; {rate_per_s:g} requests/s",
    )
    text = (
        f"p50 {np.median(p50s) * 1e3:.2f} ms {spread(p50s, 1e3)}, p99 {np.median(p99s) * 1e3:.1f}"
        f" ms {spread(p99s, 1e3)}"
    )
    log_row(
        f"load client: TTFT shown less truth, at {rate_per_s:g} requests/s",
        text,
        f"bound of p50 {TTFT_BOUND_S * 1e3:g} ms; {n_requests:,} requests a run",
    )


def ttft_errors_s(requests, origin_ns, log):
    """First bytes here less first token written there; both count from the same intended instant."""
    first = {}
    is_token = log.kind == EmissionKind.TOKENS
    for number, written_ns in zip(
        log.number[is_token].tolist(), log.written_ns[is_token].tolist(), strict=True
    ):
        first.setdefault(number, written_ns)
    truth = {one.client_id: first[one.number] for one in log.requests}
    return (
        np.array(
            [
                int64s(one.read_ns)[0] + origin_ns - truth[f"b-{one.request_index}"]
                for one in requests
            ]
        )
        / 1e9
    )


@contextmanager
def answering_server():
    server = subprocess.Popen(
        [sys.executable, HERE / "answering_server.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
    finally:
        server.stdin.close()
        server.wait(10)


def bench_exactness(n_requests, rate_per_s):
    """Sent instants, as the client noted them when it handed each request to its socket."""
    for process, arrivals in (
        ("poisson", {}),
        ("gamma", {"burstiness_ratio": 0.5}),
        ("constant", {}),
    ):
        for n_processes in (1, 4):
            with answering_server() as url, tempfile.TemporaryDirectory() as folder:
                plan = arriving(n_requests, rate_per_s, process, **arrivals)
                requests, ends, _ = make(url, plan, Path(folder), n_processes=n_processes)
            sent_s = np.sort([one.sent_ns for one in requests]) / 1e9
            late_s = np.array([one.sent_ns - one.intended_ns for one in requests]) / 1e9
            cpu_s = sum(end.cpu_s for end in ends) / len(requests) * 1000
            name = (
                f"load client: {n_requests:,} {process} sends at {rate_per_s:g}/s, {n_processes}"
                f" process{'es' if n_processes > 1 else ''}"
            )
            asked_s = plan.arrival_ns / 1e9
            log_row(
                name,
                f"late p50 {np.median(late_s) * 1e3:.2f} ms, p99"
                f" {np.quantile(late_s, 0.99) * 1e3:.1f} ms; "
                + words_on_gaps(process, sent_s, asked_s),
                f"{cpu_s:.2f} CPU s per 1,000 requests with short answers",
            )


def words_on_gaps(process, sent_s, asked_s):
    """Do the gaps that were sent look like those that were asked for?"""
    gaps_s, wanted_s = np.diff(sent_s), np.diff(asked_s)
    moved_s = np.abs(gaps_s - wanted_s)
    said = (
        f"gap CV {gaps_s.std() / gaps_s.mean():.3f} (asked {wanted_s.std() / wanted_s.mean():.3f})"
    )
    if process == "poisson":
        said += (
            ", exponential by Kolmogorov-Smirnov: p ="
            f" {stats.kstest(gaps_s / gaps_s.mean(), 'expon').pvalue:.2f}"
        )
    counts, wanted = (np.bincount((at_s - at_s[0]).astype(int))[:-1] for at_s in (sent_s, asked_s))
    said += (
        f", dispersion of counts per second {counts.var() / counts.mean():.2f} (asked"
        f" {wanted.var() / wanted.mean():.2f})"
    )
    return (
        said + f", gaps moved by p50 {np.median(moved_s) * 1e3:.3f} ms (bound"
        f" {SPACING_BOUND_S * 1e3:g} ms)"
    )


def bench_start(n_runs):
    """From the command's start to its first request."""
    starts = []
    with answering_server() as url:
        for index in range(n_runs):
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / str(index)
                begin_ns = time.monotonic_ns()
                line = [
                    "load",
                    url,
                    "--model",
                    "m",
                    "--rate",
                    "20",
                    "--requests",
                    "5",
                    "--out",
                    str(out),
                    "--json",
                ]
                subprocess.run(
                    [Path(sys.executable).parent / "inferometer", *line],
                    check=False,
                    capture_output=True,
                )
                frames = [frame for path in raw_logs(out) for frame in RawLogReader(path)]
                session = next(one for one in frames if isinstance(one, SessionFrame))
                starts.append((session.origin_monotonic_ns - begin_ns) / 1e9)
    log_row(
        "load client: start",
        f"{np.median(starts):.2f} s {spread(starts)}",
        f"bound {START_BOUND_S} s; from the command to instant 0 of its schedule",
    )


def spread(values, factor=1.0):
    return f"[{min(values) * factor:.3g}, {max(values) * factor:.3g}] (n = {len(values)})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--sends", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--only", choices=["cost", "exactness", "start"])
    asked = parser.parse_args()
    if asked.only in {None, "cost"}:
        for rate_per_s in (100.0, asked.rate):
            bench_cost_and_truth(asked.runs, asked.requests, rate_per_s)
    if asked.only in {None, "start"}:
        bench_start(asked.runs)
    if asked.only in {None, "exactness"}:
        bench_exactness(asked.sends, asked.rate)
