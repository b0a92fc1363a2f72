"""inferometer size: what must be bought, and how set up, to meet the SLO under some traffic?"""

import sys

import click

from inferometer.api import size
from inferometer.api.sizing_answer import SizeAnswer
from inferometer.cli.answer import give_answer
from inferometer.cli.flags import QuestionCommand, asks
from inferometer.errors import EXIT_OF_SLO

ANSWER = SizeAnswer


@click.command(
    "size",
    cls=QuestionCommand,
    epilog="""\b
Examples:
  inferometer size llama-3.1-8b --rate 20 --workload chat --slo 'ttft:p95<1s' --gpus h100_sxm,l40s --tp 1,2
  inferometer size llama-3.1-8b --rate 2 --slo 'ttft:p95<2s' --gpus a100_80gb_sxm --tp 1 --quantization int4
  inferometer size llama-3.1-8b --total-gpus 2 --slo 'ttft:p95<1s, tpot:p95<50ms' --gpus h100_sxm

A trace (--workload FILE) is sized for its busiest window; then replicas come and go with it.
""",
)
@asks(size.Size)
def command(question: size.Size, *, as_json: bool) -> None:
    """How many replicas of which kind meet the SLO for MODEL under this traffic, and what do they cost?

    Exit 0 met at fast, likely and slow step times, 11 undecided, 10 nothing on offer meets it, 6
    nothing on offer holds the model.
    """
    answer = give_answer(size.size, question, as_json=as_json)
    sys.exit(EXIT_OF_SLO[answer.verdict])
