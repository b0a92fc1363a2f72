"""inferometer compare: are these runs faster than those, as fast, slower, or can nobody tell?"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inferometer.cli.answer import give, json_option
from inferometer.errors import EXIT_ANSWERED, EXIT_UNDECIDED, RecordError
from inferometer.records import layout, run_comparison, store
from inferometer.records.types import Run
from inferometer.report.request_words import duration_cell, rate_text
from inferometer.stats.estimate import Estimate
from inferometer.units import format_number

_MAX_DIFFERENCES: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareAnswer:
    """B against A."""

    old: tuple[str, ...]
    """The runs of A."""
    new: tuple[str, ...]
    comparison: run_comparison.RunComparison


ANSWER = CompareAnswer


@click.command(
    "compare",
    short_help="Are these runs faster than those, or can nobody tell?",
    epilog="""\b
Examples:
  inferometer compare runs/a runs/b
  inferometer compare runs/before runs/after --metric ttft_p95_s --margin 0.05
""",
)
@click.argument("old", metavar="A", type=click.Path(path_type=Path))
@click.argument("new", metavar="B", type=click.Path(path_type=Path))
@click.option("--metric", help="What the answer is about.  [default: e2e_p50_s of requests, the decode step of all points of sweeps]")
@click.option(
    "--margin", type=click.FloatRange(0, 1, min_open=True), default=0.02, show_default=True, help="Differences up to this do not matter."
)
@click.option("--confidence", type=click.FloatRange(0.5, 0.999), default=0.95, show_default=True, help="Of the answer's interval.")
@click.option("--paired", is_flag=True, help="The i-th run of A was made next to the i-th of B (in order of their names).")
@json_option
def command(old: Path, new: Path, *, metric: str | None, margin: float, confidence: float, paired: bool, as_json: bool) -> None:
    """Is B better than A, worse, equivalent, or is that undecided?

    A and B are runs, or folders of runs of one configuration each. The run is the unit of replication: 4 of each side, made in turns,
    carry a 95 % interval. Of two single sweeps the repetitions are compared. Exit 0 decided, 11 undecided.
    """
    rule = run_comparison.ComparisonRule(metric=metric, margin_ratio=margin, confidence_fraction=confidence, is_paired=paired)
    olds, news = folders_of(old), folders_of(new)
    comparison = run_comparison.compare_runs(_read(olds), _read(news), rule)
    answer = CompareAnswer(old=tuple(map(str, olds)), new=tuple(map(str, news)), comparison=comparison)
    give(answer, as_json=as_json, show=compare_text)
    sys.exit(EXIT_UNDECIDED if comparison.answer.verdict == "undecided" else EXIT_ANSWERED)


def folders_of(path: Path) -> tuple[Path, ...]:
    """The run at this path, or all runs of this folder, in order of their names.

    Raises
    ------
    RecordError
        There is none.
    """
    if path.is_file() or (path / layout.MANIFEST_NAME).is_file():
        return (path,)
    found = tuple(sorted(manifest.parent for manifest in path.glob(f"*/{layout.MANIFEST_NAME}")))
    if not found:
        raise RecordError("there is no run", where=str(path), allowed="the folder of a run, or a folder of such folders")
    return found


def compare_text(answer: CompareAnswer) -> RenderableType:
    """The answer first, then everything else that was compared, then what else is different."""
    said = answer.comparison
    parts: list[RenderableType] = [Text(_headline(said), style="bold"), Text(f"WHY    {said.answer.why}"), Text(""), _table(said)]
    parts.append(Text(f"the answer at {said.answer.ratio.confidence_fraction:.0%}; " if said.answer.ratio else "", end=""))
    parts.append(Text(f"all others together risk one false alarm as the answer alone does ({said.others_confidence_fraction:.2%} each)"))
    if said.differences:
        shown = said.differences[:_MAX_DIFFERENCES]
        more = f", and {len(said.differences) - len(shown)} more" if len(said.differences) > len(shown) else ""
        parts.append(Text("DIFFER " + "; ".join(f"{one.what}: {one.old} -> {one.new}" for one in shown) + more))
    parts += [Text(f"CAUTION {caution.text} – {caution.remedy}") for caution in said.cautions]
    return Group(*parts)


def _headline(said: run_comparison.RunComparison) -> str:
    words = {"better": "B is better", "worse": "B is worse", "equivalent": "A and B are equivalent", "undecided": "undecided"}
    pairs = ", in pairs" if said.is_paired else ""
    counts = f"{said.n_old} against {said.n_new} {said.replicate}s{pairs}"
    return f"ANSWER {words[said.answer.verdict]}: {said.answer.metric} B / A = {_ratio(said.answer.ratio)} ({counts})"


def _table(said: run_comparison.RunComparison) -> RenderableType:
    table = Table("metric", "A", "B", "B / A", "verdict", box=None, pad_edge=False)
    for one in (said.answer, *said.others):
        table.add_row(one.metric, _value(one.old, one.unit), _value(one.new, one.unit), _ratio(one.ratio), one.verdict)
    return table


def _value(estimate: Estimate | None, unit: str) -> str:
    return duration_cell(estimate) if unit == "s" else rate_text(estimate, unit)


def _ratio(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    if estimate.low is None or estimate.high is None:
        return f"{format_number(estimate.value)} (n too small)"
    return f"{format_number(estimate.value)} [{format_number(estimate.low)}, {format_number(estimate.high)}]"


def _read(folders: tuple[Path, ...]) -> tuple[Run, ...]:
    return tuple(store.read_run(folder) for folder in folders)


__all__ = ["ANSWER", "CompareAnswer", "command", "compare_text", "folders_of"]
