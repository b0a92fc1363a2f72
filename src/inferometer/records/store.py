"""How is a run written point by point, so that nothing is lost, resumed, and read?

A part is written beside its place and renamed into it: ``kill -9`` at any instant loses at most the
point in progress. Until the manifest says *complete* readers take the parts, afterwards the merged
tables; so merging may be killed too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

import msgspec

from inferometer import suggestions
from inferometer.errors import RecordError
from inferometer.inputs.types import Caution
from inferometer.records import run_folder, tables
from inferometer.records.run_folder import (
    CEILINGS_NAME,
    DEVICES_NAME,
    LOCK_NAME,
    MANIFEST_NAME,
    PARTS_NAME,
    STEPS_NAME,
    SWEEP_NAME,
    TABLE_FILES,
    TABLE_NAMES,
    part_folder,
    parts_of,
    read_manifest,
)
from inferometer.records.tables import AnyTable, Table
from inferometer.records.types import (
    SCHEMA_VERSION,
    CeilingTable,
    EngineFacts,
    HostFacts,
    PointStatus,
    Run,
    RunManifest,
    ServerSampleTable,
    StepTable,
    SweepTable,
)

_DAMAGED_SUFFIX: Final = ".damaged"
_FAILED_SUFFIX: Final = ".failed"


class RunWriter:
    """Writes one run. Use it as a context manager, or call ``close``."""

    def __init__(self, directory: Path, manifest: RunManifest, lock: run_folder.WriterLock) -> None:
        self._directory = directory
        self._manifest = manifest
        self._lock = lock
        parts = parts_of(directory)
        self._next_sequence = 1 + max((part.sequence for part in parts), default=-1)
        self._done_parts = {part.number for part in parts}

    @classmethod
    def create_or_resume(cls, directory: Path, manifest: RunManifest) -> Self:
        """Start the run in ``directory``, or resume the one that is there.

        A complete run is opened too: ``is_complete`` says so, and it can only be closed. A stored
        part that no longer has its checksum, or at which the engine failed, is set aside; its point
        counts as not done, and a caution says so.

        Raises
        ------
        RecordError
            The folder cannot be written, is being written by another process, or holds a run of
            another plan, engine or model (the message says what differs).
        """
        run_folder.make_folder(directory)
        lock = run_folder.WriterLock.acquire(directory / LOCK_NAME)
        try:
            manifest = _opened(directory, manifest)
        except BaseException:
            lock.release()
            raise
        return cls(directory, manifest, lock)

    @property
    def manifest(self) -> RunManifest:
        """The stored manifest; a resumed run keeps its id, command and first start."""
        return self._manifest

    @property
    def is_complete(self) -> bool:
        """Did the same command already run to its end?"""
        return self._manifest.is_complete

    @property
    def done_parts(self) -> frozenset[int]:
        """Numbers of the stored parts; a complete run has none: it is merged."""
        return frozenset(self._done_parts)

    @property
    def elapsed_ns(self) -> int:
        """Start of a resumed session on the run's clock.

        After all that is stored, so that times since the start of the run keep their order.
        """
        end_ns = 0
        for part in () if self.is_complete else parts_of(self._directory):
            sweep = tables.read_table(part.folder / SWEEP_NAME, SweepTable)
            end_ns = max(
                end_ns,
                tables.end_ns(sweep, tables.read_table(part.folder / CEILINGS_NAME, CeilingTable)),
            )
        return end_ns

    def append_part(
        self,
        number: int,
        sweep: SweepTable,
        steps: StepTable,
        ceilings: CeilingTable,
        devices: ServerSampleTable | None = None,
    ) -> None:
        """Store one visit to a point; on return it is on disk.

        ``devices``: counters of the accelerators meanwhile, where their driver tells any.

        Raises
        ------
        RecordError
            It could not be written (a full disk); what was stored before is untouched. Or the part
            is there already.
        """
        self._refuse_if_complete()
        if number in self._done_parts:
            raise RecordError(f"part {number} is stored already", where=str(self._directory))
        place = part_folder(self._directory, sequence=self._next_sequence, number=number)
        temporary = place.with_name(place.name + run_folder.TEMPORARY_SUFFIX)
        try:
            run_folder.make_folder(temporary)
            tables.write_table(temporary / SWEEP_NAME, sweep)
            tables.write_table(temporary / STEPS_NAME, steps)
            tables.write_table(temporary / CEILINGS_NAME, ceilings)
            if devices is not None:
                tables.write_table(temporary / DEVICES_NAME, devices)
            run_folder.write_sums(temporary, _names_of([temporary]))
            run_folder.move_into_place(temporary, place)
        except RecordError as error:
            run_folder.remove_folder(temporary)
            raise _with_what_is_kept(error, len(self._done_parts)) from error
        self._next_sequence += 1
        self._done_parts.add(number)

    def finish(
        self, cautions: Sequence[Caution], ended_utc: str, engine: EngineFacts | None = None
    ) -> None:
        """Merge the parts into one file per table, then declare the run complete, then remove the parts.

        ``engine`` is what the engine says of itself at the end, when it knows how long it compiled.

        Raises
        ------
        RecordError
            It could not be written; the parts are untouched, and ``finish`` can be called again.
        """
        self._refuse_if_complete()
        folders = [part.folder for part in parts_of(self._directory)]
        try:
            _merge(self._directory, folders, SWEEP_NAME, SweepTable)
            _merge(self._directory, folders, STEPS_NAME, StepTable)
            _merge(self._directory, folders, CEILINGS_NAME, CeilingTable)
            names = _names_of(folders)
            if DEVICES_NAME in names:
                with_counters = [one for one in folders if (one / DEVICES_NAME).is_file()]
                _merge(self._directory, with_counters, DEVICES_NAME, ServerSampleTable)
            manifest = replace(
                self._manifest,
                is_complete=True,
                ended_utc=ended_utc,
                engine=_at_the_end(self._manifest.engine, engine),
                cautions=without_repeats((*self._manifest.cautions, *cautions)),
            )
            run_folder.write_sums(self._directory, names, {MANIFEST_NAME: _content_of(manifest)})
            _write_manifest(self._directory, manifest)
        except RecordError as error:
            _sweep_up(self._directory)
            raise _with_what_is_kept(error, len(folders)) from error
        self._manifest = manifest
        run_folder.remove_folder(self._directory / PARTS_NAME)

    def close(self) -> None:
        """Release the folder's lock."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _refuse_if_complete(self) -> None:
        if self.is_complete:
            raise RecordError(
                "the run is complete; nothing can be added",
                where=str(self._directory),
                try_="another folder with --out, or "
                + suggestions.command("show", self._directory),
            )


