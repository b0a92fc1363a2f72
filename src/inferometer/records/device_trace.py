"""Profiler traces: kernels and copies on a device, the calls that launched them, host operations.

Formats: Chrome traces of the PyTorch profiler (``torch.profiler``'s ``export_chrome_trace``, also
used by vLLM and SGLang), and Nsight Systems' reports as SQLite (``nsys export --type sqlite``).
Sources: Kineto's ``output_json.cpp`` for the events, NVIDIA's ``nsys`` exporter schema for the
tables.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec
import numpy as np

from inferometer.errors import RecordError
from inferometer.inputs.foreign_bytes import Door, shortened
from inferometer.records.columns import I64
from inferometer.records.types import ABSENT

Profiler: TypeAlias = Literal["PyTorch profiler", "Nsight Systems"]

_DOOR: Final = Door(
    noun="trace",
    allowed="a Chrome trace of the PyTorch profiler (.json, .json.gz), or an nsys report as .sqlite",
    refusal=RecordError,
    try_="prof.export_chrome_trace('trace.json'), or nsys export --type sqlite REPORT.nsys-rep",
)
_NS_PER_US: Final = 1000
_LATEST_NS: Final = 2**62
_SQLITE_HEAD: Final = b"SQLite format 3\x00"
_DEVICE_CATEGORIES: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_CALL_CATEGORIES: Final = frozenset({"cuda_runtime", "cuda_driver", "runtime", "driver"})
_BLOCKING: Final = frozenset({"cudaMemcpy", "hipMemcpy", "hipMemcpyWithStream", "cuMemcpyDtoH_v2"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Named intervals, in order of their starts."""

    names: tuple[str, ...]
    name_index: I64
    start_ns: I64
    end_ns: I64
    thread: I64
    """Host thread; for activities the launching thread. ``ABSENT`` where unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activities(Spans):
    """Kernels, copies and fills of a device, each with the call that launched it."""

    device: I64
    launch_start_ns: I64
    """``ABSENT`` where the trace has no call for it."""
    launch_end_ns: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTrace:
    """Contents of one profiler file."""

    profiler: Profiler
    device_names: dict[int, str]
    activities: Activities
    calls: Spans
    """Calls of the runtime's and the driver's API."""
    operations: Spans
    """Host operations of the framework (``aten::mm``); none in a report of Nsight."""


class _Span(msgspec.Struct, gc=False):
    name: str
    start_ns: int
    end_ns: int
    thread: int = ABSENT
    device: int = 0
    correlation: int = ABSENT


class _Details(msgspec.Struct, gc=False):
    correlation: int | float | str | None = None
    device: int | float | str | None = None


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str | int | None = None
    ts: float | str | None = None
    dur: float | str | None = None
    tid: int | str | None = None
    args: msgspec.Raw = msgspec.Raw(b"null")


class _Property(msgspec.Struct):
    id: int = 0
    name: str = ""


class _ChromeTrace(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815 - the format's own key
    deviceProperties: list[_Property] = []  # noqa: N815


def is_trace(path: Path) -> bool:
    """Is this a profiler's file: a SQLite database, or JSON with trace events near its start?

    Raises
    ------
    RecordError
        The file cannot be read.
    """
    if not path.is_file():
        return False
    head = _DOOR.start_of(path, 2**16)
    return head.startswith(_SQLITE_HEAD) or (
        head.startswith(b"{") and (b'"traceEvents"' in head or b'"schemaVersion"' in head)
    )


def read_trace(path: Path) -> DeviceTrace:
    """Read the activity of devices and host from the file.

    Raises
    ------
    RecordError
        It is damaged, of another kind, or without any activity.
    """
    is_database = _DOOR.start_of(path).startswith(_SQLITE_HEAD)
    trace = _of_nsys(path) if is_database else _of_chrome(path)
    if not trace.activities.start_ns.size and not trace.operations.start_ns.size:
        raise RecordError(
            "the trace has neither kernels nor host operations",
            where=str(path),
            allowed=_DOOR.allowed,
            try_="profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        )
    return trace


def is_blocking(call: str) -> bool:
    """Does the host wait in this call for the device?"""
    return call.endswith("Synchronize") or call.partition("(")[0] in _BLOCKING


def _of_chrome(path: Path) -> DeviceTrace:
    read = _DOOR.json(_DOOR.bytes_of(path), _ChromeTrace, where=str(path))
    on_device, calls, operations = list[_Span](), list[_Span](), list[_Span]()
    threads = dict[int | str, int]()
    for event in read.traceEvents:
        category = (event.cat or "").lower()
        if event.ph != "X" or event.name is None:
            continue
        if category == "cpu_op":
            operations.append(_span(event, threads, where=str(path)))
        elif category in _DEVICE_CATEGORIES:
            on_device.append(_span(event, threads, where=str(path), has_details=True))
        elif category in _CALL_CATEGORIES:
            calls.append(_span(event, threads, where=str(path), has_details=True))
    return DeviceTrace(
        profiler="PyTorch profiler",
        device_names={one.id: one.name for one in read.deviceProperties},
        activities=_activities(on_device, calls),
        calls=_spans(calls),
        operations=_spans(operations),
    )


def _span(
    event: _Event, threads: dict[int | str, int], *, where: str, has_details: bool = False
) -> _Span:
    found = _Details()
    if has_details:
        found = _DOOR.json(bytes(event.args), _Details | None, where=where) or found  # type: ignore[arg-type]
    start_ns = _ns(event.ts, "ts", where)
    return _Span(
        name=str(event.name),
        start_ns=start_ns,
        end_ns=start_ns + max(_ns(event.dur or 0.0, "dur", where), 0),
        thread=threads.setdefault(event.tid if event.tid is not None else -1, len(threads)),
        device=_whole(found.device, 0),
        correlation=_whole(found.correlation, ABSENT),
    )


def _ns(microseconds: float | str | None, name: str, where: str) -> int:
    try:
        time_ns = float("nan" if microseconds is None else microseconds) * _NS_PER_US
    except ValueError:
        time_ns = float("nan")
    if not abs(time_ns) < _LATEST_NS:
        raise RecordError(
            f"{name} = {microseconds!r} of an event",
            where=where,
            allowed="microseconds",
            try_="the whole file, as the profiler wrote it",
        )
    return round(time_ns)


def _whole(value: float | str | None, otherwise: int) -> int:
    return int(value) if isinstance(value, int | float) and abs(value) < 2**62 else otherwise


_NSYS_ACTIVITIES: Final = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "SELECT coalesce(s.value, 'kernel'), t.start, t.end, t.deviceId, t.correlationId"
        " FROM CUPTI_ACTIVITY_KIND_KERNEL t LEFT JOIN StringIds s ON s.id = t.shortName"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "SELECT 'Memcpy ' || CASE copyKind WHEN 1 THEN 'HtoD' WHEN 2 THEN 'DtoH' WHEN 8 THEN 'DtoD'"
        " WHEN 10 THEN 'PtoP' ELSE 'of kind ' || copyKind END, start, end, deviceId, correlationId"
        " FROM CUPTI_ACTIVITY_KIND_MEMCPY"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (
        "SELECT 'Memset', start, end, deviceId, correlationId FROM CUPTI_ACTIVITY_KIND_MEMSET"
    ),
}
"""Copies by CUPTI's ``CUpti_ActivityMemcpyKind``."""
_NSYS_CALLS: Final = {
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "SELECT coalesce(s.value, 'call'), t.start, t.end, t.globalTid, t.correlationId"
        " FROM CUPTI_ACTIVITY_KIND_RUNTIME t LEFT JOIN StringIds s ON s.id = t.nameId"
    )
}


