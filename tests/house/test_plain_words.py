"""Is the documentation free of the words that this project once made up for itself?

In the source they become fewer: a number that only shrinks. What stands in code blocks of pages, and
what commands print there, is not checked.
"""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTEAD = {
    r"(?:fore)?told|foretells?": "measured, predicted, estimated, reported by the server",
    r"doubts?": "uncertainty, interval",
    r"seats?": "max_num_seqs, concurrent sequences",
    r"(?:so|that) many": "the number of …",
    r"reckon(?:s|ed)?|whence|of which": "computed, from where, another sentence",
    r"said": "printed, reported",
    r"asked": "requested",
    r"kept": "stored, met",
    r"promises?|promised": "SLO",
}
"""Every word that the glossary replaces, and what to write."""
WORDS = {re.compile(rf"\b(?:{words})\b", re.IGNORECASE): plain for words, plain in INSTEAD.items()}
NO_PROSE = re.compile(
    r"<!-- the ledger.*?<!-- the end of|^```.*?^```$|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->",
    re.MULTILINE | re.DOTALL,
)
"""Sealed experiments carry the names that they were sealed with."""


MOST_IN_SOURCE = 379
"""How often they stand in the source. Lower it with every change that lowers it."""


def pages() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "README.md", "CONTRIBUTING.md", "docs/*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return listed.split()


def prose(text: str) -> str:
    """The text without code and output, line for line where it was."""
    return NO_PROSE.sub(lambda match: "\n" * match[0].count("\n"), text)


@pytest.mark.parametrize("page", pages())
def test_pages_use_the_words_of_the_field(page):
    offenders = [
        f"{page}:{number}: {found[0]!r}, write: {plain}"
        for number, line in enumerate(prose((ROOT / page).read_text()).splitlines(), 1)
        for pattern, plain in WORDS.items()
        for found in pattern.finditer(line)
    ]
    assert not offenders, "\n".join(offenders)


def test_the_source_has_ever_fewer_of_them():
    texts = [path.read_text() for path in (ROOT / "src" / "inferometer").rglob("*.py")]
    n_found = sum(len(pattern.findall(text)) for text in texts for pattern in WORDS)
    assert n_found <= MOST_IN_SOURCE


def test_code_is_no_prose():
    assert prose("a `seat` [b](said.md)\n```\ntold\n```\nc") == "a  [b\n\n\n\nc"
