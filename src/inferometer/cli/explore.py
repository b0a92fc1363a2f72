"""inferometer explore: what would happen, and what if one setting were another? A local page."""

import sys
from typing import Any, Final

import click

from inferometer.api import explore_page, explore_states
from inferometer.api.explore import DEFAULT_MODEL, DEFAULTS, Explore
from inferometer.api.explored import ExploreAnswer
from inferometer.cli.answer import give
from inferometer.cli.flags import QuestionCommand, asks
from inferometer.cli.progress import heard
from inferometer.cli.terminal import talk
from inferometer.errors import EXIT_OF_SLO
from inferometer.serve import explore_server

ANSWER: Final = ExploreAnswer


class ExploreCommand(QuestionCommand):
    """The command, which has something to show where nothing is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words; without a model, add a default model, device and traffic."""
        try:
            return super().parse_args(ctx, list(args))
        except click.MissingParameter:
            flags = {word.partition("=")[0] for word in args}
            words = [DEFAULT_MODEL]
            for name, value in DEFAULTS.items():
                if not flags & {f"--{name}", "--concurrency" if name == "rate" else ""}:
                    words += [f"--{name}", value]
            return super().parse_args(ctx, [*words, *args])


@click.command(
    "explore",
    cls=ExploreCommand,
    epilog="""\b
Examples:
  inferometer explore llama-3.1-8b --hardware h100_sxm --rate 10 --requests 200 --json

\b
Without --json it serves the page until it is stopped (Ctrl-C). With --export FILE it writes the page and the answers
around this state into one file, which needs neither a server nor Python.
""",
)
@asks(Explore, has_page=False)
def command(question: Explore, *, as_json: bool) -> None:
    """Explore MODEL's latency, throughput and cost on a page of this machine.

    MODEL may be a run of `load`, a fit, or a plan of `size --out`, too. Every move of a slider
    simulates again, with the same random numbers: a coarse answer at once, then the refined one.
    Every state of the page is an address, and a command that gives the same numbers with --json.
    """
    started = explore_states.started(question)
    if question.export is not None:
        with heard():
            n_states = explore_server.write_file(started, question.export)
        talk(f"REPORT {question.export} ({n_states} states)")
        return
    if as_json:
        with heard():
            answer = explore_states.explore(started.question)
        give(answer, as_json=True, show=explore_page.answer_page)
        sys.exit(EXIT_OF_SLO[answer.simulation.verdict])
    _serve(started)


def _serve(started: explore_states.Started) -> None:
    with explore_server.serving(started.question, started.measured) as server:
        host, port = server.server_address[:2]
        talk(f"http://{_text(host)}:{port}/ until it is stopped (Ctrl-C)")
        server.serve_forever()


def _text(host: Any) -> str:
    return host.decode() if isinstance(host, bytes) else str(host)
