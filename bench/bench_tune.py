"""How often does ``tune`` keep what does nothing, and how often does it find a true gain?

Whole tunings at the level of pairs: each step's pairs scatter by a machine's noise, are looked at
one by one, and end when they decide; what was kept is confirmed in fresh pairs. Nothing of the
decision is imitated: intervals and decisions are those of ``stats.sequential``. The noise is what
``tune`` measured on servers of this machine, and more.
"""

import argparse
import math

import numpy as np
from results_log import log_row

from inferometer.api.tune_measured import N_LEAST, N_LEAST_CONFIRMED
from inferometer.api.tune_pairs import CONFIDENCE
from inferometer.stats.comparison import decide_pairs, pair_gain

N_STEPS = 6
LEAST_GAIN = 0.02
SCATTERS = (0.01, 0.02, 0.03, 0.05)


def decided(rng, effect, scatter, n_least, n_most, *, is_heavy):
    """Was it kept, and after how many pairs?"""
    draw = rng.standard_t(4, n_most) / math.sqrt(2) if is_heavy else rng.standard_normal(n_most)
    logs = (effect + scatter * draw).tolist()
    for n in range(1, n_most + 1):
        gain = pair_gain(logs[:n], confidence_fraction=CONFIDENCE)
        decision = decide_pairs(gain, least_gain_ratio=LEAST_GAIN)
        if decision != "go on" and n >= n_least:
            return decision == "keep", n
    return False, n_most


def tuned(rng, effects, scatter, n_most, *, is_heavy):
    """One tuning: was anything kept at the end, in how many pairs?"""
    kept, n_pairs = 0.0, 0
    for effect in effects:
        is_kept, n = decided(rng, effect, scatter, N_LEAST, n_most, is_heavy=is_heavy)
        n_pairs += n
        kept += effect if is_kept else 0.0
        if is_kept and effect == 0.0:
            kept += 1e-12  # the command differs, and does nothing
    if not kept:
        return False, n_pairs
    is_kept, n = decided(rng, kept, scatter, N_LEAST_CONFIRMED, n_most, is_heavy=is_heavy)
    return is_kept, n_pairs + n


def share(effects, scatter, n_most, n_runs, *, is_heavy):
    rng = np.random.default_rng([7, round(1e4 * scatter), n_most, int(is_heavy)])
    runs = [tuned(rng, effects, scatter, n_most, is_heavy=is_heavy) for _ in range(n_runs)]
    return sum(one for one, _ in runs) / n_runs, float(np.mean([n for _, n in runs]))


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--runs", type=int, default=4000)
    arguments.add_argument("--pairs", type=int, default=8)
    asked = arguments.parse_args()
    for is_heavy in (False, True):
        for scatter in SCATTERS:
            nothing, n_null = share(
                [0.0] * N_STEPS, scatter, asked.pairs, asked.runs, is_heavy=is_heavy
            )
            gain = [math.log1p(0.05), *[0.0] * (N_STEPS - 1)]
            found, n_true = share(gain, scatter, asked.pairs, asked.runs, is_heavy=is_heavy)
            tails = "t with 4 degrees of freedom" if is_heavy else "normal"
            log_row(
                f"bench_tune, pairs that scatter by {scatter:.0%} ({tails})",
                f"nothing kept where nothing helps {1 - nothing:.1%}; a true gain of 5 % kept and"
                f" confirmed {found:.1%}",
                f"{asked.runs:,} simulated tunings of {N_STEPS} steps, at most {asked.pairs} pairs"
                f" each: {n_null:.1f} and {n_true:.1f} pairs in the mean",
            )


if __name__ == "__main__":
    main()
