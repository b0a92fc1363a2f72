"""How far off are predictions, in every way of predicting, and do their intervals hold?

    python bench/accuracy.py [--folder FOLDER] [--only WAY] [--page]

``--only`` measures one way again, or what stands *beside* AISimulate; the record says at which commit.

Each published closed loop is predicted from others: other *concurrencies* of its group (half of the
rows predict the other half), another number of devices (*degree*), other *lengths*, larger
*batches*, *few rows* (three along each axis), rows of the same family on another *device*; each
*topology* left out of its family, beside NVIDIA's AISimulate and AIConfigurator on the same
topologies; and by the efficiencies in the package, all rows of the *model* on the device and engine
left out, or all rows of the device (*datasheet*); these two also with the time of the tables' own
*clients*, as their other rows say. ``roofline`` is the same schedule at the
datasheet's peaks. A row that is not predicted counts as infinitely far off. What a row's prediction
and interval were is kept in ``--folder`` under the sum of the sources that made it, so a run that
was stopped goes on where it was; ``bench/results/accuracy.json`` has what the page shows, and
``--page`` writes ``docs/accuracy.md`` and its curves from it alone.
"""

import argparse
import csv
import datetime as dt
import hashlib
import pickle
import re
import subprocess
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from accuracy_page import RECORD, write_page
from efficiencies import Maker, loads_of
from published_runs import RUN_TABLES, RUNS, scorecard
from published_tables import (
    LEAST_SEEN,
    TABLES,
    Loads,
    data_of,
    family_of,
    group_questions,
    published,
    side_of,
    store,
    sum_of_sources,
    take_data,
    topology_of,
    topology_questions,
)

from inferometer.fit.published.posterior import fit_published
from inferometer.perfmodel.scenario import BEST
from inferometer.perfmodel.steptime_levels import datasheet_step_time

POOLED = ("model", "model, clients", "datasheet", "datasheet, clients")
"""Ways that are measured together."""
PREDICTED_BY = (
    *(f"fit/published/{name}.py" for name in ("closed_loop", "efficiencies", "loads")),
    *(f"fit/published/{name}.py" for name in ("posterior", "priors")),
    *("fit/map.py", "fit/sweeps/priors.py", "perfmodel", "simulate", "inputs"),
)
"""Sources on which a prediction depends."""
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
"""AISimulate's names."""
THEIRS = "aisimulate-accuracy"
"""Folder of what they published."""
QUANTILES = tuple(round(0.05 * k, 2) for k in range(1, 20))
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
METRICS = ("tpot", "ttft")


class Row(NamedTuple):
    """One row that is asked about; logarithms of predicted over measured TPOT and TTFT (2 each)."""

    way: str
    group: str
    side: str
    engine: str
    topology: str
    their_key: tuple[str, ...]
    version: str
    n_seen: int
    miss: tuple[float, float]
    """Infinite where it is not predicted."""
    half: tuple[float, float]
    """Half width of the 90 % interval."""
    bound: tuple[float, float]
    """Of the datasheet's roofline."""


def their_key(one):
    """A topology of AISimulate's table: without the parallelism beyond the number of devices."""
    lengths = (str(one.load.prompt_tokens), str(one.load.output_tokens))
    n_devices = str(one.n_devices) if one.prefill is None else "apart"
    return (*family_of(one), one.hardware.hardware_id, n_devices, *lengths)


def roofline(simulated):
    """Log of the roofline's TPOT and TTFT."""
    public = simulated.published
    if public.prefill is not None or public.n_sharing > 1:
        return np.full(2, np.nan)
    model = datasheet_step_time(public.model, public.engine, public.hardware, BEST)
    step_s = model.terms(simulated.work).total_s[None]
    seen = simulated.schedule.seen(step_s, np.zeros(1), public.statistic)
    return np.log([seen.tpot_s[0], seen.ttft_s[0]])


def rows_of(way, group, n_seen, asked, told, half, bounds):
    truth = np.log([(one.tpot_s, one.ttft_s) for one in asked])
    return [
        Row(
            way,
            group,
            side_of(one),
            one.framework,
            " ".join(map(str, topology_of(one))),
            their_key(one),
            one.framework_version,
            n_seen,
            tuple(np.asarray(told[k] - truth[k], dtype=float).tolist()),
            tuple(np.asarray(half[k], dtype=float).tolist()),
            tuple(np.asarray(bounds[k] - truth[k], dtype=float).tolist()),
        )
        for k, one in enumerate(asked)
    ]


