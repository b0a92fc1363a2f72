"""What does a load test answer: may it be trusted, how did the server do, and with which exit code?"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import RenderableType

from inferometer.cli.load_running import LoadedRun
from inferometer.cli.request_answer import RequestRunAnswer, answer_of
from inferometer.errors import EXIT_ANSWERED, EXIT_SLO_MISSED, EXIT_UNDECIDED, MeasureError
from inferometer.records.load_types import Validity
from inferometer.report.request_terminal import request_report_text
from inferometer.report.request_views import RequestReportView

_EXIT_CODES: Final = {None: EXIT_ANSWERED, "met": EXIT_ANSWERED, "missed": EXIT_SLO_MISSED, "undecided": EXIT_UNDECIDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAnswer:
    """How the server did, after whether that can be trusted."""

    validity: Validity | None
    requests: RequestRunAnswer
    is_interrupted: bool
    """Somebody stopped it before its end; the same command goes on."""
    record: str


def load_answer(loaded: LoadedRun, view: RequestReportView, folder: Path) -> LoadAnswer:
    """The answer of a test that was made."""
    return LoadAnswer(
        validity=loaded.run.manifest.validity, requests=answer_of(view), is_interrupted=loaded.is_interrupted, record=str(folder)
    )


def load_text(view: RequestReportView) -> RenderableType:
    """The verdict on the test itself, then its numbers."""
    return request_report_text(view)


def exit_code(answer: LoadAnswer) -> int:
    """INVALID counts before any objective."""
    if answer.validity is not None and answer.validity.verdict == "INVALID":
        return MeasureError.exit_code
    judgement = answer.requests.judgement
    return _EXIT_CODES[None if judgement is None else judgement.verdict]


__all__ = ["LoadAnswer", "exit_code", "load_answer", "load_text"]
