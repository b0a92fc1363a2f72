"""Agents' traffic end to end: simulated, and sent to an emulated server.

Is it sent in the same order, is nothing lost, and is the time of whole workflows answered?
"""

import json

import numpy as np
import pytest
from command_line import check_refused, run

from inferometer.inputs.workload.plan import NONE
from inferometer.inputs.workload.reading import read_workload
from inferometer.inputs.workload.replay import draw_workload
from inferometer.records.reading import read_run
from inferometer.records.types import RequestStatus
from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_process import start
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

AGENTS = """
name = "agents"
n_requests = 120
[arrivals]
kind = "open"
rate_per_s = 60
[[classes]]
name = "agent"
prompt_tokens = { kind = "uniform", low = 40, high = 80 }
output_tokens = { kind = "constant", value = 5 }
[classes.fan_out]
subtasks = { kind = "uniform", low = 2, high = 5 }
prompt_tokens = { kind = "constant", value = 10 }
output_tokens = { kind = "uniform", low = 4, high = 40 }
think_s = { kind = "constant", value = 0.02 }
"""
SERVER = EmulatorPlan(
    model_name="m",
    fleet=lone_replica(
        SchedulerConfig(num_blocks=20_000, max_model_len=16_384, max_num_seqs=64),
        linear_cost(launch_s=1e-3),
    ),
    mean_output_tokens=None,
)
THINK_NS = 20_000_000


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "agents.toml").write_text(AGENTS)
    return tmp_path


def check_order(plan, table, seen_within_ns):
    """Each request that waits is due its pause after the last end for which it waits, as the client saw it."""
    sent, ended = np.full((2, plan.n_requests), NONE)
    sent[table.request_index], ended[table.request_index] = (
        table.intended_send_ns,
        table.finished_ns,
    )
    assert (ended != NONE).all(), "none is lost"
    for row in np.flatnonzero(plan.follows != NONE).tolist():
        awaited = [int(plan.follows[row]), *np.flatnonzero(plan.joins == row).tolist()]
        late_ns = sent[row] - ended[awaited].max() - THINK_NS
        assert 0 <= late_ns <= seen_within_ns


def workflow_seconds(plan, table):
    """Of all workflows, from the record."""
    sent, ended = np.zeros((2, plan.n_requests), np.int64)
    sent[table.request_index], ended[table.request_index] = (
        table.intended_send_ns,
        table.finished_ns,
    )
    syntheses = np.unique(plan.joins[plan.joins != NONE])
    return np.sort((ended[syntheses] - sent[plan.follows[syntheses]]) / 1e9)


def workflow_of(summary):
    (found,) = [one for one in summary["latencies"] if one["latency"] == "workflow"]
    return found


