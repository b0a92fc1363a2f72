"""What was ever sealed, and what became of it: a file to which lines are only added, each of which holds to the one before?

A line is one entry in canonical JSON. It carries the SHA-256 of the line before it and of itself: a line that is changed, taken out or put
in breaks the chain where it stands. An entry is put in whole or not at all, by one writer at a time.
"""

import fcntl
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn

from inferometer.errors import RecordError
from inferometer.records import durability
from inferometer.spec.foreign_bytes import Door
from inferometer.verify.checking import Check
from inferometer.verify.seals import Seal, canonical, sha256_of

_DOOR: Final = Door(noun="ledger", allowed="lines as they were written", refusal=RecordError, try_="another --ledger")

FIRST: Final = "0" * 64
"""What the first line holds to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line: predictions that were sealed, or what became of some."""

    number: int
    at_utc: str
    seal: Seal | None
    check: Check | None
    previous_sha256: str
    sha256: str = ""
    """Of the entry with this field empty."""

    @property
    def seal_sha256(self) -> str:
        """Which predictions is this about?"""
        if self.seal is not None:
            return sha256_of(self.seal)
        return "" if self.check is None else self.check.seal_sha256


def read_ledger(path: Path) -> tuple[Entry, ...]:
    """Every entry, in order; none where there is no file.

    Raises
    ------
    RecordError
        It cannot be read, or a line is not what it was: the message says which.
    """
    lines = _DOOR.bytes_of(path).splitlines() if path.exists() else []
    entries = list[Entry]()
    previous = FIRST
    for number, line in enumerate(lines):
        entry = _entry(line, path, number)
        if entry.previous_sha256 != previous or entry.number != number:
            _refuse(path, number, "it does not follow the line before it: lines were taken out, put in or moved")
        entries.append(entry)
        previous = entry.sha256
    return tuple(entries)


def append(path: Path, *, at_utc: str, add: Callable[[Sequence[Entry]], Seal | Check | None]) -> Entry | None:
    """Add what ``add`` makes of the entries that are there, unless that is None. Nobody else can add meanwhile.

    Raises
    ------
    RecordError
        The ledger cannot be read or written, or was tampered with.
    """
    durability.make_folder(path.parent)
    with _alone(path.parent):
        entries = read_ledger(path)
        content = add(entries)
        if content is None:
            return None
        entry = Entry(
            number=len(entries),
            at_utc=at_utc,
            seal=content if isinstance(content, Seal) else None,
            check=content if isinstance(content, Check) else None,
            previous_sha256=entries[-1].sha256 if entries else FIRST,
        )
        entry = replace(entry, sha256=sha256_of(entry))
        before = _DOOR.bytes_of(path) if path.exists() else b""
        durability.replace_file(path, before + canonical(entry) + b"\n")
        return entry


def sealed_entry(entries: Sequence[Entry], seal_sha256: str) -> Entry | None:
    """The entry with which these predictions were sealed."""
    return next((entry for entry in entries if entry.seal is not None and entry.seal_sha256 == seal_sha256), None)


def checks_of(entries: Sequence[Entry], seal_sha256: str) -> tuple[Check, ...]:
    """What became of them, in order."""
    return tuple(entry.check for entry in entries if entry.check is not None and entry.check.seal_sha256 == seal_sha256)


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    """Hold the folder, waiting for whoever holds it; the kernel lets go when the process dies."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise durability.cannot_write(folder, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _entry(line: bytes, path: Path, number: int) -> Entry:
    try:
        entry = _DOOR.json(line, Entry, where=str(path))
    except RecordError as error:
        _refuse(path, number, f"it is no entry: {error.what}")
    if sha256_of(replace(entry, sha256="")) != entry.sha256 or canonical(entry) != line:
        _refuse(path, number, "it differs from its own sum: it was changed")
    return entry


def _refuse(path: Path, number: int, why: str) -> NoReturn:
    raise RecordError(
        f"line {number + 1} of the ledger cannot be trusted: {why}",
        where=str(path),
        allowed="lines as they were written",
        try_="the file as it was, from version control or a copy",
    )


__all__ = ["FIRST", "Entry", "append", "checks_of", "read_ledger", "sealed_entry"]
