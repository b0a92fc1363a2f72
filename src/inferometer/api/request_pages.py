"""Which page tells of one run of requests, or of several?"""

from collections.abc import Sequence
from pathlib import Path

from inferometer.api.rate_view import rate_view
from inferometer.api.request_answer import views_of
from inferometer.api.request_view import RequestQuestion
from inferometer.records.types import Run
from inferometer.report import rate_html, request_html
from inferometer.report.charts.catalogue import request_charts_of
from inferometer.report.charts.frame import ChartSpec


def write_request_page(
    runs: Sequence[Run], paths: Sequence[Path], question: RequestQuestion, path: Path
) -> tuple[ChartSpec, ...]:
    """Write the page of a run, or of several by their rate; gives back its charts.

    Raises
    ------
    RecordError
        The page cannot be written.
    """
    views = views_of(runs, paths, question, path)
    if len(runs) > 1:
        view = rate_view(runs, views, [str(one) for one in paths])
        rate_html.write_rate_report(view, path)
        return rate_html.rate_charts_of(view)
    request_html.write_request_report(views[0], path)
    return request_charts_of(views[0])
