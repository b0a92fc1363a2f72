"""Does ``inferometer compare`` answer, obey its schema, and leave undecided what is?"""

import json
import re
from dataclasses import replace

import jsonschema
import numpy as np
import pytest
from command_line import check_refused, run
from tests.records.load_run import load_run

from inferometer.records.reading import read_run
from inferometer.records.store import write_run
from inferometer.records.validity import validity_of
from inferometer.simulate.demand import demand
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.simulated_run import simulated_run
from inferometer.simulate.step_cost import linear_cost

CONFIG = SchedulerConfig(
    num_blocks=2000, max_model_len=2048, max_num_seqs=16, enable_prefix_caching=False
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """``runs/before`` and ``runs/after``, five runs each, the latter with steps a fifth longer.

    ``runs/a`` and ``runs/b``, one each.
    """
    folder = tmp_path_factory.mktemp("compared")
    for name, seeds, launch_s in (
        ("before", range(5), 8e-3),
        ("after", range(5, 10), 9.6e-3),
        ("a", [20], 8e-3),
        ("b", [21], 8e-3),
    ):
        for seed in seeds:
            rng = np.random.default_rng(seed)
            arrival_ns = np.cumsum(rng.exponential(0.2e9, 400)).astype(np.int64)
            requests = demand(arrival_ns, rng.integers(20, 200, 400), rng.integers(2, 100, 400))
            cost = linear_cost(
                launch_s=launch_s, per_row_s=40e-6, per_request_s=100e-6, per_context_token_s=0.5e-6
            )
            made = simulated_run(
                simulate(requests, CONFIG, cost),
                CONFIG,
                run_id=str(seed),
                created_utc="",
                command=(),
                tool_version="0",
            )
            write_run(
                folder / "runs" / name
                if name in {"a", "b"}
                else folder / "runs" / name / str(seed),
                made,
            )
    return folder


def test_folders_of_runs_are_decided(runs):
    outcome = run(
        "compare",
        "runs/before",
        "runs/after",
        "--metric",
        "tpot_p50_s",
        "--margin",
        "0.05",
        folder=runs,
    )
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.startswith("B is worse: TPOT p50 of B is 1.")
    assert "5 against 5 runs" in outcome.stdout


def test_four_against_four_that_are_undecided_name_how_many_would_decide(runs, tmp_path):
    equals = sorted((runs / "runs" / "before").iterdir())
    sources = (*equals, runs / "runs" / "a", runs / "runs" / "b", equals[0])
    for i, source in enumerate(sources):
        made = read_run(source)
        target = tmp_path / "ab"[i // 4] / str(i)
        target.parent.mkdir(exist_ok=True)
        write_run(target, replace(made, manifest=replace(made.manifest, run_id=str(i))))
    outcome = run("compare", "a", "b", "--margin", "0.001", folder=tmp_path)
    assert outcome.returncode == 11, outcome.stdout
    assert re.search(
        r"beyond a margin of 0\.1%; about [\d,]+ new runs of each side would", outcome.stdout
    )


def test_single_runs_are_undecided(runs):
    outcome = run("compare", "runs/a", "runs/b", folder=runs)
    assert outcome.returncode == 11
    assert outcome.stdout.startswith("Undecided: ")
    assert "CAUTION" in outcome.stdout


def test_a_latency_is_also_named_as_in_an_slo(runs):
    outcome = run("compare", "runs/a", "runs/b", "--metric", "ttft:p95", folder=runs)
    assert "TTFT p95 of B" in outcome.stdout.splitlines()[0]


def test_three_runs_are_those_of_a_report(runs):
    more = ("runs/a", "runs/b", "runs/before", "runs/after")
    outcome = run("compare", *more, folder=runs)
    check_refused(outcome, 2, "inferometer report runs/a runs/b runs/before runs/after")


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
        (("llama-3.1-8b", "qwen3-8b"), 4, "inferometer predict MODEL,MODEL"),
        (("runs/a", "runs/b", "--metric", "ttft"), 2, "--metric ttft_p50_s"),
        (("runs/a", "runs/b", "--metric", "speed"), 2, "there is no metric 'speed'"),
        (("runs/before", "runs/a", "--paired"), 2, "5 runs against 1 make no pairs"),
        (("summary.json", "runs/a"), 2, "JSON that is no table of a sweep"),
    ],
)
def test_impossible_questions(words, exit_code, said, runs):
    (runs / "summary.json").write_text('{"results_ttft_s_mean": 0.2}')
    check_refused(run("compare", *words, folder=runs), exit_code, said)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """``good`` and ``bad``: load tests of one server, the second by a client that was late."""
    folder = tmp_path_factory.mktemp("loaded")
    for name, how in (("good", {}), ("bad", {"send_lag_s": 0.06})):
        made = load_run(**how)
        judged = validity_of(made)
        assert (judged.verdict == "INVALID") == (name == "bad")
        write_run(
            folder / name,
            replace(made, manifest=replace(made.manifest, run_id=name, validity=judged)),
        )
    return folder


