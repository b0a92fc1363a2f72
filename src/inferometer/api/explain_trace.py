"""inferometer explain TRACE: what does a profiler's trace say, which kernels and which idle time?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from inferometer.api.answer import Answer
from inferometer.inputs.types import Caution
from inferometer.records.columns import F64
from inferometer.records.device_time import (
    CounterName,
    DeviceTime,
    HostTime,
    IdleCause,
    KernelTime,
    device_times,
    host_times,
    read_counters,
)
from inferometer.records.device_trace import Profiler, read_trace
from inferometer.records.pitfalls import CheckRow, PitfallName, found_sentence, judged_all
from inferometer.report.charts.plot import Axis, Chart, Part, rows_plot, stacked
from inferometer.report.page import Line, Number, Page, Section, lines_of
from inferometer.report.tables import TextTable
from inferometer.units import format_duration, format_fraction, format_number, format_rate

_MOST_ROWS: Final = 20
_HALF: Final = 0.5
_MUCH_IDLE_FRACTION: Final = 0.1
_IDLE_WORDS: Final[dict[IdleCause, str]] = {
    "host": "idle: the host launches late",
    "synchronisation": "idle: the host had waited for the device",
    "launch": "idle: launches on their way",
    "device": "idle: between kernels launched in time",
    "unknown": "idle: no call is in the trace",
}
_PITFALLS: Final[dict[PitfallName, frozenset[IdleCause]]] = {
    "launch_bound": frozenset({"host", "launch"}),
    "synchronisation": frozenset({"synchronisation"}),
}
"""Idle causes that make up each pitfall."""
_COLOURS: Final = ("c0", "c1", "c2", "c3", "c6", "c7")
_IDLE_COLOURS: Final[dict[IdleCause, str]] = {
    "host": "c4",
    "synchronisation": "c5",
    "launch": "shade",
    "device": "idle",
    "unknown": "idle",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceView:
    """One trace: its devices, host operations and calls."""

    path: str
    profiler: Profiler
    devices: tuple[DeviceTime, ...]
    """The busiest first; none in a trace of the host alone."""
    operations: tuple[HostTime, ...]
    calls: tuple[HostTime, ...]
    checks: tuple[CheckRow, ...]
    """Pitfalls of the busiest device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceAnswer(Answer):
    """Parts of the time of profiled devices."""

    table = "traces"

    traces: tuple[TraceView, ...]


def explain_traces(paths: tuple[Path, ...]) -> TraceAnswer:
    """Kernels by kind, and reasons of idle time between them.

    Raises
    ------
    RecordError
        A file is no trace, or is damaged.
    """
    return TraceAnswer(traces=tuple(_view(path) for path in paths))


def _view(path: Path) -> TraceView:
    trace = read_trace(path)
    devices = device_times(trace)
    return TraceView(
        path=str(path),
        profiler=trace.profiler,
        devices=devices,
        operations=host_times(trace.operations),
        calls=host_times(trace.calls),
        checks=judged_all(
            {name: _idle_fraction(devices, causes) for name, causes in _PITFALLS.items()}
        ),
    )


def _idle_fraction(devices: Sequence[DeviceTime], causes: frozenset[IdleCause]) -> float | None:
    """Idle share of the busiest device by these causes; None where the trace has no calls."""
    if not devices or devices[0].median_launch_call_s is None:
        return None
    return sum((one.window_fraction for one in devices[0].idle if one.cause in causes), 0.0)


def trace_pages(answer: TraceAnswer) -> tuple[Page, ...]:
    """A page for each file."""
    return tuple(_page(view) for view in answer.traces)


