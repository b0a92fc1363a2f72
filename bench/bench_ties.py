"""Which points of a grid can be told apart: how do errors of published rows correlate, and is the paired order right?

    python bench/bench_ties.py [--cache FOLDER]

Rows of each model are predicted without any row of it on their device and engine
(``bench/efficiencies.py``), and by datasheets. Of all pairs that differ in one or two of model, device, engine,
precision, devices of a replica, lengths and users: the correlation of both errors (beyond 0.6 they
count as 0.6), and how often ``api.grid_ties`` decides, and rightly, beside a rule that wants both
90 % intervals apart, and beside draws alone, which share all errors. Five CPU minutes, and four for
the simulations without a cache.
"""

import argparse
import itertools
from collections import defaultdict
from pathlib import Path

import numpy as np
from efficiencies import Maker, loads_of
from published_tables import Loads, data_of, take_data
from results_log import log_row

from inferometer.api.grid import GridPoint
from inferometer.api.grid_ties import is_tie, ratio_of
from inferometer.errors import SpecError
from inferometer.fit.published.efficiencies import servers_of_others, sort_of
from inferometer.perfmodel.scenario import BEST, LIKELY, WORST
from inferometer.perfmodel.steptime_levels import datasheet_step_time
from inferometer.stats.estimate import Z_90, Estimate

METRICS = ("tpot_s", "ttft_s")
MOST_DIFFERENCES, BEYOND, LEAST_PAIRS = 2, 0.6, 30


def values_of(one):
    """The options that a grid of these rows would have."""
    load = one.load
    return {
        "model": one.model.model_id,
        "hardware": one.hardware.hardware_id,
        "policy": one.framework,
        "quantization": one.precision,
        "tp": f"{one.plan.n_tensor} x {one.plan.n_sharing}",
        "workload": f"{load.prompt_tokens}x{load.output_tokens}",
        "concurrency": load.concurrency,
    }


def machine_share(one, log_ends):
    """Share of the variance of log TPOT that is the machine's."""
    half_width = (log_ends[2, 0] - log_ends[0, 0]) / 2
    return (Z_90 * spread_of(one) / half_width) ** 2


def spread_of(one):
    """How far servers of other people with this model, device and engine scatter."""
    return servers_of_others(sort_of(one.model, one.hardware, one.framework)).spread_ratio


def point_of(one, log_ends, source):
    """Log of low, likely and high of each metric (3, 2)."""
    numbers = {
        name: Estimate(
            value=float(value), low=float(min(low, value)), high=float(max(high, value)),
            confidence_fraction=0.9, n_samples=1, method=source,
        )
        for name, (low, value, high) in zip(METRICS, np.exp(log_ends).T, strict=True)
    }  # fmt: skip
    share = machine_share(one, log_ends) if source == "published" else 0.0
    return GridPoint(
        values=values_of(one),
        numbers=numbers,
        words={"step_times": source},
        machine_share_fraction=share,
    )


def sheet_ends(one):
    """Log TPOT and TTFT at the datasheet's best, likely and worst shares (3, 2); None: it has none."""
    public, ends = one.published, []
    if public.n_sharing > 1:
        return None
    try:
        for level in (BEST, LIKELY, WORST):
            model = datasheet_step_time(public.model, public.engine, public.hardware, level)
            step_s, front_end_s = model.terms(one.work).total_s[None], np.array([level.front_end_s])
            seen = one.schedule.seen(step_s, front_end_s, public.statistic)
            ends.append(np.log([seen.tpot_s[0], seen.ttft_s[0]]))
    except SpecError:
        return None
    return np.array(ends)


