"""Where does a device's time go: which kernels, and why does it stand idle between them?

Busy time is the union of kernels, copies and fills over all streams. Each idle gap ends with an
activity, whose launch shows the cause of the gap:

- *synchronisation*: before the launch the host waited for the device within this gap
  (``cudaStreamSynchronize``, a copy to the host: ``.item()``, sampling on the CPU);
- *host*: the launch began in the gap: time of Python, the framework or the scheduler;
- *launch*: from the begin of the launch call to that of the activity;
- *device*: it was launched before the gap, and the device started it only now (from kernel to
  kernel, within a CUDA graph, on another stream);
- *unknown*: the trace has no launch call for it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from inferometer.errors import RecordError
from inferometer.inputs.foreign_bytes import Door
from inferometer.records.columns import F64, I64
from inferometer.records.device_trace import Activities, DeviceTrace, Spans, is_blocking
from inferometer.records.exposition import PageReader, labels_of
from inferometer.records.types import ABSENT
from inferometer.units import NS_PER_S

IdleCause: TypeAlias = Literal["synchronisation", "host", "launch", "device", "unknown"]

_KINDS: Final = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        ("copy", r"^memcpy"),
        ("fill", r"^memset"),
        ("communication", r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|deep_?ep"),
        ("MoE routing", r"moe_|expert|topk_?gating|grouped_topk"),
        ("attention", r"flash|fmha|attention|_mha_|mla_|xqa|paged_kv"),
        ("KV cache", r"reshape_and_cache|cache_kernel|concat_and_cache|copy_blocks|kv_cache"),
        ("rotary", r"rotary|rope"),
        ("norm", r"norm"),
        ("matmul", r"gemm|gemv|cutlass|cublas|nvjet|xmma|cijk|matmul|marlin|machete|splitk|winograd|conv"),
        ("sampling", r"top_?k|top_?p|sort|multinomial|argmax|sampl|gumbel|penalt"),
        ("softmax", r"softmax"),
        ("activation", r"silu|gelu|swiglu|act_and_mul|relu"),
        ("quantisation", r"quant|scaled_fp8|per_token_group"),
        ("elementwise", r"elementwise|vectorized|catarray|copy|fill|index|gather|scatter|reduce|triton_"),
    )
)  # fmt: skip
"""Kinds by words of kernels' names; the first that fits."""
_FUNCTOR: Final = re.compile(r"(\w+Functor)\b|(\w+_kernel_cuda)\b")
_WRAPPERS: Final = frozenset({"kernel", "kernel2", "device_kernel"})
"""CUTLASS's wrappers; their first template argument is the kernel."""
_MOST_NAME: Final = 72


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlePart:
    """Idle time by one cause."""

    cause: IdleCause
    n_gaps: int
    idle_s: float
    window_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """Activities of one kind or name. Their times may overlap on several streams."""

    name: str
    n_launches: int
    device_s: float
    device_time_fraction: float
    """Share of the time of all activities."""
    mean_s: float
    idle_before_s: float
    """Idle time in gaps that ended with one of them, except gaps of cause *device*."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTime:
    """Use of one device from its first to its last activity."""

    device: int
    device_name: str | None
    window_s: float
    busy_s: float
    busy_fraction: float
    idle: tuple[IdlePart, ...]
    """Largest first; idle and busy times add up to the window."""
    launches_per_s: float
    median_launch_call_s: float | None
    """Median time of a launching call on the host; None without calls."""
    kinds: tuple[KernelTime, ...]
    kernels: tuple[KernelTime, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTime:
    """Operations or calls of one name on the host, without nested ones."""

    name: str
    n_calls: int
    self_s: float
    self_fraction: float
    """Share of the total of its table."""


def device_times(trace: DeviceTrace) -> tuple[DeviceTime, ...]:
    """Each device of the trace, the busiest first."""
    devices = [int(one) for one in np.unique(trace.activities.device)]
    found = [_of_device(trace, device) for device in devices]
    return tuple(sorted(found, key=lambda one: -one.busy_s))


def host_times(spans: Spans) -> tuple[HostTime, ...]:
    """Names by the time spent in themselves, most first; nested spans of a thread are taken out."""
    own_ns = _self_ns(spans)
    n = len(spans.names)
    total = np.bincount(spans.name_index, weights=own_ns, minlength=n)
    counts = np.bincount(spans.name_index, minlength=n)
    whole_ns = float(total.sum()) or 1.0
    return tuple(
        HostTime(
            name=spans.names[index],
            n_calls=int(counts[index]),
            self_s=float(total[index]) / NS_PER_S,
            self_fraction=float(total[index]) / whole_ns,
        )
        for index in np.argsort(-total, kind="stable")
    )


def kind_of(name: str) -> str:
    """Kind of work of a kernel, by its name.

    Example
    -------
    >>> kind_of("flash_fwd_splitkv_kernel"), kind_of("nvjet_hsh_64x8_NNT"), kind_of("vmul")
    ('attention', 'matmul', 'other')
    """
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "other")


def short_name(name: str) -> str:
    """A kernel's name without types, with its template's operation.

    Example
    -------
    >>> short_name("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int)")
    'vectorized_elementwise_kernel FillFunctor'
    >>> short_name("void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_64x64>(Params)")
    'cutlass_80_tensorop_s16816gemm_64x64'
    """
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    bare, _, types = plain.partition("<")
    if bare.rpartition("::")[2].lower() in _WRAPPERS and types:
        bare = re.split("[<>,]", types)[0]
    bare = bare.partition("(")[0]
    functor = _FUNCTOR.search(types)
    words = [bare.strip().rpartition("::")[2] or name]
    if functor is not None:
        words.append(functor[0])
    return " ".join(words)[:_MOST_NAME]


class _Gaps(NamedTuple):
    """Idle intervals of a device, and the activity that ended each."""

    start_ns: I64
    activity: I64


def _of_device(trace: DeviceTrace, device: int) -> DeviceTime:
    all_of_them = trace.activities
    rows = np.flatnonzero(all_of_them.device == device)
    start_ns, end_ns = all_of_them.start_ns[rows], all_of_them.end_ns[rows]
    done_ns = np.maximum.accumulate(end_ns)
    is_gap = start_ns[1:] > done_ns[:-1]
    gaps = _Gaps(start_ns=done_ns[:-1][is_gap], activity=rows[1:][is_gap])
    idle_ns = all_of_them.start_ns[gaps.activity] - gaps.start_ns
    window_ns = int(done_ns[-1] - start_ns[0])
    busy_ns = window_ns - int(idle_ns.sum())
    parts = _parts_of_gaps(gaps, trace)
    late_ns = np.zeros(all_of_them.start_ns.size, dtype=np.int64)
    late_ns[gaps.activity] = idle_ns - parts["device"]
    calls_ns = (all_of_them.launch_end_ns - all_of_them.launch_start_ns)[rows]
    is_called = all_of_them.launch_start_ns[rows] != ABSENT
    window_s = window_ns / NS_PER_S
    by_name = np.array([short_name(name) for name in all_of_them.names])
    by_kind = np.array([kind_of(name) for name in all_of_them.names])
    return DeviceTime(
        device=device,
        device_name=trace.device_names.get(device),
        window_s=window_s,
        busy_s=busy_ns / NS_PER_S,
        busy_fraction=busy_ns / window_ns if window_ns else 1.0,
        idle=tuple(
            IdlePart(
                cause=cause,
                n_gaps=int((part_ns > 0).sum()),
                idle_s=float(part_ns.sum()) / NS_PER_S,
                window_fraction=float(part_ns.sum()) / window_ns,
            )
            for cause, part_ns in sorted(parts.items(), key=lambda one: -int(one[1].sum()))
            if part_ns.any()
        ),
        launches_per_s=rows.size / window_s if window_s else 0.0,
        median_launch_call_s=(
            float(np.median(calls_ns[is_called])) / NS_PER_S if is_called.any() else None
        ),
        kinds=_totals(by_kind[all_of_them.name_index[rows]], rows, all_of_them, late_ns),
        kernels=_totals(by_name[all_of_them.name_index[rows]], rows, all_of_them, late_ns),
    )


def _parts_of_gaps(gaps: _Gaps, trace: DeviceTrace) -> dict[IdleCause, I64]:
    """Nanoseconds of each gap, by cause."""
    activities = trace.activities
    end_ns = activities.start_ns[gaps.activity]
    launch_ns = activities.launch_start_ns[gaps.activity]
    idle_ns = end_ns - gaps.start_ns
    is_known = launch_ns != ABSENT
    is_early = is_known & (launch_ns <= gaps.start_ns)
    is_late = is_known & ~is_early
    before_ns = np.where(is_late, np.minimum(launch_ns, end_ns) - gaps.start_ns, 0)
    has_waited = is_late & _has_waited(gaps, launch_ns, trace)
    nothing = np.zeros_like(idle_ns)
    return {
        "synchronisation": np.where(has_waited, before_ns, nothing),
        "host": np.where(has_waited, nothing, before_ns),
        "launch": np.where(is_late, idle_ns - before_ns, nothing),
        "device": np.where(is_early, idle_ns, nothing),
        "unknown": np.where(is_known, nothing, idle_ns),
    }


def _has_waited(gaps: _Gaps, launch_ns: I64, trace: DeviceTrace) -> np.ndarray:
    """Did the launching thread return from a blocking call within the gap, before the launch?"""
    calls = trace.calls
    blocks = np.array([is_blocking(name) for name in calls.names], dtype=bool)
    is_wait = blocks[calls.name_index] if calls.names else np.zeros(calls.start_ns.size, dtype=bool)
    threads = trace.activities.thread[gaps.activity]
    waited = np.zeros(gaps.start_ns.size, dtype=bool)
    for thread in np.unique(threads[threads != ABSENT]):
        ends_ns = np.sort(calls.end_ns[is_wait & (calls.thread == thread)])
        of_thread = threads == thread
        last = np.searchsorted(ends_ns, launch_ns[of_thread], side="right") - 1
        latest_ns = np.where(last >= 0, ends_ns[np.maximum(last, 0)] if ends_ns.size else 0, -1)
        waited[of_thread] = (last >= 0) & (latest_ns >= gaps.start_ns[of_thread])
    return waited


def _totals(
    labels: np.ndarray, rows: I64, activities: Activities, late_ns: I64
) -> tuple[KernelTime, ...]:
    names, index = np.unique(labels, return_inverse=True)
    times_ns = (activities.end_ns - activities.start_ns)[rows]
    total_ns = np.bincount(index, weights=times_ns, minlength=names.size)
    counts = np.bincount(index, minlength=names.size)
    before_ns = np.bincount(index, weights=late_ns[rows], minlength=names.size)
    whole_ns = float(total_ns.sum()) or 1.0
    return tuple(
        KernelTime(
            name=str(names[one]),
            n_launches=int(counts[one]),
            device_s=float(total_ns[one]) / NS_PER_S,
            device_time_fraction=float(total_ns[one]) / whole_ns,
            mean_s=float(total_ns[one] / counts[one]) / NS_PER_S,
            idle_before_s=float(before_ns[one]) / NS_PER_S,
        )
        for one in np.argsort(-total_ns, kind="stable")
    )


def _self_ns(spans: Spans) -> np.ndarray:
    """Nanoseconds of each span without its direct children on the same thread."""
    own_ns = (spans.end_ns - spans.start_ns).astype(np.float64)
    open_by_thread = dict[int, list[int]]()
    ends = spans.end_ns.tolist()
    order = np.lexsort((-spans.end_ns, spans.start_ns))
    starts, threads = spans.start_ns.tolist(), spans.thread.tolist()
    for row in order.tolist():
        stack = open_by_thread.setdefault(threads[row], [])
        while stack and ends[stack[-1]] <= starts[row]:
            stack.pop()
        if stack and ends[row] <= ends[stack[-1]]:
            own_ns[stack[-1]] -= ends[row] - starts[row]
        stack.append(row)
    return np.maximum(own_ns, 0.0)


# Readers of a device's own counters: SM and DRAM activity, bytes over PCIe and NVLink.
#
# Three sources are read: pages of dcgm-exporter (one after the other in one file), the output of
# `dcgmi dmon`, and of `nvidia-smi dmon`. A counter that a source lacks is absent.
# Activities are shares of time or of a peak, and DCGM's fields of bytes are rates (bytes per second,
# whatever type an exporter's page states).
#
# Source: DCGM, field identifiers 1001 to 1012 and their short names; nvidia-smi(1), dmon.


CounterName: TypeAlias = Literal[
    "SM active",
    "tensor cores active",
    "DRAM active",
    "device busy",
    "memory busy",
    "PCIe sent",
    "PCIe received",
    "NVLink sent",
    "NVLink received",
]
"""``DRAM active``: share of the cycles in which the interface moves data. ``memory busy`` and
``device busy`` are NVML's: share of the time in which anything ran, however little of it."""


