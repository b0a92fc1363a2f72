"""inferometer diagnose: what limits this running server, and which change would help?"""

import sys
from typing import Final

import click

from inferometer.api import diagnose, diagnose_page, diagnose_steps
from inferometer.cli.answer import give
from inferometer.cli.flags import QuestionCommand, asks
from inferometer.cli.progress import heard

ANSWER = diagnose.AnyDiagnosis
_EXIT_CODES: Final = {"missed": 10, "undecided": 11}


@click.command(
    "diagnose",
    cls=QuestionCommand,
    epilog="""\b
Examples:
  inferometer diagnose http://127.0.0.1:8000 --slo 'ttft:p95<500ms, tpot:p95<50ms'
  inferometer diagnose http://127.0.0.1:8000 --for 5min --known max_num_batched_tokens=2048
  inferometer diagnose http://127.0.0.1:8000 --fpm tcp://127.0.0.1:20380
  inferometer diagnose vllm.log
""",
)
@asks(diagnose.Diagnose)
def command(question: diagnose.Diagnose, *, as_json: bool) -> None:
    """What limits this running server, how much of its latency is that, and which change would help?

    Its metrics are read for a while, and nothing is sent to it. The requests that it got and its
    step times are rebuilt from them; the rebuilt server is simulated with one limit lifted after
    the other, and what the latency falls by is that limit's share. A cause is named only where its
    share is above 0 in every simulated server that shows the same metrics.
    """
    with heard():
        answer = diagnose.diagnose(question)
    if isinstance(answer, diagnose_steps.StepsAnswer):
        give(answer, as_json=as_json, show=diagnose_steps.steps_page)
        return
    give(answer, as_json=as_json, show=diagnose_page.diagnose_page)
    undecided = 11 if answer.finding == "undecided" else 0
    sys.exit(_EXIT_CODES.get(answer.slo_verdict or "", undecided))
