"""What is believed of a device's step times before any of its runs was seen: shares of its datasheet's peaks, and times of a host?

Shares are what other devices reach, so that two devices' parameters are compared as distances from these centres.
Letters of shapes: P unknowns, D devices.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from inferometer.fit.priors import BLEND_OF_GPU
from inferometer.perfmodel.roofline import peaks_of
from inferometer.perfmodel.steptime_terms import PARAMETERS
from inferometer.records.types import F64
from inferometer.spec.types import EngineSpec, HardwareSpec, ModelSpec

UNKNOWNS: Final = (*PARAMETERS, "front_end_s", "prompt_token_s")
"""Of a deployment: its step times; what a request spends before the scheduler and behind it, and that for each token of its prompt."""

_BETWEEN: Final = 0.4
"""Deviation of one device from what it shares with others, in the deviation of what is believed of all."""
_BETWEEN_VENDORS: Final = 0.5
"""Correlation of what devices of two vendors share, chosen with the sizes in ``discrepancy``: their kernels are written by others."""
_SMALL_KERNELS_S: Final = 2.8e-5
"""Ten small kernels of a layer at 2.8 µs; ``priors`` has the source."""
_NO_LINK_BYTES_PER_S: Final = 5e10


class DeviceBelief(NamedTuple):
    """Centres (P), logarithms but for the sag, and standard deviations (P)."""

    centre: F64
    deviation: F64


def device_belief(model: ModelSpec, engine: EngineSpec, hardware: HardwareSpec) -> DeviceBelief:
    """What the datasheet lets expect of this model on this device.

    Raises
    ------
    SpecError
        The device does not compute in the format.
    """
    peaks = peaks_of(hardware, engine)
    table = {
        "launch_s": (3e-3, 0.7),
        "weight_bytes_per_s": (0.6 * peaks.memory_bytes_per_s, 0.4),
        "kv_bytes_per_s": (0.5 * peaks.memory_bytes_per_s, 0.6),
        "matmul_flop_per_s": (0.45 * peaks.flop_per_s, 0.6),
        "attention_flop_per_s": (0.25 * peaks.flop_per_s, 0.8),
        "per_sequence_s": (1e-5, 1.0),
        "link_bytes_per_s": (0.4 * (peaks.link_bytes_per_s or _NO_LINK_BYTES_PER_S), 0.7),
        "message_s": (1e-5, 0.7),
        "floor_s": (_SMALL_KERNELS_S * model.n_layers, 0.6),
        "prefill_ratio": (1.5, 0.5),
        "overlap_ratio": (4.0, 0.0),
        "blend_ratio": (BLEND_OF_GPU, 0.15),
        "mixed_kv_ratio": (1.2, 0.3),
        "sag_ratio": (1.0, 0.1),
        "front_end_s": (8e-3, 0.8),
        "prompt_token_s": (2e-6, 1.0),
    }
    return DeviceBelief(
        centre=np.array([float(np.log(table[name][0])) for name in UNKNOWNS]),
        deviation=np.array([table[name][1] for name in UNKNOWNS]),
    )


def joint_covariance(deviation: F64, vendors: Sequence[str]) -> F64:
    """(D·P, D·P) Of the distances from the centres: what all devices share, what those of one vendor share, and each one's own."""
    is_same = np.array([[one == other for other in vendors] for one in vendors])
    shared = (1 - _BETWEEN**2) * np.where(is_same, 1.0, _BETWEEN_VENDORS) + np.eye(len(vendors)) * _BETWEEN**2
    return np.asarray(np.kron(shared, np.diag(deviation**2)), dtype=np.float64)


__all__ = ["UNKNOWNS", "DeviceBelief", "device_belief", "joint_covariance"]
