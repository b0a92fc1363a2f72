"""What does each slot of the batch do in each step, of a run or of a game in ticks?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias, cast, get_args

from rich.console import Group, RenderableType
from rich.text import Text

from inferometer import __version__
from inferometer.api import decision_pages
from inferometer.api.answer import Answer, Lines
from inferometer.api.progress import talk
from inferometer.api.question import option
from inferometer.errors import SpecError
from inferometer.records import reading, slot_timeline
from inferometer.records.types import Run, RunManifest
from inferometer.report import html, perfetto, request_tables, terminal as drawing, timeline_page
from inferometer.report.page import Line
from inferometer.report.tables import TextTable, number_cell
from inferometer.simulate.ticks import (
    TICK_NS,
    Batching,
    Counted,
    Horizon,
    Load,
    Rng,
    TickQuestion,
    TickReport,
    TickRun,
    run_ticks,
)
from inferometer.units import format_fraction, format_number

DEFINITIONS: Final = (
    (
        "Tick",
        (
            "what a step takes in which every slot generates a token; a context takes several, and"
            " contexts of one step add up."
        ),
    ),
    (
        "TTFT",
        (
            "from the arrival to the first token, the wait for a slot included; in ticks, averaged"
            " over requests as --count says."
        ),
    ),
    (
        "ITL",
        (
            "from a token of a request to its next; in ticks, averaged over all of them, of"
            " requests as --count says."
        ),
    ),
    ("E2E", "from the arrival to the last token, averaged over requests that ended, in ticks."),
    ("Requests, tokens", "that ended, and that were generated, in 1,000 ticks of one instance."),
    ("Queued", "waiting for a slot when the game ends."),
    ("Busy slots", "slots that computed, each step by its ticks."),
)
Metric: TypeAlias = Literal["requests_per_1000_ticks", "ttft_ticks", "e2e_ticks"]

_NOT_RECORDED: Final = "what each slot did was not recorded (`simulate --parts`)"
_TIE_RATIO: Final = 1.005
_BEST_WORDS: Final[dict[Metric, tuple[str, str]]] = {
    "requests_per_1000_ticks": ("most requests", " in 1,000 ticks"),
    "ttft_ticks": ("lowest TTFT", " ticks"),
    "e2e_ticks": ("lowest E2E", " ticks"),
}
_HEADER: Final = ("batching", "requests", "tokens", "TTFT", "ITL", "E2E", "queued", "busy slots")
_WAYS: Final[tuple[tuple[str, Batching, int], ...]] = (
    ("static", "static", 1),
    ("in-flight", "in-flight", 1),
    ("in-flight (context in {} chunks)", "in-flight", 2),
    ("one prefill at a time (in {} chunks)", "one-prefill", 2),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """The tick model: a context costs ticks, a token costs one."""

    batching: Batching = option(
        "in-flight", "When a request may join the batch.", "Engine", is_common=True
    )
    slots: int = option(4, "Requests that run at once.", "Engine", is_common=True, least=1)
    prefill_ticks: int = option(2, "What a context costs; a token costs 1.", "Engine", least=1)
    chunks: int = option(1, "Chunks of a context.", "Engine", is_common=True, least=1)
    output_tokens: int = option(10, "Mean output length.", "Workload", is_common=True, least=1)
    deviation: float = option(
        0.0,
        "Standard deviation of output lengths (normal distribution).",
        "Workload",
        is_common=True,
    )
    load: str = option(
        "batch:100", "batch:N, concurrency:N, or rate:N in 1,000 ticks.", "Workload", is_common=True
    )
    seed: int = option(0, "Seed of the output lengths.", "Workload")
    rng: Rng = option("numpy", "Random generator of the output lengths.", "Workload")
    ticks: int = option(100, "How long to play.", "Limits", is_common=True, least=1)
    horizon: Horizon = option(
        "exclusive", "Whether a step that begins at the end of --ticks is played.", "Limits"
    )
    count: Counted = option("ended", "Requests whose TTFT and ITL are averaged.")
    compare: bool = option(False, "The same load under each way of batching.", is_common=True)


class Played(NamedTuple):
    """One run of the tick model: its way of batching, its record and its report."""

    name: str
    rank: int
    """Its rank among the compared ways of batching."""
    run: Run
    report: TickReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best batching by one number, and its advantage over the requested and the worst."""

    by: Metric
    batching: tuple[str, ...]
    """Several where they are alike, within half a percent."""
    requested: str
    gain_over_requested_ratio: float
    """1 where the requested way is the best."""
    worst: str
    gain_over_worst_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineAnswer(Answer):
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
    """Results of the tick model."""
    compared: tuple[tuple[str, TickReport], ...]
    """The same load under each way of batching, once each, where that was requested."""
    best: tuple[Best, ...]
    """Best way of batching by each number, and its advantage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The run or game to draw, and how much of it."""

    run: Path | None = option(None, "", is_argument=True)
    first_step: int = option(0, "First step to show.", least=0)
    steps: int = option(100, "How many steps to show.", is_common=True, least=1)
    game: Game = field(default_factory=Game)
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
    games = play(question.game) if run is None else tuple[Played, ...]()
    stored = games[0].run if run is None else reading.read_run(run, made_by=slot_timeline.made_by())
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
    return Lines(_answer(run, shown, games), _drawn(shown, games))


