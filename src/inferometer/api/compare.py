"""Is one configuration faster than another, or can that not be told?"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from inferometer.api.compare_page import CompareAnswer
from inferometer.api.question import Option
from inferometer.errors import RecordError
from inferometer.records import layout, reading, run_comparison
from inferometer.records.types import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What counts as different."""

    metric: Annotated[
        str | None,
        Option(
            "What the answer is about. [e2e_p50_s of requests, the decode step of all points of"
            " sweeps]",
            heading="Limits",
            is_common=True,
        ),
    ] = None
    margin: Annotated[
        float,
        Option(
            "Differences up to this do not matter.",
            heading="Limits",
            is_common=True,
            least=0,
            most=1,
            is_open=True,
        ),
    ] = 0.02
    confidence: Annotated[
        float,
        Option(
            "Of the answer's interval.", heading="Limits", is_common=True, least=0.5, most=0.999
        ),
    ] = 0.95
    force: Annotated[
        bool, Option("Compare INVALID load tests too.", heading="Limits", is_common=True)
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """Two configurations, each a run or a folder of runs."""

    old: Annotated[Path, Option("", heading="Runs", is_argument=True, metavar="A")]
    new: Annotated[Path, Option("", heading="Runs", is_argument=True, metavar="B")]
    rule: Rule = field(default_factory=Rule)
    paired: Annotated[
        bool,
        Option(
            "The i-th run of A was made next to the i-th of B (in order of their names).",
            heading="Runs",
            is_common=True,
        ),
    ] = False
    given: frozenset[str] = frozenset()


def rule_of(options: Rule) -> run_comparison.ComparisonRule:
    """The rule of these options, without pairs."""
    return run_comparison.ComparisonRule(
        metric=options.metric,
        margin_ratio=options.margin,
        confidence_fraction=options.confidence,
        takes_invalid=options.force,
    )


def compare(question: Compare) -> CompareAnswer:
    """Is B better than A, worse, equivalent, or is that undecided?

    The run is the unit of replication: 4 of each side, made in turns, carry a 95 % interval. Of
    two single sweeps the repetitions are compared.

    Raises
    ------
    RecordError
        There is no run.
    MeasureError
        A load test is INVALID.
    """
    olds, news = folders_of(question.old), folders_of(question.new)
    rule = replace(rule_of(question.rule), is_paired=question.paired)
    comparison = run_comparison.compare_runs(_read(olds), _read(news), rule)
    return CompareAnswer(
        old=tuple(map(str, olds)), new=tuple(map(str, news)), comparison=comparison
    )


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
        raise RecordError(
            "there is no run",
            where=str(path),
            allowed="the folder of a run, or a folder of such folders",
        )
    return found


def _read(folders: tuple[Path, ...]) -> tuple[Run, ...]:
    return tuple(reading.read_run(folder) for folder in folders)