def _opened(directory: Path, requested: RunManifest) -> RunManifest:
    """The manifest to continue with, after preparing the folder."""
    path = directory / MANIFEST_NAME
    if not path.exists() and parts_of(directory):
        raise RecordError(
            "the folder has parts of a run but no manifest.json",
            where=str(directory),
            try_="another folder with --out",
        )
    manifest = (
        _resumed(directory, read_manifest(path).manifest, requested) if path.exists() else requested
    )
    if not manifest.is_complete:
        cautions = (*_set_damaged_aside(directory), *_set_failed_aside(directory))
        manifest = replace(manifest, cautions=without_repeats((*manifest.cautions, *cautions)))
        _write_manifest(directory, manifest)
        _sweep_up(directory)
    return manifest


def _at_the_end(stored: EngineFacts | None, now: EngineFacts | None) -> EngineFacts | None:
    """The engine's facts as the run began, with the compile time that is known at its end."""
    return (
        now
        if stored is None
        else replace(stored, compile_s=stored.compile_s if now is None else now.compile_s)
    )


def _resumed(directory: Path, stored: RunManifest, requested: RunManifest) -> RunManifest:
    """The manifest of the run to resume.

    One without a single point (a question that was refused) keeps no folder from another question.
    """
    is_untouched = not stored.is_complete and not any((directory / PARTS_NAME).glob("*"))
    if is_untouched and differences(stored, requested):
        return requested
    return resumed(stored, requested, where=str(directory))


