"""How often were predictions right that were sealed before they were measured?"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import RenderableType

from inferometer import suggestions
from inferometer.api.answer import Answer, Lines
from inferometer.api.progress import talk
from inferometer.api.question import option
from inferometer.api.verify_view import ledger_markdown, ledger_text, short_markdown
from inferometer.errors import RecordError, SpecError
from inferometer.inputs.foreign_bytes import Door
from inferometer.records.run_folder import now_utc, replace_file
from inferometer.verify.ledger import (
    LEDGER,
    Score,
    anchor_of,
    read_ledger,
    refuse_future,
    refuse_without,
    score_of,
)

_DOCUMENT: Final = Door(noun="document", allowed="a text file in UTF-8", refusal=RecordError)

BEGIN: Final = "<!-- the ledger: made by `inferometer ledger --into README.md` -->"
END: Final = "<!-- the end of the ledger -->"
BEGIN_SHORT: Final = "<!-- the ledger in short: made by `inferometer ledger --into README.md` -->"
END_SHORT: Final = "<!-- the end of the short ledger -->"
_PLACES: Final = ((BEGIN, END, ledger_markdown), (BEGIN_SHORT, END_SHORT, short_markdown))
"""Marker lines of a document, and what is written between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerAnswer(Answer):
    """Contents of a ledger with an intact chain."""

    table = "score.metrics"

    ledger: str
    n_entries: int
    head_sha256: str | None
    """Hash of the last line, which shows later changes of any line; None: empty ledger."""
    score: Score
    verdicts: tuple[str, ...]
    """Verdicts of the experiments, in their order."""
    anchor: str | None
    """Number of lines and hash of the last, to show later whether the chain was rewritten.

    None: there is no ledger yet. That of a file without lines is 0 and zeros."""
    expected: str | None
    """The anchor that was given with --expect; the chain holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The ledger to count, and the form of the answer."""

    file: Path | None = option(None, "", is_argument=True, metavar="[FILE]")
    ledger: Path | None = option(
        None, "The same as FILE, as in `inferometer verify`.", metavar="FILE"
    )
    markdown: bool = option(False, "Print as Markdown.", is_common=True)
    into: Path | None = option(
        None,
        f"Put it into this file, after {BEGIN}, or in short after {BEGIN_SHORT}.",
        is_common=True,
    )
    anchor: bool = option(
        False,
        "Print only the hash of the last line, to store in a git tag or a public note.",
        is_common=True,
    )
    expect: str | None = option(
        None,
        "An earlier anchor: check that the ledger's chain still contains it.",
        is_common=True,
        metavar="ANCHOR",
    )
    given: frozenset[str] = frozenset()


def ledger(question: Ledger) -> Lines[LedgerAnswer]:
    """Score of a ledger in words or as Markdown; with ``into`` written into that file.

    Raises
    ------
    RecordError
        There is no such ledger, it was tampered with, or the document has no place for it.
    """
    answer = answer_of(question)
    if question.into is not None:
        put_into(question.into, answer.score)
        talk(f"{question.into} says what {answer.ledger} says")
    return Lines(answer, _shown(answer, question))


def answer_of(question: Ledger) -> LedgerAnswer:
    """The score of a ledger whose chain is intact.

    Raises
    ------
    RecordError, SpecError
        There is no such ledger, or it was tampered with; two are named.
    """
    given = question.file or question.ledger
    if question.file and question.ledger:
        raise SpecError(
            f"there are two ledgers: {question.file} and {question.ledger}",
            where="FILE and --ledger",
            allowed="one of them",
            try_=suggestions.command("ledger", question.file),
        )
    path = given or LEDGER
    if (given is not None or question.anchor) and not path.exists():
        raise RecordError(
            "there is no such ledger",
            where=str(path),
            try_=suggestions.command("verify", "PLAN", "--seal-only", "--ledger", path),
        )
    entries = read_ledger(path)
    refuse_future(entries, now_utc=now_utc(), where=str(path))
    if question.expect is not None:
        refuse_without(entries, question.expect, where=str(path))
    score = score_of(entries)
    return LedgerAnswer(
        ledger=str(path),
        n_entries=len(entries),
        head_sha256=entries[-1].sha256 if entries else None,
        score=score,
        verdicts=tuple(experiment.verdict for experiment in score.experiments),
        anchor=anchor_of(entries) if path.exists() else None,
        expected=question.expect,
    )


def _shown(answer: LedgerAnswer, question: Ledger) -> RenderableType:
    if question.anchor and answer.anchor is not None:
        return answer.anchor
    if question.markdown:
        return ledger_markdown(answer.score)
    return whole_text(answer)


def whole_text(answer: LedgerAnswer) -> RenderableType:
    """How often sealed predictions were right, the misses, and the experiments."""
    return ledger_text(answer.score, Path(answer.ledger), expected=answer.expected)


def put_into(path: Path, score: Score) -> None:
    """Replace the text between the marks of a file.

    Raises
    ------
    RecordError
        It has no marks, or cannot be written.
    """
    old = _DOCUMENT.text_of(path)
    new, n_places = old, 0
    for begin, end, markdown in _PLACES:
        between = re.compile(f"(?<={re.escape(begin)}\n).*?(?={re.escape(end)})", re.DOTALL)
        text = f"{markdown(score)}\n".replace("\\", r"\\")
        new, n_found = between.subn(text, new)
        n_places += n_found
    if not n_places:
        raise RecordError(
            "the file has no place for the ledger",
            where=str(path),
            allowed=f"a line {BEGIN} and a line {END}, or {BEGIN_SHORT} and {END_SHORT}",
        )
    replace_file(path, new.encode())
