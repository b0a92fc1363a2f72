"""How does a verb that measures go about it: say what will happen, then measure with progress?"""

import sys
import time
from pathlib import Path

from inferometer.api.analysis import Analysis, analyse, label_runs
from inferometer.api.progress import talk
from inferometer.inputs.resolve import ResolvedModel
from inferometer.inputs.types import SweepPlan
from inferometer.measure.engines.protocol import ModelReference
from inferometer.measure.host import examine_machine
from inferometer.measure.sweep import run_sweep
from inferometer.measure.time_left import Progress


def in_seconds(budget_s: float) -> float:
    """The instant of the monotonic clock at which a budget is over that begins now; and it is said what it is for."""
    talk(
        f"within about {budget_s:.0f} s: a look at this machine, loading, then as many points as"
        " there is time for, two at least"
    )
    return time.monotonic() + budget_s


def measure(
    plan: SweepPlan, model: ResolvedModel, folder: Path, *, until_s: float | None = None
) -> Analysis:
    """Measure what is missing of the plan and analyse it.

    Ctrl-C and kill -9 lose at most the point in progress.
    """
    for caution in examine_machine():
        talk(f"CAUTION {caution.text}; {caution.remedy}")
    talk(f"{what_will_happen(plan, model)}; into {folder}")
    said: list[Progress] = []

    def noted(progress: Progress) -> None:
        said.append(progress)
        talk(progress)

    run = run_sweep(
        plan,
        reference_to(model),
        folder,
        noted,
        command=("inferometer", *sys.argv[1:]),
        until_s=until_s,
    )
    if until_s is not None and time.monotonic() > until_s:
        talk(
            f"{time.monotonic() - until_s:.0f} s more than the budget: loading and two points took"
            " longer, as beside other work"
        )
    if not said:
        talk("every point had been measured before: this is what was stored")
    return analyse(run, folder, label=label_runs([run])[0])


def what_will_happen(plan: SweepPlan, model: ResolvedModel) -> str:
    """The measurement in one sentence."""
    engine = plan.engine
    weights = "random weights" if engine.load_format == "dummy" else "real weights"
    counts = ((plan.n_warmup, "warm-up"), (plan.n_reps, "repetition"), (len(plan.points), "point"))
    n_warmups, n_reps, n_points = (f"{n} {noun}{'' if n == 1 else 's'}" for n, noun in counts)
    rounds = f" in {plan.n_rounds} rounds" if plan.n_rounds > 1 else ""
    repeats = f"{n_warmups} and {n_reps} of {n_points}{rounds}"
    return (
        f"{model.spec.model_id} ({weights}) on {engine.engine} {engine.mode} {engine.dtype}"
        f" {engine.device}: {repeats}"
    )


def reference_to(model: ResolvedModel) -> ModelReference:
    """What the engine's process is told to load."""
    if model.path is None:
        return ModelReference(kind="spec", location=None, spec=model.spec)
    return ModelReference(
        kind="gguf" if model.kind == "gguf" else "folder",
        location=str(model.path.resolve()),
        spec=model.spec,
    )
