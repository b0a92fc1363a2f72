"""inferometer capacity: what is the highest load at which the SLO is met?"""

import sys
from typing import Any

import click

from inferometer.api import capacity
from inferometer.api.decision_pages import CapacityAnswer
from inferometer.api.grid import GridAnswer
from inferometer.cli import capacity_live
from inferometer.cli.answer import give_answer
from inferometer.cli.flags import QuestionCommand, asks
from inferometer.cli.study import grid_of

ANSWER = CapacityAnswer | GridAnswer


class OfAModelOrServer(QuestionCommand):
    """The same question of a model, which is simulated, and of a URL, which is measured: each has its own flags."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Parse the flags of the one that is asked."""
        if any(word.startswith(("http://", "https://")) for word in args):
            return capacity_live.command.make_context(info_name, args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(
    "capacity",
    cls=OfAModelOrServer,
    epilog="""\b
Examples:
  inferometer capacity llama-3.1-8b --hardware h100_sxm --workload chat --slo 'ttft:p95<1s, tpot:p95<100ms'
  inferometer capacity llama-3.1-8b --hardware h100_sxm --concurrency 16 --slo 'tpot:p95<30ms' --resolution 0.1
  inferometer capacity llama-3.1-8b --hardware l40s --replicas 4 --slo 'ttft:p95<1s' --probe-requests 200
""",
)
@asks(capacity.Capacity, grid=grid_of("capacity"))
def command(question: capacity.Capacity, *, as_json: bool) -> None:
    """How many requests per second, or users (with --concurrency), do replicas of MODEL carry together within the SLO?

    Simulated; a URL in place of MODEL is measured: `inferometer capacity http://HOST --help`.

    The load that is given is where the search begins. Exit 0 located, 10 no load meets the SLO, 11
    not located.
    """
    answer = give_answer(capacity.capacity, question, as_json=as_json)
    found = answer.levels[0].capacity
    sys.exit(0 if answer.is_located else 10 if capacity.meets_nowhere(found) else 11)
