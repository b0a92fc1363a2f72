"""What is asked of a sizing.

The promise, the requests, and their rate, which of a trace or a day is that of its busiest window?
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import click

from inferometer.cli import workload_options
from inferometer.decide.course import Course, course_of
from inferometer.decide.sizing_types import SizingQuestion
from inferometer.decide.traffic import steady
from inferometer.errors import SpecError
from inferometer.simulate.cluster_config import ROUTERS
from inferometer.spec import objectives
from inferometer.spec.workload import replay, types
from inferometer.units import parse_duration_s

router_option: Final = click.option(
    "--router",
    type=click.Choice(ROUTERS),
    default="least-loaded",
    show_default=True,
    help="Who gets a request of several.",
)
_OPTIONS: Final = (
    click.option(
        "--slo",
        required=True,
        metavar="TEXT",
        help="The SLO: 'ttft:p95<500ms, tpot:p95<50ms', or mlperf:NAME.",
    ),
    router_option,
    click.option(
        "--sure",
        is_flag=True,
        help="As many replicas as meet the SLO at the slow end of the step times too.",
    ),
    click.option(
        "--window",
        metavar="DURATION",
        help="Of traffic that changes: how often replicas are changed. [1/96 of it, from 30s]",
    ),
    click.option(
        "--start-up",
        default="3min",
        show_default=True,
        metavar="DURATION",
        help="From a replica's start to its first request.",
    ),
    click.option(
        "--target",
        default=0.7,
        show_default=True,
        type=click.FloatRange(0, 1, min_open=True),
        help="Of what replicas carry, to scale by.",
    ),
)
"""Of a sizing, besides those of the workload and of what is on offer."""


class Asked(NamedTuple):
    """The question, and the traffic's course where it has one."""

    question: SizingQuestion
    course: Course | None
    start_up_s: float
    target_fraction: float


def takes_promise(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags of what is promised, and of replicas over time."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def asked_of(workload: types.WorkloadSpec, flags: dict[str, Any]) -> Asked:
    """The question of these flags.

    Raises
    ------
    SpecError
        The workload has no rate: users who wait, or all at once.
    """
    course: Course | None = None
    rate_per_s: float | None = None
    if _changes(workload):
        window_s = (
            None if flags["window"] is None else parse_duration_s(flags["window"], where="--window")
        )
        course = course_of(replay.draw_workload(workload).plan, window_s)
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
        objective=objectives.parse_objective(flags["slo"]),
        n_requests=flags["probe_requests"],
        router=flags["router"],
        requests_cap=workload_options.requests_cap(),
        pace="slow" if flags["sure"] else "likely",
    )
    return Asked(
        question, course, parse_duration_s(flags["start_up"], where="--start-up"), flags["target"]
    )


def _changes(workload: types.WorkloadSpec) -> bool:
    """Does its rate change over time?"""
    arrivals = workload.arrivals
    has_own_instants = arrivals is None and workload.replay is not None
    is_bent = isinstance(arrivals, types.OpenArrivals) and arrivals.profile is not None
    return has_own_instants or is_bent or isinstance(arrivals, types.TraceArrivals)
