"""Which step times must an engine have had, if these are the times of its requests?

Inverse simulation.

No step was logged: the scheduler is simulated with candidate step times until first tokens come,
and tokens follow one another, as they were seen to. What the log does not tell stays as it was
believed, and the answer says so. Letters of shapes: N requests.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from inferometer.errors import ModelError
from inferometer.fit.loads.replay import Replay, latencies
from inferometer.fit.map import Unknowns, solve
from inferometer.perfmodel.steptime import FittedParameter, StepTimeModel, ToldBy
from inferometer.perfmodel.steptime_arrays import arrays_of
from inferometer.perfmodel.steptime_terms import PARAMETERS
from inferometer.records.columns import F64, Bools
from inferometer.records.types import RequestStatus, Run
from inferometer.records.validity import require_valid
from inferometer.simulate.demand import Demand, demand
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.run import simulate
from inferometer.stats.estimate import Z_90, Estimate

FRONT_END: Final = "front_end_s"
_FRONT_END_BELIEF: Final = (math.log(3e-3), 1.0)
"""A request spends milliseconds in HTTP, tokenising and a queue between processes before the
scheduler sees it."""

_TPOT_RATIO: Final = 0.02
_TTFT_RATIO: Final = 0.1
"""How closely a closed form is expected to tell single requests: fractions of TPOT and of TTFT,
and half a step beside."""

_LOST: Final = 20.0
"""Misfit of a request that the simulation did not finish."""

_N_GROUPS: Final = 20
_MIN_REQUESTS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFit:
    """What a request log tells of an engine."""

    model: StepTimeModel
    front_end_s: Estimate
    """Between sending and the scheduler's sight of it, the same for all."""
    misfit_ratio: float
    """Root mean square of the misfits, in the standard deviations that were expected."""
    n_requests: int
    n_simulations: int


