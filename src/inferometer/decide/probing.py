"""Does this fleet meet this SLO at this load? A probe that simulates, with the same requests at every load.

``probe_of`` makes the probe of one candidate of a sizing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from inferometer.decide.candidates import Candidate, Fleets
from inferometer.decide.capacity import CapacityQuestion, Reading, find_capacity
from inferometer.decide.sizing_types import SizingQuestion
from inferometer.decide.traffic import (
    AtWork,
    Traffic,
    plan_at,
    users_at_work,
    without_start,
)
from inferometer.inputs.objectives import ClassObjective, ObjectiveSpec
from inferometer.inputs.workload.plan import NONE, DrawnWorkload, RequestPlan, has_workflows
from inferometer.records import latencies, request_summaries, user_spans
from inferometer.records.columns import Bools
from inferometer.records.types import ABSENT, REFUSALS, Run
from inferometer.simulate import run, simulated_run
from inferometer.simulate.deployment import Pace
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.fleet import Fleet
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.stats.estimate import worst_verdict
from inferometer.units import NS_PER_S, format_number

EFFORT_RATIO: Final = 4
_MOST_SHARES: Final = 4
"""A cluster is asked with as many requests as this number of replicas would be one by one: its
percentiles are those of all requests. Prefill and decode replicas fill and drain one after the
other: they are asked with no fewer, each of many with half as many as one by one."""
_BREAKING: Final = ("overload", "stuck", "livelock", *REFUSALS)
"""Cautions of a simulated run that count as missing the SLO, whatever its percentiles."""
_SEARCH_RATIO: Final = 64.0
MOST_TOGETHER: Final = 8
"""Replicas that are simulated together. Of more, these with their part of the traffic: a router
gains little from more to choose from."""


_LEAST_LIFETIMES: Final = 4
_LASTING_LIFETIMES: Final = 10
"""Of a request, for which a load within the limit must go on in a probe as it was wanted, and in
one that is made longer. While the first requests stay and a queue builds up, a server takes in
more than it serves: a share of up to 1 / this number."""
_LEAST_SHARE_FRACTION: Final = 1 / 64
"""Of a group that gets a smaller share of all requests fewer are simulated."""


def class_objectives_of(
    drawn: DrawnWorkload, objective: ObjectiveSpec
) -> tuple[ClassObjective, ...]:
    """SLO of each class of a workload with several: its own, else the given one."""
    names = drawn.class_names if len(drawn.class_names) > 1 else ()
    own = {one.class_index: one for one in drawn.class_objectives}
    return tuple(
        own.get(index, ClassObjective(name, objective, index)) for index, name in enumerate(names)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetProbe:
    """Simulates a fleet: ``probe(load, effort)``."""

    fleet: Fleet
    traffic: Traffic
    objective: ObjectiveSpec
    n_replicas: int | None = None
    """Replicas that share the load, those of ``fleet`` included; None: all are in ``fleet``."""
    class_objectives: tuple[ClassObjective, ...] = ()
    """The SLO of each class beside that of all; none: classes are not distinguished."""
    share_fraction: float = 1.0
    """Share of the drawn requests that come to this fleet."""

    def __call__(self, load: float, effort: int) -> Reading:
        """Verdict and margin at this load; with several classes, those of the worst class.

        A burst that is over before a queue builds up tells nothing of a load that goes on. Where no
        longer probes would follow, as many requests are taken as last, also more than were wanted.
        So they are of sessions: before the first ones end, less than the load is offered.
        """
        longest = self.traffic.longest_requests
        n_requests, least = min(self.n_requests(effort), longest), _LEAST_LIFETIMES
        while True:
            run = self.run_of(load, n_requests)
            found = worst_reading(run, self.objective, self.class_objectives)
            sessions = self._sessions(load, n_requests)
            n_lifetimes = _lifetimes(run, sessions)
            is_capped = n_requests >= min(self.traffic.most_requests, longest)
            is_capped |= sessions is not None
            # Its requests came before one was answered: no queue is seen, however high the rate.
            is_all_at_once = self.traffic.kind != "users" and n_lifetimes < 1
            is_enough = not (is_capped or is_all_at_once) or n_lifetimes >= least
            if is_enough or found.margin_ratio > 1:
                return found
            if not is_capped:
                n_requests = EFFORT_RATIO * n_requests
                continue
            ratio = 2 * _LASTING_LIFETIMES / max(n_lifetimes, 1 / _LASTING_LIFETIMES)
            n_needed = math.ceil(n_requests * ratio)
            if n_requests >= longest:
                is_burst = n_lifetimes < _LEAST_LIFETIMES
                stays = "one stays" if sessions is None else "a session lasts"
                return _of_burst(found, n_lifetimes, n_needed, stays) if is_burst else found
            n_requests, least = min(n_needed, longest), _LASTING_LIFETIMES

    def run(self, load: float, effort: int) -> Run:
        """The simulated run behind it.

        The more replicas, the more requests, up to the limits of this probe and of the traffic.
        """
        return self.run_of(load, self.n_requests(effort))

    def n_requests(self, effort: int) -> int:
        """Requests of a probe of this effort: more for more replicas, within the traffic's limits."""
        n_all = self.fleet.n_replicas
        has_pools = self.fleet.prefill is not None
        n_shares = max(n_all // 2, _MOST_SHARES) if has_pools else min(n_all, _MOST_SHARES)
        n_requests: int = self.traffic.n_requests * n_shares * EFFORT_RATIO**effort
        return min(n_requests, self.traffic.most_requests)

    def run_of(self, load: float, n_requests: int, *, record_steps: bool = False) -> Run:
        """The simulated run at this load, of this number of requests."""
        plan = self._plan(load, n_requests)
        is_of_users = self.traffic.kind == "users" and not record_steps
        return run_plan(self.fleet, plan, record_steps=record_steps, is_of_users=is_of_users)

    def users_at_work(self, run: Run, load: float, n_requests: int) -> AtWork | None:
        """Results while all users are active; None where the load is a rate."""
        if self.traffic.kind != "users":
            return None
        return users_at_work(run, self._plan(load, n_requests), load)

    def _sessions(self, load: float, n_requests: int) -> RequestPlan | None:
        """The requests, where some wait for the answers of others at a rate; else None."""
        if self.traffic.kind == "users":
            return None
        plan = self._plan(load, n_requests)
        return plan if (plan.follows != NONE).any() else None

    def _plan(self, load: float, n_requests: int) -> RequestPlan:
        """Requests of the simulated replicas' share of the load."""
        if self.n_replicas is not None:
            load = load * self.fleet.n_replicas / self.n_replicas
        n_drawn = math.ceil(n_requests / max(self.share_fraction, _LEAST_SHARE_FRACTION))
        return plan_at(self.traffic.spec, load, max(n_drawn, self.traffic.least_requests(load)))


def _lifetimes(run: Run, sessions: RequestPlan | None) -> float:
    """Span of the arrivals, in mean durations of a request, or of a session of ``sessions``.

    Where they are those of ``sessions``: as a session lasts, with its pauses, do new ones begin?
    """
    requests = run.requests
    if requests is None:
        return math.inf
    if sessions is None:
        is_done = latencies.is_one_of(requests, latencies.COMPLETED)
        came_ns, ended_ns = requests.intended_send_ns[is_done], requests.finished_ns[is_done]
    else:
        first_ns, last_ns = user_spans.user_spans_ns(requests, sessions)
        is_done = last_ns != ABSENT
        came_ns, ended_ns = first_ns[is_done], last_ns[is_done]
    if not len(came_ns):
        return math.inf
    sent_ns = requests.intended_send_ns if sessions is None else came_ns
    return float(sent_ns.max() - sent_ns.min()) / max(float((ended_ns - came_ns).mean()), 1.0)


def _of_burst(found: Reading, n_lifetimes: float, n_needed: int, stays: str) -> Reading:
    why = (
        f"{found.n_requests:,} requests are one burst, over after {format_number(n_lifetimes)}"
        f" times as long as {stays}; {n_needed:,} would be a load that goes on"
    )
    return found._replace(burst=(n_needed, why))


def worst_reading(
    run: Run,
    objective: ObjectiveSpec,
    class_objectives: Sequence[ClassObjective] = (),
    rows: Bools | None = None,
) -> Reading:
    """Result of a run for the SLO and the classes' own SLOs: the worst of them.

    The margin is the largest of all. The reason is that of the verdict, which may be another one:
    a class of few requests is open while all together are nearer to their limit, and met.
    ``rows``: of N requests only these.
    """
    readings = [_reading(run, objective, rows)]
    requests = run.requests
    if requests is None:
        return readings[0]
    for name, of_class, index in class_objectives:
        own = requests.class_index == index
        own = own if rows is None else own & rows
        if bool(own.any()):
            found = _reading(run, of_class, own)
            readings.append(found._replace(why=f"class {name}: {found.why}"))
    worst = max(readings, key=lambda one: one.margin_ratio)
    verdict = worst_verdict(one.verdict for one in readings) or "met"
    deciding = [one for one in readings if one.verdict == verdict]
    why = max(deciding, key=lambda one: one.margin_ratio).why
    return worst._replace(verdict=verdict, why=why)


def binding(run: Run, objective: ObjectiveSpec, rows: Bools | None) -> ObjectiveSpec | None:
    """Part of the SLO that applies to these requests; None: none of it does.

    Limits of workflows apply to requests of workflows only.
    """
    limits = objective.thresholds
    if not latencies.has_planners(run, rows):
        limits = tuple(one for one in limits if one.metric != "workflow")
    return replace(objective, thresholds=limits) if limits else None


def _reading(run: Run, objective: ObjectiveSpec, rows: Bools | None) -> Reading:
    """Result of a run for these requests."""
    binds = binding(run, objective, rows)
    found = reading_of(run, request_summaries.judge_objective(run, binds or objective, rows=rows))
    if binds is not None or found.verdict == "missed":  # overloaded, say
        return found
    return found._replace(
        verdict="met", margin_ratio=0.0, why="no workflow is among these requests"
    )


def run_plan(
    fleet: Fleet, plan: RequestPlan, *, record_steps: bool = False, is_of_users: bool = False
) -> Run:
    """Simulate these requests; of a closed loop the users' first ones are left out.

    The first requests of users arrive all at once, and that burst would dominate a short probe.
    """
    if fleet.dealt is not None and not plan.prefix_tokens.any() and (plan.follows == NONE).all():
        plan, fleet = fleet.dealt.own_plan(plan), replace(fleet, dealt=None)  # the same, sooner
    known = _without_idle_cache(fleet, plan)
    simulated = run.run(known, plan, record_steps=record_steps)
    if known.prefill is not None and bool(simulated.requests.n_preemptions.any()):
        known = fleet  # a preempted request finds its own blocks
        simulated = run.run(known, plan, record_steps=record_steps)
    made = simulated_run.simulated_run(
        simulated,
        known.rules,
        run_id="probe",
        created_utc="",
        command=(),
        tool_version="",
    )
    own = plan if fleet.dealt is None else fleet.dealt.own_plan(plan)
    made = replace(made, drawn=own if has_workflows(own) else None)
    return without_start(made, own) if is_of_users else made


def _without_idle_cache(fleet: Fleet, plan: RequestPlan) -> Fleet:
    """Without a prefix cache where there is nothing to find: the same steps, sooner."""
    replicas, placement, prefill = fleet.replicas, fleet.placement, fleet.prefill
    routers = {replicas.router} | ({prefill.replicas.router} if prefill else set())
    is_of_use = "prefix-affine" in routers or bool(plan.prefix_tokens.any())
    if is_of_use or not isinstance(replicas.engine, SchedulerConfig):
        return fleet
    if prefill is not None:
        own = replace(prefill.replicas, engine=_cacheless(prefill.replicas.engine))
        fleet = replace(fleet, prefill=replace(prefill, replicas=own))
    if placement is None:
        return replace(fleet, replicas=replace(replicas, engine=_cacheless(replicas.engine)))
    groups = tuple(replace(one, engine=_cacheless(one.engine)) for one in placement.groups)
    placement = replace(placement, groups=groups)
    return replace(fleet, replicas=placement.cluster, placement=placement)


def _cacheless(engine: EngineConfig) -> EngineConfig:
    if not isinstance(engine, SchedulerConfig):
        return engine
    return replace(engine, enable_prefix_caching=False)


def reading_of(run: Run, judgement: request_summaries.Judgement) -> Reading:
    """Result of a simulated run for an SLO.

    Overload, and requests that are refused, break it whatever the percentiles say.
    """
    breaking = next(
        (caution for caution in run.manifest.cautions if caution.code in _BREAKING), None
    )
    weakest = judgement.weakest
    margin, ends, why = float("inf"), None, "the SLO has no percentile"
    if weakest is not None:
        why = f"{weakest.threshold.text}: {weakest.why}"
        seen = (
            None
            if weakest.seen is None
            else weakest.seen.seconds.scaled(1 / weakest.threshold.limit_s)
        )
        margin = margin if seen is None else seen.value
        ends = (
            None if seen is None or seen.low is None or seen.high is None else (seen.low, seen.high)
        )
    if breaking is not None:
        margin, ends, why = float("inf"), None, breaking.text
    n_requests = 0 if run.requests is None else len(run.requests.status)
    return Reading(
        verdict=judgement.verdict if breaking is None else "missed",
        margin_ratio=margin,
        why=why,
        n_requests=n_requests,
        took_s=_span_s(run),
        margin_interval=ends,
    )


def _span_s(run: Run) -> float:
    requests = run.requests
    if requests is None or not len(requests.status):
        return 0.0
    return max(int(requests.finished_ns.max()) - int(requests.intended_send_ns.min()), 0) / NS_PER_S


def n_simulated(fleets: Fleets, n_replicas: int) -> int:
    """How many of these replicas are simulated, with their share of the load."""
    return min(n_replicas, MOST_TOGETHER) if fleets.is_plain else n_replicas


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
    elif not n_prefill:
        n_replicas = n_simulated(fleets, n_replicas)
    return FleetProbe(
        fleet=fleets.fleet(candidate.deployment, pace, n_replicas, n_prefill),
        n_replicas=n_all if fleets.is_plain else None,
        traffic=question.traffic,
        objective=question.objective,
        class_objectives=question.spec.class_objectives,
    )


def fleet_by_class(
    question: SizingQuestion,
    candidate: Candidate,
    class_replicas: tuple[tuple[int, ...], ...],
) -> Fleet:
    """Replicas of a candidate, each class with its own, behind the least-loaded router."""
    n_replicas = 1 + max(max(replicas) for replicas in class_replicas)
    fleet = question.fleets.fleet(candidate.deployment, question.pace, n_replicas)
    replicas = replace(fleet.replicas, router="class-aware", class_replicas=class_replicas)
    return replace(fleet, replicas=replicas)


def locate(probe: FleetProbe, start_load: float) -> float | None:
    """The load at which short runs reach the nearest limit.

    The highest load that was tried where none of them does; None where no load within a factor of
    64 meets the SLO.
    """

    def go_on(load: float, effort: int) -> Reading:
        """Probe without refusing a trace that is one burst."""
        return probe(load, effort)._replace(burst=None)

    is_of_users = probe.traffic.kind == "users"
    lowest = max(start_load / _SEARCH_RATIO, 1.0 if is_of_users else 0.0)
    highest = start_load * _SEARCH_RATIO
    asked = CapacityQuestion(
        kind=probe.traffic.kind,
        start_load=start_load,
        lowest_load=lowest,
        highest_load=highest,
        proof_effort=None,
    )
    found = find_capacity(go_on, asked)
    within = [probe for probe in found.probes if probe.reading.margin_ratio <= 1]
    return found.located_load or max((probe.offered_load for probe in within), default=None)
