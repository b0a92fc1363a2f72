"""Simulation of all groups of replicas together, on every plausible server.

The numbers that each group needs by its own requests are simulated together. Where requests of one
group wait for answers of another (users who ask both, sessions whose turns go to both), no group
can be sized by itself: ``least_together`` looks for the smallest numbers of all at once.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from inferometer.decide.capacity import Phases, TimeLeft
from inferometer.decide.group_sizing import (
    Fewer,
    FoundGroup,
    GroupsQuestion,
    GroupTask,
    Search,
)
from inferometer.decide.probing import EFFORT_RATIO, binding, run_plan, worst_reading
from inferometer.decide.sizing import mean_in_flight
from inferometer.decide.sizing_types import ServedBy
from inferometer.decide.traffic import plan_at, users_at_work
from inferometer.records.columns import Bools
from inferometer.records.request_summaries import (
    RequestSummary,
    judge_objective,
    summarise_groups,
    summarise_requests,
)
from inferometer.records.tables import select
from inferometer.simulate.deployment import Case
from inferometer.stats.estimate import AGREEING_FRACTION, Verdict, agreed_verdict, worst_verdict

_LEAST_REQUESTS: Final = 500
"""Fewest requests of the whole on one server, however little time is left."""
_IDLE_LOAD: Final = 0.1
"""Requests in a replica on average: one that has fewer is idle, and more of them answer no faster."""
_STEP_RATIO: Final = 0.25


class WholeTask(NamedTuple):
    """All groups together on one of the plausible servers."""

    question: GroupsQuestion
    numbers: tuple[int, ...]
    case: Case
    n_requests: int


class WholeCase(NamedTuple):
    """Simulated results of all requests, and of each group's."""

    case: Case
    n_requests: int
    whole: ServedBy
    groups: tuple[ServedBy | None, ...]
    """None of a group that no request of this run went to."""


