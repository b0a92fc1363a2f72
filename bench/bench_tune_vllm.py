"""Does ``tune --start`` find the best flags of a real vLLM server on this machine, with few servers?

``tune`` begins with flags that serve badly; then every cell of a grid of flags is started, warmed
and loaded once. Both count load tests, each of a fresh server. The cell that looked best and what
``tune`` ends with are then compared in fresh pairs, which count for neither: the best of many noisy
cells looks better than it is. ``tune`` may end outside the grid.

SmolLM2-135M with random weights and few layers, on the CPU, under a closed loop. About an hour.
"""

import argparse
import os
import shlex
import socket
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import msgspec
from bench_black_box_vllm import LONG, MODEL, MODEL_LEN, SERVED
from bench_tune import CLOSE_RATIO, MOST_SHARE, mean_ratio
from results_log import log_row
from vllm_here import QUIET, server_settings, vllm_python, write_model

import inferometer as im
from inferometer.api import load_run, tune_started, tune_subject
from inferometer.api.tune_measured import FirstServer
from inferometer.api.tune_pairs import Comparison, compared
from inferometer.api.workload import Workload
from inferometer.decide.tuning.playbook import PLAYBOOK
from inferometer.decide.tuning.start_command import parse_start, with_words
from inferometer.decide.tuning.trials import outcome_of, scored
from inferometer.inputs.catalog import find_model
from inferometer.inputs.workload import replay
from inferometer.measure.served import served, warm_up

GRID = {
    "--max-num-seqs": (1, 2, 4, 8, 12, 16, 24, 32),
    "--max-num-batched-tokens": (128, 256, 512, 1024),
    "--long-prefill-token-threshold": (0, 64, 256),
}
BEGIN = ("--max-num-seqs", "2", "--max-num-batched-tokens", "256")
STEPS = "max_num_seqs,step_budget,prefill_shaping,again"
N_PAIRS = 6
N_USERS = 16


def job_of(arguments, folder):
    """The tuning, of which the grid takes the server, the load and the score."""
    write_model(folder / "model", replace(find_model(MODEL), n_layers=arguments.layers))
    (folder / "long.toml").write_text(LONG.format(prompts=120, answers=40))
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    words = [vllm_python(), "-m", "vllm.entrypoints.openai.api_server", "--model", folder / "model"]
    words += ["--load-format", "dummy", "--dtype", "float32", "--enforce-eager"]
    words += [
        "--served-model-name",
        SERVED,
        "--max-model-len",
        MODEL_LEN,
        "--host",
        "127.0.0.1",
        *BEGIN,
    ]
    starting = tune_started.Starting(
        start=shlex.join(map(str, words)),
        pairs=arguments.pairs,
        endpoint="completions",
        prompts="token-ids",
    )
    steps = tune_subject.chosen_steps(STEPS, PLAYBOOK, f"--steps {STEPS}")
    remainder = tune_started.Remainder(
        wanted=tune_subject.Wanted("throughput", arguments.slo, 0.02),
        workload=Workload(
            workload=str(folder / "long.toml"), concurrency=N_USERS, duration=arguments.for_s
        ),
        steps=steps,
        named=frozenset(one.name for one in steps),
        out=folder / "tuned",
    )
    return tune_started.job_of(url, starting, remainder)


def cells_of(job):
    """The start command of every cell; a threshold that no step reaches is that of 0."""
    for at_once, budget, threshold in product(*GRID.values()):
        if threshold < budget:
            values = (at_once, budget, threshold)
            flags = [word for pair in zip(GRID, map(str, values), strict=True) for word in pair]
            yield values, with_words(job.start, flags)


def score_of(bench, command, folder):
    """The score of one load test of a fresh server."""
    folder.parent.mkdir(exist_ok=True)
    with served(bench.start(command, folder.with_suffix(".log"))):
        warm_up(bench.url, SERVED)
        request = bench.request(0)
        drawn = replay.draw_workload(request.load.workload)
        loaded = load_run.run_load(request, drawn, folder, bench.objective.percentile_fractions)
    return scored(outcome_of(loaded.run, bench.objective), bench.goal, 1).score


def measured_grid(job, bench, folder):
    """The score of each cell."""
    scores = {}
    for values, command in cells_of(job):
        began_s = time.monotonic()
        scores[command] = score_of(bench, command, folder / "-".join(map(str, values)))
        print(
            f"{len(scores):3} {scores[command]:8.2f} {values} in {time.monotonic() - began_s:.0f} s",
            flush=True,
        )
    return scores


def flags_of(command):
    """What a cell states of the grid's flags."""
    names = [flag.removeprefix("--").replace("-", "_") for flag in GRID]
    return " ".join(f"{name}={command.value(name)}" for name in names if command.value(name))


def main():
    """Measure, and add a row to RESULTS.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--for-s", type=float, default=12.0)
    parser.add_argument("--slo", default="ttft:p95<2s, tpot:p95<200ms")
    parser.add_argument("--pairs", type=int, default=10)
    arguments = parser.parse_args()
    os.environ |= QUIET | server_settings(n_threads=1)
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True)
    job = job_of(arguments, folder)
    begin_s = time.monotonic()
    answer = tune_started.answered(job)
    tune_s, begin_s = time.monotonic() - begin_s, time.monotonic()
    print(answer.command, [(one.name, one.decision, one.n_pairs, one.why) for one in answer.steps])
    first = msgspec.json.decode((folder / "tuned" / "first.json").read_bytes(), type=FirstServer)
    load = replace(job.bench.load, model=first.model)
    bench = replace(job.bench, load=load, version=first.version, folder=folder / "judged")
    scores = measured_grid(job, bench, folder / "grid")
    grid_s = time.monotonic() - begin_s
    found = parse_start(answer.command)
    best = max(scores, key=scores.__getitem__)
    ratio, how = 1.0, "the same cell"
    if flags_of(best) != flags_of(found):
        pairs = Comparison("judged", (best, found), 900_000, N_PAIRS, N_PAIRS)
        ratio, how = mean_ratio(compared(bench, pairs).log_ratios)
    n_loads = answer.n_servers - 1
    share = n_loads / len(scores)
    is_close, is_few = ratio >= CLOSE_RATIO, share <= MOST_SHARE
    log_row(
        "bench_tune_vllm",
        f"score of what tune ends with / the best cell's {ratio:.3f}"
        f" ({'within' if is_close else 'not within'} 5 %), {n_loads} of {len(scores)} load tests,"
        f" {share:.0%} ({'at most' if is_few else 'above'} 25 %)",
        f"{how}; best cell: {flags_of(best)}; tune: {flags_of(found)}; cells differ by"
        f" x{max(scores.values()) / min(scores.values()):.1f}; {grid_s / 60:.0f} and"
        f" {tune_s / 60:.0f} minutes; inferometer {im.__version__}",
    )


if __name__ == "__main__":
    main()
