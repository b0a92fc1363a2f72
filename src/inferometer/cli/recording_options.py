"""Which flags say what is kept of a simulation?"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The folder to store the run in, if any, and whether it has who did what in each step."""

    folder: Path | None
    has_parts: bool


_OPTIONS: Final = (
    click.option(
        "--parts",
        is_flag=True,
        help="Record who did what in each step: for timelines and times of single tokens.",
    ),
    click.option(
        "--out",
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder to store the run in.",
    ),
)


def takes_recording(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags that say what is kept; the command gets ``recording: Recording``."""

    @functools.wraps(command)
    def with_recording(**flags: Any) -> None:
        command(recording=Recording(folder=flags.pop("out"), has_parts=flags.pop("parts")), **flags)

    wrapped: Callable[..., None] = with_recording
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped
