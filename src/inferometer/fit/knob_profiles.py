"""Between which values does each limit of a server lie, and what does each switch? Profile likelihood, group by group.

At each value the step times may give way a little, along slopes that are known by then. A value is out where the groups of neighbouring
requests say so one after the other, not where one of them does. Letters of shapes: N misfits, K unknowns.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from inferometer.fit.black_box import Explained
from inferometer.fit.inverse import costs, differences, downhill
from inferometer.fit.server_knobs import LIMITS, Limit, ServerKnobs, Switch
from inferometer.records.types import F64

_Z_OUT: Final = 1.645
_LEAST_COST: Final = 1.35
"""Half of the 90 % quantile of chi squared with one degree of freedom."""
_SCATTER_FRACTION: Final = 0.15
"""Of the best cost: at the least change of a step's time it scatters by a tenth, and a search ends near the best, not at it."""
_BESIDE_FRACTION: Final = 0.015
_N_YIELDS: Final = 2
_LARGEST_YIELD: Final = 0.1
_NEAR_RATIO: Final = 1.01
"""An end of an interval is found this closely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitInterval:
    """What the load tests say of a limit: it is in [low, high]; ``high`` None: it was never reached."""

    name: Limit
    best: int
    low: int
    high: int | None
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


class Profiles:
    """Asks what else might be, of load tests that are explained."""

    def __init__(self, explained: Explained) -> None:
        box, x = explained.box, explained.solution.x
        self._box, self._knobs, self._x, self._turned = box, explained.knobs, x, explained.turned
        self._slopes = differences(box.misfit(explained.knobs), x, box.unknowns)
        self._groups = np.unique(box.groups(), return_inverse=True)[1]
        self._best = self._cost_of_groups(self._yielded(explained.knobs))

    def interval(self, name: Limit) -> LimitInterval:
        """Between which values does the limit lie?"""
        whole, best = self._box.terms.ranges[name], int(getattr(self._knobs, name))

        def may_be(value: int) -> bool:
            return any(self._may_be(knobs) for knobs in self._beside(name, value))

        is_open = whole.low < whole.high and may_be(whole.high)
        is_likely_inside = whole.low < best < whole.high and self._more(self._knobs.with_limit(name, whole.high)) > _LEAST_COST
        is_low_in = whole.low == best or may_be(whole.low)
        return LimitInterval(
            name=name,
            best=best,
            low=whole.low if is_low_in else _edge(may_be, whole.low, best),
            high=None if is_open else whole.high if whole.low == whole.high else _edge(may_be, whole.high, best),
            is_bounded_below=not is_low_in,
            is_likely_inside=is_likely_inside,
        )

    def verdict(self, name: Switch) -> SwitchVerdict:
        """Might it as well be in the other position?"""
        other = self._turned[name]
        seen = min(self._box.misfit(other.knobs)(other.x), self._yielded(other.knobs), key=lambda misfit: float(costs(misfit).sum()))
        return SwitchVerdict(name=name, best=bool(getattr(self._knobs, name)), is_decided=not self._is_as_good(seen))

    def _beside(self, name: Limit, value: int) -> Iterator[ServerKnobs]:
        """The limit at this value, the others as they are; then one of those a little lower or higher: limits stand in for one another."""
        knobs = self._knobs.with_limit(name, value)
        yield knobs
        for other in LIMITS:
            now, whole = int(getattr(knobs, other)), self._box.terms.ranges[other]
            for moved in (
                whole.within(now - max(round(_BESIDE_FRACTION * now), 1)),
                whole.within(now + max(round(_BESIDE_FRACTION * now), 1)),
            ):
                if other != name and moved != now:
                    yield knobs.with_limit(other, moved)

    def _may_be(self, knobs: ServerKnobs) -> bool:
        return self._is_as_good(self._yielded(knobs))

    def _more(self, knobs: ServerKnobs) -> float:
        return float((self._cost_of_groups(self._yielded(knobs)) - self._best).sum())

    def _is_as_good(self, misfit: F64) -> bool:
        more = self._cost_of_groups(misfit) - self._best
        scattered = max(_LEAST_COST, _SCATTER_FRACTION * float(self._best.sum()))
        return float(more.sum()) <= max(scattered, _Z_OUT * float(more.std()) * math.sqrt(len(more)))

    def _yielded(self, knobs: ServerKnobs) -> F64:
        """The misfits with these knobs, the step times having given way as far as that helps."""
        misfit, unknowns, x = self._box.misfit(knobs), self._box.unknowns, self._x
        seen = misfit(x)
        for _ in range(_N_YIELDS):
            gradient, curvature = downhill(seen, self._slopes, x, unknowns)
            x = x - np.clip(np.linalg.solve(curvature, gradient), -_LARGEST_YIELD, _LARGEST_YIELD)
            tried = misfit(x)
            if costs(tried).sum() >= costs(seen).sum():
                break
            seen = tried
        return seen

    def _cost_of_groups(self, misfit: F64) -> F64:
        return np.asarray(np.bincount(self._groups, costs(misfit)), dtype=np.float64)


def _edge(may_be: Callable[[int], bool], outside: int, inside: int) -> int:
    """The last value that may be, on the way to one that may not: bisected, and taken a little too far rather than too near."""
    while abs(outside - inside) > 1 and max(outside, inside) > _NEAR_RATIO * min(outside, inside):
        between = round(math.sqrt(outside * inside)) if abs(outside - inside) > 2 else (outside + inside) // 2
        if between in {outside, inside}:
            break
        if may_be(between):
            inside = between
        else:
            outside = between
    return inside if abs(outside - inside) <= 1 else outside


__all__ = ["LimitInterval", "Profiles", "SwitchVerdict"]
