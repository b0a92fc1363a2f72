"""inferometer report: what do runs say, as one offline HTML page?"""

import click

from inferometer.api import report
from inferometer.cli.answer import give
from inferometer.cli.flags import QuestionCommand, asks
from inferometer.cli.progress import heard

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
    with heard():
        answer = report.report(question)
    give(answer, as_json=as_json, show=report.report_page)
