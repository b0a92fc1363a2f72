"""inferometer compare: are these runs faster than those, as fast, slower, or can nobody tell?"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from inferometer.cli import compare_ab
from inferometer.cli.answer import give, json_option
from inferometer.cli.compare_options import takes_rule
from inferometer.cli.compare_text import CompareAnswer, compare_text
from inferometer.errors import EXIT_ANSWERED, EXIT_UNDECIDED, RecordError
from inferometer.records import layout, reading, run_comparison
from inferometer.records.types import Run

ANSWER = CompareAnswer


class OfRunsOrServers(click.Command):
    """The same question of runs that are there, and of servers (``--ab``), which are loaded for it.

    Each has its own flags.
    """

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Parse the flags of the one that is asked."""
        if "--ab" in args:
            return compare_ab.command.make_context(info_name, args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(
    "compare",
    cls=OfRunsOrServers,
    short_help="Are these runs faster than those, or can nobody tell?",
    epilog="""\b
Examples:
  inferometer compare runs/a runs/b
  inferometer compare runs/before runs/after --metric ttft_p95_s --margin 0.05
""",
)
@click.argument("old", metavar="A", type=click.Path(path_type=Path))
@click.argument("new", metavar="B", type=click.Path(path_type=Path))
@takes_rule
@click.option(
    "--paired",
    is_flag=True,
    help="The i-th run of A was made next to the i-th of B (in order of their names).",
)
@json_option
def command(
    old: Path, new: Path, *, rule: run_comparison.ComparisonRule, paired: bool, as_json: bool
) -> None:
    """Is B better than A, worse, equivalent, or is that undecided?

    A and B are runs, or folders of runs of one configuration each; with --ab they are servers,
    which are loaded in turns: `inferometer compare --ab --help`. The run is the unit of
    replication: 4 of each side, made in turns, carry a 95 % interval. Of two single sweeps the
    repetitions are compared. Load tests that are INVALID are refused (exit 3). Exit 0 decided, 11
    undecided.
    """
    olds, news = folders_of(old), folders_of(new)
    comparison = run_comparison.compare_runs(
        _read(olds), _read(news), replace(rule, is_paired=paired)
    )
    answer = CompareAnswer(
        old=tuple(map(str, olds)), new=tuple(map(str, news)), comparison=comparison
    )
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
        raise RecordError(
            "there is no run",
            where=str(path),
            allowed="the folder of a run, or a folder of such folders",
        )
    return found


def _read(folders: tuple[Path, ...]) -> tuple[Run, ...]:
    return tuple(reading.read_run(folder) for folder in folders)
