"""Files of a run's folder, older versions of them, and writing that no crash can corrupt.

::

    manifest.json                  what, where, when, how; ``is_complete`` is set last
    load.json                      question of a load test, from its begin on; raw/ has its raw logs
    writer.lock                    held while somebody writes
    parts/00003-00017/             the 4th visit to a point, the one numbered 17: three tables and their checksums
    sweep.parquet, steps.parquet, ceilings.parquet, SHA256SUMS      tables of a complete sweep
    requests.parquet, steps.parquet, step_parts.parquet, SHA256SUMS tables of a run of requests
    visits.parquet                 and which of several servers had which request
    step_memory.parquet            and what is known of holes and swaps at each step
    chunks.parquet, exchanges.parquet, lags.parquet, server.parquet and those of a load test

Each version has its loader, and keeps it forever.

History of the schema
---------------------
1   The first: manifest.json, sweep.parquet, steps.parquet, ceilings.parquet; parts/ while a run is not complete.
2   A run may have requests.parquet and step_parts.parquet; a complete run has only the files of
    its tables. Sweeps are as before.
3   A load test: chunks.parquet, exchanges.parquet, lags.parquet, server.parquet; the manifest's
    ``load`` and ``validity``. Steps have a ``replica``, and visits.parquet says which request was
    where. A simulated run may have step_memory.parquet.
4   The ``seat`` of a part of a step is its ``slot``.

To change the schema: raise ``SCHEMA_VERSION`` in ``records.types``, keep the loader of the old
version here as a function that converts old columns and an old manifest to the new schema, add a
loader of the new version, and commit a record of the old version under ``tests/records/fixtures``
with a test that reads it.

Files and folders are written under a temporary name beside their place, flushed to the disk, and
renamed: a reader sees all or nothing.
"""

import errno
import fcntl
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeAlias

import msgspec
import numpy as np

from inferometer.errors import RecordError
from inferometer.inputs.foreign_bytes import Door
from inferometer.records.tables import Column
from inferometer.records.types import ABSENT, RunManifest

_SUMS: Final = Door(
    noun="file of checksums",
    allowed="lines of a checksum and a name",
    refusal=RecordError,
    max_bytes=2**20,
)

SUMS_NAME: Final = "SHA256SUMS"
"""Checksums of the files beside it, in the format of ``sha256sum -c``."""

TEMPORARY_SUFFIX: Final = ".tmp"