def fit_requests(
    run: Run,
    replay: Replay,
    prior: StepTimeModel,
    *,
    keep: Bools | None = None,
    forced: bool = False,
) -> RequestFit:
    """The step times and the front end's delay that explain these requests, all arrivals being known.

    ``prior`` says by its covariance how far each free parameter may be from its value; its
    staircase stays. ``keep`` (N) names the requests whose latencies are looked at; the others only
    load the engine. Every request must have been sent in the order of the table. ``forced`` takes a
    load test that is INVALID.

    Raises
    ------
    ModelError
        The run has no requests, too few of them ended, or the prior leaves nothing open.
    MeasureError
        The run is a load test that is INVALID.
    """
    require_valid(run, forced=forced)
    table = run.requests
    if table is None:
        raise ModelError(f"run {run.manifest.run_id} has no requests", allowed="a serving run")
    seen = latencies(table, table)
    is_told = np.isin(table.status, (RequestStatus.STOPPED, RequestStatus.LENGTH)) & (
        True if keep is None else keep
    )
    if is_told.sum() < _MIN_REQUESTS:
        raise ModelError(
            f"{is_told.sum()} requests ended well",
            where=run.manifest.run_id,
            allowed=f"{_MIN_REQUESTS} or more",
        )
    unknowns = unknowns_of(prior)
    step_s = float(np.nanmedian(seen.tpot_s))
    deviation_s = 0.5 * step_s + _TTFT_RATIO * seen.ttft_s[is_told]

    def misfit(x: F64) -> F64:
        model = moved_to(prior, unknowns.names[:-1], x[:-1])
        found = latencies(table, replay.simulated(table, model, math.exp(x[-1])).requests)
        ttft = (found.ttft_s[is_told] - seen.ttft_s[is_told]) / deviation_s
        tpot = np.log(found.tpot_s[is_told] / seen.tpot_s[is_told]) / _TPOT_RATIO
        both = np.concatenate([ttft, np.where(np.isnan(seen.tpot_s[is_told]), 0.0, tpot)])
        return np.asarray(np.clip(np.nan_to_num(both, nan=_LOST), -_LOST, _LOST), dtype=np.float64)

    n_told = int(is_told.sum())
    groups = np.tile(np.arange(n_told) * _N_GROUPS // n_told, 2)
    best = solve(misfit, unknowns, groups)
    deviations = np.sqrt(np.diag(best.covariance))
    return RequestFit(
        model=learned(
            prior, unknowns, best.x, best.covariance, run_ids=(run.manifest.run_id,), n_told=n_told
        ),
        front_end_s=learned_interval(float(best.x[-1]), float(deviations[-1]), n_told, is_log=True),
        misfit_ratio=float(np.sqrt(np.mean(best.misfit**2))),
        n_requests=n_told,
        n_simulations=best.n_calls,
    )


def moved_to(model: StepTimeModel, names: tuple[str, ...], values: F64) -> StepTimeModel:
    """The model with these parameters, logarithms but for the sag, at other values."""
    new = dict(zip(names, values.tolist(), strict=True))
    return replace(
        model,
        parameters=tuple(
            (
                replace(
                    entry,
                    estimate=replace(
                        entry.estimate,
                        value=_plain(entry.name, new[entry.name]),
                        low=None,
                        high=None,
                    ),
                )
                if entry.name in new
                else entry
            )
            for entry in model.parameters
        ),
    )


def unknowns_of(prior: StepTimeModel) -> Unknowns:
    """What the prior leaves open, and the front end's delay."""
    names = [name for name in prior.free if name in PARAMETERS]
    if not names:
        raise ModelError(
            "the prior leaves no parameter open", allowed="a covariance that says what may move"
        )
    vector = prior.physical().vector()
    centre = [float(vector[PARAMETERS.index(name)]) for name in names]
    deviation = [
        math.sqrt(prior.covariance[prior.free.index(name)][prior.free.index(name)])
        for name in names
    ]
    return Unknowns(
        names=(*names, FRONT_END),
        centre=np.array([*centre, _FRONT_END_BELIEF[0]]),
        deviation=np.array([*deviation, _FRONT_END_BELIEF[1]]),
    )


def learned(
    prior: StepTimeModel,
    unknowns: Unknowns,
    x: F64,
    covariance: F64,
    *,
    run_ids: tuple[str, ...],
    n_told: int,
) -> StepTimeModel:
    """The prior with what was learned: values, intervals, who told them, and the covariance."""
    names, deviations = unknowns.names[:-1], np.sqrt(np.diag(covariance))
    moved = moved_to(prior, names, x[:-1])
    parameters: list[FittedParameter] = []
    for entry in moved.parameters:
        if entry.name not in names:
            parameters.append(entry)
            continue
        k = names.index(entry.name)
        estimate = learned_interval(
            float(x[k]), float(deviations[k]), n_told, is_log=entry.name != "sag_ratio"
        )
        parameters.append(
            replace(
                entry,
                estimate=estimate,
                told_by=_told_by(float(deviations[k] / unknowns.deviation[k])),
            )
        )
    whole = np.array(prior.covariance)
    places = [prior.free.index(name) for name in names]
    whole[np.ix_(places, places)] = covariance[:-1, :-1]
    return replace(
        moved,
        parameters=tuple(parameters),
        covariance=tuple(tuple(row) for row in whole.tolist()),
        trained_on=replace(
            prior.trained_on, run_ids=run_ids, n_observations=n_told, n_configurations=n_told
        ),
    )


def learned_interval(place: float, deviation: float, n_samples: int, *, is_log: bool) -> Estimate:
    """The 90 % interval of an unknown."""
    low, high = place - Z_90 * deviation, place + Z_90 * deviation
    value, low, high = (
        (math.exp(place), math.exp(low), math.exp(high)) if is_log else (place, low, high)
    )
    method = "inverse simulation; sandwich over groups of neighbours"
    return Estimate(
        value=value, low=low, high=high, confidence_fraction=0.9, n_samples=n_samples, method=method
    )


def _told_by(share: float) -> ToldBy:
    return "data" if share < 0.3 else "data and prior" if share < 0.8 else "prior"


def _plain(name: str, value: float) -> float:
    return value if name == "sag_ratio" else math.exp(value)


# Which step times explain a rate sweep of which only statistics are known.
# Means and percentiles of TTFT and E2E at each rate?
# The requests themselves are not known: as many as were sent come as a Poisson process, all with
# the mean lengths. Tools call such loads constant, but evenly spaced arrivals put every
# percentile of E2E too close to the mean, where Poisson arrivals do not. Rates at which the
# server fell behind are left out: what then waits depends on how the client throttles. Letters of
# shapes: K rates, S statistics.


STATISTICS: Final = (
    ("ttft", None),
    ("ttft", 0.5),
    ("ttft", 0.9),
    ("ttft", 0.99),
    ("e2e", None),
    ("e2e", 0.5),
    ("e2e", 0.9),
    ("e2e", 0.99),
)
"""Latency and percentile; None is the mean."""
_EXPECTED: Final = np.array([0.05, 0.05, 0.1, 0.15, 0.02, 0.02, 0.04, 0.06])
"""How closely each is expected to be met (log): what arrivals and lengths that are not known
leave open."""
_KEPT_UP_FRACTION: Final = 0.97
_LEAST: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RateStatistics:
    """What was published of one rate."""

    offered_per_s: float
    completed_per_s: float
    n_requests: int
    n_failed: int
    prompt_tokens: float
    output_tokens: float
    seconds: tuple[float, ...]
    """In the order of ``STATISTICS``."""


class RateFit(NamedTuple):
    """Step times, and the rate that was held out with its simulated statistics; None below four rates."""

    model: StepTimeModel
    n_rates: int
    held_out: RateStatistics | None
    simulated_s: tuple[float, ...]


def fit_rates(
    rates: Sequence[RateStatistics], config: EngineConfig, prior: StepTimeModel
) -> RateFit:
    """The step times and the front end's delay that explain these rates; of four or more a middle one is held out.

    Raises
    ------
    ModelError
        Fewer than three rates at which the server kept up.
    """
    kept = sorted((one for one in rates if _kept_up(one)), key=lambda one: one.offered_per_s)
    if len(kept) < _LEAST:
        raise ModelError(
            f"{len(kept)} of {len(rates)} rates at which the server kept up",
            allowed=(
                f"{_LEAST} or more, at least {_KEPT_UP_FRACTION:.0%} of the requests served as they"
                " came"
            ),
            try_="lower rates",
        )
    held_out = kept[len(kept) // 2] if len(kept) > _LEAST else None
    taught = [one for one in kept if one is not held_out]
    requests = [_requests(one, number) for number, one in enumerate(taught)]
    unknowns = unknowns_of(prior)
    names = unknowns.names[:-1]
    seen = np.log([one.seconds for one in taught])

    def misfit(x: F64) -> F64:
        model = moved_to(prior, names, x[:-1])
        found = np.log([_statistics(one, config, model, math.exp(x[-1])) for one in requests])
        return np.asarray(((found - seen) / _EXPECTED).ravel(), dtype=np.float64)

    groups = np.arange(seen.size) // 4
    solution = solve(misfit, unknowns, groups)
    deviation = float(np.sqrt(solution.covariance[-1, -1]))
    front_end_s = math.exp(solution.x[-1])
    model = learned(prior, unknowns, solution.x, solution.covariance, run_ids=(), n_told=seen.size)
    model = replace(
        model,
        front_end_s=learned_interval(float(solution.x[-1]), deviation, seen.size, is_log=True),
    )
    simulated = (
        ()
        if held_out is None
        else _statistics(_requests(held_out, len(taught)), config, model, front_end_s)
    )
    return RateFit(model, len(taught), held_out, simulated)


def _kept_up(one: RateStatistics) -> bool:
    is_served = one.completed_per_s >= _KEPT_UP_FRACTION * one.offered_per_s
    return is_served and not one.n_failed and all(value > 0 for value in one.seconds)


def _requests(one: RateStatistics, seed: int) -> Demand:
    rng = np.random.default_rng(seed)
    arrival_ns = np.round(
        np.cumsum(rng.exponential(1e9 / one.offered_per_s, one.n_requests))
    ).astype(np.int64)
    floor = math.floor(one.output_tokens)
    is_longer = rng.uniform(size=one.n_requests) < one.output_tokens - floor
    return demand(
        arrival_ns,
        np.full(one.n_requests, round(one.prompt_tokens)),
        np.where(is_longer, floor + 1, floor),
    )


def _statistics(
    requests: Demand, config: EngineConfig, model: StepTimeModel, front_end_s: float
) -> tuple[float, ...]:
    """As ``STATISTICS``.

    The front end's delay moves nothing in the engine, where all arrive later by the same time.
    """
    done = simulate(requests, config, arrays_of(model)).requests
    ends_ns = {"ttft": done.first_token_ns, "e2e": done.finished_ns}
    seconds = {name: (at_ns - done.sent_ns) / 1e9 + front_end_s for name, at_ns in ends_ns.items()}
    return tuple(
        float(np.mean(seconds[name]) if at is None else np.quantile(seconds[name], at))
        for name, at in STATISTICS
    )
