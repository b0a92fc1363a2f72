"""Does docs/coverage.md show every request that users made, and does the rest only shrink?

``test_docs.py`` holds what its commands print; ``bench/coverage_page.py`` writes the page.
"""

import shlex
import sys
import tomllib

import pytest

import pages
import suggested

sys.path.insert(0, str(pages.ROOT / "bench"))
import coverage_page

DATA = tomllib.loads(coverage_page.REQUESTS.read_text())
ROWS = coverage_page.rows_of(DATA)
MOST_MISSING = 0
"""Rows without a command: lower it with each that gets one, never raise it."""


def test_the_page_is_that_of_the_requests():
    shown = {one.command: one.printed for one in pages.transcripts(coverage_page.PAGE)}
    assert coverage_page.page_text(DATA, shown) == coverage_page.PAGE.read_text()
    assert all(printed.strip() for printed in shown.values())


def test_no_request_is_lost():
    numbers = {int(row["id"][:-1]) for row in ROWS}
    assert numbers == {*range(1, 8), 13, 14, 15, *range(16, 22)}
    assert len({row["id"] for row in ROWS}) == len(ROWS) >= 75


def test_what_cannot_be_done_only_shrinks():
    missing = [row for row in ROWS if "missing" in row]
    assert all(row["missing"].endswith(".") and "command" not in row for row in missing)
    assert len(missing) == MOST_MISSING


@pytest.mark.parametrize(
    "row", [row for row in ROWS if "recorded" in row], ids=lambda row: row["id"]
)
def test_commands_that_need_an_engine_are_commands(row):
    for command in row["command"].split(" && "):
        suggested.check_words(tuple(shlex.split(command)))
    assert (pages.ROOT / row["test"].partition("::")[0]).exists()
