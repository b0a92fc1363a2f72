"""Does the verdict on a load test know when the client was the bottleneck?

Clean and overloaded runs, against the truth.

The server is ``inferometer emulate`` on one core, with its own log of when it wrote each token; the
client is ``inferometer load`` on the other core. In overloaded runs it shares that with busy
processes, or is taken off it altogether (stopped and continued twice a second, as a machine does
that has no core to spare). What the client added to a request's TTFT is its late sending and the
time from the server's write to its own read; TTFT without that is what a perfect client had seen.
Bars: of runs whose p99 TTFT is more than 50 ms off, 95 % are INVALID; of clean runs, 95 % are
VALID.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from results_log import log_row

from inferometer.records.raw_log import RawLogReader, SessionFrame, raw_logs
from inferometer.records.reading import read_run
from inferometer.records.types import ABSENT
from inferometer.serve.emission_log import EmissionKind, read_emission_log

INFEROMETER = str(Path(sys.executable).with_name("inferometer"))
SERVER_CORE, CLIENT_CORE = 1, 0
MODEL, HARDWARE = "llama-3.1-8b", "h100-sxm"
BUSY = "while True: pass"
OVERLOADS = ((32, 0.0), (0, 0.06), (0, 0.12), (8, 0.25))
"""(Busy processes beside the client, seconds for which it is stopped, twice a second)."""
PERIOD_S = 0.5
WORKLOAD = """n_requests = 100000
[arrivals]
kind = "open"
rate_per_s = 1.0
[[classes]]
name = "short"
prompt_tokens = { kind = "constant", value = 100 }
output_tokens = { kind = "constant", value = 8 }
"""
LIMIT_S = 0.050
CLASSES = (("<= 20 ms", 0.0, 0.020), ("20 to 50 ms", 0.020, LIMIT_S), ("> 50 ms", LIMIT_S, np.inf))


class Outcome(NamedTuple):
    n_busy: int
    stopped_s: float
    verdict: str
    why: str
    error_s: float
    """Of p99 TTFT."""
    delay_p99_s: float


@contextmanager
def pinned(core, *command, **options):
    process = subprocess.Popen(["taskset", "-c", str(core), *command], **options)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def busy(n):
    processes = [
        subprocess.Popen(["taskset", "-c", str(CLIENT_CORE), sys.executable, "-c", BUSY])
        for _ in range(n)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def client_errors(folder, emissions):
    """Of each request: TTFT as measured, and what the client added to it, in seconds."""
    run = read_run(folder)
    (session,) = [
        frame
        for path in raw_logs(folder)
        for frame in RawLogReader(path)
        if isinstance(frame, SessionFrame)
    ]
    numbers = {one.client_id: one.number for one in emissions.requests}
    is_token = emissions.kind == EmissionKind.TOKENS
    first_ns = {}
    for number, written_ns in zip(
        emissions.number[is_token].tolist(), emissions.written_ns[is_token].tolist(), strict=True
    ):
        first_ns.setdefault(number, written_ns)
    prefix = run.manifest.run_id[-8:]
    columns = (
        run.requests.request_index,
        run.requests.intended_send_ns,
        run.requests.sent_ns,
        run.requests.first_token_ns,
    )
    found = []
    for index, intended_ns, sent_ns, arrived_ns in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        number = numbers.get(f"{prefix}-{index}")
        if number in first_ns and arrived_ns != ABSENT:
            written_ns = first_ns[number] - session.origin_monotonic_ns
            found.append(
                (arrived_ns - intended_ns, (sent_ns - intended_ns) + (arrived_ns - written_ns))
            )
    return run, np.array(found) / 1e9


def stop_now_and_then(processes, stopped_s, seconds):
    """The processes do not run for so long, twice a second."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        for process in processes if stopped_s else ():
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        time.sleep(stopped_s)
        for process in processes if stopped_s else ():
            with suppress(psutil.NoSuchProcess):
                process.resume()
        time.sleep(PERIOD_S - stopped_s)


