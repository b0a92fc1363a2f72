"""Runs from other tools' files of results."""

from pathlib import Path

from inferometer import suggestions
from inferometer.errors import RecordError, SpecError
from inferometer.records import reading, run_folder
from inferometer.records.imports.detection import read_results
from inferometer.records.sweep_csv import TableFacts
from inferometer.records.types import Run


def read_file(path: Path, facts: TableFacts | None = None) -> Run:
    """The run in a file: a manifest's, a sweep's table, or requests of another tool.

    Raises
    ------
    RecordError, SpecError
        It is none of these, or is damaged; or it has several runs.
    """
    if path.name == run_folder.MANIFEST_NAME:
        return reading.read_run(path)
    try:
        return reading.read_table(path, facts)
    except (RecordError, SpecError):
        run = _of_requests(path)
        if run is None:
            raise
        return run


def _of_requests(path: Path) -> Run | None:
    """The run of a file of results; None for other files, and statistics alone."""
    try:
        found = read_results(path)
    except RecordError:
        return None
    if len(found.runs) > 1:
        raise SpecError(
            f"the file holds {len(found.runs)} runs, and one is read",
            where=str(path),
            allowed="the folder of one of them",
            try_=suggestions.command("import", path, "--out", Path("runs") / path.stem),
        )
    return found.runs[0] if found.runs else None
