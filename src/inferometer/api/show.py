"""inferometer show: what does a run say, in the terminal?"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferometer.api.answer import Answer, Paged
from inferometer.api.question import option
from inferometer.api.request_answer import RequestRunAnswer, answer_of, are_of_requests, views_of
from inferometer.api.request_view import RequestQuestion, server_device
from inferometer.api.runs import Runs, analyses_of, load_runs, shown_of
from inferometer.api.sweep_view import sweep_view
from inferometer.inputs.objectives import parse_objective
from inferometer.report.page import Page
from inferometer.report.request_page import request_page_of
from inferometer.report.sweep_page import page_of
from inferometer.report.views import SweepReportView


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """SLO, and device, by which runs of requests are judged."""

    slo: str | None = option(
        None,
        "Judge runs of requests: 'ttft:p95<500ms, tpot:p95<50ms'.",
        "Limits",
        is_common=True,
        metavar="TEXT",
    )
    server_hardware: str | None = option(
        None,
        "Device of the loaded server: add MFU and MBU by its own counters. [:bfloat16]",
        "Limits",
        is_common=True,
        metavar="ID[:FORMAT]",
    )


def question_of(options: Judged) -> RequestQuestion:
    """The SLO and the device by which runs are judged.

    Raises
    ------
    SpecError
        An objective that is none, or a device or format that is not known.
    """
    return RequestQuestion(
        objective=None if options.slo is None else parse_objective(options.slo, has_workflows=True),
        device=server_device(options.server_hardware),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowAnswer(Answer):
    """Results of a run; the same facts as in the report."""

    runs: tuple[str, ...]
    view: SweepReportView | None
    """View of sweeps; None for runs of requests."""
    requests: tuple[RequestRunAnswer, ...]
    """Results of runs of requests."""

    def rows(self) -> list[dict[str, Any]]:
        """Points of sweeps, as `sweep` prints them; rows of request runs, as `load` does."""
        if self.view is not None:
            return self.rows_of("view.points")
        return [
            {"run": run, **row}
            for number, run in enumerate(self.runs)
            for row in self.rows_of(f"requests.{number}.summaries")
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """The runs to show."""

    runs: Runs
    judged: Judged = field(default_factory=Judged)
    given: frozenset[str] = frozenset()


def show(question: Show) -> Paged[ShowAnswer]:
    """Results of runs: sweeps side by side, runs of requests one after the other.

    Raises
    ------
    RecordError, SpecError
        A run cannot be read.
    """
    request = shown_of(question.runs)
    runs = load_runs(request, takes_partial=True)
    names = tuple(str(path) for path in request.paths)
    if are_of_requests(runs):
        views = views_of(runs, request.paths, question_of(question.judged))
        answers = tuple(answer_of(view) for view in views)
        return Paged(
            ShowAnswer(runs=names, view=None, requests=answers), tuple(map(request_page_of, views))
        )
    view = sweep_view(analyses_of(request, runs))
    return Paged(ShowAnswer(runs=names, view=view, requests=()), (page_of(view),))


def show_pages(answer: ShowAnswer) -> tuple[Page, ...]:
    """Pages of the runs; runs of requests are read again."""
    if answer.view is not None:
        return (page_of(answer.view),)
    runs = tuple(Path(name) for name in answer.runs)
    return show(Show(runs=Runs(runs=runs))).pages
