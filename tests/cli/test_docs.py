"""Do the commands of the documentation print what the pages show?

``make golden`` writes what they print now into the pages.
"""

import math
import os
import re
import shlex
import shutil

import pytest
from command_line import run

import pages

RECORDED = pages.ROOT / "tests" / "fit" / "data" / "qwen2.5-0.5b-float32"
"""The run that the pages call runs/example."""
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
TOLERANCE_RATIO = 0.02
"""What another linear algebra library changes in a fit."""
PARAMETERS = [
    pytest.param(
        one,
        id=f"{one.page.stem}: {one.command}",
        marks=[] if one.page == pages.README else pytest.mark.slow,
    )
    for page in pages.PAGES
    for one in pages.transcripts(page)
]


def printed_by(command, folder):
    line, _, head = command.partition(" | head -")
    outcome = run(*shlex.split(line)[1:], folder=folder)
    assert outcome.returncode in {0, 10, 11}, outcome.stderr
    lines = [line.rstrip() for line in outcome.stdout.splitlines()]
    return "".join(f"{line}\n" for line in lines[: int(head) if head else None])


def without_numbers(text):
    return re.sub(r" +", " ", NUMBER.sub("#", text))


@pytest.mark.parametrize("shown", PARAMETERS)
def test_pages_show_what_is_printed(shown, tmp_path):
    shutil.copytree(RECORDED, tmp_path / "runs" / "example")
    printed = printed_by(shown.command, tmp_path)
    if os.environ.get("INFEROMETER_ACCEPT_GOLDEN"):
        before, now = (f"$ {shown.command}\n{text}" for text in (shown.printed, printed))
        shown.page.write_text(shown.page.read_text().replace(before, now))
        return
    assert without_numbers(shown.printed) == without_numbers(printed), "make golden"
    for on_page, now in zip(NUMBER.findall(shown.printed), NUMBER.findall(printed), strict=True):
        numbers = [float(text.replace(",", "")) for text in (on_page, now)]
        assert math.isclose(*numbers, rel_tol=TOLERANCE_RATIO, abs_tol=1.5), "make golden"
