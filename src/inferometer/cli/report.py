"""inferometer report: what do runs say, as one offline HTML page?"""

import click

from inferometer.api import report
from inferometer.cli.answer import give_answer
from inferometer.cli.flags import QuestionCommand, asks

ANSWER = report.ReportAnswer


@click.command(
    "report",
    cls=QuestionCommand,
    epilog="""\b
Examples:
  inferometer report runs/example
  inferometer report runs/example --export runs/example/charts
""",
)
@asks(report.Report)
def command(question: report.Report, *, as_json: bool) -> None:
    """What do runs say, as one offline HTML page?

    Several sweeps of one model stand side by side, several runs of requests by rate.
    """
    give_answer(report.report, question, as_json=as_json)
