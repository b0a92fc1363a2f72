"""Ceilings of this machine (read, copy, multiply), measured with torch.

Same kernels, threads and device as the engine?
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

import torch

from inferometer.inputs.types import DType
from inferometer.measure.ceilings import PROBE_S, affordable_rows, fastest_s
from inferometer.measure.engines.protocol import Ceiling, ProbeSettings
from inferometer.records.types import ProbeKind

_TORCH_DTYPE: Final[dict[DType, torch.dtype]] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
_CUDA_MATMUL_ROWS: Final = 8192
_MATRIX_COLUMNS: Final = 1024


class TorchCeilings:
    """Probes with torch: for engines whose environment has it."""

    def __init__(self) -> None:
        self._source: torch.Tensor | None = None
        self._copy: torch.Tensor | None = None
        self._matmul_rows: dict[tuple[DType, str], int] = {}

    @property
    def held_bytes(self) -> int:
        """Memory that the probe keeps between measurements."""
        return sum(0 if held is None else held.nbytes for held in (self._source, self._copy))

    def measure(self, settings: ProbeSettings) -> tuple[Ceiling, ...]:
        """One measurement of each requested kind that torch can make on this device."""
        with torch.inference_mode(), _threads(settings.n_threads):
            return tuple(
                ceiling
                for kind in settings.kinds
                if (ceiling := self._probe(kind, settings)) is not None
            )

    def _probe(self, kind: ProbeKind, settings: ProbeSettings) -> Ceiling | None:
        started_ns = time.perf_counter_ns()
        if kind is ProbeKind.MATMUL:
            return self._matmul(settings, started_ns)
        source = self._source_of(settings)
        if kind is ProbeKind.READ:
            readers = _readers(source, settings.device)
            fastest = min(
                fastest_s(_synchronised(reader, settings.device), budget_s=PROBE_S / len(readers))
                for reader in readers
            )
            per_s = source.nbytes / fastest
        else:
            self._copy = torch.empty_like(source) if self._copy is None else self._copy
            copy = self._copy
            per_s = (
                2
                * source.nbytes
                / fastest_s(_synchronised(lambda: copy.copy_(source), settings.device))
            )
            self._copy = None  # half of the memory, and needed rarely
        return Ceiling(
            kind=kind,
            started_ns=started_ns,
            dtype="",
            footprint_bytes=source.nbytes,
            value_per_s=per_s,
        )

    def _matmul(self, settings: ProbeSettings, started_ns: int) -> Ceiling | None:
        dtype = _TORCH_DTYPE.get(settings.matmul_dtype)
        if dtype is None:
            return None
        place = settings.matmul_dtype, settings.device
        if place not in self._matmul_rows:
            self._matmul_rows[place] = (
                affordable_rows(lambda rows: _multiplied(rows, dtype, settings.device))
                if settings.device == "cpu"
                else _CUDA_MATMUL_ROWS
            )
        rows = self._matmul_rows[place]
        per_s = 2 * rows**3 / fastest_s(_multiplied(rows, dtype, settings.device))
        held_bytes = 3 * rows**2 * dtype.itemsize
        return Ceiling(
            kind=ProbeKind.MATMUL,
            started_ns=started_ns,
            dtype=settings.matmul_dtype,
            footprint_bytes=held_bytes,
            value_per_s=per_s,
        )

    def _source_of(self, settings: ProbeSettings) -> torch.Tensor:
        elements = max(1, settings.footprint_bytes // (4 * _MATRIX_COLUMNS)) * _MATRIX_COLUMNS
        if self._source is None or len(self._source) != elements:
            self._source = torch.ones(elements, dtype=torch.float32, device=settings.device)
        return self._source


def _readers(source: torch.Tensor, device: str) -> tuple[Callable[[], Any], ...]:
    """The fastest ways to read memory in torch.

    A sum from memory, on a CPU also a matrix-vector product, which wins by 7 % inside a cache.

    Max, dot and the product with rows instead of columns were slower at every size.
    """
    if device != "cpu":
        return (source.sum,)
    matrix = source.view(-1, _MATRIX_COLUMNS)
    vector = torch.ones(len(matrix))
    return source.sum, lambda: torch.mv(matrix.t(), vector)


def _multiplied(rows: int, dtype: torch.dtype, device: str) -> Callable[[], Any]:
    left = torch.rand(rows, rows, device=device).to(dtype)
    out = torch.empty_like(left)
    return _synchronised(lambda: torch.matmul(left, left, out=out), device)


def _synchronised(work: Callable[[], Any], device: str) -> Callable[[], Any]:
    if device == "cpu":
        return work

    def work_and_wait() -> None:
        work()
        torch.cuda.synchronize()

    return work_and_wait


@contextmanager
def _threads(n_threads: int | None) -> Generator[None]:
    """Split the cores among tensor-parallel ranks; a ceiling is measured with all of them."""
    before = torch.get_num_threads()
    if n_threads is not None and n_threads != before:
        torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        if n_threads is not None and n_threads != before:
            torch.set_num_threads(before)


def open_probe() -> TorchCeilings:
    """The probe of a worker that has torch."""
    return TorchCeilings()
