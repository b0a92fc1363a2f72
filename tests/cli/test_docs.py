"""Do the commands of the documentation print what the pages show?

``make golden`` writes what they print now into the pages.
"""

import math
import os
import re

import pytest
from command_line import run

import pages

COVERAGE = pages.ROOT / "docs" / "coverage.md"
FAST = re.compile(r"inferometer (predict|sweep|catalog)")
"""Commands of that page that take a fraction of a second."""
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
TOLERANCE_RATIO = 0.02
"""What another linear algebra library changes in a fit."""
INTERVAL, BAR = re.compile(r"\[[^\]\n]*\]"), re.compile(r"[·━●]{3,}")
"""Ends of intervals of a fit to a handful of points, which processors of two makers see differently:
their covariance has directions that the points hardly determine."""


def is_fast(one):
    return one.page == pages.README or (
        one.page == COVERAGE and FAST.match(one.command) is not None
    )


PARAMETERS = [
    pytest.param(
        one,
        id=f"{one.page.stem}: {one.command}",
        marks=[] if is_fast(one) else pytest.mark.slow,
    )
    for page in pages.PAGES
    for one in pages.transcripts(page)
]


def without_numbers(text):
    return re.sub(r" +", " ", NUMBER.sub("#", text))


@pytest.mark.slow
@pytest.mark.usefixtures("one_core")
@pytest.mark.parametrize("shown", PARAMETERS)
def test_pages_show_what_is_printed(shown, tmp_path):
    pages.furnish(tmp_path, pages.files_of(shown.page))
    printed = pages.printed_by(shown.command, run, tmp_path)
    if os.environ.get("INFEROMETER_ACCEPT_GOLDEN"):
        before, now = (f"$ {shown.command}\n{text}" for text in (shown.printed, printed))
        shown.page.write_text(shown.page.read_text().replace(before, now))
        return
    before, now = shown.printed, printed
    if "inferometer fit " in shown.command:
        before, now = (INTERVAL.sub("[]", BAR.sub("", text)) for text in (before, now))
    assert without_numbers(before) == without_numbers(now), "make golden"
    for pair in zip(NUMBER.findall(before), NUMBER.findall(now), strict=True):
        numbers = [float(text.replace(",", "")) for text in pair]
        assert math.isclose(*numbers, rel_tol=TOLERANCE_RATIO, abs_tol=1.5), "make golden"
