"""Which step times would a fitted model have on another device, or on another number of the same devices?

Devices differ as ``device_beliefs`` says, which is learned from published tables: two devices'
parameters are compared as distances from what datasheets and kernels let expect of each. A distance
that was measured on one device is carried over as far as devices resemble one another; what nothing
was measured of is what is believed of the new device. The misses that devices do not share
(``discrepancy``) are added to the model's own. Letters of shapes: P parameters.
"""

import math
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from inferometer.errors import OutOfRangeError
from inferometer.fit.published.priors import (
    TPOT,
    TTFT,
    Discrepancy,
    Places,
    covariance,
    device_belief,
    likeness,
)
from inferometer.perfmodel.steptime import FittedParameter, StepTimeModel
from inferometer.perfmodel.steptime_limits import PhaseDoubt, PhaseName
from inferometer.perfmodel.steptime_terms import PARAMETERS
from inferometer.records.columns import F64, Bools
from inferometer.spec.types import EngineSpec, HardwareSpec
from inferometer.stats.estimate import Z_90, Estimate

_MISSES: Final[dict[PhaseName, Discrepancy]] = {"decode": TPOT, "prefill": TTFT}
_LINK: Final = ("link_bytes_per_s", "message_s")
_HOST: Final = frozenset({"launch_s", "per_sequence_s", "prefill_ratio"})
"""What the engine's own code takes: no vendor's kernels."""


def transferred(
    fit: StepTimeModel, source: HardwareSpec, target: HardwareSpec, *, n_tensor: int
) -> StepTimeModel:
    """The step times of ``n_tensor`` devices ``target``, from a fit of ``source``.

    ``subject`` says from where they were carried over.

    Raises
    ------
    OutOfRangeError
        One of the devices is no GPU: nothing is known of how others resemble one another.
    SpecError
        The new device does not compute in the format.
    """
    for device in (source, target):
        if device.kind != "gpu":
            raise OutOfRangeError(
                f"step times cannot be carried from {source.name} to {target.name}",
                where="--transfer, --hardware",
                allowed="GPUs: published tables say how these resemble one another",
                try_=f"inferometer sweep on {target.name}, then inferometer fit",
            )
    engine = replace(fit.engine, tensor_parallel_size=n_tensor)
    vector, spread = _carried(fit, source, target, engine)
    deviation = np.sqrt(np.diag(spread))
    free = [k for k in range(len(PARAMETERS)) if deviation[k] > 0]
    is_same = source.hardware_id == target.hardware_id
    apart = _Apart(source, target, fit.engine.tensor_parallel_size, n_tensor)
    return replace(
        fit,
        engine=engine,
        parameters=tuple(
            _parameter(one, float(vector[k]), float(deviation[k]))
            for k, one in enumerate(_in_order(fit))
        ),
        staircase_rows=fit.staircase_rows if is_same else (),
        staircase_log_ratio=fit.staircase_log_ratio if is_same else (),
        free=tuple(PARAMETERS[k] for k in free),
        covariance=tuple(tuple(row) for row in spread[np.ix_(free, free)].tolist()),
        doubts=tuple(_widened(doubt, fit, apart) for doubt in fit.doubts),
        held_out=(),
        subject=(
            None
            if fit.subject is None
            else replace(
                fit.subject,
                hardware_id=target.hardware_id,
                device=target.name,
                machine=None,
                tensor_parallel_size=n_tensor,
                transferred_from=f"{fit.engine.tensor_parallel_size} x {source.name}",
            )
        ),
    )


