"""Measured times of single kernels on a device: tables of AIConfigurator's database, as arrays.

Kernels are timed alone: no gaps between layers, no norms, no sampling, no scheduler. Letters of
shapes: N rows of a table.
"""

from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from inferometer.errors import RecordError
from inferometer.records.columns import F64
from inferometer.records.imports.json_fields import DOOR

_ELEMENT_BYTES: Final = 2
_GEMM: Final = "gemm_perf"


class GemmTable(NamedTuple):
    """(m, k) x (k, n) in bfloat16."""

    m: F64
    n: F64
    k: F64
    duration_s: F64


class AttentionTable(NamedTuple):
    """One layer's attention in bfloat16.

    Decode: one query against ``tokens``; prefill: ``tokens`` queries, causal.
    """

    batch_size: F64
    tokens: F64
    n_heads: F64
    n_kv_heads: F64
    head_dim: F64
    duration_s: F64


class ExpertTable(NamedTuple):
    """One layer's experts in bfloat16 on one device, routed with slight skew (power law 1.01)."""

    n_tokens: F64
    hidden_size: F64
    intermediate_size: F64
    n_experts_per_token: F64
    n_experts: F64
    duration_s: F64


class ReduceTable(NamedTuple):
    """All-reduce with NCCL of 16-bit numbers."""

    n_devices: F64
    message_bytes: F64
    duration_s: F64


class KernelTables(NamedTuple):
    """The tables of one device."""

    gemm: GemmTable
    decode: AttentionTable
    prefill: AttentionTable
    experts: ExpertTable
    all_reduce: ReduceTable


def read_kernel_tables(folder: Path) -> KernelTables:
    """The tables in a device's folder.

    Raises
    ------
    RecordError
        A table is missing or lacks a column.
    """
    with DOOR.refusing(str(folder)):
        return _tables(folder)


def is_kernel_folder(folder: Path) -> bool:
    """Does it look like the folder of a device?"""
    return folder.is_dir() and bool(list(folder.glob(f"{_GEMM}.*.csv.gz")))


def version_of(folder: Path) -> str | None:
    """Version of the engine whose kernels were timed, e.g. 0.24.0 in ``*.vllm-0.24.0.csv.gz``."""
    names = [
        path.name.removeprefix(f"{_GEMM}.").removesuffix(".csv.gz")
        for path in sorted(folder.glob(f"{_GEMM}.*.csv.gz"))
    ]
    return names[0].partition("-")[2] or None if names else None


def _tables(folder: Path) -> KernelTables:
    gemm = _rows(folder, _GEMM, gemm_dtype="bfloat16")
    plain = {"attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "window_size": "0"}
    decode = _rows(folder, "generation_attention_perf", **plain)
    prefill = _rows(folder, "context_attention_perf", **plain, step="0")
    experts = _rows(
        folder,
        "moe_perf",
        moe_dtype="bfloat16",
        moe_tp_size="1",
        moe_ep_size="1",
        distribution="power_law_1.01",
    )
    reduce = _rows(folder, "nccl_perf", op_name="all_reduce", nccl_dtype="half")
    return KernelTables(
        gemm=GemmTable(
            m=_column(gemm, "m"),
            n=_column(gemm, "n"),
            k=_column(gemm, "k"),
            duration_s=_seconds(gemm),
        ),
        decode=_attention(decode, _column(decode, "step") + 1),
        prefill=_attention(prefill, _column(prefill, "isl")),
        experts=ExpertTable(
            n_tokens=_column(experts, "num_tokens"),
            hidden_size=_column(experts, "hidden_size"),
            intermediate_size=_column(experts, "inter_size"),
            n_experts_per_token=_column(experts, "topk"),
            n_experts=_column(experts, "num_experts"),
            duration_s=_seconds(experts),
        ),
        all_reduce=ReduceTable(
            n_devices=_column(reduce, "num_gpus"),
            message_bytes=_column(reduce, "message_size") * _ELEMENT_BYTES,
            duration_s=_seconds(reduce),
        ),
    )


def _attention(rows: list[dict[str, str]], tokens: F64) -> AttentionTable:
    return AttentionTable(
        batch_size=_column(rows, "batch_size"),
        tokens=tokens,
        n_heads=_column(rows, "num_heads"),
        n_kv_heads=_column(rows, "num_key_value_heads"),
        head_dim=_column(rows, "head_dim"),
        duration_s=_seconds(rows),
    )


def _rows(folder: Path, name: str, **wanted: str) -> list[dict[str, str]]:
    paths = sorted(folder.glob(f"{name}.*.csv.gz"))
    if len(paths) != 1:
        raise RecordError(
            f"{len(paths)} tables called {name}",
            where=str(folder),
            allowed="one",
            try_="move the others away",
        )
    where = str(paths[0])
    rows = list(DOOR.csv_records(DOOR.text_of(paths[0]).splitlines(), where=where))
    if not rows or not wanted.keys() <= rows[0].keys():
        raise RecordError(
            f"{name} lacks rows or one of {sorted(wanted)}",
            where=where,
            try_="the folder as AIConfigurator publishes it",
        )
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def _column(rows: list[dict[str, str]], name: str) -> F64:
    """A column of finite numbers."""
    return np.array([DOOR.number(row.get(name, ""), name, where="the table") for row in rows])


def _seconds(rows: list[dict[str, str]]) -> F64:
    return _column(rows, "latency") / 1e3
