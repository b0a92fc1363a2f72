"""What would make numbers bad on this machine, and which engines can be measured on it?"""

from dataclasses import dataclass
from typing import get_args

from inferometer.api.answer import Answer
from inferometer.api.progress import talk
from inferometer.api.question import option
from inferometer.errors import MissingEngineError
from inferometer.inputs.types import Caution, EngineName
from inferometer.measure.environments import find_environment, install_environment, python_variable
from inferometer.measure.host import examine_machine, host_facts, placement
from inferometer.records.pitfalls import judged_all
from inferometer.records.types import HostFacts
from inferometer.report.page import Page
from inferometer.report.tables import TextTable
from inferometer.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorAnswer(Answer):
    """The machine, and what would distort measurements on it."""

    host: HostFacts
    cautions: tuple[Caution, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor:
    """A check of the machine that runs the command; it has no options."""

    given: frozenset[str] = frozenset()


def doctor(_question: Doctor) -> DoctorAnswer:
    """Watch this machine for half a second."""
    checks = judged_all(placement())
    cautions = (one.caution for one in checks if one.finding == "found")
    return DoctorAnswer(
        host=host_facts(n_threads=None, uses_device=True), cautions=(*examine_machine(), *cautions)
    )


def doctor_page(answer: DoctorAnswer) -> Page:
    """The machine in one line, and a caution for each finding."""
    host = answer.host
    memory = f", {format_bytes(host.memory_bytes)}" if host.memory_bytes is not None else ""
    n_found = len(answer.cautions)
    return Page(
        title=(
            f"{n_found} thing{'s' * (n_found > 1)} found that would make numbers bad"
            if n_found
            else "Nothing found that would make numbers bad"
        ),
        subtitle=(
            f"{host.cpu_model or 'unknown CPU'}, {host.n_cores} cores{memory},"
            f" {host.accelerator or 'no accelerator'}"
        ),
        cautions=answer.cautions,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """Whether this engine can be measured here.

    ``python`` is None where it cannot; ``how_to_install`` then says what to type.
    """

    engine: EngineName
    python: str | None
    found_by: str | None
    how_to_install: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesAnswer(Answer):
    """Every engine, and where it is installed."""

    table = "engines"

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
        The engine cannot be installed.
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
