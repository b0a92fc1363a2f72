"""inferometer explain COUNTERS: is a device's memory busy, its arithmetic, a link, or nothing?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import numpy as np

from inferometer import __version__
from inferometer.api.answer import Answer
from inferometer.records.columns import F64
from inferometer.records.device_counters import CounterName, read_counters
from inferometer.report.page import Page, lines_of
from inferometer.report.tables import TextTable
from inferometer.units import format_fraction, format_rate

_BUSY_FRACTION: Final = 0.6
"""Decode that streams weights without a pause keeps DRAM active at about this share or more."""
_IDLE_FRACTION: Final = 0.4
_FEW_SAMPLES: Final = 10
_TRUST: Final = "read as sampled, idle times included; what is not listed was not in the file"


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterRow:
    """One counter of one device over the samples of a file."""

    device: str
    name: CounterName
    n_samples: int
    mean_fraction: float | None
    """Of activities; None for bytes."""
    p95_fraction: float | None
    mean_bytes_per_s: float | None
    """None for activities."""
    p95_bytes_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CountersAnswer(Answer):
    """What the counters of each device say."""

    table: ClassVar[str | None] = "counters"

    paths: tuple[str, ...]
    counters: tuple[CounterRow, ...]
    findings: tuple[str, ...]
    """One for each device."""


def explain_counters(paths: tuple[Path, ...]) -> CountersAnswer:
    """Mean and 95th percentile of each counter, and which part of the device is busy.

    Raises
    ------
    RecordError
        A file cannot be read, or has no counter.
    """
    rows = tuple(
        _row(one.device if len(paths) == 1 else f"{path.name}: {one.device}", one.name, one.values)
        for path in paths
        for one in read_counters(path)
    )
    devices = dict.fromkeys(row.device for row in rows)
    return CountersAnswer(
        paths=tuple(map(str, paths)),
        counters=rows,
        findings=tuple(
            _finding(one, [row for row in rows if row.device == one]) for one in devices
        ),
    )


def _row(device: str, name: CounterName, values: F64) -> CounterRow:
    mean, p95 = float(values.mean()), float(np.quantile(values, 0.95))
    is_rate = name.endswith(("sent", "received"))
    return CounterRow(
        device=device,
        name=name,
        n_samples=len(values),
        mean_fraction=None if is_rate else mean,
        p95_fraction=None if is_rate else p95,
        mean_bytes_per_s=mean if is_rate else None,
        p95_bytes_per_s=p95 if is_rate else None,
    )


def _finding(device: str, rows: Sequence[CounterRow]) -> str:
    """Which part is busy; only DCGM's activities tell, not the shares of time of NVML."""
    shares = {row.name: row.mean_fraction for row in rows if row.mean_fraction is not None}
    dram, sm, tensor = (
        shares.get(name) for name in ("DRAM active", "SM active", "tensor cores active")
    )
    words = ", ".join(f"{name} {format_fraction(share)}" for name, share in shares.items())
    if dram is None or sm is None:
        missing = "DRAM active" if dram is None else "SM active"
        return f"{device}: undecided, {missing} is not in the file ({words or 'bytes alone'})"
    if dram >= _BUSY_FRACTION and dram >= (tensor or 0.0):
        what = "memory bandwidth is what is used up"
    elif tensor is not None and tensor >= _BUSY_FRACTION:
        what = "arithmetic is what is used up"
    elif max(dram, sm) < _IDLE_FRACTION:
        what = "neither memory nor SMs are busy: launches, the host, a link, or too little load"
    else:
        what = "no part is used up: kernels wait for one another or do not fill the device"
    return f"{device}: {what} ({words})"


def counters_page(answer: CountersAnswer) -> Page:
    """What is busy first, then each counter."""
    n_least = min(row.n_samples for row in answer.counters)
    few = f"only {n_least} sample{'s' * (n_least > 1)}; " if n_least < _FEW_SAMPLES else ""
    return Page(
        title="; ".join(answer.findings),
        subtitle=", ".join(Path(path).name for path in answer.paths),
        table=TextTable(
            caption="Counters of the devices",
            header=("device", "counter", "samples", "mean", "p95"),
            rows=tuple(
                (
                    row.device,
                    row.name,
                    str(row.n_samples),
                    _cell(row.mean_fraction, row.mean_bytes_per_s),
                    _cell(row.p95_fraction, row.p95_bytes_per_s),
                )
                for row in answer.counters
            ),
        ),
        lines=lines_of(("TRUST", f"{few}{_TRUST}")),
        tool_version=__version__,
    )


def _cell(fraction: float | None, bytes_per_s: float | None) -> str:
    if bytes_per_s is not None:
        return format_rate(bytes_per_s, "B/s")
    return "–" if fraction is None else format_fraction(fraction)