class _Field(NamedTuple):
    name: CounterName
    family: str
    """Name on a page of dcgm-exporter."""
    column: str
    """Column of ``dcgmi dmon``, or of ``nvidia-smi dmon`` for NVML's counters."""
    factor: float = 1.0
    """Factor from the page's unit."""


_FIELDS: Final = (
    _Field("SM active", "DCGM_FI_PROF_SM_ACTIVE", "SMACT"),
    _Field("tensor cores active", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "TENSO"),
    _Field("DRAM active", "DCGM_FI_PROF_DRAM_ACTIVE", "DRAMA"),
    _Field("device busy", "DCGM_FI_DEV_GPU_UTIL", "sm", 0.01),
    _Field("memory busy", "DCGM_FI_DEV_MEM_COPY_UTIL", "mem", 0.01),
    _Field("PCIe sent", "DCGM_FI_PROF_PCIE_TX_BYTES", "PCITX"),
    _Field("PCIe received", "DCGM_FI_PROF_PCIE_RX_BYTES", "PCIRX"),
    _Field("NVLink sent", "DCGM_FI_PROF_NVLINK_TX_BYTES", "NVLTX"),
    _Field("NVLink received", "DCGM_FI_PROF_NVLINK_RX_BYTES", "NVLRX"),
)
_BY_FAMILY: Final[dict[str, tuple[CounterName, float]]] = {
    one.family: (one.name, one.factor) for one in _FIELDS
}
_BY_COLUMN: Final[dict[str, tuple[CounterName, float]]] = {
    **{one.column: (one.name, one.factor) for one in _FIELDS},
    "txpci": ("PCIe sent", 1e6),
    "rxpci": ("PCIe received", 1e6),
}
_ALLOWED: Final = "pages of dcgm-exporter, or the output of dcgmi dmon or nvidia-smi dmon"
_DOOR: Final = Door(refusal=RecordError, noun="device counters", allowed=_ALLOWED)


