"""Most likely limits and step times of a server, given its load tests, by inverse simulation.

Limits (max_num_seqs, KV blocks, step budget), switches and step times explain one another: what a
limit explains need not be explained by slow steps, and the other way round. So they are searched in
turn, all runs together. Limits are scanned, because a simulation has no slope along them; step
times are searched downhill (``fit.map``).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from inferometer.fit.loads.load_tests import Latencies, ServedLoad, cells_of, groups_of, latencies
from inferometer.fit.loads.server import (
    LIMITS,
    SWITCHES,
    Limit,
    Range,
    SearchSpace,
    ServerKnobs,
    StepPrior,
    Switch,
    config_of,
    steps_at,
)
from inferometer.fit.map import (
    Optimum,
    Posterior,
    Prior,
    Residuals,
    maximise,
    refined,
    student_loss,
)
from inferometer.records.columns import F64, I64, Bools
from inferometer.records.types import RequestTable, StepTable
from inferometer.simulate.run import simulate

_TPOT_RATIO: Final = 0.02
_TTFT_RATIO: Final = 0.1
"""Standard deviation of a single request around the simulation: these shares of TPOT and of TTFT,
and half a step besides."""
_GAP_RATIO: Final = 0.1
"""The same for the gap that an instant lies in: single gaps vary with the machine, too."""
_LOST: Final = 20.0
"""Residual of a request that the simulation did not finish."""
_LEAST_SCATTER_RATIO: Final = 0.1
_MAX_TURNS: Final = 8
_N_WIDE_TURNS: Final = 2
_N_WIDE: Final = 9
_N_NEAR: Final = 5
_NEAR_RATIO: Final = 1.25
_N_ZOOMS: Final = 3
_SWITCHED_RATIOS: Final[Mapping[Switch, float]] = {
    "enable_prefix_caching": 0.8,
    "enable_chunked_prefill": 0.8,
    "async_scheduling": 0.97,
}
"""A switch leaves its default only if that lowers the loss to this share: the loss scatters by a
tenth at the least change. Few servers have the first two off; the third depends on the device and
on other features."""
_NEARLY_AS_GOOD_RATIO: Final = 1.25
"""A flipped switch whose loss is below this share of the best is searched on."""
_CONVERGED_RATIO: Final = 0.97
"""The search ends when another turn does not lower the loss to this share."""
_FIRST_BUDGETS: Final = (512, 2048, 8192)
_HELD_RATIOS: Final = (1.0, 1.25)
"""KV blocks that a search starts from, in those of the prompts in flight: their answers need some,
too."""
_USUAL_BUDGETS: Final = (512, 1024, 2048, 4096, 8192, 16384)


class Candidate(NamedTuple):
    """A server: limits and switches, and logarithms of step times and front-end delay."""

    knobs: ServerKnobs
    x: F64


class Residual(NamedTuple):
    """Root mean square log error of the mean latency of similar requests: 0.1 is 10 %."""

    ttft_ratio: float
    tpot_ratio: float


class _Simulated(NamedTuple):
    """Simulated latencies of a load test, and gaps (N) as in ``ServedLoad.gap_s``."""

    latencies: Latencies
    gap_s: F64 | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProblem:
    """Load tests, prior of the step times, and the space of limits: all that a search needs."""

    loads: tuple[ServedLoad, ...]
    step_prior: StepPrior
    space: SearchSpace
    scatter_ratio: float = 1.0
    """Scatter of the residuals, in what was expected; 1 before the first search."""

    @property
    def prior(self) -> Prior:
        """Prior of the steps' times and the front end's delay."""
        return self.step_prior.prior

    def groups(self) -> I64:
        """Group of each residual: neighbours in time are correlated."""
        return np.concatenate(
            [
                np.tile(groups_of(one), 2 if one.gap_s is None else 3) + 1000 * i
                for i, one in enumerate(self.loads)
            ]
        )

    def residuals(self, knobs: ServerKnobs) -> Residuals:
        """The residuals of these knobs, as a function of the step times."""
        return lambda x: (
            np.concatenate([_residuals(one, self._simulated(one, knobs, x)) for one in self.loads])
            / self.scatter_ratio
        )

    def loss(self, candidate: Candidate) -> float:
        """Negative log likelihood, less that of a perfect fit."""
        return float(student_loss(self.residuals(candidate.knobs)(candidate.x)).sum())

    def residual(self, candidate: Candidate) -> Residual:
        """Systematic error that is left: no closed form of a few numbers is a server."""
        ttft, tpot = list[F64](), list[F64]()
        for one in self.loads:
            found = self._simulated(one, candidate.knobs, candidate.x).latencies
            reported = one.is_used
            cells = cells_of(one)
            with np.errstate(divide="ignore", invalid="ignore"):
                tpot.append(
                    _cell_means(np.log(found.tpot_s[reported] / one.seen.tpot_s[reported]), cells)
                )
                ttft.append(
                    _cell_means(np.log(found.ttft_s[reported] / one.seen.ttft_s[reported]), cells)
                )
        return Residual(
            *(float(np.sqrt(np.mean(np.concatenate(cells) ** 2))) for cells in (ttft, tpot))
        )

    def alone(self, index: int) -> "ServerProblem":
        """The problem with one of the load tests only."""
        return replace(self, loads=(self.loads[index],))

    def _simulated(self, one: ServedLoad, knobs: ServerKnobs, x: F64) -> _Simulated:
        has_contents = one.has_shared_prefixes and knobs.enable_prefix_caching
        config = config_of(knobs, self.space, has_contents=has_contents)
        requested = one.demand(math.exp(x[-1]), self.space.block_tokens, has_contents=has_contents)
        found = simulate(
            requested, config, steps_at(self.step_prior.base, x), record_steps=one.gap_s is not None
        )
        gap_s = (
            None
            if found.steps is None
            else _step_gaps(found.steps, found.requests, len(one.requests.status))
        )
        return _Simulated(latencies(one.requests, found.requests), gap_s)


class Explanation(NamedTuple):
    """The server that explains the load tests best."""

    problem: ServerProblem
    """Problem with the residuals' scatter at the solution."""
    knobs: ServerKnobs
    posterior: Posterior
    switched: Mapping[Switch, Candidate]
    """The best server with one switch flipped, for each switch that the server did not report."""

    @property
    def candidate(self) -> Candidate:
        """Knobs and step times."""
        return Candidate(self.knobs, self.posterior.x)


