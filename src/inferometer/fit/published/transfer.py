"""Step times of a fitted model on another device or number of devices, of another model, format or engine.

Two kinds of steps are compared as distances of their parameters from their priors (``priors``). A
distance that was measured is carried over as far as devices, models, formats and engines resemble
one another (``between``); a parameter that was not measured keeps the new prior. What is not shared
widens the model's own uncertainty: the discrepancy between devices, and the errors that published
rows show where another model, format or engine was predicted from them. Devices of one chip, such
as H100 and H200, run the same kernels: between them a distance is carried whole, and where nothing
else differs the staircase and what was not measured are carried too, so that more bandwidth is never
slower. Letters of shapes: P parameters, R knots of the staircase.
"""

import math
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from inferometer.errors import OutOfRangeError
from inferometer.fit.published.priors import (
    HOST,
    TPOT,
    TTFT,
    UNKNOWNS,
    Discrepancy,
    Places,
    covariance,
    device_prior,
    has_same_chip,
    likeness,
)
from inferometer.inputs.types import AskedFormat, DType, EngineSpec, HardwareSpec, ModelSpec
from inferometer.perfmodel.steptime import FittedParameter, StepTimeModel, parameter_estimate
from inferometer.perfmodel.steptime_limits import PhaseName, PhaseUncertainty, fastest_steps
from inferometer.perfmodel.steptime_terms import PARAMETERS
from inferometer.perfmodel.types import FitSubject
from inferometer.records.columns import F64, Bools
from inferometer.stats.estimate import Z_90

_MISSES: Final[dict[PhaseName, Discrepancy]] = {"decode": TPOT, "prefill": TTFT}
_LINK: Final = ("link_bytes_per_s", "message_s")
_METHOD: Final = (
    "carried over from another device, as far as devices resemble one another in published tables"
)
OF_OTHERS: Final[dict[str, dict[PhaseName, float]]] = {
    "model": {"decode": 0.48, "prefill": 0.73},
    "format": {"decode": 0.29, "prefill": 0.19},
    "engine": {"decode": 0.48, "prefill": 1.11},
}
"""Standard deviations of log time by what differs, as ``bench/bench_transfer.py`` sets them by the
learned half of the families. Two are wider: they keep what the pairs of one device, B300, needed.
Few pairs differ in the engine alone; and decode steps of another model that transformers ran on a
H200, an engine without published rows, lie outside of what the learned half asks for (0.22)."""
_BETWEEN_MODELS: Final = 0.9
_BETWEEN_FAMILIES: Final = 0.6
_BETWEEN_ENGINES: Final = 0.95
_BETWEEN_FORMATS: Final = 0.8
"""Correlation of two models, of a dense one and a mixture of experts, of two engines, of two
formats; chosen by likelihood on one half of the families, whole models and devices left out."""
_BETWEEN_FORMATS_OF: Final = {
    "weight_bytes_per_s": _BETWEEN_FORMATS,
    "matmul_flop_per_s": _BETWEEN_FORMATS,
    "blend_ratio": _BETWEEN_FORMATS,
    "sag_ratio": _BETWEEN_FORMATS,
    "floor_s": 0.95,
}
"""Of what the format of the weights changes: products, and few of the small kernels (those that
narrow the activations)."""
_BETWEEN_FORMATS_ELSE: Final = 0.995
"""Of what it does not: the host, attention, the KV cache and the link do the same work. With 0.8 for
all, models without rows were predicted up to 1.7 times slower in 8 bit than in 16 bit, as
the rows of the two formats are those of other models and engines."""


class Changed(NamedTuple):
    """What differs from the fit; None: as in the fit."""

    model: ModelSpec | None = None
    dtype: DType | None = None
    kv_dtype: DType | None = None
    quantization: AskedFormat | None = None
    """Format of weights; ``none``: as the activations."""
    framework: str | None = None
    """The engine."""


