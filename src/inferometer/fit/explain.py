"""Where does the time of each measured point go, and how much of it does the model not explain?"""

from dataclasses import dataclass

from inferometer.fit.observations import PhaseName, observe
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.perfmodel.types import Limit, StepPrediction, Term
from inferometer.records.types import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedStep:
    """One phase of one point: what was measured, and its parts."""

    phase: PhaseName
    prompt_tokens: int
    batch_size: int
    measured_s: float
    """Median over repetitions, at the machine speed at which it was measured."""
    terms: tuple[Term, ...]
    """Parts that sum to ``measured_s``; the last is what the model does not explain, negative
    where the model says more."""
    limited_by: Limit
    prediction: StepPrediction

    @property
    def unexplained_fraction(self) -> float:
        """Share of the measured time that the model does not explain."""
        return 1 - self.prediction.duration_s.value / self.measured_s


def explain(run: Run, model: StepTimeModel) -> tuple[ExplainedStep, ...]:
    """Where did the time of this run's points go, as far as this model can tell?

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