def _page(view: TraceView) -> Page:
    device = view.devices[0] if view.devices else None
    return Page(
        title=_host_title(view) if device is None else _title(device),
        subtitle=f"{view.profiler} · {Path(view.path).name}"
        + (f" · {len(view.devices)} devices, the busiest first" if len(view.devices) > 1 else ""),
        numbers=() if device is None else _numbers(device),
        table=_host_table("Host operations", view.operations)
        if device is None
        else _kernel_table("Kernels by kind", device.kinds, device),
        chart=_chart(view) if view.devices else None,
        lines=() if device is None else _lines(device, view.checks),
        cautions=_PROFILED,
        sections=_sections(view),
    )


_PROFILED: Final = (
    Caution(
        code="PROFILED",
        text="a profiler slows the host: kernels last as long as without it, idle time is longer",
        remedy="compare step times with and without the profiler: inferometer sweep, load",
    ),
)


def _title(device: DeviceTime) -> str:
    name = device.device_name or f"device {device.device}"
    largest = device.kinds[0]
    busy = f"{name} is busy {format_fraction(device.busy_fraction)} of {format_duration(device.window_s)}"
    most = f"{largest.name} takes most of it ({format_fraction(largest.device_time_fraction)})"
    if not device.idle or 1 - device.busy_fraction < _MUCH_IDLE_FRACTION:
        return f"{busy}: {most}"
    cause = device.idle[0]
    is_mostly_idle = device.busy_fraction < _HALF
    waits = f"{_IDLE_WORDS[cause.cause]} ({format_fraction(cause.window_fraction)})"
    return f"{busy}: mostly {waits}" if is_mostly_idle else f"{busy}: {most}; {waits}"


def _host_title(view: TraceView) -> str:
    largest = view.operations[0]
    return (
        f"No device in this trace; on the host {largest.name} takes most"
        f" ({format_fraction(largest.self_fraction)} of the time of operations)"
    )


def _numbers(device: DeviceTime) -> tuple[Number, ...]:
    numbers = [
        Number(name="device busy", value=100 * device.busy_fraction, unit="%"),
        Number(name="launches", value=device.launches_per_s, unit="1/s"),
    ]
    if device.median_launch_call_s is not None:
        numbers.append(
            Number(name="a launch call", value=1e6 * device.median_launch_call_s, unit="µs", note="median, on the host")
        )  # fmt: skip
    numbers += [
        Number(
            name=_IDLE_WORDS[part.cause],
            value=100 * part.window_fraction,
            unit="%",
            note=f"{format_duration(part.idle_s)} in {part.n_gaps:,} gaps",
        )
        for part in device.idle
    ]
    return tuple(numbers)


def _lines(device: DeviceTime, checks: Sequence[CheckRow]) -> tuple[Line, ...]:
    late = max(device.kinds, key=lambda one: one.idle_before_s)
    return lines_of(
        (
            "WHY",
            f"most idle time ends with {late.name}:"
            f" {format_duration(late.idle_before_s)} before {late.n_launches:,} launches"
            if late.idle_before_s > 0
            else "",
        ),
        ("ALSO", found_sentence(checks)),
    )


def _sections(view: TraceView) -> tuple[Section, ...]:
    tables = [
        table
        for device in view.devices
        for table in (
            _kernel_table(f"Device {device.device}: by kind", device.kinds, device),
            _kernel_table(f"Device {device.device}: kernels by name", device.kernels, device),
        )
    ]
    host = [
        _host_table(caption, rows)
        for caption, rows in (("Operations", view.operations), ("Calls", view.calls))
        if rows
    ]
    return (
        Section(id="kernels", title="Which kernels take the device's time?", nav="Kernels", tables=tuple(tables)),
        Section(id="host", title="Where is the host's time?", nav="Host", tables=tuple(host)),
    )  # fmt: skip


def _kernel_table(caption: str, rows: tuple[KernelTime, ...], device: DeviceTime) -> TextTable:
    more = f" (the first {_MOST_ROWS} of {len(rows)})" if len(rows) > _MOST_ROWS else ""
    return TextTable(
        caption=f"{caption}, {format_duration(device.window_s)}{more}",
        header=("", "launches", "device time", "share", "mean", "idle before"),
        rows=tuple(
            (
                row.name,
                f"{row.n_launches:,}",
                format_duration(row.device_s),
                format_fraction(row.device_time_fraction),
                format_duration(row.mean_s),
                format_duration(row.idle_before_s),
            )
            for row in rows[:_MOST_ROWS]
        ),
    )


