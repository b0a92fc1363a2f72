"""Are answers the same wherever they are worked out, and does somebody without Ray learn how to get it?"""

import sys

import pytest
from command_line import check_refused, run

# What a limit of time cuts depends on the machine.
SIZE = (
    "size",
    "llama-3.1-8b",
    "--rate",
    3,
    "--slo",
    "ttft:p95<2s",
    "--gpus",
    "l40s,a100_80gb_sxm",
    "--tp",
    1,
    "--time-limit",
    "10min",
    "--probe-requests",
    100,
)
SIMULATE = ("simulate", "llama-3.1-8b", "--hardware", "h100_sxm", "--rate", 3, "--requests", 200)
CAPACITY = (
    "capacity",
    "llama-3.1-8b",
    "--hardware",
    "h100_sxm",
    "--slo",
    "ttft:p95<1s",
    "--probe-requests",
    100,
    "--resolution",
    0.3,
)


@pytest.mark.parametrize(
    "question",
    [
        SIMULATE,
        pytest.param(SIZE, marks=pytest.mark.slow),
        pytest.param(CAPACITY, marks=pytest.mark.slow),
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
    n_parts = {"size": 2, "simulate": 3, "capacity": 2}[question[0]]
    assert f"{n_parts}/{n_parts} " in there.stderr, "progress is shown"


def test_without_ray_it_is_said_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    check_refused(
        run(*SIMULATE, "--executor", "ray", folder=tmp_path),
        2,
        "Ray is not installed",
        "pip install 'inferometer[ray]'",
    )
