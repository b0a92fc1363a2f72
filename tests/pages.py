"""The code blocks of the documentation, and what their commands print.

A block ```` ```console ```` is a transcript: a line ``$ command``, then what it prints. A block with
a title is a recording of something that differs from run to run, and is not repeated.
"""

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from itertools import groupby
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


def files_of(page: Path) -> dict[str, str]:
    """The files that a page shows in full, by name: blocks titled ``title="NAME.csv"``."""
    titles = [(re.fullmatch(r'title="([\w.-]+\.\w+)"', one.title), one) for one in blocks(page)]
    return {found[1]: one.text for found, one in titles if found is not None}


RECORDED = ROOT / "tests" / "fit" / "data" / "qwen2.5-0.5b-float32"
"""The run that the pages call runs/example."""
TRACE = ROOT / "tests" / "records" / "traces" / "decode-cpu.json.gz"
"""A profiler's trace, which the pages call trace.json.gz."""

SPANS = ROOT / "tests" / "records" / "traces" / "spans.jsonl.gz"
"""Spans of a load test and of the emulated server, which the pages call spans.jsonl.gz."""


def furnish(folder: Path, files: Mapping[str, str]) -> None:
    """Put what the commands of a page read into the folder where they run."""
    shutil.copytree(RECORDED, folder / "runs" / "example")
    shutil.copy(TRACE, folder / "trace.json.gz")
    shutil.copy(SPANS, folder / "spans.jsonl.gz")
    for name, text in files.items():
        (folder / name).write_text(text.lstrip())


def printed_by(
    command: str, run: Callable[..., subprocess.CompletedProcess[str]], folder: Path
) -> str:
    """What a line of commands with ``&&`` between them prints.

    Each may end in ``| grep [-E] [-i] PATTERN``, ``| head -N``, ``| tail -N`` or ``> /dev/null``, or
    is ``head -N FILE`` or ``cat FILE …``.
    """
    parts = [
        list(part) for is_and, part in groupby(shlex.split(command), "&&".__eq__) if not is_and
    ]
    return "".join(_printed_by(part, run, folder) for part in parts)


def _printed_by(
    command: list[str], run: Callable[..., subprocess.CompletedProcess[str]], folder: Path
) -> str:
    first, *filters = [list(part) for is_pipe, part in groupby(command, "|".__eq__) if not is_pipe]
    if first[-2:] == [">", "/dev/null"]:
        _printed_by(first[:-2], run, folder)
        return ""
    if first[0] == "head":
        filters, text = [first[:2]], (folder / first[2]).read_text()
    elif first[0] == "cat":
        text = "".join((folder / name).read_text() for name in first[1:])
    else:
        outcome = run(*first[1:], folder=folder)
        assert outcome.returncode in {0, 10, 11}, f"{command}\n{outcome.stderr}"
        text = outcome.stdout
    lines = [line.rstrip() for line in text.splitlines()]
    for name, *arguments in filters:
        if name == "grep":
            *options, pattern = arguments
            flags = re.IGNORECASE if any("i" in one for one in options) else 0
            found = re.compile(pattern, flags)
            lines = [line for line in lines if found.search(line)]
        else:
            count = int(arguments[0].removeprefix("-"))
            lines = {"head": lines[:count], "tail": lines[-count:]}[name]
    return "".join(f"{line}\n" for line in lines)


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
