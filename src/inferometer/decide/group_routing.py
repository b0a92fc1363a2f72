"""Which group of replicas should serve which class of requests, or which part of it, at the least cost?

Requests of one class that the same groups can take are a *stream*. What a group needs for a set of
streams depends on no other group, so that each pair of a group and a set is sized once, by short
runs, as it is needed: the cheapest partition of the streams is found by dynamic programming over
groups with lower bounds for the pairs that were not sized yet (a set needs no fewer replicas than a
part of it), its unknown pairs are sized, and so on until the cheapest has none (a best-first search
with a monotone bound). Its groups are then sized by long runs, as those of a file's rules are.
``decide.group_splitting`` looks for cheaper ways that split a stream.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from inferometer.decide.capacity import OutOfTimeError, Phases
from inferometer.decide.group_sizing import (
    FoundGroup,
    GroupsQuestion,
    GroupTask,
    Search,
    Start,
    size_group,
    slowest_but_open,
)
from inferometer.errors import SpecError
from inferometer.inputs.workload.plan import I64, NONE, RequestPlan
from inferometer.simulate.demand import Route
from inferometer.simulate.deployment import Case

MOST_STREAMS: Final = 8
"""A search looks at 3^8 ways to give two groups parts of them."""
_LATE: Final = "no number of replicas was shown to meet the SLO within the time limit"
UNUSED: Final = FoundGroup(0, "no requests", 0)
ROUTING_FRACTION: Final = 0.6
"""Share of the time at which the routing is chosen from what is known."""


class Stream(NamedTuple):
    """Requests of one class that the same groups can take."""

    class_index: int
    groups: tuple[int, ...]
    share_fraction: float
    """Share of all requests."""
    load_fraction: float
    """Share of all requests, or of all users of a closed loop."""


class Part(NamedTuple):
    """A part of a stream, and the group that gets it."""

    stream: int
    group: int
    weight: float
    """1 where it gets all of it."""


class SearchMeans(NamedTuple):
    """Executor and time limit of a search for a routing."""

    map_: Callable[[Callable[[Any], Any], Sequence[Any]], Sequence[Any]]
    n_at_once: int
    limit_s: float


class Routed(NamedTuple):
    """A routing, and the replicas that it needs."""

    parts: tuple[Part, ...]
    question: GroupsQuestion
    """Question with these routes; a group without a part has no load."""
    found: tuple[FoundGroup, ...]
    """Result of each group; 0 replicas where it has no part."""
    n_sized: int
    """Pairs of a group and a set of streams that were sized."""
    is_late: bool
    """Did the time limit leave out routings that may cost less?"""
    unsplit_usd_per_hour: float | None = None
    """Cost of the best routing without splits, where one with splits costs less; None: no price."""


class Cost(NamedTuple):
    """Compared from left to right: dollars, or devices where a price is unknown."""

    price: float
    n_devices: float
    n_replicas: float
    n_groups: float

    def plus(self, other: "Cost") -> "Cost":
        """The sum of two costs."""
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))


FREE: Final = Cost(0, 0, 0, 0)
NEVER: Final = Cost(math.inf, math.inf, math.inf, math.inf)


class Streams(NamedTuple):
    """The streams of some requests."""

    streams: tuple[Stream, ...]
    number_of: I64
    """(N) The stream of each request."""


def streams_of(question: GroupsQuestion, plan: RequestPlan) -> Streams:
    """The streams of these requests; where a session stays in one group, that of a session's first request.

    Raises
    ------
    SpecError
        No group can take one of the requests, or there are more streams than can be searched.
    """
    placement = question.placement
    placement.group_of(plan)  # refuses a request that no group takes
    takes = np.stack([group.takes(plan) for group in placement.groups])
    bits = (takes * (1 << np.arange(len(takes)))[:, None]).sum(axis=0)
    keys = np.stack([plan.class_index.astype(np.int64), bits])
    if placement.keeps_sessions:
        for index, before in enumerate(plan.follows.tolist()):
            if before != NONE:
                keys[:, index] = keys[:, before]
    kinds, number_of = np.unique(keys, axis=1, return_inverse=True)
    if kinds.shape[1] > MOST_STREAMS:
        raise SpecError(
            f"{kinds.shape[1]} kinds of requests, by class and by the groups that can take them",
            where="--routing, --groups, --workload",
            allowed=f"up to {MOST_STREAMS}, whose ways are all looked at",
            try_="--routing rules, with the rules in the file; or fewer classes",
        )
    number_of = number_of.reshape(-1)
    counted = plan.follows == NONE if question.sizing.is_of_users else np.ones(len(number_of), bool)
    streams = list[Stream]()
    for number, (class_index, of_groups) in enumerate(kinds.T.tolist()):
        own = number_of == number
        groups = tuple(place for place in range(len(takes)) if of_groups >> place & 1)
        load = float((own & counted).sum() / counted.sum())
        streams.append(Stream(int(class_index), groups, float(own.mean()), load))
    return Streams(tuple(streams), number_of)


def routed(
    question: GroupsQuestion, streams: Sequence[Stream], parts: Sequence[Part]
) -> GroupsQuestion:
    """The question where these parts of the streams go to these groups; others of a stream's groups get none."""
    kinds = list(question.kinds)
    for place, kind in enumerate(kinds):
        own = [one for one in parts if one.group == place]
        kinds[place] = replace(
            kind,
            share_fraction=sum(streams[one.stream].share_fraction * one.weight for one in own),
            load_fraction=sum(streams[one.stream].load_fraction * one.weight for one in own),
        )
    routes = list[Route]()
    for number, stream in enumerate(streams):
        own = [one for one in parts if one.stream == number]
        targets, weights = (tuple(one.group for one in own), tuple(one.weight for one in own))
        routes.append(Route(stream.class_index, targets, weights, stream.groups))
    return replace(question, kinds=tuple(kinds), routes=tuple(routes))