def whole_case(task: WholeTask) -> WholeCase:
    """Simulate all groups together once."""
    question, sizing = task.question, task.question.sizing
    plan = plan_at(sizing.spec, sizing.offered_load, task.n_requests)
    fleet = question.fleet(task.numbers, task.case)
    run = run_plan(fleet, plan, is_of_users=sizing.is_of_users)
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
        users = users_at_work(run, plan, sizing.offered_load, rows) if sizing.is_of_users else None
        in_flight_load = mean_in_flight(own) if users is None else users.in_flight_load
        return ServedBy(
            n_replicas=n_replicas,
            verdict=reading.verdict,
            summary=summary,
            judgement=judgement,
            in_flight_load=in_flight_load / n_replicas,
            users_requests_per_s=None if users is None else users.requests_per_s,
            nearest=reading,
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
    """All groups together on every plausible server."""

    numbers: tuple[int, ...]
    cases: tuple[WholeCase, ...]
    """Cases, that of likely step times first."""
    verdict: Verdict
    """Verdict on all requests and each group."""
    group_verdicts: tuple[Verdict, ...]
    fewer: tuple[Fewer | None, ...]
    """For groups that needed more than their own requests on the deciding server."""


class Means(NamedTuple):
    """Executor and time limit of simulating the whole."""

    map_: Callable[[Callable[[WholeTask], WholeCase], Sequence[WholeTask]], Sequence[WholeCase]]
    n_at_once: int
    time_left_s: TimeLeft


def confirmed(question: GroupsQuestion, numbers: Sequence[int], means: Means) -> Confirmed:
    """Simulate these numbers together on each server; add replicas to groups that miss their SLO.

    Simulated longer where noise leaves a verdict open, as long as there is time.
    """
    whole, chosen = _Whole(question, means), tuple(numbers)
    fewer: list[Fewer | None] = [None] * len(chosen)
    whole.simulate(chosen, question.cases, whole.first_requests(chosen))
    while True:
        cases = tuple(whole.found[case] for case in question.cases)
        by_group: list[list[Verdict]] = [
            [_verdict_of(question, case, index) for case in cases] for index in range(len(chosen))
        ]
        too_few = [index for index, of in enumerate(by_group) if _is_too_few(question, of)]
        if too_few and whole.has_time_for(len(question.cases), cases[0].n_requests):
            for index in too_few:
                fewer[index] = _as_fewer(cases, index)
            chosen = tuple(n + (index in too_few) for index, n in enumerate(chosen))
            whole.simulate(chosen, question.cases, cases[0].n_requests)
            continue
        of_whole: list[Verdict] = [case.whole.verdict for case in cases]
        verdicts: tuple[Verdict, ...] = tuple(agreed_verdict(of) for of in by_group)
        verdict: Verdict = worst_verdict((agreed_verdict(of_whole), *verdicts)) or "met"
        is_open = verdict == "undecided" and not too_few
        if not is_open or not whole.go_on(chosen):
            return Confirmed(chosen, cases, verdict, verdicts, tuple(fewer))


def least_together(question: GroupsQuestion, means: Means) -> tuple[FoundGroup, ...]:
    """The smallest numbers with which every group meets the SLO where all are simulated at once.

    The more replicas one group has, the sooner its users have their answers and ask the others: what
    a group needs never shrinks where another one grows. The numbers that meet the SLO then have a
    least element, which is reached from below (Tarski 1955, "A lattice-theoretical fixpoint
    theorem"): whoever misses gets more, until nobody does; steps above one are taken back.
    """
    together = _Together(question, means)
    lone = [
        Search(GroupTask(question, place), Phases(means.time_left_s)).alone()
        for place in range(len(question.kinds))
    ]
    numbers = [1] * len(lone)
    idle = {
        place: f"not even idle replicas meet the SLO; {one.why}"
        for place, one in enumerate(lone)
        if one is not None and one.margin_ratio > 1
    }
    margins = {place: one.margin_ratio for place, one in enumerate(lone) if one is not None}
    while not idle and together.has_time():
        served = together.served(tuple(numbers))
        short = _short_of(served)
        if not short:
            return together.proved(_lowered(together, numbers))
        for place in short:
            one = served[place]
            if one is not None and one.nearest is not None and one.in_flight_load < _IDLE_LOAD:
                idle[place] = f"no number of replicas meets the SLO; {one.nearest.why}"
                margins[place] = one.nearest.margin_ratio
            numbers[place] += max(1, math.floor(numbers[place] * _STEP_RATIO))
    late = "no number of replicas was shown to meet the SLO within the time limit"
    beside = "its number depends on that of the groups that no number is enough of"
    return tuple(
        FoundGroup(
            None,
            idle.get(place, beside if idle else late),
            together.n_runs,
            margin_ratio=margins.get(place) if place in idle else None,
            is_examined=bool(idle),
        )
        for place in range(len(numbers))
    )


def _short_of(served: Sequence[ServedBy | None]) -> list[int]:
    """Groups that need more replicas: those beyond a limit where a queue grows."""
    short = [place for place, one in enumerate(served) if _misses(one)]
    beyond = [place for place in short if _is_beyond(served[place])]
    return beyond or short


def _is_beyond(served: ServedBy | None) -> bool:
    weakest = None if served is None else served.judgement.weakest
    if weakest is None or weakest.seen is None:
        return False
    return weakest.seen.seconds.value > weakest.threshold.limit_s


def _misses(served: ServedBy | None) -> bool:
    return served is not None and served.nearest is not None and served.nearest.margin_ratio > 1


def _lowered(together: "_Together", numbers: Sequence[int]) -> tuple[int, ...]:
    """The numbers, each lowered as far as the others allow."""
    found = list(numbers)
    for place, number in enumerate(numbers):
        for fewer in range(number - 1, 0, -1):
            tried = (*found[:place], fewer, *found[place + 1 :])
            if not together.has_time() or any(map(_misses, together.served(tried))):
                break
            found[place] = fewer
    return tuple(found)


class _Together:
    """Simulations of all groups at once on the server that decides, each once."""

    def __init__(self, question: GroupsQuestion, means: Means) -> None:
        self._question, self._means = question, means
        is_of_ends = isinstance(question.cases[-1], str)
        self._case: Case = "slow" if question.is_sure and is_of_ends else "likely"
        self._served = dict[tuple[tuple[int, ...], Case], tuple[ServedBy | None, ...]]()

    @property
    def n_runs(self) -> int:
        """So far."""
        return len(self._served)

    def has_time(self) -> bool:
        """Is there time for another simulation?"""
        return self._means.time_left_s() > 0

    def served(
        self, numbers: tuple[int, ...], case: Case | None = None
    ) -> tuple[ServedBy | None, ...]:
        """Results of each group's requests with these numbers of replicas."""
        key = numbers, self._case if case is None else case
        if key not in self._served:
            sizing = self._question.sizing
            wanted = sizing.n_requests * EFFORT_RATIO * max(min(sum(numbers) // 2, EFFORT_RATIO), 1)
            n_requests = min(wanted, sizing.traffic.most_requests)
            self._served[key] = whole_case(WholeTask(self._question, *key, n_requests)).groups
        return self._served[key]

    def proved(self, numbers: tuple[int, ...]) -> tuple[FoundGroup, ...]:
        """The numbers, and results with one replica less of each."""
        return tuple(
            FoundGroup(
                number,
                "" if one is None or one.nearest is None else one.nearest.why,
                self.n_runs,
                self._fewer(numbers, place),
            )
            for place, (number, one) in enumerate(zip(numbers, self.served(numbers), strict=True))
        )

    def _fewer(self, numbers: tuple[int, ...], place: int) -> Fewer | None:
        n_fewer = numbers[place] - 1
        if n_fewer < 1 or not self.has_time():
            return None
        less = (*numbers[:place], n_fewer, *numbers[place + 1 :])
        decides, likely = (self.served(less, case)[place] for case in (None, "likely"))
        if decides is None or decides.nearest is None or likely is None:
            return None
        return Fewer(n_fewer, decides.verdict, likely.verdict, decides.nearest.why)


class _Whole:
    """The simulations of all groups together, and the time that they have."""

    def __init__(self, question: GroupsQuestion, means: Means) -> None:
        self._question, self._means = question, means
        self._left_s, self._request_s = means.time_left_s(), 0.0
        self.found = dict[Case, WholeCase]()

    def first_requests(self, numbers: Sequence[int]) -> int:
        """Enough for the percentiles of the group with the fewest requests, and for all replicas to fill."""
        sizing = self._question.sizing
        smallest = min(one.share_fraction for one in self._question.kinds if one.share_fraction)
        wanted = sizing.n_requests * max(min(sum(numbers), EFFORT_RATIO), 1 / smallest)
        return min(math.ceil(wanted), sizing.traffic.most_requests)

    def has_time_for(self, n_cases: int, n_requests: int) -> bool:
        """Is there time to simulate this number of servers?"""
        return self._cost_s(n_cases, n_requests) <= self._left_s

    def simulate(self, numbers: tuple[int, ...], cases: Sequence[Case], n_requests: int) -> None:
        """Simulate the whole on these servers; the first one's time predicts the others'."""
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
        """Run longer where the verdict is open; False where time or traffic is used up."""
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
        found, places = self.found[case], range(len(self._question.kinds))
        verdicts = [_verdict_of(self._question, found, place) for place in places]
        return "undecided" in {*verdicts, found.whole.verdict}

    def _cost_s(self, n_cases: int, n_requests: int) -> float:
        rounds = math.ceil(n_cases / max(min(self._means.n_at_once, n_cases), 1))
        return rounds * n_requests * self._request_s

    def _n_in_time(self, n_cases: int) -> int:
        each_s = self._cost_s(n_cases, 1)
        return math.floor(max(self._left_s, 0.0) / each_s) if each_s else _LEAST_REQUESTS


def _verdict_of(question: GroupsQuestion, case: WholeCase, place: int) -> Verdict:
    """Verdict of this group's requests; met where it gets none."""
    served = case.groups[place]
    if question.kinds[place].share_fraction == 0:
        return "met"
    return "undecided" if served is None else served.verdict


def _is_too_few(question: GroupsQuestion, verdicts: Sequence[Verdict]) -> bool:
    """Do the verdicts show that more replicas are needed?"""
    likely, *others = verdicts
    most_missed = len(others) - math.ceil(AGREEING_FRACTION * len(others))
    return likely == "missed" or (question.is_sure and others.count("missed") > most_missed)


def _as_fewer(cases: Sequence[WholeCase], index: int) -> Fewer | None:
    """These results, as those of one replica less than the final number."""
    likely = cases[0].groups[index]
    missed = next(
        (one for case in cases if (one := case.groups[index]) and one.verdict == "missed"), None
    )
    if likely is None or missed is None:
        return None
    why = "" if missed.nearest is None else missed.nearest.why
    return Fewer(likely.n_replicas, "missed", likely.verdict, why)
