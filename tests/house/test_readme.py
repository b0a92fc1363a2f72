"""Do the README and the page on accuracy agree with the records: errors, ledger, verbs, links, length?"""

import re
from pathlib import Path

import pytest

from inferometer.api.ledger import BEGIN, BEGIN_SHORT, END, END_SHORT
from inferometer.api.verify_view import ledger_markdown, short_markdown
from inferometer.cli.main import VERBS
from inferometer.fit.sweeps.step_time import fit_step_time
from inferometer.inputs.catalog import load_models
from inferometer.records.reading import read_run
from inferometer.verify.ledger import read_ledger, score_of

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
ACCURACY = (ROOT / "docs" / "accuracy.md").read_text()
START = (ROOT / "docs" / "getting-started.md").read_text()
MAX_WORDS = 450
"""Of the README, without tables and code: it is read in a minute."""
MAX_ROWS = 6
ROW = re.compile(
    r"^\| (\S+-(?:float32|bfloat16)) \| (prefill|decode) \| (\d+) \| ([\d.]+) % \| ([\d.]+) % \|"
    r" (\d+) % \|$",
    re.MULTILINE,
)
ROWS = ROW.findall(ACCURACY)
TOLERANCE_POINTS = 0.2
"""Rounding to one digit, and what another linear algebra library changes."""


def test_the_table_has_every_recorded_sweep():
    recorded = {
        folder.name for folder in (ROOT / "tests" / "fit" / "data").iterdir() if folder.is_dir()
    }
    assert {row[0] for row in ROWS} == recorded
    assert len(ROWS) == 2 * len(recorded)


@pytest.mark.parametrize("name", sorted({row[0] for row in ROWS}))
def test_the_errors_are_those_of_the_records(name):
    held_out = {
        error.phase: error
        for error in fit_step_time([read_run(ROOT / "tests" / "fit" / "data" / name)]).held_out
    }
    for _, phase, n_points, median, p95, inside in [row for row in ROWS if row[0] == name]:
        error = held_out[phase]
        assert error.n_points == int(n_points)
        assert error.median_fraction * 100 == pytest.approx(float(median), abs=TOLERANCE_POINTS)
        assert error.p95_fraction * 100 == pytest.approx(float(p95), abs=TOLERANCE_POINTS)
        assert error.coverage_fraction * 100 == pytest.approx(float(inside), abs=1)


def test_every_verb_it_names_exists():
    named = set(re.findall(r"(?:^\$ |`)inferometer (\w+)", README, re.MULTILINE))
    assert len(named) > 5
    assert named <= set(VERBS)


@pytest.mark.parametrize(
    ("page", "begin", "end", "markdown"),
    [(ACCURACY, BEGIN, END, ledger_markdown), (README, BEGIN_SHORT, END_SHORT, short_markdown)],
    ids=["docs/accuracy.md", "README.md"],
)
def test_the_ledger_is_that_of_the_file(page, begin, end, markdown):
    """After new entries: ``inferometer ledger --into README.md``, and into docs/accuracy.md."""
    shown = page.partition(f"{begin}\n")[2].partition(f"\n{end}")[0]
    assert shown == markdown(score_of(read_ledger(ROOT / "ledger" / "ledger.jsonl")))


def test_the_readme_is_short():
    text = re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL)
    assert len(re.sub(r"^\|.*$", "", text, flags=re.MULTILINE).split()) <= MAX_WORDS
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert all(table.count("\n") - 2 <= MAX_ROWS for table in tables)


def test_counts_and_files():
    assert f"{len(load_models())} catalogue ids" in START
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_rooms_are_those_of_the_contract():
    contract = (ROOT / ".importlinter").read_text()
    layers = contract.partition("layers =\n")[2].partition("\n\n")[0].split()
    page = (ROOT / "docs" / "architecture.md").read_text()
    order = re.search(r"^cli → .*$", page, re.MULTILINE)
    assert order is not None
    assert re.split(r" (?:→|\|) ", order[0]) == layers[1:]
    rooms = re.findall(r"^\| (`.*?`) \|", page, re.MULTILINE)
    assert {room for row in rooms for room in re.findall(r"`(\w+)`", row)} == set(layers[1:])
