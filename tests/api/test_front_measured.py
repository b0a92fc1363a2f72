"""Do the functions that measure, fit and prove answer through the front door, as the commands do?"""

import importlib
import shutil
from pathlib import Path

import pytest

import inferometer as im
from inferometer.api.answer import _LINES_BY, _PAGED_BY, Answer
from inferometer.errors import InferometerError, SpecError
from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_process import start
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

SWEPT = Path(__file__).parents[1] / "fit" / "data" / "smollm2-135m-float32"
RESULTS = Path(__file__).parents[1] / "records" / "imports" / "results"
PLAN = EmulatorPlan(
    model_name="m",
    fleet=lone_replica(
        SchedulerConfig(num_blocks=20_000, max_model_len=16_384, max_num_seqs=64),
        linear_cost(launch_s=1e-3),
    ),
    mean_output_tokens=None,
)
POINTS = """name = "points"
[server]
model = "smollm2-135m"
hardware = "l4"
[points]
prompt_tokens = [64, 256]
batch_sizes = [1, 4]
gen_tokens = 13
"""


@pytest.mark.slow
def test_a_server_is_loaded(tmp_path):
    heard = []
    with start(PLAN) as emulator:
        answer = im.load(
            emulator.url,
            workload="20x8",
            rate=50,
            requests=40,
            out=tmp_path / "run",
            export=["csv"],
            progress=heard.append,
        )
        with pytest.raises(SpecError, match="dry run"):
            im.load(emulator.url, rate=50, requests=4, dry_run=True)
    assert answer.rows()[0]["n_requests"] == 40
    assert (tmp_path / "run" / "report.html").is_file()
    assert any(isinstance(one, str) and "40 requests" in one for one in heard)
    assert "TTFT" in str(answer)


@pytest.mark.slow
def test_a_sweep_is_planned_fitted_and_explained(tmp_path):
    planned = im.sweep(
        "smollm2-135m",
        load_format="dummy",
        seq="16,64",
        batch_sizes="1,2",
        dry_run=True,
        out=tmp_path / "run",
    )
    assert len(planned.rows()) == 4
    assert not (tmp_path / "run").exists()
    run = shutil.copytree(SWEPT, tmp_path / "swept")
    fitted = im.fit(run, out=tmp_path / "step_time.json")
    assert fitted.model is not None
    assert "launch" in str(fitted)
    explained = im.explain([run])
    assert {row["phase"] for row in explained.rows()} == {"prefill", "decode"}
    asked = {"fit": tmp_path / "step_time.json", "batch": 2, "prompt": 64}
    assert im.predict("smollm2-135m", **asked).basis == "fitted"


def test_a_plan_is_sealed(tmp_path):
    plan = tmp_path / "points.toml"
    plan.write_text(POINTS)
    proved = im.verify(
        plan, seal_only=True, out=tmp_path / "proof", ledger=tmp_path / "ledger.jsonl"
    )
    assert proved.verdict == "open"
    assert len(proved.rows()) == 8


@pytest.mark.slow
def test_the_rows_of_a_shown_run_are_its_numbers(tmp_path):
    for name in ("a", "b"):
        im.import_results(RESULTS / "vllm-bench-detailed.json", out=tmp_path / name)
    shown = im.show(runs=(tmp_path / "a", tmp_path / "b"))
    rows = shown.rows()
    assert [row["run"] for row in rows] == [str(tmp_path / "a"), str(tmp_path / "b")]
    ttft, *_ = shown.requests[0].summaries[0].latencies
    assert rows[0]["ttft_mean_s.value"] == ttft.mean.seconds.value
    assert rows[0]["ttft_p95_s.value"] == ttft.percentile(0.95).seconds.value
    assert rows[0]["ttft_p95_s.low"] is None
    assert rows[0]["output_tokens_per_s.value"] > 0
    assert len(im.show(SWEPT).rows()) == len(im.show(SWEPT).view.points) > 10


def test_runs_come_from_other_tools_and_go_to_them(tmp_path):
    imported = im.import_results(RESULTS / "vllm-bench-detailed.json", out=tmp_path / "run")
    assert imported.rows()[0]["tool"] == "vllm-bench"
    assert f"inferometer show {tmp_path / 'run'}" in str(imported)
    table = im.export(tmp_path / "run", out=tmp_path / "requests.csv")
    assert table.n_requests == im.show(tmp_path / "run").requests[0].summaries[0].n_requests
    assert str(table) == f"{table.n_requests} requests -> {table.file} (csv)"


@pytest.mark.slow
def test_a_sizing_is_deployed(tmp_path):
    sized = im.size(
        "llama-3.1-8b", rate=5, gpus="h100_sxm", tp=1, slo="ttft:p95<2s", out=tmp_path / "plan"
    )
    assert sized.verdict == "met"
    deployed = im.deploy(tmp_path / "plan" / "plan.json", out=tmp_path / "files")
    written = {str(one) for one in (tmp_path / "files").rglob("*")}
    assert {row["file"] for row in deployed.rows()} <= written
    assert "replica" in str(deployed)


def test_a_ledger_and_the_steps_of_a_batch(tmp_path):
    plan = tmp_path / "points.toml"
    plan.write_text(POINTS)
    im.verify(plan, seal_only=True, out=tmp_path / "proof", ledger=tmp_path / "ledger.jsonl")
    score = im.ledger(tmp_path / "ledger.jsonl")
    assert (score.score.n_claims, score.score.n_open) == (8, 8)
    assert im.ledger(tmp_path / "ledger.jsonl", expect=score.anchor).expected == score.anchor
    assert "8" in str(score)
    game = im.timeline(batching="static", slots=2, steps=10)
    assert [len(one) for one in game.slots] == [10, 10]
    assert all(one in str(game) for one in game.slots)
    assert str(game).startswith("ANSWER ")
    assert "ticks" in str(game).splitlines()[0]


def test_every_answer_knows_how_it_looks_and_which_table_is_its_own():
    def kinds(of):
        return [one for kind in of.__subclasses__() for one in (kind, *kinds(kind))]

    functions = _PAGED_BY | _LINES_BY
    for function in functions.values():  # an answer is known once its module is imported
        importlib.import_module(function.partition(":")[0])
    answers = {kind.__name__: kind for kind in kinds(Answer)}
    assert set(answers) == set(functions)
    for kind in answers.values():
        if kind.table is not None:
            assert kind.table.partition(".")[0] in kind.__dataclass_fields__


@pytest.mark.parametrize(
    "options",
    [
        {"batch": float("nan")},
        {"batch": float("inf")},
        {"batch": 10**400},
        {"batch": True},
        {"usd_per_hour": "cheap"},
        {"prompt": "1e3.5"},
        {"gpu_memory_utilization": float("nan")},
        {"quantization": {"int8"}},
        {"speculative": 4},
    ],
    ids=str,
)
def test_numbers_that_cannot_be_are_refused(options):
    with pytest.raises(InferometerError):
        im.predict("llama-3.1-8b", hardware="h100_sxm", **options)


def test_durations_are_never_negative():
    for options in ({"duration": -5}, {"until": -1.0}, {"kv_link": float("nan")}):
        with pytest.raises(SpecError):
            im.simulate("llama-3.1-8b", hardware="h100_sxm", rate=5, prefill_replicas=1, **options)
