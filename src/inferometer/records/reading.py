"""Reader of stored runs: complete, interrupted or damaged."""

import shlex
from collections.abc import Iterator
from dataclasses import fields, replace
from enum import IntEnum
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from inferometer import suggestions
from inferometer.errors import RecordError, SpecError
from inferometer.inputs.foreign_bytes import nearby
from inferometer.inputs.types import Caution
from inferometer.records import foreign_sweeps, run_folder, tables
from inferometer.records.imports.concurrency_table import is_concurrency_table
from inferometer.records.imports.json_fields import DOOR
from inferometer.records.run_folder import (
    MANIFEST_NAME,
    OPEN_LOAD_NAME,
    TABLE_FILES,
    TABLE_NAMES,
    Loader,
    parts_of,
    read_manifest,
)
from inferometer.records.sweep_csv import TableFacts, read_sweep_csv
from inferometer.records.tables import AnyTable, Table
from inferometer.records.types import (
    ABSENT,
    CeilingTable,
    ChunkKind,
    ChunkTable,
    ExchangeTable,
    LagTable,
    PartKind,
    Phase,
    PointStatus,
    ProbeKind,
    RequestStatus,
    RequestTable,
    Run,
    RunManifest,
    ServerSampleTable,
    StepMemoryTable,
    StepPartTable,
    StepTable,
    SweepTable,
    VisitTable,
)

_MAX_SHOWN: Final = 3
_DIFFERS: Final = "differs from its checksum or is missing"


def read_run(path: Path, *, skip_damaged: bool = False, made_by: str | None = None) -> Run:
    """Read the run at ``path``.

    ``path``: its folder, its manifest, a folder with one run in it, or a sweep's CSV table.

    An empty table of steps or ceilings is None: not recorded. ``skip_damaged`` reads the intact
    parts of a damaged record and adds a caution to the manifest on what is missing. ``made_by`` is
    the command that makes such a run as is needed here, where there is none; by default ``quick``.

    Raises
    ------
    RecordError
        There is no run, or one of its files is damaged; the message names the file and what can be
        recovered.
    """
    if path.is_file() and path.name != MANIFEST_NAME:
        return read_table(path)
    directory = directory_of(path, made_by=made_by)
    manifest, loader = read_manifest(directory / MANIFEST_NAME)
    stored = _stored(directory, manifest, loader)
    run = _run_of(manifest, stored)
    if not manifest.is_complete and read_manifest(directory / MANIFEST_NAME).manifest.is_complete:
        return read_run(
            directory, skip_damaged=skip_damaged, made_by=made_by
        )  # the writer finished, and removed the parts, during the read
    if stored.damages and not skip_damaged:
        raise _damage_error(stored.damages, run.sweep, run.requests)
    if run.requests is not None:
        _check_order(run.requests, directory)
    cautions = tuple(
        Caution(
            code="DAMAGED_RECORD",
            text=f"left out: {path.relative_to(directory)} {why}",
            remedy="measure the missing points again",
        )
        for path, why in stored.damages.items()
    )
    run = replace(run, manifest=replace(manifest, cautions=(*manifest.cautions, *cautions)))
    check_plausible(run)
    return run


def read_table(path: Path, facts: TableFacts | None = None) -> Run:
    """The run of a sweep's table, with further facts.

    Raises
    ------
    RecordError, SpecError
        It is not such a table. The message names the kind of other known results.
    """
    start = DOOR.start_of(path, 2**16).decode("utf-8", "replace")
    is_json = start.lstrip()[:1] in {"{", "["}
    is_sweep = is_json and foreign_sweeps.is_json(start)
    if is_sweep or not (is_json or is_concurrency_table(start)):
        return read_sweep_csv(path, facts)
    raise _no_sweep(path, start, is_json=is_json)


def _no_sweep(path: Path, start: str, *, is_json: bool) -> SpecError:
    """The error that names the kind of file, and the command that reads it."""
    if is_json and '"parameters"' in start and '"covariance"' in start:
        return SpecError(
            "a fit of step times, no run",
            where=str(path),
            allowed="runs, or tables of a sweep; predict, simulate and size take a fit with --fit",
            try_=suggestions.command("predict", "MODEL", "--fit", path),
        )
    return SpecError(
        "JSON that is no table of a sweep"
        if is_json
        else "a table of latencies by concurrency, no sweep of batches",
        where=str(path),
        allowed="tables of a sweep, with a column batch; JSON of llama-bench or bench_one_batch",
        try_=suggestions.command("import", path)
        if is_json
        else suggestions.command("fit", path, "--out", "server.json")
        + ", whose step times predict and simulate read (--fit)",
    )


