"""Posterior of an engine's step times from its requests' latencies, by inverse simulation.

No step was logged. The scheduler is simulated with candidate step times until simulated first
tokens and gaps agree with the measured ones (``fit.map``). ``fit_requests`` takes the requests of a
run, ``fit_rates`` the statistics of a published rate sweep. Letters of shapes: N requests.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from inferometer.errors import ModelError
from inferometer.fit.loads.load_tests import Replay, latencies
from inferometer.fit.map import Posterior, Prior, information_source, posterior_of
from inferometer.perfmodel.steptime import (
    FittedParameter,
    StepTimeModel,
    arrays_of,
    parameter_estimate,
    plain_value,
)
from inferometer.perfmodel.steptime_terms import PARAMETERS
from inferometer.records.columns import F64, Bools
from inferometer.records.types import RequestStatus, Run
from inferometer.records.validity import require_valid
from inferometer.simulate.demand import Demand, demand
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.run import simulate
from inferometer.stats.estimate import Estimate

FRONT_END: Final = "front_end_s"
_FRONT_END_PRIOR: Final = (math.log(3e-3), 1.0)
"""A request spends milliseconds in HTTP, tokenising and a queue between processes before the
scheduler sees it."""
INVERSE_SIMULATION: Final = "inverse simulation; sandwich over groups of neighbours"

_TPOT_RATIO: Final = 0.02
_TTFT_RATIO: Final = 0.1
"""Standard deviation of a single request around the simulation: these shares of TPOT and of TTFT,
and half a step besides."""
_LOST: Final = 20.0
"""Residual of a request that the simulation did not finish."""
_N_GROUPS: Final = 20
_MIN_REQUESTS: Final = 10

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
"""Latency and percentile of a rate sweep's statistics; None is the mean."""
_STATISTICS_SD: Final = np.array([0.05, 0.05, 0.1, 0.15, 0.02, 0.02, 0.04, 0.06])
"""Standard deviation of the logarithm of each: what unknown arrivals and lengths leave open."""
_KEPT_UP_FRACTION: Final = 0.97
_LEAST_RATES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFit:
    """Posterior from a log of requests."""

    model: StepTimeModel
    front_end_s: Estimate
    """Between sending and the scheduler's sight of it, the same for all."""
    misfit_ratio: float
    """Root mean square of the residuals, in the standard deviations that were expected."""
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
    """Step times and front-end delay from a run of requests, whose arrivals are known.

    The covariance of ``prior`` gives the width of the prior of each free parameter; its staircase
    stays. ``keep`` (N) selects the requests whose latencies count; the others only load the engine.
    The table must be in the order of sending. ``forced`` takes a load test that is INVALID.

    Raises
    ------
    ModelError
        The run has no requests, too few of them ended, or the prior fixes every parameter.
    MeasureError
        The run is a load test that is INVALID.
    """
    require_valid(run, forced=forced)
    table = run.requests
    if table is None:
        raise ModelError(f"run {run.manifest.run_id} has no requests", allowed="a serving run")
    seen = latencies(table, table)
    is_used = np.isin(table.status, (RequestStatus.STOPPED, RequestStatus.LENGTH))
    is_used &= True if keep is None else keep
    n_used = int(is_used.sum())
    if n_used < _MIN_REQUESTS:
        raise ModelError(
            f"{n_used} requests that ended well are too few for a fit",
            where=run.manifest.run_id,
            allowed=f"{_MIN_REQUESTS} or more",
            try_="a longer load test, of more requests",
        )
    unknowns = prior_of(prior)
    step_s = float(np.nanmedian(seen.tpot_s))
    ttft_sd_s = 0.5 * step_s + _TTFT_RATIO * seen.ttft_s[is_used]

    def residuals(x: F64) -> F64:
        model = moved_to(prior, unknowns.names[:-1], x[:-1])
        found = latencies(table, replay.simulated(table, model, math.exp(x[-1])).requests)
        ttft = (found.ttft_s[is_used] - seen.ttft_s[is_used]) / ttft_sd_s
        tpot = np.log(found.tpot_s[is_used] / seen.tpot_s[is_used]) / _TPOT_RATIO
        both = np.concatenate([ttft, np.where(np.isnan(seen.tpot_s[is_used]), 0.0, tpot)])
        return np.asarray(np.clip(np.nan_to_num(both, nan=_LOST), -_LOST, _LOST), dtype=np.float64)

    groups = np.tile(np.arange(n_used) * _N_GROUPS // n_used, 2)
    posterior = posterior_of(residuals, unknowns, groups)
    return RequestFit(
        model=updated(prior, unknowns, posterior, run_ids=(run.manifest.run_id,), n_samples=n_used),
        front_end_s=front_end_of(posterior, n_used),
        misfit_ratio=float(np.sqrt(np.mean(posterior.residuals**2))),
        n_requests=n_used,
        n_simulations=posterior.n_simulations,
    )


def prior_of(model: StepTimeModel) -> Prior:
    """Prior of the model's free parameters, and of the front end's delay, which comes last."""
    names = [name for name in model.free if name in PARAMETERS]
    if not names:
        raise ModelError(
            "the prior leaves no parameter open", allowed="a covariance that says what may move"
        )
    vector = model.physical().vector()
    mean = [float(vector[PARAMETERS.index(name)]) for name in names]
    places = [model.free.index(name) for name in names]
    sd = [math.sqrt(model.covariance[place][place]) for place in places]
    return Prior(
        names=(*names, FRONT_END),
        mean=np.array([*mean, _FRONT_END_PRIOR[0]]),
        sd=np.array([*sd, _FRONT_END_PRIOR[1]]),
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
                        value=plain_value(entry.name, new[entry.name]),
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


def updated(
    model: StepTimeModel,
    prior: Prior,
    posterior: Posterior,
    *,
    run_ids: tuple[str, ...],
    n_samples: int,
) -> StepTimeModel:
    """The prior's model with the posterior's values, intervals and covariance."""
    names, sds = prior.names[:-1], np.sqrt(np.diag(posterior.covariance))
    fitted = {
        name: FittedParameter(
            name=name,
            estimate=parameter_estimate(
                name, place, sd, n_samples=n_samples, method=INVERSE_SIMULATION
            ),
            informed_by=information_source(sd, prior_sd),
        )
        for name, place, sd, prior_sd in zip(
            names, posterior.x.tolist(), sds.tolist(), prior.sd.tolist(), strict=False
        )
    }
    covariance = np.array(model.covariance)
    places = [model.free.index(name) for name in names]
    covariance[np.ix_(places, places)] = posterior.covariance[:-1, :-1]
    return replace(
        model,
        parameters=tuple(fitted.get(entry.name, entry) for entry in model.parameters),
        covariance=tuple(tuple(row) for row in covariance.tolist()),
        trained_on=replace(
            model.trained_on, run_ids=run_ids, n_observations=n_samples, n_configurations=n_samples
        ),
    )


def front_end_of(posterior: Posterior, n_samples: int) -> Estimate:
    """The front end's delay, which is the last unknown."""
    place, sd = float(posterior.x[-1]), math.sqrt(posterior.covariance[-1, -1])
    return parameter_estimate(FRONT_END, place, sd, n_samples=n_samples, method=INVERSE_SIMULATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateStatistics:
    """Published statistics of one rate."""

    offered_per_s: float
    completed_per_s: float
    n_requests: int
    n_failed: int
    prompt_tokens: float
    output_tokens: float
    seconds: tuple[float, ...]
    """In the order of ``STATISTICS``."""


class RateFit(NamedTuple):
    """Posterior from a rate sweep, and the held-out rate with its simulated statistics.

    No rate is held out where fewer than four are left.
    """

    model: StepTimeModel
    n_rates: int
    held_out: RateStatistics | None
    simulated_s: tuple[float, ...]


def fit_rates(
    rates: Sequence[RateStatistics], config: EngineConfig, prior: StepTimeModel
) -> RateFit:
    """Step times and front-end delay from means and percentiles of TTFT and E2E at each rate.

    The requests themselves are not known: they are simulated as a Poisson process of requests of
    mean length. Tools call such loads constant, but evenly spaced arrivals put every percentile of
    E2E too close to the mean, where Poisson arrivals do not. Rates at which the server fell behind
    are left out: how long requests then wait depends on how the client throttles. Of four or more
    rates a middle one is held out.

    Raises
    ------
    ModelError
        Fewer than three rates at which the server kept up.
    """
    kept_up = sorted((one for one in rates if _kept_up(one)), key=lambda one: one.offered_per_s)
    if len(kept_up) < _LEAST_RATES:
        raise ModelError(
            f"{len(kept_up)} of {len(rates)} rates at which the server kept up",
            allowed=(
                f"{_LEAST_RATES} or more, at least {_KEPT_UP_FRACTION:.0%} of the requests served"
                " as they came"
            ),
            try_="lower rates",
        )
    held_out = kept_up[len(kept_up) // 2] if len(kept_up) > _LEAST_RATES else None
    training = [one for one in kept_up if one is not held_out]
    requests = [_poisson_requests(one, number) for number, one in enumerate(training)]
    unknowns = prior_of(prior)
    seen = np.log([one.seconds for one in training])

    def residuals(x: F64) -> F64:
        model = moved_to(prior, unknowns.names[:-1], x[:-1])
        found = np.log([_statistics(one, config, model, math.exp(x[-1])) for one in requests])
        return np.asarray(((found - seen) / _STATISTICS_SD).ravel(), dtype=np.float64)

    groups = np.arange(seen.size) // 4  # statistics of one latency at one rate
    posterior = posterior_of(residuals, unknowns, groups)
    front_end_s = front_end_of(posterior, seen.size)
    model = updated(prior, unknowns, posterior, run_ids=(), n_samples=seen.size)
    model = replace(model, front_end_s=front_end_s)
    simulated_s = (
        ()
        if held_out is None
        else _statistics(
            _poisson_requests(held_out, len(training)), config, model, front_end_s.value
        )
    )
    return RateFit(model, len(training), held_out, simulated_s)


def _kept_up(one: RateStatistics) -> bool:
    """Did the server complete about what was offered, without failures, and report every latency?"""
    is_served = one.completed_per_s >= _KEPT_UP_FRACTION * one.offered_per_s
    return is_served and not one.n_failed and all(value > 0 for value in one.seconds)


def _poisson_requests(one: RateStatistics, seed: int) -> Demand:
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
    """Simulated statistics, in the order of ``STATISTICS``.

    The front end delays every arrival by the same time, so it changes nothing in the engine.
    """
    done = simulate(requests, config, arrays_of(model)).requests
    ends_ns = {"ttft": done.first_token_ns, "e2e": done.finished_ns}
    seconds = {name: (at_ns - done.sent_ns) / 1e9 + front_end_s for name, at_ns in ends_ns.items()}
    return tuple(
        float(np.mean(seconds[name]) if at is None else np.quantile(seconds[name], at))
        for name, at in STATISTICS
    )
