"""Which server is it that answered these load tests so?

Its step times and its limits, by inverse simulation of all runs together.

Limits and step times are looked for in turn: what a limit explains is not explained by slow steps,
and the other way round. Limits are scanned, for a simulation knows no slope along them; step times
are searched downhill.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from inferometer.fit.loads.load_tests import LoadLook, cells_of, groups_of
from inferometer.fit.loads.replay import Latencies, latencies
from inferometer.fit.loads.server import (
    LIMITS,
    SWITCHES,
    Limit,
    Range,
    ServerKnobs,
    StepBelief,
    Switch,
    Terms,
    config_of,
    steps_at,
)
from inferometer.fit.map import Found, Misfit, Solution, Unknowns, costs, refine, search
from inferometer.records.columns import F64, I64
from inferometer.records.types import RequestTable, StepTable
from inferometer.simulate.run import simulate

_TPOT_RATIO: Final = 0.02
_TTFT_RATIO: Final = 0.1
"""How closely a closed form is expected to tell single requests: fractions of TPOT and of TTFT,
and half a step beside."""
_GAP_RATIO: Final = 0.1
"""Of the mean gap that an instant lies in: single gaps vary with the machine, too."""
_LOST: Final = 20.0
"""Misfit of a request that the simulation did not finish."""
_LEAST_SCATTER_RATIO: Final = 0.1
_MAX_TURNS: Final = 8
_N_WIDE_TURNS: Final = 2
_N_WIDE: Final = 9
_N_NEAR: Final = 5
_NEAR_RATIO: Final = 1.25
_N_ZOOMS: Final = 3
_TURNED_RATIO: Final = 0.8
"""A switch is taken out of its usual position for misfits that are so much smaller: they scatter
by a tenth at the least change."""
_SETTLED_RATIO: Final = 0.97
"""Another turn that makes the misfits less than so much smaller is the last."""
_FIRST_BUDGETS: Final = (512, 2048, 8192)
_HELD_RATIOS: Final = (1.0, 1.25)
"""KV blocks that a search begins with, to those of the prompts under way: their answers need
some, too."""
_USUAL_BUDGETS: Final = (512, 1024, 2048, 4096, 8192, 16384)


class Place(NamedTuple):
    """Knobs and unknowns."""

    knobs: ServerKnobs
    x: F64


class Residual(NamedTuple):
    """Root mean square of what is left of like requests' mean latencies, as logarithms: 0.1 is 10 %."""

    ttft_ratio: float
    tpot_ratio: float


class _Simulated(NamedTuple):
    """What a simulation says of the requests of a load test; gaps (N) as ``LoadLook.gap_s``, where that has them."""

    latencies: Latencies
    gap_s: F64 | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlackBox:
    """The load tests, what is believed of the steps, and what every simulation shares."""

    looks: tuple[LoadLook, ...]
    belief: StepBelief
    terms: Terms
    scatter_ratio: float = 1.0
    """Of what the misfits scatter, to what they were expected to."""

    @property
    def unknowns(self) -> Unknowns:
        """Of the steps, and the front end's delay."""
        return self.belief.unknowns

    def groups(self) -> I64:
        """Of all misfits: which go together."""
        return np.concatenate(
            [
                np.tile(groups_of(one), 2 if one.gap_s is None else 3) + 1000 * i
                for i, one in enumerate(self.looks)
            ]
        )

    def misfit(self, knobs: ServerKnobs) -> Misfit:
        """What is left between the load tests and their simulation, of unknowns."""
        return lambda x: (
            np.concatenate([_misfit(one, self._simulated(one, knobs, x)) for one in self.looks])
            / self.scatter_ratio
        )

    def cost(self, place: Place) -> float:
        """How far do the load tests and their simulation lie apart?"""
        return float(costs(self.misfit(place.knobs)(place.x)).sum())

    def residual(self, place: Place) -> Residual:
        """How far off are like requests, their mean?

        No closed form of a few numbers is a server.
        """
        ttft, tpot = list[F64](), list[F64]()
        for one in self.looks:
            found, told, cells = (
                self._simulated(one, place.knobs, place.x).latencies,
                one.is_told,
                cells_of(one),
            )
            with np.errstate(divide="ignore", invalid="ignore"):
                tpot.append(_cell_means(np.log(found.tpot_s[told] / one.seen.tpot_s[told]), cells))
                ttft.append(_cell_means(np.log(found.ttft_s[told] / one.seen.ttft_s[told]), cells))
        return Residual(
            *(float(np.sqrt(np.mean(np.concatenate(cells) ** 2))) for cells in (ttft, tpot))
        )

    def alone(self, index: int) -> "BlackBox":
        """One of the load tests."""
        return replace(self, looks=(self.looks[index],))

    def _simulated(self, one: LoadLook, knobs: ServerKnobs, x: F64) -> _Simulated:
        has_contents = one.has_shared_prefixes and knobs.enable_prefix_caching
        config = config_of(knobs, self.terms, has_contents=has_contents)
        asked = one.demand(math.exp(x[-1]), self.terms.block_tokens, has_contents=has_contents)
        found = simulate(
            asked, config, steps_at(self.belief.base, x), record_steps=one.gap_s is not None
        )
        gap_s = (
            None
            if found.steps is None
            else _step_gaps(found.steps, found.requests, len(one.requests.status))
        )
        return _Simulated(latencies(one.requests, found.requests), gap_s)