def one_run(url, log, folder, overload, options, seed):
    n_busy, stopped_s = overload
    workload = folder.with_suffix(".toml")
    workload.write_text(WORKLOAD)
    command = [
        INFEROMETER,
        "load",
        url,
        "--model",
        MODEL,
        "--rate",
        str(options.rate),
        "--for",
        f"{options.seconds}s",
    ]
    command += [
        "--workload",
        str(workload),
        "--seed",
        str(seed),
        "--out",
        str(folder),
        "--drain",
        "10s",
    ]
    client = subprocess.Popen(
        ["taskset", "-c", str(CLIENT_CORE), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while not list(folder.glob("raw/*.raw")) and client.poll() is None:
        time.sleep(0.05)
    with busy(n_busy):
        stop_now_and_then(
            psutil.Process(client.pid).children(recursive=True), stopped_s, options.seconds
        )
    said, _ = client.communicate(timeout=300)
    if client.returncode not in {0, 3}:
        raise SystemExit(said)
    time.sleep(0.5)
    run, pairs = client_errors(folder, read_emission_log(log))
    measured, error = pairs.T
    verdict = run.manifest.validity
    bad = "; ".join(f"{one.check}: {one.text}" for one in verdict.reasons if one.verdict != "VALID")
    off_s = float(
        np.quantile(measured, 0.99, method="inverted_cdf")
        - np.quantile(measured - error, 0.99, method="inverted_cdf")
    )
    return Outcome(
        n_busy,
        stopped_s,
        verdict.verdict,
        bad,
        off_s,
        float(np.quantile(error, 0.99, method="inverted_cdf")),
    )


@contextmanager
def server(log):
    command = [
        INFEROMETER,
        "emulate",
        MODEL,
        "--hardware",
        HARDWARE,
        "--port",
        "0",
        "--emission-log",
        str(log),
        "--time-scale",
        "3",
    ]
    with pinned(
        SERVER_CORE, *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        line = ""
        while not (found := re.search(r"http://[\d.:]+", line)):
            line = process.stdout.readline()
            if not line:
                raise SystemExit("the emulator did not start")
        yield found.group()


def table(outcomes):
    lines = []
    for name, low_s, high_s in CLASSES:
        mine = [
            one
            for one in outcomes
            if low_s < one.error_s <= high_s or (low_s == 0.0 and one.error_s <= 0)
        ]
        counts = Counter(one.verdict for one in mine)
        lines.append(
            f"{name}: {len(mine)} runs, {counts['VALID']} VALID, {counts['SUSPECT']} SUSPECT,"
            f" {counts['INVALID']} INVALID"
        )
    return "; ".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="of each kind")
    parser.add_argument("--rate", type=float, default=40.0)
    parser.add_argument("--seconds", type=int, default=6)
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args()
    if (os.cpu_count() or 1) < 2:
        raise SystemExit("needs two cores: one for the server, one for the client")
    outcomes = []
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "emissions.log"
        with server(log) as url:
            for i in range(2 * options.runs):
                overload = OVERLOADS[i // 2 % len(OVERLOADS)] if i % 2 else (0, 0.0)
                outcomes.append(
                    one_run(
                        url,
                        log,
                        Path(scratch) / f"run-{i}",
                        overload,
                        options,
                        options.first_seed + i,
                    )
                )
                print(outcomes[-1], flush=True)
    is_clean = [one.n_busy == 0 and one.stopped_s == 0 for one in outcomes]
    clean = [one for one, is_it in zip(outcomes, is_clean, strict=True) if is_it]
    loaded = [one for one, is_it in zip(outcomes, is_clean, strict=True) if not is_it]
    wrong = [one for one in outcomes if one.error_s > LIMIT_S]
    caught = sum(one.verdict == "INVALID" for one in wrong)
    valid = sum(one.verdict == "VALID" for one in clean)
    sentence = (
        f"clean runs: {valid} of {len(clean)} VALID; overloaded:"
        f" {dict(Counter(one.verdict for one in loaded))}"
    )
    log_row(
        f"the verdict against the truth, {options.rate:g} requests/s for {options.seconds} s",
        f"{caught} of {len(wrong)} runs whose p99 TTFT was more than 50 ms off are INVALID;"
        f" {sentence}",
        f"By the error that the client put into p99 TTFT: {table(outcomes)}.",
    )


if __name__ == "__main__":
    main()
