"""What was sealed in this folder, and is it what was sealed?"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from inferometer.errors import RecordError
from inferometer.records import durability
from inferometer.spec.foreign_bytes import Door
from inferometer.verify.seals import Seal, sha256_of

_DOOR: Final = Door(
    noun="seal",
    allowed="the file as it was written",
    refusal=RecordError,
    try_="a copy of it, or another folder with --out",
)

SEAL_NAME: Final = "seal.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedFile:
    """What ``seal.json`` holds."""

    sha256: str
    seal: Seal


def write_seal(folder: Path, seal: Seal) -> None:
    """Put the seal into the folder, all or nothing.

    Raises
    ------
    RecordError
        It cannot be written.
    """
    durability.make_folder(folder)
    stored = SealedFile(sha256=sha256_of(seal), seal=seal)
    durability.replace_file(
        folder / SEAL_NAME, msgspec.json.format(msgspec.json.encode(stored), indent=2) + b"\n"
    )


def read_seal(folder: Path) -> Seal | None:
    """The seal of this folder; None where nothing was sealed.

    Raises
    ------
    RecordError
        It cannot be read, or was edited.
    """
    path = folder / SEAL_NAME
    if not path.exists():
        return None
    stored = _DOOR.json(_DOOR.bytes_of(path), SealedFile, where=str(path))
    if sha256_of(stored.seal) != stored.sha256:
        raise RecordError(
            "the seal was edited: its content and its SHA-256 differ",
            where=str(path),
            allowed="predictions as they were sealed",
            try_="the file as it was; its content is in the ledger too",
        )
    return stored.seal
