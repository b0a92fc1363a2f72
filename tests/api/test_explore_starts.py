"""Does the explorer start from a load test, a fit or a plan, and which measured points are hollow?"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.server_files import server_fit, write_server
from tests.records.load_run import load_manifest, load_plan, load_run

from inferometer.api import explore_page, explored
from inferometer.api.explore import Explore, command_of, query_of, state_of
from inferometer.api.explore_states import started
from inferometer.api.question import question_of
from inferometer.errors import SpecError
from inferometer.inputs.catalog import find_model
from inferometer.measure.executors.local import Inline
from inferometer.records.store import write_run
from inferometer.serve.explore_server import answer_parts

INLINE = Inline(lambda _done, _all: None)
ANSWERS = Path(__file__).parents[1] / "golden" / "answers"
RATE_PER_S = 5.0


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "measured"
    run = load_run(rate_per_s=RATE_PER_S)
    plan = load_plan(served_model="llama-3.1-8b")
    write_run(folder, replace(run, manifest=load_manifest(load=plan)))
    return folder


def start(model, **values):
    return started(question_of(Explore, {"model": str(model), **values}))


@pytest.mark.parametrize(
    ("model", "values", "words"),
    [
        ("nosuch", {}, "no model 'nosuch'"),
        ("llama-3.1-8b", {"hardware": "nosuch"}, "does not know the hardware 'nosuch'"),
        ("llama-3.1-8b", {"slo": "ttft:p95<1"}, "has no unit"),
    ],
)
def test_unknown_names_are_refused_before_a_page_is_served(model, values, words):
    with pytest.raises(SpecError, match=words):
        start(model, **values)
    assert start("llama-3.1-8b").question.server.hardware is None  # to be chosen on the page


def holes_of(begun, **changes):
    """How many measured points are hollow on the plot of TTFT, after these moves."""
    question = begun.question
    if changes:
        question = replace(question, workload=replace(question.workload, **changes))
    found = explored.sketched(question, INLINE)
    points = [explore_page.beside_state(one, found.answer) for one in begun.measured]
    text = answer_parts("sketch", found, begun.measured)["figures"]["ttft-vs-rate"]
    return [one.beyond for one in points], text


def test_a_run_gives_its_traffic_and_its_point_which_is_full(run_folder):
    begun = start(run_folder, hardware="l4", datasheet=True)
    workload = begun.question.workload
    assert begun.question.server.model == "llama-3.1-8b"
    assert workload.rate == pytest.approx(RATE_PER_S, rel=0.15)
    assert workload.workload == "prompt=100,output=16"
    (point,) = begun.measured
    assert (point.prompt_mean_tokens, point.output_mean_tokens) == (100, 16)
    beyond, text = holes_of(begun)
    assert beyond == [""]
    assert "measured p95" in text
    assert str(run_folder) not in query_of(state_of(begun.question))


def test_the_point_is_hollow_where_the_curve_is_of_other_traffic(run_folder):
    begun = start(run_folder, hardware="l4", datasheet=True)
    full, hollow = (
        holes_of(begun, workload=lengths) for lengths in ("prompt=100,output=16", "1000x16")
    )
    assert hollow[0] == ["100 prompt tokens, the curve 1000"]
    assert hollow[0][0] in hollow[1]
    n_holes = [text.count('class="hole"') for _, text in (full, hollow)]
    assert n_holes == [0, 1]


def test_a_run_of_another_model_is_hollow(run_folder):
    begun = start("smollm2-135m", hardware="l4", run=[run_folder], rate=1.0, workload="100x16")
    assert holes_of(begun)[0] == ["of llama-3.1-8b"]


def test_a_fit_of_a_server_gives_its_model_and_its_step_times(tmp_path):
    path = tmp_path / "server.json"
    replace(server_fit(), model=find_model("smollm2-135m")).save(path)
    begun = start(path, hardware="l4", rate=8.0, requests=120)
    assert begun.question.server.fit == path
    answer = explored.coarse(begun.question, INLINE).answer
    assert answer.simulation.deployment.model_id == begun.question.server.model
    assert "inverse simulation" in answer.simulation.deployment.step_times_from
    assert f"--fit {path}" in command_of(begun.question)


def test_a_plan_gives_model_device_layout_traffic_and_slo(tmp_path):
    (golden,) = ANSWERS.glob("size-llama-3-1-8b-rate-20-workload-chat-slo-ttft-p95-1s-tpot-*.json")
    plan = json.loads(golden.read_text())["answer"]
    plan["pick"]["n_replicas"] = 3
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    question = start(path).question
    assert question.server.model == plan["model_id"]
    assert question.server.hardware == plan["pick"]["hardware_id"]
    assert question.server.tp == plan["pick"]["tensor_parallel_size"]
    assert question.fleet.cluster.replicas == 3
    assert (question.workload.workload, question.workload.rate) == ("chat", 20.0)
    answer = explored.coarse(question, INLINE).answer
    assert answer.simulation.levels[0].judgement.objective.text == plan["objective"]


def test_a_fit_that_names_no_model_asks_for_it(tmp_path):
    with pytest.raises(SpecError, match="does not name its model"):
        start(write_server(tmp_path), hardware="l4")


def test_what_is_no_load_test_is_said(tmp_path, run_folder):
    run = load_run(n=40)
    write_run(tmp_path / "plain", replace(run, manifest=load_manifest(load=None)))
    with pytest.raises(SpecError, match="is no load test"):
        start(tmp_path / "plain", hardware="l4")
    with pytest.raises(SpecError, match="is no load test"):
        start("smollm2-135m", hardware="l4", run=[tmp_path / "plain"])
    write_run(tmp_path / "other", load_run(n=40))
    with pytest.raises(SpecError, match="does not know its model"):
        start(tmp_path / "other", hardware="l4")
