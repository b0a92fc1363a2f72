"""inferometer engines: which engines can be measured here, and how are others installed?"""

import click

from inferometer.api.engines import Engines, EnginesAnswer, engines, engines_page
from inferometer.cli.answer import give
from inferometer.cli.flags import QuestionCommand, asks
from inferometer.cli.progress import heard
from inferometer.report.terminal import page_text

ANSWER = EnginesAnswer


@click.command(
    "engines",
    cls=QuestionCommand,
    epilog="""\b
Examples:
  inferometer engines
  inferometer engines --install openvino
""",
)
@asks(Engines)
def command(question: Engines, *, as_json: bool) -> None:
    """Which engines can be measured here, and how are others installed?"""
    with heard():
        answer = engines(question)
    give(answer, as_json=as_json, show=lambda one: page_text(engines_page(one), is_verbose=True))
