"""inferometer report: what do runs say, as one offline HTML page?"""

from dataclasses import dataclass
from pathlib import Path

import click
from rich.text import Text

from inferometer.cli import request_answer, request_options, request_view
from inferometer.cli.answer import give, json_option
from inferometer.cli.request_pages import write_request_page
from inferometer.cli.runs import RunRequest, analyses_of, load_runs, takes_runs
from inferometer.cli.sweep_view import REPORT_NAME, sweep_view
from inferometer.report import export as exporting, html
from inferometer.report.charts.catalogue import charts_of
from inferometer.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportAnswer:
    """The page, its size, and the charts that were exported beside it."""

    report: str
    size_bytes: int
    exported: tuple[str, ...]


ANSWER = ReportAnswer


@click.command(
    "report",
    short_help="What do runs say? (one offline HTML page)",
    epilog="""\b
Examples:
  inferometer report runs/example
  inferometer report runs/example --export runs/example/charts
""",
)
@takes_runs
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The page. Default: report.html in the first run's folder.",
)
@click.option(
    "--export",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for each chart as SVG, PNG and CSV.",
)
@request_options.takes_question
@json_option
def command(
    request: RunRequest,
    *,
    out: Path | None,
    export: Path | None,
    question: request_view.RequestQuestion,
    as_json: bool,
) -> None:
    """What do runs say, as one offline HTML page?

    Several sweeps of one model stand side by side, several runs of requests by rate.
    """
    first = request.paths[0]
    path = out or (first if first.is_dir() else first.parent) / REPORT_NAME
    runs = load_runs(request, takes_partial=True)
    if request_answer.are_of_requests(runs):
        charts = write_request_page(runs, request.paths, question, path)
    else:
        view = sweep_view(analyses_of(request, runs), report_path=path)
        html.write_report(view, path)
        charts = charts_of(view)
    exported = (
        ()
        if export is None
        else tuple(str(file) for file in exporting.export_charts(charts, export))
    )
    give(
        ReportAnswer(report=str(path), size_bytes=path.stat().st_size, exported=exported),
        as_json=as_json,
        show=_show,
    )


def _show(answer: ReportAnswer) -> Text:
    charts = f", {len(answer.exported)} files of charts exported" if answer.exported else ""
    return Text(f"REPORT {answer.report} ({format_bytes(answer.size_bytes)}, offline){charts}")
