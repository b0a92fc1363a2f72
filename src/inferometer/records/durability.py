"""Writing of files that kill -9, a full disk or a second writer cannot corrupt.

Files and folders are written under a temporary name beside their place, flushed to the disk, and
renamed: a reader sees all or nothing.
"""

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from inferometer.errors import RecordError
from inferometer.inputs.foreign_bytes import Door

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