def _answer(
    run: Path | None, timeline: slot_timeline.SlotTimeline, games: Sequence[Played]
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
        compared=tuple((game.name, game.report) for game in in_order(games)),
        best=best_of(games),
    )


def _page(
    run: Path | None,
    timeline: slot_timeline.SlotTimeline,
    games: Sequence[Played],
    n_steps: int,
) -> timeline_page.TimelineView:
    """The requested timeline, and those of the other ways of batching from their first step on."""
    compared = in_order(games)
    others = [
        (game.name, slot_timeline.slot_timeline(game.run, n_steps=n_steps, tick_ns=TICK_NS))
        for game in games[1:]
    ]
    return timeline_page.TimelineView(
        title="Slots of a batch" if games else f"Slots of {run}",
        subtitle="the tick model: a token costs one tick" if games else "",
        lines=(
            tuple(Line(label="ANSWER", text=line) for line in answer_lines(games)) if games else ()
        ),
        timelines=((games[0].name if games else "", timeline), *others),
        tables=(tick_table(compared or games),) if games else (),
        definitions=DEFINITIONS if games else (),
        tool_version=__version__,
    )


def slots_text(answer: TimelineAnswer) -> str:
    """The tick model's results, then a line for each slot, a letter for each step."""
    results = () if answer.ticks is None else (f"ANSWER {tick_sentence(answer.ticks)}",)
    if not answer.slots:
        return _NOT_RECORDED
    last = answer.first_step + len(answer.slots[0]) - 1
    heading = f"steps {answer.first_step} to {last} of {answer.n_steps_of_run}"
    return "\n".join(
        (*results, heading, *(f"{rank:3}  {one}" for rank, one in enumerate(answer.slots)))
    )


def _drawn(timeline: slot_timeline.SlotTimeline, games: Sequence[Played]) -> RenderableType:
    lines = answer_lines(games) if games else ()
    parts: list[RenderableType] = [
        Text(f"ANSWER {line}" if rank == 0 else f"       {line}", style="bold")
        for rank, line in enumerate(lines)
    ]
    parts.append(
        timeline_page.slot_timeline_text(timeline) if len(timeline.states) else Text(_NOT_RECORDED)
    )
    if compared := in_order(games):
        parts += [
            Text("in 1,000 ticks, and means in ticks:"),
            drawing.table_text(tick_table(compared)),
        ]
    return Group(*parts)


def play(game: Game) -> tuple[Played, ...]:
    """Play it; with ``compare`` the same load under the other ways of batching, too.

    Those take a context in two chunks, or in as many as requested. The requested way comes first,
    and each way comes once.
    """
    question = _question(game)
    requested = (
        question.batching
        if question.n_prefill_chunks == 1
        else f"{question.batching} (context in {question.n_prefill_chunks} chunks)"
    )
    several = max(question.n_prefill_chunks, 2)
    ways = {
        replace(
            question, batching=batching, n_prefill_chunks=1 if n_chunks == 1 else several
        ): name.format(several)
        for name, batching, n_chunks in (_WAYS if game.compare else ())
    }
    ranked = ways if question in ways else {question: requested, **ways}
    order = {one: rank for rank, one in enumerate(ranked)}
    return tuple(
        _played(ranked[one], order[one], run_ticks(one))
        for one in (question, *(other for other in ranked if other != question))
    )


def in_order(games: Sequence[Played]) -> tuple[Played, ...]:
    """The compared ways of batching in order; empty without a comparison."""
    return tuple(sorted(games, key=lambda game: game.rank)) if len(games) > 1 else ()


def best_of(games: Sequence[Played]) -> tuple[Best, ...]:
    """Best ways of batching by each number.

    None where nothing is compared, or a game has no such number.
    """
    by_metric: dict[Metric, dict[str, float]] = {by: _values(by, games) for by in _BEST_WORDS}
    return tuple(
        _best(by, values, games[0].name)
        for by, values in by_metric.items()
        if values and all(values.values())
    )


def _values(by: Metric, games: Sequence[Played]) -> dict[str, float]:
    return {game.name: getattr(game.report, by) for game in in_order(games)}


