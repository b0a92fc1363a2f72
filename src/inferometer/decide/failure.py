"""Effect of the death of one replica.

Who is lost, who misses the promise until another has started, and when is it as before?

Simulated twice, with all requests at their instants. First nothing dies: that says which requests
are in the replica at the instant. Then these come a second time at that instant, as clients send
again what was cut off (a router cannot: the answer had begun), and the replica gets no requests
until another in its place has started: classes of requests with replicas of their own, as
``elastic`` has them. What is simplified: requests go to the least loaded replica, whatever the
router; who was cut off sends again at once; the new replica's prefix cache is that of the old.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from inferometer.decide import elastic, probing, traffic
from inferometer.decide.capacity import OutOfTimeError, Phases
from inferometer.decide.elastic import Course
from inferometer.decide.probing import run_plan
from inferometer.decide.sizing_types import SizedKind, SizingQuestion
from inferometer.inputs.workload.plan import NONE, RequestPlan
from inferometer.records import request_summaries, tables
from inferometer.records.columns import I64
from inferometer.records.types import ABSENT, RequestTable, Run
from inferometer.stats.estimate import Estimate
from inferometer.units import NS_PER_S

_SETTLED_S: Final = 120.0
"""Until the queues are as they are under this traffic."""
_MOST_ROUTED: Final = 2_000_000
"""Requests times replicas that a router looks at: what is computed in some two seconds."""
_MOST_BLOCKS: Final = 200_000_000
"""Contents of KV blocks times replicas: each takes 8 bytes. The pages of SGLang are of one token."""
_TIME_FRACTION: Final = 0.3
"""Share of a device's time limit that the two simulations may take, after the search."""
_AFTER_RATIO: Final = 4
"""Start-ups after the first, for the queue to drain in."""
_LEAST_WINDOW_S: Final = 10.0
_WINDOW_REQUESTS: Final = 100
"""For a percentile of each window."""
_WITHOUT: Final = 1
"""The class of what comes while there is one replica less; 0 and 2 come before and after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureOutcome:
    """The effect of the death of one replica of several, under the sized traffic."""

    start_up_s: float
    """Until another answers in its place."""
    n_cut_off: int
    """Requests that were in it, waiting or running; each is sent again."""
    n_until_started: int
    """Requests that came while there was one less, those sent again among them."""
    good: Estimate | None
    """Share of these within every limit, counted from when they were first sent."""
    good_otherwise: Estimate | None
    """The same where nothing dies."""
    slo_met_again_s: float | None
    """From the failure to the end of the last window that it breaks before one is kept with all
    replicas there again. 0: it breaks none. None: none is kept before the end of the simulation,
    four start-ups later."""
    window_s: float


class FailureFound(NamedTuple):
    """The effect of a failure, or why it was not examined; neither with one replica."""

    outcome: FailureOutcome | None
    why_not: str | None


def failure_of(question: SizingQuestion, kind: SizedKind, start_up_s: float) -> FailureFound:
    """Simulate a failure, for plain replicas of an open loop with few enough requests."""
    if kind.n_replicas == 1:
        return FailureFound(None, None)
    why_not = _why_not(question, kind, start_up_s)
    if why_not is not None:
        return FailureFound(None, why_not)
    drawn = _plan(question, start_up_s)
    why_not = _why_not_these(drawn, kind, start_up_s)
    if why_not is not None:
        return FailureFound(None, why_not)
    try:
        with Phases(question.time_limit()).until(_TIME_FRACTION):
            return FailureFound(_simulated(question, kind, start_up_s, drawn), None)
    except OutOfTimeError:
        return FailureFound(
            None, f"{drawn.n_requests:,} requests take longer than the time limit (--time-limit)"
        )


def _why_not(question: SizingQuestion, kind: SizedKind, start_up_s: float) -> str | None:
    if question.is_of_users:
        return "users who wait send less while a replica is missing"
    if not question.fleets.is_plain:
        return "the fleet has a gate, prefill replicas or shared experts"
    n_requests = question.offered_load * _span_s(start_up_s)
    if n_requests > question.traffic.most_requests:
        most = question.traffic.most_requests
        return f"{n_requests:,.0f} requests come meanwhile, and a simulation has at most {most:,}"
    if n_requests * kind.n_replicas > _MOST_ROUTED:
        return (
            f"{n_requests:,.0f} requests among {kind.n_replicas:,} replicas are more than one"
            " simulation routes"
        )
    return None


def _why_not_these(drawn: RequestPlan, kind: SizedKind, start_up_s: float) -> str | None:
    """Why these requests are not simulated."""
    if (drawn.follows != NONE).any():
        return "requests of its traffic follow one another"
    if int(drawn.arrival_ns.max()) <= round((_SETTLED_S + start_up_s) * NS_PER_S):
        return "the traffic ends before another replica has started"
    n_tokens = int((drawn.prompt_tokens + drawn.output_tokens).sum())
    n_blocks = n_tokens // kind.candidate.deployment.config.block_size * kind.n_replicas
    if n_blocks > _MOST_BLOCKS:
        what = f"{n_blocks:,} KV blocks of {kind.n_replicas:,} replicas"
        return f"{what} are more than one simulation holds"
    return None


def _span_s(start_up_s: float) -> float:
    return _SETTLED_S + (1 + _AFTER_RATIO) * start_up_s


def _plan(question: SizingQuestion, start_up_s: float) -> RequestPlan:
    n_requests = max(1, round(question.offered_load * _span_s(start_up_s)))
    return traffic.plan_at(question.spec, question.offered_load, n_requests)


def _simulated(
    question: SizingQuestion, kind: SizedKind, start_up_s: float, drawn: RequestPlan
) -> FailureOutcome:
    died_ns, started_ns = round(_SETTLED_S * NS_PER_S), round((_SETTLED_S + start_up_s) * NS_PER_S)
    plan = drawn._replace(
        class_index=np.searchsorted([died_ns, started_ns], drawn.arrival_ns, side="right").astype(
            np.int32
        )
    )
    all_of_them = tuple(range(kind.n_replicas))
    classes = (all_of_them, all_of_them[:-1], all_of_them)
    undisturbed, failing = (
        probing.fleet_by_class(question, kind.candidate, by_class)
        for by_class in ((all_of_them,) * 3, classes)
    )
    otherwise = run_plan(undisturbed, plan)
    cut_off = _in_replica(otherwise, kind.n_replicas - 1, died_ns)
    again, first = _sent_again(plan, cut_off, died_ns)
    run = _without_cut_off(run_plan(failing, again), first)
    window_s = max(_LEAST_WINDOW_S, _WINDOW_REQUESTS / question.offered_load)
    return FailureOutcome(
        start_up_s=start_up_s,
        n_cut_off=len(cut_off),
        n_until_started=int((again.class_index == _WITHOUT).sum()),
        good=_good(question, run, again),
        good_otherwise=_good(question, otherwise, plan),
        slo_met_again_s=_slo_met_again_s(
            question,
            (otherwise, _course(plan, died_ns, window_s)),
            (run, _course(again, died_ns, window_s)),
            start_up_s,
        ),
        window_s=window_s,
    )


def _in_replica(run: Run, replica: int, at_ns: int) -> I64:
    """Requests that are in the replica at this time."""
    visits = run.visits
    if visits is None:
        return np.zeros(0, np.int64)
    is_there = (
        (visits.replica == replica)
        & (visits.arrived_ns < at_ns)
        & ((visits.left_ns == ABSENT) | (visits.left_ns > at_ns))
    )
    return np.unique(visits.request_index[is_there]).astype(np.int64)


def _sent_again(plan: RequestPlan, cut_off: I64, at_ns: int) -> tuple[RequestPlan, I64]:
    """The requests with these once more at that instant, and of each row (N) the row that was sent first."""
    row = int(np.searchsorted(plan.arrival_ns, at_ns))
    source = np.concatenate([np.arange(row), cut_off, np.arange(row, plan.n_requests)])
    moved = np.where(
        np.arange(plan.n_requests) < row,
        np.arange(plan.n_requests),
        np.arange(plan.n_requests) + len(cut_off),
    )
    copies = slice(row, row + len(cut_off))
    again = RequestPlan._make(column[source] for column in plan)
    again.arrival_ns[copies] = at_ns
    again.class_index[copies] = _WITHOUT
    prefix = np.where(again.prefix_request == NONE, NONE, moved[again.prefix_request]).astype(
        np.int32
    )
    first = moved[source]
    return again._replace(prefix_request=prefix), first


def _without_cut_off(run: Run, first: I64) -> Run:
    """The run as clients see it: a request that was cut off counts from its first sending."""
    requests = run.requests
    if requests is None:
        return run
    row = requests.request_index
    sent_ns = np.zeros(len(first), np.int64)
    sent_ns[row] = requests.intended_send_ns
    is_again = first != np.arange(len(first))
    counted: RequestTable = requests._replace(
        intended_send_ns=np.where(is_again[row], sent_ns[first[row]], requests.intended_send_ns)
    )
    return replace(
        run, requests=tables.select(counted, ~np.isin(row, first[is_again]) | is_again[row])
    )


def _good(question: SizingQuestion, run: Run, plan: RequestPlan) -> Estimate | None:
    """Share of requests within the SLO that arrived while one replica was missing."""
    requests = run.requests
    rows = None if requests is None else plan.class_index[requests.request_index] == _WITHOUT
    return request_summaries.judge_objective(run, question.objective, rows=rows).good


def _course(plan: RequestPlan, from_ns: int, window_s: float) -> Course:
    """Whole windows from an instant on; earlier requests are in none."""
    window_ns = round(window_s * NS_PER_S)
    return Course(
        plan,
        window_s,
        (plan.arrival_ns - from_ns) // window_ns,
        (int(plan.arrival_ns.max()) - from_ns) // window_ns,
    )


def _slo_met_again_s(
    question: SizingQuestion,
    otherwise: tuple[Run, Course],
    failed: tuple[Run, Course],
    start_up_s: float,
) -> float | None:
    """Time from the failure to the first window that meets the SLO again, None: never.

    Windows that miss after that one miss by chance.

    Later ones break by chance.
    """
    kept_otherwise, kept = (
        elastic.kept_windows(run, question, course) for run, course in (otherwise, failed)
    )
    broken = [
        index
        for index, both in enumerate(zip(kept_otherwise, kept, strict=True))
        if both == (True, False)
    ]
    course = failed[1]
    restored = next(
        (
            i
            for i in range(math.ceil(start_up_s / course.window_s), course.n_windows)
            if i not in broken
        ),
        None,
    )
    if restored is None:
        return None
    return (max((i for i in broken if i < restored), default=-1) + 1) * course.window_s