def _write_manifest(directory: Path, manifest: RunManifest) -> None:
    run_folder.replace_file(directory / MANIFEST_NAME, _content_of(manifest))


def _content_of(manifest: RunManifest) -> bytes:
    return (
        msgspec.json.format(
            msgspec.json.encode(replace(manifest, schema_version=SCHEMA_VERSION)), indent=2
        )
        + b"\n"
    )


def _names_of(parts: list[Path]) -> tuple[str, ...]:
    """The tables of these parts together."""
    has_counters = any((folder / DEVICES_NAME).is_file() for folder in parts)
    return (*TABLE_NAMES, DEVICES_NAME) if has_counters else TABLE_NAMES


def _merge(directory: Path, folders: list[Path], name: str, table_type: type[Table]) -> None:
    table = tables.concat(
        table_type, [tables.read_table(folder / name, table_type) for folder in folders]
    )
    temporary = directory / (name + run_folder.TEMPORARY_SUFFIX)
    tables.write_table(temporary, table)
    run_folder.move_into_place(temporary, directory / name)


def _set_damaged_aside(directory: Path) -> tuple[Caution, ...]:
    cautions: list[Caution] = []
    for part in parts_of(directory):
        damaged = run_folder.damaged_files(part.folder)
        if damaged:
            run_folder.move_into_place(
                part.folder, part.folder.with_name(part.folder.name + _DAMAGED_SUFFIX)
            )
            cautions.append(
                Caution(
                    code="DAMAGED_PART",
                    text=(
                        f"stored part {part.number} ({', '.join(damaged)}) differed from its"
                        " checksum and was measured again"
                    ),
                    remedy="check the disk that holds the record",
                )
            )
    return tuple(cautions)


def _set_failed_aside(directory: Path) -> tuple[Caution, ...]:
    """Failed visits are measured again; those out of memory stay as they are."""
    failed = [
        part
        for part in parts_of(directory)
        if (
            tables.read_table(part.folder / SWEEP_NAME, SweepTable).status == PointStatus.FAILED
        ).any()
    ]
    for part in failed:
        run_folder.move_into_place(
            part.folder, part.folder.with_name(part.folder.name + _FAILED_SUFFIX)
        )
    return tuple(
        Caution(
            code="FAILED_BEFORE",
            text=f"the engine failed at stored part {part.number}, which was measured again",
            remedy="read that point's spread before you trust it",
        )
        for part in failed
    )


def _sweep_up(directory: Path) -> None:
    """Remove unfinished files of a killed writer."""
    for path in directory.glob(f"*{run_folder.TEMPORARY_SUFFIX}"):
        path.unlink(missing_ok=True)
    for path in (directory / PARTS_NAME).glob(f"*{run_folder.TEMPORARY_SUFFIX}"):
        run_folder.remove_folder(path)


def _with_what_is_kept(error: RecordError, n_kept: int) -> RecordError:
    return RecordError(
        error.what,
        where=error.where,
        allowed=error.allowed or "a writable folder with free space",
        try_=(
            f"free some space, then give the same command again: {n_kept} measured parts are"
            " stored, and it goes on after them"
        ),
    )


# May a run that was broken off be gone on with, or would the result be a mixture of two?


_MAX_SHOWN = 5