class Explained(NamedTuple):
    """What explains the load tests best."""

    box: BlackBox
    """With the scatter that is left."""
    knobs: ServerKnobs
    solution: Solution
    turned: Mapping[Switch, Place]
    """With each switch that nobody named in its other position: the best that is left."""

    @property
    def place(self) -> Place:
        """Knobs and unknowns."""
        return Place(self.knobs, self.solution.x)


def explain(box: BlackBox) -> Explained:
    """The limits and step times that fit best, and how sure the step times are with these limits."""
    settled = [_settled(box, opening) for opening in _openings(box)]
    place = min(settled, key=box.cost)
    turned: dict[Switch, Place] = {}
    for _ in range(_MAX_TURNS):
        turned = {
            name: _turned(box, place, name, settled)
            for name in SWITCHES
            if name not in box.terms.switches
        }
        better = min(turned.values(), key=box.cost, default=place)
        if box.cost(better) >= box.cost(place) * _TURNED_RATIO:
            break
        place = _settled(box, better)
    seen = box.misfit(place.knobs)(place.x)
    scatter = max(float(np.sqrt(np.mean(seen**2))), _LEAST_SCATTER_RATIO)
    box, found = replace(box, scatter_ratio=scatter), Found(place.x, seen / scatter, 0)
    refined = refine(box.misfit(place.knobs), box.unknowns, box.groups(), found)
    return Explained(box=box, knobs=place.knobs, solution=refined, turned=turned)


def _openings(box: BlackBox) -> list[Place]:
    """Where a search begins.

    Step times of all load tests but the busiest, which limits touch least, with the step budget
    that suits them.

    Where prompts begin alike, with a prefix cache and without: what one finds, the other computes,
    and holds twice.
    """
    by_wait = np.argsort([np.nanmedian(one.seen.ttft_s) for one in box.looks])
    quiet = replace(box, looks=tuple(box.looks[i] for i in by_wait[: max(len(by_wait) - 1, 1)]))
    knobs, budgets = _open_knobs(box.terms), box.terms.ranges["max_num_batched_tokens"]
    openings = [knobs]
    if "enable_prefix_caching" not in box.terms.switches and any(
        one.has_shared_prefixes for one in box.looks
    ):
        openings.append(knobs.with_switch("enable_prefix_caching", value=False))
    tried = sorted({budgets.within(value) for value in _FIRST_BUDGETS})
    return [_opening(quiet, one, tried) for one in openings]


