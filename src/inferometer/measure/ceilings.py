"""How fast can this machine read, copy and multiply, right now?

A probe takes tens of milliseconds, so that it can stand between the repetitions that it judges:
bandwidth on a shared machine drifts by a factor of two within minutes. It is the fastest of several
passes, because a ceiling is what was possible, and it touches as many bytes as the model's weights,
because a cache helps both alike. This file needs numpy alone; workers that have torch use
``engines/torch_ceilings.py``, which asks the same question.
"""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.inputs.types import EngineSpec
from inferometer.measure.engines.protocol import Ceiling, ProbeSettings
from inferometer.records.types import EngineFacts, ProbeKind

MIN_FOOTPRINT_BYTES: Final = 16 * 2**20
MAX_FOOTPRINT_BYTES: Final = 2**30
PROBE_S: Final = 0.025
"""A probe goes on for at least this long …"""
MIN_PASSES: Final = 3
"""… and at least this often."""
_READ_IN_ONE_GO_BYTES: Final = 512 * 2**20
MATMUL_ROWS: Final = 2048
"""Square: 17 GFLOP, of which blocking makes the most on CPUs (1,024 reaches half of the bf16
rate with AMX)."""
LEAST_MATMUL_ROWS: Final = 256
_MOST_PASS_S: Final = 0.1

_Array: TypeAlias = NDArray[Any]
_NUMPY_MATMUL: Final = ("float32",)
"""Formats in which numpy multiplies with a tuned kernel; others are absent."""


def probe_footprint_bytes(weight_bytes: int | None) -> int:
    """Bytes that a probe should touch, for a model with these weight bytes.

    Whole MiB, between the clamps.

    Example
    -------
    >>> probe_footprint_bytes(270_000_000) // 2**20, probe_footprint_bytes(None) // 2**20
    (257, 1024)
    """
    if weight_bytes is None:
        return MAX_FOOTPRINT_BYTES
    return min(max(weight_bytes, MIN_FOOTPRINT_BYTES), MAX_FOOTPRINT_BYTES) // 2**20 * 2**20


def probe_settings(spec: EngineSpec, facts: EngineFacts) -> ProbeSettings:
    """The ceilings that this engine is compared with: memory reads for MBU, matmul for MFU."""
    return ProbeSettings(
        kinds=(ProbeKind.READ, ProbeKind.MATMUL),
        footprint_bytes=probe_footprint_bytes(facts.weight_bytes),
        matmul_dtype=spec.dtype,
        device=spec.device,
        n_threads=n_threads_used(spec),
    )


def n_threads_used(spec: EngineSpec) -> int:
    """The number of compute threads: as requested, else the cores that this process may use."""
    return spec.n_threads or len(os.sched_getaffinity(0))


def fastest_s(
    passes: Callable[[], object], *, budget_s: float = PROBE_S, min_passes: int = MIN_PASSES
) -> float:
    """Seconds of the fastest of several passes.

    Passes are repeated for ``budget_s``, at least ``min_passes`` times.
    """
    best_ns, n_passes, begin_ns = None, 0, time.perf_counter_ns()
    while n_passes < min_passes or time.perf_counter_ns() - begin_ns < budget_s * 1e9:
        start_ns = time.perf_counter_ns()
        passes()
        taken_ns = time.perf_counter_ns() - start_ns
        best_ns = taken_ns if best_ns is None else min(best_ns, taken_ns)
        n_passes += 1
    return (best_ns or 1) / 1e9


def affordable_rows(multiplied: Callable[[int], Callable[[], object]]) -> int:
    """Rows of a square matrix product that takes a tenth of a second at most.

    A probe stands between any two repetitions of a sweep. Three products of 2,048 rows take 0.6 s
    on a core that does 85 GFLOP/s, and a quarter of a minute on a processor without instructions
    for the format; on both, 256 to 1,024 rows reach the same rate.
    """
    flop_per_s = 2 * LEAST_MATMUL_ROWS**3 / fastest_s(multiplied(LEAST_MATMUL_ROWS))
    rows = MATMUL_ROWS
    while rows > LEAST_MATMUL_ROWS and 2 * rows**3 / flop_per_s > _MOST_PASS_S:
        rows //= 2
    return rows


