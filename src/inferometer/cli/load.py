"""inferometer load: how does this server do under this traffic?

Here until all is sent; ``load_answer`` says how it went.
"""

from typing import NamedTuple

import click

from inferometer.api.load_sending import EndedLoad, LoadTest, send
from inferometer.cli.flags import QuestionCommand, asks
from inferometer.cli.progress import heard


class AnswerableLoad(NamedTuple):
    """A test that is over, and how its answer is printed."""

    ended: EndedLoad
    as_json: bool


@click.command(
    "load",
    cls=QuestionCommand,
    epilog="""\b
Examples (a server must listen there):
  inferometer load http://127.0.0.1:8000 --model NAME --workload chat --rate 5 --for 60s --slo 'ttft:p95<500ms'
  inferometer load http://127.0.0.1:8000 --model NAME --concurrency 32 --for 2min --processes 2
  inferometer load https://host/prefix --model NAME --workload trace.jsonl --speed-up 2 --endpoint completions

\b
The bearer token is taken from INFEROMETER_API_KEY, else OPENAI_API_KEY; it is neither printed nor stored.
""",
)
@asks(LoadTest)
def command(question: LoadTest, *, as_json: bool) -> AnswerableLoad | None:
    """How does the server at URL do under this traffic: throughput, TTFT, TPOT, E2E, and is the objective met?

    Each request is sent at its instant of the workload, the same that `inferometer simulate` takes,
    whatever became of those before; latencies count from that instant. The client watches itself:
    where it was the bottleneck, the run is INVALID (exit 3). Requests that ended are on the disk
    within a second: the same command goes on after Ctrl-C or a crash.
    """
    with heard(as_json=as_json):
        ended = send(question)
    return None if ended is None else AnswerableLoad(ended, as_json)
