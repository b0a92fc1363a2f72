"""inferometer verify: is it true what was predicted?

Sealed before, measured after, in a ledger.
"""

import sys
from typing import Final

import click

from inferometer.api.verify import Verify, VerifyAnswer, verify
from inferometer.cli.answer import give_answer
from inferometer.cli.flags import QuestionCommand, asks
from inferometer.errors import EXIT_ANSWERED, EXIT_SLO_MISSED, EXIT_UNDECIDED, MeasureError
from inferometer.verify import claims

ANSWER = VerifyAnswer
_EXIT_CODES: Final[dict[claims.CheckVerdict, int]] = {
    "held": EXIT_ANSWERED,
    "wrong": EXIT_SLO_MISSED,
    "undecided": EXIT_UNDECIDED,
    "open": EXIT_UNDECIDED,
    "INVALID": MeasureError.exit_code,
}


@click.command(
    "verify",
    cls=QuestionCommand,
    epilog="""\b
Examples (docs/verify.md has the plans):
  inferometer verify plan.toml --seal-only --out runs/proof
  inferometer verify plan.toml --url http://127.0.0.1:8000 --out runs/proof
  inferometer verify points.toml --check runs/held-out --out runs/points

\b
Exit codes: 0 all predictions held and the SLO was met; 10 one was wrong or the SLO was missed; 11 undecided;
3 a measurement was INVALID and proves nothing; 4 a seal, a ledger or a run cannot be trusted.
""",
)
@asks(Verify)
def command(question: Verify, *, as_json: bool) -> None:
    """Is it true what the simulator, a fit or a datasheet says of the loads, or the points, of PLAN?

    The predictions are sealed (hashed, dated, with the code's version) in the ledger before the
    first byte is sent; then the very same requests are replayed and compared, intervals and all.
    The first valid measurement of a claim counts. The same command goes on.
    """
    answer = give_answer(verify, question, as_json=as_json)
    sys.exit(EXIT_ANSWERED if question.seal_only else _exit_code(answer))


def _exit_code(answer: VerifyAnswer) -> int:
    """An SLO that was missed counts as one, rightly predicted or not; before it comes only what is INVALID."""
    outcomes = [state.outcome for state in answer.experiment.promises]
    is_missed = any(outcome is not None and outcome.measured == "missed" for outcome in outcomes)
    return (
        EXIT_SLO_MISSED
        if is_missed and answer.verdict != "INVALID"
        else _EXIT_CODES[answer.verdict]
    )
