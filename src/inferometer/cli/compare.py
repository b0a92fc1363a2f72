"""inferometer compare: are these runs faster than those, as fast, slower, or can nobody tell?"""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from inferometer.cli.answer import give, json_option
from inferometer.cli.compare_text import CompareAnswer, compare_text
from inferometer.errors import EXIT_ANSWERED, EXIT_UNDECIDED, RecordError
from inferometer.records import layout, run_comparison, store
from inferometer.records.types import Run

ANSWER = CompareAnswer


_OPTIONS: Final = (
    click.option("--metric", help="What the answer is about.  [default: e2e_p50_s of requests, the decode step of all points of sweeps]"),
    click.option(
        "--margin",
        type=click.FloatRange(0, 1, min_open=True),
        default=0.02,
        show_default=True,
        help="Differences up to this do not matter.",
    ),
    click.option("--confidence", type=click.FloatRange(0.5, 0.999), default=0.95, show_default=True, help="Of the answer's interval."),
    click.option("--paired", is_flag=True, help="The i-th run of A was made next to the i-th of B (in order of their names)."),
    click.option("--force", is_flag=True, help="Compare INVALID load tests too."),
)


def _takes_rule(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags of a comparison; the command gets ``rule: ComparisonRule``."""

    @functools.wraps(command)
    def with_rule(**flags: Any) -> None:
        rule = run_comparison.ComparisonRule(
            metric=flags.pop("metric"),
            margin_ratio=flags.pop("margin"),
            confidence_fraction=flags.pop("confidence"),
            is_paired=flags.pop("paired"),
            takes_invalid=flags.pop("force"),
        )
        command(rule=rule, **flags)

    wrapped: Callable[..., None] = with_rule
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


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
@_takes_rule
@json_option
def command(old: Path, new: Path, *, rule: run_comparison.ComparisonRule, as_json: bool) -> None:
    """Is B better than A, worse, equivalent, or is that undecided?

    A and B are runs, or folders of runs of one configuration each. The run is the unit of replication: 4 of each side, made in turns,
    carry a 95 % interval. Of two single sweeps the repetitions are compared. Load tests that are INVALID are refused (exit 3).
    Exit 0 decided, 11 undecided.
    """
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


def _read(folders: tuple[Path, ...]) -> tuple[Run, ...]:
    return tuple(store.read_run(folder) for folder in folders)


__all__ = ["ANSWER", "command", "folders_of"]
