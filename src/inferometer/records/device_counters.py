"""What do a device's own counters say: SM and DRAM activity, bytes over PCIe and NVLink?

Three sources are read: pages of dcgm-exporter (one after the other in one file), the output of
``dcgmi dmon``, and of ``nvidia-smi dmon``. A counter that a source does not have is absent.
Activities are shares of time or of a peak, and DCGM's fields of bytes are rates (bytes per second,
whatever type an exporter's page states).

Source: DCGM, field identifiers 1001 to 1012 and their short names; nvidia-smi(1), dmon.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from inferometer.errors import RecordError
from inferometer.inputs.foreign_bytes import Door
from inferometer.records.columns import F64
from inferometer.records.exposition import PageReader, labels_of

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
    """In a page of dcgm-exporter."""
    column: str
    """In ``dcgmi dmon``, or in ``nvidia-smi dmon`` for what is NVML's."""
    factor: float = 1.0
    """From a page's unit."""


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
    """Does this file hold a device's counters, going by its beginning?"""
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
        raise RecordError("no counter of a device", where=str(path), allowed=_ALLOWED)
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