def transferred(
    fit: StepTimeModel,
    source: HardwareSpec,
    target: HardwareSpec,
    *,
    n_tensor: int,
    changed: Changed | None = None,
) -> StepTimeModel:
    """The step times of ``n_tensor`` devices ``target``, from a fit of ``source``.

    ``changed`` is what else differs: the model, the number formats, the engine.

    ``subject`` states from where they were carried over.

    Raises
    ------
    OutOfRangeError
        One of the devices is no GPU: nothing is known of how others resemble one another.
    SpecError
        The new device does not compute in the format.
    """
    changed = changed or Changed()
    for device in (source, target):
        if device.kind != "gpu":
            raise OutOfRangeError(
                f"step times cannot be carried from {source.name} to {target.name}",
                where="--transfer, --hardware",
                allowed="GPUs: published tables show how these resemble one another",
                try_=f"inferometer sweep on {target.name}, then inferometer fit",
            )
    engine, model = _engine_of(fit, n_tensor, changed), changed.model or fit.model
    differing = _differing(fit, engine, changed)
    vector, spread = _carried(fit, source, target, engine, changed)
    sd = np.sqrt(np.diag(spread))
    free = [k for k in range(len(PARAMETERS)) if sd[k] > 0]
    apart = _Apart(source, target, fit.engine.tensor_parallel_size, n_tensor)
    knots = _knots_of(fit) if _runs_the_same(fit, source, target, engine, changed) else _NO_KNOTS
    return replace(
        fit,
        model=model,
        engine=engine,
        parameters=tuple(
            _parameter(one, float(vector[k]), float(sd[k])) for k, one in enumerate(_in_order(fit))
        ),
        staircase_rows=knots.rows,
        staircase_log_ratio=knots.log_ratio,
        free=(*(PARAMETERS[k] for k in free), *knots.names),
        covariance=_both(spread[np.ix_(free, free)], knots.covariance),
        uncertainties=tuple(
            _widened(uncertainty, _lost(fit, knots), apart, differing)
            for uncertainty in fit.uncertainties
        ),
        held_out=(),
        fastest=fastest_steps(target, engine),
        subject=_subject(fit, source, target, engine, changed),
    )


class _Knots(NamedTuple):
    """Knots of a staircase, with their uncertainty."""

    rows: tuple[int, ...]
    log_ratio: tuple[float, ...]
    names: tuple[str, ...]
    """As in a fit's ``free``; empty where the staircase is fixed."""
    covariance: F64
    """Covariance of the free ones."""


_NO_KNOTS: Final = _Knots((), (), (), np.zeros((0, 0)))


def _knots_of(fit: StepTimeModel) -> _Knots:
    names = tuple(name for name in fit.free if name not in PARAMETERS)
    n_before, n_free = len(fit.free) - len(names), len(fit.free)
    own = np.array(fit.covariance, dtype=np.float64).reshape(n_free, n_free)
    return _Knots(fit.staircase_rows, fit.staircase_log_ratio, names, own[n_before:, n_before:])


def _both(parameters: F64, knots: F64) -> tuple[tuple[float, ...], ...]:
    """Covariance of the two together, as if they were independent."""
    n_parameters, n_knots = len(parameters), len(knots)
    found = np.zeros((n_parameters + n_knots, n_parameters + n_knots))
    found[:n_parameters, :n_parameters], found[n_parameters:, n_parameters:] = parameters, knots
    return tuple(tuple(row) for row in found.tolist())


def _lost(fit: StepTimeModel, knots: _Knots) -> float:
    """Mean square of the steps of a staircase that is dropped."""
    is_lost = fit.staircase_log_ratio and not knots.rows
    return float(np.mean(np.square(fit.staircase_log_ratio))) if is_lost else 0.0


def _runs_the_same(
    fit: StepTimeModel,
    source: HardwareSpec,
    target: HardwareSpec,
    engine: EngineSpec,
    changed: Changed,
) -> bool:
    """Does the same chip run the same kernels on matrices of the same sizes?"""
    return (
        has_same_chip(source, target)
        and not _differing(fit, engine, changed)
        and engine.tensor_parallel_size == fit.engine.tensor_parallel_size
    )


