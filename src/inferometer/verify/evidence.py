"""Identity of a measured run: the SHA-256 of its files, so that the ledger can show changes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inferometer.errors import RecordError
from inferometer.records import durability, raw_log
from inferometer.records.layout import MANIFEST_NAME

_MOST_SHOWN: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSum:
    """A file of a run's folder, or another tool's file, and its SHA-256."""

    name: str
    sha256: str

    @property
    def is_raw_log(self) -> bool:
        """What came over the wire: no two runs have the same."""
        return self.name.startswith(f"{raw_log.RAW_FOLDER}/")


def evidence_of(path: Path) -> tuple[FileSum, ...]:
    """Files of a run with their SHA-256: manifest, tables and raw logs, or the one file.

    Raises
    ------
    RecordError
        A file cannot be read.
    """
    if path.is_file() and path.name != MANIFEST_NAME:
        return (FileSum(name=path.name, sha256=durability.sum_of(path)),)
    folder = path.parent if path.is_file() else path
    fixed = [
        folder / name for name in (MANIFEST_NAME, durability.SUMS_NAME) if (folder / name).is_file()
    ]
    files = [*fixed, *raw_log.raw_logs(folder)]
    return tuple(
        FileSum(name=file.relative_to(folder).as_posix(), sha256=durability.sum_of(file))
        for file in files
    )


def refuse_changed(path: Path, stored: Sequence[FileSum], *, run_id: str) -> None:
    """Refuse a run whose files are not those in the ledger.

    Raises
    ------
    RecordError
        One was changed, or is gone.
    """
    now = {one.name: one.sha256 for one in evidence_of(path)}
    changed = [one.name for one in stored if now.get(one.name) != one.sha256]
    if changed:
        more = f" and {len(changed) - _MOST_SHOWN} more" if len(changed) > _MOST_SHOWN else ""
        raise RecordError(
            f"{', '.join(changed[:_MOST_SHOWN])}{more} of run {run_id} changed since the ledger"
            " took the measurement in",
            where=str(path),
            allowed="the files as they were measured",
            try_="the folder as it was, from a copy",
        )


def shared_raw_log(evidence: Iterable[FileSum], known: Iterable[FileSum]) -> bool:
    """Is one of these raw logs in the other list?"""
    sums = {one.sha256 for one in known if one.is_raw_log}
    return any(one.is_raw_log and one.sha256 in sums for one in evidence)
