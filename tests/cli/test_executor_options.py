"""Are answers the same wherever they are worked out, and does somebody without Ray learn how to get it?"""

import sys

import pytest
from command_line import check_refused, run

from executor_questions import CAPACITY, SIMULATE, SIZE


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(SIMULATE, marks=pytest.mark.slow),
        pytest.param(SIZE, marks=pytest.mark.slow),
        pytest.param(CAPACITY, marks=[pytest.mark.slow, pytest.mark.long]),
    ],
    ids=lambda question: question[0],
)
def test_processes_give_the_bits_of_one(question, tmp_path):
    here, there = (
        run(*question, "--executor", kind, "--json", folder=tmp_path)
        for kind in ("inline", "processes")
    )
    assert here.returncode in {0, 11}, here.stderr
    assert (there.returncode, there.stdout) == (here.returncode, here.stdout)
    n_parts = {"size": 2, "simulate": 3, "capacity": 3}[question[0]]
    assert f"/{n_parts} " in there.stderr, "progress is shown"


def test_without_ray_it_is_said_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    check_refused(
        run(*SIMULATE, "--executor", "ray", folder=tmp_path),
        2,
        "Ray is not installed",
        "pip install 'inferometer[ray]'",
    )
