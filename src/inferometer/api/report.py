"""inferometer report: what do runs say, as one offline HTML page?"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from inferometer.api import request_answer, request_options
from inferometer.api.answer import Answer
from inferometer.api.question import Option
from inferometer.api.request_pages import write_request_page
from inferometer.api.runs import Runs, analyses_of, load_runs, request_of
from inferometer.api.sweep_view import REPORT_NAME, sweep_view
from inferometer.report import export as exporting, html
from inferometer.report.charts.catalogue import charts_of
from inferometer.report.page import Page
from inferometer.report.sweep_page import page_of
from inferometer.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportAnswer(Answer):
    """The page, its size, and the charts that were exported beside it."""

    report: str
    size_bytes: int
    exported: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Runs, and where their page is written."""

    runs: Runs
    judged: request_options.Judged = field(default_factory=request_options.Judged)
    out: Annotated[
        Path | None,
        Option("The page. [report.html in the first run's folder]", is_common=True, metavar="FILE"),
    ] = None
    export: Annotated[
        Path | None,
        Option("Folder for each chart as SVG and CSV.", is_common=True, metavar="DIR"),
    ] = None
    given: frozenset[str] = frozenset()


def report(question: Report) -> ReportAnswer:
    """Write one offline HTML page of runs: sweeps side by side, runs of requests by rate.

    Raises
    ------
    RecordError, SpecError
        A run cannot be read, or the page cannot be written.
    """
    request = request_of(question.runs)
    first = request.paths[0]
    path = question.out or (first if first.is_dir() else first.parent) / REPORT_NAME
    runs = load_runs(request, takes_partial=True)
    if request_answer.are_of_requests(runs):
        judged = request_options.question_of(question.judged)
        charts = write_request_page(runs, request.paths, judged, path)
    else:
        view = sweep_view(analyses_of(request, runs), report_path=path)
        html.write_page(page_of(view), path)
        charts = charts_of(view)
    exported = (
        ()
        if question.export is None
        else tuple(str(file) for file in exporting.export_charts(charts, question.export))
    )
    return ReportAnswer(report=str(path), size_bytes=path.stat().st_size, exported=exported)


def report_page(answer: ReportAnswer) -> Page:
    """Where the page is."""
    charts = f", {len(answer.exported)} files of charts exported" if answer.exported else ""
    return Page(
        title=f"REPORT {answer.report} ({format_bytes(answer.size_bytes)}, offline){charts}"
    )
