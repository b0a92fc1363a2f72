"""Posterior of the step-time parameters, given observed step times, and its diagnostics.

Maximum a posteriori (``fit.map``) on the logarithm of time. Each observation has the variance of
its median plus the model's own spread. The knots of the staircase are a Gaussian process over the
logarithm of the rows. The staircase's strength and the spreads of the two phases are
hyperparameters: they maximise the Laplace evidence (MacKay 1992). Letters of shapes: N observations,
K free parameters and knots.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from inferometer.fit.map import smooth_map, student_loss
from inferometer.fit.sweeps.observations import PhaseName, kv_traffic_ratio, observe
from inferometer.fit.sweeps.priors import Priors
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.perfmodel.steptime_limits import moved
from inferometer.perfmodel.steptime_terms import PARAMETERS, Staircase, WorkColumns, term_columns
from inferometer.perfmodel.types import Limit, StepPrediction, Term
from inferometer.records.columns import F64, Bools
from inferometer.records.types import Run

_OCTAVES: Final = 1.5
"""Correlation length of the staircase: row counts within a factor of 2^1.5 behave alike."""

_STEP: Final = 1e-5
_MAX_ROUNDS: Final = 3
_SPREADS: Final = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16)
_SPREAD_PRIOR: Final = (0.02, 0.8)
"""Log-normal prior of a phase's spread: without it three points that fit exactly would claim
certainty."""


class Data(NamedTuple):
    """N observations as arrays."""

    work: WorkColumns
    log_s: F64
    noise: F64
    is_prefill: Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class Spreads:
    """Hyperparameters: standard deviations of log time around the model, and of the knots."""

    prefill_ratio: float
    decode_ratio: float
    staircase_ratio: float


class StepTimePosterior(NamedTuple):
    """MAP parameters, their covariance (K, K) in the order of ``free``, and the log evidence."""

    vector: F64
    staircase: Staircase
    free: tuple[str, ...]
    covariance: F64
    spreads: Spreads
    log_evidence: float


def knots_of(work: WorkColumns) -> F64:
    """Knots of the staircase: every row count that a matrix product was seen with."""
    rows = np.unique(np.concatenate([work.n_rows, work.n_logit_positions]))
    return np.asarray(rows[rows > 0], dtype=np.float64)


def regress(data: Data, priors: Priors, start: Spreads | None = None) -> StepTimePosterior:
    """Posterior at the spreads of largest evidence, by coordinate ascent from ``start``."""
    choices = {
        "staircase_ratio": priors.staircase_ratios,
        "prefill_ratio": _SPREADS,
        "decode_ratio": _SPREADS,
    }
    if start is None:
        start = Spreads(
            prefill_ratio=_SPREADS[2],
            decode_ratio=_SPREADS[2],
            staircase_ratio=priors.staircase_ratios[1],
        )
    best = _posterior(_Problem(data, priors, start))
    for _ in range(_MAX_ROUNDS):
        before = best
        for name, values in choices.items():
            best = _improved(data, priors, best, name, values)
        if best is before:
            break
    return best


def _improved(
    data: Data, priors: Priors, best: StepTimePosterior, name: str, values: tuple[float, ...]
) -> StepTimePosterior:
    """Step one spread up, else down, while the evidence grows."""
    for direction in (1, -1):
        place = values.index(getattr(best.spreads, name)) + direction
        moved_once = False
        while 0 <= place < len(values):
            change: dict[str, Any] = {name: values[place]}
            problem = _Problem(data, priors, replace(best.spreads, **change))
            candidate = _posterior(problem, near=best)
            if candidate.log_evidence <= best.log_evidence:
                break
            best, moved_once, place = candidate, True, place + direction
        if moved_once:
            break
    return best


class _Problem:
    """Residuals of data and prior at given spreads; x are the free parameters, then the knots."""

    def __init__(self, data: Data, priors: Priors, spreads: Spreads) -> None:
        self.data, self.priors, self.spreads = data, priors, spreads
        self.mean, self.sd = priors.mean(), priors.sd()
        self.is_free = self.sd > 0
        self.n_free = int(self.is_free.sum())
        self.knots = knots_of(data.work) if spreads.staircase_ratio > 0 else np.empty(0)
        self.whitener = _whitener(self.knots, spreads.staircase_ratio)
        of_phase = np.where(data.is_prefill, spreads.prefill_ratio, spreads.decode_ratio)
        self.sigma = np.sqrt(data.noise**2 + of_phase**2)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the elements of x."""
        free = (name for name, keep in zip(PARAMETERS, self.is_free, strict=True) if keep)
        return (*free, *(f"rows {knot:.0f}" for knot in self.knots))

    @cached_property
    def upper(self) -> F64:
        """Upper bounds of x: the device's peaks for rates, none for the knots."""
        of_knots = np.full(self.knots.size, np.inf)
        return np.concatenate([self.priors.upper()[self.is_free], of_knots])

    def start(self, near: StepTimePosterior | None) -> F64:
        """The prior's mean, or the optimum at other spreads."""
        vector = self.mean if near is None else near.vector
        is_same = near is not None and near.staircase.log_ratio.size == self.knots.size
        of_knots = near.staircase.log_ratio if near and is_same else np.zeros(self.knots.size)
        return np.concatenate([vector[self.is_free], of_knots])

    def unpacked(self, x: F64) -> tuple[F64, Staircase]:
        """All parameters, and the staircase."""
        vector = self.mean.copy()
        vector[self.is_free] = x[: self.n_free]
        return vector, Staircase(log_rows=np.log(self.knots), log_ratio=x[self.n_free :])

    def data_residuals(self, x: F64) -> F64:
        """(N) In standard deviations."""
        predicted_s = term_columns(*self.unpacked(x), self.data.work).total_s
        return np.asarray((np.log(predicted_s) - self.data.log_s) / self.sigma, dtype=np.float64)

    def residuals(self, x: F64, weight: F64) -> F64:
        """(N + K) Of the data, then of the prior: both are standard normal if the model is true."""
        is_free, n_free = self.is_free, self.n_free
        return np.concatenate(
            [
                weight * self.data_residuals(x),
                (x[:n_free] - self.mean[is_free]) / self.sd[is_free],
                self.whitener @ x[n_free:],
            ]
        )

    def jacobian(self, x: F64, weight: F64) -> F64:
        """(N + K, K) By central differences, all in two calls; the prior's rows are linear."""
        ahead, behind = (
            np.log(
                term_columns(*moved(*self.unpacked(x), self.names, step), self.data.work).total_s
            )
            for step in (_STEP, -_STEP)
        )
        n_free, n_all = self.n_free, len(self.names)
        of_prior = np.zeros((n_all, n_all))
        of_prior[:n_free, :n_free] = np.diag(1 / self.sd[self.is_free])
        of_prior[n_free:, n_free:] = self.whitener
        return np.vstack([((ahead - behind) / (2 * _STEP) * (weight / self.sigma)).T, of_prior])

    def log_joint(self, x: F64) -> float:
        """Log likelihood plus log prior, of parameters and spreads."""
        data = self.data_residuals(x)
        log_likelihood = -np.sum(student_loss(data)) - np.sum(np.log(self.sigma))
        of_prior = self.residuals(x, np.ones_like(self.sigma))[self.sigma.size :]
        log_prior = (
            -0.5 * of_prior @ of_prior
            - np.sum(np.log(self.sd[self.is_free]))
            + np.sum(np.log(np.diag(self.whitener)))
        )
        return float(log_likelihood + log_prior + _log_prior_of(self.spreads))


