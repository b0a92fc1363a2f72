"""Fitted step-time model: duration of a step, its parts, its limit, and the uncertainty.

``StepTimeModel`` is the closed form of ``steptime_terms`` with fitted parameters, their
covariance, the box of shapes in which it was checked, and its error on held-out configurations.
It is made by ``inferometer.fit``. Letters of shapes: N steps, K free parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from inferometer import suggestions
from inferometer.errors import ModelError
from inferometer.inputs.foreign_bytes import Door
from inferometer.inputs.types import EngineSpec, ModelSpec
from inferometer.perfmodel.fit_subject import FitSubject
from inferometer.perfmodel.steptime_limits import (
    BoxRange,
    ParameterPosterior,
    PhaseName,
    PhaseUncertainty,
    interval_factors,
    limits,
    log_half_widths,
    outside,
    posterior_of,
)
from inferometer.perfmodel.steptime_terms import (
    StepParameters,
    TermColumns,
    WorkColumns,
    term_columns,
    work_columns,
)
from inferometer.perfmodel.types import BatchShape, Limit, StepPrediction, Term
from inferometer.records.columns import F64
from inferometer.stats.estimate import Estimate

SCHEMA_VERSION: Final = 1
CONFIDENCE_FRACTION: Final = 0.9

ToldBy: TypeAlias = Literal["data", "data and prior", "prior", "fixed", "bound"]
"""What decided a parameter. *bound*: the data put the rate above the device's peak, where it was
stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedParameter:
    """One physical parameter (its name ends in its unit), its interval, and what decided it."""

    name: str
    estimate: Estimate
    told_by: ToldBy


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedOn:
    """What a model was fitted to."""

    run_ids: tuple[str, ...]
    hardware: str | None
    attention_implementation: str | None
    n_observations: int
    n_configurations: int
    is_drift_removed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutError:
    """Error on configurations that the model was not fitted to.

    Errors are absolute, relative to what was measured.
    """

    phase: PhaseName
    n_points: int
    n_folds: int
    median_fraction: float
    p95_fraction: float
    coverage_fraction: float
    """Share of held-out points inside the interval that was claimed for them."""
    n_noisy: int = 0
    """Points left out because repetitions disagreed (a disturbed machine)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeModel:
    """A fitted step-time model of one model on one engine and machine."""

    model: ModelSpec
    engine: EngineSpec
    parameters: tuple[FittedParameter, ...]
    kv_traffic_ratio: float
    """Bytes that attention moves for each byte of KV cache that decoding requests hold (eager
    attention copies)."""
    staircase_rows: tuple[int, ...]
    staircase_log_ratio: tuple[float, ...]
    free: tuple[str, ...]
    """Order of ``covariance``: names of parameters, then ``rows N`` for the knots of the
    staircase."""
    covariance: tuple[tuple[float, ...], ...]
    """Of the free parameters, as logarithms (the sag and the knots as they are)."""
    doubts: tuple[PhaseUncertainty, ...]
    box: tuple[BoxRange, ...]
    trained_on: TrainedOn
    held_out: tuple[HeldOutError, ...]
    computes_all_logits: bool = False
    """The engine computes the logits of every prompt token, not of the last only; this overrides
    the shape. ``replace(model, computes_all_logits=False)`` predicts an engine that computes the
    last only."""
    front_end_s: Estimate | None = None
    """Time of a request before the scheduler and after its tokens left it, where clients
    measured."""
    subject: FitSubject | None = None
    """What was fitted; None in files of versions that did not store it."""
    schema_version: int = SCHEMA_VERSION

    def predict(self, shape: BatchShape) -> StepPrediction:
        """Duration of this step with its 90 % interval, its parts and its limit.

        Outside the box the interval widens with the distance, and ``outside_why`` names what is
        outside.
        """
        return self.predict_all([shape])[0]

    def predict_all(self, shapes: Sequence[BatchShape]) -> tuple[StepPrediction, ...]:
        """Predictions of many steps, at little more than the cost of one."""
        work, posterior = self.work(shapes), self.posterior()
        terms = self.terms(work)
        limited_by = limits(posterior, work)
        factors = interval_factors(self.doubts, self.box, shapes, self.log_variance(work)).tolist()
        reasons = [outside(self.box, shape).reasons for shape in shapes]
        return tuple(
            StepPrediction(
                duration_s=self._estimate(float(terms.total_s[i]), factors[i]),
                terms=_terms_at(terms, i),
                limited_by=limited_by[i],
                is_inside_box=not reasons[i],
                outside_why="; ".join(reasons[i]) or None,
            )
            for i in range(len(shapes))
        )

    def work(self, shapes: Sequence[BatchShape]) -> WorkColumns:
        """The work of these steps."""
        if self.computes_all_logits:
            shapes = [replace(shape, n_logit_positions=shape.n_rows) for shape in shapes]
        return work_columns(self.model, self.engine, shapes, kv_traffic_ratio=self.kv_traffic_ratio)

    def terms(self, work: WorkColumns) -> TermColumns:
        """Seconds by cause, of all steps at once."""
        posterior = self.posterior()
        return term_columns(posterior.vector, posterior.staircase, work)

    def limits(self, work: WorkColumns) -> tuple[Limit, ...]:
        """The limit of each step, where the data support an answer."""
        return limits(self.posterior(), work)

    def log_half_widths(self, shapes: Sequence[BatchShape], work: WorkColumns) -> F64:
        """Half the width of the 90 % interval of the logarithm of each step's time."""
        return log_half_widths(self.doubts, self.box, shapes, self.log_variance(work))

    def log_variance(self, work: WorkColumns) -> F64:
        """Variance of log time from the uncertainty of the parameters."""
        return self.posterior().log_time_variance(work)

    def posterior(self) -> ParameterPosterior:
        """The parameters as vectors, with their covariance."""
        return posterior_of(
            self.physical(),
            self.staircase_rows,
            self.staircase_log_ratio,
            self.free,
            self.covariance,
        )

    def physical(self) -> StepParameters:
        """All parameters by name."""
        return StepParameters(**{entry.name: entry.estimate.value for entry in self.parameters})

    def save(self, path: Path) -> None:
        """Write the model to a JSON file."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    def _estimate(self, duration_s: float, factor_ratio: float) -> Estimate:
        return Estimate(
            value=duration_s,
            low=duration_s / factor_ratio,
            high=duration_s * factor_ratio,
            confidence_fraction=CONFIDENCE_FRACTION,
            n_samples=self.trained_on.n_observations,
            method="parameter covariance and held-out errors",
        )


def _terms_at(terms: TermColumns, index: int) -> tuple[Term, ...]:
    seconds = {
        "launch": terms.launch,
        "weights": terms.weights,
        "kv": terms.kv,
        "matmul": terms.matmul,
        "attention": terms.attention,
        "logits": terms.head_weights + terms.head_matmul,
        "per_sequence": terms.per_sequence,
        "communication": terms.communication,
    }
    return tuple(
        Term(name=name, duration_s=float(column[index])) for name, column in seconds.items()
    )


FIT_NAME: Final = "step_time.json"
"""File name of a fit in the folder of its run."""


def load_step_time_model(path: Path) -> StepTimeModel:
    """The model of a JSON file, or of the folder of the run that it was fitted to.

    Raises
    ------
    ModelError
        No such file, not a step-time model, or of a version that this one does not read.
    """
    path = path / FIT_NAME if path.is_dir() else path
    again = suggestions.command("fit", "RUN")
    door = Door(
        noun="step-time model", allowed="a file of inferometer fit", refusal=ModelError, try_=again
    )
    content, where = door.bytes_of(path), str(path)
    version = door.json(content, _Versioned, where=where).schema_version
    if version != SCHEMA_VERSION:
        raise ModelError(
            f"schema version {version}", where=where, allowed=str(SCHEMA_VERSION), try_=again
        )
    return door.json(content, StepTimeModel, where=where)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Versioned:
    schema_version: int
