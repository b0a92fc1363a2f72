"""inferometer show: what does a run say, in the terminal?"""

from dataclasses import dataclass

import click
from rich.console import RenderableType

from inferometer.cli.answer import give, json_option
from inferometer.cli.runs import RunRequest, analyses_of, takes_runs
from inferometer.cli.sweep_view import sweep_view
from inferometer.report.terminal import report_text
from inferometer.report.views import SweepReportView


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowAnswer:
    """All that a run says; the same facts as in the report."""

    runs: tuple[str, ...]
    view: SweepReportView


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
@json_option
def command(request: RunRequest, *, as_json: bool) -> None:
    """What does a run say? Several runs are shown side by side."""
    analyses = analyses_of(request)
    answer = ShowAnswer(runs=tuple(str(path) for path in request.paths), view=sweep_view(analyses))
    give(answer, as_json=as_json, show=_show)


def _show(answer: ShowAnswer) -> RenderableType:
    return report_text(answer.view)


__all__ = ["ANSWER", "ShowAnswer", "command"]