def replace_file(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path``, all or nothing, and onto the disk.

    Raises
    ------
    RecordError
        It cannot be written, or is a folder.
    """
    if path.is_dir():
        raise RecordError("this is a folder", where=str(path), allowed="the name of a file")
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def move_into_place(source: Path, target: Path) -> None:
    """Rename a finished file or folder (its files are flushed first) and flush the folder that holds it."""
    try:
        for path in sorted(source.iterdir()) if source.is_dir() else [source]:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        if source.is_dir():
            sync_folder(source)
        source.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        raise cannot_write(target, error) from error


def sync_folder(folder: Path) -> None:
    """Flush a folder's directory entries, which a power loss could otherwise undo."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, if they are missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error


def remove_folder(folder: Path) -> None:
    """Remove a folder that is no longer needed; failure is ignored."""
    shutil.rmtree(folder, ignore_errors=True)


def cannot_write(path: Path, error: OSError) -> RecordError:
    """The error that says why ``path`` cannot be written and what to do."""
    allowed, try_ = _ADVICE.get(
        error.errno or 0, ("a writable folder with free space", "another folder with --out")
    )
    return RecordError(
        f"cannot write: {error.strerror or error}", where=str(path), allowed=allowed, try_=try_
    )


_FREE: Final = (
    "free space",
    "free some space, or give another folder with --out; what was stored before stays readable",
)
_FILES: Final = (
    "more open files than this process may have",
    "ulimit -n 65536, then the same command",
)
_ADVICE: Final = {
    errno.ENOSPC: _FREE,
    errno.EDQUOT: _FREE,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
}


def write_sums(
    folder: Path, names: tuple[str, ...], coming: Mapping[str, bytes] | None = None
) -> None:
    """Store checksums of these files beside them (Parquet does not detect a flipped byte).

    ``coming`` are files to be written after their sums, such as the manifest, which declares the
    run complete.
    """
    lines = [f"{sum_of(folder / name)}  {name}\n" for name in names]
    lines += [
        f"{hashlib.sha256(content).hexdigest()}  {name}\n"
        for name, content in (coming or {}).items()
    ]
    replace_file(folder / SUMS_NAME, "".join(lines).encode())


def summed_files(folder: Path) -> tuple[str, ...]:
    """Files of ``folder`` with stored checksums."""
    return tuple(name for _, name in _sums(folder))


def damaged_files(folder: Path) -> tuple[str, ...]:
    """Files of ``folder`` that are missing or differ from their checksums.

    None where no checksums are stored.
    """
    stored = _sums(folder)
    there = {path.name for path in folder.iterdir() if path.is_file()} if stored else set[str]()
    return tuple(
        name or SUMS_NAME
        for expected, name in stored
        if name not in there or sum_of(folder / name) != expected
    )


def _sums(folder: Path) -> list[tuple[str, str]]:
    """Each stored checksum and its file."""
    path = folder / SUMS_NAME
    lines = _SUMS.bytes_of(path).decode("utf-8", "replace").splitlines() if path.is_file() else []
    return [(line.partition("  ")[0], line.partition("  ")[2]) for line in lines]


def sum_of(path: Path) -> str:
    """The SHA-256 of a file.

    Raises
    ------
    RecordError
        The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RecordError(
            f"cannot read: {error.strerror or error}",
            where=str(path),
            allowed="a file that can be read",
        ) from error


class WriterLock:
    """Lock of a folder for one writer.

    The kernel releases it when the process dies for any reason; no stale lock remains.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def acquire(cls, path: Path) -> Self:
        """Take the lock, or report the process that holds it."""
        while True:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise cannot_write(path, error) from error
            if _try_lock(path, descriptor):
                return cls(path, descriptor)

    def release(self) -> None:
        """Release the lock and remove its file."""
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def _try_lock(path: Path, descriptor: int) -> bool:
    """Lock an open file; False if its former holder removed it, so that one must retry."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not path.exists() or path.stat().st_ino != os.fstat(descriptor).st_ino:
            os.close(descriptor)
            return False
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise RecordError(
            f"another process (pid {holder}) is writing to this run",
            where=str(path.parent),
            try_="wait until it is done, or give another folder with --out",
        ) from error
    except OSError as error:
        os.close(descriptor)
        raise cannot_write(path, error) from error
    return True


MANIFEST_NAME: Final = "manifest.json"
PARTS_NAME: Final = "parts"
LOCK_NAME: Final = "writer.lock"
OPEN_LOAD_NAME: Final = "load.json"
"""File with the question of a load test; without a manifest beside it, the test is unfinished."""
SWEEP_NAME: Final = "sweep.parquet"
STEPS_NAME: Final = "steps.parquet"
CEILINGS_NAME: Final = "ceilings.parquet"
REQUESTS_NAME: Final = "requests.parquet"
DEVICES_NAME: Final = "devices.parquet"
STEP_PARTS_NAME: Final = "step_parts.parquet"
CHUNKS_NAME: Final = "chunks.parquet"
EXCHANGES_NAME: Final = "exchanges.parquet"
LAGS_NAME: Final = "lags.parquet"
SERVER_NAME: Final = "server.parquet"
VISITS_NAME: Final = "visits.parquet"
STEP_MEMORY_NAME: Final = "step_memory.parquet"
TABLE_NAMES: Final = (SWEEP_NAME, STEPS_NAME, CEILINGS_NAME)
"""The tables that every sweep has."""
TABLE_FILES: Final = {
    "sweep": SWEEP_NAME,
    "steps": STEPS_NAME,
    "ceilings": CEILINGS_NAME,
    "requests": REQUESTS_NAME,
    "parts": STEP_PARTS_NAME,
    "chunks": CHUNKS_NAME,
    "exchanges": EXCHANGES_NAME,
    "lags": LAGS_NAME,
    "server": SERVER_NAME,
    "visits": VISITS_NAME,
    "step_memory": STEP_MEMORY_NAME,
    "devices": DEVICES_NAME,
}
"""Field of a ``Run`` -> its file."""

_PART: Final = re.compile(r"(\d{5,})-(\d{5,})")
_DOOR: Final = Door(
    noun="manifest",
    allowed="the manifest.json of a run",
    refusal=RecordError,
    try_="put back a copy of manifest.json; the tables beside it are plain Parquet files",
)

ColumnsLoader: TypeAlias = Callable[[dict[str, Column]], dict[str, Column]]
"""Converts the columns of an old table to the present schema."""


class Part(NamedTuple):
    """One stored visit to a point: its sequence, the point's number, and its folder."""

    sequence: int
    number: int
    folder: Path


def part_folder(directory: Path, *, sequence: int, number: int) -> Path:
    """Folder of a part."""
    return directory / PARTS_NAME / f"{sequence:05d}-{number:05d}"


def parts_of(directory: Path) -> tuple[Part, ...]:
    """Stored parts, in the order of measurement."""
    folder = directory / PARTS_NAME
    matches = (
        [(path, _PART.fullmatch(path.name)) for path in folder.iterdir()] if folder.is_dir() else []
    )
    return tuple(
        sorted(
            Part(int(match[1]), int(match[2]), path)
            for path, match in matches
            if match and path.is_dir()
        )
    )


class Loader(NamedTuple):
    """How to read one version of the schema."""

    manifest: Callable[[bytes, str], RunManifest]
    """Reads a manifest from its bytes and file name."""
    columns: Mapping[str, ColumnsLoader]
    """Field of a ``Run`` -> converter of its table's columns; tables without one are unchanged."""

    def loader_of(self, field: str) -> ColumnsLoader:
        """The converter of this table."""
        return self.columns.get(field, _as_they_are)


class StoredManifest(NamedTuple):
    """The manifest in the present schema, and the loader of its tables."""

    manifest: RunManifest
    loader: Loader


def read_manifest(path: Path) -> StoredManifest:
    """Read a manifest of any known version.

    Raises
    ------
    RecordError
        The file is missing, damaged, or of an unknown version.
    """
    content, where = _DOOR.bytes_of(path), str(path)
    loader = _loader_of(_DOOR.json(content, _Versioned, where=where).schema_version, where=where)
    return StoredManifest(loader.manifest(content, where), loader)


def is_run(directory: Path) -> bool:
    """Has the folder the manifest of a run? Other tools have a manifest.json of their own."""
    try:
        content = _DOOR.bytes_of(directory / MANIFEST_NAME)
        _DOOR.json(content, _OfRun, where=str(directory))
    except RecordError:
        return False
    return True


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


class _OfRun(msgspec.Struct):
    """Fields of every manifest of a run, of any version."""

    run_id: str
    origin: str
    tool_version: str
    schema_version: int


def _manifest_as_it_is(content: bytes, where: str) -> RunManifest:
    return _DOOR.json(content, RunManifest, where=where)


def _as_they_are(columns: dict[str, Column]) -> dict[str, Column]:
    return columns


def _with_replicas(columns: dict[str, Column]) -> dict[str, Column]:
    """Records without a replica column: the replica is unknown.

    Version 3 was without it before it was released.
    """
    n_rows = len(next(iter(columns.values())))
    return {"replica": np.full(n_rows, ABSENT), **columns}


def _of_newer_sweeps(columns: dict[str, Column]) -> dict[str, Column]:
    """Sweeps without counts of page faults, or without the median step of a table."""
    n_rows = len(next(iter(columns.values())))
    unknown, absent = np.full(n_rows, np.nan), np.full(n_rows, ABSENT)
    faults = {"minor_faults": unknown, "major_faults": unknown}
    return {**faults, "median_step_ns": absent, **columns}


def _with_moves(columns: dict[str, Column]) -> dict[str, Column]:
    """Steps without moved blocks."""
    return {"moved_blocks": np.full(len(next(iter(columns.values()))), ABSENT), **columns}


def _with_slots(columns: dict[str, Column]) -> dict[str, Column]:
    """Parts of steps whose slot has its name of version 3."""
    return {("slot" if name == "seat" else name): column for name, column in columns.items()}


_GROWN: Final = {
    "steps": _with_replicas,
    "sweep": _of_newer_sweeps,
    "step_memory": _with_moves,
}
LOADERS: Final[dict[int, Loader]] = {
    **{
        version: Loader(manifest=_manifest_as_it_is, columns=_GROWN | {"parts": _with_slots})
        for version in (1, 2, 3)
    },
    4: Loader(manifest=_manifest_as_it_is, columns=_GROWN),
}


def new_run_id(created_utc: str) -> str:
    """A unique run id that sorts by time."""
    return f"{created_utc[:19].replace(':', '').replace('T', '-')}-{uuid.uuid4().hex[:8]}"


def now_utc() -> str:
    """The current time in ISO 8601 with seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")