def _best(by: Metric, values: Mapping[str, float], requested: str) -> Best:
    is_rate = by == "requests_per_1000_ticks"
    best_value, worst_value = _ends(values, is_more_better=is_rate)

    def gain_ratio(value: float) -> float:
        return best_value / value if is_rate else value / best_value

    return Best(
        by=by,
        batching=tuple(name for name, value in values.items() if gain_ratio(value) < _TIE_RATIO),
        requested=requested,
        gain_over_requested_ratio=gain_ratio(values[requested]),
        worst=next(name for name, value in values.items() if value == worst_value),
        gain_over_worst_ratio=gain_ratio(worst_value),
    )


def answer_lines(games: Sequence[Played]) -> tuple[str, ...]:
    """The best of the compared ways and its advantage, then results of the requested one."""
    requested = f"{games[0].name}: {tick_sentence(games[0].report)}"
    best = best_of(games)
    return (
        ("; ".join(_best_text(one, _values(one.by, games)) for one in best), requested)
        if best
        else (requested,)
    )


def _ends(values: Mapping[str, float], *, is_more_better: bool) -> tuple[float, float]:
    """The best and the worst."""
    low, high = min(values.values()), max(values.values())
    return (high, low) if is_more_better else (low, high)


def _best_text(best: Best, values: Mapping[str, float]) -> str:
    what, unit = _BEST_WORDS[best.by]
    value = f"{format_number(values[best.batching[0]])}{unit}"
    if best.gain_over_worst_ratio < _TIE_RATIO:
        return f"{what}: all alike, {value}"
    ratios = {
        best.requested: best.gain_over_requested_ratio,
        best.worst: best.gain_over_worst_ratio,
    }
    others = [
        f"{format_number(values[name])} of {name} ({ratio:.2f}x)"
        for name, ratio in ratios.items()
        if name not in best.batching
    ]
    return f"{what}: {' and '.join(best.batching)}, {value} against {' and '.join(others)}"


def tick_sentence(report: TickReport) -> str:
    """The answer in one line."""
    sentence = (
        f"{format_number(report.requests_per_1000_ticks)} requests and"
        f" {format_number(report.output_tokens_per_1000_ticks)} tokens"
    )
    means = ", ".join(
        f"{name} {number_cell(value)}"
        for name, value in (
            ("TTFT", report.ttft_ticks),
            ("ITL", report.itl_ticks),
            ("E2E", report.e2e_ticks),
        )
    )
    return (
        f"{sentence} in 1,000 ticks; mean {means} ticks; {report.n_queued_at_end} queued at the end"
    )


def tick_table(played: Sequence[Played]) -> TextTable:
    """One row for each game."""
    return TextTable(
        caption="In 1,000 ticks, and means in ticks",
        header=_HEADER,
        rows=tuple(_row(one.name, one.report) for one in played),
    )


def _question(game: Game) -> TickQuestion:
    """Tick question of the game; its load is text such as ``rate:460``."""
    kind, colon, amount = game.load.partition(":")
    if not colon or kind not in get_args(Load) or not amount.isdigit():
        raise SpecError(
            f"{game.load!r} is no load",
            where="--load",
            allowed="batch:N, concurrency:N or rate:N",
            try_="--load rate:460",
        )
    return TickQuestion(
        batching=game.batching,
        n_slots=game.slots,
        prefill_ticks=game.prefill_ticks,
        n_prefill_chunks=game.chunks,
        output_tokens=game.output_tokens,
        output_deviation_tokens=game.deviation,
        load=cast("Load", kind),
        load_amount=int(amount),
        horizon_ticks=game.ticks,
        seed=game.seed,
        rng=game.rng,
        counted=game.count,
        horizon=game.horizon,
    )


def _played(name: str, rank: int, game: TickRun) -> Played:
    manifest = RunManifest(
        run_id="ticks, drawn as milliseconds",
        origin="simulated",
        created_utc="",
        command=(),
        tool_version=__version__,
        plan=None,
        model=None,
        engine=None,
        host=None,
        source=None,
        is_complete=True,
    )
    run = Run(
        manifest=manifest,
        sweep=None,
        steps=game.steps,
        ceilings=None,
        requests=game.requests,
        parts=game.parts,
    )
    return Played(name, rank, run, game.report)


def _row(name: str, report: TickReport) -> tuple[str, ...]:
    rates = (
        format_number(report.requests_per_1000_ticks),
        format_number(report.output_tokens_per_1000_ticks),
    )
    means = (
        number_cell(report.ttft_ticks),
        number_cell(report.itl_ticks),
        number_cell(report.e2e_ticks),
    )
    return (
        name,
        *rates,
        *means,
        str(report.n_queued_at_end),
        format_fraction(report.busy_slot_fraction),
    )
