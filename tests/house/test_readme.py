"""Does the README say the truth: its table of errors, its verbs, its picture?"""

import re
from pathlib import Path

import pytest

from inferometer.api.ledger_text import ledger_markdown
from inferometer.cli.ledger import BEGIN, END
from inferometer.cli.main import VERBS
from inferometer.fit.sweeps.step_time import fit_step_time
from inferometer.records.reading import read_run
from inferometer.spec.catalog import load_models
from inferometer.verify.ledger import read_ledger
from inferometer.verify.score import score_of

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
ROW = re.compile(
    r"^\| (\S+-(?:float32|bfloat16)) \| (prefill|decode) \| (\d+) \| ([\d.]+) % \| ([\d.]+) % \|"
    r" (\d+) % \|$",
    re.MULTILINE,
)
ROWS = ROW.findall(README)
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
    named = set(re.findall(r"^inferometer (\w+)", README, re.MULTILINE))
    assert named
    assert named <= set(VERBS)


def test_the_ledger_is_that_of_the_file():
    """After new entries: inferometer ledger --into README.md."""
    said = README.partition(f"{BEGIN}\n")[2].partition(f"\n{END}")[0]
    assert said == ledger_markdown(score_of(read_ledger(ROOT / "ledger" / "ledger.jsonl")))


def test_counts_and_files():
    assert f"{len(load_models())} catalogue ids" in README
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).exists(), target
