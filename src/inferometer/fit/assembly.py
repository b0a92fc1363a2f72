"""What goes into a regression, and which step-time model do its posterior and held-out errors make?"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from inferometer.fit.held_out import PHASES, HeldOutPoint, held_out_errors, interval_ratio
from inferometer.fit.observations import Observations
from inferometer.fit.priors import Belief, Priors
from inferometer.fit.regression import AT_BOUND, Data, Posterior, Strengths
from inferometer.perfmodel.steptime import FittedParameter, StepTimeModel, ToldBy, TrainedOn
from inferometer.perfmodel.steptime_box import box_of
from inferometer.perfmodel.steptime_limits import PhaseDoubt, PhaseName
from inferometer.perfmodel.steptime_terms import PARAMETERS, parameters_of, work_columns
from inferometer.stats.estimate import Z_90, Estimate


def data_of(seen: Observations) -> Data:
    """The observations as arrays."""
    ratio = seen.kv_traffic_ratio
    return Data(
        work=work_columns(
            seen.model, seen.engine, [row.shape for row in seen.rows], kv_traffic_ratio=ratio
        ),
        log_s=np.log([row.duration_s for row in seen.rows]),
        noise=np.array([row.noise_ratio for row in seen.rows]),
        is_prefill=np.array([row.phase == "prefill" for row in seen.rows]),
    )


def model_of(
    seen: Observations,
    priors: Priors,
    posterior: Posterior,
    held_out: Sequence[HeldOutPoint],
    hardware: str | None,
) -> StepTimeModel:
    """The model of these parameters, doubts and held-out errors."""
    doubts = tuple(
        _doubt(phase, posterior.strengths, held_out)
        for phase in PHASES
        if any(row.phase == phase for row in seen.rows)
    )
    return StepTimeModel(
        model=seen.model,
        engine=seen.engine,
        parameters=_parameters(posterior, priors, len(seen.rows)),
        kv_traffic_ratio=seen.kv_traffic_ratio,
        staircase_rows=tuple(round(float(row)) for row in np.exp(posterior.staircase.log_rows)),
        staircase_log_ratio=tuple(posterior.staircase.log_ratio.tolist()),
        free=posterior.free,
        covariance=tuple(tuple(row) for row in posterior.covariance.tolist()),
        doubts=doubts,
        box=box_of([row.shape for row in seen.rows]),
        trained_on=TrainedOn(
            run_ids=seen.run_ids,
            hardware=hardware,
            attention_implementation=seen.attention_implementation,
            n_observations=len(seen.rows),
            n_configurations=len({row.configuration for row in seen.rows}),
            is_drift_removed=seen.drift is not None,
        ),
        held_out=held_out_errors(held_out),
        computes_all_logits=seen.computes_all_logits,
    )


def _doubt(phase: PhaseName, strengths: Strengths, held_out: Sequence[HeldOutPoint]) -> PhaseDoubt:
    standardised = np.abs([point.standardised_ratio for point in held_out if point.phase == phase])
    spread = strengths.prefill_ratio if phase == "prefill" else strengths.decode_ratio
    return PhaseDoubt(phase=phase, spread_ratio=spread, interval_ratio=interval_ratio(standardised))


def _parameters(
    posterior: Posterior, priors: Priors, n_observations: int
) -> tuple[FittedParameter, ...]:
    values = parameters_of(posterior.vector)
    deviations = dict(
        zip(posterior.free, np.sqrt(np.diag(posterior.covariance)).tolist(), strict=True)
    )
    fitted: list[FittedParameter] = []
    for name, belief in zip(PARAMETERS, priors.beliefs, strict=True):
        value, deviation = float(getattr(values, name)), Z_90 * deviations.get(name, 0.0)
        low, high = (
            (value - deviation, value + deviation)
            if name == "sag_ratio"
            else (value * np.exp(-deviation), value * np.exp(deviation))
        )
        told_by = _told_by(
            deviations.get(name), belief, float(np.log(value)) if value > 0 else value
        )
        high = min(high, np.exp(belief.highest_ratio))
        method = (
            f"Laplace approximation; prior: {belief.why}"
            if told_by != "fixed"
            else f"not fitted: {belief.why}"
        )
        estimate = Estimate(
            value=value,
            low=float(low),
            high=float(high),
            confidence_fraction=0.9,
            n_samples=n_observations,
            method=method,
        )
        if told_by == "fixed":
            estimate = replace(estimate, low=None, high=None)
        fitted.append(FittedParameter(name=name, estimate=estimate, told_by=told_by))
    return tuple(fitted)


def _told_by(posterior_deviation: float | None, belief: Belief, place: float) -> ToldBy:
    if posterior_deviation is None or belief.deviation_ratio == 0:
        return "fixed"
    if place > belief.highest_ratio - AT_BOUND:
        return "bound"
    share = posterior_deviation / belief.deviation_ratio
    return "data" if share < 0.3 else "data and prior" if share < 0.8 else "prior"
