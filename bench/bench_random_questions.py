"""Do questions that nobody chose come to an end.

40 each for size, capacity, simulate and predict, over the whole catalogue?

Each question is a real command in a process of its own; models, devices, workloads, rates and SLOs
are drawn from a seed. Bars, with a warm cache on 2 cores: no command longer than 20 s (size) or 10
s (the others), and none that ends in a traceback. On a machine that others use the clock says
nothing about the command: there its CPU seconds (with all its processes) over two cores are judged.

    python bench/bench_random_questions.py [VERB ...] [--seed N] [--n N]
"""

import argparse
import os
import resource
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from typing import NamedTuple

import numpy as np
from results_log import log_row

from inferometer.inputs import catalog

LIMITS_S = {"size": 20.0, "capacity": 10.0, "simulate": 10.0, "predict": 10.0}
N_CORES = 2
PATIENCE_S = 240.0
WORKLOADS = ("chat", "code", "reasoning", "long-context", "batch")
RATES = (0.1, 0.5, 1, 2, 5, 10, 20, 50, 100)
SLOS = (
    "ttft:p95<500ms, tpot:p95<50ms",
    "ttft:p95<1s, tpot:p95<100ms",
    "ttft:p99<1s",
    "ttft:p95<2s",
    "tpot:p95<30ms",
    "ttft:p90<200ms, tpot:p90<20ms",
    "e2e:p95<30s",
    "e2e:p99<60s, ttft:p95<5s",
)


class Draw:
    """Choices from a seed."""

    def __init__(self, seed):
        self._rng = np.random.default_rng(list(seed.encode()))

    def choice(self, among):
        return among[self._rng.integers(len(among))]

    def sample(self, among, n):
        return [among[index] for index in self._rng.choice(len(among), n, replace=False)]


class Asked(NamedTuple):
    """What one command did."""

    words: list[str]
    wall_s: float
    cpu_s: float
    code: int | None
    """None: ended by this benchmark, after ``PATIENCE_S``."""
    stdout: str
    stderr: str


def question(verb, draw):
    """One command, all of whose names are in the catalogue."""
    model, tp = draw.choice(catalog.load_models()).model_id, draw.choice((1, 1, 2, 4, 8))
    devices = [one.hardware_id for one in catalog.load_hardware() if one.kind == "gpu"]
    load = ["--workload", draw.choice(WORKLOADS), "--rate", f"{draw.choice(RATES):g}"]
    device, slo = (
        ["--hardware", draw.choice(devices), "--tp", str(tp)],
        ["--slo", draw.choice(SLOS)],
    )
    if verb == "size":
        return [
            "size",
            model,
            *load,
            *slo,
            "--gpus",
            ",".join(draw.sample(devices, draw.choice((1, 2, 3, 5)))),
        ]
    if verb == "capacity":
        return ["capacity", model, *device, *load[:2], *slo]
    if verb == "simulate":
        return ["simulate", model, *device, *load, *draw.choice(([], slo))]
    lengths = [
        "--batch",
        str(draw.choice((1, 8, 64, 512))),
        "--prompt",
        str(draw.choice((128, 2048, 30_000))),
    ]
    return ["predict", model, *device, *lengths, *draw.choice(([], ["--what-if"]))]


def asked(words):
    """Run it; all its processes are of one group, which is ended where it takes too long."""
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-m", "inferometer", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=PATIENCE_S)
            code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
            code = None
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Asked(words, time.monotonic() - began_s, cpu_s, code, stdout, stderr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("verbs", nargs="*", default=list(LIMITS_S))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--n", type=int, default=40)
    chosen = parser.parse_args()
    failures = []
    for verb in chosen.verbs:
        draw, done = Draw(f"{verb} {chosen.seed}"), []
        for _ in range(chosen.n):
            one = asked(question(verb, draw))
            done.append(one)
            print(
                f"{one.wall_s:6.1f} s  {one.cpu_s:6.1f} CPU s  exit {one.code} "
                f" {shlex.join(one.words)}",
                flush=True,
            )
            text = one.stderr + one.stdout
            if (
                "Traceback (most recent call last)" in text
                or one.code is None
                or min(one.wall_s, one.cpu_s / N_CORES) > LIMITS_S[verb]
            ):
                failures.append(one)
                print(one.stderr[-2000:])
        codes = ", ".join(
            f"{n} exit {code}" for code, n in sorted(Counter(str(one.code) for one in done).items())
        )
        cpu_s, wall_s = [one.cpu_s for one in done], [one.wall_s for one in done]
        result = (
            f"CPU s median {statistics.median(cpu_s):.1f}, worst {max(cpu_s):.1f}; by the clock"
            f" {statistics.median(wall_s):.1f} and "
        )
        result += f"{max(wall_s):.1f} s"
        worst = max(done, key=lambda one: one.cpu_s)
        told = f"{codes}; load average {os.getloadavg()[0]:.0f}; worst: {shlex.join(worst.words)}".replace(
            "|", "/"
        )
        log_row(f"random questions, {verb}, {len(done)} with seed {chosen.seed}", result, told)
    assert not failures, [shlex.join(one.words) for one in failures]


if __name__ == "__main__":
    main()
