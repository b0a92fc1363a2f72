"""inferometer explain: where does the time of each point go?"""

import click

from inferometer.api import explain
from inferometer.cli.answer import give
from inferometer.cli.flags import QuestionCommand, asks
from inferometer.cli.progress import heard

ANSWER = explain.ExplainAnswer


@click.command(
    "explain",
    cls=QuestionCommand,
    epilog="""\b
Example:
  inferometer explain runs/example
""",
)
@asks(explain.Explain)
def command(question: explain.Explain, *, as_json: bool) -> None:
    """Where does the time of each measured point go: weights, KV cache, matmul, attention, launches, unexplained?"""
    with heard():
        answer = explain.explain(question)
    give(answer, as_json=as_json, show=explain.explain_page)
