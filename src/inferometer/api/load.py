"""What does a load test answer?"""

from dataclasses import dataclass
from pathlib import Path

from inferometer.api import load_run, provenance
from inferometer.api.answer import Answer, Paged
from inferometer.api.load_sending import EndedLoad
from inferometer.api.progress import talk
from inferometer.api.request_answer import RequestRunAnswer, answer_of
from inferometer.api.request_view import RequestQuestion, request_view
from inferometer.errors import EXIT_OF_SLO, MeasureError
from inferometer.records.exports import FILE_NAMES
from inferometer.records.exports.writing import exported_text
from inferometer.records.reading import read_run
from inferometer.records.request_summaries import judge_objective
from inferometer.records.run_folder import replace_file
from inferometer.records.types import Run
from inferometer.report import html
from inferometer.report.page import Page
from inferometer.report.request_page import request_page_of
from inferometer.stats.estimate import worst_verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAnswer(Answer):
    """Results of a load test; their validity is in ``requests.online.validity``."""

    table = "requests.summaries"

    requests: RequestRunAnswer
    is_interrupted: bool
    """Somebody stopped it before its end; the same command resumes."""
    record: str
    report_file: str | None = None
    """The page; None where none was written."""

    @property
    def exit_code(self) -> int:
        """3 for INVALID, else the exit code of the worst SLO verdict."""
        requests = self.requests
        online, judgement = requests.online, requests.judgement
        if online is not None and online.validity.verdict == "INVALID":
            return MeasureError.exit_code
        judged = [one.judgement for one in requests.class_judgements]
        judged += [] if judgement is None else [judgement]
        return EXIT_OF_SLO[worst_verdict(one.verdict for one in judged)]


def answer_of_test(ended: EndedLoad) -> Paged[LoadAnswer]:
    """Decode, judge and store a test that is over; its exports are written behind the answer.

    Raises
    ------
    MeasureError
        A client process died; what came is stored.
    RecordError
        The folder cannot be read or written.
    """
    objective = ended.objective
    percentiles = () if objective is None else objective.percentile_fractions
    loaded = load_run.loaded_run(ended.sent, ended.folder, percentiles)
    if ended.traced is not None and not loaded.is_interrupted:
        load_run.send_telemetry(ended.traced, loaded.run, ended.folder)
    has_page = ended.has_report and not loaded.is_interrupted
    report = ended.folder / provenance.REPORT_NAME if has_page else None
    question = RequestQuestion(objective=objective, class_names=ended.class_names)
    view = request_view(loaded.run, question, path=ended.folder, report_path=report)
    page = request_page_of(view)
    if report is not None:
        html.write_page(page, report)
    answer = LoadAnswer(
        requests=answer_of(view),
        is_interrupted=loaded.is_interrupted,
        record=str(ended.folder),
        report_file=None if report is None else str(report),
    )

    def finish() -> None:
        if loaded.is_interrupted:
            raise KeyboardInterrupt
        _write_exports(loaded.run, ended)

    return Paged(answer, (page,), finish)


def _write_exports(run: Run, ended: EndedLoad) -> None:
    """Write the run in each format that was requested, into its folder.

    What stands there of an earlier answer is replaced.
    """
    judgement = None if ended.objective is None else judge_objective(run, ended.objective)
    for format_ in ended.exports:
        path = ended.folder / FILE_NAMES[format_]
        replace_file(path, exported_text(run, format_, judgement=judgement).encode())
        talk(f"as {format_}: {path}")


def load_page(answer: LoadAnswer) -> Page:
    """A page on the run, which is read again."""
    judgement = answer.requests.judgement
    question = RequestQuestion(objective=None if judgement is None else judgement.objective)
    folder, file = Path(answer.record), answer.report_file
    report_path = None if file is None else Path(file)
    view = request_view(read_run(folder), question, path=folder, report_path=report_path)
    return request_page_of(view)