def _of_nsys(path: Path) -> DeviceTrace:
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            on_device = [
                _Span(name, start, end, device=device, correlation=correlation)
                for name, start, end, device, correlation in _rows(
                    database, _NSYS_ACTIVITIES, tables, str(path)
                )
            ]
            calls = [
                _Span(name.partition("_v")[0], start, end, thread=thread, correlation=correlation)
                for name, start, end, thread, correlation in _rows(
                    database, _NSYS_CALLS, tables, str(path)
                )
            ]
            named = (
                database.execute("SELECT id, name FROM TARGET_INFO_GPU").fetchall()
                if "TARGET_INFO_GPU" in tables
                else []
            )
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise RecordError(
            f"the report cannot be read: {error}",
            where=str(path),
            allowed=_DOOR.allowed,
            try_=_DOOR.try_,
        ) from error
    return DeviceTrace(
        profiler="Nsight Systems",
        device_names={_whole(key, 0): str(name) for key, name in named},
        activities=_activities(on_device, calls),
        calls=_spans(calls),
        operations=_spans([]),
    )


def _rows(
    database: sqlite3.Connection, queries: dict[str, str], tables: set[str], where: str
) -> Iterator[tuple[str, int, int, int, int]]:
    """For each of the tables present: name, start and end in ns, device or thread, correlation."""
    for table, query in queries.items():
        if table not in tables:
            continue
        for name, start, end, place, correlation in database.execute(query):
            if not (isinstance(start, int) and isinstance(end, int) and 0 <= start <= end):
                raise RecordError(
                    f"a row of {table} goes from {shortened(start)} to {shortened(end)}",
                    where=where,
                    allowed="whole nanoseconds, the end not before the start",
                    try_=_DOOR.try_,
                )
            yield str(name), start, end, _whole(place, ABSENT), _whole(correlation, ABSENT)


def _spans(spans: Sequence[_Span]) -> Spans:
    ordered = sorted(spans, key=lambda one: one.start_ns)
    names = {name: index for index, name in enumerate(dict.fromkeys(one.name for one in ordered))}
    return Spans(
        names=tuple(names),
        name_index=_column(names[one.name] for one in ordered),
        start_ns=_column(one.start_ns for one in ordered),
        end_ns=_column(one.end_ns for one in ordered),
        thread=_column(one.thread for one in ordered),
    )


def _activities(on_device: Sequence[_Span], calls: Sequence[_Span]) -> Activities:
    ordered = sorted(on_device, key=lambda one: one.start_ns)
    by_correlation = {one.correlation: one for one in calls if one.correlation != ABSENT}
    launches = [by_correlation.get(one.correlation) for one in ordered]
    spans = _spans(ordered)
    return Activities(
        names=spans.names,
        name_index=spans.name_index,
        start_ns=spans.start_ns,
        end_ns=spans.end_ns,
        thread=_column(ABSENT if one is None else one.thread for one in launches),
        device=_column(one.device for one in ordered),
        launch_start_ns=_column(ABSENT if one is None else one.start_ns for one in launches),
        launch_end_ns=_column(ABSENT if one is None else one.end_ns for one in launches),
    )


def _column(values: Iterable[int]) -> I64:
    return np.fromiter(values, dtype=np.int64)
