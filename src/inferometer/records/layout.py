"""What lies where in a run's folder?

::

    manifest.json                  what, where, when, how; ``is_complete`` is set last
    load.json                      what a load test asks, from its begin on; raw/ holds what came over the wire
    writer.lock                    held while somebody writes
    parts/00003-00017/             the 4th visit to a point, the one numbered 17: three tables and their checksums
    sweep.parquet, steps.parquet, ceilings.parquet, SHA256SUMS      tables of a complete sweep
    requests.parquet, steps.parquet, step_parts.parquet, SHA256SUMS tables of a run of requests
    visits.parquet                 and which of several servers had which request
    step_memory.parquet            and what is known of holes and swaps at each step
    chunks.parquet, exchanges.parquet, lags.parquet, server.parquet and those of a load test
"""

import re
from pathlib import Path
from typing import Final, NamedTuple

MANIFEST_NAME: Final = "manifest.json"
PARTS_NAME: Final = "parts"
LOCK_NAME: Final = "writer.lock"
OPEN_LOAD_NAME: Final = "load.json"
"""What a load test asks; without a manifest beside it the test is not over."""
SWEEP_NAME: Final = "sweep.parquet"
STEPS_NAME: Final = "steps.parquet"
CEILINGS_NAME: Final = "ceilings.parquet"
REQUESTS_NAME: Final = "requests.parquet"
STEP_PARTS_NAME: Final = "step_parts.parquet"
CHUNKS_NAME: Final = "chunks.parquet"
EXCHANGES_NAME: Final = "exchanges.parquet"
LAGS_NAME: Final = "lags.parquet"
SERVER_NAME: Final = "server.parquet"
VISITS_NAME: Final = "visits.parquet"
STEP_MEMORY_NAME: Final = "step_memory.parquet"
TABLE_NAMES: Final = (SWEEP_NAME, STEPS_NAME, CEILINGS_NAME)
"""The tables of a sweep, which has all of them."""
TABLE_FILES: Final = {
    "sweep": SWEEP_NAME,
    "steps": STEPS_NAME,
    "ceilings": CEILINGS_NAME,
    "requests": REQUESTS_NAME,
    "parts": STEP_PARTS_NAME,
    "chunks": CHUNKS_NAME,
    "exchanges": EXCHANGES_NAME,
    "lags": LAGS_NAME,
    "server": SERVER_NAME,
    "visits": VISITS_NAME,
    "step_memory": STEP_MEMORY_NAME,
}
"""Field of a ``Run`` -> the file that holds it."""

_PART: Final = re.compile(r"(\d{5,})-(\d{5,})")


class Part(NamedTuple):
    """One stored visit to a point: its sequence, the point's number, and its folder."""

    sequence: int
    number: int
    folder: Path


def part_folder(directory: Path, *, sequence: int, number: int) -> Path:
    """Where does a part lie?"""
    return directory / PARTS_NAME / f"{sequence:05d}-{number:05d}"


def parts_of(directory: Path) -> tuple[Part, ...]:
    """Which parts are stored, in the order in which they were measured?"""
    folder = directory / PARTS_NAME
    matches = (
        [(path, _PART.fullmatch(path.name)) for path in folder.iterdir()] if folder.is_dir() else []
    )
    return tuple(
        sorted(
            Part(int(match[1]), int(match[2]), path)
            for path, match in matches
            if match and path.is_dir()
        )
    )
