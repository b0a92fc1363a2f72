"""inferometer quick: how fast is this model here, and what limits it?"""

from datetime import UTC, datetime
from pathlib import Path

import click

from inferometer.api.quick_points import N_REPS, N_WARMUP, quick_points
from inferometer.cli.answer import give, json_option
from inferometer.cli.engine_options import takes_engine
from inferometer.cli.measured import (
    MeasuredAnswer,
    default_folder,
    measured_answer,
    places_of,
    show_measured,
)
from inferometer.cli.measuring import in_seconds, measure
from inferometer.errors import SpecError
from inferometer.measure.environments import find_environment
from inferometer.measure.this_machine import this_hardware
from inferometer.spec import resolve, sweep_plan, types
from inferometer.units import parse_duration_s

ANSWER = MeasuredAnswer


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
    model: str, engine: types.EngineSpec, *, budget: str, out: Path | None, as_json: bool
) -> None:
    """How fast is MODEL on this machine, what limits it, and what to expect at points that were not measured?

    MODEL is a Hugging Face folder or id here, a GGUF file, or a catalogue id with --load-format
    dummy.
    """
    budget_s = parse_duration_s(budget, where="--budget")
    if budget_s <= 0:
        raise SpecError(
            f"a budget of {budget!r}", where="--budget", allowed="more than nothing", try_="2min"
        )
    find_environment(engine.engine)  # a missing engine is reported before anything is measured
    until_s = in_seconds(budget_s)
    resolved = resolve.resolve_model(model, load_format=engine.load_format)
    points = quick_points(resolved.spec, engine, this_hardware(), budget_s=budget_s)
    plan = sweep_plan.shuffled(
        types.SweepPlan(
            model=model, engine=engine, points=points, n_warmup=N_WARMUP, n_reps=N_REPS, seed=0
        )
    )
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    places = places_of(out, default_folder(f"{today}-quick", plan, resolved))
    give(
        measured_answer(measure(plan, resolved, places.run, until_s=until_s), places),
        as_json=as_json,
        show=show_measured,
    )