class _Stored(NamedTuple):
    """Location of a run's tables, and files that are damaged."""

    damages: dict[Path, str]
    loader: Loader
    folders: list[Path]
    names: tuple[str, ...]
    """Files that must exist."""

    def table(self, field: str, table_type: type[Table]) -> Table | None:
        """The table of that field from all folders, joined; None where there is none.

        Unreadable files are recorded as damage.
        """
        name = TABLE_FILES[field]
        if name not in self.names:
            return None
        found: list[Table] = []
        for path in [folder / name for folder in self.folders]:
            if path in self.damages:
                continue
            try:
                found.append(
                    tables.from_columns(
                        table_type, self.loader.loader_of(field)(tables.read_columns(path))
                    )
                )
            except RecordError as error:
                self.damages[path] = error.what
        if len(found) == 1:
            return found[0]
        return None if self.folders and not found else tables.concat(table_type, found)


def _check_order(requests: RequestTable, directory: Path) -> None:
    """Check that no response begins or ends before its request was sent."""
    for name, before in product(("first_token_ns", "finished_ns"), ("intended_send_ns", "sent_ns")):
        instants_ns, before_ns = getattr(requests, name), getattr(requests, before)
        is_known = (instants_ns != ABSENT) & (before_ns != ABSENT)
        wrong = np.flatnonzero(is_known & (instants_ns < before_ns))
        if len(wrong):
            raise RecordError(
                f"row {wrong[0]}: {name} lies before {before}",
                where=str(directory / TABLE_FILES["requests"]),
                allowed="instants in the order in which things happen",
            )


def _stored(directory: Path, manifest: RunManifest, loader: Loader) -> _Stored:
    """Location of this run's tables: in its folder, or in parts while it is incomplete."""
    damages: dict[Path, str] = {}
    if not manifest.is_complete:
        return _Stored(damages, loader, _whole_parts(directory, damages), TABLE_NAMES)
    damaged = run_folder.damaged_files(directory)
    damages |= dict.fromkeys((directory / name for name in damaged), _DIFFERS)
    return _Stored(damages, loader, [directory], _expected_names(directory, manifest))


def _run_of(manifest: RunManifest, stored: _Stored) -> Run:
    sweep = stored.table("sweep", SweepTable)
    steps = stored.table("steps", StepTable)
    ceilings = stored.table("ceilings", CeilingTable)
    return Run(
        manifest=manifest,
        sweep=sweep,
        steps=steps if steps is not None and tables.n_rows(steps) else None,
        ceilings=ceilings if ceilings is not None and tables.n_rows(ceilings) else None,
        requests=stored.table("requests", RequestTable),
        parts=stored.table("parts", StepPartTable),
        chunks=stored.table("chunks", ChunkTable),
        exchanges=stored.table("exchanges", ExchangeTable),
        lags=stored.table("lags", LagTable),
        server=stored.table("server", ServerSampleTable),
        visits=stored.table("visits", VisitTable),
        step_memory=stored.table("step_memory", StepMemoryTable),
        devices=stored.table("devices", ServerSampleTable),
    )


def directory_of(path: Path, *, made_by: str | None = None) -> Path:
    """Folder of the run at ``path``; ``made_by`` makes one, where there is none."""
    remedy = made_by or suggestions.command("quick", "MODEL", "--out", "runs/NAME")
    if path.name == MANIFEST_NAME and path.is_file():
        return path.parent
    if (path / MANIFEST_NAME).is_file():
        return path
    if not path.exists():
        raise RecordError(
            "there is no such file or folder",
            where=str(path),
            allowed="the folder of a run, or a CSV table of a sweep",
            try_=nearby(path) or remedy,
        )
    inner = (
        sorted(manifest.parent for manifest in path.glob(f"*/{MANIFEST_NAME}"))
        if path.is_dir()
        else []
    )
    if len(inner) == 1:
        return inner[0]
    if inner:
        names = ", ".join(folder.name for folder in inner[:_MAX_SHOWN])
        raise RecordError(
            f"{len(inner)} runs are in this folder: {names}",
            where=str(path),
            allowed="one run (show, report and fit take several)",
            try_=" ".join(shlex.quote(str(folder)) for folder in inner[:_MAX_SHOWN]),
        )
    if (path / OPEN_LOAD_NAME).is_file():
        try_ = suggestions.command("show", path)
        raise RecordError(
            "the load test in this folder is not over",
            where=str(path),
            allowed="a complete run",
            try_=try_,
        )
    raise RecordError(
        "this is no run",
        where=str(path),
        allowed="a folder with a manifest.json, or a CSV table of a sweep",
        try_=remedy,
    )


