"""What does a load test answer, and with which exit code?

The second half of ``inferometer load``.
"""

import sys
from dataclasses import dataclass
from typing import Final

from inferometer.api.request_answer import RequestRunAnswer, answer_of
from inferometer.api.request_view import REPORT_NAME, RequestQuestion, request_view
from inferometer.cli import load_exports, load_running
from inferometer.cli.answer import give
from inferometer.cli.load import AnswerableLoad
from inferometer.errors import EXIT_ANSWERED, EXIT_SLO_MISSED, EXIT_UNDECIDED, MeasureError
from inferometer.report import request_html
from inferometer.report.request_terminal import request_report_text
from inferometer.report.request_views import RequestReportView
from inferometer.spec.objectives import ObjectiveSpec

_EXIT_CODES: Final = {
    None: EXIT_ANSWERED,
    "met": EXIT_ANSWERED,
    "missed": EXIT_SLO_MISSED,
    "undecided": EXIT_UNDECIDED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAnswer:
    """How the server did; whether that can be trusted is in ``requests.online.validity``."""

    requests: RequestRunAnswer
    is_interrupted: bool
    """Somebody stopped it before its end; the same command goes on."""
    record: str
    report: str | None = None
    """The page; None where none was written."""


ANSWER = LoadAnswer


def answer(made: AnswerableLoad) -> None:
    """Decode, judge and store the test, and say how it went."""
    loaded = load_running.loaded_run(made.sent, made.folder, _percentiles(made.objective))
    report = made.folder / REPORT_NAME if made.has_report and not loaded.is_interrupted else None
    question = RequestQuestion(objective=made.objective, class_names=made.class_names)
    view = request_view(loaded.run, question, path=made.folder, report_path=report)
    if report is not None:
        request_html.write_request_report(view, report)
    said = LoadAnswer(
        requests=answer_of(view),
        is_interrupted=loaded.is_interrupted,
        record=str(made.folder),
        report=None if report is None else str(report),
    )
    give(said, as_json=made.as_json, show=lambda _: request_report_text(view))
    if loaded.is_interrupted:
        raise KeyboardInterrupt
    load_exports.write_exports(loaded.run, made)
    sys.exit(_exit_code(loaded, view))


def _percentiles(objective: ObjectiveSpec | None) -> tuple[float, ...]:
    return () if objective is None else objective.percentile_fractions


def _exit_code(loaded: load_running.LoadedRun, view: RequestReportView) -> int:
    """INVALID counts before any objective."""
    validity, judgement = loaded.run.manifest.validity, view.judgement
    if validity is not None and validity.verdict == "INVALID":
        return MeasureError.exit_code
    return _EXIT_CODES[None if judgement is None else judgement.verdict]
