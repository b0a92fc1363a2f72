"""inferometer engines: which engines can be measured here, and how are others installed?"""

import click

from inferometer.api.engines import Engines, EnginesAnswer, engines
from inferometer.cli.answer import give_answer
from inferometer.cli.flags import QuestionCommand, asks

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
    give_answer(engines, question, as_json=as_json, is_whole=True)