def _posterior(problem: _Problem, near: StepTimePosterior | None = None) -> StepTimePosterior:
    """MAP estimate at these spreads, with the Laplace approximation of covariance and evidence."""
    found = smooth_map(
        problem.residuals,
        problem.jacobian,
        problem.start(near),
        n_data=problem.sigma.size,
        upper=problem.upper,
    )
    precision = found.jac.T @ found.jac
    vector, staircase = problem.unpacked(found.x)
    return StepTimePosterior(
        vector=vector,
        staircase=staircase,
        free=problem.names,
        covariance=np.linalg.inv(precision),
        spreads=problem.spreads,
        log_evidence=problem.log_joint(found.x) - 0.5 * float(np.linalg.slogdet(precision)[1]),
    )


def _whitener(knots: F64, staircase_ratio: float) -> F64:
    """Matrix that makes the knots of the Gaussian process independent and of unit variance."""
    if knots.size == 0:
        return np.empty((0, 0))
    octaves = np.log2(knots)
    correlation = np.exp(-np.abs(octaves[:, None] - octaves[None, :]) / _OCTAVES)
    correlation += 1e-6 * np.eye(knots.size)  # rows that all but coincide
    return np.asarray(
        np.linalg.inv(np.linalg.cholesky(staircase_ratio**2 * correlation)), dtype=np.float64
    )


def _log_prior_of(spreads: Spreads) -> float:
    mean, width = _SPREAD_PRIOR
    return -0.5 * sum(
        (math.log(value / mean) / width) ** 2
        for value in (spreads.prefill_ratio, spreads.decode_ratio)
    )


_ENTANGLED: Final = 0.95

