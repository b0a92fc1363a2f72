"""Which step times explain a rate sweep of which only statistics are known.

Means and percentiles of TTFT and E2E at each rate?

The requests themselves are not known: as many as were sent come as a Poisson process, all with the
mean lengths. Tools call such loads constant, but evenly spaced arrivals put every percentile of E2E
too close to the mean, where Poisson arrivals do not. Rates at which the server fell behind are left
out: what then waits depends on how the client throttles. Letters of shapes: K rates, S statistics.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from inferometer.errors import ModelError
from inferometer.fit.from_requests import learned, learned_interval, moved_to, unknowns_of
from inferometer.fit.inverse import solve
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.perfmodel.steptime_arrays import arrays_of
from inferometer.records.columns import F64
from inferometer.simulate.demand import Demand, demand
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.one_engine import simulate

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