class Sized(NamedTuple):
    """A group with a set of streams, and how long it took to size it."""

    found: FoundGroup
    case: Case
    """The server that decides."""
    took_s: float


class SizeTask(NamedTuple):
    """One group of a routed question, to be sized."""

    question: GroupsQuestion
    place: int
    start: Start | None = None
    """None: by short runs; else by long ones from there on."""


def in_short_runs(task: SizeTask) -> Sized:
    """The smallest number of replicas that meets the SLO in short runs."""
    phases = Phases(task.question.sizing.time_limit())
    of_group = GroupTask(task.question, task.place)
    search = Search(of_group, phases, slowest_but_open(of_group))
    alone = search.alone()
    if alone is not None and alone.margin_ratio > 1:
        why = f"not even idle replicas meet the SLO; {alone.why}"
        found = FoundGroup(None, why, 0, margin_ratio=alone.margin_ratio)
        return Sized(found, search.case, phases.spent_s)
    try:
        with phases.until(1.0):
            n_replicas = search.in_short_runs(search.bound())
    except OutOfTimeError:
        found = FoundGroup(None, _LATE, search.n_probes, is_examined=False)
        return Sized(found, search.case, phases.spent_s)
    last = search.last
    why = last.why if n_replicas is not None else f"no number of replicas meets the SLO; {last.why}"
    found = FoundGroup(n_replicas, why, search.n_probes, margin_ratio=last.margin_ratio)
    return Sized(found, search.case, phases.spent_s)


def in_long_runs(task: SizeTask) -> Sized:
    """The smallest number of replicas that meets the SLO in long runs, as a group of a file's rules is sized."""
    left_s = task.question.sizing.time_limit()
    before_s = left_s()
    found = size_group(GroupTask(task.question, task.place), task.start)
    spent_s = before_s - left_s()
    case: Case = "likely" if task.start is None else task.start.case
    return Sized(found, case, spent_s if math.isfinite(spent_s) else 0.0)


def cheapest_partition(table: "Table") -> Routed:
    """The cheapest way to give each stream to one group; where none meets the SLO, the nearest one."""
    while True:
        sets, is_past = table.partition(is_known_alone=False), table.is_past(ROUTING_FRACTION)
        unknown = table.unknown_of(sets)
        if is_past and unknown:
            table.is_late = True
            sets, unknown = table.partition(is_known_alone=True), []
        if sets is None:
            return table.nearest()
        pairs = [(place, members) for place, members in enumerate(sets) if members]
        unproved = unknown or [pair for pair in pairs if not table.is_proved(pair)]
        if not unproved:
            found = [table.proved(place, members) for place, members in enumerate(sets)]
            return table.answer(table.parts_of(sets), found)
        table.size(unproved, is_long=not unknown)