def explain(problem: ServerProblem) -> Explanation:
    """Find the most likely limits, switches and step times, and the posterior of the step times."""
    alternated = [_alternated(problem, opening) for opening in _openings(problem)]
    candidate = min(alternated, key=problem.loss)
    switched: dict[Switch, Candidate] = {}
    for _ in range(_MAX_TURNS):
        switched = {
            name: _switched(problem, candidate, name, alternated)
            for name in SWITCHES
            if name not in problem.space.switches
        }
        switched |= _searched_near(problem, candidate, switched)
        better = [
            one for name, one in switched.items() if _is_better(problem, candidate, name, one)
        ]
        if not better:
            break
        candidate = min(better, key=problem.loss)
    seen = problem.residuals(candidate.knobs)(candidate.x)
    scatter = max(float(np.sqrt(np.mean(seen**2))), _LEAST_SCATTER_RATIO)
    problem = replace(problem, scatter_ratio=scatter)
    found = Optimum(candidate.x, seen / scatter, 0)
    posterior = refined(problem.residuals(candidate.knobs), problem.prior, problem.groups(), found)
    return Explanation(
        problem=problem, knobs=candidate.knobs, posterior=posterior, switched=switched
    )


def _searched_near(
    problem: ServerProblem, candidate: Candidate, switched: Mapping[Switch, Candidate]
) -> dict[Switch, Candidate]:
    """Nearly as good servers with a switch flipped, optimised like the best one.

    Its limits and step times were found with the switch as it is: it would win by that alone.
    """
    loss = problem.loss(candidate)
    return {
        name: min(one, _alternated(problem, one), key=problem.loss)
        for name, one in switched.items()
        if problem.loss(one) < loss * _NEARLY_AS_GOOD_RATIO and problem.loss(one) != loss
    }


def _is_better(
    problem: ServerProblem, candidate: Candidate, name: Switch, flipped: Candidate
) -> bool:
    """Does the flipped switch lower the loss by more than another search could?"""
    least = problem.loss(flipped) / _SWITCHED_RATIOS[name]
    if problem.loss(candidate) <= least:
        return False
    back = flipped.knobs.with_switch(name, value=not getattr(flipped.knobs, name))
    return problem.loss(_alternated(problem, Candidate(back, flipped.x))) > least


def _openings(problem: ServerProblem) -> list[Candidate]:
    """Starting points of searches, from all load tests but the busiest, least affected by limits.

    Where prompts share prefixes, one search starts with a prefix cache and one without: what a
    cache finds must otherwise be computed, and held twice.
    """
    by_wait = np.argsort([np.nanmedian(one.seen.ttft_s) for one in problem.loads])
    quiet = replace(
        problem, loads=tuple(problem.loads[i] for i in by_wait[: max(len(by_wait) - 1, 1)])
    )
    knobs, budgets = _open_knobs(problem.space), problem.space.ranges["max_num_batched_tokens"]
    openings = [knobs]
    if "enable_prefix_caching" not in problem.space.switches and any(
        one.has_shared_prefixes for one in problem.loads
    ):
        openings.append(knobs.with_switch("enable_prefix_caching", value=False))
    tried = sorted({budgets.within(value) for value in _FIRST_BUDGETS})
    return [_opening(quiet, one, tried) for one in openings]