def answered(question, load, bounds):
    """Rows of one question: all that are asked about, predicted or not."""
    held = [(one, load(one)) for one in question.asked]
    seen = [found for one in question.seen if (found := load(one)) is not None]
    asked = [found for _, found in held if found is not None]
    n_asked = len(question.asked)
    told, half, bound = (np.full((n_asked, 2), value) for value in (np.inf, np.nan, np.nan))
    places = [k for k, (_, found) in enumerate(held) if found is not None]
    if places:
        bound[places] = [bounds(one) for one in asked]
    if len(seen) >= LEAST_SEEN and asked:
        predicted = fit_published(seen, asked).predicted
        told[places] = np.stack([predicted.log_tpot, predicted.log_ttft], axis=1)
        half[places] = np.stack([predicted.half_tpot, predicted.half_ttft], axis=1)
    return rows_of(question.way, question.group, len(seen), list(question.asked), told, half, bound)


class Kept:
    """Results under the sum of the sources and of what was asked."""

    def __init__(self, folder):
        self.folder, self.sources = folder / "answers", sum_of_sources(*PREDICTED_BY)
        self.folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, asked, make):
        digest = hashlib.sha256(repr((self.sources, asked)).encode()).hexdigest()
        path = self.folder / digest
        if path.exists():
            return pickle.loads(path.read_bytes())  # noqa: S301 -- written by this program
        made = make()
        store(path, made)
        return made


def questions_of(loads):
    for name, mine in loads.items():
        yield from group_questions(mine, name)
    yield from topology_questions(loads["inferencex-silicon"])


def asked_of(loads, load, kept, only, theirs):
    """Rows of all ways that ``fit_published`` answers, and CPU seconds of fits of 200 rows or so."""
    known, rows = {}, []

    def bounds(one):
        if one.published.key not in known:
            known[one.published.key] = roofline(one)
        return known[one.published.key]

    questions = list(questions_of(loads))
    compared = {
        one.group
        for one in questions
        if one.way == "topology" and their_key(one.asked[0]) in theirs
    }
    for question in questions:
        is_compared = "beside" in (only or ()) and question.group in compared
        if only and question.way not in only and not is_compared:
            continue
        keys = [sorted(map(repr, (o.key for o in part))) for part in question[2:]]
        start_s = time.process_time()
        found = kept(
            (question.way, question.group, *keys),
            lambda question=question: answered(question, load, bounds),
        )
        took_s = time.process_time() - start_s
        if took_s > 0.1:
            print(f"  {question.way:11} {question.group:80} {len(found):4} rows {took_s:.1f} s")
        rows += found
    return rows


def pooled_rows(data, load, kept):
    """Rows of the efficiencies in the package: of whom a model or a device was left out."""
    maker = kept("efficiencies", lambda: Maker(loads_of(data, load)))
    for way, left_out, is_carried in (
        ("model", maker.models, False),
        ("datasheet", maker.devices, True),
    ):
        public = [one.published for one in maker.loads]
        truth = np.log([(one.tpot_s, one.ttft_s) for one in public])
        half = maker.half_widths(is_carried=is_carried)
        both = ((way, left_out.errors), (f"{way}, clients", left_out.with_clients))
        bounds = kept("bounds", lambda: [roofline(one) for one in maker.loads])
        for name, errors in both:
            yield from rows_of(name, "", len(public), public, truth - errors, half, bounds)


def share(values):
    """A number of the record: four digits, None where it is not known."""
    return None if not np.isfinite(values) else float(f"{values:.4g}")


def facts_of(rows):
    """What the page shows of these rows."""
    signed, half, bound = (np.array([getattr(o, name) for o in rows]) for name in Row._fields[-3:])
    miss, is_told = np.abs(signed), np.isfinite(signed[:, 0])
    by_metric = {}
    for k, metric in enumerate(METRICS):
        error = np.where(is_told, np.abs(np.expm1(signed[:, k])), np.inf)
        told, claimed = miss[is_told, k], half[is_told, k]
        known = bound[np.isfinite(bound[:, k]), k]
        if not len(told):
            continue
        ratios = told / claimed
        by_metric[metric] = {
            "median": share(np.quantile(error, 0.5, method="inverted_cdf")),
            "p90": share(np.quantile(error, 0.9, method="inverted_cdf")),
            "inside": share(np.mean(ratios <= 1)),
            "half_median": share(np.median(claimed)),
            "width_over_need": share(1 / np.quantile(ratios, 0.9)),
            "roofline": share(np.median(np.abs(np.expm1(known)))) if len(known) else None,
            "quantiles": [share(np.quantile(error, q, method="inverted_cdf")) for q in QUANTILES],
            "levels": [
                share(np.mean(ratios <= np.float64(Z_OF[level] / Z_OF[0.9]))) for level in LEVELS
            ],
        }
    return {
        "n_rows": len(rows),
        "n_failed": int(np.sum(~is_told)),
        "n_groups": len({one.group for one in rows}),
        **by_metric,
    }


