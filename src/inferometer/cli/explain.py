"""inferometer explain: where does the time of each point, or of a profiled device, go?"""

import click

from inferometer.api import explain
from inferometer.cli.answer import give_answer
from inferometer.cli.flags import QuestionCommand, asks

ANSWER = explain.AnyExplanation


@click.command(
    "explain",
    cls=QuestionCommand,
    epilog="""\b
Examples:
  inferometer explain runs/example
  inferometer explain trace.json.gz
  inferometer explain spans.jsonl
  inferometer explain dcgm.prom
""",
)
@asks(explain.Explain)
def command(question: explain.Explain, *, as_json: bool) -> None:
    """Where does the time of each measured point go: weights, KV cache, matmul, attention, launches, unexplained?

    Of a profiler's trace: which kernels, and why does the device stand idle between them?
    Of OpenTelemetry spans (JSON lines): schedule delay, network, router, queue, prefill or decode?
    Of device counters (dcgm-exporter, dcgmi dmon, nvidia-smi dmon): is memory busy, arithmetic, a link?
    """
    give_answer(explain.explain, question, as_json=as_json)
