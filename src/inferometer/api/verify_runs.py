"""Which runs were measured elsewhere, and when?"""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from inferometer.errors import RecordError
from inferometer.records import reading
from inferometer.records.imports.detection import read_results
from inferometer.records.types import Run

_LOCAL_TIME: Final = " (local time)"


def runs_of(path: Path) -> tuple[Run, ...]:
    """The run of a folder, or those of another tool's file.

    Raises
    ------
    RecordError
        It cannot be read, or has no requests.
    """
    if path.is_dir() or path.name == "manifest.json":
        return (reading.read_run(path),)
    runs = tuple(map(_dated, read_results(path).runs))
    if not runs:
        raise RecordError(
            "the file has statistics but no requests: nobody can tell what was asked, when, and how"
            " sure they are",
            where=str(path),
            allowed="results with every request, such as vllm bench serve --save-detailed",
        )
    return runs


def _dated(run: Run) -> Run:
    """The same run; a date without a time zone, which vLLM bench writes, is taken for one of this machine's."""
    said, has_none, _ = run.manifest.created_utc.partition(_LOCAL_TIME)
    if not has_none:
        return run
    at_utc = datetime.fromisoformat(said).astimezone(UTC).isoformat(timespec="seconds")
    return replace(run, manifest=replace(run.manifest, created_utc=at_utc))
