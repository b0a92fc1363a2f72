"""How is a candidate of a sizing asked, and what does its replica carry?"""

import math
from dataclasses import replace
from typing import Final

from inferometer.decide.candidates import Candidate
from inferometer.decide.capacity import CapacityQuestion, find_capacity
from inferometer.decide.probing import FleetProbe
from inferometer.decide.sizing_types import SizingQuestion
from inferometer.simulate.deployment import Pace
from inferometer.simulate.fleet import Fleet

_SEARCH_RATIO: Final = 64.0
MOST_TOGETHER: Final = 8
"""Replicas that are simulated together. Of more, these with their part of the traffic: a router
gains little from more to choose from."""


def probe_of(
    question: SizingQuestion,
    candidate: Candidate,
    pace: Pace,
    n_replicas: int = 1,
    n_prefill: int | None = None,
) -> FleetProbe:
    """The probe of this number of these replicas, under the question's traffic and SLO.

    ``n_prefill`` more compute prompts alone; None: as the question fixes it.
    """
    fleets, n_all = question.fleets, n_replicas + (n_prefill or 0)
    if fleets.is_plain and n_prefill and n_all > MOST_TOGETHER:
        n_parts = math.gcd(n_replicas, n_prefill)
        n_replicas, n_prefill = n_replicas // n_parts, n_prefill // n_parts
    elif fleets.is_plain and not n_prefill:
        n_replicas = min(n_replicas, MOST_TOGETHER)
    return FleetProbe(
        fleet=fleets.fleet(candidate.deployment, pace, n_replicas, n_prefill),
        n_replicas=n_all if fleets.is_plain else None,
        traffic=question.traffic,
        objective=question.objective,
    )


def fleet_by_class(
    question: SizingQuestion, candidate: Candidate, class_replicas: tuple[tuple[int, ...], ...]
) -> Fleet:
    """The replicas of a candidate, of which each class of requests has these: the least loaded gets one."""
    n_replicas = 1 + max(max(replicas) for replicas in class_replicas)
    fleet = question.fleets.fleet(candidate.deployment, question.pace, n_replicas)
    replicas = replace(fleet.replicas, router="class-aware", class_replicas=class_replicas)
    return replace(fleet, replicas=replicas)


def locate(probe: FleetProbe, start_per_s: float) -> float | None:
    """Where short runs see the weakest link reach its limit.

    None where no load within a factor of 64 keeps the promise.
    """
    lowest, highest = start_per_s / _SEARCH_RATIO, start_per_s * _SEARCH_RATIO
    asked = CapacityQuestion(
        kind="requests_per_s",
        start_load=start_per_s,
        lowest_load=lowest,
        highest_load=highest,
        proof_effort=None,
    )
    return find_capacity(probe, asked).located_load
