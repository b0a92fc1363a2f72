"""inferometer ledger: how often were predictions right that were sealed before they were measured?"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from rich.console import RenderableType

from inferometer import suggestions
from inferometer.api.ledger_text import ledger_markdown, ledger_text, short_markdown
from inferometer.api.verify import LEDGER
from inferometer.cli.answer import give
from inferometer.cli.flags import json_option
from inferometer.cli.terminal import talk
from inferometer.errors import RecordError
from inferometer.inputs.foreign_bytes import Door
from inferometer.measure.run_names import now_utc
from inferometer.records.durability import replace_file
from inferometer.verify.ledger import anchor_of, read_ledger, refuse_future, refuse_without
from inferometer.verify.score import Score, score_of

_DOCUMENT: Final = Door(noun="document", allowed="a text file in UTF-8", refusal=RecordError)

BEGIN: Final = "<!-- the ledger: made by `inferometer ledger --into README.md` -->"
END: Final = "<!-- the end of the ledger -->"
BEGIN_SHORT: Final = "<!-- the ledger in short: made by `inferometer ledger --into README.md` -->"
END_SHORT: Final = "<!-- the end of the short ledger -->"
_PLACES: Final = (
    (BEGIN, END, ledger_markdown),
    (BEGIN_SHORT, END_SHORT, short_markdown),
)
"""What is written between which lines of a document: everything, or the answer and one small table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerAnswer:
    """The chain is whole, and this is what it says."""

    ledger: str
    n_entries: int
    head_sha256: str | None
    """Of the last line: whoever knows it can tell that nothing before it was changed. None of an
    empty ledger."""
    score: Score
    verdicts: tuple[str, ...]
    """Of the experiments, in their order."""
    anchor: str
    """The number of lines and the sum of the last: kept elsewhere, it shows later whether the
    chain was cut or written anew."""
    expected: str | None
    """The anchor that was given with --expect; the chain holds it."""


ANSWER = LedgerAnswer


@click.command(
    "ledger",
    short_help="How often were sealed predictions right?",
    epilog="""\b
Examples:
  inferometer ledger
  inferometer ledger --markdown
  inferometer ledger --anchor
""",
)
@click.argument(
    "given", metavar="[FILE]", required=False, type=click.Path(path_type=Path, dir_okay=False)
)
@click.option("--markdown", is_flag=True, help="As it stands in a README.")
@click.option(
    "--into",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help=f"Put it into this file, after {BEGIN}, or in short after {BEGIN_SHORT}.",
)
@click.option(
    "--anchor",
    "wants_anchor",
    is_flag=True,
    help="Print the chain's head alone, to keep in a git tag or a public note.",
)
@click.option(
    "--expect",
    metavar="ANCHOR",
    help="An anchor of before: is the chain still the one it was taken of?",
)
@json_option
def command(
    given: Path | None,
    into: Path | None,
    expect: str | None,
    *,
    markdown: bool,
    wants_anchor: bool,
    as_json: bool,
) -> None:
    """How often were predictions right that were sealed before they were measured.

    The misses, and what was never measured, too?

    The chain of sums is checked: a line that was changed, taken out, put in or dated in the future
    is named (exit 4). The owner of the file can write the whole chain anew; --anchor and --expect
    show that, where the anchor was kept out of the owner's reach.
    """
    path = LEDGER if given is None else given
    if given is not None and not given.exists():
        raise RecordError(
            "there is no such ledger",
            where=str(given),
            try_=suggestions.command("verify", "PLAN", "--seal-only", "--ledger", given),
        )
    entries = read_ledger(path)
    refuse_future(entries, now_utc=now_utc(), where=str(path))
    if expect is not None:
        refuse_without(entries, expect, where=str(path))
    score = score_of(entries)
    said = LedgerAnswer(
        ledger=str(path),
        n_entries=len(entries),
        head_sha256=entries[-1].sha256 if entries else None,
        score=score,
        verdicts=tuple(experiment.verdict for experiment in score.experiments),
        anchor=anchor_of(entries),
        expected=expect,
    )
    if into is not None:
        put_into(into, score)
        talk(f"{into} says what {path} says")
    give(
        said,
        as_json=as_json,
        show=lambda told: _shown(told, path, markdown=markdown, wants_anchor=wants_anchor),
    )


def _shown(said: LedgerAnswer, path: Path, *, markdown: bool, wants_anchor: bool) -> RenderableType:
    if wants_anchor:
        return said.anchor
    return (
        ledger_markdown(said.score)
        if markdown
        else ledger_text(said.score, path, expected=said.expected)
    )


def put_into(path: Path, score: Score) -> None:
    """Replace what stands between the marks of a file.

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
