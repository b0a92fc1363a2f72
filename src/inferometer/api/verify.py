"""Is it true what was predicted? Sealed before, measured after, in a ledger."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

from inferometer import suggestions
from inferometer.api import (
    diagnose_check,
    verify_loads,
    verify_measured,
    verify_sealing,
    verify_view,
)
from inferometer.api.answer import Answer
from inferometer.api.progress import talk
from inferometer.api.provenance import REPORT_NAME
from inferometer.api.question import SERVER, Option, option
from inferometer.errors import (
    EXIT_ANSWERED,
    EXIT_SLO_MISSED,
    EXIT_UNDECIDED,
    MeasureError,
    RecordError,
    SpecError,
)
from inferometer.inputs import plans
from inferometer.inputs.types import Caution
from inferometer.report import html
from inferometer.report.charts.predicted import verified_charts
from inferometer.report.page import Chip, Page, Section, lines_of
from inferometer.report.tables import VERIFY_DEFINITIONS, VerifyView, claims_table, promises_table
from inferometer.verify import claims, ledger, seals
from inferometer.verify.ledger import LEDGER


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyAnswer(Answer):
    """Predictions and their outcomes; the verdict is the worst of all claims."""

    table = "experiment.claims"

    verdict: claims.CheckVerdict
    experiment: ledger.Experiment
    ledger: str
    folder: str
    report_file: str | None
    """None where nothing was measured yet."""
    next_command: str
    """'' where nothing is open."""
    seal_only: bool
    """Was it a command that only seals?"""
    cautions: tuple[Caution, ...] = ()

    @property
    def exit_code(self) -> int:
        """3 for INVALID, else that of a missed SLO (even if predicted), else of the claims."""
        if self.seal_only:
            return EXIT_ANSWERED
        outcomes = [state.outcome for state in self.experiment.promises]
        is_missed = any(one is not None and one.measured == "missed" for one in outcomes)
        if is_missed and self.verdict != "INVALID":
            return EXIT_SLO_MISSED
        return _EXIT_CODES[self.verdict]


_EXIT_CODES: Final[dict[claims.CheckVerdict, int]] = {
    "held": EXIT_ANSWERED,
    "wrong": EXIT_SLO_MISSED,
    "undecided": EXIT_UNDECIDED,
    "open": EXIT_UNDECIDED,
    "INVALID": MeasureError.exit_code,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """A plan, and what to do: one of ``url``, ``check`` and ``seal_only``."""

    plan: Annotated[Path, Option("", is_argument=True)]
    url: str | None = option(
        None, "Replay the plan's loads against this server.", "Runs", is_common=True, parse=SERVER
    )
    check: tuple[Path, ...] = option(
        (), "A run that was measured elsewhere; repeatable.", "Runs", is_common=True, metavar="RUN"
    )
    seal_only: bool = option(False, "Predict and seal only; measure later.", "Runs", is_common=True)
    out: Path | None = option(
        None, "Folder of the experiment; the same one goes on.", is_common=True, metavar="DIR"
    )
    ledger: Path = option(
        LEDGER, "Where seals and what came of them are stored.", is_common=True, metavar="FILE"
    )
    given: frozenset[str] = frozenset()


def verify(question: Verify) -> VerifyAnswer:
    """Seal the predictions of a plan, then compare them with measurements.

    Raises
    ------
    SpecError
        The plan cannot be read, or what is to be done is not clear.
    RecordError
        A seal, a ledger or a run cannot be trusted.
    MeasureError
        The server is not there.
    """
    url, runs, seal_only = question.url, question.check, question.seal_only
    plan_path, ledger_path = question.plan, question.ledger
    is_change = diagnose_check.is_change(plan_path)
    plan = None if is_change else plans.read_plan(plan_path)
    if (url is not None) + bool(runs) + seal_only != 1:
        raise SpecError(
            ("several" if url or runs or seal_only else "no") + " ways to verify are given",
            where="--url, --check, --seal-only",
            allowed=(
                "one of them: --url URL measures now, --check RUN takes what was measured elsewhere,"
                " --seal-only predicts now and measures later"
            ),
            try_=suggestions.command("verify", plan_path, "--seal-only"),
        )
    if plan is None:
        standing = diagnose_check.checked_change(plan_path, ledger_path, url, runs)
        how = ("--check", "RUN") if url is None else ("--url", url)
        again = suggestions.command("verify", plan_path, *how, "--ledger", ledger_path)
        return _answer_of(standing, plan_path, question, again)
    if url is not None and plan.kind == "sweep":
        raise SpecError(
            "a server's steps cannot be timed from outside",
            where="--url",
            allowed="--check with a run of inferometer sweep",
        )
    if url is not None:
        verify_measured.check_url(url)
    folder = question.out or _default_folder(plan)
    if runs and not (folder / seals.SEAL_NAME).exists():
        raise RecordError(
            "nothing was sealed here",
            where=str(folder),
            try_=suggestions.command("verify", plan_path, "--seal-only", "--out", folder),
        )
    sealed = verify_sealing.sealed(plan, folder, ledger_path)
    if url is not None:
        _replay(sealed, url)
    elif runs:
        sealed.record(verify_measured.measured_elsewhere(sealed, runs))
    return _answer(sealed, question)


def verify_page(answer: VerifyAnswer) -> Page:
    """A page of the experiment, claim by claim."""
    page = verify_page_of(verify_view.view_of(answer.experiment, answer.next_command))
    return replace(page, cautions=answer.cautions)


def _replay(sealed: verify_sealing.Sealed, url: str) -> None:
    """Send every open load in turn; each is entered in the ledger when it is done."""
    standing = sealed.standing()
    if not standing.open_questions:
        talk("all of it was measured before: this is what the ledger says")
    for index, asked in enumerate(sealed.loads):
        if asked.question.at in standing.open_questions:
            n_tries = len(standing.runs_of(asked.question.at))
            folder = sealed.folder / (
                f"load-{index:02d}" + (f"-try-{n_tries + 1}" if n_tries else "")
            )
            sealed.begin(asked.question.at, folder)
            sealed.record([verify_measured.replay(sealed, url, asked, folder)])


def _answer(sealed: verify_sealing.Sealed, question: Verify) -> VerifyAnswer:
    """State of a plan's experiment."""
    how = ("--url", question.url or "URL") if sealed.loads else ("--check", "RUN")
    next_ = suggestions.command(
        "verify", question.plan, "--out", sealed.folder, "--ledger", question.ledger, *how
    )
    answer = _answer_of(sealed.standing(), sealed.folder, question, next_)
    return replace(
        answer,
        cautions=verify_loads.too_few_requests(sealed.plan.traffic, sealed.loads, sealed.seal),
    )


