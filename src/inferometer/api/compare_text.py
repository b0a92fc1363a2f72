"""How does a comparison look in the terminal: the answer, everything that was compared, and what else is different?"""

from dataclasses import dataclass
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from inferometer.api.answer import Answer
from inferometer.records import run_comparison
from inferometer.report.request_words import duration_cell, rate_text
from inferometer.stats.estimate import Estimate
from inferometer.units import format_number

_MAX_DIFFERENCES: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SidePromise:
    """How many runs of a side kept a promise?"""

    side: str
    objective: str
    n_met: int
    n_missed: int
    n_undecided: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareAnswer(Answer):
    """B against A."""

    old: tuple[str, ...]
    """The runs of A."""
    new: tuple[str, ...]
    comparison: run_comparison.RunComparison
    promises: tuple[SidePromise, ...] = ()
    """Of A and of B, where one was named."""


def compare_text(answer: CompareAnswer) -> RenderableType:
    """The answer first, then everything else that was compared, then what else is different."""
    said = answer.comparison
    parts: list[RenderableType] = [
        Text(_headline(said), style="bold"),
        Text(f"WHY    {said.answer.why}"),
        Text(""),
        _table(said),
    ]
    parts.append(
        Text(
            (
                f"the answer at {said.answer.ratio.confidence_fraction:.0%}; "
                if said.answer.ratio
                else ""
            ),
            end="",
        )
    )
    parts.append(
        Text(
            "all others together risk one false alarm as the answer alone does"
            f" ({said.others_confidence_fraction:.2%} each)"
        )
    )
    parts += [Text(f"  –    {one.metric}: {one.why}") for one in said.others if one.ratio is None]
    parts += [Text(_promise_line(one)) for one in answer.promises]
    if said.differences:
        shown = said.differences[:_MAX_DIFFERENCES]
        more = (
            f", and {len(said.differences) - len(shown)} more"
            if len(said.differences) > len(shown)
            else ""
        )
        parts.append(
            Text(
                "DIFFER " + "; ".join(f"{one.what}: {one.old} -> {one.new}" for one in shown) + more
            )
        )
    parts += [Text(f"CAUTION {caution.text} – {caution.remedy}") for caution in said.cautions]
    return Group(*parts)


def _promise_line(one: SidePromise) -> str:
    return (
        f"PROMISE {one.side}: {one.objective} met in {one.n_met} runs, missed in {one.n_missed},"
        f" undecided in {one.n_undecided}"
    )


def _headline(said: run_comparison.RunComparison) -> str:
    words = {
        "better": "B is better",
        "worse": "B is worse",
        "equivalent": "A and B are equivalent",
        "undecided": "undecided",
    }
    pairs = ", in pairs" if said.is_paired else ""
    counts = f"{said.n_old} against {said.n_new} {said.replicate}s{pairs}"
    return (
        f"ANSWER {words[said.answer.verdict]}: {said.answer.metric} B / A ="
        f" {_ratio(said.answer.ratio)} ({counts})"
    )


def _table(said: run_comparison.RunComparison) -> RenderableType:
    table = Table(
        Column("metric", no_wrap=True), "A", "B", "B / A", "verdict", box=None, pad_edge=False
    )
    for one in (said.answer, *said.others):
        table.add_row(
            one.metric,
            _value(one.old, one.unit),
            _value(one.new, one.unit),
            _ratio(one.ratio),
            one.verdict,
        )
    return table


def _value(estimate: Estimate | None, unit: str) -> str:
    return duration_cell(estimate) if unit == "s" else rate_text(estimate, unit)


def _ratio(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    if estimate.low is None or estimate.high is None:
        return f"{format_number(estimate.value)} (n too small)"
    return (
        f"{format_number(estimate.value)} [{format_number(estimate.low)},"
        f" {format_number(estimate.high)}]"
    )
