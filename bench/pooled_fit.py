"""Efficiencies of many models, devices and engines, fitted together to published loads.

A kind is a model in a format, served by an engine on a device. Each kind's parameters lie around
the prior of its model and device (``fit.published.priors``); kinds resemble one another by chip, engine, model
and format, so loads of some kinds tell of others (multilevel regression; Gelman and Hill 2006). What
the model misses of one load of a kind it misses of the others too, so they count as less than so
many independent loads. Devices of one chip, such as H100 and H200, have one distance from their
priors: the same kernels run on both, and the prior knows the memory. So more bandwidth is never
slower. Of all kinds together the most probable parameters below the datasheets' peaks are found by
Gauss-Newton with bounds. Letters of shapes: N loads, P unknowns of a kind, D kinds of chips.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from inferometer.fit.published.efficiencies import OUTSIDE
from inferometer.fit.published.loads import PublishedLoad
from inferometer.fit.published.posterior import SimulatedLoad, seen_by
from inferometer.fit.published.priors import (
    HOST,
    UNKNOWNS,
    DevicePrior,
    device_likeness,
    device_prior,
    has_same_chip,
)
from inferometer.fit.published.transfer import between
from inferometer.inputs.catalog import load_hardware
from inferometer.records.columns import F64, I64

_NOISE: Final = np.array([0.1, 0.5])
"""Standard deviation of log TPOT and log TTFT around the model. Tables differ in what their TTFT
means: a mean with the first wave, a median, from where."""
_SHARED_NOISE: Final = np.array([0.05, 0.4])
"""The same of what all loads of one kind have in common. Without it twenty loads of a kind pass on to
others what is its own (a version, a setting). On the learned half the root mean square of the log
error of TPOT for another model is 0.160 without and 0.157 with it (errors beyond 0.6 count as 0.6).
TTFT of whole kinds is off by their clients and by what their tables mean by it: with 0.1 this made
prompts slower to compute, and TPOT, which they interrupt, less true (9.6 %, now 8.9 % for another
model, of eight rows of each kind)."""
_ROBUST: Final = 2.5
"""A residual beyond this many standard deviations counts as one of this many (Huber)."""
_LARGEST_STEP: Final = 0.6
_ENOUGH: Final = 0.02
_MOVE: Final = 0.03


class Kind(NamedTuple):
    """Whose parameters are one vector."""

    hardware_id: str
    vendor: str
    framework: str
    model_id: str
    is_moe: bool
    precision: str

    @property
    def of_chip(self) -> "Kind":
        """The same on the first device of the catalogue that computes alike."""
        return self._replace(hardware_id=chip_of(self.hardware_id))


def kind_of(load: PublishedLoad) -> Kind:
    """Whose parameters this load shows."""
    return Kind(
        hardware_id=load.hardware.hardware_id,
        vendor=load.hardware.vendor,
        framework=load.framework,
        model_id=load.model.model_id,
        is_moe=load.model.moe is not None,
        precision=load.precision or "bf16",
    )


def likeness(one: Kind, other: Kind) -> F64:
    """(P) Correlation of the distances of two kinds of chips from their priors."""
    is_same, is_vendor = one.hardware_id == other.hardware_id, one.vendor == other.vendor
    device = [
        device_likeness(is_same=is_same, is_same_vendor=is_vendor or name in HOST)
        for name in UNKNOWNS
    ]
    return np.array(device) * between(
        is_model=one.model_id == other.model_id,
        is_moe=one.is_moe == other.is_moe,
        is_engine=one.framework == other.framework,
        is_format=one.precision == other.precision,
    )


@lru_cache(maxsize=64)
def chip_of(hardware_id: str) -> str:
    """The first device of the catalogue with the same chip; others' names stay as they are."""
    known = {device.hardware_id: device for device in load_hardware()}
    own = known.get(hardware_id)
    return next(
        (name for name, one in known.items() if own is not None and has_same_chip(one, own)),
        hardware_id,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledFit:
    """Most probable distances (D, P) of the kinds' parameters from their priors."""

    kinds: tuple[Kind, ...]
    """Of chips."""
    distances: F64
    errors: F64
    """(N, 2) Log of measured over fitted TPOT and TTFT."""

    def distances_of(self, kind: Kind) -> F64:
        """(P) Expected ones of this kind, from those that are like it."""
        chip = kind.of_chip
        if chip in self.kinds:
            return np.asarray(self.distances[self.kinds.index(chip)], dtype=np.float64)
        towards = np.array([likeness(chip, one) for one in self.kinds]).T
        weights = np.linalg.solve(_correlation(self.kinds), towards[..., None])[..., 0]
        return np.asarray(np.sum(weights.T * self.distances, axis=0), dtype=np.float64)

    def carried_to(self, kind: Kind) -> F64:
        """(P) The same without the tables' time outside of the engine, which is theirs alone."""
        is_outside = np.isin(UNKNOWNS, list(OUTSIDE))
        return np.where(is_outside, 0.0, self.distances_of(kind))


def fit_pooled(
    loads: Sequence[SimulatedLoad], start: PooledFit | None = None, max_rounds: int = 8
) -> PooledFit:
    """Fit loads of many kinds; ``start`` is a fit of nearly the same loads.

    Raises
    ------
    SpecError
        A device does not compute in the format.
    """
    of_load = [kind_of(one.published) for one in loads]
    kinds = tuple(sorted({one.of_chip for one in of_load}))
    groups = [_Group(loads, of_load, kind, kinds) for kind in sorted(set(of_load))]
    free = np.flatnonzero(groups[0].prior.sd > 0)
    at = np.zeros((len(kinds), len(UNKNOWNS)))
    if start is not None:
        at = np.stack([start.distances_of(kind) for kind in kinds])
    upper = np.full(at.shape, np.inf)
    for group in groups:
        upper[group.number] = np.minimum(upper[group.number], group.prior.upper - group.prior.mean)
    at = np.minimum(at, upper)
    prior_rows = _prior_rows(kinds, groups[0].prior.sd, free)
    measured = _measured(loads)
    errors = np.empty((len(loads), 2))
    for _ in range(max_rounds):
        slopes = np.zeros((len(loads), 2, len(kinds), len(free)))
        wanted = np.empty((len(loads), 2))
        for group in groups:
            level, slope = _linearised(group.loads, group.prior, at[group.number], free)
            errors[group.rows] = measured[group.rows] - level
            for metric in range(2):
                white = _whitening(errors[group.rows, metric], metric)
                slopes[group.rows, metric, group.number] = white @ slope[:, metric]
                wanted[group.rows, metric] = white @ errors[group.rows, metric]
        weighted = np.vstack([slopes.reshape(2 * len(loads), -1), prior_rows])
        target = np.concatenate([wanted.ravel(), prior_rows @ -at[:, free].ravel()])
        room = np.clip((upper - at)[:, free].ravel(), 0.0, _LARGEST_STEP)
        step = _bounded(weighted.T @ weighted, weighted.T @ target, room).reshape(len(kinds), -1)
        at[:, free] = np.minimum(at[:, free] + step, upper[:, free])
        if np.abs(step).max() < _ENOUGH:
            break
    return PooledFit(kinds=kinds, distances=at, errors=errors)


class _Group:
    """The loads of one kind on one device, and the number of its kind of chips."""

    def __init__(
        self,
        loads: Sequence[SimulatedLoad],
        of_load: Sequence[Kind],
        kind: Kind,
        kinds: Sequence[Kind],
    ) -> None:
        self.rows = np.array([k for k, one in enumerate(of_load) if one == kind], dtype=np.int64)
        self.loads = [loads[int(k)] for k in self.rows]
        self.prior = prior_of(self.loads[0])
        self.number = kinds.index(kind.of_chip)


def _whitening(errors: F64, metric: int) -> F64:
    """(N, N) Makes the errors of a kind's loads independent, of standard deviation 1."""
    spread = _NOISE[metric] * np.maximum(1.0, np.sqrt(np.abs(errors) / (_ROBUST * _NOISE[metric])))
    covariance = np.diag(spread**2) + _SHARED_NOISE[metric] ** 2
    return np.asarray(np.linalg.inv(np.linalg.cholesky(covariance)), dtype=np.float64)


def _bounded(curvature: F64, gradient: F64, room: F64) -> F64:
    """The least-squares step of at most ``room`` upwards and ``_LARGEST_STEP`` downwards.

    What would go further stops there, and the others make up for it.
    """
    step, is_free = np.zeros(len(gradient)), np.full(len(gradient), fill_value=True, dtype=np.bool_)
    while is_free.any():
        is_stopped = np.logical_not(is_free)
        left = gradient[is_free] - curvature[np.ix_(is_free, is_stopped)] @ step[is_stopped]
        step[is_free] = np.linalg.solve(curvature[np.ix_(is_free, is_free)], left)
        stopped = np.clip(step, -_LARGEST_STEP, room)
        is_beyond = is_free & (stopped != step)
        if not is_beyond.any():
            break
        step[is_beyond] = stopped[is_beyond]
        is_free = is_free & np.logical_not(is_beyond)
    return step


def prior_of(one: SimulatedLoad) -> DevicePrior:
    """The prior of the kind of this load."""
    load = one.published
    return device_prior(load.model, load.engine, load.hardware, load.framework)


def errors_at(loads: Sequence[SimulatedLoad], distances: F64) -> F64:
    """(N, 2) Log of measured over predicted TPOT and TTFT of one kind with these distances."""
    prior = prior_of(loads[0])
    at = np.minimum(prior.mean + distances, prior.upper)
    seen = seen_by(loads, at[None])
    predicted = np.log([(one.tpot_s[0], one.ttft_s[0]) for one in seen])
    return np.asarray(_measured(loads) - predicted, dtype=np.float64)


def _measured(loads: Sequence[SimulatedLoad]) -> F64:
    """(N, 2) Log TPOT and TTFT."""
    both = [(one.published.tpot_s or np.nan, one.published.ttft_s or np.nan) for one in loads]
    return np.log(np.array(both, dtype=np.float64))


def _linearised(
    loads: Sequence[SimulatedLoad], prior: DevicePrior, at: F64, free: I64
) -> tuple[F64, F64]:
    """Log TPOT and TTFT (N, 2) of one kind's loads, and their slopes (N, 2, free unknowns)."""
    here = prior.mean + at
    moves = _MOVE * np.eye(len(UNKNOWNS))[free]
    both = np.stack(
        [
            np.log(np.stack([one.tpot_s, one.ttft_s], axis=1))
            for one in seen_by(loads, np.vstack([here, here + moves]))
        ]
    )
    return both[:, 0], np.moveaxis((both[:, 1:] - both[:, :1]) / _MOVE, 1, 2)


def _correlation(kinds: Sequence[Kind]) -> F64:
    """(P, D, D) Of the kinds' distances, for each unknown."""
    pairs = np.array([[likeness(one, other) for other in kinds] for one in kinds])
    return np.moveaxis(pairs, 2, 0)


def _prior_rows(kinds: Sequence[Kind], sd: F64, free: I64) -> F64:
    """(D·F, D·F) Rows whose squares are the prior's of the free unknowns, kind by kind."""
    whitened = np.linalg.inv(np.linalg.cholesky(_correlation(kinds)[free])) / sd[free, None, None]
    rows = np.einsum("fij,fg->ifjg", whitened, np.eye(len(free)))
    return np.asarray(rows.reshape(len(kinds) * len(free), -1), dtype=np.float64)
