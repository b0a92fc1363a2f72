"""What comes out of somebody else's file of results.

Runs where it has requests, published summaries where it has statistics.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inferometer.errors import RecordError
from inferometer.inputs.types import Source
from inferometer.records.imports.json_fields import JsonFields
from inferometer.records.published import PublishedPointTable, PublishedSummary, Tool
from inferometer.records.types import Run

UNKNOWN: Final = -1
"""Stands in int32 columns for what a file does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """All that a file holds."""

    tool: Tool
    runs: tuple[Run, ...] = ()
    summaries: tuple[PublishedSummary, ...] = ()
    points: PublishedPointTable | None = None
    """Of a published table."""


def file_source(path: Path, tool: Tool) -> Source:
    """The source of a number from this file: tool, file name and content hash, no path."""
    return Source(
        kind="measured",
        where=f"{tool}: {path.name}, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}",
    )


def same_length(columns: dict[str, Sequence[object] | None], fields: JsonFields) -> int:
    """How many rows have these columns, those that are not there left out?

    Raises
    ------
    RecordError
        They differ.
    """
    lengths = {name: len(column) for name, column in columns.items() if column is not None}
    if len(set(lengths.values())) > 1:
        raise RecordError(
            f"the lists differ in length: {lengths}",
            where=fields.where,
            allowed="one value for each request in each",
        )
    return next(iter(lengths.values()), 0)
