"""What does a stored run hold, be it complete, broken off or damaged?"""

from dataclasses import replace
from pathlib import Path

from inferometer.errors import RecordError
from inferometer.records import durability, parquet, tables
from inferometer.records.layout import CEILINGS_NAME, MANIFEST_NAME, STEPS_NAME, SWEEP_NAME, parts_of
from inferometer.records.migrations import ColumnsLoader, read_manifest
from inferometer.records.sweep_csv import read_sweep_csv
from inferometer.records.tables import Table
from inferometer.records.types import Caution, CeilingTable, Run, StepTable, SweepTable

_MAX_SHOWN = 3


def read_run(path: Path, *, skip_damaged: bool = False) -> Run:
    """What happened in the run at ``path``: its folder, its manifest, a folder with one run in it, or the CSV table of a sweep?

    A table without rows that only some engines fill (steps, ceilings) is None: nobody recorded any. ``skip_damaged``
    reads what is whole of a damaged record; a caution in the manifest then says what is missing.

    Raises
    ------
    RecordError
        There is no run, or a file of it is damaged; the message names the file and what can be saved.
    """
    if path.is_file() and path.name != MANIFEST_NAME:
        return read_sweep_csv(path)
    directory = _directory_of(path)
    manifest, loader = read_manifest(directory / MANIFEST_NAME)
    damages: dict[Path, str] = {}
    if manifest.is_complete:
        folders = [directory]
        damages.update({directory / name: "differs from its checksum or is missing" for name in durability.damaged_files(directory)})
    else:
        folders = _whole_parts(directory, damages)
    sweep = _read_table(folders, SWEEP_NAME, SweepTable, loader.sweep, damages)
    steps = _read_table(folders, STEPS_NAME, StepTable, loader.steps, damages)
    ceilings = _read_table(folders, CEILINGS_NAME, CeilingTable, loader.ceilings, damages)
    if not manifest.is_complete and read_manifest(directory / MANIFEST_NAME).manifest.is_complete:
        return read_run(directory, skip_damaged=skip_damaged)  # its writer finished, and took the parts away, while we were reading
    if damages and not skip_damaged:
        raise _damage_error(damages, sweep)
    cautions = tuple(
        Caution(code="DAMAGED_RECORD", text=f"left out: {path.relative_to(directory)} {why}", remedy="measure what is missing again")
        for path, why in damages.items()
    )
    return Run(
        manifest=replace(manifest, cautions=(*manifest.cautions, *cautions)),
        sweep=sweep,
        steps=steps if steps is not None and tables.n_rows(steps) else None,
        ceilings=ceilings if ceilings is not None and tables.n_rows(ceilings) else None,
    )


def _directory_of(path: Path) -> Path:
    if path.name == MANIFEST_NAME and path.is_file():
        return path.parent
    if (path / MANIFEST_NAME).is_file():
        return path
    if not path.exists():
        raise RecordError("there is no such file or folder", where=str(path), allowed="the folder of a run, or a CSV table of a sweep")
    inner = sorted(manifest.parent for manifest in path.glob(f"*/{MANIFEST_NAME}")) if path.is_dir() else []
    if len(inner) == 1:
        return inner[0]
    if inner:
        names = ", ".join(folder.name for folder in inner[:_MAX_SHOWN])
        raise RecordError(f"{len(inner)} runs are in this folder: {names}", where=str(path), allowed="one run", try_=str(inner[-1]))
    raise RecordError("this is no run", where=str(path), allowed="a folder with a manifest.json, or a CSV table of a sweep")


def _whole_parts(directory: Path, damages: dict[Path, str]) -> list[Path]:
    """Folders of the points that can be trusted; a part is used whole or not at all."""
    whole: list[Path] = []
    for part in parts_of(directory):
        damaged = durability.damaged_files(part.folder)
        if not (part.folder / durability.SUMS_NAME).is_file():
            damaged = (durability.SUMS_NAME,)
        damages.update({part.folder / name: "differs from its checksum or is missing" for name in damaged})
        if not damaged:
            whole.append(part.folder)
    return whole


def _read_table(folders: list[Path], name: str, table_type: type[Table], load: ColumnsLoader, damages: dict[Path, str]) -> Table | None:
    """The table of that name of all folders, joined; None where none could be read. What cannot be read is added to ``damages``."""
    found: list[Table] = []
    for path in [folder / name for folder in folders]:
        if path in damages:
            continue
        try:
            found.append(tables.from_columns(table_type, load(parquet.read_columns(path))))
        except RecordError as error:
            damages[path] = error.what
    return None if folders and not found else tables.concat(table_type, found)


def _damage_error(damages: dict[Path, str], sweep: SweepTable | None) -> RecordError:
    shown = [f"{path.name} {why}" for path, why in list(damages.items())[:_MAX_SHOWN]]
    n_points = 0 if sweep is None else len(set(sweep.point_index.tolist()))
    return RecordError(
        f"the record is damaged: {'; '.join(shown)}" + (f"; and {len(damages) - _MAX_SHOWN} more" if len(damages) > _MAX_SHOWN else ""),
        where=str(next(iter(damages))),
        try_=f"put back a copy, or give --skip-damaged to read what is whole: {n_points} measured points",
    )


__all__ = ["read_run"]