class Table:
    """Replicas of each group for each set of streams, as far as known; sets are bit masks."""

    def __init__(
        self, question: GroupsQuestion, streams: tuple[Stream, ...], means: SearchMeans
    ) -> None:
        self.question, self.streams, self.means = question, streams, means
        self.is_late = False
        self._short = dict[tuple[int, int], FoundGroup]()
        self._long = dict[tuple[int, int], FoundGroup]()
        self.cases = dict[int, Case]()
        self._spent_s = 0.0
        self._is_priced = all(one.device_usd_per_hour is not None for one in question.kinds)

    @property
    def n_sized(self) -> int:
        """Pairs so far."""
        return len(self._short)

    def is_past(self, fraction: float) -> bool:
        """Has more than this fraction of the time passed?"""
        return self._spent_s > fraction * self.means.limit_s

    def is_known(self, pair: tuple[int, int]) -> bool:
        """Was this pair sized?"""
        return pair in self._short

    def unknown_of(self, sets: Sequence[int] | None) -> list[tuple[int, int]]:
        """The groups with their sets of streams that were not sized."""
        return [pair for pair in enumerate(sets or ()) if pair[1] and not self.is_known(pair)]

    def is_proved(self, pair: tuple[int, int]) -> bool:
        """Was this pair sized by long runs?"""
        return pair in self._long

    def number(self, place: int, members: int) -> int | None:
        """The smallest number of replicas that is known; None: no number is enough, or it was not sized."""
        found = self._long.get((place, members)) or self._short.get((place, members))
        return None if found is None else found.n_replicas

    def proved(self, place: int, members: int) -> FoundGroup:
        """The result of long runs; 0 replicas for no requests."""
        return self._long[place, members] if members else UNUSED

    def parts_of(self, sets: Sequence[int]) -> tuple[Part, ...]:
        """Each stream, whole, in the group whose set has it."""
        return tuple(
            Part(number, place, 1.0)
            for number in range(len(self.streams))
            for place, members in enumerate(sets)
            if members >> number & 1
        )

    def routed_to(self, place: int, members: int) -> GroupsQuestion:
        """The question where this group gets these streams, and others all else."""
        other = (place + 1) % len(self.question.kinds)
        parts = [
            Part(number, place if members >> number & 1 else other, 1.0)
            for number in range(len(self.streams))
        ]
        return routed(self.question, self.streams, parts)

    def size(self, pairs: Sequence[tuple[int, int]], *, is_long: bool) -> None:
        """Size these pairs by long runs, starting from the results of short ones."""
        tasks = [
            SizeTask(
                self.routed_to(place, members),
                place,
                Start(self.cases[place], self.number(place, members) or 1) if is_long else None,
            )
            for place, members in pairs
        ]
        done: Sequence[Sized] = self.map(in_long_runs if is_long else in_short_runs, tasks)
        for pair, one in zip(pairs, done, strict=True):
            if is_long:
                self._long[pair] = one.found
            else:
                self.cases[pair[0]] = one.case
                self._short[pair] = one.found
            self.is_late = self.is_late or not one.found.is_examined
        self.spend([one.took_s for one in done])

    def map(self, work: Callable[[Any], Any], tasks: Sequence[Any]) -> Sequence[Any]:
        """Apply ``work`` to each task."""
        return self.means.map_(work, tasks)

    def spend(self, seconds: Sequence[float]) -> None:
        """Add the time of parts that were computed side by side."""
        self._spent_s += sum(seconds) / max(min(self.means.n_at_once, len(seconds)), 1)

    def partition(self, *, is_known_alone: bool) -> tuple[int, ...] | None:
        """The cheapest way to give each group a set of streams; None where no way meets the SLO."""
        everything = (1 << len(self.streams)) - 1
        return cheapest_sets(
            [
                [
                    self._bound(place, members, is_known_alone=is_known_alone)
                    for members in range(everything + 1)
                ]
                for place in range(len(self.question.kinds))
            ]
        )

    def _bound(self, place: int, members: int, *, is_known_alone: bool) -> Cost:
        """Lower bound on the cost of the group with these streams."""
        if not members:
            return FREE
        own = [number for number in range(len(self.streams)) if members >> number & 1]
        if any(place not in self.streams[number].groups for number in own):
            return NEVER
        pair = place, members
        found = self._long.get(pair) or self._short.get(pair)
        if found is not None:
            return self.cost_of(place, found.n_replicas)
        if is_known_alone:
            return NEVER
        smaller = [
            self._long.get((place, part)) or self._short.get((place, part))
            for part in _parts_of(members)
        ]
        known = [one for one in smaller if one is not None and one.is_examined]
        if any(one.n_replicas is None for one in known):
            return NEVER
        return self.cost_of(place, max((one.n_replicas or 1 for one in known), default=1))

    def cost_of(self, place: int, n_replicas: int | None) -> Cost:
        """Cost of this number of replicas."""
        if n_replicas is None:
            return NEVER
        if n_replicas == 0:
            return FREE
        kind = self.question.kinds[place]
        n_devices = kind.devices_of(n_replicas)
        usd = kind.usd_per_hour_of(n_replicas)
        price = n_devices if usd is None or not self._is_priced else round(usd, 6)
        return Cost(price, n_devices, n_replicas, 1)

    def answer(self, parts: tuple[Part, ...], found: Sequence[FoundGroup]) -> Routed:
        """The routing of these parts, with the replicas of each group."""
        return Routed(
            parts=parts,
            question=routed(self.question, self.streams, parts),
            found=tuple(found),
            n_sized=self.n_sized,
            is_late=self.is_late,
        )

    def nearest(self) -> Routed:
        """If no routing meets the SLO: each stream in the group nearest to its limits."""
        sets = [0] * len(self.question.kinds)
        for number, stream in enumerate(self.streams):
            alone = 1 << number
            missing = [
                (place, alone) for place in stream.groups if not self.is_known((place, alone))
            ]
            if missing and not self.is_late:
                self.size(missing, is_long=False)
            best = min(stream.groups, key=lambda place: self._distance(place, alone))
            sets[best] |= alone
        found = list[FoundGroup]()
        for place, members in enumerate(sets):
            own = [
                self._short[pair]
                for number in range(len(self.streams))
                if members >> number & 1 and (pair := (place, 1 << number)) in self._short
            ]
            without = [one for one in own if one.n_replicas is None]
            unknown = FoundGroup(None, _LATE, 0, is_examined=False)
            usual = unknown if members else UNUSED
            worst = max(without or own, key=lambda one: one.margin_ratio or 0.0, default=usual)
            found.append(worst)
        return self.answer(self.parts_of(sets), found)

    def _distance(self, place: int, members: int) -> tuple[bool, float]:
        found = self._short.get((place, members))
        if found is None:
            return True, math.inf
        margin = math.inf if found.margin_ratio is None else found.margin_ratio
        return found.n_replicas is None, margin


