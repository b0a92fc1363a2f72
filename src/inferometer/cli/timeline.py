"""inferometer timeline: what does each slot of the batch do in each step?"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Group, RenderableType
from rich.text import Text

from inferometer.cli.answer import give, json_option, talk
from inferometer.cli.tick_game import Shown, compared_table, play, tick_sentence
from inferometer.records.slot_timeline import CellState, SlotTimeline, slot_timeline
from inferometer.records.store import read_run
from inferometer.report import perfetto, request_words, slot_text
from inferometer.simulate.ticks import Batching, TickReport


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineAnswer:
    """A window of steps. ``slots`` has a text for each slot, a letter for each step: C context, g generation, E end of sequence, · idle."""

    run: str | None
    """None for the tick model."""
    first_step: int
    n_steps_of_run: int
    start_ns: tuple[int, ...]
    duration_ns: tuple[int, ...]
    slots: tuple[str, ...]
    ticks: TickReport | None
    """What the tick model reports, one tick being a millisecond of the columns above."""
    compared: tuple[tuple[str, TickReport], ...]
    """The same load under each way of batching, where that was asked for."""


ANSWER = TimelineAnswer


@click.command(
    "timeline",
    short_help="What does each slot of the batch do in each step?",
    epilog="""\b
Examples:
  inferometer timeline --batching static --slots 4 --load batch:12 --deviation 3
  inferometer timeline --batching one-prefill --chunks 2 --load rate:460 --ticks 1000 --compare
""",
)
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--first-step", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--steps", "n_steps", type=click.IntRange(min=1), default=100, show_default=True, help="How many steps to show.")
@click.option("--batching", type=click.Choice(get_args(Batching)), default="in-flight", show_default=True, help="Who may join when.")
@click.option("--slots", "n_slots", type=click.IntRange(min=1), default=4, show_default=True, help="Requests that run at once.")
@click.option("--prefill-ticks", type=click.IntRange(min=1), default=2, show_default=True, help="What a context costs; a token costs 1.")
@click.option("--chunks", "n_prefill_chunks", type=click.IntRange(min=1), default=1, show_default=True, help="Chunks of a context.")
@click.option("--output-tokens", type=click.IntRange(min=1), default=10, show_default=True)
@click.option("--deviation", "output_deviation_tokens", type=float, default=0.0, show_default=True, help="Of output lengths, normal.")
@click.option("--load", default="batch:100", show_default=True, help="batch:N, concurrency:N, or rate:N in 1,000 ticks.")
@click.option("--ticks", "horizon_ticks", type=click.IntRange(min=1), default=100, show_default=True, help="How long to play.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--compare", is_flag=True, help="The same load under each way of batching.")
@click.option("--perfetto", "trace", type=click.Path(path_type=Path, dir_okay=False), help="Write a trace for ui.perfetto.dev (.json.gz).")
@json_option
def command(run: Path | None, first_step: int, n_steps: int, trace: Path | None, *, compare: bool, as_json: bool, **flags: Any) -> None:
    """What does each slot of the batch do in each step: context, generation, end of sequence, idle?

    RUN is one of `inferometer simulate --parts --out RUN`. Without it the tick model is played: a context costs ticks, a token costs one.
    """
    stored, report, compared = Shown(read_run(run), None, ()) if run is not None else play(flags, compare=compare)
    timeline = slot_timeline(stored, first_step=first_step, n_steps=n_steps)
    if trace is not None:
        talk(f"{perfetto.write_perfetto(stored, trace):,} steps written to {trace}")
    give(_answer(run, timeline, report, compared), as_json=as_json, show=lambda answer: _shown(answer, timeline))


def _answer(
    run: Path | None, timeline: SlotTimeline, report: TickReport | None, compared: tuple[tuple[str, TickReport], ...]
) -> TimelineAnswer:
    return TimelineAnswer(
        run=None if run is None else str(run),
        first_step=timeline.first_step,
        n_steps_of_run=timeline.n_steps_of_run,
        start_ns=tuple(timeline.start_ns.tolist()),
        duration_ns=tuple(timeline.duration_ns.tolist()),
        slots=tuple("".join(request_words.STATE_LETTERS[CellState(state)] for state in row) for row in timeline.states.tolist()),
        ticks=report,
        compared=compared,
    )


def _shown(answer: TimelineAnswer, timeline: SlotTimeline) -> RenderableType:
    parts: list[RenderableType] = [] if answer.ticks is None else [Text(tick_sentence(answer.ticks), style="bold")]
    parts.append(slot_text.slot_timeline_text(timeline))
    if answer.compared:
        parts += [Text("in 1,000 ticks, and means in ticks:"), compared_table(answer.compared)]
    return Group(*parts)


__all__ = ["ANSWER", "TimelineAnswer", "command"]
