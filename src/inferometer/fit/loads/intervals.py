"""Intervals of a server's limits, verdicts on its switches, and draws of whole servers.

Profile likelihood (Venzon and Moolgavkar 1988), group by group: at each value of a limit the step
times are re-optimised a little, along slopes that are known from the search. A value is excluded
where the groups of neighbouring requests disagree with it consistently, not where one of them does.
Letters of shapes: N residuals, K unknowns, G groups.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from inferometer.fit.loads.search import Candidate, Explanation
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
from inferometer.fit.map import central_differences, draws_of, gradient_and_curvature, student_loss
from inferometer.records.columns import F64

_Z_OUT: Final = 1.645
_LEAST_COST: Final = 1.35
"""Half of the 90 % quantile of chi squared with one degree of freedom."""
_SCATTER_FRACTION: Final = 0.15
"""Of the lowest loss: it scatters by a tenth at the least change of a step's time, and a search
ends near the best, not at it."""
_BESIDE_FRACTION: Final = 0.015
_HOPELESS_RATIO: Final = 3.0
"""Ratio of losses above which a value is excluded, whatever the other limits are."""
_SURE_RATIO: Final = 2.0
"""A switch is decided if its other position is this much worse: on a real server the closed form's
errors may favour either position by more than chance does."""
_N_YIELDS: Final = 2
_LARGEST_YIELD: Final = 0.1
_SHARES: Final = (1.0, 0.5, 0.25, 0.0)
"""Shares of a draw's move that are tried: what the load tests exclude is tried nearer to the
best."""
_NEAR_RATIO: Final = 1.01
"""Relative precision of the end of an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitInterval:
    """A limit is in [low, high], by the load tests.

    Where it was never reached, ``high`` is what the device's memory allows, or None.
    """

    name: Limit
    best: int
    low: int
    high: int | None
    is_reached: bool
    is_likely_inside: bool
    """No limit at all explains the load tests too, but the best value does so better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchVerdict:
    """The position of a switch; undecided where both positions explain the load tests."""

    name: Switch
    best: bool
    is_decided: bool


class _Reoptimised(NamedTuple):
    """Step times re-optimised for other knobs, and the residuals there."""

    x: F64
    residuals: F64


class Profiles:
    """Profile likelihoods of the limits and switches around the best server."""

    def __init__(self, explanation: Explanation) -> None:
        problem, x = explanation.problem, explanation.posterior.x
        self._problem, self._knobs, self._x, self._switched = (
            problem,
            explanation.knobs,
            x,
            explanation.switched,
        )
        self._slopes = central_differences(problem.residuals(explanation.knobs), x, problem.prior)
        self._groups = np.unique(problem.groups(), return_inverse=True)[1]
        self._best = self._loss_by_group(self._reoptimised(explanation.knobs).residuals)

    def interval(self, name: Limit) -> LimitInterval:
        """The 90 % interval of a limit."""
        whole, best = self._problem.space.ranges[name], int(getattr(self._knobs, name))
        bests = [int(getattr(candidate.knobs, name)) for candidate in self._candidates]

        def is_possible(value: int) -> bool:
            return any(self._is_possible(candidate, name, value) for candidate in self._candidates)

        is_open = whole.low < whole.high and is_possible(whole.high)
        is_likely_inside = (
            whole.low < best < whole.high
            and self._extra_loss(self._knobs.with_limit(name, whole.high)) > _LEAST_COST
        )
        is_low_in = whole.low == best or is_possible(whole.low)
        return LimitInterval(
            name=name,
            best=best,
            low=whole.low if is_low_in else _edge(is_possible, whole.low, min(bests)),
            high=(
                self._largest_possible(name)
                if is_open
                else (
                    whole.high
                    if whole.low == whole.high
                    else _edge(is_possible, whole.high, max(bests))
                )
            ),
            is_reached=not is_open,
            is_likely_inside=is_likely_inside,
        )

    def _largest_possible(self, name: Limit) -> int | None:
        """The most that the device's memory allows."""
        return self._problem.space.most_blocks if name == "n_kv_blocks" else None

    def verdict(self, name: Switch) -> SwitchVerdict:
        """Verdict on a switch: on, off, or undecided."""
        return SwitchVerdict(
            name=name,
            best=bool(getattr(self._knobs, name)),
            is_decided=self._equally_good(self._switched[name], _SURE_RATIO) is None,
        )

    @cached_property
    def _candidates(self) -> tuple[Candidate, ...]:
        """The best server, and those with an undecided switch flipped: a limit may differ there."""
        others = (self._equally_good(candidate) for candidate in self._switched.values())
        return (
            Candidate(self._knobs, self._x),
            *(candidate for candidate in others if candidate is not None),
        )

    def _equally_good(self, candidate: Candidate, most_ratio: float = 1.0) -> Candidate | None:
        """The server with these knobs if it explains the load tests as well, else None."""
        starts = (candidate, Candidate(candidate.knobs, self._x))
        return next(
            (
                one
                for one in starts
                if self._excess_ratio(self._reoptimised(one.knobs, one.x).residuals) <= most_ratio
            ),
            None,
        )

    def _is_possible(self, candidate: Candidate, name: Limit, value: int) -> bool:
        """Is this value possible for a limit, with the other limits at or near their estimates?"""
        if (
            name == "max_num_batched_tokens"
            and not candidate.knobs.enable_chunked_prefill
            and value < self._problem.space.max_model_len
        ):
            return False  # vLLM does not start: whole prompts would not fit into a step
        knobs = candidate.knobs.with_limit(name, value)
        plain_ratio = self._excess_ratio(self._reoptimised(knobs, candidate.x).residuals)
        beside = (
            self._is_equally_good(self._reoptimised(moved, candidate.x).residuals)
            for moved in self._with_neighbours(knobs, name)
        )
        return plain_ratio <= 1 or (plain_ratio < _HOPELESS_RATIO and any(beside))

    def unknowns_at(self, knobs: ServerKnobs, off: F64, weights: F64) -> F64 | None:
        """Step times of a draw with these knobs: the best ones moved by ``off``, if possible.

        The move is shortened as far as the load tests demand; None if they exclude the knobs.
        ``weights`` (G) of mean 1 reweight the groups (Bayesian bootstrap, Rubin 1981): another
        load test would have given other residuals.
        """
        switched = (
            candidate
            for candidate in self._switched.values()
            if _switches(candidate.knobs) == _switches(knobs)
        )
        x = next(switched, Candidate(self._knobs, self._x)).x
        for share in _SHARES:
            found = self._reoptimised(knobs, x + share * off, np.sqrt(weights)[self._groups])
            if self._is_equally_good(self._problem.residuals(knobs)(found.x)):
                return found.x
        return None

    @property
    def n_groups(self) -> int:
        """Number of groups of residuals."""
        return int(self._groups.max()) + 1

    def _with_neighbours(self, knobs: ServerKnobs, name: Limit) -> Iterator[ServerKnobs]:
        """Variants with one other limit a little lower or higher, since limits can compensate."""
        for other in LIMITS:
            now, whole = int(getattr(knobs, other)), self._problem.space.ranges[other]
            step = max(round(_BESIDE_FRACTION * now), 1)
            for moved in (whole.within(now - step), whole.within(now + step)):
                if other != name and moved != now:
                    yield knobs.with_limit(other, moved)

    def _extra_loss(self, knobs: ServerKnobs) -> float:
        return float((self._loss_by_group(self._reoptimised(knobs).residuals) - self._best).sum())

    def _is_equally_good(self, residuals: F64) -> bool:
        return self._excess_ratio(residuals) <= 1

    def _excess_ratio(self, residuals: F64) -> float:
        """Excess loss over the best, relative to what is significant.

        Residuals larger than expected are the model's fault, not chance. A wrong model may favour a
        wrong limit, so the threshold grows with the scatter.
        """
        more = self._loss_by_group(residuals) - self._best
        scattered = max(_LEAST_COST, _SCATTER_FRACTION * float(self._best.sum())) * max(
            self._problem.scatter_ratio, 1.0
        )
        return float(more.sum()) / max(scattered, _Z_OUT * float(more.std()) * math.sqrt(len(more)))

    def _reoptimised(
        self, knobs: ServerKnobs, start: F64 | None = None, root_weights: F64 | float = 1.0
    ) -> _Reoptimised:
        """Residuals with these knobs after two Gauss-Newton steps of the step times."""
        residuals = self._problem.residuals(knobs)
        prior = self._problem.prior
        slopes = self._slopes * np.reshape(root_weights, (-1, 1))
        x = self._x if start is None else start
        seen = residuals(x) * root_weights
        for _ in range(_N_YIELDS):
            gradient, curvature = gradient_and_curvature(seen, slopes, x, prior)
            moved = prior.clipped(
                x - np.clip(np.linalg.solve(curvature, gradient), -_LARGEST_YIELD, _LARGEST_YIELD)
            )
            tried = residuals(moved) * root_weights
            if student_loss(tried).sum() >= student_loss(seen).sum():
                break
            x, seen = moved, tried
        return _Reoptimised(x, seen)

    def _loss_by_group(self, residuals: F64) -> F64:
        return np.asarray(np.bincount(self._groups, student_loss(residuals)), dtype=np.float64)


