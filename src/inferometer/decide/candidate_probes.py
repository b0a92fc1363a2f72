"""How is a candidate of a sizing asked, and what does its replica carry?"""

from typing import Final

from inferometer.decide.candidates import Candidate
from inferometer.decide.capacity import CapacityQuestion, find_capacity
from inferometer.decide.probing import ReplicaProbe
from inferometer.decide.sizing_types import SizingQuestion
from inferometer.simulate.deployment import Pace

_SEARCH_RATIO: Final = 64.0
MOST_TOGETHER: Final = 8
"""Replicas that are simulated together. Of more, these with their part of the traffic: a router
gains little from more to choose from."""


def probe_of(
    question: SizingQuestion, candidate: Candidate, pace: Pace, n_replicas: int = 1
) -> ReplicaProbe:
    """The probe of this number of these replicas, under the question's traffic and SLO."""
    return ReplicaProbe(
        deployment=candidate.deployment.at(pace),
        step_times=getattr(candidate.deployment.step_times, pace),
        traffic=question.traffic,
        objective=question.objective,
        n_replicas=n_replicas,
        most_together=MOST_TOGETHER,
        router=question.router,
    )


def locate(probe: ReplicaProbe, start_per_s: float) -> float | None:
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
