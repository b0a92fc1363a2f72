"""How is a step-time model read from its file? ``StepTimeModel.save`` writes it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inferometer import suggestions
from inferometer.errors import ModelError
from inferometer.perfmodel.steptime import SCHEMA_VERSION, StepTimeModel
from inferometer.spec.foreign_bytes import Door

FIT_NAME: Final = "step_time.json"
"""What a fit is called in the folder of its run."""


def load_step_time_model(path: Path) -> StepTimeModel:
    """The model of a JSON file, or of the folder of the run that it was fitted to.

    Raises
    ------
    ModelError
        No such file, not a step-time model, or of a version that this one does not read.
    """
    path = path / FIT_NAME if path.is_dir() else path
    again = suggestions.command("fit", "RUN")
    door = Door(
        noun="step-time model", allowed="a file of inferometer fit", refusal=ModelError, try_=again
    )
    content, where = door.bytes_of(path), str(path)
    version = door.json(content, _Versioned, where=where).schema_version
    if version != SCHEMA_VERSION:
        raise ModelError(
            f"schema version {version}", where=where, allowed=str(SCHEMA_VERSION), try_=again
        )
    return door.json(content, StepTimeModel, where=where)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Versioned:
    schema_version: int
