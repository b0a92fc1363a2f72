"""How do a model's misses on published loads hang together: who misses here, misses how much there?

A Gaussian process over what was asked: misses of one sign reach over some doublings of devices,
lengths and users, less far to another version or device. Its sizes and reaches were learned on one
half of the families of InferenceX's tables (engine, model, precision; bench_published_devices.py
says which and what was asked), so that loads left out, among them larger batches, other lengths and
other devices than any seen, came as close as claimed; the other half tells how well that holds.
Letters of shapes: N, M loads.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from inferometer.fit.published_loads import PublishedLoad
from inferometer.records.columns import F64


class Discrepancy(NamedTuple):
    """Standard deviations of log latency, and reaches in doublings."""

    amplitude_ratio: float
    reaches_ratio: tuple[float, float, float, float, float]
    """Of devices, prompt tokens, output tokens, users; and one that every other version is away."""
    between_devices_ratio: float
    """Correlation of two devices' misses."""
    noise_ratio: float
    near_ratio: float
    """A load counts as near to seen ones where less than this, in amplitudes, is left to be
    doubted of it."""
    far_ratio: float
    """Deviation of the misses far from all seen loads, in those that were reckoned with; where
    the seen ones miss by more, that."""


TPOT: Final = Discrepancy(
    amplitude_ratio=0.24,
    reaches_ratio=(3.9, 7.0, 5.4, 4.7, 0.6),
    between_devices_ratio=0.6,
    noise_ratio=0.0087,
    near_ratio=0.6,
    far_ratio=1.05,
)
TTFT: Final = Discrepancy(
    amplitude_ratio=0.78,
    reaches_ratio=(7.0, 4.6, 14.0, 4.2, 0.44),
    between_devices_ratio=0.08,
    noise_ratio=0.09,
    near_ratio=0.6,
    far_ratio=1.3,
)


class Places(NamedTuple):
    """Where N loads are: doublings (N, 4), and names of versions and devices."""

    doublings: F64
    versions: tuple[str, ...]
    devices: tuple[str, ...]


def places_of(loads: Sequence[PublishedLoad]) -> Places:
    """What was asked, as places."""
    counts = [
        (
            one.engine.tensor_parallel_size,
            one.load.prompt_tokens,
            one.load.output_tokens,
            one.load.concurrency,
        )
        for one in loads
    ]
    return Places(
        doublings=np.log2(np.array(counts, dtype=np.float64)).reshape(len(loads), 4),
        versions=tuple(one.framework_version for one in loads),
        devices=tuple(one.hardware.hardware_id for one in loads),
    )


def covariance(size: Discrepancy, here: Places, there: Places) -> F64:
    """(N, M) Of the misses, without noise: a Matérn kernel of smoothness 3/2 (Rasmussen and Williams 2006, 4.2.1)."""
    apart = here.doublings[:, None] - there.doublings[None]
    squares = np.sum((apart / np.array(size.reaches_ratio[:4])) ** 2, axis=-1)
    squares += _differ(here.versions, there.versions) / size.reaches_ratio[4] ** 2
    far = np.sqrt(3.0 * squares)
    shared = np.where(_differ(here.devices, there.devices), size.between_devices_ratio, 1.0)
    return np.asarray(size.amplitude_ratio**2 * shared * (1 + far) * np.exp(-far), dtype=np.float64)


def _differ(here: Sequence[str], there: Sequence[str]) -> F64:
    return np.array([[float(one != other) for other in there] for one in here]).reshape(
        len(here), len(there)
    )
