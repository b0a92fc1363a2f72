"""Between which values does each limit of a server lie, and what does each switch?

Profile likelihood, group by group.

At each value the step times may give way a little, along slopes that are known by then. A value is
out where the groups of neighbouring requests say so one after the other, not where one of them
does. Letters of shapes: N misfits, K unknowns.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from inferometer.fit.loads.search import Explained, Place
from inferometer.fit.loads.server import (
    FRONT_END,
    LIMITS,
    SWITCHES,
    KnobFit,
    Limit,
    ServerKnobs,
    Switch,
)
from inferometer.fit.loads.server_fit import ServerDraw
from inferometer.fit.map import costs, differences, downhill, draw
from inferometer.records.columns import F64

_Z_OUT: Final = 1.645
_LEAST_COST: Final = 1.35
"""Half of the 90 % quantile of chi squared with one degree of freedom."""
_SCATTER_FRACTION: Final = 0.15
"""Of the best cost: at the least change of a step's time it scatters by a tenth, and a search
ends near the best, not at it."""
_BESIDE_FRACTION: Final = 0.015
_HOPELESS_RATIO: Final = 3.0
"""What is so much worse is out, whatever other limits do."""
_SURE_RATIO: Final = 2.0
"""A switch is decided where its other position is so much worse: on a real server what the
closed form gets wrong may favour either by more than chance does."""
_N_YIELDS: Final = 2
_LARGEST_YIELD: Final = 0.1
_SHARES: Final = (1.0, 0.5, 0.25, 0.0)
"""Of a draw's move: what the load tests do not allow is tried nearer to the best."""
_NEAR_RATIO: Final = 1.01
"""An end of an interval is found this closely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitInterval:
    """What the load tests say of a limit: it is in [low, high].

    Where it was never reached, ``high`` is what memory allows, or None.
    """

    name: Limit
    best: int
    low: int
    high: int | None
    is_reached: bool
    is_bounded_below: bool
    """Something smaller would have shown."""
    is_likely_inside: bool
    """None at all explains the load tests too, but the best value does so better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchVerdict:
    """What the load tests say of a switch; undecided where both positions explain them alike."""

    name: Switch
    best: bool
    is_decided: bool


class _Yielded(NamedTuple):
    """Unknowns that have given way, and what is left there."""

    x: F64
    misfit: F64


