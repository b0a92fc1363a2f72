"""What is asked of a sizing: the SLO, the requests, and their rate?

Of a trace or a day the rate is that of its busiest window.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from inferometer.api.question import DURATION, Option
from inferometer.decide.course import Course, course_of
from inferometer.decide.sizing_types import SizingQuestion
from inferometer.decide.traffic import steady
from inferometer.errors import SpecError
from inferometer.inputs import objectives
from inferometer.inputs.workload import replay, types


@dataclass(frozen=True, slots=True, kw_only=True)
class OverTime:
    """How replicas come and go with traffic that changes."""

    window: Annotated[
        float | None,
        Option(
            "Of traffic that changes: how often replicas are changed. [1/96 of it, from 30s]",
            heading="Workload",
            metavar="DURATION",
            parse=DURATION,
        ),
    ] = None
    start_up: Annotated[
        float,
        Option(
            "From a replica's start to its first request. [3min]",
            heading="Cluster",
            metavar="DURATION",
            shows_default=False,
            parse=DURATION,
        ),
    ] = 180.0
    target: Annotated[
        float,
        Option(
            "Of what replicas carry, to scale by.",
            heading="Cluster",
            least=0,
            most=1,
            is_open=True,
        ),
    ] = 0.7


class Asked(NamedTuple):
    """The question, and the traffic's course where it has one."""

    question: SizingQuestion
    course: Course | None
    start_up_s: float
    target_fraction: float


class Sought(NamedTuple):
    """What the replicas must meet, and how it is looked for."""

    slo: str
    n_requests: int
    requests_cap: int | None
    is_sure: bool


def asked_of(workload: types.WorkloadSpec, sought: Sought, over_time: OverTime) -> Asked:
    """The question about this workload.

    Raises
    ------
    SpecError
        The workload has no rate: users who wait, or all at once.
    """
    course: Course | None = None
    rate_per_s: float | None = None
    if _changes(workload):
        course = course_of(replay.draw_workload(workload).plan, over_time.window)
        rate_per_s = max(course.rates_per_s)
    elif isinstance(workload.arrivals, types.OpenArrivals):
        rate_per_s = workload.arrivals.rate_per_s
    if rate_per_s is None:
        raise SpecError(
            "the workload has no rate",
            where="--rate, --workload",
            allowed="requests that come at a rate",
            try_="--rate 20",
        )
    question = SizingQuestion(
        spec=steady(workload) if course is not None else workload,
        rate_per_s=rate_per_s,
        objective=objectives.parse_objective(sought.slo),
        n_requests=sought.n_requests,
        requests_cap=sought.requests_cap,
        pace="slow" if sought.is_sure else "likely",
    )
    return Asked(question, course, over_time.start_up, over_time.target)


def _changes(workload: types.WorkloadSpec) -> bool:
    """Does its rate change over time?"""
    arrivals = workload.arrivals
    has_own_instants = arrivals is None and workload.replay is not None
    is_bent = isinstance(arrivals, types.OpenArrivals) and arrivals.profile is not None
    return has_own_instants or is_bent or isinstance(arrivals, types.TraceArrivals)
