"""What lies where in a run's folder?

::

    manifest.json                  what, where, when, how; ``is_complete`` is set last
    writer.lock                    held while somebody writes
    parts/00003-00017/             the 4th point that was measured, number 17 of the plan: three tables and their checksums
    sweep.parquet, steps.parquet, ceilings.parquet, SHA256SUMS      the merged tables of a complete run
"""

import re
from pathlib import Path
from typing import Final, NamedTuple

MANIFEST_NAME: Final = "manifest.json"
PARTS_NAME: Final = "parts"
LOCK_NAME: Final = "writer.lock"
SWEEP_NAME: Final = "sweep.parquet"
STEPS_NAME: Final = "steps.parquet"
CEILINGS_NAME: Final = "ceilings.parquet"
TABLE_NAMES: Final = (SWEEP_NAME, STEPS_NAME, CEILINGS_NAME)

_PART: Final = re.compile(r"(\d{5,})-(\d{5,})")


class Part(NamedTuple):
    """One stored point: as the how-manieth was it measured, which of the plan is it, and where does it lie?"""

    sequence: int
    point_index: int
    folder: Path


def part_folder(directory: Path, *, sequence: int, point_index: int) -> Path:
    """Where does a point lie?"""
    return directory / PARTS_NAME / f"{sequence:05d}-{point_index:05d}"


def parts_of(directory: Path) -> tuple[Part, ...]:
    """Which points are stored in parts, in the order in which they were measured?"""
    folder = directory / PARTS_NAME
    matches = [(path, _PART.fullmatch(path.name)) for path in folder.iterdir()] if folder.is_dir() else []
    return tuple(sorted(Part(int(match[1]), int(match[2]), path) for path, match in matches if match and path.is_dir()))


__all__ = [
    "CEILINGS_NAME",
    "LOCK_NAME",
    "MANIFEST_NAME",
    "PARTS_NAME",
    "STEPS_NAME",
    "SWEEP_NAME",
    "TABLE_NAMES",
    "Part",
    "part_folder",
    "parts_of",
]
