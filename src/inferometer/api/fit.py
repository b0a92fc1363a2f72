"""inferometer fit.

Which step-time model do runs carry, or which server do load tests show, and how far may it be
trusted?
"""

from dataclasses import dataclass, field
from pathlib import Path

from inferometer.api.answer import Answer, Paged
from inferometer.api.fit_views import fit_page, refused_page, server_fit_page
from inferometer.api.fitted_servers import fit_load_tests, fit_rate_statistics, rate_statistics
from inferometer.api.fitted_steps import HeldOutStatistic, fit_served, fit_steps
from inferometer.api.known_facts import ServerKnowledge
from inferometer.api.published import TableChoice
from inferometer.api.question import option
from inferometer.api.runs import RunRequest, Runs, request_of
from inferometer.errors import EXIT_ANSWERED, EXIT_UNDECIDED, RecordError
from inferometer.fit.loads.estimation import Refusal
from inferometer.fit.loads.server_fit import SERVER_FIT_NAME, ServerFit
from inferometer.fit.sweeps.regression import Unidentified, unidentified
from inferometer.perfmodel import steptime
from inferometer.report.page import Page


@dataclass(frozen=True, slots=True, kw_only=True)
class FitAnswer(Answer):
    """The fitted model, or server, and the file that holds it."""

    model_file: str | None
    """None where the fit was refused: nothing is written."""
    model: steptime.StepTimeModel | None
    """Fit of sweeps; None for load tests."""
    server: ServerFit | None = None
    """Fit of load tests."""
    unidentified: tuple[Unidentified, ...] = ()
    """Parameters that the data do not tell, or would have beyond the device's peak, and what to
    measure or to check."""
    held_out: tuple[HeldOutStatistic, ...] = ()
    """Errors on the held-out part of a published serving run."""
    refusal: Refusal | None = None
    """Why load tests were not fitted (UNDECIDED, exit 11): the residual is too large."""

    @property
    def exit_code(self) -> int:
        """11 where the fit was refused."""
        return EXIT_ANSWERED if self.refusal is None else EXIT_UNDECIDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Runs to fit, and facts about their measurements."""

    runs: Runs
    choice: TableChoice = field(default_factory=TableChoice)
    knowledge: ServerKnowledge = field(default_factory=ServerKnowledge)
    load: bool = option(
        False,
        "The runs are load tests of one server: find its step times and limits.",
        "Runs",
        is_common=True,
    )
    force: bool = option(False, "With --load: take INVALID load tests too.", "Runs")
    out: Path | None = option(
        None,
        "The fit's file. [step_time.json or server_fit.json beside the first run]",
        is_common=True,
        metavar="FILE",
    )
    given: frozenset[str] = frozenset()


def answer_page(answer: FitAnswer) -> Page:
    """A page on a fit; None for published serving runs without a held-out part."""
    if answer.model is not None:
        return fit_page(answer.model, answer.model_file or "")
    if answer.server is not None:
        return server_fit_page(answer.server, answer.model_file or "")
    return Page(
        title="Undecided" if answer.refusal is None else f"Undecided: {answer.refusal.reason}"
    )


def fit(question: Fit) -> Paged[FitAnswer]:
    """Fit a step-time model to runs of one model on one engine, or a server to load tests.

    Raises
    ------
    RecordError, SpecError
        A run or a table cannot be read.
    ModelError
        They carry no model.
    """
    question.knowledge.check_is_for(is_load=question.load)
    request = request_of(question.runs)
    first = request.paths[0]
    folder = first if first.is_dir() else first.parent
    path = question.out or folder / (SERVER_FIT_NAME if question.load else steptime.FIT_NAME)
    if question.load:
        return _of_loads(question, request, path)
    known, choice = question.knowledge, question.choice
    rates = rate_statistics(request.paths)
    served = (
        fit_rate_statistics(request, choice, known, rates)
        if rates
        else None
        if known.kernels is None
        else fit_served(request, known)
    )
    model = fit_steps(request, choice) if served is None else served.model
    held_out = () if served is None else served.held_out
    _save(model, path)
    answer = FitAnswer(
        model_file=str(path), model=model, unidentified=unidentified(model), held_out=held_out
    )
    return Paged(answer, (fit_page(model, str(path), served),))


def _of_loads(question: Fit, request: RunRequest, path: Path) -> Paged[FitAnswer]:
    judged = fit_load_tests(
        request, question.knowledge, n_tensor=question.choice.tp, forced=question.force
    )
    if judged.refusal is not None:
        answer = FitAnswer(model_file=None, model=None, refusal=judged.refusal)
        return Paged(answer, (refused_page(judged.fit, judged.refusal),))
    _save(judged.fit, path)
    answer = FitAnswer(model_file=str(path), model=None, server=judged.fit)
    return Paged(answer, (server_fit_page(judged.fit, str(path)),))


def _save(fit: steptime.StepTimeModel | ServerFit, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fit.save(path)
    except OSError as error:
        raise RecordError(
            f"the fit cannot be written: {error.strerror}",
            where=str(path),
            try_="--out with another file",
        ) from error
