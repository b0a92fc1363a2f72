"""How many replicas of each group meet the SLO, where a rule of requests says who serves whom?

Requests of one group meet those of another nowhere: the smallest number of each group is found by
itself, by its own requests, as that of a single kind of replica is (``decide.sizing``): what a lone
request takes, what the replicas carry at most, short runs, long runs. Then all groups are simulated
together, on every plausible server (``decide.group_whole``).

Where the step times have draws, the draw that decides is the slowest but one of 19: an SLO is met
where it is so at the likely step times and at 90 % of the draws. Which draw that is the group's own
requests say, the same ones on each.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from inferometer.decide.capacity import OutOfTimeError, Phases, Reading
from inferometer.decide.fewest import (
    COUNTED_FRACTION,
    fewest_in_long_runs,
    fewest_in_short_runs,
)
from inferometer.decide.lone_request import LoneRequest, lone_request
from inferometer.decide.probing import (
    EFFORT_RATIO,
    MOST_TOGETHER,
    FleetProbe,
    locate,
)
from inferometer.decide.sizing import (
    IDLE_FRACTION,
    OVERRUN_FRACTION,
    SURE_EFFORT,
    saturated_per_s,
)
from inferometer.decide.sizing_types import SizingQuestion
from inferometer.decide.traffic import plan_at
from inferometer.inputs.objectives import ClassObjective
from inferometer.inputs.workload.plan import RequestPlan
from inferometer.perfmodel.steptime_terms import shape_duration_s
from inferometer.perfmodel.types import decode_shape, prefill_shape
from inferometer.simulate.demand import Route
from inferometer.simulate.deployment import Case, Deployment
from inferometer.simulate.fleet import Dealt, Fleet, Placement, ReplicaGroup
from inferometer.stats.estimate import AGREEING_FRACTION, Verdict

_USUAL_BATCH: Final = 32
_SPARE_FRACTION: Final = 0.25
_LEAST_CHANGE: Final = 0.02
N_OF_SHARES: Final = 20_000
"""Requests that say which share of all goes to which group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKind:
    """Replicas of one kind, and the rules of their requests."""

    name: str
    deployment: Deployment
    rules: ReplicaGroup
    """One replica at likely step times, with the group's rules."""
    share_fraction: float
    """Share of all requests that go there."""
    load_fraction: float
    """Share of the load that goes there: of requests, or of users in a closed loop."""
    device_usd_per_hour: float | None
    """None: unknown."""

    def devices_of(self, n_replicas: int) -> int:
        """Devices of this number of replicas."""
        return n_replicas * self.deployment.n_devices

    def usd_per_hour_of(self, n_replicas: int) -> float | None:
        """The price of the same."""
        each = self.device_usd_per_hour
        return None if each is None else each * self.devices_of(n_replicas)

    def at(self, case: Case, n_replicas: int, *, has_rules: bool = True) -> ReplicaGroup:
        """Replicas of this kind on one plausible server."""
        known = self.deployment.at(case)
        engine, steps = known.config, known.step_times.likely
        if not has_rules:
            return ReplicaGroup(engine=engine, step_times=steps, n_replicas=n_replicas)
        return replace(self.rules, engine=engine, step_times=steps, n_replicas=n_replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsQuestion:
    """SLO, traffic, and the kinds of replica of the groups."""

    sizing: SizingQuestion
    kinds: tuple[GroupKind, ...]
    keeps_sessions: bool
    class_objectives: tuple[ClassObjective, ...]
    cases: tuple[Case, ...]
    """Plausible servers, the likely one first."""
    is_sure: bool
    """Must the SLO be met on 90 % of the other servers too?"""
    routes: tuple[Route, ...] = ()
    """Routes of classes, or parts of them, in place of the file's rules."""

    @property
    def placement(self) -> Placement:
        """One replica of each group, for the routing rules."""
        return self.placed((1,) * len(self.kinds), "likely")

    def placed(self, numbers: Sequence[int], case: Case) -> Placement:
        """Groups of these numbers of replicas on one plausible server."""
        return Placement(
            groups=tuple(
                kind.at(case, max(n_replicas, 1))  # one without requests stands idle
                for kind, n_replicas in zip(self.kinds, numbers, strict=True)
            ),
            keeps_sessions=self.keeps_sessions,
            routes=self.routes,
        )

    def front_end_s(self, case: Case) -> float:
        """Front-end time of all requests: the longest of the groups'."""
        return max(kind.deployment.at(case).front_end_s for kind in self.kinds)

    def fleet(self, numbers: Sequence[int], case: Case) -> Fleet:
        """All groups together."""
        return _fleet(self.placed(numbers, case), self.front_end_s(case))

    def fleet_of(self, index: int, n_replicas: int, case: Case) -> Fleet:
        """One group by itself, with only its own requests."""
        alone = Placement(groups=(self.kinds[index].at(case, n_replicas, has_rules=False),))
        return _fleet(alone, self.front_end_s(case), Dealt(self.placement, index))

    def usd_per_hour_of(self, numbers: Sequence[int]) -> float | None:
        """Cost of all groups together; None where the price of one is not known."""
        each = [
            kind.usd_per_hour_of(n) for kind, n in zip(self.kinds, numbers, strict=True) if n > 0
        ]
        known = [usd for usd in each if usd is not None]
        return sum(known) if len(known) == len(each) else None

    def devices_of(self, numbers: Sequence[int]) -> int:
        """Devices of all groups."""
        return sum(kind.devices_of(n) for kind, n in zip(self.kinds, numbers, strict=True))


def _fleet(placement: Placement, front_end_s: float, dealt: Dealt | None = None) -> Fleet:
    """The servers of a placement; ``dealt``: with the requests of one group alone."""
    return Fleet(
        replicas=placement.cluster,
        step_times=placement.groups[0].step_times,
        placement=placement,
        front_end_s=front_end_s,
        dealt=dealt,
    )


class GroupTask(NamedTuple):
    """One group of the question."""

    question: GroupsQuestion
    place: int


class Fewer(NamedTuple):
    """A long run of a group with one replica less, by the group's own requests."""

    n_replicas: int
    verdict: Verdict
    """On the server that decides."""
    likely_verdict: Verdict
    why: str


class FoundGroup(NamedTuple):
    """The smallest number of replicas of one group."""

    n_replicas: int | None
    """None: no number meets the SLO, or it was not found in time."""
    why: str
    n_probes: int
    fewer: Fewer | None = None
    """None where one replica is all there is, or time was over."""
    margin_ratio: float | None = None
    """Nearest latency / its limit, where no number meets the SLO."""
    is_examined: bool = True


class Start(NamedTuple):
    """The plausible server that decides, and the number of replicas that short runs found."""

    case: Case
    n_replicas: int


def size_group(task: GroupTask, start: Start | None = None) -> FoundGroup:
    """The smallest number of replicas of this group that meets the SLO for its own requests.

    ``start``: short runs are left out, and long ones begin there.
    """
    phases = Phases(task.question.sizing.time_limit())
    search = Search(task, phases, None if start is None else start.case)
    alone = search.alone()
    if alone is not None and alone.margin_ratio > 1:
        why = f"not even idle replicas meet the SLO; {alone.why}"
        return FoundGroup(None, why, 0, margin_ratio=alone.margin_ratio)
    try:
        with phases.until(1.0):
            first = search.first() if start is None else start.n_replicas
        n_replicas = None
        if first is not None:
            with phases.until(COUNTED_FRACTION + OVERRUN_FRACTION):
                are_in_step = task.question.sizing.are_users_in_step
                at_once = search.verdict_at_once if are_in_step else None
                n_replicas = fewest_in_long_runs(first, search.verdict, phases, at_once)
    except OutOfTimeError:
        why = "no number of replicas was shown to meet the SLO within the time limit"
        return FoundGroup(None, why, search.n_probes, is_examined=False)
    if n_replicas is None:
        worst = search.last
        return FoundGroup(
            None,
            f"no number of replicas meets the SLO; {worst.why}",
            search.n_probes,
            margin_ratio=worst.margin_ratio,
        )
    with phases.until(1.0 + OVERRUN_FRACTION):
        fewer = search.fewer(n_replicas)
    return FoundGroup(n_replicas, search.of_number(n_replicas).why, search.n_probes, fewer)


def slowest_but_open(task: GroupTask) -> Case:
    """The plausible server that decides: the draw of step times that 90 % do not exceed.

    By a prompt and a step of a batch, as long as the group's own requests are: their geometric mean.
    """
    question, known = task.question, task.question.kinds[task.place].deployment
    draws = [case for case in question.cases if not isinstance(case, str)]
    if not question.is_sure:
        return "likely"
    if not draws:
        return "slow"
    plan = plan_at(question.sizing.spec, question.sizing.offered_load, N_OF_SHARES)
    n_tokens = max(round(float(plan.prompt_tokens.mean())), 1)
    shapes = (
        prefill_shape(batch_size=1, prompt_tokens=n_tokens),
        decode_shape(batch_size=_USUAL_BATCH, context_tokens=n_tokens),
    )

    def duration(case: Case) -> float:
        steps = known.at(case).step_times.likely
        return math.prod(shape_duration_s(steps, shape) for shape in shapes)

    slowest_first = sorted(draws, key=duration, reverse=True)
    return slowest_first[len(draws) - math.ceil(AGREEING_FRACTION * len(draws))]


class Bound(NamedTuple):
    """The number of replicas at which a search begins."""

    most_load: float
    """Bound of one replica."""
    load: float
    """Load of the group."""
    least: int
    start: int


class Search:
    """The runs of one group, each once."""

    def __init__(self, task: GroupTask, phases: Phases, case: Case | None = None) -> None:
        self._question, self._place = task
        self._kind, self._phases = self._question.kinds[task.place], phases
        self._readings = dict[tuple[int, Case, int], Reading]()
        self._case: Case = "likely"
        if self._question.is_sure and isinstance(self._question.cases[-1], str):
            self._case = "slow"
        self._case = self._case if case is None else case

    @property
    def case(self) -> Case:
        """The server that decides, as far as is known."""
        return self._case

    @property
    def n_probes(self) -> int:
        """Runs so far."""
        return len(self._readings)

    @property
    def last(self) -> Reading:
        """Result of the largest number of replicas on the server that decides."""
        keys = [key for key in self._readings if key[1] == self._case]
        return self._readings[max(keys, key=lambda key: (key[0], key[2]))]

    def alone(self) -> LoneRequest | None:
        """The least that a request of this group takes on an idle replica."""
        sizing, known = self._question.sizing, self._kind.deployment.at(self._case)
        plan = plan_at(sizing.spec, sizing.offered_load, N_OF_SHARES)
        is_own = self._question.placement.group_of(plan) == self._place
        limits = [("", is_own, sizing.objective)]
        for name, objective, index in self._question.class_objectives:
            limits.append((f"class {name}: ", is_own & (plan.class_index == index), objective))
        found = list[LoneRequest]()
        for whose, rows, objective in limits:
            own = RequestPlan._make(column[rows] for column in plan)
            one = lone_request(known, own, objective) if rows.any() else None
            if one is not None:
                found.append(one._replace(why=f"{whose}{one.why}"))
        return max(found, key=lambda one: one.margin_ratio, default=None)

    def first(self) -> int | None:
        """The smallest number within its limits in short runs, on enough plausible servers.

        None where not even idle replicas are enough.
        """
        bound = self.bound()
        while True:
            found = self.in_short_runs(bound)
            slower = None if found is None else self._slower(found)
            if found is None or slower is None:
                return found
            self._case, bound = slower, bound._replace(least=found, start=found)

    def bound(self) -> "Bound":
        """Upper bound of a replica's load; in a closed loop, the sequences that it runs at once."""
        sizing = self._question.sizing
        load = sizing.offered_load * self._kind.load_fraction
        if sizing.is_of_users:
            most = float(self._kind.deployment.config.max_num_active)
            return Bound(most, load, 1, math.ceil(load / (0.8 * most)))
        most = saturated_per_s(self._probe(1, self._case), sizing.offered_load)
        least, start = (max(1, math.ceil(load / part * (1 - 1e-9))) for part in (most, 0.8 * most))
        return Bound(most, load, least, start)

    def in_short_runs(self, bound: "Bound") -> int | None:
        """The smallest number that is enough on the server that decides; None: not even idle ones are."""
        return fewest_in_short_runs(
            bound.least,
            bound.start,
            lambda n: self.short(n).margin_ratio <= 1,
            lambda n: bound.load / n < IDLE_FRACTION * bound.most_load or self._stalls(n, bound),
        )

    def _stalls(self, n_replicas: int, bound: "Bound") -> bool:
        """Did more replicas not help, though each has at most a quarter of its possible load?"""
        fewer = [n for n, case, _ in self._readings if case == self._case and n < n_replicas]
        if not fewer or bound.load / n_replicas > _SPARE_FRACTION * bound.most_load:
            return False
        before, now = self.short(max(fewer)).margin_ratio, self.short(n_replicas).margin_ratio
        return now > 1 and not now < before * (1 - _LEAST_CHANGE)

    def _slower(self, n_replicas: int) -> Case | None:
        """The draw that decides, where these are too few on it; None where they are enough."""
        draws = [case for case in self._question.cases if not isinstance(case, str)]
        if not self._question.is_sure or not draws:
            return None
        margins = {case: self._reading(n_replicas, case, 0).margin_ratio for case in draws}
        slowest_first = sorted(draws, key=lambda case: margins[case], reverse=True)
        n_open = len(draws) - math.ceil(AGREEING_FRACTION * len(draws))
        decides = slowest_first[n_open]
        if margins[decides] > 1:
            return decides
        if self._case not in draws or margins[self._case] < margins[decides]:
            self._case = decides
        return None

    def capacity(self, n_replicas: int) -> float | None:
        """The load of all groups at which this number reaches a limit in short runs; None: none is within it."""
        probe = self._probe(n_replicas, self._case)
        return locate(probe, self._question.sizing.offered_load)

    def of_number(self, n_replicas: int) -> Reading:
        """The longest run of this number on the server that decides."""
        keys = [key for key in self._readings if key[:2] == (n_replicas, self._case)]
        return self._readings[max(keys, key=lambda key: key[2])] if keys else self.short(n_replicas)

    def short(self, n_replicas: int) -> Reading:
        """A short run of this number of replicas, on the server that decides."""
        return self._reading(n_replicas, self._case, 0)

    def verdict(self, n_replicas: int) -> Verdict:
        """Do long runs show that this number meets the SLO?"""
        return self.long(n_replicas).verdict

    def verdict_at_once(self, n_replicas: int) -> Verdict:
        """The verdict of a single long run, however open it is."""
        return self._reading(n_replicas, self._case, SURE_EFFORT).verdict

    def long(self, n_replicas: int, case: Case | None = None) -> Reading:
        """A long run, and longer ones while noise leaves it undecided and there is time."""
        case, effort, n_before = self._case if case is None else case, SURE_EFFORT, 0
        while True:
            before_s = self._phases.time_left_s()
            found = self._reading(n_replicas, case, effort)
            left_s = self._phases.time_left_s()
            is_longest = found.n_requests <= n_before or (
                left_s < math.inf and left_s < 2 * EFFORT_RATIO * (before_s - left_s)
            )
            if found.verdict != "undecided" or is_longest:
                return found
            effort, n_before = effort + 1, found.n_requests

    def fewer(self, n_replicas: int) -> Fewer | None:
        """The result with one replica less; None where there is none, or no time."""
        if n_replicas == 1:
            return None
        try:
            found = self.long(n_replicas - 1)
            likely = found if self._case == "likely" else self.long(n_replicas - 1, "likely")
        except OutOfTimeError:
            return None
        return Fewer(n_replicas - 1, found.verdict, likely.verdict, found.why)

    def _reading(self, n_replicas: int, case: Case, effort: int) -> Reading:
        key = n_replicas, case, effort
        if key not in self._readings:
            probe = self._probe(n_replicas, case)
            self._readings[key] = probe(self._question.sizing.offered_load, effort)
        return self._readings[key]

    def _probe(self, n_replicas: int, case: Case) -> FleetProbe:
        n_together = min(n_replicas, MOST_TOGETHER)
        return FleetProbe(
            fleet=self._question.fleet_of(self._place, n_together, case),
            n_replicas=n_replicas,
            traffic=self._question.sizing.traffic,
            objective=self._question.sizing.objective,
            class_objectives=self._question.class_objectives,
            share_fraction=self._kind.share_fraction,
        )