class Tally:
    """Pairs of one sort: how many, and decided and right by each rule."""

    def __init__(self):
        self.errors, self.counts = [], defaultdict(int)

    def add(self, errors, one, other, name, measured_log_ratio):
        self.errors.append(np.clip(errors, -BEYOND, BEYOND))
        first, second, ratio = one.numbers[name], other.numbers[name], ratio_of(one, other, name)
        is_right = (first.value > second.value) == (measured_log_ratio > 0)
        is_apart = first.low > second.high or second.low > first.high
        for rule, is_decided in (
            ("apart", is_apart),
            ("paired", not is_tie(ratio)),
            ("draws alone", True),
        ):
            self.counts[rule] += is_decided
            self.counts[rule, "right"] += is_decided and is_right
        self.counts["inside"] += ratio.low <= np.exp(measured_log_ratio) <= ratio.high

    @property
    def correlation(self):
        pairs = np.array(self.errors)
        return 2 * np.mean(pairs[:, 0] * pairs[:, 1]) / np.mean(np.sum(pairs**2, axis=1))

    def words(self, rule):
        n_decided = self.counts[rule]
        right = self.counts[rule, "right"] / max(n_decided, 1)
        return f"{rule} {n_decided / len(self.errors):.0%} decided, {right:.1%} rightly"

    def __str__(self):
        rules = ", ".join(self.words(rule) for rule in ("apart", "paired", "draws alone"))
        inside = self.counts["inside"] / len(self.errors)
        return (
            f"n {len(self.errors)}, errors correlate {self.correlation:.2f}; {rules}; ratio inside"
            f" {inside:.1%}"
        )


def log_measured(loads):
    seen = [(one.published.tpot_s or np.nan, one.published.ttft_s or np.nan) for one in loads]
    return np.log(np.array(seen, dtype=float))


def of_rows(maker):
    """Loads, and their log ends (3, 2) by rows without their model on the device and engine."""
    predicted = log_measured(maker.loads) - maker.models.errors
    spreads = np.array([[spread_of(one.published)] for one in maker.loads])
    half_widths = np.hypot(maker.half_widths(is_carried=False), Z_90 * spreads)
    ends = np.stack([predicted - half_widths, predicted, predicted + half_widths], axis=1)
    return maker.loads, list(ends)


def of_sheets(maker):
    """The same by datasheets, of the loads that have them."""
    known = [(one, ends) for one in maker.loads if (ends := sheet_ends(one)) is not None]
    return [one for one, _ in known], [ends for _, ends in known]


def tallies(loads, log_ends, source):
    """(what differs, metric) -> tally; what differs '' for all pairs together."""
    measured = log_measured(loads)
    errors = measured - np.array([ends[1] for ends in log_ends])
    points = [
        point_of(one.published, ends, source) for one, ends in zip(loads, log_ends, strict=True)
    ]
    found = defaultdict(Tally)
    for k, m in itertools.combinations(range(len(points)), 2):
        one, other = points[k], points[m]
        differ = [name for name in one.values if one.values[name] != other.values[name]]
        if not 0 < len(differ) <= MOST_DIFFERENCES or not np.isfinite(errors[[k, m]]).all():
            continue
        for column, name in enumerate(METRICS):
            log_ratio = measured[k, column] - measured[m, column]
            for sort in ("", " + ".join(differ)):
                found[sort, name].add(errors[[k, m], column], one, other, name, log_ratio)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    take_data(parser)
    parser.add_argument("--cache", type=Path, help="Keep simulated schedules here between runs.")
    arguments = parser.parse_args()
    maker = Maker(loads_of(data_of(arguments), Loads(arguments.cache)))
    for source, (loads, log_ends), words in (
        ("published", of_rows(maker), "model left out"),
        ("datasheet", of_sheets(maker), "by datasheets"),
    ):
        show(tallies(loads, log_ends, source), words)


def show(found, words):
    for (sort, name), tally in sorted(found.items()):
        if len(tally.errors) >= LEAST_PAIRS:
            print(f"{sort or 'all':24} {name}, {words}: {tally}")
    for name in METRICS:
        tally = found["", name]
        log_row(
            f"ties of a grid: {name} of two published rows, {words}",
            f"{tally.words('paired')}; {tally.words('apart')}",
            f"{len(tally.errors)} pairs; draws alone are right in"
            f" {tally.counts['draws alone', 'right'] / len(tally.errors):.1%}",
        )


if __name__ == "__main__":
    main()
