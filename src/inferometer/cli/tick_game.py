"""What is played when a timeline is asked without a run, and what is said of it?"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, get_args

from rich.console import RenderableType
from rich.table import Table

from inferometer import __version__
from inferometer.errors import SpecError
from inferometer.records.types import Run, RunManifest
from inferometer.simulate.ticks import Batching, Load, TickQuestion, TickReport, TickRun, run_ticks
from inferometer.units import format_number

_ABSENT: Final = "–"
_WAYS: Final[tuple[tuple[str, Batching, int], ...]] = (
    ("static", "static", 1),
    ("in-flight", "in-flight", 1),
    ("in-flight, context in 2 chunks", "in-flight", 2),
    ("one prefill at a time, in 2 chunks", "one-prefill", 2),
)


class Shown(NamedTuple):
    """What a timeline is drawn from: a run, and for the tick model what it reports, of other ways of batching too."""

    run: Run
    report: TickReport | None
    compared: tuple[tuple[str, TickReport], ...]


def play(flags: Mapping[str, Any], *, compare: bool) -> Shown:
    """Play what the flags ask; ``compare`` plays the same load under each way of batching too."""
    question = _question(flags)
    played = run_ticks(question)
    return Shown(_run_of(played), played.report, _compared(question) if compare else ())


def _question(flags: Mapping[str, Any]) -> TickQuestion:
    """The question that the flags ask; ``load`` is text such as ``rate:460``."""
    kind, colon, amount = str(flags["load"]).partition(":")
    if not colon or kind not in get_args(Load) or not amount.isdigit():
        raise SpecError(f"{flags['load']!r} is no load", where="--load", allowed="batch:N, concurrency:N or rate:N", try_="--load rate:460")
    asked: dict[str, Any] = {**flags, "load": kind, "load_amount": int(amount)}
    return TickQuestion(**asked)


def _run_of(played: TickRun) -> Run:
    """The game as a run, so that whatever shows runs shows it."""
    manifest = RunManifest(
        run_id="ticks",
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
    return Run(manifest=manifest, sweep=None, steps=played.steps, ceilings=None, requests=played.requests, parts=played.parts)


def _compared(question: TickQuestion) -> tuple[tuple[str, TickReport], ...]:
    """The same load under each way of batching; two chunks where contexts are cut."""
    return tuple(
        (name, run_ticks(replace(question, batching=batching, n_prefill_chunks=n_chunks)).report) for name, batching, n_chunks in _WAYS
    )


def tick_sentence(report: TickReport) -> str:
    """The answer in one line."""
    said = f"{format_number(report.requests_per_1000_ticks)} requests and {format_number(report.output_tokens_per_1000_ticks)} tokens"
    means = ", ".join(
        f"{name} {_shown(value)}" for name, value in (("TTFT", report.ttft_ticks), ("ITL", report.itl_ticks), ("E2E", report.e2e_ticks))
    )
    return f"ANSWER {said} in 1,000 ticks; mean {means} ticks; {report.n_queued_at_end} queued at the end"


def compared_table(compared: tuple[tuple[str, TickReport], ...]) -> RenderableType:
    """One row for each way of batching."""
    table = Table("batching", "requests", "tokens", "TTFT", "ITL", "E2E", "queued", "busy slots", box=None, pad_edge=False)
    for name, report in compared:
        means = [_shown(value) for value in (report.ttft_ticks, report.itl_ticks, report.e2e_ticks)]
        rates = [format_number(report.requests_per_1000_ticks), format_number(report.output_tokens_per_1000_ticks)]
        table.add_row(name, *rates, *means, str(report.n_queued_at_end), f"{report.busy_slot_fraction:.0%}")
    return table


def _shown(ticks: float | None) -> str:
    return _ABSENT if ticks is None else format_number(ticks)


__all__ = ["Shown", "compared_table", "play", "tick_sentence"]
