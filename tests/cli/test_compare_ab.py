"""inferometer compare --ab against emulated servers.

Drawn order, the same requests for both, verdicts as often wrong as said.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jsonschema
import msgspec
import numpy as np
import pytest
from command_line import check_refused, run

from inferometer.api.ab_pairs import Pairs, put_aside
from inferometer.api.load_request import LoadRequest
from inferometer.cli.verbs import VERBS
from inferometer.inputs.plans import LoadPlan
from inferometer.inputs.workload.reading import resolve_workload
from inferometer.measure.load.messages import ClientLimits
from inferometer.measure.load.target import Secrets
from inferometer.measure.scrape import source_of
from inferometer.records.reading import read_run
from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_process import start
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost
from inferometer.stats.comparison import compare_pairs

PLAN = EmulatorPlan(
    model_name="m",
    fleet=lone_replica(
        SchedulerConfig(num_blocks=20_000, max_model_len=16_384, max_num_seqs=64),
        linear_cost(launch_s=20e-3),
    ),
    mean_output_tokens=None,
)
SLOWER = replace(PLAN, fleet=lone_replica(PLAN.config, linear_cost(launch_s=22e-3)))
WORKLOAD = """
[arrivals]
kind = "open"
rate_per_s = 50.0
[[classes]]
name = "short"
prompt_tokens = { kind = "uniform", low = 5, high = 40 }
output_tokens = { kind = "uniform", low = 12, high = 20 }
"""
# On a busy machine the client itself is late, and says so: the verdict asked for here is of servers
# 10 % apart.
ASKED = (
    "--model",
    "m",
    "--workload",
    "short.toml",
    "--requests",
    "80",
    "--metric",
    "tpot_p50_s",
    "--force",
    "--out",
    "ab",
)


@pytest.fixture(scope="module")
def urls():
    with start(PLAN) as one, start(PLAN) as same, start(SLOWER) as slower:
        yield one.url, same.url, slower.url


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "short.toml").write_text(WORKLOAD)
    return tmp_path


@pytest.mark.slow
def test_a_server_that_is_a_tenth_slower_is_worse(urls, folder):
    outcome = run(
        "compare",
        "--ab",
        urls[0],
        urls[2],
        *ASKED,
        "--margin",
        "0.03",
        "--slo",
        "tpot:p50<1us",
        "--json",
        folder=folder,
    )
    assert outcome.returncode == 0, outcome.stderr
    answer = json.loads(outcome.stdout)
    jsonschema.validate(
        answer, json.loads(run("schema", "compare", "--json", folder=folder).stdout)["schema"]
    )
    said = answer["comparison"]
    assert (said["answer"]["verdict"], said["is_paired"], said["n_old"], said["n_new"]) == (
        "worse",
        True,
        6,
        6,
    )
    assert said["answer"]["ratio"]["value"] == pytest.approx(1.1, abs=0.05)
    assert [(one["side"], one["n_missed"]) for one in answer["slos"]] == [("A", 6), ("B", 6)]
    check_pairs(folder, outcome.stderr)
    again = run(
        "compare",
        "ab/a",
        "ab/b",
        "--paired",
        "--metric",
        "tpot_p50_s",
        "--margin",
        "0.03",
        "--force",
        "--json",
        folder=folder,
    )
    assert json.loads(again.stdout)["comparison"] == said


def check_pairs(folder, stderr):
    """Both sides of a pair got the same requests and words, each pair others, in the order that was announced."""
    plans = {
        (side, pair): read_run(folder / "ab" / side / f"pair-{pair:02d}")
        for side in "ab"
        for pair in range(6)
    }
    seeds = [[plans[side, pair].manifest.load.workload.seed for pair in range(6)] for side in "ab"]
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 6
    for pair in range(6):
        one, other = (plans[side, pair] for side in "ab")
        for column in ("intended_send_ns", "prompt_tokens", "output_tokens"):
            assert (getattr(one.requests, column) == getattr(other.requests, column)).all()
        assert one.manifest.load.text_seed is None
        assert one.manifest.load.repeats_prompts
    announced = (
        next(line for line in stderr.splitlines() if "in the order" in line)
        .split("in the order ")[1]
        .split(";")[0]
        .split()
    )
    begun = sorted(
        plans, key=lambda key: plans[key].manifest.created_utc + plans[key].manifest.ended_utc
    )
    assert "".join(announced).lower() == "".join(side for side, _ in begun)
    assert sorted(announced) == ["AB"] * 3 + ["BA"] * 3


@pytest.mark.slow
def test_the_same_server_twice_is_not_called_different(urls, folder):
    outcome = run(
        "compare", "--ab", urls[0], urls[1], *ASKED, "--margin", "0.1", "--json", folder=folder
    )
    assert outcome.returncode in {0, 11}, outcome.stderr
    assert json.loads(outcome.stdout)["comparison"]["answer"]["verdict"] in {
        "equivalent",
        "undecided",
    }


def request(url, seed=3):
    workload = msgspec.structs.replace(resolve_workload("chat"), seed=seed)
    load = LoadPlan(url=url, served_model="m", endpoint="chat", workload=workload)
    return LoadRequest(
        load=load, secrets=Secrets(), metrics=source_of(load, Secrets()), limits=ClientLimits()
    )


def test_one_server_asked_in_two_ways_gets_other_words_in_the_same_rhythm(tmp_path):
    pairs = Pairs(
        requests=(request("http://a"), request("http://a")),
        n_pairs=4,
        folder=tmp_path,
        objective=None,
    )
    loads = [pairs.request(side, pair).load for pair in range(4) for side in range(2)]
    assert len({load.text_seed for load in loads}) == 8
    assert [load.workload.seed for load in loads[::2]] == [
        load.workload.seed for load in loads[1::2]
    ]


@pytest.mark.parametrize("urls", [("http://a", "http://a"), ("http://a", "http://b")])
def test_a_pair_that_is_made_again_has_other_words_in_the_same_rhythm(urls, tmp_path):
    """A server with a prefix cache remembers the first ones, and the pair would be INVALID."""
    requests = tuple(map(request, urls))
    pairs = Pairs(requests=requests, n_pairs=2, folder=tmp_path, objective=None)
    fresh = replace(pairs, has_fresh_servers=True)
    first = [pairs.request(side, 1).load for side in range(2)]
    other = pairs.request(0, 0)
    pairs.folders(0)[1].mkdir(parents=True)
    put_aside(pairs, pairs.folders(0)[1])
    again = [pairs.request(side, 1).load for side in range(2)]
    assert all(one.text_seed != two.text_seed for one, two in zip(first, again, strict=True))
    assert [one.workload for one in first] == [one.workload for one in again]
    assert (again[0].text_seed == again[1].text_seed) == (urls[0] != urls[1])
    assert pairs.request(0, 0) == other
    assert fresh.request(0, 1).load.text_seed is None


@pytest.mark.parametrize("n_pairs", [6, 7, 12])
def test_each_side_comes_first_in_half_of_the_pairs(n_pairs, tmp_path):
    orders = set()
    for seed in range(20):
        one = request("http://a", seed)
        order = Pairs(
            requests=(one, request("http://b")), n_pairs=n_pairs, folder=tmp_path, objective=None
        ).first_sides
        assert sum(order) in {n_pairs // 2, n_pairs - n_pairs // 2}
        orders.add(order)
    assert len(orders) > 5, "drawn, not fixed"


def test_differences_are_called_no_more_often_than_promised():
    """600 comparisons of 6 pairs of runs of the same simulated queue, whose pairs share a slow drift: 5 % may be called different."""
    rng, n_false = np.random.default_rng(8), 0
    for _ in range(600):
        machine = np.exp(rng.normal(0, 0.2, 6))
        sides = [[median_stay_s(rng, slow) for slow in machine] for _ in range(2)]
        verdict = compare_pairs(*sides, margin_ratio=0.001).verdict
        n_false += verdict in {"lower", "higher"}
    assert n_false <= 42, "beyond it in one of a hundred such tests where the rate is 5 %"
    assert n_false > 0, "a test of 6 pairs has a false alarm in 32"


def median_stay_s(rng, slow_ratio):
    """The median time of 300 customers at a single server (Lindley's recursion), on a machine that is this much slower."""
    service, gaps = rng.exponential(0.7 * slow_ratio, 300), rng.exponential(1.0, 300)
    walk = np.append(0, np.cumsum(service - gaps))[:-1]
    return float(np.median(walk - np.minimum.accumulate(walk) + service))


@pytest.mark.slow
def test_after_a_kill_the_same_command_goes_on_and_makes_the_half_pair_again(urls, folder):
    words = ["compare", "--ab", urls[0], urls[1], *ASKED, "--margin", "0.1"]
    child = subprocess.Popen(
        [Path(sys.executable).parent / "inferometer", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        wait_for(
            lambda: (
                (folder / "ab" / "a" / "pair-01" / "raw").exists()
                and (folder / "ab" / "b" / "pair-01" / "raw").exists()
            )
        )
        os.kill(child.pid, signal.SIGKILL)
    finally:
        child.communicate(timeout=60)
    first = [folder / "ab" / side / "pair-00" / "manifest.json" for side in "ab"]
    written_ns = [path.stat().st_mtime_ns for path in first]
    again = run(*words, folder=folder)
    assert again.returncode in {0, 11}, again.stderr
    assert "pair 2 was cut short" in again.stderr
    assert again.stderr.count("had been made before") == 2
    assert [path.stat().st_mtime_ns for path in first] == written_ns
    assert len(list((folder / "ab" / "interrupted").iterdir())) == 2
    assert all(len(list((folder / "ab" / side).iterdir())) == 6 for side in "ab")
    check_refused(run(*words, "--repeats", 8, folder=folder), 4, "6 pairs, not 8", "false alarms")


def wait_for(is_there):
    deadline_s = time.monotonic() + 90
    while not is_there():
        assert time.monotonic() < deadline_s, "nothing was sent"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("flags", "exit_code", "said"),
    [
        (("--repeats", 5), 2, "6 pairs or more"),
        (("--repeats", 6, "--confidence", 0.99), 2, "--repeats 8"),
        (("--b-body", "top_k"), 2, "--body"),
    ],
)
def test_impossible_questions(flags, exit_code, said, folder):
    check_refused(
        run("compare", "--ab", "http://127.0.0.1:9", *ASKED, *flags, folder=folder), exit_code, said
    )


def test_a_server_that_is_not_there(folder):
    check_refused(
        run("compare", "--ab", "http://127.0.0.1:9", "http://127.0.0.1:9", *ASKED, folder=folder),
        3,
        "no answer",
    )


def test_examples(folder):
    lines = [
        line.strip()
        for line in VERBS["compare"].of_servers.examples.splitlines()
        if line.strip().startswith("inferometer ")
    ]
    assert len(lines) == 3
    for line in lines:
        outcome = run(*shlex.split(line)[1:], "--dry-run", folder=folder)
        assert outcome.returncode == 0, outcome.stderr
        assert "pairs of load tests" in outcome.stderr


@pytest.mark.slow
def test_b_alone_has_its_own_body_model_and_headers(folder):
    flags = (
        "--body",
        "top_k=1",
        "--body",
        "top_p=1",
        "--b-body",
        "top_k=2",
        "--header",
        "X-A: hush",
        "--b-header",
        "x-a: quiet",
    )
    with start(PLAN) as one:
        outcome = run(
            "compare",
            "--ab",
            one.url,
            *ASKED,
            "--requests",
            10,
            "--repeats",
            2,
            "--confidence",
            0.5,
            *flags,
            folder=folder,
        )
    assert outcome.returncode in {0, 11}, outcome.stderr
    stored = [read_run(folder / "ab" / side / "pair-00").manifest for side in "ab"]
    assert [one.load.extra_body for one in stored] == [
        (("top_k", "1"), ("top_p", "1")),
        (("top_k", "2"), ("top_p", "1")),
    ]
    assert [one.load.header_names for one in stored] == [("X-A",), ("x-a",)]
    for path in (folder / "ab").rglob("*"):
        assert path.is_dir() or (
            b"hush" not in path.read_bytes() and b"quiet" not in path.read_bytes()
        ), path
