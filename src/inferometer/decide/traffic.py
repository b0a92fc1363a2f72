"""Traffic at a variable load: the same requests, faster or slower."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
import numpy as np

from inferometer.decide.capacity import LoadKind
from inferometer.inputs.workload import reading, replay, types
from inferometer.inputs.workload.plan import NONE, RequestPlan, is_in_step
from inferometer.records.columns import Bools
from inferometer.records.latencies import COMPLETED, is_one_of
from inferometer.records.tables import select
from inferometer.records.types import ABSENT, Run
from inferometer.records.user_spans import user_spans_ns
from inferometer.units import NS_PER_S

N_REQUESTS: Final = 1000
"""Of a probe at the lowest effort: enough for an interval of a 95th percentile of requests that
hardly depend on one another."""


LEAST_OF_EACH_USER: Final = 4
"""Requests: the first ones of all users come at once, and the last ones meet fewer users."""
_MOST_WORK: Final = 1.6e7
"""Output tokens, and prompt tokens in blocks, of the longest probe: 10 to 20 million of them
take a second."""
_BLOCK_TOKENS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """A workload at any load: the same seed draws the same requests, faster or slower."""

    spec: types.WorkloadSpec
    n_requests: int = N_REQUESTS
    """At effort 0; each effort has four times as many as the one below."""
    requests_cap: int | None = None
    """Most requests of a probe, if given."""

    @property
    def most_requests(self) -> int:
        """Most requests of any probe: about two seconds of computing."""
        return self.requests_cap or max(self.n_requests, round(_MOST_WORK / _work_of(self.spec)))

    @property
    def longest_requests(self) -> int:
        """Most requests of a probe that may exceed its cap to be more than one burst."""
        if self.is_trace:
            return _n_recorded(self.spec)
        return max(replace(self, requests_cap=None).most_requests, self.most_requests)

    def least_requests(self, load: float) -> int:
        """Fewest requests of a probe at this load: in a closed loop several for each user."""
        if self.kind != "users":
            return 1
        return min(math.ceil(LEAST_OF_EACH_USER * load), self.longest_requests)

    @property
    def is_trace(self) -> bool:
        """Are the requests those of a trace, which cannot be extended?"""
        return isinstance(self.spec.replay, types.TraceSource)

    @property
    def kind(self) -> LoadKind:
        """Unit of the load: requests per second, or users."""
        return "users" if isinstance(self.spec.arrivals, types.ClosedArrivals) else "requests_per_s"


def plan_at(spec: types.WorkloadSpec, load: float, n_requests: int) -> RequestPlan:
    """The requests of the workload at this load; of a trace at most those that it has."""
    is_trace = isinstance(spec.replay, types.TraceSource)
    arrivals = types.OpenArrivals() if is_trace and spec.arrivals is None else spec.arrivals
    n_requests = min(n_requests, _n_recorded(spec)) if is_trace else n_requests
    if isinstance(arrivals, types.OpenArrivals) and arrivals.profile is None:
        unit = _unit_plan_of(spec, n_requests)
        return unit._replace(
            arrival_ns=np.where(
                unit.arrival_ns == NONE, NONE, np.rint(unit.arrival_ns / load)
            ).astype(np.int64)
        )
    return replay.draw_workload(at_load(spec, load, n_requests)).plan


def without_start(run: Run, plan: RequestPlan) -> Run:
    """The run without each user's first request, unless too few others are left."""
    if run.requests is None:
        return run
    is_later = plan.follows[run.requests.request_index] != NONE
    if 2 * np.count_nonzero(is_later) <= len(is_later):
        return run
    return replace(run, requests=select(run.requests, is_later))


class AtWork(NamedTuple):
    """Results of a closed loop while all users are active."""

    requests_per_s: float
    in_flight_load: float
    """Requests on average, waiting or running."""


def users_at_work(
    run: Run, plan: RequestPlan, n_users: float, rows: Bools | None = None
) -> AtWork | None:
    """Results while all users of a closed loop are active, without the end when few are left.

    A rate over the whole run would be that of fewer users; here each counts for its own time.
    ``rows``: only these of the requests. None where nobody's request is completed.
    """
    requests = run.requests
    if requests is None:
        return None
    is_done = is_one_of(requests, COMPLETED)
    first_ns, last_ns = user_spans_ns(requests, plan)
    span_ns = int((last_ns - first_ns)[last_ns != ABSENT].sum())
    if span_ns <= 0:
        return None
    own = is_done if rows is None else is_done & rows
    stayed_ns = int((requests.finished_ns - requests.intended_send_ns)[own].sum())
    return AtWork(
        requests_per_s=n_users * int(own.sum()) / span_ns * NS_PER_S,
        in_flight_load=n_users * stayed_ns / span_ns,
    )


@lru_cache(maxsize=8)
def _n_recorded(spec: types.WorkloadSpec) -> int:
    """The number of requests of a trace; reading it may take seconds."""
    return replay.draw_workload(spec).plan.n_requests


@lru_cache(maxsize=8)
def are_in_step(spec: types.WorkloadSpec, n_users: float) -> bool:
    """Do this number of users stay together: equal prompts, equal answers, no pauses?"""
    n_requests = max(N_REQUESTS, LEAST_OF_EACH_USER * round(n_users))
    return is_in_step(replay.draw_workload(at_load(spec, n_users, n_requests)))


@lru_cache(maxsize=16)
def _unit_plan_of(spec: types.WorkloadSpec, n_requests: int) -> RequestPlan:
    """At one request per second: other rates stretch the same pattern."""
    return replay.draw_workload(at_load(spec, 1.0, n_requests)).plan


@lru_cache(maxsize=8)
def _work_of(spec: types.WorkloadSpec) -> float:
    """Relative work of a mean request: output tokens plus blocks of prompt tokens."""
    plan = plan_at(spec, 1.0, N_REQUESTS)
    return max(float((plan.output_tokens + plan.prompt_tokens / _BLOCK_TOKENS).mean()), 1.0)


def steady(spec: types.WorkloadSpec) -> types.WorkloadSpec:
    """The same requests without their course over time: they come at a rate that can be turned."""
    arrivals = spec.arrivals
    opened = arrivals if isinstance(arrivals, types.OpenArrivals) else types.OpenArrivals()
    is_trace = isinstance(spec.replay, types.TraceSource)
    n_requests = None if is_trace else spec.n_requests
    return msgspec.structs.replace(
        spec,
        arrivals=msgspec.structs.replace(opened, profile=None),
        n_requests=n_requests,
        duration_s=None,
    )


def at_load(spec: types.WorkloadSpec, load: float, n_requests: int) -> types.WorkloadSpec:
    """The workload with this many requests per second, or users, and requests in all.

    Raises
    ------
    SpecError
        A replayed trace comes at its own instants, and has no load to turn.
    """
    arrivals = spec.arrivals
    if isinstance(arrivals, types.ClosedArrivals):
        changes: dict[str, object] = {"concurrency": max(1, round(load))}
    elif isinstance(arrivals, types.OpenArrivals):
        changes = {"rate_per_s": load}
    else:
        changes = {"kind": "open", "rate_per_s": load}
    return reading.with_changes(
        spec,
        {"arrivals": changes, "n_requests": n_requests, "duration_s": None},
        where="the capacity search",
    )
