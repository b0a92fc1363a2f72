"""What ``inferometer quick`` measures, and how it answers."""

from datetime import UTC, datetime

from inferometer.api.quick_points import N_REPS, N_WARMUP, quick_points
from inferometer.cli.answer import give
from inferometer.cli.measured import (
    MeasuredAnswer,
    default_folder,
    measured_answer,
    places_of,
    show_measured,
)
from inferometer.cli.measuring import in_seconds, measure
from inferometer.cli.quick import QuickQuestion
from inferometer.measure.this_machine import this_hardware
from inferometer.spec import resolve, sweep_plan, types

ANSWER = MeasuredAnswer


def answer(question: QuickQuestion) -> None:
    """Measure the points for which there is time, and print what they say."""
    until_s = in_seconds(question.budget_s)
    model, engine = question.model, question.engine
    resolved = resolve.resolve_model(model, load_format=engine.load_format)
    points = quick_points(resolved.spec, engine, this_hardware(), budget_s=question.budget_s)
    plan = sweep_plan.shuffled(
        types.SweepPlan(
            model=model, engine=engine, points=points, n_warmup=N_WARMUP, n_reps=N_REPS, seed=0
        )
    )
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    places = places_of(question.out, default_folder(f"{today}-quick", plan, resolved))
    give(
        measured_answer(measure(plan, resolved, places.run, until_s=until_s), places),
        as_json=question.as_json,
        show=show_measured,
    )
