"""inferometer quick: how fast is this model here, and what limits it?

What measures and answers is ``quick_answer``: a missing engine is reported before that is imported.
"""

from typing import NamedTuple

import click

from inferometer.api.model_options import Quick, checked_engine
from inferometer.cli.flags import QuestionCommand, asks


class QuickQuestion(NamedTuple):
    """What is asked, of an engine that is installed, and how the answer is printed."""

    question: Quick
    as_json: bool


@click.command(
    "quick",
    cls=QuestionCommand,
    epilog="""\b
Example:
  inferometer quick smollm2-135m --load-format dummy --budget 30s
""",
)
@asks(Quick)
def command(question: Quick, *, as_json: bool) -> QuickQuestion:
    """How fast is MODEL on this machine, what limits it, and what to expect at points that were not measured?

    MODEL is a Hugging Face folder or id here, a GGUF file, or a catalogue id with --load-format
    dummy.
    """
    checked_engine(question)
    return QuickQuestion(question, as_json)
