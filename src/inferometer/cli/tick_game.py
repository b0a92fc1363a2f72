"""What is played when a timeline is asked without a run, and what is said of it?"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, get_args

from inferometer import __version__
from inferometer.errors import SpecError
from inferometer.records.types import Run, RunManifest
from inferometer.report.tables import TextTable
from inferometer.simulate.ticks import Batching, Load, TickQuestion, TickReport, TickRun, run_ticks
from inferometer.units import format_fraction, format_number

DEFINITIONS: Final = (
    ("Tick", "what a step takes in which every slot generates a token; a context takes several, and contexts of one step add up."),
    ("TTFT", "from the arrival to the first token, averaged over requests that ended, in ticks; the wait for a slot included."),
    ("ITL", "from a token of a request to its next, averaged over all of them, in ticks."),
    ("E2E", "from the arrival to the last token, averaged over requests that ended, in ticks."),
    ("Requests, tokens", "that ended, and that were generated, in 1,000 ticks of one instance."),
    ("Queued", "waiting for a slot when the game ends."),
    ("Busy slots", "slots that computed, each step by its ticks."),
)
_ABSENT: Final = "–"
_HEADER: Final = ("batching", "requests", "tokens", "TTFT", "ITL", "E2E", "queued", "busy slots")
_WAYS: Final[tuple[tuple[str, Batching, int], ...]] = (
    ("static", "static", 1),
    ("in-flight", "in-flight", 1),
    ("in-flight, context in {} chunks", "in-flight", 2),
    ("one prefill at a time, in {} chunks", "one-prefill", 2),
)


class Played(NamedTuple):
    """A game: by which way of batching, as a run so that whatever shows runs shows it, and what it reports."""

    name: str
    run: Run
    report: TickReport


def play(flags: Mapping[str, Any], *, compare: bool) -> tuple[Played, ...]:
    """Play what the flags ask; ``compare`` plays the same load under each way of batching too, in two chunks or as many as asked."""
    question = _question(flags)
    asked = question.batching if question.n_prefill_chunks == 1 else f"{question.batching}, context in {question.n_prefill_chunks} chunks"
    several = max(question.n_prefill_chunks, 2)
    others = [
        (name.format(several), replace(question, batching=batching, n_prefill_chunks=1 if n_chunks == 1 else several))
        for name, batching, n_chunks in (_WAYS if compare else ())
    ]
    return tuple(_played(name, run_ticks(one)) for name, one in ((asked, question), *others))


def tick_sentence(report: TickReport) -> str:
    """The answer in one line."""
    said = f"{format_number(report.requests_per_1000_ticks)} requests and {format_number(report.output_tokens_per_1000_ticks)} tokens"
    means = ", ".join(
        f"{name} {_shown(value)}" for name, value in (("TTFT", report.ttft_ticks), ("ITL", report.itl_ticks), ("E2E", report.e2e_ticks))
    )
    return f"{said} in 1,000 ticks; mean {means} ticks; {report.n_queued_at_end} queued at the end"


def tick_table(played: Sequence[Played]) -> TextTable:
    """One row for each game."""
    return TextTable(caption="In 1,000 ticks, and means in ticks", header=_HEADER, rows=tuple(_row(one.name, one.report) for one in played))


def _question(flags: Mapping[str, Any]) -> TickQuestion:
    """The question that the flags ask; ``load`` is text such as ``rate:460``."""
    kind, colon, amount = str(flags["load"]).partition(":")
    if not colon or kind not in get_args(Load) or not amount.isdigit():
        raise SpecError(f"{flags['load']!r} is no load", where="--load", allowed="batch:N, concurrency:N or rate:N", try_="--load rate:460")
    asked: dict[str, Any] = {**flags, "load": kind, "load_amount": int(amount)}
    return TickQuestion(**asked)


def _played(name: str, game: TickRun) -> Played:
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
    run = Run(manifest=manifest, sweep=None, steps=game.steps, ceilings=None, requests=game.requests, parts=game.parts)
    return Played(name, run, game.report)


def _row(name: str, report: TickReport) -> tuple[str, ...]:
    rates = (format_number(report.requests_per_1000_ticks), format_number(report.output_tokens_per_1000_ticks))
    means = (_shown(report.ttft_ticks), _shown(report.itl_ticks), _shown(report.e2e_ticks))
    return (name, *rates, *means, str(report.n_queued_at_end), format_fraction(report.busy_slot_fraction))


def _shown(ticks: float | None) -> str:
    return _ABSENT if ticks is None else format_number(ticks)


__all__ = ["DEFINITIONS", "Played", "play", "tick_sentence", "tick_table"]
