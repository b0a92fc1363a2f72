"""How soon does ``watch`` see that a server is no longer what it was, and what else does it say?

Twelve emulated servers under traffic, each changed in another way; the watcher is
``inferometer.watch``, which scrapes them over HTTP once a second. ``python bench/bench_watch.py``
prints rows for RESULTS.md.
"""

import argparse
import os

from results_log import log_row
from watched_servers import SCENES, Staged, staged

BOUND_S = 30.0
LEARNING_S = 100.0
"""Before changes that are judged by what was learned of the server."""
HEALTHY_S = 20.0
"""Before the others."""


def one_round():
    """All scenes: those that need no learning first, so that few servers run at once."""
    parts = [
        staged(
            tuple(name for name, one in SCENES.items() if one.is_learned == learned),
            healthy_s,
            BOUND_S,
        )
        for learned, healthy_s in ((False, HEALTHY_S), (True, LEARNING_S))
    ]
    return Staged(
        {name: took_s for one in parts for name, took_s in one.found_s.items()},
        [text for one in parts for text in one.false_alarms],
        [text for one in parts for text in one.other_lines],
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    rounds = []
    for _ in range(asked.rounds):
        rounds.append(one_round())
        print(rounds[-1], flush=True)
    by_scene = {name: [one.found_s[name] for one in rounds] for name in SCENES}
    n_found = sum(took_s is not None for took in by_scene.values() for took_s in took)
    early = [text for one in rounds for text in one.false_alarms]
    others = [text for one in rounds for text in one.other_lines]
    log_row(
        f"watch: {len(SCENES)} staged kinds of change on emulated servers, found within"
        f" {BOUND_S:.0f} s",
        f"{n_found} of {len(SCENES) * len(rounds)} (n = {len(rounds)} each)",
        "seconds to the line: "
        + "; ".join(
            f"{name} {', '.join('not' if one is None else f'{one:g}' for one in took)}"
            for name, took in by_scene.items()
        )
        + f"; load average {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"
        f"; {len(early)} false alarms in the {HEALTHY_S:.0f} and"
        f" {LEARNING_S:.0f} s before, {len(others)} lines afterwards that name another change",
    )
    for text in (*early, *others):
        print(text)


if __name__ == "__main__":
    main()
