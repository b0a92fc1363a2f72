"""The best use of a given number of devices.

The layout that carries the most requests per second, or users who wait, within the SLO.

A layout is a kind of replica, as many of them as the devices make, and which of them compute
prompts only (the rest then generate answers). Layouts are ordered by what step times allow at most,
those with the leader's step budget before others; each is located roughly, then the splits of the
best one into two pools, then closely whoever leads, until the leader's number is a close one.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from inferometer.decide.candidates import Candidate
from inferometer.decide.capacity import (
    TIME_LIMIT,
    Capacity,
    CapacityQuestion,
    Phases,
    find_capacity,
)
from inferometer.decide.lone_request import (
    LoneRequest,
    least_s_of_request,
    lone_request,
    request_times,
)
from inferometer.decide.probing import MOST_TOGETHER, FleetProbe, probe_of
from inferometer.decide.sizing_types import SizingQuestion
from inferometer.decide.traffic import plan_at
from inferometer.errors import SpecError

_SPAN_RATIO: Final = 1e4
_ROUGH_RATIO: Final = 0.1
_CLOSE_RATIO: Final = 0.03
_SEARCH_FRACTION: Final = 0.4
_SPLIT_FRACTION: Final = 0.6
"""Shares of the time at which the searches of layouts and of splits end."""
_OVERRUN_FRACTION: Final = 0.3
"""A search that was begun within the time of its phase may take this share more."""
_BETTER_RATIO: Final = 1.03
"""A split that carries less than this many times the whole is not worth two pools."""


class UseTask(NamedTuple):
    """All kinds of replica of one device in one format."""

    question: SizingQuestion
    candidates: tuple[Candidate, ...]
    n_total: int


class Use(NamedTuple):
    """One layout of the devices."""

    candidate: Candidate
    n_replicas: int
    n_prefill: int
    """Replicas of these that compute prompts only; 0: all do both."""
    capacity: Capacity
    is_close: bool = False
    """Located by long probes, not by short ones alone."""

    @property
    def n_devices(self) -> int:
        """Devices of all replicas."""
        one = self.candidate
        if one.n_devices_beside:
            return one.devices_of(self.n_replicas - self.n_prefill)
        return self.n_replicas * one.n_devices

    @property
    def most_load(self) -> float:
        """The most requests per second, or users, within the SLO; 0 where nothing meets it."""
        return self.capacity.located_load or self.capacity.met_load or 0.0

    @property
    def worth_load(self) -> float:
        """Load by which layouts are ranked; disaggregation must gain noticeably to rank first."""
        return self.most_load / (_BETTER_RATIO if self.n_prefill else 1.0)


class FoundUse(NamedTuple):
    """Results for one format of one device."""

    uses: tuple[Use, ...]
    """The best first; those after it were located roughly."""
    n_candidates: int
    n_unexamined: int
    nearest: LoneRequest | None
    """Fastest lone request, where it misses the SLO in all layouts."""
    is_split_examined: bool
    n_step_budgets: int
    """On offer."""


def best_use(task: UseTask) -> FoundUse:
    """The best layout in this format."""
    question, phases = task.question, Phases(task.question.time_limit())
    uses, alone, n_unexamined = list[Use](), list[LoneRequest](), 0
    plan = plan_at(question.spec, question.offered_load, question.n_requests)
    n_prefill = question.fleets.n_prefill
    bounds = {
        index: _n_left(task, one) / least_s_of_request(question, one)
        for index, one in enumerate(task.candidates)
        if one.devices_of(1) <= task.n_total
    }
    n_candidates = len(bounds)
    n_budgets = len({task.candidates[index].step_budget_tokens for index in bounds})
    best_load = 0.0
    while bounds:
        index = _next_of(bounds, task.candidates, uses)
        candidate, bound_per_s = task.candidates[index], bounds.pop(index)
        if bound_per_s <= best_load and not question.is_of_users:
            continue
        lone = lone_request(candidate.deployment.at(question.pace), plan, question.objective)
        if lone is not None and lone.margin_ratio > 1 and not n_prefill:
            alone.append(lone)
        elif phases.is_past(_SEARCH_FRACTION):
            n_unexamined += 1
        else:
            n_replicas = _n_left(task, candidate)
            last = _SEARCH_FRACTION + _OVERRUN_FRACTION if uses else 1.0
            probe = probe_of(question, candidate, question.pace, n_replicas)
            with phases.until(last):
                located = _located(probe, best_load or _first_load(question, bound_per_s))
            if located is None:
                n_unexamined += 1
                continue
            uses.append(Use(candidate, n_replicas + n_prefill, n_prefill, located))
            best_load = max(best_load, uses[-1].most_load)
    uses.sort(key=lambda use: use.most_load, reverse=True)
    is_split_examined = False
    if uses and uses[0].most_load:
        splits, is_split_examined = _splits(question, uses[0], phases)
        uses = _compared(question, [*uses, *splits], phases)
    nearest = min(alone, key=lambda one: one.margin_ratio, default=None) if not uses else None
    return FoundUse(tuple(uses), n_candidates, n_unexamined, nearest, is_split_examined, n_budgets)


def _next_of(bounds: dict[int, float], candidates: Sequence[Candidate], uses: Sequence[Use]) -> int:
    """The layout that step times allow the most; the leader's with its other step budgets before.

    Step times say little of the budget: what it does to queues shows in a simulation. The leader's
    is tried first on the other layouts.
    """
    leader = max(uses, key=lambda use: use.most_load).candidate if uses else None

    def order(index: int) -> tuple[bool, bool, float, int]:
        one = candidates[index]
        is_leaders = leader is not None and one.layout == leader.layout
        has_budget = leader is not None and one.step_budget_tokens == leader.step_budget_tokens
        return is_leaders, has_budget, bounds[index], index

    return max(bounds, key=order)


def _compared(question: SizingQuestion, uses: list[Use], phases: Phases) -> list[Use]:
    """The best first: rough numbers are some percent off, so each leader is located closely."""
    while True:
        uses.sort(key=lambda use: use.worth_load, reverse=True)
        best = uses[0]
        if best.is_close:
            beside = _beside(question, best, uses, phases)
            if not beside:
                return uses
            uses += beside
            continue
        capacity = best.capacity if phases.is_past(1) else _closely(question, best, phases)
        uses[0] = best._replace(capacity=capacity, is_close=True)
        if capacity is best.capacity:
            return uses


def _beside(question: SizingQuestion, best: Use, uses: list[Use], phases: Phases) -> list[Use]:
    """The splits next to the best one that were not examined: it was not the best by rough numbers."""
    seen = {use.n_prefill for use in uses if use.candidate is best.candidate}
    wanted = (best.n_prefill - 1, best.n_prefill + 1) if best.n_prefill else ()
    missing = [one for one in wanted if 0 < one < best.n_replicas and one not in seen]
    located = [
        (one, _split(question, best, one, phases)) for one in missing if not phases.is_past(1)
    ]
    return [best._replace(n_prefill=one, capacity=it, is_close=False) for one, it in located if it]


def _splits(question: SizingQuestion, use: Use, phases: Phases) -> tuple[Sequence[Use], bool]:
    """The same replicas in two pools; nothing where caches cannot travel or the pools are fixed.

    Of few replicas all splits are examined; of more it is climbed from the balanced one to the
    best, in steps that get smaller: a split carries what its narrower pool does.
    """
    found = dict[int, Use]()
    is_vllm = use.candidate.deployment.config.engine.split()[0] == "vLLM"
    if use.n_replicas < 2 or not is_vllm or question.fleets.n_prefill:
        return [], use.n_replicas < 2 or question.fleets.n_prefill > 0
    balanced = use.n_replicas * request_times(question, use.candidate).prompt_fraction
    splits = sorted(range(1, use.n_replicas), key=lambda n_prefill: abs(n_prefill - balanced))
    if use.n_replicas > MOST_TOGETHER:
        splits = splits[:1]
    step = max(1, use.n_replicas // MOST_TOGETHER)
    while splits:
        for n_prefill in splits:
            located = (
                None
                if phases.is_past(_SPLIT_FRACTION)
                else _split(question, use, n_prefill, phases)
            )
            if located is None:
                return list(found.values()), False
            found[n_prefill] = Use(use.candidate, use.n_replicas, n_prefill, located)
        best = max(found, key=lambda n_prefill: found[n_prefill].most_load)
        splits = []
        while step and not splits:
            beside = (best - step, best + step)
            splits = [one for one in beside if 0 < one < use.n_replicas and one not in found]
            step //= 1 if splits else 2
    return list(found.values()), True


def _split(question: SizingQuestion, use: Use, n_prefill: int, phases: Phases) -> Capacity | None:
    """Capacity of this split into prefill and decode; None: no time, or KV-link speed unknown."""
    try:
        with phases.until(_SPLIT_FRACTION + _OVERRUN_FRACTION):
            return _located(_probe(question, use._replace(n_prefill=n_prefill)), use.most_load)
    except SpecError:
        return None


def _probe(question: SizingQuestion, use: Use) -> FleetProbe:
    n_both = use.n_replicas - use.n_prefill
    return probe_of(question, use.candidate, question.pace, n_both, use.n_prefill)


def _n_left(task: UseTask, candidate: Candidate) -> int:
    """Replicas that fit on the devices left by the prefill replicas."""
    return (task.n_total - candidate.n_devices_beside) // candidate.n_devices


def _first_load(question: SizingQuestion, bound_per_s: float) -> float:
    """Load at which the search begins: the given users, or a quarter of the bound by step times."""
    return question.offered_load if question.is_of_users else bound_per_s / 4


def _question(probe: FleetProbe, start_load: float, ratio: float) -> CapacityQuestion:
    is_of_users = probe.traffic.kind == "users"
    return CapacityQuestion(
        kind=probe.traffic.kind,
        start_load=start_load,
        lowest_load=max(start_load / _SPAN_RATIO, 1.0 if is_of_users else 0.0),
        highest_load=start_load * _SPAN_RATIO,
        resolution_ratio=ratio,
        proof_effort=None,
    )


def _located(probe: FleetProbe, start_load: float) -> Capacity | None:
    """The capacity by short probes; None where their time was over before."""
    asked = _question(probe, start_load, _ROUGH_RATIO)
    found = find_capacity(probe, asked)
    return None if found.why == TIME_LIMIT else found


def _closely(question: SizingQuestion, use: Use, phases: Phases) -> Capacity:
    """The capacity of the best, with its interval; as it was where there is no time for a better one."""
    probe = _probe(question, use)
    asked = replace(
        _question(probe, use.most_load, _CLOSE_RATIO),
        proof_effort=1,
        most_effort=4,
        time_left_s=phases.time_left_s,
    )
    with phases.until(1 + _OVERRUN_FRACTION):
        found = find_capacity(probe, asked)
    return found if found.located_load or found.met_load else use.capacity
