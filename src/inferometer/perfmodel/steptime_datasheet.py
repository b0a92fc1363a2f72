"""What step times follow from a datasheet alone, in the form that simulations take?

A fitted model is better wherever there is one: datasheets know no host time, no front end and no
kernel's shape. Simulate with ``BEST``, ``LIKELY`` and ``WORST`` to see how far the answer may be
off.
"""

from dataclasses import asdict
from typing import Final

from inferometer.errors import SpecError
from inferometer.perfmodel.roofline import peaks_of
from inferometer.perfmodel.scenario import LIKELY, Efficiency, scaled_peaks
from inferometer.perfmodel.steptime import FittedParameter, StepTimeModel, TrainedOn
from inferometer.perfmodel.steptime_terms import StepParameters
from inferometer.spec.types import EngineSpec, HardwareSpec, ModelSpec
from inferometer.stats.estimate import Estimate

_NOTHING_S: Final = 1e-12
"""No time, where the closed form takes logarithms."""
_BLEND: Final = {"everything": 64.0, "compute and memory": 64.0, "nothing": 1.0}
"""Exponent at which reading and multiplying overlap fully (a maximum), or follow one another (a
sum)."""


def datasheet_step_time(
    model: ModelSpec, engine: EngineSpec, hardware: HardwareSpec, efficiency: Efficiency = LIKELY
) -> StepTimeModel:
    """The step-time model of a device that reaches these shares of its peaks, and launches kernels in no time.

    Raises
    ------
    SpecError
        The device does not compute in the format, or several devices have no known link between
        them.
    """
    peaks = scaled_peaks(peaks_of(hardware, engine), efficiency)
    if engine.tensor_parallel_size > 1 and peaks.link_bytes_per_s is None:
        raise SpecError(
            "no link between devices is known",
            where="--hardware",
            allowed="one device",
            try_="--tp 1",
        )
    parameters = StepParameters(
        launch_s=_NOTHING_S,
        weight_bytes_per_s=peaks.memory_bytes_per_s,
        kv_bytes_per_s=peaks.memory_bytes_per_s,
        matmul_flop_per_s=peaks.flop_per_s,
        attention_flop_per_s=peaks.flop_per_s,
        per_sequence_s=_NOTHING_S,
        link_bytes_per_s=peaks.link_bytes_per_s or peaks.memory_bytes_per_s,
        message_s=max(peaks.message_latency_s, _NOTHING_S),
        floor_s=_NOTHING_S,
        prefill_ratio=1.0,
        overlap_ratio=1.0,
        blend_ratio=_BLEND[efficiency.overlap],
        sag_ratio=0.0,
    )
    return StepTimeModel(
        model=model,
        engine=engine,
        parameters=tuple(
            FittedParameter(name=name, estimate=_assumed(value), told_by="fixed")
            for name, value in asdict(parameters).items()
        ),
        kv_traffic_ratio=1.0,
        staircase_rows=(),
        staircase_log_ratio=(),
        free=(),
        covariance=(),
        doubts=(),
        box=(),
        trained_on=TrainedOn(
            run_ids=(),
            hardware=hardware.name,
            attention_implementation=None,
            n_observations=0,
            n_configurations=0,
            is_drift_removed=False,
        ),
        held_out=(),
    )


def _assumed(value: float) -> Estimate:
    return Estimate(
        value=value, low=value, high=value, confidence_fraction=0.9, n_samples=1, method="datasheet"
    )
