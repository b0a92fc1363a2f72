"""How is a step-time model read from its file? ``StepTimeModel.save`` writes it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from inferometer import suggestions
from inferometer.errors import ModelError
from inferometer.perfmodel.steptime import SCHEMA_VERSION, StepTimeModel

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
    try:
        content = path.read_bytes()
        version = msgspec.json.decode(content, type=_Versioned).schema_version
        if version != SCHEMA_VERSION:
            raise ModelError(
                f"schema version {version}", where=str(path), allowed=str(SCHEMA_VERSION), try_=suggestions.command("fit", "RUN")
            )
        return msgspec.json.decode(content, type=StepTimeModel)
    except (OSError, msgspec.DecodeError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else problem
        raise ModelError(f"cannot read a step-time model: {why}", where=str(path), try_=suggestions.command("fit", "RUN")) from problem


@dataclass(frozen=True, slots=True, kw_only=True)
class _Versioned:
    schema_version: int


__all__ = ["FIT_NAME", "load_step_time_model"]
