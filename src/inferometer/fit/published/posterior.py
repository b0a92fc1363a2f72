"""Posterior of devices' step times from published loads, and predictions of other loads.

One model and engine, on one or several devices. All is normal around a simulation, linearised:
the prior of each device's parameters, what devices share (``priors``), and a Gaussian process of
what the model misses (``Discrepancy``; Kennedy and O'Hagan 2001). Gauss-Newton finds the
parameters; the rest of the residuals is carried over to similar loads (kriging).

The width of intervals is calibrated by leave-one-out residuals of the measured loads, as far as
there are similar loads: far from all of them small residuals promise nothing. On a device
without loads it is calibrated by leaving out whole devices. Letters of shapes: N loads, 2N
latencies (TPOT, then TTFT of each load), P unknowns of a device, D devices, K sets of unknowns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import scipy

from inferometer.fit.map import Conditional, conditional
from inferometer.fit.published.closed_loop import (
    ApartSchedule,
    LoopSchedule,
    LoopSeen,
    apart_schedule,
    apart_work,
    loop_schedule,
)
from inferometer.fit.published.loads import PublishedLoad, scheduler_of
from inferometer.fit.published.priors import (
    TPOT,
    TTFT,
    UNKNOWNS,
    DevicePrior,
    Discrepancy,
    covariance,
    device_prior,
    elsewhere_ratios,
    joint_prior_covariance,
    places_of,
)
from inferometer.perfmodel.steptime_terms import (
    NO_STAIRCASE,
    PARAMETERS,
    WorkColumns,
    term_columns,
    work_columns,
)
from inferometer.records.columns import F64, I64, Bools

SIZES: Final = (TPOT, TTFT)
_MAX_ROUNDS: Final = 8
_LARGEST_STEP: Final = 0.6
_ENOUGH: Final = 0.01
_MOVE: Final = 0.03
_ROBUST: Final = 2.5
"""A residual beyond this many standard deviations counts as one of this many (Huber)."""
_CONTRADICTED: Final = 4.0
"""A latency this many standard deviations from what all others say of it is an outlier: in tables
some rows are half as fast as those with more users of the same run."""
_MOST_OUTLIERS: Final = 0.05
_PRIOR_FREEDOM: Final = 8.0
"""Weight of the prior that residuals are as expected, in latencies, when the width of intervals is
calibrated."""
_LARGEST_MISS: Final = 4.0
_LEAST_DEVICES: Final = 2
_PRIOR_DEVICES: Final = 4.0
"""The same in devices, when it is calibrated how far devices are from one another. With 2 the
interval of TTFT on a device without rows was a third wider than the learned half needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedLoad:
    """A published load, the steps that it takes, and their work."""

    published: PublishedLoad
    schedule: LoopSchedule | ApartSchedule
    work: WorkColumns


class PredictedLatencies(NamedTuple):
    """Predictions of N loads: logarithms, and half widths of their 90 % intervals."""

    log_tpot: F64
    log_ttft: F64
    log_rate: F64
    """Logarithm of output tokens per second and device."""
    half_tpot: F64
    half_ttft: F64


