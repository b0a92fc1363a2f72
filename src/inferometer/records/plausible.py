"""Can the columns of a stored run be what they are called, and do they refer to rows that are there?

A damaged table without a checksum beside it may hold any number, and whoever takes it as an index,
a count or an instant fails later.
"""

from collections.abc import Iterator
from dataclasses import fields
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from inferometer.errors import RecordError
from inferometer.records.load_types import ChunkKind
from inferometer.records.tables import AnyTable
from inferometer.records.types import (
    ABSENT,
    PartKind,
    Phase,
    PointStatus,
    ProbeKind,
    RequestStatus,
    Run,
)

_MOST_INDEX: Final = 2**24
"""Tables are made with a row for each index up to the largest."""
_MOST: Final = {
    "class_index": 10_000,
    "replica": 100_000,
    "seat": 2**20,
    "process_index": 10_000,
    "point_index": 10**6,
    "repetition": 10**6,
}
_MOST_COUNT: Final = 2**40
_MOST_BY_ENDING: Final = {
    "_tokens": _MOST_COUNT,
    "_blocks": _MOST_COUNT,
    "_bytes": 2**60,
    "_ns": 2**62,
}
_KINDS: Final[dict[str, type[IntEnum]]] = {
    "StepTable.phase": Phase,
    "SweepTable.status": PointStatus,
    "RequestTable.status": RequestStatus,
    "StepPartTable.kind": PartKind,
    "CeilingTable.kind": ProbeKind,
    "ChunkTable.kind": ChunkKind,
}


class _Bounds(NamedTuple):
    low: int
    high: int


def check_plausible(run: Run) -> None:
    """Nothing, if each column of the run's tables holds what its name allows.

    Raises
    ------
    RecordError
        One does not; the message names table, column and value.
    """
    for name, table in _tables(run):
        for column, values in table._asdict().items():
            bounds = _bounds(run, type(table).__name__, column)
            known = values[values != ABSENT] if values.dtype == np.int64 else values
            if bounds is None or not known.size:
                continue
            low, high = int(known.min()), int(known.max())
            if low < bounds.low or high > bounds.high:
                wrong = low if low < bounds.low else high
                raise RecordError(
                    f"{column} of the table {name} is {wrong}",
                    where=run.manifest.run_id,
                    allowed=f"{bounds.low} to {bounds.high}",
                    try_="a copy of the record: this one is damaged",
                )


def _tables(run: Run) -> Iterator[tuple[str, AnyTable]]:
    for field in fields(run):
        table = getattr(run, field.name)
        if field.name != "manifest" and table is not None:
            yield field.name, table


def _bounds(run: Run, table: str, column: str) -> _Bounds | None:
    kinds = _KINDS.get(f"{table}.{column}")
    if kinds is not None:
        return _Bounds(min(kinds), max(kinds))
    if column == "request_index":
        return _Bounds(0, _most_request(run, table))
    if column == "step_index":
        return None if run.steps is None else _Bounds(0, len(run.steps.start_ns) - 1)
    if column in _MOST or column.startswith("n_"):
        return _Bounds(-1, _MOST.get(column, _MOST_COUNT))
    most = next((most for ending, most in _MOST_BY_ENDING.items() if column.endswith(ending)), None)
    return None if most is None else _Bounds(-most if column.endswith("_ns") else -1, most)


def _most_request(run: Run, table: str) -> int:
    index = None if run.requests is None else run.requests.request_index
    if index is None or table == "RequestTable":
        return max(_MOST_INDEX, 0 if index is None else 100 * len(index))
    return int(index.max(initial=0))