Z_OF = {0.5: 0.674, 0.6: 0.842, 0.7: 1.036, 0.8: 1.282, 0.9: 1.645, 0.95: 1.96}
"""Normal quantiles of two-sided intervals: how much wider or narrower than the 90 % interval."""


def ways_of(rows):
    """Facts of each way, half and engine ('all': of all)."""
    found = defaultdict(list)
    for one in rows:
        for engine in ("all", one.engine):
            found[one.way, one.side, engine].append(one)
    return [
        {"way": way, "side": side, "engine": engine, **facts_of(mine)}
        for (way, side, engine), mine in sorted(found.items())
    ]


class Theirs(NamedTuple):
    """What AISimulate's authors published of a topology."""

    errors: list[list[float]]
    """Mean absolute percentage errors of AISimulate and of AIConfigurator: TPOT and TTFT."""
    n_rows: int


def theirs_of(path):
    """Topology -> what was published of it, and how many topologies there are."""
    found, n_topologies = {}, 0
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            n_topologies += 1
            for model in MODELS[row["model"]]:
                framework = {"trt": "trtllm"}.get(row["framework"], row["framework"])
                name = (framework, model, row["precision"], f"{row['gpu']}_sxm", row["tp"])
                errors = [
                    [
                        float(row[f"{tool}_{metric}_mape_percent"] or "inf") / 100
                        for metric in METRICS
                    ]
                    for tool in ("aisimulate", "aiconfigurator")
                ]
                key = (*name, row["input_tokens"], row["output_tokens"])
                found[key] = Theirs(errors, int(row["rows"]))
    return found, n_topologies


def version_order(version):
    """Sorts releases by their numbers, named builds below them, and versions not stated last."""
    is_release = version[:1].isdigit()
    return (
        is_release,
        [int(n) for n in re.findall(r"\d+", version)] if is_release else [],
        version,
    )


def beside(rows, theirs):
    """Topologies of AISimulate's table: mean errors over rows, of us and of the others.

    Theirs are of one run of each configuration. Of ours the rows of the newest engine version
    count, which have as many rows as theirs in most topologies; *all_rows* are of all versions.
    """
    topologies = defaultdict(list)
    for one in rows:
        if one.way == "topology" and one.their_key in theirs:
            topologies[one.their_key].append(one)
    newest = {}
    for key, mine in topologies.items():
        version = max((one.version for one in mine), key=version_order)
        newest[key] = [one for one in mine if one.version == version]
    return {
        "n_theirs_here": len(topologies),
        "n_rows_here": sum(map(len, newest.values())),
        "n_all_rows_here": sum(map(len, topologies.values())),
        "n_with_their_rows": sum(len(mine) == theirs[key].n_rows for key, mine in newest.items()),
        "engines": beside_facts(newest, theirs),
        "all_rows": beside_facts(topologies, theirs),
    }


def beside_facts(topologies, theirs):
    """For all engines and each of them: medians over topologies, and how often we are nearer."""
    found = []
    for key, mine in topologies.items():
        errors = np.abs(np.expm1([one.miss for one in mine])).mean(axis=0)
        bound = np.abs(np.expm1([one.bound for one in mine])).mean(axis=0)
        found.append((mine[0].engine, np.array([errors, *theirs[key].errors, bound])))
    facts = []
    for engine in ("all", *sorted({name for name, _ in found})) if found else ():
        errors = np.array([of for name, of in found if engine in {"all", name}])  # (T, tool, 2)
        facts.append(
            {
                "engine": engine,
                "n_topologies": len(errors),
                "n_failed": int(np.sum(~np.isfinite(errors[:, 0, 0]))),
                "medians": {
                    tool: [share(value) for value in np.nanmedian(errors[:, k], axis=0)]
                    for k, tool in enumerate(("inferometer", "aisimulate", "aiconfigurator"))
                }
                | {"roofline": [share(value) for value in np.nanmedian(errors[:, 3], axis=0)]},
                "nearer": {
                    tool: [share(v) for v in np.mean(errors[:, 0] < errors[:, k], axis=0)]
                    for k, tool in ((1, "aisimulate"), (2, "aiconfigurator"))
                },
            }
        )
    return facts