def _subject(
    fit: StepTimeModel,
    source: HardwareSpec,
    target: HardwareSpec,
    engine: EngineSpec,
    changed: Changed,
) -> FitSubject | None:
    """New subject of the fit, with the source of the transfer."""
    if fit.subject is None:
        return None
    differing = _differing(fit, engine, changed)
    return replace(
        fit.subject.with_engine(engine),
        hardware_id=target.hardware_id,
        device=target.name,
        machine=None,
        engine=changed.framework or fit.subject.engine,
        engine_version=None if "engine" in differing else fit.subject.engine_version,
        transferred_from=_words(fit, source, differing),
    )


def _engine_of(fit: StepTimeModel, n_tensor: int, changed: Changed) -> EngineSpec:
    was = fit.engine
    weights = changed.quantization
    return replace(
        was,
        tensor_parallel_size=n_tensor,
        dtype=changed.dtype or was.dtype,
        kv_cache_dtype=changed.kv_dtype or was.kv_cache_dtype,
        quantization=(
            was.quantization if weights is None else None if weights == "none" else weights
        ),
    )


def _differing(fit: StepTimeModel, engine: EngineSpec, changed: Changed) -> frozenset[str]:
    """Those of model, format and engine that differ."""
    was, framework = fit.engine, None if fit.subject is None else fit.subject.engine
    is_other = {
        "model": changed.model is not None and changed.model != fit.model,
        "format": _formats(was) != _formats(engine),
        "engine": changed.framework is not None and changed.framework != framework,
    }
    return frozenset(name for name, is_changed in is_other.items() if is_changed)


def _formats(engine: EngineSpec) -> tuple[DType, DType]:
    """Formats of the weights, and of the KV cache."""
    return engine.quantization or engine.dtype, engine.kv_cache_dtype or engine.dtype


def _words(fit: StepTimeModel, source: HardwareSpec, differing: frozenset[str]) -> str:
    """What was measured, as far as it differs, in words."""
    was = fit.engine
    parts = {
        "model": fit.model.model_id,
        "format": f"in {was.quantization or was.dtype}",
        "engine": f"by {None if fit.subject is None else fit.subject.engine}",
    }
    named = [words for name, words in parts.items() if name in differing]
    devices = f"{was.tensor_parallel_size} x {source.name}"
    return f"{' '.join(named)} on {devices}" if named else devices


def _carried(
    fit: StepTimeModel,
    source: HardwareSpec,
    target: HardwareSpec,
    engine: EngineSpec,
    changed: Changed,
) -> tuple[F64, F64]:
    """Mean (P), logarithms but for the sag, and covariance (P, P) on the new devices."""
    n_parameters = len(PARAMETERS)
    model, differing = changed.model or fit.model, _differing(fit, engine, changed)
    framework = (None if fit.subject is None else fit.subject.engine) or "vllm"
    here = device_prior(fit.model, fit.engine, source, framework)
    there = device_prior(model, engine, target, changed.framework or framework)
    alike = np.array([likeness(source, target, is_host=name in HOST) for name in PARAMETERS])
    alone = {
        "is_model": "model" not in differing,
        "is_moe": (fit.model.moe is None) == (model.moe is None),
        "is_engine": "engine" not in differing,
    }
    shared = between(**alone, is_format="format" not in differing)[:n_parameters]
    # One chip's kernels reach the same share of what the prior knows of either memory.
    shared *= 1.0 if has_same_chip(source, target) else alike
    is_measured = _is_measured(fit)
    is_carried = is_measured | _runs_the_same(fit, source, target, engine, changed)
    measured = fit.physical().vector()
    distance = measured - here.mean[:n_parameters]
    prior_covariance = there.sd[:n_parameters] ** 2
    carried = there.mean[:n_parameters] + np.where(is_carried, shared * distance, 0.0)
    vector = np.minimum(carried, there.upper[:n_parameters])
    spread = np.where(
        np.outer(is_measured, is_measured), np.outer(alike, alike) * _covariance(fit), 0.0
    )
    spread += np.diag(np.where(is_measured, (1 - alike**2) * prior_covariance, prior_covariance))
    is_fixed = np.array(
        [
            parameter.informed_by == "fixed" and parameter.name not in _LINK
            for parameter in _in_order(fit)
        ]
    )
    vector = np.where(is_fixed, measured, vector)
    spread[is_fixed, :] = spread[:, is_fixed] = 0.0
    return vector, spread


