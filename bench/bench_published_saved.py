"""How far off is a saved fit of published loads, which has step times alone, and do its intervals hold what they claim?

The questions and halves of ``bench_published_devices.py``. Of each number of devices that is asked
about a step-time model is made, as ``inferometer fit TABLE --out`` saves it, and the loads' steps
are timed by it. Its intervals are those of one decode step of so many users and of one prefill of
such a prompt, as ``inferometer predict --fit`` shows them.
"""

import argparse
import os
from collections import defaultdict
from pathlib import Path

import numpy as np
from bench_published_devices import DATA, Loads, groups_of, half, questions, tables
from results_log import log_row

from inferometer.errors import SpecError
from inferometer.fit.published import step_time
from inferometer.fit.published.loads import published_loads
from inferometer.fit.published.step_time import PHASES

TABLES = ("inferencemax-official-2025-11", "inferencex-silicon")
QUESTIONS = ("concurrency", "degree", "lengths", "batches", "device")


def misses(model, asked):
    """(N, 2) Of TPOT and TTFT, and half the width of what is claimed."""
    found = []
    for one in asked:
        step_s = model.terms(model.work(one.schedule.shapes)).total_s[None]
        seen = one.schedule.seen(
            step_s, np.array([model.front_end_s.value]), one.published.statistic
        )
        miss = np.log(
            [seen.tpot_s[0] / one.published.tpot_s, seen.ttft_s[0] / one.published.ttft_s]
        )
        shapes = [step_time.typical_step(one, phase) for phase in PHASES]
        found.append((miss, model.log_half_widths(shapes, model.work(shapes))))
    return np.array(found)


def asked_about(name, data, cache, wanted):
    loads, load = published_loads(tables(data, name)).loads, Loads(cache)
    step_time.simulated = load
    groups = groups_of(loads, name)
    for key, rows in sorted(groups.items()):
        others = [
            one
            for other, theirs in groups.items()
            if other[0] == key[0] and other[2:] == key[2:] and other != key
            for one in theirs
        ]
        for question, seen, asked in questions(rows, others):
            if len(seen) < 4 or question not in wanted:
                continue
            by_degree = defaultdict(list)
            for one in asked:
                by_degree[one.engine.tensor_parallel_size].append(one)
            for degree, mine in by_degree.items():
                try:
                    model = step_time.published_step_time(seen, mine[0].hardware, n_tensor=degree)
                    told = misses(model, [load(one) for one in mine])
                except SpecError as error:
                    print("  not asked:", key, question, error)
                    continue
                yield question, "reported" if half(key[2:]) else "learned", told
        print(" ".join(key), flush=True)


def words(told, metric):
    miss, half_width = np.abs(told[:, 0, metric]), told[:, 1, metric]
    error = np.expm1(miss)
    return (
        f"{np.median(error):.1%} (90th {np.percentile(error, 90):.1%}, inside"
        f" {np.mean(miss <= half_width):.0%})"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("INFEROMETER_PUBLISHED_DATA", DATA)
    )
    parser.add_argument("--table", action="append", choices=TABLES)
    parser.add_argument("--question", action="append", choices=QUESTIONS)
    parser.add_argument("--cache", type=Path, help="Keep simulated schedules here between runs.")
    arguments = parser.parse_args()
    if arguments.cache:
        arguments.cache.mkdir(parents=True, exist_ok=True)
    found = defaultdict(list)
    names = arguments.table or TABLES
    for name in names:
        for question, side, told in asked_about(
            name, Path(arguments.data), arguments.cache, arguments.question or QUESTIONS
        ):
            found[question, side].append(told)
    for (question, side), parts in sorted(found.items()):
        told = np.concatenate(parts)
        log_row(
            f"published devices, saved fits: {question}, {side} half",
            f"tpot {words(told, 0)}, ttft {words(told, 1)}",
            f"{len(told)} predictions by {len(parts)} saved fits; {', '.join(names)}",
        )


if __name__ == "__main__":
    main()
