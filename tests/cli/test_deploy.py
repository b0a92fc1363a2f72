"""Does a sizing become a folder that deploys it, is nothing overwritten unasked, and do the examples of ``deploy`` run?"""

import json
import shlex

import jsonschema
import pytest
from command_line import check_refused, run
from test_examples import SCHEMAS, examples

SIZE = shlex.split(
    "size llama-3.1-8b --rate 2 --slo 'ttft:p95<2s' --gpus l40s --tp 1 --max-num-seqs 64"
    " --max-num-batched-tokens 2048"
)
FEW = ["--probe-requests", "100", "--jobs", "1"]


@pytest.fixture(scope="module")
def sized(tmp_path_factory):
    """A folder in which a sizing was written to ``plan``."""
    folder = tmp_path_factory.mktemp("sized")
    outcome = run(*SIZE, *FEW, "--out", "plan", folder=folder)
    assert outcome.returncode in {0, 11}, outcome.stderr
    assert "plan (begin with README.md)" in outcome.stderr
    return folder


def test_a_sizing_is_written_whole(sized):
    files = {path.name for path in (sized / "plan").iterdir()}
    assert {
        "README.md",
        "plan.json",
        "vllm-serve.sh",
        "kubernetes.yaml",
        "prometheus-rules.yaml",
        "grafana-dashboard.json",
        "grafana-live.json",
    } <= files
    assert not [name for name in files if name.endswith(".tmp")]
    assert not (sized / "plan.tmp").exists()
    assert (sized / "plan" / "vllm-serve.sh").stat().st_mode & 0o111
    assert "--max-num-seqs 64" in (sized / "plan" / "vllm-serve.sh").read_text()


def test_what_is_there_is_kept_unless_asked(sized):
    before = (sized / "plan" / "README.md").read_bytes()
    check_refused(run(*SIZE, *FEW, "--out", "plan", folder=sized), 2, "not empty", "--force")
    check_refused(
        run("deploy", "plan/plan.json", "--out", "plan/plan.json", folder=sized),
        2,
        "this is a file",
    )
    check_refused(
        run("deploy", "plan/plan.json", "--out", "plan", folder=sized), 2, "not empty", "--force"
    )
    assert (sized / "plan" / "README.md").read_bytes() == before


def test_deploy_writes_the_same_folder_from_the_plan(sized):
    outcome = run("deploy", "plan", "--out", "again", folder=sized)  # the folder, or its plan.json
    assert outcome.returncode == 0, outcome.stderr
    for path in (sized / "plan").iterdir():
        assert (sized / "again" / path.name).read_bytes() == path.read_bytes(), path.name


def test_the_prediction_can_be_sealed(sized):
    outcome = run(
        "verify",
        "plan/verify.toml",
        "--seal-only",
        "--out",
        "proof",
        "--ledger",
        "ledger.jsonl",
        folder=sized,
    )
    assert outcome.returncode in {0, 11}, outcome.stderr
    assert (sized / "proof" / "seal.json").exists()
    assert (sized / "ledger.jsonl").read_text().count("\n") == 1


def planned_replicas(folder):
    return json.loads((folder / "plan" / "plan.json").read_text())["n_replicas"]


def test_wishes_are_in_the_files(sized):
    wishes = "--namespace llm --spare 1 --most 4 --surge 1 --model-claim weights "
    wishes += (
        "--node-label pool=l40s --port 9000 --image mine:1 --served-name chat --model-source here"
    )
    outcome = run("deploy", "plan/plan.json", "--out", "wishes", *shlex.split(wishes), folder=sized)
    assert outcome.returncode == 0, outcome.stderr
    objects = (sized / "wishes" / "kubernetes.yaml").read_text()
    for said in (
        "namespace: llm",
        "pool: l40s",
        "image: mine:1",
        f"minReplicas: {planned_replicas(sized) + 1}",
        "maxUnavailable: 0",
        "claimName: weights",
        "'9000'",
    ):
        assert said in objects
    assert "exec vllm serve here" in (sized / "wishes" / "vllm-serve.sh").read_text()
    assert 'model_name="chat"' in (sized / "wishes" / "prometheus-rules.yaml").read_text()
    assert "--model chat" in (sized / "wishes" / "check-promise.sh").read_text()


def test_the_examples_run_and_their_json_obeys_the_schema(sized):
    for line in examples("deploy"):
        words = shlex.split(line)[1:]
        outcome = run(*words, "--force", folder=sized)
        assert outcome.returncode == 0, outcome.stderr
        assert "vllm-serve.sh" in outcome.stdout
        said = json.loads(run(*words, "--force", "--json", folder=sized).stdout)
        jsonschema.validate(said, json.loads((SCHEMAS / "deploy.json").read_text()))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing.json"], ["cannot be read"]),
        (["plan/README.md"], ["the plan is damaged", "inferometer size"]),
        (["plan/workload.json"], ["the plan is damaged"]),
        (["plan/plan.json", "--node-label", "pool"], ["KEY=VALUE"]),
        (["plan/plan.json", "--most", "1", "--spare", "2"], ["--most", "{n} or more"]),
        (["plan/plan.json", "--model-source", "/models/llama"], ["--model-claim", "/models"]),
        (["plan/plan.json", "--namespace", "Bad NS!"], ["--namespace", "'Bad NS!'"]),
        (["plan/plan.json", "--backend", "foo"], ["--backend", "HOST:PORT"]),
    ],
)
def test_bad_questions_are_refused_and_nothing_is_written(words, said, sized):
    said = [one.format(n=planned_replicas(sized) + 2) for one in said]
    check_refused(run("deploy", *words, "--out", "bad", folder=sized), 2, *said)
    assert not (sized / "bad").exists()


def test_nothing_is_written_where_nothing_keeps_the_promise(tmp_path):
    hard = [word.replace("2s", "1ms") for word in SIZE]
    outcome = run(*hard, *FEW, "--out", "plan", folder=tmp_path)
    assert outcome.returncode == 10
    assert "nothing is written" in outcome.stderr
    assert not (tmp_path / "plan").exists()
