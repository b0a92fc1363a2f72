"""inferometer engines: which engines can be measured here, and how are others installed?"""

from dataclasses import dataclass
from typing import get_args

import click
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from inferometer.cli.answer import give
from inferometer.cli.flags import json_option
from inferometer.cli.terminal import talk
from inferometer.errors import MissingEngineError
from inferometer.inputs.types import EngineName
from inferometer.measure.environments import find_environment, install_environment, python_variable

_NAMES: tuple[EngineName, ...] = get_args(EngineName)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """Can this engine be measured here?

    ``python`` is None where it cannot; ``how_to_install`` then says what to type.
    """

    engine: EngineName
    python: str | None
    found_by: str | None
    how_to_install: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesAnswer:
    """Every engine that we know, and where it lives."""

    engines: tuple[EngineState, ...]


ANSWER = EnginesAnswer


@click.command(
    "engines",
    epilog="""\b
Examples:
  inferometer engines
  inferometer engines --install openvino
""",
)
@click.option(
    "--install",
    "install",
    type=click.Choice(_NAMES),
    help="Make an environment for this engine, from its locked versions.",
)
@json_option
def command(install: EngineName | None, *, as_json: bool) -> None:
    """Which engines can be measured here, and how are others installed?"""
    if install is not None:
        install_environment(install, say=talk)
    give(
        EnginesAnswer(engines=tuple(_state(engine) for engine in _NAMES)),
        as_json=as_json,
        show=_show,
    )


def _state(engine: EngineName) -> EngineState:
    try:
        found = find_environment(engine)
    except MissingEngineError as error:
        return EngineState(engine=engine, python=None, found_by=None, how_to_install=error.try_)
    found_by = {
        "variable": python_variable(engine),
        "here": "this Python",
        "managed": "its own environment",
    }[found.where]
    return EngineState(
        engine=engine, python=str(found.python), found_by=found_by, how_to_install=None
    )


def _show(answer: EnginesAnswer) -> RenderableType:
    table = Table("engine", "here", "where", box=None, pad_edge=False)
    for state in answer.engines:
        table.add_row(
            state.engine,
            "yes" if state.python else "no",
            Text(state.found_by or f"try: {state.how_to_install}"),
        )
    return table
