"""How is the answer of a sizing written as a folder that deploys, watches and checks it?"""

from collections.abc import Sequence
from pathlib import Path

from inferometer import __version__
from inferometer.api.deployment_folder import write_folder
from inferometer.api.progress import talk
from inferometer.api.sizing import pick_of
from inferometer.api.sizing_cautions import cautions_of
from inferometer.decide.artefacts.folder import README_FILE
from inferometer.decide.artefacts.packaging import Wishes
from inferometer.decide.artefacts.planning import fleet_of
from inferometer.decide.sizing_types import Done, SizingQuestion


def write_answer(
    folder: Path,
    question: SizingQuestion,
    found: Sequence[Done],
    utilization_fraction: float,
    *,
    is_forced: bool,
) -> None:
    """Write the folder of what a sizing picked; nothing where it picked nothing."""
    pick = pick_of(found)
    if pick is None:
        talk(f"nothing keeps the promise: nothing is written to {folder}")
        return
    fleet = fleet_of(
        question,
        pick,
        utilization_fraction=utilization_fraction,
        cautions=cautions_of([pick]),
        tool_version=__version__,
    )
    write_folder(folder, fleet, Wishes(), is_forced=is_forced)
    talk(f"what runs, watches and checks it: {folder} (begin with {README_FILE})")