def _answer_of(
    standing: ledger.Experiment, folder: Path, question: Verify, next_command: str
) -> VerifyAnswer:
    """State of an experiment; its page is written once something was measured."""
    following = next_command if standing.open_questions else ""
    report = folder / REPORT_NAME if standing.measured else None
    if report is not None:
        html.write_page(verify_page_of(verify_view.view_of(standing, following)), report)
    return VerifyAnswer(
        verdict=standing.verdict,
        experiment=standing,
        ledger=str(question.ledger),
        folder=str(folder),
        report_file=None if report is None else str(report),
        next_command=following,
        seal_only=question.seal_only,
    )


def _default_folder(plan: plans.VerifyPlan) -> Path:
    """Default folder: the same for the same plan, so that the same command resumes."""
    name = "".join(
        letter if letter.isalnum() or letter in "._-" else "-" for letter in plan.name.lower()
    )
    return Path("runs") / f"verify-{name}-{seals.plan_sha256(plan)[:6]}"


def verify_page_of(view: VerifyView) -> Page:
    """A page of predicted against measured, then every number, then the seals."""
    tables = tuple(
        table for table in (claims_table(view), promises_table(view)) if table is not None
    )
    charts = verified_charts(view)
    return Page(
        title=view.answer,
        subtitle=view.subtitle,
        chips=(Chip(verdict=view.verdict, text=view.verdict),),
        table=tables[0] if tables else None,
        chart=charts[0] if charts else None,
        lines=lines_of(
            ("WHY", view.why),
            ("TRUST", f"{view.trust}; sealed {view.seal}"),
            ("DATA", view.measured),
            ("NEXT", view.next),
        ),
        tool_version=view.tool_version,
        sections=(
            Section(
                id="predicted",
                title="Was it so?",
                nav="Predicted vs measured",
                charts=charts,
                tables=tables,
            ),
            Section(
                id="method",
                title="What do the words mean?",
                nav="Method",
                definitions=VERIFY_DEFINITIONS,
            ),
            Section(
                id="provenance",
                title="What was sealed, and what was measured?",
                nav="Provenance",
                groups=view.facts,
            ),
        ),
    )
