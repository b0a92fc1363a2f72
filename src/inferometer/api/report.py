"""inferometer report: what do runs say, as one offline HTML page?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from inferometer import __version__, units
from inferometer.api import provenance, request_answer, run_titles, show
from inferometer.api.answer import Answer
from inferometer.api.question import option
from inferometer.api.request_view import RequestQuestion
from inferometer.api.runs import Runs, analyses_of, load_runs, shown_of
from inferometer.api.sweep_view import sweep_view
from inferometer.inputs.types import Caution
from inferometer.records.request_summaries import concurrency_of
from inferometer.records.types import Run
from inferometer.records.unlike_loads import unlike_lengths
from inferometer.report import html, request_page, sweep_page
from inferometer.report.charts import catalogue, plot, svg
from inferometer.report.page import Page
from inferometer.report.views import RatePoint, RateView, RequestReportView


def write_request_page(
    runs: Sequence[Run], paths: Sequence[Path], question: RequestQuestion, path: Path
) -> tuple[tuple[plot.Chart, ...], tuple[Caution, ...]]:
    """Write the page of a run, or of several by rate; returns its charts and cautions.

    Raises
    ------
    RecordError
        The page cannot be written.
    """
    views = request_answer.views_of(runs, paths, question, path)
    if len(runs) > 1:
        view = rate_view(runs, views, [str(one) for one in paths])
        html.write_page(request_page.rate_page_of(view), path)
        return request_page.rate_charts_of(view), view.cautions
    html.write_page(request_page.request_page_of(views[0]), path)
    return catalogue.request_charts_of(views[0]), ()


# What is shown of several runs of requests side by side: how latency, throughput and goodput go
# with the rate?


def rate_view(
    runs: Sequence[Run], views: Sequence[RequestReportView], paths: Sequence[str]
) -> RateView:
    """The runs as points of curves.

    Numbers are those of the steady state where a run has one of its own, else of the whole run.
    """
    labels = run_titles.traffic_labels(runs, [Path(path).resolve().name for path in paths])
    servers = run_titles.server_labels(runs, labels)
    points = [
        replace(_point(run, view, label), server=server)
        for run, view, label, server in zip(runs, views, labels, servers, strict=True)
    ]
    ordered = tuple(
        sorted(
            points, key=lambda point: point.concurrency or point.offered_requests_per_s or math.inf
        )
    )
    judgement = views[0].judgement
    return RateView(
        title=run_titles.common_title(runs),
        subtitle=f"{len(runs)} runs of requests"
        + ("" if judgement is None else f" · {judgement.objective.text}"),
        answer=_answer(ordered),
        objective="" if judgement is None else judgement.objective.text,
        points=ordered,
        files=tuple(zip(labels, paths, strict=True)),
        tool_version=__version__,
        cautions=tuple(unlike_lengths(runs, labels)),
    )


def _point(run: Run, view: RequestReportView, label: str) -> RatePoint:
    steady = next((one for one in view.summaries if one.name == "steady state"), view.summaries[0])
    ttft, tpot = steady.latency("ttft"), steady.latency("tpot")
    return RatePoint(
        label=label,
        concurrency=concurrency_of(run),
        offered_requests_per_s=view.summaries[0].offered_requests_per_s,
        ttft_p50=ttft.percentile(0.5),
        ttft_p95=ttft.percentile(0.95),
        tpot_p50=tpot.percentile(0.5),
        tpot_p95=tpot.percentile(0.95),
        output_tokens_per_s=steady.output_tokens_per_s,
        completed_requests_per_s=steady.completed_requests_per_s,
        good_requests_per_s=None if view.judgement is None else view.judgement.good_requests_per_s,
        ttft_parts=view.ttft_parts,
        verdict=None if view.online is None else view.online.validity.verdict,
    )


def _answer(points: Sequence[RatePoint]) -> str:
    best = max(
        (point for point in points if point.output_tokens_per_s is not None),
        key=_throughput,
        default=None,
    )
    if best is None:
        return "no run has a throughput"
    parts = [f"most output {units.format_number(_throughput(best))} tok/s ({best.label})"]
    good = max(
        (point for point in points if point.good_requests_per_s is not None),
        key=_goodput,
        default=None,
    )
    if good is not None:
        rate = units.format_number(_goodput(good))
        parts.append(f"most goodput within the SLO {rate} requests/s ({good.label})")
    return "; ".join(parts)


def _throughput(point: RatePoint) -> float:
    return 0.0 if point.output_tokens_per_s is None else point.output_tokens_per_s.value


def _goodput(point: RatePoint) -> float:
    return 0.0 if point.good_requests_per_s is None else point.good_requests_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportAnswer(Answer):
    """The page, its size, and exported charts."""

    report_file: str
    size_bytes: int
    exported: tuple[str, ...]
    cautions: tuple[Caution, ...]
    """With several runs: why their curves are not of one workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Runs, and where their page is written."""

    runs: Runs
    judged: show.Judged = field(default_factory=show.Judged)
    out: Path | None = option(
        None,
        "The page. [report.html in the first run's folder]",
        is_common=True,
        metavar="FILE",
        flags=("--out", "--report"),
    )
    export: Path | None = option(
        None, "Folder for each chart as SVG and CSV.", is_common=True, metavar="DIR"
    )
    given: frozenset[str] = frozenset()


def report(question: Report) -> ReportAnswer:
    """Write one offline HTML page of runs: sweeps side by side, runs of requests by rate.

    Raises
    ------
    RecordError, SpecError
        A run cannot be read, or the page cannot be written.
    """
    request = shown_of(question.runs)
    first = request.paths[0]
    path = question.out or (first if first.is_dir() else first.parent) / provenance.REPORT_NAME
    runs = load_runs(request, takes_partial=True)
    if request_answer.are_of_requests(runs):
        judged = show.question_of(question.judged)
        charts, cautions = write_request_page(runs, request.paths, judged, path)
    else:
        view = sweep_view(analyses_of(request, runs), report_path=path)
        html.write_page(sweep_page.page_of(view), path)
        charts, cautions = catalogue.charts_of(view), ()
    exported = (
        ()
        if question.export is None
        else tuple(str(file) for file in svg.export_charts(charts, question.export))
    )
    return ReportAnswer(
        report_file=str(path),
        size_bytes=path.stat().st_size,
        exported=exported,
        cautions=cautions,
    )


def report_page(answer: ReportAnswer) -> Page:
    """A page that tells where the report is."""
    charts = f", {len(answer.exported)} files of charts exported" if answer.exported else ""
    return Page(
        title=f"REPORT {answer.report_file} ({units.format_bytes(answer.size_bytes)}, offline){charts}",
        cautions=answer.cautions,
    )