def _host_table(caption: str, rows: tuple[HostTime, ...]) -> TextTable:
    more = f" (the first {_MOST_ROWS} of {len(rows)})" if len(rows) > _MOST_ROWS else ""
    return TextTable(
        caption=f"{caption}, without what is called within them{more}",
        header=("", "calls", "time", "share"),
        rows=tuple(
            (
                row.name,
                f"{row.n_calls:,}",
                format_duration(row.self_s),
                format_fraction(row.self_fraction),
            )
            for row in rows[:_MOST_ROWS]
        ),
    )


def _chart(view: TraceView) -> Chart:
    """A bar for each device: busy by kind of kernel, idle by cause."""
    kinds = list(dict.fromkeys(kind.name for device in view.devices for kind in device.kinds))
    shown, others = kinds[: len(_COLOURS) - 1], kinds[len(_COLOURS) - 1 :]
    names = [*shown, *(["other kernels"] if others else [])]
    colours = dict(zip(names, _COLOURS, strict=False))
    colours |= {
        _IDLE_WORDS[part.cause]: _IDLE_COLOURS[part.cause]
        for device in view.devices
        for part in device.idle
    }
    labels = [f"{one.device_name or 'device'} {one.device}" for one in view.devices]
    rows = [
        (label, _parts(device, shown), device.window_s)
        for label, device in zip(labels, view.devices, strict=True)
    ]
    plot = rows_plot(
        labels,
        Axis(title="of the time from the first to the last activity, %", low=0.0, high=112.0),
        stacked(rows, colours),
        "busy time by the share of each kind",
        n_all=len(rows),
        rows="rows: devices",
    )
    return Chart(
        chart_id="device-time",
        title="Where the device's time goes",
        finding=f"{_title(view.devices[0])}.",
        plots=(plot,),
        header=("device", "part", "time", "%"),
        rows=tuple(
            (
                label,
                part.name,
                format_duration(part.duration_s),
                format_number(part.end - part.start),
            )
            for label, parts, _ in rows
            for part in parts
        ),
    )


def _parts(device: DeviceTime, shown: list[str]) -> list[Part]:
    known = {kind.name: kind.device_time_fraction for kind in device.kinds}
    busy = [(name, known.get(name, 0.0)) for name in shown]
    busy.append(("other kernels", 1.0 - sum(fraction for _, fraction in busy)))
    shares = [(name, fraction * device.busy_fraction) for name, fraction in busy]
    shares += [(_IDLE_WORDS[one.cause], one.window_fraction) for one in device.idle]
    parts, start = list[Part](), 0.0
    for name, fraction in shares:
        if fraction > 1e-9:
            end = start + 100 * fraction
            parts.append(Part(name, start, end, fraction * device.window_s))
            start = end
    return parts


# inferometer explain COUNTERS: is a device's memory busy, its arithmetic, a link, or nothing?


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
    """Mean share of time or activity; None for bytes."""
    p95_fraction: float | None
    mean_bytes_per_s: float | None
    """None for activities."""
    p95_bytes_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CountersAnswer(Answer):
    """Summary of each device's counters."""

    table = "counters"

    paths: tuple[str, ...]
    counters: tuple[CounterRow, ...]
    findings: tuple[str, ...]
    """One sentence for each device."""


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
    """The busy part of the device, by DCGM's activities; NVML's shares of time do not show it."""
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
    """A page with the busy part first, then each counter."""
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
    )


def _cell(fraction: float | None, bytes_per_s: float | None) -> str:
    if bytes_per_s is not None:
        return format_rate(bytes_per_s, "B/s")
    return "–" if fraction is None else format_fraction(fraction)
