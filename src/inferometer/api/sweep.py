"""How fast are prefill and decode, over prompt lengths and batch sizes or at one quick look?"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

from inferometer.api.answer import Answer
from inferometer.api.measured import (
    MeasuredAnswer,
    Places,
    default_folder,
    in_seconds,
    measure,
    measured_answer,
    places_of,
    what_will_happen,
)
from inferometer.api.model_options import Engine, Quick, engine_of
from inferometer.api.question import Option, option, parse_counts
from inferometer.errors import SpecError
from inferometer.inputs import resolve, types
from inferometer.inputs.plans import Axes, shuffled, sweep_points
from inferometer.inputs.resolve import resolve_model
from inferometer.inputs.types import EngineSpec, HardwareSpec, ModelSpec, SweepPlan, SweepPoint
from inferometer.measure import environments
from inferometer.measure.this_machine import this_hardware
from inferometer.perfmodel.memory import MemoryQuestion, memory_budget
from inferometer.perfmodel.scenario import LIKELY, Scenario, phases_at
from inferometer.report.page import Page
from inferometer.report.tables import TextTable


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSweep(Answer):
    """What ``--dry-run`` prints: the points in order, and the folder."""

    table = "points"

    summary: str
    run: str
    csv: str
    engine: EngineSpec
    n_warmup: int
    n_reps: int
    n_rounds: int
    points: tuple[SweepPoint, ...]


_N_ROUNDS: Final = 2
"""Forth and back over the points: a steady drift of the machine then weighs on all alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The points to measure, and how often."""

    model: Annotated[
        str,
        Option(
            "Folder, GGUF file, Hugging Face id here, or a catalogue id with --load-format dummy.",
            heading="Model",
            is_common=True,
        ),
    ]
    engine: Engine = field(default_factory=Engine)
    seq: str = option("128,256,512", "Prompt lengths in tokens.", "Workload", is_common=True)
    batch_sizes: str = option("1,2,4,8", "Sequences at once.", "Workload", is_common=True)
    axes: Axes | None = option(
        None,
        "All pairs, or one axis at a time. [grid; separate with --batch-prompt-len]",
        "Workload",
        is_common=True,
    )
    batch_prompt_len: int | None = option(
        None, "Prompt length of the batch axis. [the shortest of --seq]", "Workload", least=1
    )
    gen_tokens: int = option(
        32, "Tokens generated for each sequence.", "Workload", is_common=True, least=1
    )
    warmup: int = option(3, "Unmeasured repetitions before the measured ones.", "Limits", least=0)
    reps: int = option(
        7,
        "Measured repetitions of each point; 6 or more give a 95 % interval.",
        "Limits",
        is_common=True,
        least=1,
    )
    rounds: int | None = option(
        None,
        "Measure each point's repetitions in this number of passes. [2 in eager mode, else 1]",
        "Limits",
        least=1,
    )
    collapse_factor: float = option(2.0, "Flag a token that costs this much more than before.")
    seed: int = option(0, "Seed of the order of points and of the prompts.", "Limits")
    out: Path | None = option(
        None, "Folder of the run; or X.csv: the table, with the run in folder X.", is_common=True
    )
    dry_run: bool = option(
        False, "List the points that would be measured, and measure nothing.", is_common=True
    )
    given: frozenset[str] = frozenset()


def sweep(question: Sweep) -> MeasuredAnswer | PlannedSweep:
    """Measure prefill and decode separately; each point is stored when it is done.

    Raises
    ------
    SpecError
        The question is impossible.
    MeasureError, EngineError
        The engine is not there, or failed at the first point.
    """
    engine = engine_of(question.engine)
    resolved = resolve_model(question.model, load_format=engine.load_format)
    plan = _plan(question, engine)
    _check_points(plan, resolved.spec)
    places = places_of(question.out, default_folder("sweep", plan, resolved))
    if question.dry_run:
        return _planned(plan, what_will_happen(plan, resolved), places)
    return measured_answer(measure(plan, resolved, places.run), places)


def _planned(plan: SweepPlan, summary: str, places: Places) -> PlannedSweep:
    return PlannedSweep(
        summary=summary,
        run=str(places.run),
        csv=str(places.csv),
        engine=plan.engine,
        n_warmup=plan.n_warmup,
        n_reps=plan.n_reps,
        n_rounds=plan.n_rounds,
        points=plan.points,
    )


def planned_page(planned: PlannedSweep) -> Page:
    """The points in their order."""
    rows = tuple(
        (str(point.prompt_tokens), str(point.batch_size), str(point.gen_tokens))
        for point in planned.points
    )
    header = ("prompt", "batch", "generated tokens")
    return Page(
        title=f"{planned.summary}; into {planned.run}",
        table=TextTable(caption="In this order", header=header, rows=rows),
    )


def _plan(question: Sweep, engine: EngineSpec) -> SweepPlan:
    points = sweep_points(
        prompts=parse_counts(question.seq, where="--seq"),
        batches=parse_counts(question.batch_sizes, where="--batch-sizes"),
        gen_tokens=question.gen_tokens,
        axes=_axes(question),
        batch_prompt_tokens=question.batch_prompt_len,
    )
    plan = SweepPlan(
        model=question.model,
        engine=engine,
        points=points,
        n_warmup=question.warmup,
        n_reps=question.reps,
        seed=question.seed,
        collapse_factor_ratio=question.collapse_factor,
        n_rounds=question.rounds or _rounds(engine, question.reps),
    )
    return shuffled(plan)


def _check_points(plan: SweepPlan, model: ModelSpec) -> None:
    """What the model was not made for, or the engine does not run, is refused before it is loaded."""
    environments.check_heads(plan.engine, model.attention.n_heads)
    most = model.max_position_tokens
    for point in plan.points:
        environments.check_batch(plan.engine, point.batch_size)
        if point.prompt_tokens + point.gen_tokens > most:
            raise SpecError(
                f"{point.prompt_tokens:,} prompt tokens and {point.gen_tokens:,} to generate",
                where="--seq, --gen-tokens, --batch-prompt-len",
                allowed=f"together at most {most:,}, the positions of {model.model_id!r}",
                try_=f"prompts of at most {most - point.gen_tokens:,} tokens"
                if point.gen_tokens < most
                else "a smaller --gen-tokens",
            )


def _axes(question: Sweep) -> Axes:
    if question.batch_prompt_len is None:
        return question.axes or "grid"
    if question.axes == "grid":
        raise SpecError(
            "a grid has every batch at every prompt length",
            where="--axes grid, --batch-prompt-len",
            allowed="--batch-prompt-len with separate axes",
            try_="--axes separate",
        )
    return "separate"


def _rounds(engine: EngineSpec, n_reps: int) -> int:
    """Default number of passes: 1 where each shape must be compiled or allocated anew."""
    return min(_N_ROUNDS, n_reps) if engine.mode == "eager" else 1


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