def commit():
    def git(*words):
        done = subprocess.run(
            ["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "../src")
    return git("rev-parse", "--short", "HEAD") + ("+changes" if changed else "")


def seconds_of_a_fit(loads, load, n_rows=200):
    """CPU seconds of one fit of so many rows of one family, the largest."""
    families = defaultdict(list)
    for one in loads["inferencex-silicon"]:
        if one.prefill is None:
            families[family_of(one)].append(one)
    rows = [found for one in max(families.values(), key=len) if (found := load(one)) is not None]
    start_s = time.process_time()
    fit_published(rows[:n_rows], rows[:1])
    return {"n_rows": len(rows[:n_rows]), "cpu_s": round(time.process_time() - start_s, 2)}


def measured(data, folder, only):
    loads, left_out = published(data)
    load, kept = Loads(folder / "loads"), Kept(folder)
    start_s = time.process_time()
    theirs, n_topologies = theirs_of(data / THEIRS / "topologies.csv")
    rows = asked_of(loads, load, kept, only, theirs)
    if not only or {*POOLED} & {*only}:
        rows += pooled_rows(data, load, kept)
    print(f"{len(rows)} predictions, {time.process_time() - start_s:.0f} CPU s")
    return {
        "commit": commit(),
        "date": today(),
        "cohort": {
            name: {
                "n_loops": len(mine),
                "n_without_room": sum(load(one) is None for one in mine),
                "left_out": left_out[name],
            }
            for name, mine in loads.items()
        },
        "fit": seconds_of_a_fit(loads, load),
        "quantiles": QUANTILES,
        "levels": LEVELS,
        "ways": ways_of(rows),
        "runs": [] if only else runs_of(data, kept),
        "beside": {"n_theirs": n_topologies, **beside(rows, theirs)},
    }


def runs_of(data, kept):
    return [kept(("run", name), lambda name=name: scorecard(data, name)) for name in RUNS]


def told_again(record, date, at_commit, parts):
    """What was measured again and when: each part once, at its newest."""
    earlier = [{**one, "parts": sorted({*one["parts"]} - parts)} for one in record.get("again", ())]
    again = {"date": date, "commit": at_commit, "parts": sorted(parts)}
    return [one for one in (*earlier, again) if one["parts"]]


def with_runs(record, data, folder):
    """The record with the published runs of requests measured again, which need no other rows."""
    again = told_again(record, today(), commit(), {"runs"})
    return {**record, "runs": runs_of(data, Kept(folder)), "again": again}


def today():
    return f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d}"


def merged(record, found, only):
    """The record with these ways measured again; ``again`` says which, and at which commit."""
    parts = {*only}
    ways = [one for one in found["ways"] if one["way"] in parts]
    others = [one for one in record["ways"] if one["way"] not in parts]
    is_compared = bool(parts & {"beside", "topology"})
    return {
        **record,
        "cohort": found["cohort"],
        "ways": sorted([*others, *ways], key=lambda o: (o["way"], o["side"], o["engine"])),
        "beside": found["beside"] if is_compared else record["beside"],
        "again": told_again(record, found["date"], found["commit"], parts),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    take_data(parser)
    parser.add_argument("--folder", type=Path, default=Path(".accuracy"), help="Of what is kept.")
    parser.add_argument("--only", action="append", help="Only this way, or beside, or runs.")
    parser.add_argument("--page", action="store_true", help="Write the page from the record.")
    arguments = parser.parse_args()
    if arguments.only == ["runs"]:
        record = msgspec.json.decode(RECORD.read_bytes())
        stored(with_runs(record, data_of(arguments, RUN_TABLES), arguments.folder))
    elif not arguments.page:
        data = data_of(arguments, (*TABLES, *RUN_TABLES, THEIRS))
        record = measured(data, arguments.folder, arguments.only)
        if arguments.only:
            record = merged(msgspec.json.decode(RECORD.read_bytes()), record, arguments.only)
        stored(record)
    write_page()


def stored(record):
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


if __name__ == "__main__":
    main()
