"""Are parts done on a real Ray cluster of two nodes the same as here: order, bits, errors, deaths?"""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from ray_nodes import environment, two_nodes

from executor_questions import CAPACITY, SIMULATE, SIZE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def nodes():
    with two_nodes() as running:
        yield running


@pytest.fixture(scope="module")
def said(nodes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    words = [
        str(nodes.python),
        str(Path(__file__).parent / "on_two_nodes.py"),
        nodes.address,
        str(folder),
    ]
    outcome = subprocess.run(
        words, env=environment(), capture_output=True, text=True, check=False, timeout=300
    )
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(
        next(line for line in outcome.stdout.splitlines() if line.startswith("SAID ")).removeprefix(
            "SAID "
        )
    )


def test_there_are_two_hosts_and_both_work(said):
    assert said["hosts"] == said["nodes"] == ["127.0.0.2", "127.0.0.3"]


def test_answers_are_the_same_bits_in_the_same_order(said):
    assert said["is_same"]
    assert said["told"][:8] == [[n, 8] for n in range(1, 9)]


def test_parts_of_a_worker_that_died_are_done_again(said):
    assert said["killed"] == [[0, 1], [1, 2], [2, 1], [3, 1]]


def test_errors_are_those_of_one_process(said):
    assert said["refused"][:3] == ["SpecError", "part 2", "a test"]


def test_a_part_that_always_kills_its_worker_is_an_error(said):
    kind, what, where, _ = said["always_killed"]
    assert (kind, where) == ("MeasureError", "--executor ray")
    assert "part 2 died 3 times" in what


def test_a_cluster_that_is_not_there(nodes, tmp_path):
    words = (
        "size",
        "llama-3.1-8b",
        "--rate",
        1,
        "--slo",
        "ttft:p95<2s",
        "--gpus",
        "l40s",
        "--tp",
        1,
    )
    outcome = nodes.run(
        *words, "--executor", "ray", "--ray-address", "127.0.0.2:9", folder=tmp_path
    )
    assert outcome.returncode == 3, outcome.stderr
    assert "the Ray cluster cannot be joined" in outcome.stderr
    assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(SIZE, marks=pytest.mark.long),
        SIMULATE,
        pytest.param(CAPACITY, marks=pytest.mark.long),
    ],
    ids=lambda question: question[0],
)
def test_answers_of_the_command_line_are_those_of_one_process(question, nodes, tmp_path):
    here = nodes.run(*question, "--executor", "inline", "--json", folder=tmp_path)
    there = nodes.run(
        *question, "--executor", "ray", "--ray-address", nodes.address, "--json", folder=tmp_path
    )
    assert here.returncode in {0, 11}, here.stderr
    assert (there.returncode, there.stdout) == (here.returncode, here.stdout), there.stderr
    assert "1/2 " in there.stderr or "1/3 " in there.stderr, "progress is shown"


def test_without_an_address_ray_runs_on_this_machine_alone(nodes, tmp_path):
    outcome = nodes.run(*SIMULATE, "--executor", "ray", "--json", folder=tmp_path)
    assert outcome.returncode == 0, outcome.stderr


def test_ctrl_c_ends_the_command_and_leaves_the_cluster(nodes, tmp_path):
    child = subprocess.Popen(
        nodes.line(*SIZE[:-1], 100_000, "--executor", "ray", "--ray-address", nodes.address),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    assert "kinds of replica" in child.stderr.readline()
    time.sleep(15)
    child.send_signal(signal.SIGINT)
    _, stderr = child.communicate(timeout=60)
    assert child.returncode == 130, stderr
    assert "Traceback" not in stderr
    again = nodes.run(
        *SIMULATE, "--executor", "ray", "--ray-address", nodes.address, folder=tmp_path
    )
    assert again.returncode == 0, again.stderr