def _whole_parts(directory: Path, damages: dict[Path, str]) -> list[Path]:
    """Folders of the intact parts; a damaged part is left out entirely."""
    whole: list[Path] = []
    for part in parts_of(directory):
        damaged = run_folder.damaged_files(part.folder)
        if not (part.folder / run_folder.SUMS_NAME).is_file():
            damaged = (run_folder.SUMS_NAME,)
        damages.update(dict.fromkeys((part.folder / name for name in damaged), _DIFFERS))
        if not damaged:
            whole.append(part.folder)
    return whole


def _expected_names(directory: Path, manifest: RunManifest) -> tuple[str, ...]:
    """Tables that a complete run must have: those with a checksum.

    If the checksums are lost: a sweep's three tables, or the files that exist.
    """
    summed = tuple(name for name in run_folder.summed_files(directory) if name != MANIFEST_NAME)
    there = tuple(name for name in TABLE_FILES.values() if (directory / name).is_file())
    return summed or (TABLE_NAMES if manifest.plan is not None or not there else there)


def _damage_error(
    damages: dict[Path, str], sweep: SweepTable | None, requests: RequestTable | None
) -> RecordError:
    shown = [f"{path.name} {why}" for path, why in list(damages.items())[:_MAX_SHOWN]]
    n_points = 0 if sweep is None else len(set(sweep.point_index.tolist()))
    whole = (
        f"{n_points} measured points" if requests is None else f"{tables.n_rows(requests)} requests"
    )
    return RecordError(
        f"the record is damaged: {'; '.join(shown)}"
        + (f"; and {len(damages) - _MAX_SHOWN} more" if len(damages) > _MAX_SHOWN else ""),
        where=str(next(iter(damages))),
        try_=f"restore a copy, or give --skip-damaged to read the intact parts: {whole}",
    )


# The largest values that columns may hold. A damaged table without a checksum may hold any number,
# and code that takes it as an index, a count or an instant would fail later.
_MOST_INDEX: Final = 2**24
"""Largest index; readers allocate a row for each index up to the largest."""
_MOST: Final = {
    "class_index": 10_000,
    "replica": 100_000,
    "slot": 2**20,
    "process_index": 10_000,
    "point_index": 10**6,
    "repetition": 10**6,
}
_MOST_COUNT: Final = 2**40
_MOST_BY_ENDING: Final = {
    "_tokens": _MOST_COUNT,
    "_blocks": _MOST_COUNT,
    "_bytes": 2**60,
    "_ns": 2**62,
}
_KINDS: Final[dict[str, type[IntEnum]]] = {
    "StepTable.phase": Phase,
    "SweepTable.status": PointStatus,
    "RequestTable.status": RequestStatus,
    "StepPartTable.kind": PartKind,
    "CeilingTable.kind": ProbeKind,
    "ChunkTable.kind": ChunkKind,
}


class _Bounds(NamedTuple):
    low: int
    high: int


def check_plausible(run: Run) -> None:
    """Refuse columns with values that their names do not allow."""
    for name, table in _tables(run):
        for column, values in table._asdict().items():
            bounds = _bounds(run, type(table).__name__, column)
            known = values[values != ABSENT] if values.dtype == np.int64 else values
            if bounds is None or not known.size:
                continue
            low, high = int(known.min()), int(known.max())
            if low < bounds.low or high > bounds.high:
                wrong = low if low < bounds.low else high
                raise RecordError(
                    f"{column} of the table {name} is {wrong}",
                    where=run.manifest.run_id,
                    allowed=f"{bounds.low} to {bounds.high}",
                    try_="a copy of the record: this one is damaged",
                )


def _tables(run: Run) -> Iterator[tuple[str, AnyTable]]:
    for field in fields(run):
        table = getattr(run, field.name)
        if field.name != "manifest" and table is not None:
            yield field.name, table


def _bounds(run: Run, table: str, column: str) -> _Bounds | None:
    kinds = _KINDS.get(f"{table}.{column}")
    if kinds is not None:
        return _Bounds(min(kinds), max(kinds))
    if column == "request_index":
        return _Bounds(0, _most_request(run, table))
    if column == "step_index":
        return None if run.steps is None else _Bounds(0, len(run.steps.start_ns) - 1)
    if column in _MOST or column.startswith("n_"):
        return _Bounds(-1, _MOST.get(column, _MOST_COUNT))
    most = next((most for ending, most in _MOST_BY_ENDING.items() if column.endswith(ending)), None)
    return None if most is None else _Bounds(-most if column.endswith("_ns") else -1, most)


def _most_request(run: Run, table: str) -> int:
    index = None if run.requests is None else run.requests.request_index
    if index is None or table == "RequestTable":
        return max(_MOST_INDEX, 0 if index is None else 100 * len(index))
    return int(index.max(initial=0))
