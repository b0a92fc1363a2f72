"""How fast is this model here, and what limits it?"""

from datetime import UTC, datetime

from inferometer.api.measured import MeasuredAnswer, default_folder, measured_answer, places_of
from inferometer.api.quick_points import N_REPS, N_WARMUP, quick_points
from inferometer.api.quick_question import Quick, checked_engine
from inferometer.api.sweep_run import in_seconds, measure
from inferometer.measure.this_machine import this_hardware
from inferometer.spec import resolve, sweep_plan, types


def quick(question: Quick) -> MeasuredAnswer:
    """Measure as many points as there is time for, and say what limits them.

    Raises
    ------
    SpecError
        The question cannot be answered as it is asked.
    MeasureError, EngineError
        The engine is not there, or failed at the first point.
    """
    budget_s, model = question.budget, question.model
    engine = checked_engine(question)
    until_s = in_seconds(budget_s)
    resolved = resolve.resolve_model(model, load_format=engine.load_format)
    points = quick_points(resolved.spec, engine, this_hardware(), budget_s=budget_s)
    plan = sweep_plan.shuffled(
        types.SweepPlan(
            model=model, engine=engine, points=points, n_warmup=N_WARMUP, n_reps=N_REPS, seed=0
        )
    )
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    places = places_of(question.out, default_folder(f"{today}-quick", plan, resolved))
    return measured_answer(measure(plan, resolved, places.run, until_s=until_s), places)