class NumpyCeilings:
    """Probes with numpy and one thread per core used: for engines whose environment has no torch."""

    def __init__(self) -> None:
        self._words: NDArray[np.int64] | None = None
        self._copies: NDArray[np.int64] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._n_threads = 0
        self._matmul_rows: int | None = None

    @property
    def held_bytes(self) -> int:
        """Memory that the probe keeps between measurements."""
        return sum(0 if held is None else held.nbytes for held in (self._words, self._copies))

    def measure(self, settings: ProbeSettings) -> tuple[Ceiling, ...]:
        """One measurement of each requested kind that numpy can make."""
        self._prepare(settings)
        return tuple(
            ceiling
            for kind in settings.kinds
            if (ceiling := self._probe(kind, settings)) is not None
        )

    def _probe(self, kind: ProbeKind, settings: ProbeSettings) -> Ceiling | None:
        started_ns = time.perf_counter_ns()
        if kind is ProbeKind.MATMUL:
            if settings.matmul_dtype not in _NUMPY_MATMUL:
                return None
            rows = self._matmul_rows = self._matmul_rows or affordable_rows(_multiplied)
            return Ceiling(
                kind=kind,
                started_ns=started_ns,
                dtype=settings.matmul_dtype,
                footprint_bytes=3 * rows**2 * np.dtype(np.float32).itemsize,
                value_per_s=2 * rows**3 / fastest_s(_multiplied(rows)),
            )
        words = self._words_of(settings.footprint_bytes)
        if kind is ProbeKind.READ:
            # The cheapest reduction that numpy vectorises: a sum of floats costs more than the
            # reading at one thread. Several passes in one go where one is short: handing work to
            # threads takes 0.1 ms.
            n_passes = max(_READ_IN_ONE_GO_BYTES // words.nbytes, 1)
            per_s = (
                n_passes
                * words.nbytes
                / fastest_s(lambda: self._in_parallel(_read_again_and_again(n_passes), words))
            )
        else:
            self._copies = (
                np.zeros_like(words)
                if self._copies is None or self._copies.size != words.size
                else self._copies
            )
            per_s = (
                2
                * words.nbytes
                / fastest_s(lambda: self._in_parallel(np.copyto, self._copies, words))
            )
        return Ceiling(
            kind=kind,
            started_ns=started_ns,
            dtype="",
            footprint_bytes=words.nbytes,
            value_per_s=per_s,
        )

    def _words_of(self, footprint_bytes: int) -> NDArray[np.int64]:
        if self._words is None or self._words.nbytes != footprint_bytes // 8 * 8:
            # arange and not zeros: untouched zero pages all map to one page that stays in the
            # cache.
            self._words = np.arange(footprint_bytes // 8, dtype=np.int64)
            self._copies = None
        return self._words

    def _prepare(self, settings: ProbeSettings) -> None:
        n_threads = settings.n_threads or len(os.sched_getaffinity(0))
        if n_threads != self._n_threads:
            self._pool = ThreadPoolExecutor(n_threads)
            self._n_threads = n_threads

    def _in_parallel(self, work: Callable[..., object], *arrays: _Array | None) -> None:
        parts: Sequence[Sequence[_Array]] = [
            np.array_split(array, self._n_threads) for array in arrays if array is not None
        ]
        if self._pool is not None:
            list(self._pool.map(work, *parts))


def _read_again_and_again(n_passes: int) -> Callable[[_Array], None]:
    def read(words: _Array) -> None:
        for _ in range(n_passes):
            np.bitwise_or.reduce(words)

    return read


def _multiplied(rows: int) -> Callable[[], object]:
    left = np.ones((rows, rows), dtype=np.float32)
    return lambda: left @ left
