"""Which page tells of one run of requests, or of several?"""

from collections.abc import Sequence
from pathlib import Path

from inferometer.cli.rate_view import rate_view
from inferometer.cli.request_answer import views_of
from inferometer.cli.request_view import RequestQuestion
from inferometer.errors import SpecError
from inferometer.records.types import Run
from inferometer.report import rate_html, request_html


def write_request_page(runs: Sequence[Run], paths: Sequence[Path], question: RequestQuestion, path: Path, *, export: Path | None) -> None:
    """The page of a run, or of several by their rate.

    Raises
    ------
    SpecError
        Charts were to be exported, which those of sweeps are alone.
    RecordError
        The page cannot be written.
    """
    if export is not None:
        raise SpecError("charts of runs of requests are not exported", where="--export", try_="the page itself, without --export")
    views = views_of(runs, paths, question, path)
    if len(runs) > 1:
        rate_html.write_rate_report(rate_view(runs, views, [str(one) for one in paths]), path)
    else:
        request_html.write_request_report(views[0], path)


__all__ = ["write_request_page"]