class DeviceCounter(NamedTuple):
    """One counter of one device: its samples, as shares (0 to 1) or bytes per second."""

    device: str
    name: CounterName
    values: F64


def is_counters_file(path: Path) -> bool:
    """Does this file begin like one of device counters?"""
    if not path.is_file():
        return False
    try:
        head = _DOOR.start_of(path, 2**16)
    except RecordError:
        return False
    return b"DCGM_FI_" in head or _is_table(head.lstrip())


def _is_table(head: bytes) -> bool:
    return head.startswith((b"# gpu ", b"#Entity", b"# Entity"))


def read_counters(path: Path) -> tuple[DeviceCounter, ...]:
    """The counters of each device that the file names, in a fixed order.

    Raises
    ------
    RecordError
        The file cannot be read, or has none of them.
    """
    text = _DOOR.text_of(path)
    is_table = _is_table(text.lstrip()[:16].encode())
    found = dict[tuple[str, CounterName], list[float]]()
    for device, name, value in _of_table(text) if is_table else _of_pages(text):
        found.setdefault((device, name), []).append(value)
    if not found:
        raise RecordError("the file has no device counters", where=str(path), allowed=_ALLOWED)
    names = [one.name for one in _FIELDS]
    ranked = sorted(found, key=lambda key: (key[0], names.index(key[1])))
    return tuple(DeviceCounter(*key, np.array(found[key])) for key in ranked)


def _of_pages(text: str) -> Iterator[tuple[str, CounterName, float]]:
    reader = PageReader(lambda series: series if series.name in _BY_FAMILY else None)
    for sample in reader.read(text.encode()):
        name, factor = _BY_FAMILY[sample.series.name]
        labels = labels_of(sample.series.labels)
        device = f"GPU {labels.get('gpu', '?')}"
        if "GPU_I_ID" in labels:
            device += f" MIG {labels['GPU_I_ID']}"
        yield device, name, sample.value * factor


def _of_table(text: str) -> Iterator[tuple[str, CounterName, float]]:
    """Rows below the last header; a value that is no number ("-", "N/A") is absent."""
    columns = list[str]()
    for line in text.splitlines():
        words = line.replace("#", " ").split()
        if not words or words[0] in {"Idx", "ID"}:  # the row of units
            continue
        if line.lstrip().startswith("#"):
            columns = words[1:]
            continue
        if words[0] == "GPU":
            words = words[1:]
        for column, word in zip(columns, words[1:], strict=False):
            known = _BY_COLUMN.get(column)
            if known is not None and word.replace(".", "", 1).isdigit():
                yield f"GPU {words[0]}", known[0], float(word) * known[1]