def check_answered(summary, plan, table):
    found, seconds = workflow_of(summary), workflow_seconds(plan, table)
    assert (found["n_samples"], found["n_bounded_below_only"]) == (len(seconds), 0)
    assert found["mean"]["seconds"]["value"] == pytest.approx(seconds.mean())
    p50 = found["percentiles"][0]["seconds"]["value"]
    assert seconds[len(seconds) // 2 - 2] <= p50 <= seconds[len(seconds) // 2 + 1]


def test_agents_are_simulated(folder):
    words = ("simulate", "llama-3.1-8b", "--hardware", "h100_sxm", "--datasheet")
    outcome = run(*words, "--workload", "agents.toml", "--out", "run", "--json", folder=folder)
    assert outcome.returncode == 0, outcome.stderr
    plan = draw_workload(read_workload(folder / "agents.toml")).plan
    table = read_run(folder / "run").requests
    check_order(plan, table, 1_000_000_000 // 100)
    likely, fast, slow = (one["summary"] for one in json.loads(outcome.stdout)["levels"])
    check_answered(likely, plan, table)
    means = [workflow_of(one)["mean"]["seconds"]["value"] for one in (fast, likely, slow)]
    assert means == sorted(means)
    text = run(*words, "--workload", "agents.toml", folder=folder).stdout
    assert any(line.startswith("workflow ") for line in text.splitlines())


@pytest.mark.slow
def test_agents_are_sent_to_a_server(folder):
    with start(SERVER) as emulator:
        outcome = run(
            *("load", emulator.url, "--model", "m", "--workload", "agents.toml", "--out", "run"),
            *("--processes", 2, "--no-report", "--json"),
            folder=folder,
        )
    assert outcome.returncode in {0, 3}, outcome.stderr
    plan = draw_workload(read_workload(folder / "agents.toml")).plan
    stored = read_run(folder / "run")
    assert (stored.requests.status == RequestStatus.LENGTH).all()
    ended = stored.requests._replace(
        finished_ns=np.maximum(stored.requests.finished_ns, stored.exchanges.last_byte_ns)
    )
    check_order(plan, ended, 5_000_000)
    summaries = json.loads(outcome.stdout)["requests"]["summaries"]
    check_answered(summaries[0], plan, stored.requests)
    shown = run("show", "run", folder=folder)
    assert any(line.startswith("workflow ") for line in shown.stdout.splitlines())


def test_a_trace_of_ones_own_says_who_waits_for_whom(folder):
    head = {"format": "inferometer-requests", "version": 1, "name": "t", "tenant_names": ["t"]}
    head |= {"class_names": ["c"], "class_slos": [None]}
    lengths = {"prompt_tokens": 50, "output_tokens": 5}
    rows = [
        {"arrival_ns": 0, "follows": None, "joins": None, "think_ns": None},
        {"arrival_ns": None, "follows": 0, "joins": 3, "think_ns": 0},
        {"arrival_ns": None, "follows": 0, "joins": 3, "think_ns": 0},
        {"arrival_ns": None, "follows": 0, "joins": None, "think_ns": 0},
    ]

    def simulated(rows):
        lines = [json.dumps(head), *(json.dumps(row | lengths) for row in rows)]
        (folder / "trace.jsonl").write_text("\n".join(lines) + "\n")
        words = ("simulate", "llama-3.1-8b", "--hardware", "h100_sxm", "--datasheet")
        return run(*words, "--workload", "trace.jsonl", "--json", folder=folder)

    outcome = simulated(rows)
    assert outcome.returncode == 0, outcome.stderr
    assert workflow_of(json.loads(outcome.stdout)["levels"][0]["summary"])["n_samples"] == 1
    wrong = [*rows[:2], rows[2] | {"joins": 0}, rows[3]]
    check_refused(simulated(wrong), 2, "the request of line 4 joins request 0", "a later request")


BEAMS = """
name = "beams"
n_requests = 20
[arrivals]
kind = "open"
rate_per_s = 4
[[classes]]
name = "search"
prompt_tokens = { kind = "uniform", low = 40, high = 300 }
output_tokens = { kind = "constant", value = 6 }
[classes.beams]
width = 3
"""


@pytest.mark.slow
def test_beam_searches_are_simulated_and_refused_elsewhere(folder):
    (folder / "beams.toml").write_text(BEAMS)
    words = ("simulate", "llama-3.1-8b", "--hardware", "h100_sxm", "--datasheet")
    outcome = run(*words, "--workload", "beams.toml", "--out", "run", "--json", folder=folder)
    assert outcome.returncode == 0, outcome.stderr
    answer = json.loads(outcome.stdout)
    (caution,) = [one["text"] for one in answer["cautions"] if one["code"] == "beams"]
    assert "20 beam searches are 320 requests" in caution
    table = read_run(folder / "run").requests
    assert len(table.status) == 20 * (1 + 3 * 5)
    roots = np.flatnonzero(
        draw_workload(read_workload(folder / "beams.toml"), has_beams=True).plan.follows == NONE
    )
    search = np.searchsorted(roots, table.request_index, side="right")
    seconds = [
        (table.finished_ns[search == one].max() - table.intended_send_ns[search == one].min()) / 1e9
        for one in range(1, 21)
    ]
    found = workflow_of(answer["levels"][0]["summary"])
    assert (found["n_samples"], found["n_bounded_below_only"]) == (20, 0)
    assert found["mean"]["seconds"]["value"] == pytest.approx(np.mean(seconds))
    with start(SERVER) as emulator:
        words = ("load", emulator.url, "--model", "m", "--workload", "beams.toml")
        refused = run(*words, folder=folder)
    check_refused(refused, 2, "class 'search' has beams", "the same file without [classes.beams]")


def test_a_beam_search_is_sent_over_the_network_once(folder):
    """Each search takes a round trip longer, not one for each of its tokens; a plain request too."""
    plain = (
        BEAMS.partition("[classes.beams]")[0].partition("[[classes]]")[2].replace("search", "plain")
    )
    (folder / "beams.toml").write_text(f"{BEAMS}[[classes]]{plain}")
    words = (
        "simulate",
        "llama-3.1-8b",
        "--hardware",
        "h100_sxm",
        "--datasheet",
        "--workload",
        "beams.toml",
    )

    def simulated(*more):
        outcome = run(*words, *more, "--json", folder=folder)
        assert outcome.returncode == 0, outcome.stderr
        return json.loads(outcome.stdout)

    near, far = simulated("--out", "near"), simulated("--network", "300ms", "--out", "far")
    before, after = (read_run(folder / name).requests for name in ("near", "far"))
    plan = draw_workload(read_workload(folder / "beams.toml"), has_beams=True).plan
    comes_by_itself = plan.follows[after.request_index] == NONE
    first_s = (after.first_token_ns - after.intended_send_ns) / 1e9
    assert (first_s[comes_by_itself] >= 0.3).all()
    assert (first_s[~comes_by_itself] < 0.3).all()
    assert (before.first_token_ns - before.intended_send_ns < 3e8).all()
    means = [
        workflow_of(one["levels"][0]["summary"])["mean"]["seconds"]["value"] for one in (near, far)
    ]
    assert means[1] - means[0] == pytest.approx(0.3, rel=0.1)
    parts = far["e2e_parts"]
    assert parts["network_s"] == pytest.approx(0.3 * comes_by_itself.mean())
    named = ("network_s", "front_end_s", "queue_s", "prefill_s", "decode_s")
    assert sum(parts[name] or 0 for name in named) == pytest.approx(parts["total_s"])


def test_a_stored_run_of_beams_is_shown_and_what_searches_loads_refuses_them(folder):
    (folder / "beams.toml").write_text(BEAMS)
    model = ("llama-3.1-8b", "--datasheet", "--workload", "beams.toml")
    server = ("--hardware", "h100_sxm")
    assert run("simulate", *model, *server, "--out", "run", folder=folder).returncode == 0
    shown = run("show", "run", "--json", folder=folder)
    assert shown.returncode == 0, shown.stderr
    assert "320 requests" in run("show", "run", folder=folder).stdout
    slo = ("--slo", "ttft:p95<1s")
    for words in (
        ("capacity", *model, *server, *slo),
        ("size", *model, "--gpus", "h100_sxm", *slo),
    ):
        check_refused(run(*words, folder=folder), 2, "class 'search' has beams")


BUSY = AGENTS.replace("rate_per_s = 60", "rate_per_s = 4").replace(
    "n_requests = 120", "n_requests = 4000"
)


def test_a_limit_of_workflows_is_an_slo_of_simulations_and_searches(folder):
    (folder / "agents.toml").write_text(BUSY)
    model = ("llama-3.1-8b", "--datasheet", "--workload", "agents.toml")
    on = ("--hardware", "h100_sxm")
    met = run("simulate", *model, *on, "--slo", "workflow p95 < 20s", "--json", folder=folder)
    assert met.returncode == 0, met.stderr
    answer = json.loads(met.stdout)
    parts = {one["name"]: one["n_requests"] for one in answer["classes"]}
    n_cut = parts.pop("agent", 0)  # of a workflow whose synthesis is beyond the last request
    assert list(parts) == ["agent planner", "agent subtask", "agent synthesis"]
    assert parts["agent planner"] == parts["agent synthesis"]
    assert sum(parts.values()) + n_cut == answer["levels"][0]["summary"]["n_requests"]
    (judged,) = answer["levels"][0]["judgement"]["thresholds"]
    of_summary = workflow_of(answer["levels"][0]["summary"])["percentiles"]
    (p95,) = [one for one in of_summary if one["percentile_fraction"] == 0.95]
    assert judged["seen"]["seconds"] == p95["seconds"]
    text = run(
        "simulate", *model, *on, "--slo", "workflow p95 < 20s", "--verbose", folder=folder
    ).stdout
    assert "workflow p95" in text
    assert "agent synthesis" in text
    missed = run("simulate", *model, *on, "--slo", "workflow p95 < 10ms", folder=folder)
    assert missed.returncode == 10
    assert "misses the SLO: workflow:p95<10ms" in missed.stdout
    assert "against 10 ms" in missed.stdout


def test_a_stored_simulation_knows_no_workflows_and_judges_none(folder):
    words = ("simulate", "llama-3.1-8b", "--datasheet", "--hardware", "h100_sxm")
    stored = run(*words, "--workload", "agents.toml", "--out", "run", folder=folder)
    assert stored.returncode == 0, stored.stderr
    for verb in ("show", "report"):
        shown = run(verb, "run", "--slo", "workflow:p95<1ms", folder=folder)
        check_refused(shown, 2, "no workflow is known here")


@pytest.mark.slow
def test_capacity_and_size_search_by_workflows(folder):
    (folder / "agents.toml").write_text(BUSY)
    model = ("llama-3.1-8b", "--datasheet", "--workload", "agents.toml", "--slo", "workflow:p95<1s")
    found = run(
        *("capacity", *model, "--hardware", "h100_sxm", "--max-num-seqs", "16", "--json"),
        *("--probe-requests", "400", "--requests", "2000", "--time-limit", "4s"),
        folder=folder,
    )
    assert found.returncode in {0, 11}, found.stderr
    likely = json.loads(found.stdout)["levels"][0]["capacity"]
    assert likely["located_load"] > 4
    assert all("workflow:p95" in one["why"] for one in likely["probes"] if one["margin_ratio"] < 5)
    sized = run(
        *(
            "size",
            *model[:-1],
            "workflow:p95<3s",
            "--gpus",
            "l40s",
            "--tp",
            "1",
            "--max-num-seqs",
            "16",
            "--json",
        ),
        *("--probe-requests", "200", "--requests", "2000", "--quantization", "bfloat16"),
        folder=folder,
    )
    assert sized.returncode in {0, 11}, sized.stderr
    pick = json.loads(sized.stdout)["pick"]
    asked = next(one for one in pick["paces"] if one["step_times"] == pick["sized_at"])
    assert asked["served"]["workflow"]["seconds"]["value"] <= 3.0


@pytest.mark.parametrize(
    "words",
    [
        ("simulate", "--hardware", "h100_sxm", "--rate", "2"),
        ("capacity", "--hardware", "h100_sxm"),
        ("size", "--gpus", "h100_sxm", "--rate", "2"),
        ("tune", "--hardware", "h100_sxm"),
    ],
    ids=lambda words: words[0],
)
def test_where_no_workflow_is_known_their_limit_is_refused(folder, words):
    verb, *flags = words
    refused = run(verb, "llama-3.1-8b", *flags, "--slo", "workflow p95 < 20s", folder=folder)
    check_refused(refused, 2, "no workflow is known here", "e2e:p95<20s")