def _opening(box: BlackBox, knobs: ServerKnobs, budgets: Sequence[int]) -> Place:
    """The step times and the step budget that fit best with limits open, or as tight as what was seen at once.

    Open limits alone would do where the load tests reach none; where each of them does, no step
    times explain the requests with limits open, and a search from there ends far from any that do.
    """
    ranges = box.terms.ranges
    first = knobs.with_limit("max_num_batched_tokens", budgets[len(budgets) // 2])
    tight = (
        first.with_limit(
            "max_num_seqs", ranges["max_num_seqs"].within(ranges["max_num_seqs"].low + 1)
        ),
        *(
            first.with_limit(
                "n_kv_blocks", ranges["n_kv_blocks"].within(round(ratio * box.terms.held_blocks))
            )
            for ratio in _HELD_RATIOS
        ),
    )
    found = [_searched(box, one) for one in dict.fromkeys((first, *tight))]
    best = min(found, key=box.cost)
    others = (
        best.knobs.with_limit("max_num_batched_tokens", value)
        for value in budgets
        if value != first.max_num_batched_tokens
    )
    return min((best, *(_searched(box, one) for one in others)), key=box.cost)


def _searched(box: BlackBox, knobs: ServerKnobs) -> Place:
    return Place(knobs, search(box.misfit(knobs), box.unknowns).x)


def _settled(box: BlackBox, place: Place) -> Place:
    """Knobs that fit the step times, and step times that fit the knobs, until neither gives way any more."""
    looks_wide, is_last = _N_WIDE_TURNS, False
    for _ in range(_MAX_TURNS):
        knobs = scan(box, place, is_wide=looks_wide > 0)
        found = Place(knobs, search(box.misfit(knobs), box.unknowns, place.x).x)
        gains = box.cost(found) < box.cost(place) * _SETTLED_RATIO
        place = min(place, found, key=box.cost)
        if not gains and is_last:
            break
        looks_wide, is_last = (looks_wide - 1, False) if gains else (1, True)
    return place


def _turned(box: BlackBox, place: Place, name: Switch, settled: list[Place]) -> Place:
    """The same with a switch in its other position, and step times that make the best of it; or what has settled there."""
    knobs = place.knobs.with_switch(name, value=not getattr(place.knobs, name))
    there = [
        one
        for one in settled
        if all(getattr(one.knobs, switch) == getattr(knobs, switch) for switch in SWITCHES)
    ]
    if box.cost(Place(knobs, place.x)) == box.cost(place):
        return Place(knobs, place.x)
    return min(
        (Place(knobs, search(box.misfit(knobs), box.unknowns, place.x).x), *there), key=box.cost
    )


def scan(box: BlackBox, start: Place, *, is_wide: bool) -> ServerKnobs:
    """The limits that fit best with these step times.

    Seats and memory together, for they stand in for one another, then each closely.
    """
    pairs = _pairs(box.terms, start.knobs, is_wide=is_wide)
    knobs = min((start.knobs, *pairs), key=lambda one: box.cost(Place(one, start.x)))
    for name in LIMITS:
        knobs = _best_limit(box, Place(knobs, start.x), name, is_wide=is_wide)
    return knobs


def _best_limit(box: BlackBox, place: Place, name: Limit, *, is_wide: bool) -> ServerKnobs:
    """Scan the range, or around the best so far; then around the best: ever smaller ranges between its neighbours."""
    whole, now = box.terms.ranges[name], int(getattr(place.knobs, name))
    costs_seen = {now: box.cost(place)}
    looked_at = (
        whole
        if is_wide
        else Range(whole.within(round(now / _NEAR_RATIO)), whole.within(round(now * _NEAR_RATIO)))
    )
    asked = [
        *looked_at.candidates(_N_WIDE if is_wide else _N_NEAR),
        *(_USUAL_BUDGETS if name == "max_num_batched_tokens" and is_wide else ()),
    ]
    for _ in range(_N_ZOOMS):
        for value in map(whole.within, asked):
            if value not in costs_seen:
                costs_seen[value] = box.cost(Place(place.knobs.with_limit(name, value), place.x))
        values = sorted(costs_seen)
        best = values.index(min(values, key=costs_seen.__getitem__))
        asked = Range(values[max(best - 1, 0)], values[min(best + 1, len(values) - 1)]).candidates(
            _N_NEAR
        )
    least = min(costs_seen.values())
    return place.knobs.with_limit(
        name,
        (
            now
            if costs_seen[now] <= least
            else max(value for value, cost in costs_seen.items() if cost <= least)
        ),
    )


def _pairs(terms: Terms, knobs: ServerKnobs, *, is_wide: bool) -> list[ServerKnobs]:
    """Seats and KV blocks on a grid: over all that may be, or around these."""
    seats, blocks = terms.ranges["max_num_seqs"], terms.ranges["n_kv_blocks"]
    if is_wide:
        some_seats, some_blocks = seats.candidates(_N_WIDE), blocks.candidates(_N_WIDE)
    else:
        some_seats = sorted({seats.within(knobs.max_num_seqs + further) for further in (-1, 0, 1)})
        some_blocks = Range(
            blocks.within(round(knobs.n_kv_blocks / _NEAR_RATIO)),
            blocks.within(round(knobs.n_kv_blocks * _NEAR_RATIO)),
        ).candidates(_N_WIDE)
    return [
        replace(knobs, max_num_seqs=n_seats, n_kv_blocks=n_blocks)
        for n_seats in some_seats
        for n_blocks in some_blocks
    ]


def _open_knobs(terms: Terms) -> ServerKnobs:
    knobs = ServerKnobs(
        max_num_seqs=terms.ranges["max_num_seqs"].high,
        max_num_batched_tokens=terms.ranges["max_num_batched_tokens"].within(8192),
        n_kv_blocks=terms.ranges["n_kv_blocks"].high,
    )
    for name, value in terms.switches.items():
        knobs = knobs.with_switch(name, value=value)
    return knobs


def _step_gaps(steps: StepTable, table: RequestTable, n_requests: int) -> F64:
    """(N) Of each answer: the squared gaps between the ends of its steps, over their sum.

    NaN of one that was preempted.
    """
    ends_s = (steps.start_ns + steps.duration_ns) / 1e9
    squares = np.concatenate([[0.0], np.cumsum(np.diff(ends_s) ** 2)])
    first_s, last_s = table.first_token_ns / 1e9, table.finished_ns / 1e9
    # Ends of steps are whole nanoseconds: half of one to either side finds them after the division.
    start, end = (
        np.clip(np.searchsorted(ends_s, at_s - 5e-10), 0, len(ends_s) - 1)
        for at_s in (first_s, last_s)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        gap_s = (squares[end] - squares[start]) / (last_s - first_s)
    is_plain = (end > start) & (table.n_preemptions == 0) & (table.first_token_ns >= 0)
    return np.concatenate(
        [np.where(is_plain, gap_s, np.nan), np.full(n_requests - len(gap_s), np.nan)]
    )


def _cell_means(values: F64, cells: I64) -> F64:
    """The means of the finite values of the cells that have any."""
    is_finite = np.isfinite(values)
    n_finite = np.bincount(cells, is_finite)
    return np.asarray(
        np.bincount(cells, np.where(is_finite, values, 0.0))[n_finite > 0] / n_finite[n_finite > 0],
        dtype=np.float64,
    )


def _misfit(one: LoadLook, simulated: _Simulated) -> F64:
    """Of each cell of like requests: the mean difference in standard deviations, times the root of how many they are.

    A simulation scatters single requests at the least change of a step's time (who just misses a
    step waits for the next); their mean moves smoothly.
    """
    seen, told, found = one.seen, one.is_told, simulated.latencies
    step_s = float(np.nanmedian(seen.tpot_s))
    ttft = (found.ttft_s[told] - seen.ttft_s[told]) / (
        0.5 * step_s + _TTFT_RATIO * seen.ttft_s[told]
    )
    expected = np.hypot(_TPOT_RATIO, 0.5 / np.maximum(one.output_tokens[told] - 1.0, 1.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.log(found.tpot_s[told] / seen.tpot_s[told]) / expected
    is_paced = (one.output_tokens[told] > 1) & (seen.tpot_s[told] > 0)
    kinds = [ttft, np.where(is_paced, tpot, 0.0)]
    if one.gap_s is not None and simulated.gap_s is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            gap = np.log(simulated.gap_s[told] / one.gap_s[told]) / np.hypot(
                _GAP_RATIO, 1 / np.maximum(one.output_tokens[told] - 1.0, 1.0)
            )
        kinds.append(np.nan_to_num(gap, nan=0.0))
    cells = cells_of(one)
    root = np.sqrt(np.bincount(cells))
    means = [
        np.bincount(cells, np.clip(np.nan_to_num(kind, nan=_LOST), -_LOST, _LOST)) / root
        for kind in kinds
    ]
    return np.asarray(np.concatenate(means), dtype=np.float64)
