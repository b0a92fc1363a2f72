"""inferometer quick: how fast is this model here, and what limits it?

What measures and answers is ``quick_answer``: a missing engine is reported before that is imported.
"""

from dataclasses import dataclass
from pathlib import Path

import click

from inferometer.cli.answer import json_option
from inferometer.cli.engine_options import takes_engine
from inferometer.errors import SpecError
from inferometer.measure.environments import find_environment
from inferometer.spec.types import EngineSpec
from inferometer.units import parse_duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickQuestion:
    """What was requested, with an engine that is installed."""

    model: str
    engine: EngineSpec
    budget_s: float
    out: Path | None
    as_json: bool


@click.command(
    "quick",
    short_help="How fast is this model here, and what limits it?",
    epilog="""\b
Example:
  inferometer quick smollm2-135m --load-format dummy --budget 30s
""",
)
@click.argument("model")
@takes_engine
@click.option(
    "--budget",
    default="2min",
    show_default=True,
    help="About how long it may take, loading included; two points are measured in any case.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder of the run, or X.csv: the table, its run beside it in X.",
)
@json_option
def command(
    model: str, engine: EngineSpec, *, budget: str, out: Path | None, as_json: bool
) -> QuickQuestion:
    """How fast is MODEL on this machine, what limits it, and what to expect at points that were not measured?

    MODEL is a Hugging Face folder or id here, a GGUF file, or a catalogue id with --load-format
    dummy.
    """
    budget_s = parse_duration_s(budget, where="--budget")
    if budget_s <= 0:
        raise SpecError(
            f"a budget of {budget!r}", where="--budget", allowed="more than nothing", try_="2min"
        )
    find_environment(engine.engine)
    return QuickQuestion(model=model, engine=engine, budget_s=budget_s, out=out, as_json=as_json)