def _carried(
    fit: StepTimeModel, source: HardwareSpec, target: HardwareSpec, engine: EngineSpec
) -> tuple[F64, F64]:
    """The parameters (P) on the new devices, logarithms but for the sag, and their covariance (P, P)."""
    n_parameters = len(PARAMETERS)
    here, there = (
        device_belief(fit.model, fit.engine, source),
        device_belief(fit.model, engine, target),
    )
    alike = np.array([likeness(source, target, is_host=name in _HOST) for name in PARAMETERS])
    is_measured = _is_measured(fit)
    measured = fit.physical().vector()
    distance = measured - here.centre[:n_parameters]
    believed = there.deviation[:n_parameters] ** 2
    carried = there.centre[:n_parameters] + np.where(is_measured, alike * distance, 0.0)
    vector = np.minimum(carried, there.highest[:n_parameters])
    spread = np.where(
        np.outer(is_measured, is_measured), np.outer(alike, alike) * _covariance(fit), 0.0
    )
    spread += np.diag(np.where(is_measured, (1 - alike**2) * believed, believed))
    is_fixed = np.array(
        [
            parameter.told_by == "fixed" and parameter.name not in _LINK
            for parameter in _in_order(fit)
        ]
    )
    vector = np.where(is_fixed, measured, vector)
    spread[is_fixed, :] = spread[:, is_fixed] = 0.0
    return vector, spread


def _in_order(fit: StepTimeModel) -> list[FittedParameter]:
    by_name = {parameter.name: parameter for parameter in fit.parameters}
    return [by_name[name] for name in PARAMETERS]


def _is_measured(fit: StepTimeModel) -> Bools:
    """(P) What the fitted data say something of."""
    return np.array(
        [parameter.told_by in {"data", "data and prior"} for parameter in _in_order(fit)]
    )


def _covariance(fit: StepTimeModel) -> F64:
    """(P, P) Of the fit's parameters; 0 where it does not vary them."""
    places = [PARAMETERS.index(name) for name in fit.free if name in PARAMETERS]
    own = np.array(fit.covariance, dtype=np.float64).reshape(len(fit.free), len(fit.free))
    found = np.zeros((len(PARAMETERS), len(PARAMETERS)))
    found[np.ix_(places, places)] = own[: len(places), : len(places)]
    return found


def _parameter(was: FittedParameter, place: float, deviation: float) -> FittedParameter:
    half = Z_90 * deviation
    ends = (place, place - half, place + half)
    value, low, high = ends if was.name == "sag_ratio" else (math.exp(end) for end in ends)
    if deviation == 0:
        return was
    method = (
        "carried over from another device, as far as devices resemble one another in published"
        " tables"
    )
    estimate = Estimate(
        value=value,
        low=low,
        high=high,
        confidence_fraction=0.9,
        n_samples=was.estimate.n_samples,
        method=method,
    )
    return FittedParameter(
        name=was.name, estimate=estimate, told_by="prior" if was.told_by == "fixed" else was.told_by
    )


class _Apart(NamedTuple):
    source: HardwareSpec
    target: HardwareSpec
    n_measured: int
    n_asked: int

    def places(self) -> tuple[Places, Places]:
        """Both as places of ``discrepancy``, alike but for the device and the number of devices."""
        here, there = (
            Places(
                doublings=np.log2([[n_devices, 1.0, 1.0, 1.0]]),
                versions=("",),
                devices=(device.hardware_id,),
            )
            for device, n_devices in ((self.source, self.n_measured), (self.target, self.n_asked))
        )
        return here, there


def _widened(doubt: PhaseDoubt, fit: StepTimeModel, apart: _Apart) -> PhaseDoubt:
    """The spread of a phase with the misses that are not shared, and the staircase that is not carried to another device."""
    size = _MISSES[doubt.phase]
    shared = float(covariance(size, *apart.places())[0, 0])
    missed = size.amplitude_ratio**2 - shared**2 / size.amplitude_ratio**2
    is_dropped = (
        bool(fit.staircase_log_ratio) and apart.source.hardware_id != apart.target.hardware_id
    )
    steps = float(np.mean(np.square(fit.staircase_log_ratio))) if is_dropped else 0.0
    return replace(
        doubt,
        spread_ratio=math.sqrt(doubt.spread_ratio**2 + missed + steps),
        interval_ratio=max(doubt.interval_ratio, Z_90),
    )