class HeldOutLatencies(NamedTuple):
    """(N, 2) Leave-one-out errors of TPOT and TTFT of the measured loads, in logarithms."""

    log_error: F64
    half_width: F64
    """Half width of the predicted 90 % interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFit:
    """Posterior of each device, and predictions of the target loads."""

    devices: tuple[str, ...]
    unknowns: F64
    """(D, P) As ``UNKNOWNS``."""
    covariance: F64
    """(D, P, P)"""
    predicted: PredictedLatencies
    level: F64
    """(M, 2) Log TPOT and TTFT of the targets by the parameters alone, without discrepancy."""
    held_out: HeldOutLatencies
    n_seen: int


def simulated(load: PublishedLoad) -> SimulatedLoad:
    """Simulate the schedule of this load.

    Raises
    ------
    SpecError
        The engine cannot hold such a request.
    """
    recipe = load.recipe
    if load.prefill is not None:
        apart = apart_schedule(load.load, load.prefill, load.decode, budget=recipe.budget_tokens)
        plans = (load.prefill.plan, load.plan)
        work = apart_work(load.model, load.served, apart, plans)
        return SimulatedLoad(published=load, schedule=apart, work=work)
    schedule = loop_schedule(
        load.replica_load, scheduler_of(load), n_waited_steps=recipe.n_waited_steps
    )
    return SimulatedLoad(
        published=load,
        schedule=schedule,
        work=work_columns(
            load.model, load.served, schedule.shapes, kv_traffic_ratio=1.0, plan=load.plan
        ),
    )


def fit_published(
    seen: Sequence[SimulatedLoad],
    targets: Sequence[SimulatedLoad],
    sizes: tuple[Discrepancy, Discrepancy] = SIZES,
) -> PublishedFit:
    """Fit ``seen`` and predict ``targets``: loads of one model, precision and engine.

    The devices of the targets may be others. ``sizes`` are the discrepancies of TPOT and of
    TTFT: smaller ones leave more to the parameters.

    Raises
    ------
    SpecError
        A device does not compute in the format.
    """
    problem = _problem([*seen, *targets], sizes)
    is_seen = np.repeat(np.arange(len(problem.loads)) < len(seen), 2)
    at, uncertainty = _map_estimate(problem, is_seen)
    line = _linearised(problem, at)
    uncertainty = _without_outliers(problem, line, is_seen, uncertainty)
    return _posterior(problem, line, is_seen, uncertainty, len(seen))


class _Problem(NamedTuple):
    loads: tuple[SimulatedLoad, ...]
    devices: tuple[str, ...]
    priors: tuple[DevicePrior, ...]
    members: tuple[I64, ...]
    """Loads of each device."""
    log_measured: F64
    """(2N)"""
    prior_covariance: F64
    """(D·P, D·P) Of the unknowns' distances from the prior means."""
    discrepancy: F64
    """(2N, 2N) Covariance of the discrepancies, without noise."""
    noise: F64
    """(2N) Variance."""
    sizes: tuple[Discrepancy, Discrepancy]


class _Linearised(NamedTuple):
    """The simulation around a point, linearised."""

    at: F64
    """(D·P) Distances from the prior means."""
    level: F64
    """(2N)"""
    slopes: F64
    """(2N, D·P)"""
    log_rate: F64
    """(N)"""


def _problem(loads: Sequence[SimulatedLoad], sizes: tuple[Discrepancy, Discrepancy]) -> _Problem:
    names = [one.published.hardware.hardware_id for one in loads]
    devices = tuple(sorted(set(names)))
    first = [loads[names.index(name)].published for name in devices]
    priors = tuple(
        device_prior(one.model, one.engine, one.hardware, one.framework) for one in first
    )
    places = places_of([one.published for one in loads])
    discrepancy = np.zeros((2 * len(loads), 2 * len(loads)))
    for metric, size in enumerate(sizes):
        discrepancy[metric::2, metric::2] = covariance(size, places, places)
    seen = [(one.published.tpot_s or np.nan, one.published.ttft_s or np.nan) for one in loads]
    return _Problem(
        loads=tuple(loads),
        devices=devices,
        priors=priors,
        members=tuple(np.flatnonzero(np.array(names) == name) for name in devices),
        log_measured=np.log(np.array(seen)).reshape(-1),
        prior_covariance=joint_prior_covariance(
            priors[0].sd, [one.hardware.vendor for one in first]
        ),
        discrepancy=discrepancy,
        noise=np.tile([size.noise_ratio**2 for size in sizes], len(loads)),
        sizes=sizes,
    )


def _map_estimate(problem: _Problem, is_seen: Bools) -> tuple[F64, F64]:
    """MAP distances (D·P) by Gauss-Newton in data space, and each latency's noise variance (2N).

    Outliers get a larger noise variance.
    """
    at = np.zeros(problem.prior_covariance.shape[0])
    noise = problem.noise.copy()
    spread = np.sqrt(np.diag(problem.discrepancy) + problem.noise)
    upper = np.concatenate([prior.upper - prior.mean for prior in problem.priors])
    for _ in range(_MAX_ROUNDS):
        line = _linearised(problem, at)
        left = np.abs(problem.log_measured - line.level) / (_ROBUST * spread)
        noise = np.where(left > 1, (left * spread) ** 2, problem.noise)
        data = _conditional(problem, line, is_seen, noise)
        target = data.shift(problem.prior_covariance @ line.slopes[is_seen].T)
        step = np.clip(target - at, -_LARGEST_STEP, _LARGEST_STEP)
        at = np.minimum(at + step, upper)
        if np.abs(step).max() < _ENOUGH:
            break
    return at, noise


