"""Weighted splitting of a class over several groups of replicas, where that costs less.

Where each class goes to one group whole, the last replica of each may stand half idle. Numbers of
replicas that cost less than the best such way (``decide.group_routing``) are tried in the order of
their cost: a linear program over what each group was seen to carry of each stream proposes the
weights that fill the fullest group least; short runs of each group accept or correct them, and long
runs size what was accepted. It finds a cheaper way, not surely the cheapest one.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import scipy

from inferometer.decide.capacity import OutOfTimeError, Phases
from inferometer.decide.group_routing import (
    FREE,
    ROUTING_FRACTION,
    UNUSED,
    Cost,
    Part,
    Routed,
    Sized,
    SizeTask,
    Table,
    in_long_runs,
    routed,
)
from inferometer.decide.group_sizing import GroupsQuestion, GroupTask, Search, Start
from inferometer.decide.probing import MOST_TOGETHER
from inferometer.simulate.deployment import Case

_LEAST_WEIGHT: Final = 0.02
"""A group that would get less of a stream gets none of it."""
_WEIGHT_STEPS: Final = 100
"""Weights are whole percents, as routers take them."""
_TIGHTER: Final = 1.08
"""Factor on a stream's assumed cost on a group that missed the SLO with a proposed share."""
_MOST_CORRECTIONS: Final = 4
_PROPOSED_RATIO: Final = 1.05
"""Proposals may fill replicas a little beyond what single streams showed: mixes are smoother."""
_LEAST_PRICE: Final = 1e-9
_MOST_VECTORS: Final = 200_000
_SPLIT_FRACTION: Final = 0.85
"""Share of the time after which no further numbers are tried."""


def cheaper_split(table: Table, whole: Routed) -> Routed | None:
    """A way that splits streams and costs less than this one without splits; None where none was found."""
    return _Splitting(table, whole).cheaper()


class FillTask(NamedTuple):
    """One stream on this number of replicas of one group."""

    question: GroupsQuestion
    place: int
    case: Case
    n_replicas: int


def filled(task: FillTask) -> tuple[float | None, float]:
    """Replicas that the stream needs, as a real number; and the seconds of the search.

    None: no load of it, however small, is within the SLO.
    """
    phases = Phases(task.question.sizing.time_limit())
    search = Search(GroupTask(task.question, task.place), phases, task.case)
    try:
        with phases.until(1.0):
            load = search.capacity(task.n_replicas)
    except OutOfTimeError:
        load = None
    offered = task.question.sizing.offered_load
    return None if load is None else task.n_replicas * offered / load, phases.spent_s


def margin_of(task: FillTask) -> tuple[float, float]:
    """Margin of the nearest limit in a short run of these replicas; and its computing time."""
    phases = Phases(task.question.sizing.time_limit())
    search = Search(GroupTask(task.question, task.place), phases, task.case)
    try:
        with phases.until(1.0):
            margin = search.short(task.n_replicas).margin_ratio
    except OutOfTimeError:
        margin = math.inf
    return margin, phases.spent_s


