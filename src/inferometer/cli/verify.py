"""inferometer verify: is it true what was predicted?

Sealed before, measured after, kept in a ledger.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from inferometer import suggestions
from inferometer.api import verify_view
from inferometer.api.sweep_view import REPORT_NAME
from inferometer.cli import answer, terminal, verify_elsewhere, verify_replaying, verify_sealing
from inferometer.errors import (
    EXIT_ANSWERED,
    EXIT_SLO_MISSED,
    EXIT_UNDECIDED,
    MeasureError,
    RecordError,
    SpecError,
)
from inferometer.report import verify_html
from inferometer.spec import verify_plan
from inferometer.verify import checking, score, seals

LEDGER: Final = Path("ledger/ledger.jsonl")
_EXIT_CODES: Final[dict[checking.CheckVerdict, int]] = {
    "held": EXIT_ANSWERED,
    "wrong": EXIT_SLO_MISSED,
    "undecided": EXIT_UNDECIDED,
    "open": EXIT_UNDECIDED,
    "INVALID": MeasureError.exit_code,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyAnswer:
    """What was predicted and what came of it; the verdict is that of all claims together."""

    verdict: checking.CheckVerdict
    experiment: score.Experiment
    ledger: str
    folder: str
    report: str | None
    """None where nothing was measured yet."""
    next_command: str
    """'' where nothing is open."""


ANSWER = VerifyAnswer


@click.command(
    "verify",
    short_help="Is it true what was predicted?",
    epilog="""\b
Examples (docs/verify.md has the plans):
  inferometer verify plan.toml --seal-only --out runs/proof
  inferometer verify plan.toml --url http://127.0.0.1:8000 --out runs/proof
  inferometer verify points.toml --check runs/held-out --out runs/points

\b
Exit codes: 0 all predictions held, and the promise was kept; 10 one was wrong, or the promise was missed; 11 undecided, or some are open;
3 a measurement was INVALID and proves nothing; 4 a seal, a ledger or a run cannot be trusted.
""",
)
@click.argument("plan_path", metavar="PLAN", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--url", help="Replay the plan's loads against this server.")
@click.option(
    "--check",
    "runs",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Measured elsewhere; repeatable.",
)
@click.option("--seal-only", is_flag=True, help="Predict and seal; measure later.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the experiment; the same one goes on.",
)
@click.option(
    "--ledger",
    "ledger_path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=LEDGER,
    show_default=True,
    help="Where seals and what came of them are kept.",
)
@answer.json_option
def command(
    plan_path: Path,
    url: str | None,
    runs: tuple[Path, ...],
    out: Path | None,
    ledger_path: Path,
    *,
    seal_only: bool,
    as_json: bool,
) -> None:
    """Is it true what the simulator, a fit or a datasheet says of the loads, or the points, of PLAN?

    The predictions are sealed (hashed, dated, with the code's version) in the ledger before the
    first byte is sent; then the very same requests are replayed and compared, intervals and all.
    The first valid measurement of a claim counts. The same command goes on.
    """
    if (url is not None) + bool(runs) + seal_only != 1:
        raise SpecError(
            "nothing, or several things, to do",
            where="--url, --check, --seal-only",
            allowed="one of them",
            try_="--seal-only",
        )
    plan = verify_plan.read_plan(plan_path)
    if url is not None and plan.kind == "sweep":
        raise SpecError(
            "a server's steps cannot be timed from outside",
            where="--url",
            allowed="--check with a run of inferometer sweep",
        )
    if url is not None:
        verify_replaying.check_url(url)
    folder = out or _default_folder(plan)
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
        sealed.record(verify_elsewhere.measured_elsewhere(sealed, runs))
    said = _answer(sealed, plan_path, ledger_path, url)
    answer.give(
        said,
        as_json=as_json,
        show=lambda given: verify_html.verify_text(
            verify_view.view_of(given.experiment, given.next_command)
        ),
    )
    sys.exit(EXIT_ANSWERED if seal_only else _exit_code(said))


def _replay(sealed: verify_sealing.Sealed, url: str) -> None:
    """Replay every load that is open, one after the other; each is in the ledger when it is done."""
    standing = sealed.standing()
    if not standing.open_questions:
        terminal.talk("all of it was measured before: this is what the ledger says")
    for index, asked in enumerate(sealed.loads):
        if asked.question.at in standing.open_questions:
            n_tries = len(standing.runs_of(asked.question.at))
            folder = sealed.folder / (
                f"load-{index:02d}" + (f"-try-{n_tries + 1}" if n_tries else "")
            )
            sealed.begin(asked.question.at, folder)
            sealed.record([verify_replaying.replay(sealed, url, asked, folder)])


def _answer(
    sealed: verify_sealing.Sealed, plan_path: Path, ledger_path: Path, url: str | None
) -> VerifyAnswer:
    """Where the experiment stands; its page is written where something was measured."""
    standing = sealed.standing()
    how = ("--url", url or "URL") if sealed.loads else ("--check", "RUN")
    next_ = suggestions.command(
        "verify", plan_path, "--out", sealed.folder, "--ledger", ledger_path, *how
    )
    following = next_ if standing.open_questions else ""
    report = sealed.folder / REPORT_NAME if standing.measured else None
    if report is not None:
        verify_html.write_verify_report(verify_view.view_of(standing, following), report)
    return VerifyAnswer(
        verdict=standing.verdict,
        experiment=standing,
        ledger=str(ledger_path),
        folder=str(sealed.folder),
        report=None if report is None else str(report),
        next_command=following,
    )


def _exit_code(said: VerifyAnswer) -> int:
    """A promise that was missed counts as one, rightly predicted or not; before it comes only what is INVALID."""
    outcomes = [state.outcome for state in said.experiment.promises]
    is_missed = any(outcome is not None and outcome.measured == "missed" for outcome in outcomes)
    return EXIT_SLO_MISSED if is_missed and said.verdict != "INVALID" else _EXIT_CODES[said.verdict]


def _default_folder(plan: verify_plan.VerifyPlan) -> Path:
    """The same plan, the same folder, so that the same command goes on."""
    name = "".join(
        letter if letter.isalnum() or letter in "._-" else "-" for letter in plan.name.lower()
    )
    return Path("runs") / f"verify-{name}-{seals.plan_sha256(plan)[:6]}"
