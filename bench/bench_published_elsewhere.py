"""How far are plain answers from values that others published, and that nothing here was fitted to?

Each row of ``results/published_elsewhere.csv`` is a value from an issue, a blog, a vendor's page or
a result file, found by search, with the command that a user would type for it. This script runs the
commands again, writes what they answer beside what was measured, and prints shares and medians.

Not taken up: values whose lengths or loads were not stated. Left out after they were seen to miss:
throughput of a few hundred requests of uneven lengths that drain, and six highest loads under an
SLO, which the first burst of all users may decide. Some questions were stated again after a miss:
vLLM 0.8.5 lacks asynchronous scheduling, which is switched off for it, the prompts of MI325X are as
long as their own rates imply, and A40's rates are run times. NVIDIA NIM's mean TTFT stands beside
our median. ShareGPT is the workload of that name. A server of another version or engine than
the one simulated counts as a miss, like any other. What these rows showed to be wrong was mended
(4-bit floats and products of GeForce cards, the memory of gpt-oss): for those rows this is no test
any more.

``results/published_unseen.csv`` (``--file``) is a second set: its commands and measured values were
committed before any of them was answered, and no question was stated again after; so are
``published_unseen_2.csv`` to ``published_unseen_8.csv``. Six commands of the third lacked flags
that their files state, which ``note`` says; they were mended and asked again, whatever came out. So
TensorRT-LLM's mixtures of experts on several devices stay questions of tensor parallelism, where its
page has the attention data-parallel: they come out 2.1 to 3.6 times too slow, and with
``--data-parallel-size`` 1.2 to 1.6 times. SGLang's cookbook ran some models on MI300X without AMD's
kernels (``SGLANG_USE_AITER=0``) or with the compiled norms of MiniMax-M2 taken out.
"""

import argparse
import csv
import json
import math
import shlex
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from results_log import log_row

from inferometer.inputs.resolve import resolve_model

FILE = Path(__file__).with_name("results") / "published_elsewhere.csv"
ANSWERED = ("likely", "low", "high", "basis")
REFUSED = "refused"
GROUPS = {
    "TPOT": ("tpot_",),
    "TTFT": ("ttft_",),
    "tokens/s of a server": ("output_tokens", "total_tokens"),
    "tokens/s of a single stream": ("decode_tokens",),
    "E2E": ("e2e_",),
    "memory for the KV cache": ("kv_",),
}


def read_rows(path=FILE):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_rows(rows, path):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def answer_of(command):
    done = subprocess.run(
        [sys.executable, "-m", "inferometer", *shlex.split(command), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout:
        sys.stderr.write(f"{command}: {done.stderr}\n")
        return None
    return json.loads(done.stdout)


def of_level(level, metric):
    summary = level["summary"]
    if metric in summary:
        return summary[metric]["value"]
    name, statistic = metric.split("_")[:2]
    latency = next(one for one in summary["latencies"] if one["latency"] == name)
    if statistic == "mean":
        return latency["mean"]["seconds"]["value"]
    fraction = int(statistic.removeprefix("p")) / 100
    return next(
        one["seconds"]["value"]
        for one in latency["percentiles"]
        if math.isclose(one["percentile_fraction"], fraction)
    )


def shown_numbers(answer, metric):
    """What a row's columns ``ANSWERED`` show; a refused command is a miss without a number."""
    if answer is None:
        return ("", "", "", REFUSED)
    *numbers, basis = numbers_of(answer, metric)
    return (*(f"{one:.4g}" for one in numbers), basis)


def numbers_of(answer, metric):
    """Likely value, both ends of the interval (the same where there is none), source of step times."""
    if "answered" in answer:
        found = answer["answered"][metric]
        return found["value"], found["low"], found["high"], answer["basis"]
    deployment = answer["deployment"]
    basis = deployment["step_times_basis"]
    if metric == "kv_gib_per_device":
        block_gib = kv_block_bytes_of_device(deployment) / 2**30
        likely, low, high = (
            deployment[f"n_kv_blocks{end}"] * block_gib for end in ("", "_low", "_high")
        )
        return likely, low, high, basis
    values = [of_level(level, metric) for level in answer["levels"]]
    return values[0], min(values), max(values), basis


def kv_block_bytes_of_device(deployment):
    """Where there are more devices than KV heads, several have the same head."""
    model = resolve_model(deployment["model_id"], load_format="dummy").spec
    n_parts = deployment["n_devices"]
    if model.mla is None:
        n_alike = deployment["tensor_parallel_size"] / model.attention.n_kv_heads
        n_parts /= max(1.0, n_alike)
    return deployment["kv_block_bytes"] / n_parts


def is_inside(row):
    return bool(row["likely"]) and float(row["low"]) <= float(row["measured"]) <= float(row["high"])


def summary_table(rows):
    """By kind of value: how many, median ratio and error, how many are in the interval."""
    lines = [
        "| value | rows | median of predicted / measured | median error | inside the interval |",
        "| --- | --: | --: | --: | --: |",
    ]
    for name, prefixes in GROUPS.items():
        found = [row for row in rows if row["metric"].startswith(prefixes)]
        ratios = [float(r["likely"]) / float(r["measured"]) for r in found if r["likely"]]
        inside = [is_inside(row) for row in found]
        if not ratios:
            continue
        error = statistics.median(abs(ratio - 1) for ratio in ratios)
        lines.append(
            f"| {name} | {len(found)} | {statistics.median(ratios):.2f} | {error:.0%}"
            f" | {statistics.mean(inside):.0%} |"
        )
    return "\n".join(lines).replace("%", " %")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, default=FILE, help="Rows to answer, in this form.")
    parser.add_argument("--jobs", type=int, default=1, help="Commands at once.")
    parser.add_argument("--only", default="", help="Commands that contain this.")
    parser.add_argument("--missing", action="store_true", help="Rows without an answer.")
    arguments = parser.parse_args()
    rows = read_rows(arguments.file)
    commands = dict.fromkeys(
        row["command"]
        for row in rows
        if arguments.only in row["command"] and not (arguments.missing and row["likely"])
    )
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for command, answer in zip(commands, pool.map(answer_of, commands), strict=True):
            for row in rows:
                if row["command"] == command:
                    shown = shown_numbers(answer, row["metric"])
                    row.update(zip(ANSWERED, shown, strict=True))
            write_rows(rows, arguments.file)
    if not all(row["basis"] for row in rows):
        return
    print(summary_table(rows))
    tpot = [row for row in rows if row["metric"].startswith("tpot_") and row["likely"]]
    error = statistics.median(abs(float(r["likely"]) / float(r["measured"]) - 1) for r in tpot)
    log_row(
        "bench_published_elsewhere",
        f"TPOT off by {error:.1%} in the median of {len(tpot)} rows",
        f"{arguments.file.name}: {len(rows)} values, {len({row['source'] for row in rows})} files and"
        f" pages, {len(commands)} commands; `python bench/accuracy.py --page` shows them",
    )


if __name__ == "__main__":
    main()