class _Splitting:
    """Search for weights with which cheaper numbers of replicas suffice."""

    def __init__(self, table: Table, whole: Routed) -> None:
        self._table, self._whole = table, whole
        self._fills = np.full((len(table.question.kinds), len(table.streams)), math.inf)

    def cheaper(self) -> Routed | None:
        """The cheapest that was found; None where none was."""
        table, whole = self._table, self._whole
        numbers_of_whole = [one.n_replicas for one in whole.found]
        limit = self._cost(numbers_of_whole)
        self._fill()
        if limit.price == math.inf or not self._can_split():
            return None
        for numbers in self._vectors(limit):
            if table.is_past(_SPLIT_FRACTION):
                table.is_late = True
                return None
            parts = self._enough(numbers)
            if parts is None:
                continue
            question = routed(table.question, table.streams, parts)
            used = sorted({one.group for one in parts})
            tasks = [
                SizeTask(question, place, Start(table.cases[place], numbers[place]))
                for place in used
            ]
            done: Sequence[Sized] = table.map(in_long_runs, tasks)
            table.spend([one.took_s for one in done])
            found = [UNUSED] * len(table.question.kinds)
            for place, one in zip(used, done, strict=True):
                found[place] = one.found
            if self._cost([one.n_replicas for one in found]).price < limit.price:
                usd = table.question.usd_per_hour_of([n or 0 for n in numbers_of_whole])
                return table.answer(parts, found)._replace(unsplit_usd_per_hour=usd)
        return None

    def _cost(self, numbers: Sequence[int | None]) -> Cost:
        total = FREE
        for place, number in enumerate(numbers):
            total = total.plus(self._table.cost_of(place, number))
        return total

    def _fill(self) -> None:
        """Compute how many replicas of each group each stream needs."""
        table = self._table
        pairs = [
            (place, number)
            for number, stream in enumerate(table.streams)
            for place in stream.groups
        ]
        unknown = [
            (place, 1 << number)
            for place, number in pairs
            if not table.is_known((place, 1 << number))
        ]
        if unknown and not table.is_past(ROUTING_FRACTION):
            table.size(unknown, is_long=False)
        tasks = dict[tuple[int, int], FillTask]()
        for place, number in pairs:
            n_replicas = table.number(place, 1 << number)
            if n_replicas is not None:
                tasks[place, number] = FillTask(
                    table.routed_to(place, 1 << number),
                    place,
                    table.cases[place],
                    min(n_replicas, MOST_TOGETHER),
                )
        done: Sequence[tuple[float | None, float]] = table.map(filled, list(tasks.values()))
        table.spend([seconds for _, seconds in done])
        for (place, number), (fills, _) in zip(tasks, done, strict=True):
            self._fills[place, number] = math.inf if fills is None else fills

    def _can_split(self) -> bool:
        """May several groups serve a stream, each by itself?"""
        may = np.isfinite(self._fills)
        return bool((may.sum(axis=0) > 1).any() and may.any(axis=0).all())

    def _vectors(self, limit: Cost) -> list[tuple[int, ...]]:
        """Cheaper numbers of replicas, cheapest first, without those surely too few."""
        table = self._table
        each = [table.cost_of(place, 1).price for place in range(len(table.question.kinds))]
        least = self._least_price(each)
        finite = np.where(np.isfinite(self._fills), self._fills, 0.0)
        most = [
            min(
                math.ceil(float(fills.sum())) + 1, math.ceil(limit.price / max(price, _LEAST_PRICE))
            )
            for fills, price in zip(finite, each, strict=True)
        ]
        if math.prod(one + 1 for one in most) > _MOST_VECTORS:
            table.is_late = True
            return []
        found = [
            (cost, numbers)
            for numbers in itertools.product(*(range(one + 1) for one in most))
            if least / _PROPOSED_RATIO <= (cost := self._cost(numbers)).price < limit.price
        ]
        return [numbers for _, numbers in sorted(found)]

    def _least_price(self, each: Sequence[float]) -> float:
        """If a part of a replica could be had."""
        prices = np.array(each)[:, None] * self._fills
        return float(prices.min(axis=0).sum())

    def _enough(self, numbers: tuple[int, ...]) -> tuple[Part, ...] | None:
        """Weights with which these numbers meet the SLO in short runs; None where none were found."""
        table = self._table
        for _ in range(_MOST_CORRECTIONS):
            parts = self._proposed(numbers)
            if parts is None or table.is_past(_SPLIT_FRACTION):
                return None
            question = routed(table.question, table.streams, parts)
            used = sorted({one.group for one in parts})
            tasks = [
                FillTask(question, place, table.cases[place], numbers[place]) for place in used
            ]
            done: Sequence[tuple[float, float]] = table.map(margin_of, tasks)
            table.spend([seconds for _, seconds in done])
            late = [place for place, (margin, _) in zip(used, done, strict=True) if margin > 1]
            if not late:
                return parts
            self._fills[late] *= _TIGHTER
        return None

    def _proposed(self, numbers: Sequence[int]) -> tuple[Part, ...] | None:
        """The weights that fill the fullest of these groups least; None where that is too full."""
        pairs = [
            (int(place), int(number))
            for place, number in np.argwhere(np.isfinite(self._fills)).tolist()
            if numbers[place] > 0
        ]
        n_streams, places = len(self._table.streams), sorted({place for place, _ in pairs})
        if len({number for _, number in pairs}) < n_streams:
            return None
        goal = np.zeros(len(pairs) + 1)
        goal[-1] = 1.0
        within, whole = np.zeros((len(places), len(goal))), np.zeros((n_streams, len(goal)))
        for column, (place, number) in enumerate(pairs):
            within[places.index(place), column] = self._fills[place, number]
            whole[number, column] = 1.0
        within[:, -1] = [-numbers[place] for place in places]
        solved = scipy.optimize.linprog(
            goal, A_ub=within, b_ub=np.zeros(len(places)), A_eq=whole, b_eq=np.ones(n_streams)
        )
        if not solved.success or solved.fun > _PROPOSED_RATIO:
            return None
        return whole_percents(
            [
                Part(number, place, float(weight))
                for (place, number), weight in zip(pairs, solved.x[:-1], strict=True)
            ]
        )


def whole_percents(parts: Sequence[Part]) -> tuple[Part, ...]:
    """The parts in whole percents; small ones are given to the largest part of their stream."""
    found = list[Part]()
    for _, group in itertools.groupby(sorted(parts), key=lambda one: one.stream):
        own = [one for one in group if one.weight >= _LEAST_WEIGHT]
        rounded = [round(one.weight * _WEIGHT_STEPS) for one in own]
        rounded[rounded.index(max(rounded))] += _WEIGHT_STEPS - sum(rounded)
        found += [
            one._replace(weight=n / _WEIGHT_STEPS) for one, n in zip(own, rounded, strict=True)
        ]
    return tuple(found)
