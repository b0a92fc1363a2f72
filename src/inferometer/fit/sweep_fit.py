"""Which step-time model do these sweeps support, and how wrong is it on configurations that it has not seen?

Letters of shapes: N observations, K free parameters.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from inferometer.errors import ModelError
from inferometer.fit.assembly import data_of, model_of
from inferometer.fit.device_measured import measured_subject, stated_device
from inferometer.fit.held_out import HeldOutPoint, claimed_deviation
from inferometer.fit.observations import LEANER_TRAFFIC, Observations, observe
from inferometer.fit.priors import Ceilings, Priors, ceilings_of, priors_of
from inferometer.fit.regression import Data, Posterior, Strengths, regress
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.perfmodel.steptime_terms import parameters_of
from inferometer.records.types import Run
from inferometer.spec.types import HardwareSpec

N_FOLDS: Final = 10


class StepTimeFit(NamedTuple):
    """A model, and what models fitted without each configuration said of it."""

    model: StepTimeModel
    held_out: tuple[HeldOutPoint, ...]


def fit_step_time(
    runs: Sequence[Run],
    *,
    hardware: HardwareSpec | None = None,
    is_drift_removed: bool | None = None,
    n_folds: int = N_FOLDS,
) -> StepTimeModel:
    """The step-time model that these runs of one model on one engine support, with its held-out error.

    ``hardware`` gives the datasheet's peaks where the runs probed none. ``is_drift_removed`` None
    lets the probes decide.

    Raises
    ------
    ModelError
        Nothing to fit: no run, different subjects, fewer than two observations.
    SpecError
        ``hardware`` is not the device on which the runs were measured.
    """
    return fit_and_validate(
        runs, hardware=hardware, is_drift_removed=is_drift_removed, n_folds=n_folds
    ).model


def fit_and_validate(
    runs: Sequence[Run],
    *,
    hardware: HardwareSpec | None = None,
    is_drift_removed: bool | None = None,
    n_folds: int = N_FOLDS,
) -> StepTimeFit:
    """Like ``fit_step_time``, with the held-out points behind its held-out error."""
    seen = observe(runs, hardware=hardware, is_drift_removed=is_drift_removed)
    if len(seen.rows) < 2:
        raise ModelError(
            f"{len(seen.rows)} step time cannot carry a model",
            allowed="two or more",
            try_="a sweep over batch sizes",
        )
    ceilings = ceilings_of(runs, seen.engine, stated_device(runs, seen.engine, hardware))
    seen = _physical(seen, ceilings)
    posterior = _posterior(seen, ceilings)
    held_out = _held_out(seen, ceilings, n_folds, posterior.strengths)
    subject = measured_subject(runs, seen.engine, ceilings, hardware)
    model = model_of(
        seen,
        _priors(seen, data_of(seen), ceilings),
        posterior,
        held_out,
        subject.hardware_id or subject.device,
    )
    return StepTimeFit(model=replace(model, subject=subject), held_out=held_out)


def cross_validate(
    runs: Sequence[Run],
    n_folds: int = N_FOLDS,
    *,
    hardware: HardwareSpec | None = None,
    is_drift_removed: bool | None = None,
) -> tuple[HeldOutPoint, ...]:
    """What do models say that were fitted without the configuration (prompt, batch) that they are asked about?

    Every configuration is left out once, both phases together; folds are interleaved over the
    sorted configurations.
    """
    seen = observe(runs, hardware=hardware, is_drift_removed=is_drift_removed)
    ceilings = ceilings_of(runs, seen.engine, stated_device(runs, seen.engine, hardware))
    return _held_out(_physical(seen, ceilings), ceilings, n_folds, None)


def _physical(seen: Observations, ceilings: Ceilings) -> Observations:
    """The same with the KV traffic of a leaner attention, where that of the assumed one needs more bandwidth than the device has.

    Tables do not state which attention ran: eager attention is assumed, which copies tens of bytes
    for each byte of the cache.
    """
    peak = ceilings.peaks.get("kv_bytes_per_s")
    if peak is None or seen.kv_traffic_ratio <= 1:
        return seen
    unbounded = _posterior(seen, replace(ceilings, peaks={}))
    rate = parameters_of(unbounded.vector).kv_bytes_per_s
    possible = (
        ratio
        for ratio in (seen.kv_traffic_ratio, *LEANER_TRAFFIC)
        if rate * ratio <= peak * seen.kv_traffic_ratio
    )
    return replace(seen, kv_traffic_ratio=next(possible, LEANER_TRAFFIC[-1]))


def _priors(seen: Observations, data: Data, ceilings: Ceilings) -> Priors:
    return priors_of(seen, data.work, data.log_s, ceilings)


def _posterior(seen: Observations, ceilings: Ceilings, start: Strengths | None = None) -> Posterior:
    data = data_of(seen)
    return regress(data, _priors(seen, data, ceilings), start)


def _held_out(
    seen: Observations, ceilings: Ceilings, n_folds: int, start: Strengths | None
) -> tuple[HeldOutPoint, ...]:
    configurations = sorted({row.configuration for row in seen.rows})
    n_folds = min(n_folds, len(configurations))
    if len(configurations) < 3:
        return ()
    points: list[HeldOutPoint] = []
    for fold in range(n_folds):
        left_out = set(configurations[fold::n_folds])
        is_kept = [row.configuration not in left_out for row in seen.rows]
        training, test = seen.subset(is_kept), seen.subset([not kept for kept in is_kept])
        posterior = _posterior(training, ceilings, start)
        model = model_of(
            training, _priors(training, data_of(training), ceilings), posterior, (), None
        )
        shapes = [row.shape for row in test.rows]
        work = model.work(shapes)
        predicted_s = model.terms(work).total_s
        deviation = claimed_deviation(model, test, model.log_half_widths(shapes, work))
        points += [
            HeldOutPoint(
                phase=row.phase,
                prompt_tokens=row.prompt_tokens,
                batch_size=row.batch_size,
                measured_s=row.duration_s,
                predicted_s=float(predicted_s[i]),
                log_deviation_ratio=float(deviation[i]),
                noise_ratio=row.noise_ratio,
                n_folds=n_folds,
            )
            for i, row in enumerate(test.rows)
        ]
    return tuple(points)
