"""What do runs say together.

Summaries, a step-time model where they carry one, and what it says of points it had not seen?
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inferometer.errors import ModelError
from inferometer.fit.sweeps.step_time import HeldOutPoint, fit_and_validate
from inferometer.inputs.types import HardwareSpec
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.records.summaries import PointSummary, TokenCostChange, collapses, summarise_points
from inferometer.records.types import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """One run, what it shows, and its fitted model; without one, ``why_no_model`` says why."""

    label: str
    run: Run
    path: Path
    points: tuple[PointSummary, ...]
    collapses: tuple[TokenCostChange, ...]
    model: StepTimeModel | None
    why_no_model: str | None
    held_out: tuple[HeldOutPoint, ...]
    hardware: HardwareSpec | None
    """The datasheet to judge by, where one was named."""


def analyse(run: Run, path: Path, *, label: str, hardware: HardwareSpec | None = None) -> Analysis:
    """Summarise a run and fit what it can carry. A run that carries no model is still a run."""
    model: StepTimeModel | None = None
    why: str | None = None
    held_out: tuple[HeldOutPoint, ...] = ()
    try:
        model, held_out = fit_and_validate([run], hardware=hardware)
    except ModelError as error:
        why = error.what
    return Analysis(
        label=label,
        run=run,
        path=path,
        points=summarise_points(run),
        collapses=collapses(run),
        model=model,
        why_no_model=why,
        held_out=held_out,
        hardware=hardware,
    )


def label_runs(runs: Sequence[Run]) -> tuple[str, ...]:
    """The shortest names that tell runs apart: what they differ in, else their ids."""
    candidates = [[_engine_words(run) for run in runs], [_model_words(run) for run in runs]]
    for words in candidates:
        if len(set(words)) == len(runs):
            return tuple(words)
    both = [f"{model} {engine}" for engine, model in zip(*candidates, strict=True)]
    return (
        tuple(both) if len(set(both)) == len(runs) else tuple(run.manifest.run_id for run in runs)
    )


def _engine_words(run: Run) -> str:
    plan = run.manifest.plan
    if plan is None:
        return _own_name(run)
    engine = plan.engine
    words = [engine.engine, engine.mode, engine.dtype] + (
        [f"tp{engine.tensor_parallel_size}"] if engine.tensor_parallel_size > 1 else []
    )
    return " ".join(words)


def _model_words(run: Run) -> str:
    return run.manifest.model.model_id if run.manifest.model is not None else _own_name(run)


def _own_name(run: Run) -> str:
    """A table is called by its file."""
    source = run.manifest.source
    return source.where if source is not None else run.manifest.run_id
