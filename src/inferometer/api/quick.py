"""How fast is this model here, and what limits it?"""

from datetime import UTC, datetime
from typing import Final

from inferometer.api.measured import (
    MeasuredAnswer,
    default_folder,
    in_seconds,
    measure,
    measured_answer,
    places_of,
)
from inferometer.api.model_options import Quick, engine_of
from inferometer.errors import SpecError
from inferometer.inputs import resolve, types
from inferometer.inputs.types import EngineSpec, HardwareSpec, ModelSpec, SweepPoint
from inferometer.measure.this_machine import this_hardware
from inferometer.perfmodel.memory import MemoryQuestion, memory_budget
from inferometer.perfmodel.scenario import LIKELY, Scenario, phases_at


def quick(question: Quick) -> MeasuredAnswer:
    """Measure as many points as time allows, and say what limits them; follows ``with_engine``.

    Raises
    ------
    SpecError
        The question is impossible.
    MeasureError, EngineError
        The engine is not there, or failed at the first point.
    """
    budget_s, model = question.budget, question.model
    engine = engine_of(question.engine)
    until_s = in_seconds(budget_s)
    resolved = resolve.resolve_model(model, load_format=engine.load_format)
    points = quick_points(resolved.spec, engine, this_hardware(), budget_s=budget_s)
    # In the ladder's order, not shuffled: where time runs out, the most telling points are there.
    plan = types.SweepPlan(
        model=model,
        engine=engine,
        points=points,
        n_warmup=N_WARMUP,
        n_reps=N_REPS,
        seed=0,
        n_rounds=N_ROUNDS,
    )
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    places = places_of(question.out, default_folder(f"{today}-quick", plan, resolved))
    return measured_answer(measure(plan, resolved, places.run, until_s=until_s), places)


# Which points does a quick look measure, so that it ends within its budget?


N_WARMUP: Final = 1
N_REPS: Final = 6
"""The fewest repetitions whose median has a 95 % interval."""
N_ROUNDS: Final = 2
"""Visits to each point, there and back: a machine that is slow for a while weighs on all alike, and
differs between the visits of a point rather than between points."""
GEN_TOKENS: Final = 10

_LADDER: Final = (
    (128, 1),
    (128, 4),
    (512, 1),
    (128, 8),
    (32, 1),
    (128, 2),
    (512, 4),
    (32, 8),
    (128, 16),
    (256, 1),
    (256, 4),
    (512, 2),
    (128, 32),
    (1024, 1),
    (512, 8),
)
"""(prompt, batch), the most telling first: both axes from their low ends, then pairs that tell
them apart."""
_MIN_POINTS: Final = 4
_FIXED_S: Final = 25.0
"""Starting an engine, loading a small model, fitting and drawing: not measured in advance, a
middling value."""
_PROBES_S: Final = 0.4


def quick_points(
    model: ModelSpec, engine: EngineSpec, hardware: HardwareSpec, *, budget_s: float
) -> tuple[SweepPoint, ...]:
    """The points of the ladder that fit the memory and, by the datasheet's likely times, the budget; at least a few."""
    chosen: list[SweepPoint] = []
    left_s = budget_s - _FIXED_S
    for prompt_tokens, batch_size in _LADDER:
        point = SweepPoint(
            prompt_tokens=prompt_tokens, batch_size=batch_size, gen_tokens=GEN_TOKENS
        )
        if prompt_tokens + GEN_TOKENS > model.max_position_tokens or not _fits(
            model, engine, hardware, point
        ):
            continue
        duration_s = _duration_s(model, engine, hardware, point)
        if len(chosen) >= _MIN_POINTS and duration_s > left_s:
            continue
        chosen.append(point)
        left_s -= duration_s
    if not chosen:
        raise SpecError(
            f"{model.model_id!r} does not fit into {hardware.name}",
            where="quick",
            try_="a smaller model or number format; inferometer predict shows the missing memory",
        )
    return tuple(chosen)


def _fits(model: ModelSpec, engine: EngineSpec, hardware: HardwareSpec, point: SweepPoint) -> bool:
    question = MemoryQuestion(
        model=model,
        engine=engine,
        hardware=hardware,
        context_tokens=point.prompt_tokens + point.gen_tokens,
        prompt_tokens=point.prompt_tokens,
    )
    return memory_budget(question, point.batch_size).fits


def _duration_s(
    model: ModelSpec, engine: EngineSpec, hardware: HardwareSpec, point: SweepPoint
) -> float:
    scenario = Scenario(
        model=model,
        engine=engine,
        hardware=hardware,
        batch_size=point.batch_size,
        prompt_tokens=point.prompt_tokens,
        output_tokens=point.gen_tokens,
        mode="eager",
    )
    phases = phases_at(scenario, LIKELY)
    return (N_ROUNDS * N_WARMUP + N_REPS) * (
        phases.ttft_s + (point.gen_tokens - 1) * phases.tpot_s + _PROBES_S
    )
