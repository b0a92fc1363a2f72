"""Does a limit for workflows hold in every verb that knows which requests are one: sealed, searched, tuned, deployed?"""

import json
from dataclasses import replace

import numpy as np
import pytest
import yaml
from command_line import check_refused, run
from test_workflows import workflow_seconds

import inferometer as im
from inferometer.errors import SpecError
from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.workload.replay import draw_workload
from inferometer.records.reading import read_run
from inferometer.records.request_summaries import judge_objective
from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_process import start
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

AGENTS = """
name = "agents"
n_requests = 400
[arrivals]
kind = "open"
rate_per_s = 80
[[classes]]
name = "agent"
prompt_tokens = { kind = "uniform", low = 20, high = 40 }
output_tokens = { kind = "constant", value = 4 }
[classes.fan_out]
subtasks = { kind = "constant", value = 2 }
prompt_tokens = { kind = "constant", value = 10 }
output_tokens = { kind = "uniform", low = 4, high = 12 }
think_s = { kind = "constant", value = 0.05 }
"""
PLAIN = AGENTS[: AGENTS.index("[classes.fan_out]")]
SERVER = EmulatorPlan(
    model_name="smollm2-135m",
    fleet=lone_replica(
        SchedulerConfig(num_blocks=20_000, max_model_len=2048, max_num_seqs=64),
        linear_cost(launch_s=1e-3),
    ),
    mean_output_tokens=None,
)
PLAN = """name = 'agents'
[server]
model = 'smollm2-135m'
hardware = 'l4'
datasheet = true
max_model_len = 2048
[traffic]
workload = 'agents.toml'
rates_per_s = [80]
n_requests = 400
slo = 'workflow p50 < 20s'
"""
SLO = "workflow:p50<20s"
ON_L4 = ("smollm2-135m", "--hardware", "l4", "--datasheet", "--workload", "agents.toml")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "agents.toml").write_text(AGENTS)
    (tmp_path / "plan.toml").write_text(PLAN)
    return tmp_path


def verified(folder, *words, plan="plan.toml"):
    where = ("--out", "out", "--ledger", "l.jsonl", "--json")
    return run("verify", plan, *words, *where, folder=folder)


def experiment_of(outcome):
    assert outcome.returncode in {0, 10, 11}, outcome.stderr
    return json.loads(outcome.stdout)["experiment"]


def median_of(folder):
    """Of the workflows in the record, from its tables."""
    plan = draw_workload(read_run(folder).manifest.load.workload).plan
    seconds = workflow_seconds(plan, read_run(folder).requests)
    return float(np.median(seconds))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["url", "check"])
def test_a_prediction_of_workflows_is_sealed_checked_and_judged(folder, how):
    """Whether it is measured now, or was measured elsewhere and its record is read."""
    sealed = experiment_of(verified(folder, "--seal-only"))["seal"]
    predicted = {one["metric"]: one["predicted"]["value"] for one in sealed["claims"]}
    assert predicted["e2e_p50_s"] < predicted["workflow_p50_s"] < predicted["workflow_p95_s"]
    assert [(one["objective"], one["predicted"]) for one in sealed["promises"]] == [
        ("workflow:p50<20s", "met")
    ]
    with start(SERVER) as emulator:
        if how == "url":
            outcome, record = verified(folder, "--url", emulator.url), folder / "out" / "load-00"
        else:
            record = folder / "measured"
            words = ("--rate", 80, "--requests", 400, "--out", "measured", "--no-report")
            loaded = run(
                *("load", emulator.url, "--model", "smollm2-135m", "--workload", "agents.toml"),
                *words,
                folder=folder,
            )
            assert loaded.returncode in {0, 3}, loaded.stderr
            outcome = verified(folder, "--check", "measured")
    if outcome.returncode == 3:
        pytest.skip(f"this machine is too busy to load a server: {outcome.stdout[:300]}")
    found = experiment_of(outcome)
    states = {one["claim"]["metric"]: one["outcome"] for one in found["claims"]}
    measured = states["workflow_p50_s"]["measured"]["value"]
    assert measured == pytest.approx(median_of(record), rel=0.05)
    assert measured > 0.1, "two pauses of 50 ms"
    (promise,) = found["promises"]
    stored = read_run(record)
    plan = draw_workload(stored.manifest.load.workload).plan
    seen = judge_objective(replace(stored, drawn=plan), parse_objective(SLO, has_workflows=True))
    assert promise["outcome"]["measured"] == seen.verdict
    # On a machine that others use too, few of the workflows may count as independent.
    verdicts = {"met": "held", "undecided": "undecided", "missed": "wrong"}
    assert promise["outcome"]["verdict"] == verdicts[seen.verdict]
    assert seen.thresholds[0].seen.seconds.value == pytest.approx(measured)