class Profiles:
    """Asks what else might be, of load tests that are explained."""

    def __init__(self, explained: Explained) -> None:
        box, x = explained.box, explained.solution.x
        self._box, self._knobs, self._x, self._turned = box, explained.knobs, x, explained.turned
        self._slopes = differences(box.misfit(explained.knobs), x, box.unknowns)
        self._groups = np.unique(box.groups(), return_inverse=True)[1]
        self._best = self._cost_of_groups(self._yielded(explained.knobs).misfit)

    def interval(self, name: Limit) -> LimitInterval:
        """Between which values does the limit lie?"""
        whole, best = self._box.terms.ranges[name], int(getattr(self._knobs, name))
        bests = [int(getattr(place.knobs, name)) for place in self._places]

        def may_be(value: int) -> bool:
            return any(self._allows(place, name, value) for place in self._places)

        is_open = whole.low < whole.high and may_be(whole.high)
        is_likely_inside = (
            whole.low < best < whole.high
            and self._more(self._knobs.with_limit(name, whole.high)) > _LEAST_COST
        )
        is_low_in = whole.low == best or may_be(whole.low)
        return LimitInterval(
            name=name,
            best=best,
            low=whole.low if is_low_in else _edge(may_be, whole.low, min(bests)),
            high=(
                self._possible(name)
                if is_open
                else (
                    whole.high if whole.low == whole.high else _edge(may_be, whole.high, max(bests))
                )
            ),
            is_reached=not is_open,
            is_bounded_below=not is_low_in,
            is_likely_inside=is_likely_inside,
        )

    def _possible(self, name: Limit) -> int | None:
        """The most that the limit can be, whatever the load tests say."""
        return self._box.terms.most_blocks if name == "n_kv_blocks" else None

    def verdict(self, name: Switch) -> SwitchVerdict:
        """Might it as well be in the other position?"""
        return SwitchVerdict(
            name=name,
            best=bool(getattr(self._knobs, name)),
            is_decided=self._as_good(self._turned[name], _SURE_RATIO) is None,
        )

    @cached_property
    def _places(self) -> tuple[Place, ...]:
        """What fits best.

        And the best that is left with each switch that is open in its other position: a limit may
        be elsewhere there.
        """
        others = (self._as_good(place) for place in self._turned.values())
        return (Place(self._knobs, self._x), *(place for place in others if place is not None))

    def _as_good(self, place: Place, most_ratio: float = 1.0) -> Place | None:
        """The place, or its knobs at the step times that fit best, where that explains the load tests as well."""
        starts = (place, Place(place.knobs, self._x))
        return next(
            (
                one
                for one in starts
                if self._excess_ratio(self._yielded(one.knobs, one.x).misfit) <= most_ratio
            ),
            None,
        )

    def _allows(self, place: Place, name: Limit, value: int) -> bool:
        """Might the limit be this, the others and the switches as they are there, or the others nearly?"""
        if (
            name == "max_num_batched_tokens"
            and not place.knobs.enable_chunked_prefill
            and value < self._box.terms.max_model_len
        ):
            return False  # vLLM does not start: whole prompts would not fit into a step
        knobs = place.knobs.with_limit(name, value)
        plain_ratio = self._excess_ratio(self._yielded(knobs, place.x).misfit)
        beside = (
            self._is_as_good(self._yielded(moved, place.x).misfit)
            for moved in self._beside(knobs, name)
        )
        return plain_ratio <= 1 or (plain_ratio < _HOPELESS_RATIO and any(beside))

    def unknowns_at(self, knobs: ServerKnobs, off: F64, weights: F64) -> F64 | None:
        """Unknowns that may be, ``off`` what fits best with these knobs, as far as the load tests allow; None: it cannot be these knobs.

        ``weights`` are those of the groups (G, 1 in the mean) while the unknowns give way: other
        load tests would have said other things.
        """
        switched = (
            place for place in self._turned.values() if _switches(place.knobs) == _switches(knobs)
        )
        x = next(switched, Place(self._knobs, self._x)).x
        for share in _SHARES:
            found = self._yielded(knobs, x + share * off, np.sqrt(weights)[self._groups])
            if self._is_as_good(self._box.misfit(knobs)(found.x)):
                return found.x
        return None

    @property
    def n_groups(self) -> int:
        """Of the misfits."""
        return int(self._groups.max()) + 1

    def _beside(self, knobs: ServerKnobs, name: Limit) -> Iterator[ServerKnobs]:
        """One of the other limits a little lower or higher: limits stand in for one another."""
        for other in LIMITS:
            now, whole = int(getattr(knobs, other)), self._box.terms.ranges[other]
            step = max(round(_BESIDE_FRACTION * now), 1)
            for moved in (whole.within(now - step), whole.within(now + step)):
                if other != name and moved != now:
                    yield knobs.with_limit(other, moved)

    def _more(self, knobs: ServerKnobs) -> float:
        return float((self._cost_of_groups(self._yielded(knobs).misfit) - self._best).sum())

    def _is_as_good(self, misfit: F64) -> bool:
        return self._excess_ratio(misfit) <= 1

    def _excess_ratio(self, misfit: F64) -> float:
        """How much worse than the best, to what scatters.

        Misfits beyond what was expected are the model's fault, not chance. What it gets wrong may
        favour a wrong limit, so a limit is out only where it is worse by as much more.
        """
        more = self._cost_of_groups(misfit) - self._best
        scattered = max(_LEAST_COST, _SCATTER_FRACTION * float(self._best.sum())) * max(
            self._box.scatter_ratio, 1.0
        )
        return float(more.sum()) / max(scattered, _Z_OUT * float(more.std()) * math.sqrt(len(more)))

    def _yielded(
        self, knobs: ServerKnobs, start: F64 | None = None, root_weights: F64 | float = 1.0
    ) -> _Yielded:
        """What is left with these knobs, the step times having given way as far as that helps."""
        misfit, unknowns, slopes = (
            self._box.misfit(knobs),
            self._box.unknowns,
            self._slopes * np.reshape(root_weights, (-1, 1)),
        )
        x = self._x if start is None else start
        seen = misfit(x) * root_weights
        for _ in range(_N_YIELDS):
            gradient, curvature = downhill(seen, slopes, x, unknowns)
            moved = unknowns.possible(
                x - np.clip(np.linalg.solve(curvature, gradient), -_LARGEST_YIELD, _LARGEST_YIELD)
            )
            tried = misfit(moved) * root_weights
            if costs(tried).sum() >= costs(seen).sum():
                break
            x, seen = moved, tried
        return _Yielded(x, seen)

    def _cost_of_groups(self, misfit: F64) -> F64:
        return np.asarray(np.bincount(self._groups, costs(misfit)), dtype=np.float64)


