"""inferometer sweep: how fast are prefill and decode over prompt lengths and batch sizes?"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inferometer.cli.answer import give, json_option
from inferometer.cli.engine_options import takes_engine
from inferometer.cli.measured import (
    MeasuredAnswer,
    Places,
    default_folder,
    measured_answer,
    places_of,
    show_measured,
)
from inferometer.cli.measuring import measure, what_will_happen
from inferometer.errors import SpecError
from inferometer.spec.resolve import resolve_model
from inferometer.spec.sweep_plan import Axes, parse_counts, shuffled, sweep_points
from inferometer.spec.types import EngineSpec, SweepPlan, SweepPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSweep:
    """What ``--dry-run`` gives: what would be measured, in this order, and where it would be stored."""

    summary: str
    run: str
    csv: str
    engine: EngineSpec
    n_warmup: int
    n_reps: int
    n_rounds: int
    points: tuple[SweepPoint, ...]


ANSWER = MeasuredAnswer | PlannedSweep

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
@click.option(
    "--model",
    required=True,
    help="Folder, GGUF file, Hugging Face id here, or a catalogue id with --load-format dummy.",
)
@takes_engine
@click.option("--seq", default="128,256,512", show_default=True, help="Prompt lengths in tokens.")
@click.option("--batch-sizes", default="1,2,4,8", show_default=True)
@click.option(
    "--axes",
    type=click.Choice(["grid", "separate"]),
    help="All pairs, or one axis at a time. [grid; separate with --batch-prompt-len]",
)
@click.option(
    "--batch-prompt-len",
    type=click.IntRange(min=1),
    help="Prompt length of the batch axis. [the shortest of --seq]",
)
@click.option(
    "--gen-tokens",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="Generated for each sequence.",
)
@click.option("--warmup", type=click.IntRange(min=0), default=3, show_default=True)
@click.option(
    "--reps",
    type=click.IntRange(min=1),
    default=7,
    show_default=True,
    help="6 or more carry a 95 % interval.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    help="Spread the repetitions of a point over so many visits. [2 in eager mode, else 1]",
)
@click.option(
    "--collapse-factor",
    type=float,
    default=2.0,
    show_default=True,
    help="Flag a token that costs this much more than before.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Of the points' order and the prompts."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder of the run, or X.csv: the table, its run beside it in X.",
)
@click.option(
    "--dry-run", is_flag=True, help="List the points that would be measured, and measure nothing."
)
@json_option
def command(
    model: str, engine: EngineSpec, out: Path | None, *, dry_run: bool, as_json: bool, **flags: Any
) -> None:
    """How fast are prefill and decode over prompt lengths and batch sizes?

    Both are timed apart, warmed up, repeated, in shuffled order; a point that does not fit is
    recorded and the sweep goes on. Every point is on the disk when it is done: the same command
    goes on after Ctrl-C or a crash. docs/sweep.md defines each number.
    """
    resolved = resolve_model(model, load_format=engine.load_format)
    plan = _plan(model, engine, flags)
    places = places_of(out, default_folder("sweep", plan, resolved))
    if dry_run:
        give(
            _planned(plan, what_will_happen(plan, resolved), places),
            as_json=as_json,
            show=_show_planned,
        )
        return
    give(
        measured_answer(measure(plan, resolved, places.run), places),
        as_json=as_json,
        show=show_measured,
    )


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


def _show_planned(planned: PlannedSweep) -> RenderableType:
    table = Table("prompt", "batch", "generated tokens", box=None, pad_edge=False)
    for point in planned.points:
        table.add_row(str(point.prompt_tokens), str(point.batch_size), str(point.gen_tokens))
    return Group(Text(f"{planned.summary}; into {planned.run}"), Text("In this order:"), table)


def _plan(model: str, engine: EngineSpec, flags: dict[str, Any]) -> SweepPlan:
    points = sweep_points(
        prompts=parse_counts(flags["seq"], where="--seq"),
        batches=parse_counts(flags["batch_sizes"], where="--batch-sizes"),
        gen_tokens=flags["gen_tokens"],
        axes=_axes(flags),
        batch_prompt_tokens=flags["batch_prompt_len"],
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


def _axes(flags: dict[str, Any]) -> Axes:
    if flags["batch_prompt_len"] is None:
        return flags["axes"] or "grid"
    if flags["axes"] == "grid":
        raise SpecError(
            "a grid has every batch at every prompt length",
            where="--axes grid, --batch-prompt-len",
            allowed="--batch-prompt-len with separate axes",
            try_="--axes separate",
        )
    return "separate"


def _rounds(engine: EngineSpec, n_reps: int) -> int:
    """What is compiled or allocated for each shape would be so again at each visit."""
    return min(_N_ROUNDS, n_reps) if engine.mode == "eager" else 1
