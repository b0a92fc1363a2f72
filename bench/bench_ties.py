"""Which points of a grid can be told apart: how do errors of published rows correlate, and is the paired order right?

    python bench/bench_ties.py [--cache FOLDER]

Rows of each model are predicted without any row of it on their device and engine
(``bench/efficiencies.py``). Of all pairs that differ in one or two of model, device, engine,
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
from inferometer.fit.published.efficiencies import _BETWEEN_SERVERS
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


def point_of(one, log_predicted, half_widths):
    numbers = {
        name: Estimate(
            value=float(np.exp(log_s)),
            low=float(np.exp(log_s - half)),
            high=float(np.exp(log_s + half)),
            confidence_fraction=0.9,
            n_samples=1,
            method="rows left out",
        )
        for name, log_s, half in zip(METRICS, log_predicted, half_widths, strict=True)
    }
    return GridPoint(values=values_of(one), numbers=numbers, words={"step_times": "published"})


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


def tallies(maker):
    """(what differs, metric) -> tally; what differs '' for all pairs together."""
    published = [one.published for one in maker.loads]
    errors = maker.models.errors
    measured = np.log([(one.tpot_s or np.nan, one.ttft_s or np.nan) for one in published])
    half_widths = np.hypot(maker.half_widths(is_carried=False), Z_90 * _BETWEEN_SERVERS)
    points = [
        point_of(one, measured[k] - errors[k], half_widths[k]) for k, one in enumerate(published)
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
    found = tallies(Maker(loads_of(data_of(arguments), Loads(arguments.cache))))
    for (sort, name), tally in sorted(found.items()):
        if len(tally.errors) >= LEAST_PAIRS:
            print(f"{sort or 'all':24} {name}: {tally}")
    for name in METRICS:
        tally = found["", name]
        log_row(
            f"ties of a grid: {name} of two published rows, model left out",
            f"{tally.words('paired')}; {tally.words('apart')}",
            f"{len(tally.errors)} pairs; draws alone are right in"
            f" {tally.counts['draws alone', 'right'] / len(tally.errors):.1%}",
        )


if __name__ == "__main__":
    main()