def _without_outliers(problem: _Problem, line: _Linearised, is_seen: Bools, noise: F64) -> F64:
    """Noise variance (2N), larger for latencies that all the others contradict.

    The discrepancy would carry a single slow run over to its neighbours. Worst first, by
    leave-one-out residuals.
    """
    noise, places = noise.copy(), np.flatnonzero(is_seen)
    for _ in range(int(_MOST_OUTLIERS * len(places))):
        data = _conditional(problem, line, is_seen, noise)
        variance = 1 / np.diag(data.precision)
        error = data.weights * variance
        worst = int(np.argmax(np.abs(error) / np.sqrt(variance)))
        if abs(error[worst]) < _CONTRADICTED * np.sqrt(variance[worst]):
            break
        noise[places[worst]] += error[worst] ** 2
    return noise


def _conditional(problem: _Problem, line: _Linearised, is_seen: Bools, noise: F64) -> Conditional:
    """The measured latencies, as data for parameters and discrepancies."""
    slopes = line.slopes[is_seen]
    covariance_ = (
        slopes @ problem.prior_covariance @ slopes.T
        + problem.discrepancy[np.ix_(is_seen, is_seen)]
        + np.diag(noise[is_seen])
    )
    residuals = problem.log_measured[is_seen] - line.level[is_seen] + slopes @ line.at
    return conditional(covariance_, residuals)


def _linearised(problem: _Problem, at: F64) -> _Linearised:
    n_unknowns, n_loads = len(UNKNOWNS), len(problem.loads)
    level, rate = np.empty((n_loads, 2)), np.empty(n_loads)
    slopes = np.zeros((n_loads, 2, len(problem.devices), n_unknowns))
    for number, members in enumerate(problem.members):
        prior = problem.priors[number]
        here = prior.mean + at[number * n_unknowns : (number + 1) * n_unknowns]
        free = np.flatnonzero(prior.sd > 0)
        moves = _MOVE * np.eye(n_unknowns)[free]
        around = seen_by([problem.loads[i] for i in members], np.vstack([here, here + moves]))
        for index, seen in zip(members, around, strict=True):
            both = np.log(np.stack([seen.tpot_s, seen.ttft_s], axis=1))
            level[index], rate[index] = both[0], np.log(seen.output_tokens_per_s[0])
            slopes[index, :, number, free] = (both[1:] - both[0]) / _MOVE
    # A schedule's rate is that of one replica, or of all devices of workers apart.
    n_devices = [
        one.published.n_devices if one.published.prefill else one.published.plan.n_tensor
        for one in problem.loads
    ]
    return _Linearised(
        at, level.reshape(-1), slopes.reshape(2 * n_loads, -1), rate - np.log(n_devices)
    )


def seen_by(loads: Sequence[SimulatedLoad], unknowns: F64) -> list[LoopSeen]:
    """Latencies that clients see of each load, with each of K parameter sets (K, P)."""
    work = WorkColumns(
        *(np.concatenate(columns) for columns in zip(*(one.work for one in loads), strict=True))
    )
    staircase = NO_STAIRCASE._replace(log_ratio=np.empty((len(unknowns), 0)))
    step_s = term_columns(unknowns[:, : len(PARAMETERS)].T[:, :, None], staircase, work).total_s
    ends = np.cumsum([len(one.schedule.shapes) for one in loads])[:-1]
    front_end_s, token_s = np.exp(unknowns[:, -2]), np.exp(unknowns[:, -1])
    return [
        one.schedule.seen(
            part, front_end_s + token_s * one.published.load.prompt_tokens, one.published.statistic
        )
        for one, part in zip(loads, np.split(step_s, ends, axis=1), strict=True)
    ]


def _posterior(
    problem: _Problem, line: _Linearised, is_seen: Bools, noise: F64, n_seen: int
) -> PublishedFit:
    data = _conditional(problem, line, is_seen, noise)
    of_parameters = problem.prior_covariance @ line.slopes[is_seen].T
    shared = line.slopes @ of_parameters + problem.discrepancy[:, is_seen]
    mean = line.level - line.slopes @ line.at + data.shift(shared)
    prior_variance = (
        np.einsum("ij,jk,ik->i", line.slopes, problem.prior_covariance, line.slopes)
        + np.diag(problem.discrepancy)
        + problem.noise
    )
    variance = np.maximum(prior_variance - data.variance_drop(shared), 1e-8)
    scale = _scale(data.weights / np.sqrt(np.diag(data.precision)), n_seen)
    half = _half_widths(variance, scale, n_seen, problem.sizes)
    is_new = ~np.isin(_device_of(problem), _device_of(problem)[is_seen[::2]])
    half[is_new] = _half_widths_elsewhere(variance, problem, data, is_seen)[is_new]
    covariance_ = problem.prior_covariance - data.covariance_drop(of_parameters)
    n_unknowns = len(UNKNOWNS)
    blocks = [slice(k * n_unknowns, (k + 1) * n_unknowns) for k in range(len(problem.devices))]
    return PublishedFit(
        devices=problem.devices,
        unknowns=np.stack(
            [
                prior.mean + line.at[block]
                for prior, block in zip(problem.priors, blocks, strict=True)
            ]
        ),
        covariance=np.stack([covariance_[block, block] for block in blocks]),
        level=line.level.reshape(-1, 2)[n_seen:],
        predicted=_predicted(problem, line, mean.reshape(-1, 2), half, n_seen),
        held_out=HeldOutLatencies(
            data.left_out_errors().reshape(-1, 2),
            _half_widths(data.left_out_variances(), scale, n_seen, problem.sizes),
        ),
        n_seen=n_seen,
    )


