"""How is the folder of a deployment written: all of it or nothing, and over nothing that somebody may need?"""

from dataclasses import dataclass
from pathlib import Path

from inferometer.decide.artefacts.fleet import Fleet
from inferometer.decide.artefacts.folder import files_of
from inferometer.decide.artefacts.packaging import Wishes, packaging_of
from inferometer.decide.artefacts.words import FILES
from inferometer.errors import SpecError
from inferometer.records import durability


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """One file, and what it is for."""

    file: str
    says: str


def check_free(folder: Path, *, is_forced: bool) -> None:
    """Refuse a folder in which something is, unless that was asked for: before anything long is computed.

    Raises
    ------
    SpecError
        The folder is a file, or holds files and ``is_forced`` is not set.
    """
    if folder.exists() and not folder.is_dir():
        raise SpecError(
            "this is a file", where=str(folder), allowed="a folder", try_="another name with --out"
        )
    if not is_forced and folder.is_dir() and any(folder.iterdir()):
        raise SpecError(
            "the folder is not empty",
            where=str(folder),
            allowed="a new folder",
            try_="another name with --out, or --force",
        )


def write_folder(
    folder: Path, fleet: Fleet, wishes: Wishes, *, is_forced: bool
) -> tuple[WrittenFile, ...]:
    """Write the files that deploy, watch and check the fleet; scripts can be run.

    A new folder appears when all of it is there.
    """
    check_free(folder, is_forced=is_forced)
    files = files_of(fleet, packaging_of(fleet, wishes))
    is_new = not folder.exists() or not any(folder.iterdir())
    target = folder.with_name(folder.name + durability.TEMPORARY_SUFFIX) if is_new else folder
    if is_new:
        durability.remove_folder(target)
    durability.make_folder(target)
    for name, text in files.items():
        durability.replace_file(target / name, text.encode())
        if name.endswith(".sh"):
            (target / name).chmod(0o755)
    if is_new:
        durability.move_into_place(target, folder)
    return tuple(
        WrittenFile(
            file=str(folder / name), says=FILES.get(name, "what was decided, and on what it rests")
        )
        for name in files
    )
