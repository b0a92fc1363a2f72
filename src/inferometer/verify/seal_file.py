"""What was sealed in this folder, and is it what was sealed?"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from inferometer.errors import RecordError
from inferometer.records import durability
from inferometer.verify.seals import Seal, sha256_of

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
    durability.replace_file(folder / SEAL_NAME, msgspec.json.format(msgspec.json.encode(stored), indent=2) + b"\n")


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
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=SealedFile)
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise RecordError(
            f"the seal cannot be read: {error}", where=str(path), try_="a copy of it, or another folder with --out"
        ) from error
    if sha256_of(stored.seal) != stored.sha256:
        raise RecordError(
            "the seal was edited: its content and its SHA-256 differ",
            where=str(path),
            allowed="predictions as they were sealed",
            try_="the file as it was; its content is in the ledger too",
        )
    return stored.seal


__all__ = ["SEAL_NAME", "SealedFile", "read_seal", "write_seal"]
