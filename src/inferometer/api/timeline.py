"""What does each slot of the batch do in each step?"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from rich.console import Group, RenderableType
from rich.text import Text

from inferometer import __version__
from inferometer.api import decision_pages, tick_game
from inferometer.api.answer import Lines
from inferometer.api.progress import talk
from inferometer.api.question import option
from inferometer.records import reading, slot_timeline
from inferometer.report import html, perfetto, request_tables, terminal as drawing, timeline_page
from inferometer.report.page import Line
from inferometer.simulate.ticks import TICK_NS, TickReport


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineAnswer:
    """A window of steps.

    ``slots`` has a text for each slot, a letter for each step: C context, g generation, E end of
    sequence, · idle.
    """

    run: str | None
    """None for the tick model."""
    first_step: int
    n_steps_of_run: int
    start_ns: tuple[int, ...] | None
    """None for the tick model."""
    duration_ns: tuple[int, ...] | None
    start_ticks: tuple[float, ...] | None
    """None for a run."""
    duration_ticks: tuple[float, ...] | None
    slots: tuple[str, ...]
    ticks: TickReport | None
    """What the tick model reports."""
    compared: tuple[tuple[str, TickReport], ...]
    """The same load under each way of batching, once each, where that was requested."""
    best: tuple[tick_game.Best, ...]
    """Which way of batching is the best of these by each number, and by how much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Which run or game is drawn, and how much of it."""

    run: Path | None = option(None, "", is_argument=True)
    first_step: int = option(0, "The first that is shown.", least=0)
    steps: int = option(100, "How many steps to show.", is_common=True, least=1)
    game: tick_game.Game = field(default_factory=tick_game.Game)
    perfetto: Path | None = option(
        None, "Write a trace for ui.perfetto.dev (.json.gz).", is_common=True, metavar="FILE"
    )
    report: Annotated[Path | None, decision_pages.REPORT_OPTION] = None
    given: frozenset[str] = frozenset()


def timeline(question: Timeline) -> Lines[TimelineAnswer]:
    """The steps of a run or of a game; its page and its trace are written where they were requested.

    Raises
    ------
    SpecError, RecordError
        The game cannot be played, the run cannot be read or has no such steps.
    """
    run, trace, page = question.run, question.perfetto, question.report
    games = tick_game.play(question.game) if run is None else tuple[tick_game.Played, ...]()
    stored = games[0].run if run is None else reading.read_run(run)
    shown = slot_timeline.slot_timeline(
        stored,
        first_step=question.first_step,
        n_steps=question.steps,
        tick_ns=TICK_NS if games else None,
        needs_parts=trace is None,
    )
    if trace is not None:
        drawn = "; a tick is drawn as a millisecond" if games else ""
        talk(f"{perfetto.write_perfetto(stored, trace):,} steps written to {trace}{drawn}")
    if page is not None:
        view = _page(run, shown, games, question.steps)
        html.write_page(timeline_page.timeline_page_of(view), page)
        talk(f"REPORT {page}")
    return Lines(_answer(run, shown, games), _shown(shown, games))


def _answer(
    run: Path | None, timeline: slot_timeline.SlotTimeline, games: Sequence[tick_game.Played]
) -> TimelineAnswer:
    start_ns, duration_ns = (
        tuple(column.tolist()) for column in (timeline.start_ns, timeline.duration_ns)
    )
    return TimelineAnswer(
        run=None if run is None else str(run),
        first_step=timeline.first_step,
        n_steps_of_run=timeline.n_steps_of_run,
        start_ns=None if games else start_ns,
        duration_ns=None if games else duration_ns,
        start_ticks=tuple(instant / TICK_NS for instant in start_ns) if games else None,
        duration_ticks=tuple(duration / TICK_NS for duration in duration_ns) if games else None,
        slots=tuple(
            "".join(request_tables.STATE_LETTERS[slot_timeline.CellState(state)] for state in row)
            for row in timeline.states.tolist()
        ),
        ticks=games[0].report if games else None,
        compared=tuple((game.name, game.report) for game in tick_game.in_order(games)),
        best=tick_game.best_of(games),
    )


def _page(
    run: Path | None,
    timeline: slot_timeline.SlotTimeline,
    games: Sequence[tick_game.Played],
    n_steps: int,
) -> timeline_page.TimelineView:
    """The requested timeline, and those of the other ways of batching from their first step on."""
    compared = tick_game.in_order(games)
    others = [
        (game.name, slot_timeline.slot_timeline(game.run, n_steps=n_steps, tick_ns=TICK_NS))
        for game in games[1:]
    ]
    return timeline_page.TimelineView(
        title="Slots of a batch" if games else f"Slots of {run}",
        subtitle="the tick model: a token costs one tick" if games else "",
        lines=(
            tuple(Line(label="ANSWER", text=line) for line in tick_game.answer_lines(games))
            if games
            else ()
        ),
        timelines=((games[0].name if games else "", timeline), *others),
        tables=(tick_game.tick_table(compared or games),) if games else (),
        definitions=tick_game.DEFINITIONS if games else (),
        tool_version=__version__,
    )


def _shown(
    timeline: slot_timeline.SlotTimeline, games: Sequence[tick_game.Played]
) -> RenderableType:
    lines = tick_game.answer_lines(games) if games else ()
    parts: list[RenderableType] = [
        Text(f"ANSWER {line}" if rank == 0 else f"       {line}", style="bold")
        for rank, line in enumerate(lines)
    ]
    parts.append(
        timeline_page.slot_timeline_text(timeline)
        if len(timeline.states)
        else Text("what each slot did was not recorded (`simulate --parts`)")
    )
    if compared := tick_game.in_order(games):
        parts += [
            Text("in 1,000 ticks, and means in ticks:"),
            drawing.table_text(tick_game.tick_table(compared)),
        ]
    return Group(*parts)
