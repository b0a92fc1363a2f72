"""How far off is a topology of which no row was seen, predicted from the rows of all others?

A topology is one model, precision, framework, device, parallelism and lengths, as NVIDIA's
AISimulate counts them; its errors are the mean absolute percentage errors of TPOT and TTFT over its
rows. Each is left out of the rows of its model, framework and precision. Beside it stands what
AISimulate 0.13 publishes of the same topologies, which knows the kernels of the device and none of
these rows. Topologies of families with fewer than four other rows count as not answered.
"""

import argparse
import csv
import os
import time
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
from bench_published_devices import DATA, Loads, family_of, tables
from results_log import log_row

from inferometer.errors import InferometerError
from inferometer.fit.published.loads import published_loads
from inferometer.fit.published.posterior import fit_published, informing

TABLE = "inferencex-silicon"
MODELS = {
    "llama70b": ("llama-3.1-70b",),
    "gptoss120b": ("gpt-oss-120b",),
    "dsr1": ("deepseek-r1", "deepseek-v3"),
    "dsv4": ("deepseek-v4-pro",),
    "minimaxm2.5": ("minimax-m2.5",),
    "minimaxm3": ("minimax-m3",),
    "qwen3.5": ("qwen3.5-397b-a17b",),
    "glm5": ("glm-5",),
    "kimik2.5": ("kimi-k2.5",),
}
FRAMEWORKS = {"trt": "trtllm"}
LEAST_ROWS = 4


def topology_of(one):
    workers = "" if one.prefill is None else f"{one.prefill} {one.decode}"
    return (
        *family_of(one),
        one.hardware.hardware_id,
        one.plan.n_tensor,
        one.plan.n_sharing,
        one.has_expert_parallelism,
        workers,
        one.load.prompt_tokens,
        one.load.output_tokens,
    )


def theirs_of(path):
    """Topology without its parallelism beyond TP -> AISimulate's errors of TPOT and TTFT."""
    found = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            for model in MODELS[row["model"]]:
                framework = FRAMEWORKS.get(row["framework"], row["framework"])
                name = (framework, model, row["precision"], f"{row['gpu']}_sxm", row["tp"])
                lengths = (row["input_tokens"], row["output_tokens"])
                found[(*name, *lengths)] = tuple(
                    float(row[f"aisimulate_{metric}_mape_percent"] or "inf") / 100
                    for metric in ("tpot", "ttft")
                )
    return found


def their_key(one):
    lengths = (str(one.load.prompt_tokens), str(one.load.output_tokens))
    n_devices = str(one.n_devices) if one.prefill is None else "apart"
    return (*family_of(one), one.hardware.hardware_id, n_devices, *lengths)


def left_out(families, load):
    """Topology -> its rows' errors of TPOT and TTFT (N, 2), and which lie inside the interval."""
    for family, rows in sorted(families.items()):
        topologies = defaultdict(list)
        for one in rows:
            try:
                topologies[topology_of(one)].append(load(one))
            except InferometerError as error:
                print("  no room:", one.label, error)
        start_s = time.process_time()
        errors = []
        for name, asked in sorted(topologies.items(), key=str):
            seen = [one for other, mine in topologies.items() if other != name for one in mine]
            seen = informing(seen, asked[0].published)
            if len(seen) < LEAST_ROWS:
                yield name, asked, None, None
                continue
            fit = fit_published(seen, asked)
            told = np.stack([fit.predicted.log_tpot, fit.predicted.log_ttft], axis=1)
            half = np.stack([fit.predicted.half_tpot, fit.predicted.half_ttft], axis=1)
            published = [one.published for one in asked]
            miss = told - np.log([(one.tpot_s, one.ttft_s) for one in published])
            errors.append(np.abs(np.expm1(miss)))
            yield name, asked, errors[-1], np.abs(miss) <= half
        if errors:
            both = np.concatenate(errors)
            print(
                f"  {' '.join(family):50} {len(errors):3} topologies {len(both):4} rows: TPOT"
                f" {np.median(both[:, 0]):.1%}, TTFT {np.median(both[:, 1]):.1%},"
                f" {time.process_time() - start_s:.0f} s",
                flush=True,
            )


def words(mapes):
    return f"{np.median(mapes[:, 0]):.1%} / {np.median(mapes[:, 1]):.1%}"


def summary(name, found):
    errors = np.array([one[0] for one in found])
    theirs = np.array([one[1] for one in found])
    inside = np.concatenate([one[2] for one in found])
    nearer = np.mean(errors < theirs, axis=0)
    log_row(
        f"published topologies left out: {name}",
        f"TPOT / TTFT {words(errors)}, inside {np.mean(inside):.0%}",
        f"{len(errors)} topologies"
        + (
            ""
            if np.all(np.isnan(theirs))
            else f"; AISimulate {words(theirs)}, nearer than it in {nearer[0]:.0%} / {nearer[1]:.0%}"
        ),
    )


def written(found, path):
    """A line for each topology: the errors of both, and how many rows."""
    names = ("framework", "model", "precision", "device", "n_tensor", "n_sharing")
    names += ("experts", "workers", "prompt_tokens", "output_tokens")
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow([*names, "rows", "tpot", "ttft", "aisimulate_tpot", "aisimulate_ttft"])
        for errors, known, inside, name in found:
            lines.writerow([*name, len(inside), *errors, *known])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("INFEROMETER_PUBLISHED_DATA", DATA)
    )
    parser.add_argument("--family", help="Only models whose name contains this.", default="")
    parser.add_argument("--out", type=Path, help="Write the errors of each topology here.")
    parser.add_argument("--cache", type=Path, help="Keep simulated schedules here between runs.")
    arguments = parser.parse_args()
    if arguments.cache:
        arguments.cache.mkdir(parents=True, exist_ok=True)
    data = Path(arguments.data)
    public = published_loads(tables(data, TABLE))
    n_rows = len(public.loads) + sum(public.left_out.values())
    print(f"{n_rows} rows: {len(public.loads)} answered; {dict(public.left_out)}")
    theirs = theirs_of(data / "aisimulate-accuracy" / "topologies.csv")
    families = defaultdict(list)
    for one in public.loads:
        if arguments.family in one.model.model_id:
            families[family_of(one)].append(one)
    found, reasons = [], Counter()
    for name, asked, errors, inside in left_out(families, Loads(arguments.cache)):
        if errors is None:
            reasons["too few other rows"] += len(asked)
            continue
        known = theirs.get(their_key(asked[0].published), (np.nan, np.nan))
        found.append((errors.mean(axis=0), known, inside, name))
    print("not predicted:", dict(reasons))
    if arguments.out:
        written(found, arguments.out)
    summary("all", found)
    apart = [one for one in found if one[3][7]]
    if apart:
        summary("prefill and decode apart", apart)
    cohort = [one for one in found if np.isfinite(one[1][0])]
    for framework in ("", *sorted({one[3][0] for one in cohort})):
        mine = [one for one in cohort if framework in {"", one[3][0]}]
        if mine:
            summary(f"AISimulate's cohort{framework and ', ' + framework}", mine)


if __name__ == "__main__":
    main()
