"""inferometer sweep: how fast are prefill and decode over prompt lengths and batch sizes?"""

import click

from inferometer.api.measured import MeasuredAnswer
from inferometer.api.sweep import PlannedSweep, Sweep, sweep
from inferometer.cli.answer import give_answer
from inferometer.cli.flags import QuestionCommand, asks

ANSWER = MeasuredAnswer | PlannedSweep


@click.command(
    "sweep",
    cls=QuestionCommand,
    epilog="""\b
Example:
  inferometer sweep --model smollm2-135m --load-format dummy --seq 16,64 --batch-sizes 1,2 --out runs/example
""",
)
@asks(Sweep)
def command(question: Sweep, *, as_json: bool) -> None:
    """How fast are prefill and decode over prompt lengths and batch sizes?

    Both are timed apart, warmed up, repeated, in shuffled order; a point that does not fit is
    recorded and the sweep goes on. Every point is on the disk when it is done: the same command
    goes on after Ctrl-C or a crash. docs/sweep.md defines each number.
    """
    give_answer(sweep, question, as_json=as_json)
