"""Does ``inferometer compare`` answer, obey its schema, and leave undecided what is?"""

import json

import jsonschema
import numpy as np
import pytest
from command_line import check_refused, run

from inferometer.records.whole_run import write_run
from inferometer.simulate.demand import demand
from inferometer.simulate.kernel import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.simulated_run import simulated_run
from inferometer.simulate.step_cost import linear_cost

CONFIG = SchedulerConfig(num_blocks=2000, max_model_len=2048, max_num_seqs=16, enable_prefix_caching=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """``runs/before`` and ``runs/after``, five runs each, the latter with steps a fifth longer; ``runs/a`` and ``runs/b``, one each."""
    folder = tmp_path_factory.mktemp("compared")
    for name, seeds, launch_s in (("before", range(5), 8e-3), ("after", range(5, 10), 9.6e-3), ("a", [20], 8e-3), ("b", [21], 8e-3)):
        for seed in seeds:
            rng = np.random.default_rng(seed)
            arrival_ns = np.cumsum(rng.exponential(0.2e9, 400)).astype(np.int64)
            requests = demand(arrival_ns, rng.integers(20, 200, 400), rng.integers(2, 100, 400))
            cost = linear_cost(launch_s=launch_s, per_row_s=40e-6, per_request_s=100e-6, per_context_token_s=0.5e-6)
            made = simulated_run(simulate(requests, CONFIG, cost), CONFIG, run_id=str(seed), created_utc="", command=(), tool_version="0")
            write_run(folder / "runs" / name if name in {"a", "b"} else folder / "runs" / name / str(seed), made)
    return folder


def test_folders_of_runs_are_decided(runs):
    outcome = run("compare", "runs/before", "runs/after", "--metric", "tpot_p50_s", "--margin", "0.05", folder=runs)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.startswith("ANSWER B is worse: tpot_p50_s B / A = 1.")
    assert "5 against 5 runs" in outcome.stdout


def test_single_runs_are_undecided(runs):
    outcome = run("compare", "runs/a", "runs/b", folder=runs)
    assert outcome.returncode == 11
    assert outcome.stdout.startswith("ANSWER undecided")
    assert "CAUTION" in outcome.stdout


def test_json_obeys_its_schema(runs):
    outcome = run("compare", "runs/before", "runs/after", "--json", folder=runs)
    schema = json.loads(run("schema", "compare", "--json", folder=runs).stdout)["schema"]
    answer = json.loads(outcome.stdout)
    jsonschema.validate(answer, schema)
    assert answer["comparison"]["replicate"] == "run"


@pytest.mark.parametrize(
    ("words", "exit_code", "said"),
    [
        (("runs/none", "runs/a"), 4, "there is no run"),
        (("runs/a", "runs/b", "--metric", "speed"), 2, "there is no metric 'speed'"),
        (("runs/before", "runs/a", "--paired"), 2, "5 runs against 1 make no pairs"),
    ],
)
def test_impossible_questions(words, exit_code, said, runs):
    check_refused(run("compare", *words, folder=runs), exit_code, said)
