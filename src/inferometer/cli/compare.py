"""inferometer compare: are these runs faster than those, or can nobody tell?"""

import sys
from typing import Any

import click

from inferometer.api import compare
from inferometer.api.compare import CompareAnswer, compare_page
from inferometer.cli import compare_ab
from inferometer.cli.answer import give
from inferometer.cli.flags import QuestionCommand, asks
from inferometer.cli.progress import heard
from inferometer.errors import EXIT_ANSWERED, EXIT_UNDECIDED

ANSWER = CompareAnswer


class OfRunsOrServers(QuestionCommand):
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
    epilog="""\b
Examples:
  inferometer compare runs/a runs/b
  inferometer compare runs/before runs/after --metric ttft_p95_s --margin 0.05
""",
)
@asks(compare.Compare)
def command(question: compare.Compare, *, as_json: bool) -> None:
    """Is B better than A, worse, equivalent, or is that undecided?

    A and B are runs, or folders of runs of one configuration each; with --ab they are servers,
    which are loaded in turns: `inferometer compare --ab --help`. The run is the unit of
    replication: 4 of each side, made in turns, carry a 95 % interval. Of two single sweeps the
    repetitions are compared. Load tests that are INVALID are refused (exit 3). Exit 0 decided, 11
    undecided.
    """
    with heard():
        answer = compare.compare(question)
    give(answer, as_json=as_json, show=compare_page)
    is_undecided = answer.comparison.answer.verdict == "undecided"
    sys.exit(EXIT_UNDECIDED if is_undecided else EXIT_ANSWERED)
