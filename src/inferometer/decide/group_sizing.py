"""How many replicas of each group meet the SLO, where a rule of requests says who serves whom?

Requests of one group meet those of another nowhere: the smallest number of each group is found by
itself, by its own requests, as that of a single kind of replica is (``decide.sizing``): what a lone
request takes, what the replicas carry at most, short runs, long runs. Then all groups are simulated
together, on every server that may be the one.

Where the step times have draws, the draw that decides is the slowest but one of 19: an SLO is met
where it is so at the likely step times and at 90 % of the draws. Which draw that is the group's own
requests say, the same ones on each.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from inferometer.decide.capacity import OutOfTimeError, Phases, Reading, TimeLeft
from inferometer.decide.lone_request import LoneRequest, lone_request
from inferometer.decide.probing import (
    EFFORT_RATIO,
    MOST_TOGETHER,
    SEVEREST,
    ClassObjective,
    FleetProbe,
    binding,
    run_plan,
    worst_reading,
)
from inferometer.decide.sizing import (
    IDLE_FRACTION,
    SATURATING_RATIO,
    SATURATING_REQUESTS,
    fewest_in_short_runs,
    fewest_shown,
    mean_in_flight,
    served_per_s,
)
from inferometer.decide.sizing_types import ServedBy, SizingQuestion
from inferometer.decide.traffic import plan_at
from inferometer.inputs.workload.plan import RequestPlan
from inferometer.records.columns import Bools
from inferometer.records.request_summaries import (
    RequestSummary,
    judge_objective,
    summarise_groups,
    summarise_requests,
)
from inferometer.records.tables import select
from inferometer.simulate.deployment import Case, Deployment
from inferometer.simulate.fleet import Dealt, Fleet, Placement, ReplicaGroup
from inferometer.stats.estimate import Verdict

_AGREEING_FRACTION: Final = 0.9
"""Of the servers that may be the one: 18 of 19 draws, or both ends of an interval."""
_COUNTED_FRACTION: Final = 0.7
_OVERRUN_FRACTION: Final = 0.3
"""As in ``decide.sizing``: when the number is no longer refined, and how much more of the time a
simulation may take that was begun before."""
_SURE_EFFORT: Final = 1
N_OF_SHARES: Final = 20_000
"""Requests that say which share of all goes to which group."""
_LEAST_REQUESTS: Final = 500
"""Of the whole on one server, however little time there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKind:
    """Replicas of one kind, as many as it takes, and whose requests they get."""

    name: str
    deployment: Deployment
    rules: ReplicaGroup
    """Of one replica at likely step times, with the rules of who may go there."""
    share_fraction: float
    """Of all requests that go there."""
    device_usd_per_hour: float | None
    """None where nobody knows the price."""

    def devices_of(self, n_replicas: int) -> int:
        """Of this number of replicas."""
        return n_replicas * self.deployment.n_devices

    def usd_per_hour_of(self, n_replicas: int) -> float | None:
        """The price of the same."""
        each = self.device_usd_per_hour
        return None if each is None else each * self.devices_of(n_replicas)

    def at(self, case: Case, n_replicas: int, *, has_rules: bool = True) -> ReplicaGroup:
        """Replicas of this kind, as if they were known to be these."""
        known, rules = self.deployment.at(case), self.rules
        return ReplicaGroup(
            engine=known.config,
            step_times=known.step_times.likely,
            n_replicas=n_replicas,
            classes=rules.classes if has_rules else (),
            tenants=rules.tenants if has_rules else (),
            min_prompt_tokens=rules.min_prompt_tokens if has_rules else 0,
            max_prompt_tokens=rules.max_prompt_tokens if has_rules else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsQuestion:
    """What must be met under which traffic, by which kinds of replicas?"""

    sizing: SizingQuestion
    kinds: tuple[GroupKind, ...]
    keeps_sessions: bool
    class_objectives: tuple[ClassObjective, ...]
    cases: tuple[Case, ...]
    """Which servers may be the one: the likely one first."""
    is_sure: bool
    """Must it be met on 90 % of the others too?"""

    @property
    def placement(self) -> Placement:
        """One replica of each, for the rules."""
        return self.placed((1,) * len(self.kinds), "likely")

    def placed(self, numbers: Sequence[int], case: Case) -> Placement:
        """These numbers of replicas, as if they were known to be these."""
        return Placement(
            groups=tuple(
                kind.at(case, n_replicas)
                for kind, n_replicas in zip(self.kinds, numbers, strict=True)
            ),
            keeps_sessions=self.keeps_sessions,
        )

    def front_end_s(self, case: Case) -> float:
        """All requests wait for the longest front end."""
        return max(kind.deployment.at(case).front_end_s for kind in self.kinds)

    def fleet(self, numbers: Sequence[int], case: Case) -> Fleet:
        """All groups together."""
        return _fleet(self.placed(numbers, case), self.front_end_s(case))

    def fleet_of(self, index: int, n_replicas: int, case: Case) -> Fleet:
        """One group by itself: only its own requests come."""
        alone = Placement(groups=(self.kinds[index].at(case, n_replicas, has_rules=False),))
        return _fleet(alone, self.front_end_s(case), Dealt(self.placement, index))

    def usd_per_hour_of(self, numbers: Sequence[int]) -> float | None:
        """Of all groups together; None where the price of one is not known."""
        each = [
            kind.usd_per_hour_of(n) for kind, n in zip(self.kinds, numbers, strict=True) if n > 0
        ]
        known = [usd for usd in each if usd is not None]
        return sum(known) if len(known) == len(each) else None

    def devices_of(self, numbers: Sequence[int]) -> int:
        """Of all groups together."""
        return sum(kind.devices_of(n) for kind, n in zip(self.kinds, numbers, strict=True))


def _fleet(placement: Placement, front_end_s: float, dealt: Dealt | None = None) -> Fleet:
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
    """One replica less of a group, by its own requests, in a long run."""

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
    """What was seen of the weakest latency / its limit, where nothing meets it."""
    is_examined: bool = True


def size_group(task: GroupTask) -> FoundGroup:
    """The smallest number of replicas of this group that meets the SLO for its own requests."""
    phases = Phases(task.question.sizing.time_limit())
    search = _Search(task, phases)
    alone = search.alone()
    if alone is not None and alone.margin_ratio > 1:
        why = f"not even idle replicas meet the SLO; {alone.why}"
        return FoundGroup(None, why, 0, margin_ratio=alone.margin_ratio)
    try:
        with phases.until(1.0):
            first = search.first()
        n_replicas = None if first is None else _number(search, first, phases)
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
    with phases.until(1.0 + _OVERRUN_FRACTION):
        fewer = search.fewer(n_replicas)
    return FoundGroup(n_replicas, search.short(n_replicas).why, search.n_probes, fewer)


def _number(search: "_Search", first: int, phases: Phases) -> int | None:
    """The smallest number that long runs show to meet the SLO; the last one shown where it is late.

    Raises
    ------
    OutOfTimeError
        The time is over, and long runs showed only that ``first`` are too few.
    """
    shown = dict[int, bool]()

    def is_enough(n_replicas: int) -> bool:
        shown[n_replicas] = search.long(n_replicas).verdict == "met"
        return shown[n_replicas]

    try:
        with phases.until(_COUNTED_FRACTION + _OVERRUN_FRACTION):
            return fewest_shown(first, is_enough, lambda: phases.is_past(_COUNTED_FRACTION))
    except OutOfTimeError:
        if shown and not any(shown.values()):
            raise
        return min((n for n, is_shown in shown.items() if is_shown), default=first)


class _Search:
    """The runs of one group, each once."""

    def __init__(self, task: GroupTask, phases: Phases) -> None:
        self._question, self._place = task
        self._kind, self._phases = self._question.kinds[task.place], phases
        self._readings = dict[tuple[int, Case, int], Reading]()
        self._case: Case = "likely"
        if self._question.is_sure and isinstance(self._question.cases[-1], str):
            self._case = "slow"

    @property
    def n_probes(self) -> int:
        """Runs so far."""
        return len(self._readings)

    @property
    def last(self) -> Reading:
        """That of the largest number on the server that decides."""
        keys = [key for key in self._readings if key[1] == self._case]
        return self._readings[max(keys, key=lambda key: (key[0], key[2]))]

    def alone(self) -> LoneRequest | None:
        """The least that a request of this group takes on an idle replica."""
        sizing, known = self._question.sizing, self._kind.deployment
        plan = plan_at(sizing.spec, sizing.offered_load, N_OF_SHARES)
        is_own = self._question.placement.group_of(plan) == self._place
        own = RequestPlan._make(column[is_own] for column in plan)
        return lone_request(known, known.at(self._case).step_times.likely, own, sizing.objective)

    def first(self) -> int | None:
        """The smallest number whose worst latency is within its limit in short runs, on enough servers.

        None where not even idle replicas are enough.
        """
        load = self._question.sizing.offered_load * self._kind.share_fraction
        run = self._probe(1, self._case).run_of(
            self._question.sizing.offered_load * SATURATING_RATIO, SATURATING_REQUESTS
        )
        most_per_s = max(served_per_s(run), 1e-9)
        least, start = (
            max(1, math.ceil(load / part * (1 - 1e-9))) for part in (most_per_s, 0.8 * most_per_s)
        )
        while True:
            found = fewest_in_short_runs(
                least,
                start,
                lambda n: self.short(n).margin_ratio <= 1,
                lambda n: load / n < IDLE_FRACTION * most_per_s,
            )
            slower = None if found is None else self._slower(found)
            if found is None or slower is None:
                return found
            self._case, least, start = slower, found, found

    def _slower(self, n_replicas: int) -> Case | None:
        """The draw that decides, where these are too few on it; None where they are enough."""
        draws = [case for case in self._question.cases if not isinstance(case, str)]
        if not self._question.is_sure or not draws:
            return None
        margins = {case: self._reading(n_replicas, case, 0).margin_ratio for case in draws}
        slowest_first = sorted(draws, key=lambda case: margins[case], reverse=True)
        n_open = len(draws) - math.ceil(_AGREEING_FRACTION * len(draws))
        decides = slowest_first[n_open]
        if margins[decides] > 1:
            return decides
        if self._case not in draws or margins[self._case] < margins[decides]:
            self._case = decides
        return None

    def short(self, n_replicas: int) -> Reading:
        """A short run of this number of replicas, on the server that decides."""
        return self._reading(n_replicas, self._case, 0)

    def long(self, n_replicas: int, case: Case | None = None) -> Reading:
        """A long run, and longer ones while noise leaves it undecided and there is time."""
        case, effort, n_before = self._case if case is None else case, _SURE_EFFORT, 0
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
        """What one replica less does; None where there is none, or no time."""
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


class WholeTask(NamedTuple):
    """All groups together on one of the servers that may be the one."""

    question: GroupsQuestion
    numbers: tuple[int, ...]
    case: Case
    n_requests: int


class WholeCase(NamedTuple):
    """What became of all requests, and of those of each group."""

    case: Case
    n_requests: int
    whole: ServedBy
    groups: tuple[ServedBy | None, ...]
    """None of a group that no request of this run went to."""


def whole_case(task: WholeTask) -> WholeCase:
    """All groups together, simulated once."""
    question, sizing = task.question, task.question.sizing
    plan = plan_at(sizing.spec, sizing.offered_load, task.n_requests)
    fleet = question.fleet(task.numbers, task.case)
    run = run_plan(fleet, plan)
    if run.requests is None:
        raise ValueError("a simulation without requests")
    group_index = question.placement.group_of(plan)[run.requests.request_index]
    names = [kind.name for kind in question.kinds]
    summaries = {one.name: one for one in summarise_groups(run, group_index, names)}

    def served(n_replicas: int, summary: RequestSummary, rows: Bools | None) -> ServedBy:
        own = run.requests if rows is None or run.requests is None else select(run.requests, rows)
        reading = worst_reading(run, sizing.objective, question.class_objectives, rows)
        binds = binding(run, sizing.objective, rows)
        judgement = judge_objective(run, binds or sizing.objective, rows=rows)
        if binds is None:
            judgement = replace(judgement, verdict=reading.verdict, weakest=None)
        return ServedBy(
            n_replicas=n_replicas,
            verdict=reading.verdict,
            summary=summary,
            judgement=judgement,
            in_flight_load=mean_in_flight(own) / n_replicas,
        )

    return WholeCase(
        case=task.case,
        n_requests=plan.n_requests,
        whole=served(sum(task.numbers), summarise_requests(run), None),
        groups=tuple(
            served(n_replicas, summaries[name], group_index == index) if name in summaries else None
            for index, (name, n_replicas) in enumerate(zip(names, task.numbers, strict=True))
        ),
    )


class Confirmed(NamedTuple):
    """All groups together on every server that may be the one."""

    numbers: tuple[int, ...]
    cases: tuple[WholeCase, ...]
    """That of the likely step times first."""
    verdict: Verdict
    """Of all requests and of each group."""
    group_verdicts: tuple[Verdict, ...]
    fewer: tuple[Fewer | None, ...]
    """Of groups that needed more than by their own requests on the server that decides."""


class Means(NamedTuple):
    """With what, and for how long, is the whole simulated?"""

    map_: Callable[[Callable[[WholeTask], WholeCase], Sequence[WholeTask]], Sequence[WholeCase]]
    n_at_once: int
    time_left_s: TimeLeft


def confirmed(question: GroupsQuestion, numbers: Sequence[int], means: Means) -> Confirmed:
    """These numbers all together, on each server; a group that misses its SLO there gets more replicas.

    Simulated longer where noise leaves a verdict open, as long as there is time.
    """
    whole, chosen = _Whole(question, means), tuple(numbers)
    fewer: list[Fewer | None] = [None] * len(chosen)
    whole.simulate(chosen, question.cases, whole.first_requests(chosen))
    while True:
        cases = tuple(whole.found[case] for case in question.cases)
        by_group: list[list[Verdict]] = [
            [_verdict_of(case.groups[index]) for case in cases] for index in range(len(chosen))
        ]
        too_few = [index for index, of in enumerate(by_group) if _is_too_few(question, of)]
        if too_few and whole.has_time_for(len(question.cases), cases[0].n_requests):
            for index in too_few:
                fewer[index] = _as_fewer(cases, index)
            chosen = tuple(n + (index in too_few) for index, n in enumerate(chosen))
            whole.simulate(chosen, question.cases, cases[0].n_requests)
            continue
        of_whole: list[Verdict] = [case.whole.verdict for case in cases]
        verdicts: tuple[Verdict, ...] = tuple(_agreed(question, of) for of in by_group)
        verdict: Verdict = min((_agreed(question, of_whole), *verdicts), key=SEVEREST.index)
        is_open = verdict == "undecided" and not too_few
        if not is_open or not whole.go_on(chosen):
            return Confirmed(chosen, cases, verdict, verdicts, tuple(fewer))


class _Whole:
    """The simulations of all groups together, and the time that they have."""

    def __init__(self, question: GroupsQuestion, means: Means) -> None:
        self._question, self._means = question, means
        self._left_s, self._request_s = means.time_left_s(), 0.0
        self.found = dict[Case, WholeCase]()

    def first_requests(self, numbers: Sequence[int]) -> int:
        """Enough for the percentiles of the group with the fewest requests, and for all replicas to fill."""
        sizing = self._question.sizing
        smallest = min(kind.share_fraction for kind in self._question.kinds)
        wanted = sizing.n_requests * max(min(sum(numbers), EFFORT_RATIO), 1 / smallest)
        return min(math.ceil(wanted), sizing.traffic.most_requests)

    def has_time_for(self, n_cases: int, n_requests: int) -> bool:
        """May this number of servers still be simulated?"""
        return self._cost_s(n_cases, n_requests) <= self._left_s

    def simulate(self, numbers: tuple[int, ...], cases: Sequence[Case], n_requests: int) -> None:
        """The whole on these servers; the first one says how long the others take."""
        first, *others = cases
        before_s = self._means.time_left_s()
        self.found[first] = whole_case(WholeTask(self._question, numbers, first, n_requests))
        took_s = before_s - self._means.time_left_s()
        if math.isfinite(took_s):
            self._request_s = took_s / n_requests
            self._left_s -= took_s
        if others and not self.has_time_for(len(others), n_requests):
            n_requests = min(n_requests, max(self._n_in_time(len(others)), _LEAST_REQUESTS))
        self._left_s -= self._cost_s(len(others), n_requests)
        tasks = [WholeTask(self._question, numbers, case, n_requests) for case in others]
        for task, done in zip(tasks, self._means.map_(whole_case, tasks), strict=True):
            self.found[task.case] = done

    def go_on(self, numbers: tuple[int, ...]) -> bool:
        """Longer runs of the servers whose verdict is open; False where there is no time, or no more traffic."""
        is_open: list[Case] = [case for case in self._question.cases if self._is_open(case)]
        if not is_open:
            return False
        before = self.found[is_open[0]].n_requests
        n_requests = min(before * EFFORT_RATIO, self._question.sizing.traffic.most_requests)
        if n_requests <= before or not self.has_time_for(len(is_open) + 1, n_requests):
            return False
        self.simulate(numbers, is_open, n_requests)
        return True

    def _is_open(self, case: Case) -> bool:
        found = self.found[case]
        return any(_verdict_of(one) == "undecided" for one in (*found.groups, found.whole))

    def _cost_s(self, n_cases: int, n_requests: int) -> float:
        rounds = math.ceil(n_cases / max(min(self._means.n_at_once, n_cases), 1))
        return rounds * n_requests * self._request_s

    def _n_in_time(self, n_cases: int) -> int:
        each_s = self._cost_s(n_cases, 1)
        return math.floor(max(self._left_s, 0.0) / each_s) if each_s else _LEAST_REQUESTS


def _verdict_of(served: ServedBy | None) -> Verdict:
    return "undecided" if served is None else served.verdict


def _n_that_agree(question: GroupsQuestion) -> int:
    return math.ceil(_AGREEING_FRACTION * (len(question.cases) - 1))


def _agreed(question: GroupsQuestion, verdicts: Sequence[Verdict]) -> Verdict:
    """That of the likely step times where enough of the others agree."""
    likely, *others = verdicts
    return likely if others.count(likely) >= _n_that_agree(question) else "undecided"


def _is_too_few(question: GroupsQuestion, verdicts: Sequence[Verdict]) -> bool:
    """Is the SLO shown to be missed where it must be met?"""
    likely, *others = verdicts
    most_missed = len(others) - _n_that_agree(question)
    return likely == "missed" or (question.is_sure and others.count("missed") > most_missed)


def _as_fewer(cases: Sequence[WholeCase], index: int) -> Fewer | None:
    """What this number of replicas did, as one replica less than there are now."""
    likely = cases[0].groups[index]
    missed = next(
        (one for case in cases if (one := case.groups[index]) and one.verdict == "missed"), None
    )
    if likely is None or missed is None:
        return None
    weakest = missed.judgement.weakest
    why = "" if weakest is None else f"{weakest.threshold.text}: {weakest.why}"
    return Fewer(likely.n_replicas, "missed", likely.verdict, why)