def _switches(knobs: ServerKnobs) -> tuple[bool, ...]:
    return tuple(getattr(knobs, name) for name in SWITCHES)


def _edge(is_possible: Callable[[int], bool], outside: int, inside: int) -> int:
    """The last possible value on the way to an impossible one: bisected, and rounded outwards."""
    while abs(outside - inside) > 1 and max(outside, inside) > _NEAR_RATIO * min(outside, inside):
        between = (
            round(math.sqrt(outside * inside))
            if abs(outside - inside) > 2
            else (outside + inside) // 2
        )
        if between in {outside, inside}:
            break
        if is_possible(between):
            inside = between
        else:
            outside = between
    return inside if abs(outside - inside) <= 1 else outside


N_DRAWS: Final = 19
"""The true server is as likely as any draw, so it lies below or above all of them one time in
ten."""
_MOST_TRIES: Final = 4 * N_DRAWS
_OPEN_RATIO: Final = 4
"""A limit without an upper end is drawn up to this many times what a simulation assumes."""
_BESIDE_STEPS: Final = ("blend_ratio", FRONT_END)
_SEED: Final = 20261122


def draw_servers(
    profiles: Profiles, explanation: Explanation, knobs: Sequence[KnobFit]
) -> tuple[ServerDraw, ...]:
    """Equally likely servers: limits, switches, step times and front-end delay drawn together.

    Limits are drawn from their intervals and rejected where, all together, they contradict the load
    tests; step times are re-optimised for them and scatter by their posterior. All steps of a draw
    are also slower or faster by the error that the simulation leaves. If few combinations of limits
    are possible, those repeat. If no other server is possible the result is empty: 19 times the
    best server would be an interval of no width, and the two ends of its step times say more.
    """
    posterior, prior = explanation.posterior, explanation.problem.prior
    inexactness_ratio = explanation.problem.residual(explanation.candidate).tpot_ratio
    is_of_steps = np.array([name not in _BESIDE_STEPS for name in prior.names])
    rng = np.random.default_rng(_SEED)
    moves = draws_of(posterior, prior, _MOST_TRIES) - posterior.x
    kept = list[ServerDraw]()
    for off in moves:
        values: dict[str, Any] = {knob.name: _drawn(knob, rng) for knob in knobs}
        drawn = ServerKnobs(**values)
        x = profiles.unknowns_at(drawn, off, rng.exponential(size=profiles.n_groups))
        if x is not None:
            kept.append(
                _server_draw(
                    drawn,
                    prior.clipped(x + inexactness_ratio * rng.standard_normal() * is_of_steps),
                    knobs,
                )
            )
        if len(kept) == N_DRAWS:
            break
    return tuple(kept[i % len(kept)] for i in range(N_DRAWS)) if kept else ()


def _server_draw(drawn: ServerKnobs, x: F64, knobs: Sequence[KnobFit]) -> ServerDraw:
    return ServerDraw(
        knobs={knob.name: getattr(drawn, knob.name) for knob in knobs},
        parameters=tuple(np.exp(x).tolist()),
    )


def _drawn(knob: KnobFit, rng: np.random.Generator) -> int | bool:
    """A value of this limit or switch that the load tests leave open."""
    if isinstance(knob.value, bool):
        return knob.value if knob.informed_by != "assumed" else bool(rng.random() < 0.5)
    if knob.low is None:
        return knob.value
    high = _OPEN_RATIO * max(knob.value, knob.low) if knob.high is None else knob.high
    return round(float(np.exp(rng.uniform(np.log(knob.low), np.log(high)))))