def resumed(stored: RunManifest, requested: RunManifest, *, where: str) -> RunManifest:
    """The manifest of a resumed run: the stored one, completed by new facts.

    Raises
    ------
    RecordError
        Plan, engine, model or machine differ; the message names what does.
    """
    found = differences(stored, requested)
    if found:
        shown = "; ".join(found[:_MAX_SHOWN]) + (
            f"; and {len(found) - _MAX_SHOWN} more" if len(found) > _MAX_SHOWN else ""
        )
        raise RecordError(
            f"the folder holds another run: {shown}",
            where=where,
            allowed="the same plan, engine, model and machine, to go on with a run",
            try_="the command that the run was started with, or another folder with --out",
        )
    return replace(
        stored,
        model=stored.model or requested.model,
        engine=stored.engine or requested.engine,
        host=stored.host or requested.host,
        cautions=without_repeats((*stored.cautions, *requested.cautions)),
    )


def differences(stored: RunManifest, requested: RunManifest) -> tuple[str, ...]:
    """Differences in plan, model, engine and machine.

    What one side does not know is no difference.
    """
    pairs = (
        ("plan", stored.plan, requested.plan),
        ("model", stored.model, requested.model),
        ("engine", _lasting(stored.engine), _lasting(requested.engine)),
        ("machine", _machine(stored.host), _machine(requested.host)),
    )
    found: list[str] = []
    for name, before, now in pairs:
        if before is not None and now is not None:
            found += _leaf_differences(name, msgspec.to_builtins(before), msgspec.to_builtins(now))
    return tuple(found)


def without_repeats(cautions: Iterable[Caution]) -> tuple[Caution, ...]:
    """Each caution once, in the order of its first appearance."""
    return tuple(dict.fromkeys(cautions))


def _lasting(facts: EngineFacts | None) -> EngineFacts | None:
    """Engine facts that must not change between sessions.

    All but how long loading took this time, and how much memory was free for the cache.
    """
    return None if facts is None else replace(facts, load_s=None, compile_s=None, n_kv_blocks=None)


def _machine(host: HostFacts | None) -> dict[str, object] | None:
    """Facts that identify the machine; host names change with every container."""
    if host is None:
        return None
    return {
        "cpu_model": host.cpu_model,
        "accelerator": host.accelerator,
        "n_threads_used": host.n_threads_used,
    }


def _leaf_differences(name: str, before: object, now: object) -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        keys = dict.fromkeys([*before, *now])
        return [
            line
            for key in keys
            for line in _leaf_differences(f"{name}.{key}", before.get(key), now.get(key))
        ]
    if isinstance(before, list | tuple) and isinstance(now, list | tuple):
        if len(before) != len(now):
            return [f"{name} has {len(now)} entries, stored are {len(before)}"]
        return [
            line
            for i, pair in enumerate(zip(before, now, strict=True))
            for line in _leaf_differences(f"{name}[{i}]", *pair)
        ]
    return [] if before == now else [f"{name} is {now!r}, stored is {before!r}"]


# How is a run that is known as a whole written: a simulated one, an imported one, a load test
# when it is over?
# Tables first, their checksums next, the manifest last: a folder without a manifest is no run, so
# a killed writer leaves none.


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
    run_folder.make_folder(directory)
    lock = run_folder.WriterLock.acquire(directory / LOCK_NAME)
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
            temporary = directory / (name + run_folder.TEMPORARY_SUFFIX)
            tables.write_table(temporary, table)
            run_folder.move_into_place(temporary, directory / name)
        content = (
            msgspec.json.format(
                msgspec.json.encode(replace(manifest, schema_version=SCHEMA_VERSION)), indent=2
            )
            + b"\n"
        )
        run_folder.write_sums(directory, tuple(stored), {MANIFEST_NAME: content})
        run_folder.replace_file(directory / MANIFEST_NAME, content)
    except RecordError:
        for name in (*stored, run_folder.SUMS_NAME):
            (directory / name).unlink(missing_ok=True)
            (directory / (name + run_folder.TEMPORARY_SUFFIX)).unlink(missing_ok=True)
        raise