def _opening(problem: ServerProblem, knobs: ServerKnobs, budgets: Sequence[int]) -> Candidate:
    """Step times and budget that fit best with limits open, or as tight as the peak load allows.

    Open limits alone would do where no load test reaches a limit. Where every one does, no step
    times explain the requests with limits open, and a search from there ends far from the truth.
    """
    ranges = problem.space.ranges
    first = knobs.with_limit("max_num_batched_tokens", budgets[len(budgets) // 2])
    tight = (
        first.with_limit(
            "max_num_seqs", ranges["max_num_seqs"].within(ranges["max_num_seqs"].low + 1)
        ),
        *(
            first.with_limit(
                "n_kv_blocks",
                ranges["n_kv_blocks"].within(round(ratio * problem.space.held_blocks)),
            )
            for ratio in _HELD_RATIOS
        ),
    )
    found = [_searched(problem, one) for one in dict.fromkeys((first, *tight))]
    best = min(found, key=problem.loss)
    others = (
        best.knobs.with_limit("max_num_batched_tokens", value)
        for value in budgets
        if value != first.max_num_batched_tokens
    )
    return min((best, *(_searched(problem, one) for one in others)), key=problem.loss)


def _searched(problem: ServerProblem, knobs: ServerKnobs) -> Candidate:
    return Candidate(knobs, maximise(problem.residuals(knobs), problem.prior).x)


def _alternated(problem: ServerProblem, candidate: Candidate) -> Candidate:
    """Alternate between limits and step times until neither improves (coordinate descent)."""
    looks_wide, is_last = _N_WIDE_TURNS, False
    for _ in range(_MAX_TURNS):
        knobs = scan(problem, candidate, is_wide=looks_wide > 0)
        found = Candidate(knobs, maximise(problem.residuals(knobs), problem.prior, candidate.x).x)
        gains = problem.loss(found) < problem.loss(candidate) * _CONVERGED_RATIO
        candidate = min(candidate, found, key=problem.loss)
        if not gains and is_last:
            break
        looks_wide, is_last = (looks_wide - 1, False) if gains else (1, True)
    return candidate


def _switched(
    problem: ServerProblem, candidate: Candidate, name: Switch, alternated: list[Candidate]
) -> Candidate:
    """The best server with this switch flipped: searched from here, or an earlier search's end."""
    knobs = candidate.knobs.with_switch(name, value=not getattr(candidate.knobs, name))
    there = [
        one
        for one in alternated
        if all(getattr(one.knobs, switch) == getattr(knobs, switch) for switch in SWITCHES)
    ]
    if problem.loss(Candidate(knobs, candidate.x)) == problem.loss(candidate):
        return Candidate(knobs, candidate.x)
    return min(
        (
            Candidate(knobs, maximise(problem.residuals(knobs), problem.prior, candidate.x).x),
            *there,
        ),
        key=problem.loss,
    )


def scan(problem: ServerProblem, start: Candidate, *, is_wide: bool) -> ServerKnobs:
    """The limits that fit best with these step times.

    Max_num_seqs and KV blocks are scanned together, because one can stand in for the other; then
    each limit by itself.
    """
    pairs = _pairs(problem.space, start.knobs, is_wide=is_wide)
    knobs = min((start.knobs, *pairs), key=lambda one: problem.loss(Candidate(one, start.x)))
    for name in LIMITS:
        knobs = _best_limit(problem, Candidate(knobs, start.x), name, is_wide=is_wide)
    return knobs


def _best_limit(
    problem: ServerProblem, candidate: Candidate, name: Limit, *, is_wide: bool
) -> ServerKnobs:
    """Scan the whole range, or near the best so far; then zoom in around the best."""
    whole, now = problem.space.ranges[name], int(getattr(candidate.knobs, name))
    loss_of = {now: problem.loss(candidate)}
    looked_at = (
        whole
        if is_wide
        else Range(whole.within(round(now / _NEAR_RATIO)), whole.within(round(now * _NEAR_RATIO)))
    )
    requested = [
        *looked_at.candidates(_N_WIDE if is_wide else _N_NEAR),
        *(_USUAL_BUDGETS if name == "max_num_batched_tokens" and is_wide else ()),
    ]
    for _ in range(_N_ZOOMS):
        for value in map(whole.within, requested):
            if value not in loss_of:
                loss_of[value] = problem.loss(
                    Candidate(candidate.knobs.with_limit(name, value), candidate.x)
                )
        values = sorted(loss_of)
        best = values.index(min(values, key=loss_of.__getitem__))
        requested = Range(
            values[max(best - 1, 0)], values[min(best + 1, len(values) - 1)]
        ).candidates(_N_NEAR)
    least = min(loss_of.values())
    return candidate.knobs.with_limit(
        name,
        (
            now
            if loss_of[now] <= least
            else max(value for value, loss in loss_of.items() if loss <= least)
        ),
    )


def _pairs(space: SearchSpace, knobs: ServerKnobs, *, is_wide: bool) -> list[ServerKnobs]:
    """Pairs of max_num_seqs and KV blocks on a grid, over the whole space or near these."""
    max_num_seqs, blocks = space.ranges["max_num_seqs"], space.ranges["n_kv_blocks"]
    if is_wide:
        some_seqs, some_blocks = max_num_seqs.candidates(_N_WIDE), blocks.candidates(_N_WIDE)
    else:
        some_seqs = sorted(
            {max_num_seqs.within(knobs.max_num_seqs + further) for further in (-1, 0, 1)}
        )
        some_blocks = Range(
            blocks.within(round(knobs.n_kv_blocks / _NEAR_RATIO)),
            blocks.within(round(knobs.n_kv_blocks * _NEAR_RATIO)),
        ).candidates(_N_WIDE)
    return [
        replace(knobs, max_num_seqs=n_seqs, n_kv_blocks=n_blocks)
        for n_seqs in some_seqs
        for n_blocks in some_blocks
    ]


def _open_knobs(space: SearchSpace) -> ServerKnobs:
    knobs = ServerKnobs(
        max_num_seqs=space.ranges["max_num_seqs"].high,
        max_num_batched_tokens=space.ranges["max_num_batched_tokens"].within(8192),
        n_kv_blocks=space.ranges["n_kv_blocks"].high,
    )
    for name, value in space.switches.items():
        knobs = knobs.with_switch(name, value=value)
    return knobs


def _step_gaps(steps: StepTable, table: RequestTable, n_requests: int) -> F64:
    """(N) Squared gaps between the ends of an answer's steps, over their sum; NaN if preempted."""
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
    """Means of the finite values of each cell that has any."""
    is_finite = np.isfinite(values)
    n_finite = np.bincount(cells, is_finite)
    return np.asarray(
        np.bincount(cells, np.where(is_finite, values, 0.0))[n_finite > 0] / n_finite[n_finite > 0],
        dtype=np.float64,
    )


def _residuals(one: ServedLoad, simulated: _Simulated) -> F64:
    """Mean residual of each cell of similar requests, times the root of their number.

    A single simulated request jumps at the least change of a step's time (one that just misses a
    step waits for the next); the mean over similar requests moves smoothly.
    """
    reported, found, measured = one.is_used, simulated.latencies, _measured(one)
    ttft = (found.ttft_s[reported] - measured.ttft_s) / measured.ttft_scale_s
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.log(found.tpot_s[reported] / measured.tpot_s) / measured.tpot_scale
        kinds = [ttft, np.where(measured.is_paced, tpot, 0.0)]
        if one.gap_s is not None and simulated.gap_s is not None:
            gap = np.log(simulated.gap_s[reported] / one.gap_s[reported]) / measured.gap_scale
            kinds.append(np.nan_to_num(gap, nan=0.0))
    means = [
        np.bincount(measured.cells, np.clip(np.nan_to_num(kind, nan=_LOST), -_LOST, _LOST))
        / measured.root
        for kind in kinds
    ]
    return np.asarray(np.concatenate(means), dtype=np.float64)


class _Measured(NamedTuple):
    """What residuals are of and relative to: the same for all simulations of a load test."""

    ttft_s: F64
    ttft_scale_s: F64
    tpot_s: F64
    tpot_scale: F64
    is_paced: Bools
    gap_scale: F64
    cells: I64
    root: F64
    """Root of the number of requests of each cell."""


@lru_cache(16)
def _measured(one: ServedLoad) -> _Measured:
    reported, n_gaps = one.is_used, np.maximum(one.output_tokens[one.is_used] - 1.0, 1.0)
    ttft_s, tpot_s = one.seen.ttft_s[reported], one.seen.tpot_s[reported]
    step_s = float(np.nanmedian(one.seen.tpot_s))
    cells = cells_of(one)
    return _Measured(
        ttft_s=ttft_s,
        ttft_scale_s=0.5 * step_s + _TTFT_RATIO * ttft_s,
        tpot_s=tpot_s,
        tpot_scale=np.hypot(_TPOT_RATIO, 0.5 / n_gaps),
        is_paced=(one.output_tokens[reported] > 1) & (tpot_s > 0),
        gap_scale=np.hypot(_GAP_RATIO, 1 / n_gaps),
        cells=cells,
        root=np.sqrt(np.bincount(cells)),
    )
