"""How is a record of an older version read? Each version has its loader, and keeps it for ever.

History of the schema
---------------------
1   The first: manifest.json, sweep.parquet, steps.parquet, ceilings.parquet; parts/ while a run is not complete.
2   A run may have requests.parquet and step_parts.parquet; a complete run has only the files of
    its tables. Sweeps are as before.
3   A load test: chunks.parquet, exchanges.parquet, lags.parquet, server.parquet; the manifest's
    ``load`` and ``validity``. Steps have a ``replica``, and visits.parquet says which request was
    where. A simulated run may have step_memory.parquet.

To change the schema: raise ``SCHEMA_VERSION`` in ``records.types``, leave the loader of the old
version here as a function that turns old columns and an old manifest into today's, add one for the
new version, and commit a record of the old version under ``tests/records/fixtures`` with a test
that reads it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec
import numpy as np

from inferometer.errors import RecordError
from inferometer.inputs.foreign_bytes import Door
from inferometer.records.tables import Column
from inferometer.records.types import ABSENT, RunManifest

_DOOR: Final = Door(
    noun="manifest",
    allowed="the manifest.json of a run",
    refusal=RecordError,
    try_="put back a copy of manifest.json; the tables beside it are plain Parquet files",
)

ColumnsLoader: TypeAlias = Callable[[dict[str, Column]], dict[str, Column]]
"""Turns the columns of an old table into those of today's."""


class Loader(NamedTuple):
    """How is one version of the schema read?"""

    manifest: Callable[[bytes, str], RunManifest]
    """Of its bytes and its name."""
    columns: Mapping[str, ColumnsLoader]
    """Field of a ``Run`` -> how its table is brought to today's columns; tables that are not
    here are as they were."""

    def loader_of(self, field: str) -> ColumnsLoader:
        """How is this table read?"""
        return self.columns.get(field, _as_they_are)


class StoredManifest(NamedTuple):
    """What does the manifest say, in today's words, and how are the tables beside it read?"""

    manifest: RunManifest
    loader: Loader


def read_manifest(path: Path) -> StoredManifest:
    """What does a manifest of any known version say?

    Raises
    ------
    RecordError
        The file is missing, damaged, or of a version that is not known here.
    """
    content, where = _DOOR.bytes_of(path), str(path)
    loader = _loader_of(_DOOR.json(content, _Versioned, where=where).schema_version, where=where)
    return StoredManifest(loader.manifest(content, where), loader)


def _loader_of(version: int, *, where: str) -> Loader:
    if version not in LOADERS:
        raise RecordError(
            f"schema version {version} is unknown",
            where=where,
            allowed=", ".join(str(known) for known in LOADERS),
            try_="a newer inferometer" if version > max(LOADERS) else None,
        )
    return LOADERS[version]


class _Versioned(msgspec.Struct):
    schema_version: int


def _manifest_as_it_is(content: bytes, where: str) -> RunManifest:
    return _DOOR.json(content, RunManifest, where=where)


def _as_they_are(columns: dict[str, Column]) -> dict[str, Column]:
    return columns


def _with_replicas(columns: dict[str, Column]) -> dict[str, Column]:
    """Where nobody said which server it was, nobody knows.

    Version 3 was without it before it was released.
    """
    n_rows = len(next(iter(columns.values())))
    return {"replica": np.full(n_rows, ABSENT), **columns}


LOADERS: Final[dict[int, Loader]] = {
    1: Loader(manifest=_manifest_as_it_is, columns={"steps": _with_replicas}),
    2: Loader(manifest=_manifest_as_it_is, columns={"steps": _with_replicas}),
    3: Loader(manifest=_manifest_as_it_is, columns={"steps": _with_replicas}),
}
