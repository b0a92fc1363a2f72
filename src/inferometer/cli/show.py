"""inferometer show: what does a run say?"""

import click

from inferometer.api import show
from inferometer.cli.answer import give
from inferometer.cli.flags import QuestionCommand, asks
from inferometer.cli.progress import heard

ANSWER = show.ShowAnswer


@click.command(
    "show",
    cls=QuestionCommand,
    epilog="""\b
Example:
  inferometer show runs/example
""",
)
@asks(show.Show)
def command(question: show.Show, *, as_json: bool) -> None:
    """What does a run say?

    Several sweeps are shown side by side, runs of requests one after the other.
    """
    with heard():
        shown = show.show(question)
    give(shown.answer, as_json=as_json, show=lambda _: shown.pages)
