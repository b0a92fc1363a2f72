"""Which two of the servers that may be the one are the ends of a number, and what are they called?"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from inferometer.api.simulation import Level
from inferometer.records.latencies import Latency
from inferometer.records.request_summaries import RequestSummary
from inferometer.stats.estimate import Estimate


def are_draws(levels: Sequence[Level]) -> bool:
    """Were servers drawn, or are these both ends of the step times?"""
    return any(level.step_times == "draw" for level in levels)


def ends_words(levels: Sequence[Level]) -> str:
    """What the ends are called at the head of a column."""
    return f"least … most of {len(levels) - 1} draws" if are_draws(levels) else "fast … slow"


def ends_of_latency(levels: Sequence[Level], name: Latency) -> list[Level]:
    """Where this latency's 95th percentile is least and most; at fast and slow step times where none were drawn."""
    return _ends(levels, partial(_p95_s, name=name))


def ends_of_rate(
    levels: Sequence[Level], of: Callable[[RequestSummary], Estimate | None]
) -> list[Level]:
    """The same of a rate."""
    return _ends(levels, lambda summary: _per_s(of(summary)))


def verdicts_of_draws(levels: Sequence[Level]) -> str:
    """How many draws keep the promise?"""
    drawn = Counter(
        level.judgement.verdict
        for level in levels
        if level.step_times == "draw" and level.judgement is not None
    )
    return ", ".join(f"{n} {verdict}" for verdict, n in drawn.most_common())


def _ends(levels: Sequence[Level], of: Callable[[RequestSummary], float]) -> list[Level]:
    others = list(levels[1:])
    if not are_draws(levels):
        return others
    ordered = sorted(others, key=lambda level: of(level.summary))
    return [ordered[0], ordered[-1]]


def _p95_s(summary: RequestSummary, name: Latency) -> float:
    found = summary.latency(name).percentile(0.95)
    return math.inf if found is None else found.seconds.value


def _per_s(estimate: Estimate | None) -> float:
    return -math.inf if estimate is None else estimate.value