def between(*, is_model: bool, is_moe: bool, is_engine: bool, is_format: bool) -> F64:
    """(P) Correlation of two kinds' deviations from their priors, by their similarity.

    ``is_moe``: dense or not in both. Of all unknowns.
    """
    model = 1.0 if is_model else _BETWEEN_MODELS if is_moe else _BETWEEN_FAMILIES
    engine = 1.0 if is_engine else _BETWEEN_ENGINES
    formats = [
        1.0 if is_format else _BETWEEN_FORMATS_OF.get(name, _BETWEEN_FORMATS_ELSE)
        for name in UNKNOWNS
    ]
    return model * engine * np.array(formats)


def _in_order(fit: StepTimeModel) -> list[FittedParameter]:
    by_name = {parameter.name: parameter for parameter in fit.parameters}
    return [by_name[name] for name in PARAMETERS]


def _is_measured(fit: StepTimeModel) -> Bools:
    """(P) Was the parameter informed by data (also if at the device's peak)?"""
    return np.array(
        [
            parameter.informed_by in {"data", "data and prior", "bound"}
            for parameter in _in_order(fit)
        ]
    )


def _covariance(fit: StepTimeModel) -> F64:
    """(P, P) Of the fit's parameters; 0 where it does not vary them."""
    places = [PARAMETERS.index(name) for name in fit.free if name in PARAMETERS]
    own = np.array(fit.covariance, dtype=np.float64).reshape(len(fit.free), len(fit.free))
    found = np.zeros((len(PARAMETERS), len(PARAMETERS)))
    found[np.ix_(places, places)] = own[: len(places), : len(places)]
    return found


def _parameter(was: FittedParameter, place: float, sd: float) -> FittedParameter:
    if sd == 0:
        return was
    estimate = parameter_estimate(
        was.name, place, sd, n_samples=was.estimate.n_samples, method=_METHOD
    )
    informed_by = "prior" if was.informed_by == "fixed" else was.informed_by
    return FittedParameter(name=was.name, estimate=estimate, informed_by=informed_by)


class _Apart(NamedTuple):
    source: HardwareSpec
    target: HardwareSpec
    n_measured: int
    n_asked: int

    def places(self) -> tuple[Places, Places]:
        """Coordinates of both, equal except for device and number of devices."""
        here, there = (
            Places(
                doublings=np.log2([[n_devices, 1.0, 1.0, 1.0]]),
                versions=("",),
                devices=(device.hardware_id,),
                layouts=("",),
            )
            for device, n_devices in ((self.source, self.n_measured), (self.target, self.n_asked))
        )
        return here, there


def _widened(
    uncertainty: PhaseUncertainty, lost_square: float, apart: _Apart, differing: frozenset[str]
) -> PhaseUncertainty:
    """The spread of a phase with the discrepancy that is not shared, and a lost staircase."""
    size = _MISSES[uncertainty.phase]
    shared = float(covariance(size, *apart.places())[0, 0])
    discrepancy = size.amplitude_ratio**2 - shared**2 / size.amplitude_ratio**2
    others = sum(OF_OTHERS[name][uncertainty.phase] ** 2 for name in differing)
    return replace(
        uncertainty,
        spread_ratio=math.sqrt(uncertainty.spread_ratio**2 + discrepancy + lost_square + others),
        interval_ratio=max(uncertainty.interval_ratio, Z_90),
    )
