"""inferometer quality: what does a lossy option cost in quality?"""

import sys

import click

from inferometer.api.quality import Quality, QualityAnswer, quality
from inferometer.cli.answer import give_answer
from inferometer.cli.flags import QuestionCommand, asks
from inferometer.errors import EXIT_ANSWERED, EXIT_SLO_MISSED, EXIT_UNDECIDED

ANSWER = QualityAnswer
_EXIT_CODES = {"not worse": EXIT_ANSWERED, "worse": EXIT_SLO_MISSED, "undecided": EXIT_UNDECIDED}


@click.command(
    "quality",
    cls=QuestionCommand,
    epilog="""\b
Examples:
  inferometer quality ./model --quantization int8 --quantization int4 --kv-dtype fp8
  inferometer quality ./model ./model-awq --text prompts.txt --margin 0.02 --hardware h100_sxm
""",
)
@asks(Quality)
def command(question: Quality, *, as_json: bool) -> None:
    """What does a lossy option cost in quality: perplexity, top-1 and greedy agreement against the reference?

    Both read the same text. A change is *not worse* where the whole 95 % interval of its
    perplexity lies below the margin, which is chosen before. Exit 0 not worse, 10 worse, 11
    undecided.
    """
    answer = give_answer(quality, question, as_json=as_json)
    sys.exit(_EXIT_CODES[answer.verdict])
