"""How is a user's table of a serving sweep read: latencies by concurrency?

One row per load, with columns for the concurrency, the lengths of prompts and outputs, TTFT and
TPOT (or ITL) with their unit. Columns of model, device, engine, number format and number of devices
are read if present; the caller fills in what the table lacks.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from inferometer.errors import RecordError, SpecError
from inferometer.inputs.catalog import find_hardware
from inferometer.inputs.foreign_bytes import repeated
from inferometer.inputs.synonyms import counted_devices, engine_name, known_format
from inferometer.records.foreign_sweeps import Column, column_of
from inferometer.records.imports.imported import (
    UNKNOWN,
    PublishedLatencyName,
    PublishedPointTable,
    PublishedSummary,
)
from inferometer.records.imports.inferencex import Row, point_table
from inferometer.records.imports.json_fields import DOOR
from inferometer.records.sweep_csv import cells_of
from inferometer.units import MOST_COUNT

_WORDS: Final = {
    **dict.fromkeys(
        (
            "concurrency", "conc", "max_concurrency", "request_concurrency", "concurrent",
            "concurrent_requests", "concurrent_users", "users", "num_users", "n_users", "clients",
            "num_clients", "streams",
        ),
        "concurrency",
    ),
    **dict.fromkeys(("model", "model_id", "model_name"), "model"),
    **dict.fromkeys(
        ("hardware", "gpu", "gpu_type", "gpu_name", "device", "hw", "accelerator", "system"),
        "hardware",
    ),
    **dict.fromkeys(("framework", "engine", "backend", "server", "inference_engine"), "framework"),
    **dict.fromkeys(
        ("precision", "dtype", "quantization", "quant", "weight_dtype", "format"), "precision"
    ),
    **dict.fromkeys(
        (
            "tp", "tp_size", "tensor_parallel", "tensor_parallel_size", "gpus", "num_gpus",
            "n_gpus", "gpu_count", "num_of_hardware", "n_devices",
        ),
        "tp",
    ),
}  # fmt: skip
_TIMES: Final = {"prefill_ms": "ttft", "step_ms": "tpot", "decode_ms": "tpot"}
_FORMATS: Final = {"float8": "fp8", "float4": "fp4", "int4": "int4"}
_LATENCIES: Final[tuple[PublishedLatencyName, ...]] = ("ttft", "tpot")
_UNSTATED: Final[Row] = {
    "hardware": "",
    "hardware_id": "",
    "model": "",
    "precision": "",
    "framework": "",
    "framework_version": "",
    "is_disaggregated": False,
    "uses_speculation": False,
    "is_provisional": False,
    "tensor_parallel": UNKNOWN,
    "expert_parallel": UNKNOWN,
    "data_parallel": 1,
    "decode_workers": UNKNOWN,
    "prefill_workers": UNKNOWN,
    "prefill_tensor_parallel": UNKNOWN,
    "prefill_data_parallel": UNKNOWN,
    "n_devices": UNKNOWN,
}
"""A point without facts about its model, device and engine."""
_MOST_MS: Final = 1e12
_NEEDED: Final = {"prompt": "isl", "gen": "osl", "ttft": "ttft_p50_ms", "tpot": "tpot_p50_ms"}


def is_concurrency_table(text: str) -> bool:
    """Does the table have a column of the concurrency, and latencies?"""
    header = next((line for line in text.splitlines() if line.strip()), "")
    try:
        columns = _columns(cells_of(header, "the header")[0][1])
    except RecordError:
        return False
    return "concurrency" in columns and bool({"ttft", "tpot"} & set(columns))


def read_concurrency_table(path: Path) -> PublishedPointTable:
    """The rows of the table, as points of closed loops.

    Raises
    ------
    RecordError
        A column is missing, or a row is malformed; the message has its line number.
    """
    (_, header), *lines = cells_of(DOOR.text_of(path), str(path))
    if (twice := repeated(header)) is not None:
        raise RecordError(
            f"two columns are called {twice}",
            where=str(path),
            try_="another name for one of them",
        )
    columns = _columns(header)
    missing = [example for name, example in _NEEDED.items() if name not in columns]
    if missing:
        raise RecordError(
            f"the table has no column of {', '.join(missing)}",
            where=str(path),
            allowed=f"{', '.join(_NEEDED.values())} (times with their unit) beside the concurrency",
            try_=f"add the column{'s' * (len(missing) > 1)} {', '.join(missing)}",
        )
    return point_table(
        [
            _point(cells, columns, path.name, f"{path}, line {number}", index)
            for index, (number, cells) in enumerate(lines)
        ]
    )


def closed_loops(
    summaries: Sequence[PublishedSummary], file_name: str
) -> PublishedPointTable | None:
    """The closed loops among a tool's results, as points; None if there are none.

    Their lengths are the means; the caller fills in device and engine.
    """
    rows = [
        _UNSTATED
        | {
            "source_file": file_name,
            "row": index,
            "model": one.model or "",
            "prompt_tokens": round(one.mean_prompt_tokens or UNKNOWN),
            "output_tokens": round(one.mean_output_tokens or UNKNOWN),
            "concurrency": one.concurrency or UNKNOWN,
            **_stated_times_s(one),
        }
        for index, one in enumerate(summaries)
        if one.is_closed_loop
    ]
    return point_table(rows) if rows else None


def _stated_times_s(one: PublishedSummary) -> dict[str, float]:
    """TTFT and TPOT: medians, or means where the tool lacks one of the medians."""
    known = [latency for name in _LATENCIES if (latency := one.latency(name)) is not None]
    medians = {latency.name: latency.percentile_s(0.5) for latency in known}
    if len(known) == len(_LATENCIES) and None not in medians.values():
        return {f"{name}_median_s": value for name, value in medians.items() if value is not None}
    return {
        f"{latency.name}_unnamed_s": latency.mean_s
        for latency in known
        if latency.mean_s is not None
    }


def _columns(header: Sequence[str]) -> dict[str, tuple[int, Column]]:
    """The column index of each field; of several for one field, that of the lowest rank."""
    found: dict[str, tuple[int, Column]] = {}
    for index, cell in enumerate(header):
        column = column_of(cell) or Column("flag", 1.0, 0)
        name = _WORDS.get("_".join(re.findall(r"[a-z0-9]+", cell.lower())))
        name = name or _TIMES.get(column.field, column.field)
        if name not in found or column.rank < found[name][1].rank:
            found[name] = index, column
    return found


def _point(
    cells: Sequence[str],
    columns: Mapping[str, tuple[int, Column]],
    file_name: str,
    where: str,
    index: int,
) -> Row:
    def text(name: str) -> str:
        return cells[columns[name][0]].strip() if name in columns else ""

    def count(name: str) -> int:
        written = text(name)
        if not written:
            return UNKNOWN
        return int(DOOR.number(written, name, where=where, most=MOST_COUNT))

    device, n_named = text("hardware"), None
    if (counted := counted_devices(device)) is not None:
        n_named, device = counted
    tensor_parallel = count("tp") if text("tp") else n_named or UNKNOWN
    return _UNSTATED | {
        "source_file": file_name,
        "row": index,
        "hardware": device,
        "hardware_id": _hardware_id(device),
        "model": text("model"),
        "precision": _precision(text("precision")),
        "framework": engine_name(text("framework")),
        "tensor_parallel": tensor_parallel,
        "n_devices": tensor_parallel,
        "prompt_tokens": count("prompt"),
        "output_tokens": count("gen"),
        "concurrency": count("concurrency"),
        **_times_s(cells, columns, where),
    }


def _times_s(
    cells: Sequence[str], columns: Mapping[str, tuple[int, Column]], where: str
) -> dict[str, float]:
    """TTFT and TPOT: medians if the row has both, else means."""
    are_medians = all(columns[name][1].is_median for name in _LATENCIES)
    statistic = "median" if are_medians else "unnamed"
    found: dict[str, float] = {}
    for name in _LATENCIES:
        index, column = columns[name]
        if cells[index].strip():
            milliseconds = DOOR.number(cells[index], name, where=where, most=_MOST_MS)
            found[f"{name}_{statistic}_s"] = milliseconds * column.scale_ratio / 1e3
    return found


def _hardware_id(name: str) -> str:
    try:
        return find_hardware(name).hardware_id if name else ""
    except SpecError:
        return ""


def _precision(name: str) -> str:
    """The precision as published tables name it; rows of an unknown name are left out."""
    known = known_format(name) if name else ""
    return name if known is None else _FORMATS.get(known, "bf16" if known else "")