def cheapest_sets(costs: Sequence[Sequence[Cost]]) -> tuple[int, ...] | None:
    """The cheapest way to give each group a set of streams; None where no way has a price.

    ``costs[place][members]`` is what the group costs with this set of streams (bits).

    Example
    -------
    >>> one, two = Cost(1, 1, 1, 1), Cost(2, 2, 2, 1)
    >>> cheapest_sets([[FREE, two, one, NEVER], [FREE, one, two, NEVER]])
    (2, 1)
    """
    everything = len(costs[0]) - 1
    best: dict[int, tuple[Cost, tuple[int, ...]]] = {0: (FREE, ())}
    for of_group in costs:
        after = dict[int, tuple[Cost, tuple[int, ...]]]()
        for given, (cost, sets) in best.items():
            for members in _parts_of(everything ^ given):
                total, reached = cost.plus(of_group[members]), given | members
                is_better = reached not in after or total < after[reached][0]
                if total.price < math.inf and is_better:
                    after[reached] = (total, (*sets, members))
        best = after
    found = best.get(everything)
    return None if found is None else found[1]


def _parts_of(members: int) -> Iterator[int]:
    """All subsets of a bit mask, the empty one last."""
    part = members
    while part:
        yield part
        part = (part - 1) & members
    yield 0
