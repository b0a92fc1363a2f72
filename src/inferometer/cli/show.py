"""inferometer show: what does a run say, in the terminal?"""

from dataclasses import dataclass

import click
from rich.console import Group, RenderableType

from inferometer.cli.answer import give, json_option
from inferometer.cli.request_answer import RequestRunAnswer, answer_of, are_of_requests, views_of
from inferometer.cli.request_options import takes_question
from inferometer.cli.request_view import RequestQuestion
from inferometer.cli.runs import RunRequest, analyses_of, load_runs, takes_runs
from inferometer.cli.sweep_view import sweep_view
from inferometer.report.request_terminal import request_report_text
from inferometer.report.terminal import report_text
from inferometer.report.views import SweepReportView


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowAnswer:
    """All that a run says; the same facts as in the report."""

    runs: tuple[str, ...]
    view: SweepReportView | None
    """Of sweeps; None for runs of requests."""
    requests: tuple[RequestRunAnswer, ...]
    """Of runs of requests."""


ANSWER = ShowAnswer


@click.command(
    "show",
    short_help="What does a run say? (in the terminal)",
    epilog="""\b
Example:
  inferometer show runs/example
""",
)
@takes_runs
@takes_question
@json_option
def command(request: RunRequest, *, question: RequestQuestion, as_json: bool) -> None:
    """What does a run say?

    Several sweeps are shown side by side, runs of requests one after the other.
    """
    runs = load_runs(request, takes_partial=True)
    names = tuple(str(path) for path in request.paths)
    if are_of_requests(runs):
        views = views_of(runs, request.paths, question)
        shown: RenderableType = Group(*(request_report_text(view) for view in views))
        answer = ShowAnswer(
            runs=names, view=None, requests=tuple(answer_of(view) for view in views)
        )
    else:
        view = sweep_view(analyses_of(request, runs))
        shown = report_text(view)
        answer = ShowAnswer(runs=names, view=view, requests=())
    give(answer, as_json=as_json, show=lambda _: shown)
