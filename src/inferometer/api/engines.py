"""Which engines can be measured here, and how are others installed?"""

from dataclasses import dataclass
from typing import ClassVar, get_args

from inferometer.api.answer import Answer
from inferometer.api.progress import talk
from inferometer.api.question import option
from inferometer.errors import MissingEngineError
from inferometer.inputs.types import EngineName
from inferometer.measure.environments import find_environment, install_environment, python_variable
from inferometer.report.page import Page
from inferometer.report.tables import TextTable


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
class EnginesAnswer(Answer):
    """Every engine that can be measured, and where it is installed."""

    table: ClassVar[str | None] = "engines"

    engines: tuple[EngineState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """The engines, and which of them is installed first."""

    install: EngineName | None = option(
        None,
        "Make an environment for this engine, from its locked versions.",
        "Engine",
        is_common=True,
    )
    given: frozenset[str] = frozenset()


def engines(question: Engines) -> EnginesAnswer:
    """Where each engine is installed, after installing one where that is requested.

    Raises
    ------
    EngineError
        It cannot be installed.
    """
    if question.install is not None:
        install_environment(question.install, say=talk)
    return EnginesAnswer(engines=tuple(map(_state, get_args(EngineName))))


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


def engines_page(answer: EnginesAnswer) -> Page:
    """A row for each engine."""
    rows = tuple(
        (one.engine, "yes" if one.python else "no", one.found_by or f"try: {one.how_to_install}")
        for one in answer.engines
    )
    n_here = sum(one.python is not None for one in answer.engines)
    return Page(
        title=f"{n_here} of {len(rows)} engines can be measured here",
        table=TextTable(caption="", header=("engine", "here", "where"), rows=rows),
    )
