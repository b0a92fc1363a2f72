"""What does a load test answer, and with which exit code?"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inferometer.cli.load_running import LoadedRun
from inferometer.cli.request_answer import RequestRunAnswer, answer_of
from inferometer.errors import EXIT_ANSWERED, EXIT_SLO_MISSED, EXIT_UNDECIDED, MeasureError
from inferometer.report.request_views import RequestReportView

_EXIT_CODES: Final = {None: EXIT_ANSWERED, "met": EXIT_ANSWERED, "missed": EXIT_SLO_MISSED, "undecided": EXIT_UNDECIDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAnswer:
    """How the server did; whether that can be trusted is in ``requests.online.validity``."""

    requests: RequestRunAnswer
    is_interrupted: bool
    """Somebody stopped it before its end; the same command goes on."""
    record: str


def load_answer(loaded: LoadedRun, view: RequestReportView, folder: Path) -> LoadAnswer:
    """The answer of a test that was made."""
    return LoadAnswer(requests=answer_of(view), is_interrupted=loaded.is_interrupted, record=str(folder))


def exit_code(loaded: LoadedRun, view: RequestReportView) -> int:
    """INVALID counts before any objective."""
    validity, judgement = loaded.run.manifest.validity, view.judgement
    if validity is not None and validity.verdict == "INVALID":
        return MeasureError.exit_code
    return _EXIT_CODES[None if judgement is None else judgement.verdict]


__all__ = ["LoadAnswer", "exit_code", "load_answer"]
