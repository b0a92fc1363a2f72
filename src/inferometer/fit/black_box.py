"""Which server is it that answered these load tests so? Its step times and its limits, by inverse simulation of all runs together.

Limits and step times are looked for in turn: what a limit explains is not explained by slow steps, and the other way round. Limits are
scanned, for a simulation knows no slope along them; step times are searched downhill.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from inferometer.fit.effective_steps import StepBelief, steps_at
from inferometer.fit.inverse import Found, Misfit, Solution, Unknowns, costs, refine, search
from inferometer.fit.load_looks import LoadLook, cells_of, groups_of
from inferometer.fit.replay import Latencies, latencies
from inferometer.fit.server_knobs import LIMITS, SWITCHES, Limit, Range, ServerKnobs, Switch, Terms, config_of
from inferometer.records.types import F64, I64
from inferometer.simulate.one_engine import simulate

_TPOT_RATIO: Final = 0.02
_TTFT_RATIO: Final = 0.1
"""How closely a closed form is expected to tell single requests: fractions of TPOT and of TTFT, and half a step beside."""
_LOST: Final = 20.0
"""Misfit of a request that the simulation did not finish."""
_SCATTER_RATIOS: Final = (0.1, 5.0)
_MAX_TURNS: Final = 8
_N_WIDE_TURNS: Final = 2
_N_WIDE: Final = 9
_N_NEAR: Final = 5
_NEAR_RATIO: Final = 1.25
_N_ZOOMS: Final = 3
_TURNED_RATIO: Final = 0.8
"""A switch is taken out of its usual position for misfits that are so much smaller: they scatter by a tenth at the least change."""
_SETTLED_RATIO: Final = 0.97
"""Another turn that makes the misfits less than so much smaller is the last."""
_FIRST_BUDGETS: Final = (512, 2048, 8192)
_USUAL_BUDGETS: Final = (512, 1024, 2048, 4096, 8192, 16384)


class Place(NamedTuple):
    """Knobs and unknowns."""

    knobs: ServerKnobs
    x: F64


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
        return np.concatenate([np.tile(groups_of(one), 2) + 1000 * i for i, one in enumerate(self.looks)])

    def misfit(self, knobs: ServerKnobs) -> Misfit:
        """What is left between the load tests and their simulation, of unknowns."""
        return lambda x: np.concatenate([_misfit(one, self._simulated(one, knobs, x)) for one in self.looks]) / self.scatter_ratio

    def cost(self, place: Place) -> float:
        """How far do the load tests and their simulation lie apart?"""
        return float(costs(self.misfit(place.knobs)(place.x)).sum())

    def inexactness_ratio(self, place: Place) -> float:
        """How far off is the pace of like requests, their mean? No closed form of a few numbers is a server."""
        left = list[F64]()
        for one in self.looks:
            found, told, cells = self._simulated(one, place.knobs, place.x), one.is_told, cells_of(one)
            with np.errstate(divide="ignore", invalid="ignore"):
                pace = np.log(found.tpot_s[told] / one.seen.tpot_s[told])
            is_paced = np.isfinite(pace)
            n_paced = np.bincount(cells, is_paced)
            left.append(np.bincount(cells, np.where(is_paced, pace, 0.0))[n_paced > 0] / n_paced[n_paced > 0])
        return float(np.sqrt(np.mean(np.concatenate(left) ** 2)))

    def alone(self, index: int) -> "BlackBox":
        """One of the load tests."""
        return replace(self, looks=(self.looks[index],))

    def _simulated(self, one: LoadLook, knobs: ServerKnobs, x: F64) -> Latencies:
        has_contents = one.has_shared_prefixes and knobs.enable_prefix_caching
        config = config_of(knobs, self.terms, has_contents=has_contents)
        asked = one.demand(math.exp(x[-1]), self.terms.block_tokens, has_contents=has_contents)
        found = simulate(asked, config, steps_at(self.belief.base, x), record_steps=False)
        return latencies(one.requests, found.requests)


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
        turned = {name: _turned(box, place, name, settled) for name in SWITCHES if name not in box.terms.switches}
        better = min(turned.values(), key=box.cost, default=place)
        if box.cost(better) >= box.cost(place) * _TURNED_RATIO:
            break
        place = _settled(box, better)
    seen = box.misfit(place.knobs)(place.x)
    scatter = float(np.clip(np.sqrt(np.mean(seen**2)), *_SCATTER_RATIOS))
    box, found = replace(box, scatter_ratio=scatter), Found(place.x, seen / scatter, 0)
    refined = refine(box.misfit(place.knobs), box.unknowns, box.groups(), found)
    return Explained(box=box, knobs=place.knobs, solution=refined, turned=turned)


def _openings(box: BlackBox) -> list[Place]:
    """Where a search begins: step times of all load tests but the busiest, which limits touch least, with the step budget that suits them.

    Where prompts begin alike, with a prefix cache and without: what one finds, the other computes, and holds twice.
    """
    by_wait = np.argsort([np.nanmedian(one.seen.ttft_s) for one in box.looks])
    quiet = replace(box, looks=tuple(box.looks[i] for i in by_wait[: max(len(by_wait) - 1, 1)]))
    knobs, budgets = _open_knobs(box.terms), box.terms.ranges["max_num_batched_tokens"]
    openings = [knobs]
    if "enable_prefix_caching" not in box.terms.switches and any(one.has_shared_prefixes for one in box.looks):
        openings.append(knobs.with_switch("enable_prefix_caching", value=False))
    tried = sorted({budgets.within(value) for value in _FIRST_BUDGETS})
    return [min((_searched(quiet, one.with_limit("max_num_batched_tokens", value)) for value in tried), key=quiet.cost) for one in openings]


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
    there = [one for one in settled if all(getattr(one.knobs, switch) == getattr(knobs, switch) for switch in SWITCHES)]
    if box.cost(Place(knobs, place.x)) == box.cost(place):
        return Place(knobs, place.x)
    return min((Place(knobs, search(box.misfit(knobs), box.unknowns, place.x).x), *there), key=box.cost)


def scan(box: BlackBox, start: Place, *, is_wide: bool) -> ServerKnobs:
    """The limits that fit best with these step times: seats and memory together, for they stand in for one another, then each closely."""
    pairs = _pairs(box.terms, start.knobs, is_wide=is_wide)
    knobs = min((start.knobs, *pairs), key=lambda one: box.cost(Place(one, start.x)))
    for name in LIMITS:
        knobs = _best_limit(box, Place(knobs, start.x), name, is_wide=is_wide)
    return knobs


def _best_limit(box: BlackBox, place: Place, name: Limit, *, is_wide: bool) -> ServerKnobs:
    """Scan the range, or around the best so far; then around the best: ever smaller ranges between its neighbours."""
    whole, now = box.terms.ranges[name], int(getattr(place.knobs, name))
    costs_seen = {now: box.cost(place)}
    looked_at = whole if is_wide else Range(whole.within(round(now / _NEAR_RATIO)), whole.within(round(now * _NEAR_RATIO)))
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
        asked = Range(values[max(best - 1, 0)], values[min(best + 1, len(values) - 1)]).candidates(_N_NEAR)
    least = min(costs_seen.values())
    return place.knobs.with_limit(
        name, now if costs_seen[now] <= least else max(value for value, cost in costs_seen.items() if cost <= least)
    )


def _pairs(terms: Terms, knobs: ServerKnobs, *, is_wide: bool) -> list[ServerKnobs]:
    """Seats and KV blocks on a grid: over all that may be, or around these."""
    seats, blocks = terms.ranges["max_num_seqs"], terms.ranges["n_kv_blocks"]
    if is_wide:
        some_seats, some_blocks = seats.candidates(_N_WIDE), blocks.candidates(_N_WIDE)
    else:
        some_seats = sorted({seats.within(knobs.max_num_seqs + further) for further in (-1, 0, 1)})
        some_blocks = Range(
            blocks.within(round(knobs.n_kv_blocks / _NEAR_RATIO)), blocks.within(round(knobs.n_kv_blocks * _NEAR_RATIO))
        ).candidates(_N_WIDE)
    return [replace(knobs, max_num_seqs=n_seats, n_kv_blocks=n_blocks) for n_seats in some_seats for n_blocks in some_blocks]


def _open_knobs(terms: Terms) -> ServerKnobs:
    knobs = ServerKnobs(
        max_num_seqs=terms.ranges["max_num_seqs"].high,
        max_num_batched_tokens=terms.ranges["max_num_batched_tokens"].within(8192),
        n_kv_blocks=terms.ranges["n_kv_blocks"].high,
    )
    for name, value in terms.switches.items():
        knobs = knobs.with_switch(name, value=value)
    return knobs


def _misfit(one: LoadLook, found: Latencies) -> F64:
    """Of each cell of like requests: the mean difference in standard deviations, times the root of how many they are.

    A simulation scatters single requests at the least change of a step's time (who just misses a step waits for the next); their mean
    moves smoothly.
    """
    seen, told = one.seen, one.is_told
    step_s = float(np.nanmedian(seen.tpot_s))
    ttft = (found.ttft_s[told] - seen.ttft_s[told]) / (0.5 * step_s + _TTFT_RATIO * seen.ttft_s[told])
    expected = np.hypot(_TPOT_RATIO, 0.5 / np.maximum(one.output_tokens[told] - 1.0, 1.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.log(found.tpot_s[told] / seen.tpot_s[told]) / expected
    is_paced = (one.output_tokens[told] > 1) & (seen.tpot_s[told] > 0)
    both = (ttft, np.where(is_paced, tpot, 0.0))
    cells = cells_of(one)
    root = np.sqrt(np.bincount(cells))
    means = [np.bincount(cells, np.clip(np.nan_to_num(kind, nan=_LOST), -_LOST, _LOST)) / root for kind in both]
    return np.asarray(np.concatenate(means), dtype=np.float64)


__all__ = ["BlackBox", "Explained", "Place", "explain", "scan"]
