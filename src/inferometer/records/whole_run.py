"""How is a run that is known as a whole written: a simulated one, an imported one, a load test when it is over?

Tables first, their checksums next, the manifest last: a folder without a manifest is no run, so a
killed writer leaves none.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from inferometer.errors import RecordError
from inferometer.records import durability, parquet
from inferometer.records.layout import LOCK_NAME, MANIFEST_NAME, PARTS_NAME, TABLE_FILES
from inferometer.records.tables import AnyTable
from inferometer.records.types import SCHEMA_VERSION, Run, RunManifest

_TRY: Final = "another folder with --out"


def write_run(directory: Path, run: Run) -> None:
    """Write the run into ``directory``: all of it, or nothing.

    Tables that it does not have are no files.

    Raises
    ------
    RecordError
        The folder holds a run already, or cannot be written (a full disk).
    """
    stored = {
        TABLE_FILES[field]: table
        for field in TABLE_FILES
        if (table := getattr(run, field)) is not None
    }
    if not stored:
        raise RecordError(
            "the run has no table",
            where=str(directory),
            allowed=f"at least one of {', '.join(TABLE_FILES)}",
        )
    durability.make_folder(directory)
    lock = durability.WriterLock.acquire(directory / LOCK_NAME)
    try:
        _refuse_if_taken(directory)
        _write(directory, stored, replace(run.manifest, is_complete=True))
    finally:
        lock.release()


def _refuse_if_taken(directory: Path) -> None:
    for name in (MANIFEST_NAME, PARTS_NAME):
        if (directory / name).exists():
            raise RecordError(
                f"the folder holds a run already: it has {name}",
                where=str(directory),
                allowed="a new folder",
                try_=_TRY,
            )


def _write(directory: Path, stored: dict[str, AnyTable], manifest: RunManifest) -> None:
    try:
        for name in TABLE_FILES.values():
            (directory / name).unlink(missing_ok=True)  # of a writer that was killed
        for name, table in stored.items():
            temporary = directory / (name + durability.TEMPORARY_SUFFIX)
            parquet.write_table(temporary, table)
            durability.move_into_place(temporary, directory / name)
        content = (
            msgspec.json.format(
                msgspec.json.encode(replace(manifest, schema_version=SCHEMA_VERSION)), indent=2
            )
            + b"\n"
        )
        durability.write_sums(directory, tuple(stored), {MANIFEST_NAME: content})
        durability.replace_file(directory / MANIFEST_NAME, content)
    except RecordError:
        for name in (*stored, durability.SUMS_NAME):
            (directory / name).unlink(missing_ok=True)
            (directory / (name + durability.TEMPORARY_SUFFIX)).unlink(missing_ok=True)
        raise
