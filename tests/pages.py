"""The code blocks of the documentation, and what their commands print.

A block ```` ```console ```` is a transcript: a line ``$ command``, then what it prints. A block with
a title is a recording of something that differs from run to run, and is not repeated.
"""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").glob("*.md")))
FENCE = re.compile(r"^( *)```(\w*)([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """One fenced block of a page."""

    page: Path
    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [
        Block(page, language, title.strip(), re.sub(rf"^{indent}", "", text, flags=re.MULTILINE))
        for indent, language, title, text in FENCE.findall(page.read_text())
    ]


def commands(page: Path) -> list[str]:
    """Every command of ours in the blocks of a page, continued lines put together."""
    lines = [
        line.strip().removeprefix("$ ")
        for block in blocks(page)
        if block.language in {"", "sh", "bash", "console", "text"}
        for line in block.text.replace("\\\n", " ").splitlines()
    ]
    return [line for line in lines if line.startswith("inferometer ")]


class Transcript(NamedTuple):
    """A command and what the page says that it prints."""

    page: Path
    command: str
    """As typed: it may end in ``| head -N``."""
    printed: str


def transcripts(page: Path) -> list[Transcript]:
    """What can be repeated: the consoles without a title."""
    return [
        Transcript(page, command, printed)
        for block in blocks(page)
        if block.language == "console" and not block.title
        for command, printed in re.findall(
            r"^\$ ([^\n]*)\n((?:(?!\$ ).*\n?)*)", block.text, re.MULTILINE
        )
    ]