def test_traffic_without_workflows_cannot_be_promised_some(folder):
    (folder / "agents.toml").write_text(PLAIN)
    refused = verified(folder, "--seal-only")
    check_refused(refused, 2, "no workflow is known here", "the plan's slo", "[classes.fan_out]")


def test_too_few_workflows_for_a_percentile_are_named(folder):
    (folder / "plan.toml").write_text(PLAN.replace("400", "60").replace("p50", "p95"))
    cautions = json.loads(verified(folder, "--seal-only").stdout)["cautions"]
    assert [one["code"] for one in cautions] == ["TOO_FEW_REQUESTS"] * len(cautions)
    assert any("p95 of 15 workflows has no interval" in one["text"] for one in cautions)


@pytest.mark.slow
def test_the_capacity_of_a_server_is_that_of_its_workflows(folder):
    with start(SERVER) as emulator:
        outcome = run(
            *("capacity", emulator.url, "--model", "smollm2-135m", "--workload", "agents.toml"),
            *("--rate", 40, "--slo", "workflow:p50<400ms", "--probe-for", "2s", "--max-probes", 4),
            *("--resolution", 0.5, "--out", "found", "--json"),
            folder=folder,
        )
    if outcome.returncode == 3:
        pytest.skip(f"this machine is too busy to load a server: {outcome.stderr[:300]}")
    capacity = json.loads(outcome.stdout)["levels"][0]["capacity"]
    margins = [one["margin_ratio"] for one in capacity["probes"]]
    seen = [
        median_of(folder / "found" / f"probe-{index:02d}") / 0.4 for index in range(len(margins))
    ]
    assert margins == pytest.approx(seen, rel=0.05)


def test_a_server_without_workflows_in_its_traffic_is_not_searched(folder):
    (folder / "agents.toml").write_text(PLAIN)
    words = ("--workload", "agents.toml", "--rate", 1, "--slo", "workflow:p50<1s", "--out", "f")
    outcome = run("capacity", "http://127.0.0.1:1", "--model", "m", *words, folder=folder)
    check_refused(outcome, 2, "no workflow is known here")


@pytest.mark.slow
def test_a_simulated_server_is_tuned_for_its_workflows(folder):
    found = json.loads(
        run(
            *("tune", *ON_L4, "--max-num-seqs", 2, "--rate", 400, "--requests", 400),
            *("--slo", "workflow:p50<4s", "--steps", "max_num_seqs", "--json"),
            folder=folder,
        ).stdout
    )
    (latency,) = found["latencies"]
    assert latency["text"] == "workflow:p50<4000ms"
    assert latency["after_s"]["value"] < latency["before_s"]["value"]
    assert found["steps"][0]["decision"] == "keep"


def test_a_deployment_says_who_checks_its_workflows(folder):
    outcome = run(
        *("size", "smollm2-135m", "--gpus", "l4", "--datasheet", "--workload", "agents.toml"),
        *("--rate", 5, "--slo", "workflow:p50<20s, ttft:p50<5s", "--requests", 1000, "--likely"),
        *("--max-num-seqs", 64, "--max-num-batched-tokens", 2048, "--out", "plan"),
        folder=folder,
    )
    assert outcome.returncode in {0, 11}, outcome.stderr
    readme = (folder / "plan" / "README.md").read_text()
    assert "workflow:p50<20s has no alert and no panel" in readme
    rules = yaml.safe_load((folder / "plan" / "prometheus-rules.yaml").read_text())
    promised = {
        rule["labels"]["promise"]
        for group in rules["groups"]
        for rule in group["rules"]
        if "promise" in rule.get("labels", {})
    }
    assert promised == {"ttft:p50<5000ms"}
    assert "workflow:p50<20s" in (folder / "plan" / "check-promise.sh").read_text()
    sealed = experiment_of(verified(folder, "--seal-only", plan="plan/verify.toml"))["seal"]
    assert "workflow_p50_s" in {one["metric"] for one in sealed["claims"]}
    again = run("deploy", "plan/plan.json", "--out", "again", folder=folder)
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("watch", "http://127.0.0.1:1", "--slo", "workflow:p50<1s"), "single requests"),
        (("diagnose", "http://127.0.0.1:1", "--slo", "workflow:p50<1s"), "single requests"),
        (("predict", *ON_L4[:3], "--slo", "workflow:p50<1s"), "of one request"),
    ],
)
def test_where_no_workflow_is_known_the_refusal_says_why(folder, words, why):
    check_refused(run(*words, folder=folder), 2, why, "simulate, load, capacity, size, tune")


def test_python_says_the_same(folder):
    (folder / "agents.toml").write_text(PLAIN)
    with pytest.raises(SpecError, match="no workflow is known here"):
        im.tune(
            "smollm2-135m",
            hardware="l4",
            workload=str(folder / "agents.toml"),
            slo="workflow:p50<1s",
        )