def _switches(knobs: ServerKnobs) -> tuple[bool, ...]:
    return tuple(getattr(knobs, name) for name in SWITCHES)


def _edge(may_be: Callable[[int], bool], outside: int, inside: int) -> int:
    """The last value that may be, on the way to one that may not.

    Bisected, and taken a little too far rather than too near.
    """
    while abs(outside - inside) > 1 and max(outside, inside) > _NEAR_RATIO * min(outside, inside):
        between = (
            round(math.sqrt(outside * inside))
            if abs(outside - inside) > 2
            else (outside + inside) // 2
        )
        if between in {outside, inside}:
            break
        if may_be(between):
            inside = between
        else:
            outside = between
    return inside if abs(outside - inside) <= 1 else outside


# Which servers may as well have answered these load tests: limits, switches, step times and front
# end drawn together?
# Limits come from their intervals, and stay where the load tests, all limits at once, leave them;
# step times give way to them and scatter as far as their own doubt goes. A limit without an upper
# end is drawn far beyond what is assumed of it.


N_DRAWS: Final = 19
"""The true server is as likely as any of them: it lies below or above all of them one time in
ten."""
_MOST_TRIES: Final = 4 * N_DRAWS
_OPEN_RATIO: Final = 4
"""A limit of which no upper end is known is drawn up to so much more than a simulation takes."""
_BESIDE_STEPS: Final = ("blend_ratio", FRONT_END)
_SEED: Final = 20261122


def draw_servers(
    profiles: Profiles, explained: Explained, knobs: Sequence[KnobFit]
) -> tuple[ServerDraw, ...]:
    """Servers that are equally likely.

    Where hardly any limits go together with the load tests, those that do come again.

    None where no other server does: 19 times the likely one would be an interval of no width, and
    both ends of its step times say more. All steps of a draw are slower or faster by as much as is
    left between the load tests and their simulation.
    """
    solution, unknowns = explained.solution, explained.box.unknowns
    inexactness_ratio = explained.box.residual(explained.place).tpot_ratio
    is_of_steps = np.array([name not in _BESIDE_STEPS for name in unknowns.names])
    rng = np.random.default_rng(_SEED)
    moves = draw(solution, unknowns, _MOST_TRIES) - solution.x
    kept = list[ServerDraw]()
    for off in moves:
        values: dict[str, Any] = {knob.name: _drawn(knob, rng) for knob in knobs}
        drawn = ServerKnobs(**values)
        x = profiles.unknowns_at(drawn, off, rng.exponential(size=profiles.n_groups))
        if x is not None:
            kept.append(
                _told(
                    drawn,
                    unknowns.possible(x + inexactness_ratio * rng.standard_normal() * is_of_steps),
                    knobs,
                )
            )
        if len(kept) == N_DRAWS:
            break
    return tuple(kept[i % len(kept)] for i in range(N_DRAWS)) if kept else ()


def _told(drawn: ServerKnobs, x: F64, knobs: Sequence[KnobFit]) -> ServerDraw:
    return ServerDraw(
        knobs={knob.name: getattr(drawn, knob.name) for knob in knobs},
        parameters=tuple(np.exp(x).tolist()),
    )


def _drawn(knob: KnobFit, rng: np.random.Generator) -> int | bool:
    """A value of this limit or switch that the load tests leave open."""
    if isinstance(knob.value, bool):
        return knob.value if knob.told_by != "assumed" else bool(rng.random() < 0.5)
    if knob.low is None:
        return knob.value
    high = _OPEN_RATIO * max(knob.value, knob.low) if knob.high is None else knob.high
    return round(float(np.exp(rng.uniform(np.log(knob.low), np.log(high)))))