_REMEDIES: Final = {
    "launch_s": "batches of 1 and 2 at a short context, and a run whose memory ceiling was probed",
    "weight_bytes_per_s": (
        "a second dtype or model width, or a run whose memory ceiling was probed: launches do not"
        " change with them"
    ),
    "kv_bytes_per_s": (
        "decode steps at two contexts that differ by a factor of 8 or more, at a large batch"
    ),
    "matmul_flop_per_s": "prefills of 512 and more tokens",
    "attention_flop_per_s": (
        "prefills of one long prompt and of many short ones with as many tokens in all"
    ),
    "per_sequence_s": (
        "batches that differ by a factor of 8 at the same number of context tokens in all"
    ),
    "link_bytes_per_s": "prefills of several lengths with tensor parallelism",
    "message_s": "decode steps with tensor parallelism at batch 1",
    "floor_s": "a compiled engine mode beside the eager one",
    "prefill_ratio": "prefills of a few tokens beside decode steps",
    "overlap_ratio": "batches around the one where the step time begins to rise",
    "blend_ratio": "batches or prefills of 64 to 512 rows",
    "mixed_kv_ratio": (
        "requests that arrive while others decode long contexts: a load test, not static batches"
    ),
    "sag_ratio": "prefills of 512 and of 8192 tokens",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unidentified:
    """Parameters that the data do not identify, alone or jointly, and what to measure."""

    parameters: tuple[str, ...]
    why: str
    remedy: str


def unidentified(model: StepTimeModel) -> tuple[Unidentified, ...]:
    """Parameters that the data do not identify.

    First parameters that kept their prior, then pairs of the others with a posterior correlation
    above 0.95.
    """
    alone = [
        Unidentified(
            parameters=(entry.name,),
            why=f"the data do not determine {entry.name}: it is as assumed",
            remedy=_REMEDIES[entry.name],
        )
        for entry in model.parameters
        if entry.informed_by == "prior"
    ]
    assumed = {entry.parameters[0] for entry in alone}
    names = [name for name in model.free if name in PARAMETERS]
    covariance = model.posterior().covariance[: len(names), : len(names)]
    sd = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(sd, sd)
    pairs = [
        Unidentified(
            parameters=(names[i], names[j]),
            why=(
                f"the data determine {names[i]} and {names[j]} only together (correlation"
                f" {correlation[i, j]:+.2f})"
            ),
            remedy=_REMEDIES[names[i]],
        )
        for i in range(len(names))
        for j in range(i)
        if abs(correlation[i, j]) > _ENTANGLED and not {names[i], names[j]} & assumed
    ]
    return (*at_bounds(model), *alone, *pairs)


def at_bounds(model: StepTimeModel) -> tuple[Unidentified, ...]:
    """Rates that the data would put above the device's peak.

    The steps are then shorter than the assumed work allows.
    """
    attention = model.trained_on.attention_implementation
    assumed = kv_traffic_ratio(model.model, model.engine, attention)
    if assumed <= model.kv_traffic_ratio:
        return _at_peaks(model)
    words = (
        f"{assumed:g} bytes for each byte of KV cache, which {attention or 'this'} attention moves,"
        " would exceed the device's bandwidth"
    )
    leaner = Unidentified(
        parameters=("kv_bytes_per_s",),
        why=f"{words}: {model.kv_traffic_ratio:g} are assumed",
        remedy="--mode compiled, if that is what was measured",
    )
    return (leaner, *_at_peaks(model))


def _at_peaks(model: StepTimeModel) -> tuple[Unidentified, ...]:
    return tuple(
        Unidentified(
            parameters=(entry.name,),
            why=(
                f"{entry.name} is at the peak of the device: the measured steps are shorter than"
                " what is assumed to be computed and moved"
            ),
            remedy=(
                "check that --hardware, --dtype and --mode are those of the measurement, and the"
                " units of its table"
            ),
        )
        for entry in model.parameters
        if entry.informed_by == "bound"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedStep:
    """Measured time of one phase of one point, and its parts."""

    phase: PhaseName
    prompt_tokens: int
    batch_size: int
    measured_s: float
    """Median over repetitions, at the machine speed at which it was measured."""
    terms: tuple[Term, ...]
    """Parts that sum to ``measured_s``; the last is what the model does not explain, negative where
    the model predicts more."""
    limited_by: Limit
    prediction: StepPrediction


def explain(run: Run, model: StepTimeModel) -> tuple[ExplainedStep, ...]:
    """Parts of the measured time of this run's points, by this model.

    Long generations give several rows a point.

    Raises
    ------
    ModelError
        Nothing of the run ended well.
    """
    rows = observe([run], is_drift_removed=False).rows
    explained: list[ExplainedStep] = []
    for row, prediction in zip(rows, model.predict_all([row.shape for row in rows]), strict=True):
        unexplained = Term(
            name="unexplained", duration_s=row.duration_s - prediction.duration_s.value
        )
        explained.append(
            ExplainedStep(
                phase=row.phase,
                prompt_tokens=row.prompt_tokens,
                batch_size=row.batch_size,
                measured_s=row.duration_s,
                terms=(*prediction.terms, unexplained),
                limited_by=prediction.limited_by,
                prediction=prediction,
            )
        )
    return tuple(explained)
