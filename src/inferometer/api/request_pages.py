"""Which page tells of one run of requests, or of several?"""

import math
from collections.abc import Sequence
from pathlib import Path

from inferometer import __version__
from inferometer.api.request_answer import views_of
from inferometer.api.request_view import RequestQuestion
from inferometer.api.run_titles import common_title, traffic_labels
from inferometer.records.request_summaries import concurrency_of
from inferometer.records.types import Run
from inferometer.report import html, rate_page, request_page
from inferometer.report.charts.catalogue import request_charts_of
from inferometer.report.charts.plot import Chart
from inferometer.report.decision_views import RatePoint, RateView
from inferometer.report.request_views import RequestReportView
from inferometer.units import format_number


def write_request_page(
    runs: Sequence[Run], paths: Sequence[Path], question: RequestQuestion, path: Path
) -> tuple[Chart, ...]:
    """Write the page of a run, or of several by their rate; gives back its charts.

    Raises
    ------
    RecordError
        The page cannot be written.
    """
    views = views_of(runs, paths, question, path)
    if len(runs) > 1:
        view = rate_view(runs, views, [str(one) for one in paths])
        html.write_page(rate_page.rate_page_of(view), path)
        return rate_page.rate_charts_of(view)
    html.write_page(request_page.request_page_of(views[0]), path)
    return request_charts_of(views[0])


# What is shown of several runs of requests side by side: how latency, throughput and goodput go
# with the rate?


def rate_view(
    runs: Sequence[Run], views: Sequence[RequestReportView], paths: Sequence[str]
) -> RateView:
    """The runs as points of curves.

    Numbers are those of the steady state where a run has one of its own, else of the whole run.
    """
    labels = traffic_labels(runs)
    points = [
        _point(run, view, label) for run, view, label in zip(runs, views, labels, strict=True)
    ]
    ordered = tuple(
        sorted(
            points, key=lambda point: point.concurrency or point.offered_requests_per_s or math.inf
        )
    )
    judgement = views[0].judgement
    return RateView(
        title=common_title(runs),
        subtitle=f"{len(runs)} runs of requests"
        + ("" if judgement is None else f" · {judgement.objective.text}"),
        answer=_answer(ordered),
        objective="" if judgement is None else judgement.objective.text,
        points=ordered,
        files=tuple(zip(labels, paths, strict=True)),
        tool_version=__version__,
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
    parts = [f"most output {format_number(_throughput(best))} tok/s ({best.label})"]
    good = max(
        (point for point in points if point.good_requests_per_s is not None),
        key=_goodput,
        default=None,
    )
    if good is not None:
        rate = format_number(_goodput(good))
        parts.append(f"most goodput within the SLO {rate} requests/s ({good.label})")
    return "; ".join(parts)


def _throughput(point: RatePoint) -> float:
    return 0.0 if point.output_tokens_per_s is None else point.output_tokens_per_s.value


def _goodput(point: RatePoint) -> float:
    return 0.0 if point.good_requests_per_s is None else point.good_requests_per_s
