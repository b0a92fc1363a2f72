"""inferometer sweep: how fast are prefill and decode over prompt lengths and batch sizes?"""

from pathlib import Path
from typing import Any, Final

import click

from inferometer.cli.answer import give, json_option, talk
from inferometer.cli.engine_options import takes_engine
from inferometer.cli.measured import MeasuredAnswer, default_folder, measured_answer, show_measured
from inferometer.cli.measuring import measure, what_will_happen
from inferometer.spec.resolve import resolve_model
from inferometer.spec.sweep_plan import parse_counts, shuffled, sweep_points
from inferometer.spec.types import EngineSpec, SweepPlan

ANSWER = MeasuredAnswer

_N_ROUNDS: Final = 2
"""Forth and back over the points: a steady drift of the machine then weighs on all alike."""


@click.command(
    "sweep",
    short_help="Measure prefill and decode over lengths and batches.",
    epilog="""\b
Example:
  inferometer sweep --model smollm2-135m --load-format dummy --seq 16,64 --batch-sizes 1,2 --gen-tokens 4 --reps 3 --out runs/example
""",
)
@click.option("--model", required=True, help="Folder, GGUF file, Hugging Face id here, or a catalogue id with --load-format dummy.")
@takes_engine
@click.option("--seq", default="128,256,512", show_default=True, help="Prompt lengths in tokens.")
@click.option("--batch-sizes", default="1,2,4,8", show_default=True)
@click.option(
    "--axes",
    type=click.Choice(["grid", "separate"]),
    default="grid",
    show_default=True,
    help="All pairs, or one at a time.",
)
@click.option("--gen-tokens", type=click.IntRange(min=1), default=32, show_default=True, help="Generated for each sequence.")
@click.option("--warmup", type=click.IntRange(min=0), default=3, show_default=True)
@click.option("--reps", type=click.IntRange(min=1), default=7, show_default=True, help="6 or more carry a 95 % interval.")
@click.option(
    "--rounds", type=click.IntRange(min=1), help="Spread the repetitions of a point over so many visits. [2 in eager mode, else 1]"
)
@click.option("--collapse-factor", type=float, default=2.0, show_default=True, help="Flag a token that costs this much more than before.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the points' order and the prompts.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder of the run; the same one resumes it.")
@click.option("--dry-run", is_flag=True, help="Say what would be measured.")
@json_option
def command(model: str, engine: EngineSpec, out: Path | None, *, dry_run: bool, as_json: bool, **flags: Any) -> None:
    """How fast are prefill and decode over prompt lengths and batch sizes?

    Both are timed apart, warmed up, repeated, in shuffled order; a point that does not fit is recorded and the sweep goes on.
    Every point is on the disk when it is done: the same command goes on after Ctrl-C or a crash.
    """
    resolved = resolve_model(model, load_format=engine.load_format)
    plan = _plan(model, engine, flags)
    folder = out or default_folder("sweep", plan, resolved)
    if dry_run:
        talk(f"{what_will_happen(plan, resolved)}; into {folder}")
        return
    give(measured_answer(measure(plan, resolved, folder), folder), as_json=as_json, show=show_measured)


def _plan(model: str, engine: EngineSpec, flags: dict[str, Any]) -> SweepPlan:
    points = sweep_points(
        prompts=parse_counts(flags["seq"], where="--seq"),
        batches=parse_counts(flags["batch_sizes"], where="--batch-sizes"),
        gen_tokens=flags["gen_tokens"],
        axes=flags["axes"],
    )
    plan = SweepPlan(
        model=model,
        engine=engine,
        points=points,
        n_warmup=flags["warmup"],
        n_reps=flags["reps"],
        seed=flags["seed"],
        collapse_factor_ratio=flags["collapse_factor"],
        n_rounds=flags["rounds"] or _rounds(engine, flags["reps"]),
    )
    return shuffled(plan)


def _rounds(engine: EngineSpec, n_reps: int) -> int:
    """What is compiled or allocated for each shape would be so again at each visit."""
    return min(_N_ROUNDS, n_reps) if engine.mode == "eager" else 1


__all__ = ["ANSWER", "command"]
