"""What does a load test's folder hold while it is not over?

``load.json`` says what is asked, ``raw/`` what came over the wire; a complete run has its tables
and manifest too.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from inferometer.api.redaction import redacted
from inferometer.errors import RecordError
from inferometer.measure.run_names import new_run_id, now_utc
from inferometer.records import durability, layout
from inferometer.spec.foreign_bytes import Door
from inferometer.spec.load_plan import LoadPlan, without_secrets

_DOOR: Final = Door(
    noun="description of the load",
    allowed="the file as it was written",
    refusal=RecordError,
    try_="another folder with --out",
)

OPEN_NAME: Final = layout.OPEN_LOAD_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoad:
    """A load test that is not over: what is asked, and since when.

    Later sessions keep the first one's name and command.
    """

    load: LoadPlan
    run_id: str
    created_utc: str
    command: tuple[str, ...]


@contextmanager
def opened(folder: Path, load: LoadPlan) -> Generator[OpenLoad]:
    """The load test of this folder, begun or gone on with; nobody else can write to it meanwhile.

    Raises
    ------
    RecordError
        The folder cannot be written, is being written, or holds another question's test.
    """
    durability.make_folder(folder)
    lock = durability.WriterLock.acquire(folder / layout.LOCK_NAME)
    try:
        yield _opened(folder, load)
    finally:
        lock.release()


def is_complete(folder: Path, load: LoadPlan) -> bool:
    """Was this very test made here before, to its end?

    Raises
    ------
    RecordError
        Another run was.
    """
    if not (folder / layout.MANIFEST_NAME).exists():
        return False
    if not (folder / OPEN_NAME).exists() or _read(folder / OPEN_NAME).load != without_secrets(load):
        raise _another(folder)
    return True


def is_open(folder: Path) -> bool:
    """Is there a load test in the folder that is not over?"""
    return (folder / OPEN_NAME).is_file() and not (folder / layout.MANIFEST_NAME).exists()


def open_load(folder: Path) -> OpenLoad:
    """What is asked in this folder.

    Raises
    ------
    RecordError
        It cannot be read.
    """
    return _read(folder / OPEN_NAME)


def _opened(folder: Path, asked: LoadPlan) -> OpenLoad:
    path, load = folder / OPEN_NAME, without_secrets(asked)
    if path.exists():
        stored = _read(path)
        if stored.load != load:
            raise _another(folder)
        return stored
    created_utc = now_utc()
    new = OpenLoad(
        load=load,
        run_id=new_run_id(created_utc),
        created_utc=created_utc,
        command=("inferometer", *redacted(sys.argv[1:])),
    )
    durability.replace_file(path, msgspec.json.format(msgspec.json.encode(new), indent=2) + b"\n")
    return new


def _read(path: Path) -> OpenLoad:
    return _DOOR.json(_DOOR.bytes_of(path), OpenLoad, where=str(path))


def _another(folder: Path) -> RecordError:
    return RecordError(
        "the folder holds another run",
        where=str(folder),
        allowed="the same command, which goes on",
        try_="another folder with --out",
    )
