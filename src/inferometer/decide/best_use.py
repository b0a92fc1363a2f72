"""I have this number of devices: how are they used best?

The layout that carries the most requests per second within the SLO.

A layout is a kind of replica, as many of them as the devices make, and which of them compute
prompts only (the rest then generate answers). Layouts are ordered by what step times allow at most;
each is located roughly, the best one closely, then its splits into two pools.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from inferometer.decide import replica_bounds
from inferometer.decide.candidate_probes import MOST_TOGETHER, probe_of
from inferometer.decide.candidates import Candidate
from inferometer.decide.capacity import (
    TIME_LIMIT,
    Capacity,
    CapacityQuestion,
    Probing,
    find_capacity,
)
from inferometer.decide.lone_request import LoneRequest, lone_request
from inferometer.decide.pool_probes import PoolProbe
from inferometer.decide.sizing_types import SizingQuestion
from inferometer.decide.time_limits import Phases
from inferometer.decide.traffic import plan_at
from inferometer.errors import SpecError

_SPAN_RATIO: Final = 1e4
_ROUGH_RATIO: Final = 0.1
_CLOSE_RATIO: Final = 0.03
_SEARCH_FRACTION: Final = 0.4
_SPLIT_FRACTION: Final = 0.6
"""Of the time: when the search of layouts ends, and that of splits."""
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

    @property
    def requests_per_s(self) -> float:
        """The most that meets the SLO; 0 where nothing does."""
        return self.capacity.located_load or self.capacity.kept_load or 0.0

    @property
    def worth_per_s(self) -> float:
        """By what layouts are ranked: two pools must carry noticeably more than the whole."""
        return self.requests_per_s / (_BETTER_RATIO if self.n_prefill else 1.0)


class FoundUse(NamedTuple):
    """What was found in one format of one device."""

    uses: tuple[Use, ...]
    """The best first; those after it were located roughly."""
    n_candidates: int
    n_unexamined: int
    nearest: LoneRequest | None
    """Where a lone request misses the SLO in all layouts: that of the fastest."""
    is_split_examined: bool


def best_use(task: UseTask) -> FoundUse:
    """The best layout in this format."""
    question, phases = task.question, Phases(task.question.time_limit())
    uses, alone, n_unexamined = list[Use](), list[LoneRequest](), 0
    plan = plan_at(question.spec, question.rate_per_s, question.n_requests)
    candidates = [one for one in task.candidates if one.n_devices <= task.n_total]
    bounds = [
        task.n_total // one.n_devices / replica_bounds.least_s_of_request(question, one)
        for one in candidates
    ]
    best_per_s = 0.0
    for bound_per_s, index in sorted(zip(bounds, range(len(bounds)), strict=True), reverse=True):
        candidate = candidates[index]
        lone = lone_request(
            candidate.deployment,
            getattr(candidate.deployment.step_times, question.pace),
            plan,
            question.objective,
        )
        if lone is not None and lone.margin_ratio > 1:
            alone.append(lone)
        elif bound_per_s <= best_per_s:
            break
        elif phases.is_past(_SEARCH_FRACTION):
            n_unexamined += 1
        else:
            n_replicas = task.n_total // candidate.n_devices
            last = _SEARCH_FRACTION + _OVERRUN_FRACTION if uses else 1.0
            probe = probe_of(question, candidate, question.pace, n_replicas)
            with phases.until(last):
                located = _located(probe, best_per_s or bound_per_s / 4)
            if located is None:
                n_unexamined += 1
                continue
            uses.append(Use(candidate, n_replicas, 0, located))
            best_per_s = max(best_per_s, uses[-1].requests_per_s)
    uses.sort(key=lambda use: use.requests_per_s, reverse=True)
    is_split_examined = False
    if uses and uses[0].requests_per_s:
        splits, is_split_examined = _splits(question, uses[0], phases)
        uses = sorted([*uses, *splits], key=lambda use: use.worth_per_s, reverse=True)
        uses[0] = uses[0]._replace(capacity=_closely(question, uses[0], phases))
    nearest = min(alone, key=lambda one: one.margin_ratio, default=None) if not uses else None
    return FoundUse(tuple(uses), len(candidates), n_unexamined, nearest, is_split_examined)


def _splits(question: SizingQuestion, use: Use, phases: Phases) -> tuple[Sequence[Use], bool]:
    """The same replicas in two pools; nothing where caches cannot travel or there are too many to simulate."""
    found = list[Use]()
    if (
        not 2 <= use.n_replicas <= MOST_TOGETHER
        or use.candidate.deployment.config.engine.split()[0] != "vLLM"
    ):
        return found, use.n_replicas < 2
    balanced = (
        use.n_replicas * replica_bounds.request_times(question, use.candidate).prompt_fraction
    )
    for n_prefill in sorted(
        range(1, use.n_replicas), key=lambda n_prefill: abs(n_prefill - balanced)
    ):
        if phases.is_past(_SPLIT_FRACTION):
            return found, False
        probe = PoolProbe(
            question=question,
            candidate=use.candidate,
            n_prefill=n_prefill,
            n_decode=use.n_replicas - n_prefill,
        )
        try:
            with phases.until(_SPLIT_FRACTION + _OVERRUN_FRACTION):
                located = _located(probe, use.requests_per_s)
        except SpecError:  # nobody says how fast caches travel between these devices
            located = None
        if located is None:
            return found, False
        found.append(Use(use.candidate, use.n_replicas, n_prefill, located))
    return found, True


def _located(probe: Probing, start_per_s: float) -> Capacity | None:
    """The capacity by short probes; None where their time was over before."""
    asked = CapacityQuestion(
        kind="requests_per_s",
        start_load=start_per_s,
        lowest_load=start_per_s / _SPAN_RATIO,
        highest_load=start_per_s * _SPAN_RATIO,
        resolution_ratio=_ROUGH_RATIO,
        proof_effort=None,
    )
    found = find_capacity(probe, asked)
    return None if found.why == TIME_LIMIT else found


def _closely(question: SizingQuestion, use: Use, phases: Phases) -> Capacity:
    """The capacity of the best, with its interval; as it was where there is no time for a better one."""
    probe: Probing = probe_of(question, use.candidate, question.pace, use.n_replicas)
    if use.n_prefill:
        probe = PoolProbe(
            question=question,
            candidate=use.candidate,
            n_prefill=use.n_prefill,
            n_decode=use.n_replicas - use.n_prefill,
        )
    asked = CapacityQuestion(
        kind="requests_per_s",
        start_load=use.requests_per_s,
        lowest_load=use.requests_per_s / _SPAN_RATIO,
        highest_load=use.requests_per_s * _SPAN_RATIO,
        resolution_ratio=_CLOSE_RATIO,
        proof_effort=1,
        most_effort=4,
        time_left_s=phases.time_left_s,
    )
    with phases.until(1 + _OVERRUN_FRACTION):
        found = find_capacity(probe, asked)
    return found if found.located_load or found.kept_load else use.capacity
