"""What is asked of a quick look: a model on this machine, and the time there is."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from inferometer.api.engine import Engine, engine_of
from inferometer.api.model_options import MODEL_OPTION
from inferometer.api.question import DURATION, Option
from inferometer.errors import SpecError
from inferometer.inputs.types import EngineSpec
from inferometer.measure.environments import find_environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Quick:
    """A model on this machine, and the time there is."""

    model: Annotated[str, MODEL_OPTION]
    engine: Engine = field(default_factory=Engine)
    budget: Annotated[
        float,
        Option(
            "About how long it may take, loading included; two points are measured in any case."
            " [2min]",
            heading="Limits",
            is_common=True,
            metavar="DURATION",
            shows_default=False,
            parse=DURATION,
        ),
    ] = 120.0
    out: Annotated[
        Path | None,
        Option("Folder of the run, or X.csv: the table, its run beside it in X.", is_common=True),
    ] = None
    given: frozenset[str] = frozenset()


def checked_engine(question: Quick) -> EngineSpec:
    """The engine, which is installed: a missing one is reported before anything else is imported.

    Raises
    ------
    SpecError
        There is no time, or the engine is not installed.
    """
    if question.budget <= 0:
        raise SpecError(
            f"a budget of {question.budget:g} s",
            where="--budget",
            allowed="more than 0",
            try_="2min",
        )
    engine = engine_of(question.engine)
    find_environment(engine.engine)
    return engine