@pytest.mark.parametrize("words", [("good", "bad"), ("bad", "good")])
def test_an_invalid_load_test_is_not_compared(words, loaded):
    check_refused(
        run("compare", *words, folder=loaded),
        3,
        "the load test is INVALID",
        "bad",
        "VALID or SUSPECT",
    )


def test_an_invalid_load_test_is_compared_by_force_and_named(loaded):
    outcome = run("compare", "good", "bad", "--force", folder=loaded)
    assert outcome.returncode in {0, 11}, outcome.stderr
    assert (
        "CAUTION INVALID load tests are compared, whose numbers are not the server's: bad"
        in outcome.stdout
    )
    assert "INVALID" not in run("compare", "good", "good", folder=loaded).stdout


def test_show_and_export_state_that_a_load_test_is_invalid(loaded, tmp_path):
    shown = run("show", "bad", folder=loaded)
    assert shown.returncode == 0, shown.stderr
    assert "INVALID" in shown.stdout
    exported = run(
        "export", "bad", "--format", "llm-d", "--out", tmp_path / "report.json", folder=loaded
    )
    assert exported.returncode == 0, exported.stderr
    said = json.loads((tmp_path / "report.json").read_text())["results"]["profiling"][
        "inferometer"
    ]["validity"]
    assert said["verdict"] == read_run(loaded / "bad").manifest.validity.verdict == "INVALID"


def test_length_and_concurrency_are_compared_at_equal_token_counts(tmp_path):
    """Ratios by hand; the same point on both sides is no pair; intervals come from repetitions."""
    head = "seq_len,batch,prefill_p50_ms,decode_p50_ms_per_tok\n"
    (tmp_path / "a.csv").write_text(f"{head}128,1,20,10\n256,1,40,10\n1024,1,200,16\n")
    (tmp_path / "b.csv").write_text(f"{head}128,1,20,10\n128,2,30,12\n128,8,100,20\n")
    words = ("compare", "a.csv", "b.csv", "--equal-tokens")
    outcome = run(*words, "--json", folder=tmp_path)
    assert outcome.returncode == 11
    found = json.loads(outcome.stdout)["comparison"]
    ratios = {one["metric"]: one["ratio"]["value"] for one in [found["answer"], *found["others"]]}
    assert ratios == {
        "prefill_s of all token counts": pytest.approx((30 / 40 * 100 / 200) ** 0.5),
        "prefill_s at 256 prompt tokens (256 x 1 / 128 x 2)": pytest.approx(0.75),
        "prefill_s at 1024 prompt tokens (1024 x 1 / 128 x 8)": pytest.approx(0.5),
        "decode_step_s of all token counts": pytest.approx((1.2 * 1.25) ** 0.5),
        "decode_step_s at 256 prompt tokens (256 x 1 / 128 x 2)": pytest.approx(1.2),
        "decode_step_s at 1024 prompt tokens (1024 x 1 / 128 x 8)": pytest.approx(1.25),
        "decode_tokens_per_s of all token counts": pytest.approx((2 / 1.2 * 8 / 1.25) ** 0.5),
        "decode_tokens_per_s at 256 prompt tokens (256 x 1 / 128 x 2)": pytest.approx(2 / 1.2),
        "decode_tokens_per_s at 1024 prompt tokens (1024 x 1 / 128 x 8)": pytest.approx(6.4),
    }
    text = run(*words, folder=tmp_path).stdout
    assert "takes 0.5x the prefill of A (prompt 1024 x batch 1) and gives 6.4x" in text
    assert "one number per point: no interval" in text
    check_refused(
        run("compare", "a.csv", "a.csv", "--equal-tokens", folder=tmp_path), 2, "another shape"
    )


@pytest.mark.parametrize(
    ("n_generated", "try_"), [(32, "--equal-tokens"), (8, "sweeps of the same --gen-tokens")]
)
def test_sweeps_without_a_common_point_learn_what_would_have_one(tmp_path, n_generated, try_):
    head = "seq_len,batch,gen_tokens,prefill_p50_ms,decode_p50_ms_per_tok\n"
    (tmp_path / "a.csv").write_text(f"{head}256,1,32,40,10\n")
    (tmp_path / "b.csv").write_text(f"{head}128,2,{n_generated},30,12\n")
    refused = run("compare", "a.csv", "b.csv", folder=tmp_path)
    check_refused(refused, 2, "no point in common")
    assert f"try: {try_}" in refused.stderr
