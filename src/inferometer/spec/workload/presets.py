"""Which workloads are built in?

Files like the user's own, in ``preset_files``, each number with its source.
"""

from importlib import resources
from typing import Final

_FOLDER: Final = "preset_files"


def preset_names() -> tuple[str, ...]:
    """The names of the built-in workloads, sorted."""
    files = (resources.files("inferometer.spec.workload") / _FOLDER).iterdir()
    return tuple(
        sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))
    )


def preset_text(name: str) -> str:
    """The file of a built-in workload."""
    return (resources.files("inferometer.spec.workload") / _FOLDER / f"{name}.toml").read_text(
        encoding="utf-8"
    )