def _scale(held_out: F64, n_seen: int) -> F64:
    """(2) Variance of leave-one-out residuals of TPOT and TTFT, in what was expected."""
    squares = np.clip(held_out.reshape(-1, 2), -_LARGEST_MISS, _LARGEST_MISS) ** 2
    return np.asarray(
        (_PRIOR_FREEDOM + squares.sum(axis=0)) / (_PRIOR_FREEDOM + n_seen), dtype=np.float64
    )


def _device_of(problem: _Problem) -> I64:
    """(N) Number of each load's device."""
    number = np.empty(len(problem.loads), np.int64)
    for k, members in enumerate(problem.members):
        number[members] = k
    return number


def _half_widths_elsewhere(
    variance: F64, problem: _Problem, data: Conditional, is_seen: Bools
) -> F64:
    """(N, 2) Half widths of 90 % intervals on a device without measured loads.

    Calibrated by how far each measured device is from the prediction of the others.
    """
    device = np.repeat(_device_of(problem), 2)[is_seen]
    names = np.unique(device)
    squares = np.zeros((len(names), 2))
    far = np.square(elsewhere_ratios(problem.loads[0].published.framework))
    for row, name in enumerate(names):
        own = device == name
        spread = np.linalg.inv(data.precision[np.ix_(own, own)])
        miss = (spread @ data.weights[own]) / np.sqrt(np.diag(spread))
        squares[row] = np.mean(
            np.clip(miss.reshape(-1, 2), -_LARGEST_MISS, _LARGEST_MISS) ** 2, axis=0
        )
    learned = squares if len(names) >= _LEAST_DEVICES else np.broadcast_to(far, squares.shape)
    scale = (_PRIOR_DEVICES * far + learned.sum(axis=0)) / (_PRIOR_DEVICES + len(names))
    return np.asarray(
        np.sqrt(variance.reshape(-1, 2) * scale)
        * scipy.special.stdtrit(_PRIOR_DEVICES + len(names), 0.95),
        dtype=np.float64,
    )


def _half_widths(
    variance: F64, scale: F64, n_seen: int, sizes: tuple[Discrepancy, Discrepancy]
) -> F64:
    """(M, 2) Half widths of 90 % intervals of 2M latencies.

    Near measured loads they are calibrated by those; far from them they are not narrower than
    what was learned from the tables.
    """
    by_load = variance.reshape(-1, 2)
    squares = by_load / np.array([size.amplitude_ratio**2 for size in sizes])
    near = np.array([size.near_ratio**2 for size in sizes])
    far = np.maximum(scale, [size.far_ratio**2 for size in sizes])
    share = squares / (squares + near)
    widened = by_load * (scale * (1 - share) + far * share)
    return np.asarray(
        np.sqrt(widened) * scipy.special.stdtrit(_PRIOR_FREEDOM + n_seen, 0.95), dtype=np.float64
    )


def _predicted(
    problem: _Problem, line: _Linearised, mean: F64, half: F64, n_seen: int
) -> PredictedLatencies:
    """Predicted latencies of the loads after the measured ones.

    The rate follows from Little's law: users over the time of a request.
    """
    level = line.level.reshape(-1, 2)
    n_gaps = np.array([float(np.mean(one.schedule.n_gaps)) for one in problem.loads])
    before, after = (np.exp(both[:, 1]) + n_gaps * np.exp(both[:, 0]) for both in (level, mean))
    columns = (
        mean[:, 0],
        mean[:, 1],
        line.log_rate + np.log(before / after),
        half[:, 0],
        half[:, 1],
    )
    return PredictedLatencies(*(column[n_seen:] for column in columns))
