"""inferometer tune: which changes of the settings help this server, and by how much?"""

import sys

import click

from inferometer.api.tune import Tune, tune
from inferometer.api.tuning import MeasuredTune, PlannedTune, PresetAnswer, TuneAnswer
from inferometer.cli.answer import give_answer
from inferometer.cli.flags import QuestionCommand, asks
from inferometer.errors import EXIT_OF_SLO

ANSWER = TuneAnswer | MeasuredTune | PlannedTune | PresetAnswer


@click.command(
    "tune",
    cls=QuestionCommand,
    epilog="""\b
Examples:
  inferometer tune llama-3.1-8b --hardware h100_sxm --rate 12 --slo 'ttft:p95<500ms, tpot:p95<30ms'
  inferometer tune qwen3-8b --hardware l40s --policy sglang --concurrency 16 --slo 'tpot:p95<80ms'
  inferometer tune llama-3.1-8b --hardware h100_sxm --preset interactive
  inferometer tune http://127.0.0.1:8000 --start 'vllm serve MODEL' --rate 4 --slo 'ttft:p95<1s' --dry-run
  inferometer tune llama-3.1-70b --hardware h100_sxm --tp 8 --goal cost --rate 5 --slo 'ttft:p95<1s' --dry-run
""",
)
@asks(Tune)
def command(question: Tune, *, as_json: bool) -> None:
    """Which changes of the settings help MODEL's server under this traffic, and by how much?

    The flags describe the server as it is. The steps of a playbook are simulated one after the
    other, on 19 machines that may be the one, with the same requests before and after a change.
    What gains in all of them is taken; what changes answers is offered with the command that
    checks its quality. The gain of all together is that of fresh requests.

    With --start MODEL is the address of a server that is started here, loaded and stopped, again
    and again: what the simulation proposes is measured in pairs of fresh servers, and confirmed in
    other pairs at the end. The same command goes on after Ctrl-C or a crash.

    Exit 0: the SLO is met afterwards, 10 missed, 11 undecided.
    """
    answer = give_answer(tune, question, as_json=as_json)
    if isinstance(answer, TuneAnswer | MeasuredTune):
        sys.exit(EXIT_OF_SLO[answer.slo_after])
