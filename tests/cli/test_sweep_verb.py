"""Does ``inferometer sweep`` list its points before it runs, and write its table where it is asked to?"""

import csv
import json
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from inferometer.api.measured import places_of
from inferometer.cli.answer import answer_type, json_schema, plain_command
from inferometer.errors import InferometerError, RecordError, SpecError

WORDS = (
    "--model",
    "smollm2-135m",
    "--load-format",
    "dummy",
    "--seq",
    "32,64",
    "--batch-sizes",
    "1,2,4",
    "--gen-tokens",
    "8",
    "--dry-run",
)
RECORDED = Path(__file__).parents[1] / "fit" / "data" / "smollm2-135m-float32"
REQUESTS = (
    Path(__file__).parents[1] / "records" / "imports" / "results" / "vllm-bench-detailed.json"
)


def run(command, *words):
    outcome = CliRunner().invoke(command, [str(word) for word in words])
    if isinstance(outcome.exception, InferometerError):
        raise outcome.exception
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout


def test_a_dry_run_lists_the_points_in_text_and_json(tmp_path):
    text = run(plain_command("sweep"), *WORDS, "--out", tmp_path / "x.csv")
    planned = json.loads(run(plain_command("sweep"), *WORDS, "--out", tmp_path / "x.csv", "--json"))
    jsonschema.validate(planned, json_schema(answer_type("sweep")))
    assert len(planned["points"]) == 6
    lines = [
        [str(one["prompt_tokens"]), str(one["batch_size"]), str(one["gen_tokens"])]
        for one in planned["points"]
    ]
    assert [line.split() for line in text.splitlines()[-6:]] == lines
    assert (planned["csv"], planned["run"]) == (str(tmp_path / "x.csv"), str(tmp_path / "x"))
    assert not any(tmp_path.iterdir()), "nothing is measured, nothing written"


def test_the_batch_axis_at_its_own_prompt_length():
    planned = json.loads(run(plain_command("sweep"), *WORDS, "--batch-prompt-len", 48, "--json"))
    pairs = sorted((one["prompt_tokens"], one["batch_size"]) for one in planned["points"])
    assert pairs == [(32, 1), (48, 1), (48, 2), (48, 4), (64, 1)]
    with pytest.raises(SpecError, match="every batch at every prompt length"):
        run(plain_command("sweep"), *WORDS, "--batch-prompt-len", 48, "--axes", "grid")


@pytest.mark.parametrize(
    ("words", "try_"),
    [
        (("--seq", "32,8192"), "prompts of at most 8,184 tokens"),
        (("--seq", "32", "--batch-prompt-len", "8185"), "prompts of at most 8,184 tokens"),
        (("--gen-tokens", "8192"), "a smaller --gen-tokens"),
    ],
)
def test_points_beyond_the_positions_of_the_model_are_refused(words, try_):
    with pytest.raises(SpecError, match="8,192, the positions of 'smollm2-135m'") as refused:
        run(plain_command("sweep"), *WORDS, *words)
    assert refused.value.try_ == try_
    run(plain_command("sweep"), *WORDS, "--seq", "32,8184")


def test_a_table_of_something_else_is_not_overwritten(tmp_path):
    (tmp_path / "mine.csv").write_text("a,b\n")
    with pytest.raises(RecordError, match="there already"):
        places_of(tmp_path / "mine.csv", tmp_path)
    (tmp_path / "mine").mkdir()
    assert places_of(tmp_path / "mine.csv", tmp_path).run == tmp_path / "mine"


@pytest.mark.slow
def test_a_sweep_is_exported_as_its_table(tmp_path):
    answer = json.loads(
        run(
            plain_command("export"),
            RECORDED,
            "--format",
            "csv",
            "--out",
            tmp_path / "x.csv",
            "--json",
        )
    )
    jsonschema.validate(answer, json_schema(answer_type("export")))
    with (tmp_path / "x.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == answer["n_points"] > 10
    assert answer["n_requests"] is None
    assert all(
        float(row["decode_tok_s"])
        == pytest.approx(int(row["batch"]) * 1e3 / float(row["tpot_ms"]), rel=1e-4)
        for row in rows
    )
    with pytest.raises(RecordError, match="a format of requests"):
        run(plain_command("export"), RECORDED, "--format", "llm-d", "--out", tmp_path / "x.json")
    with pytest.raises(SpecError, match="no format"):
        run(plain_command("export"), RECORDED, "--out", tmp_path / "x.json")


def test_charts_of_a_run_of_requests_are_exported(tmp_path):
    folder = tmp_path / "run"
    run(plain_command("import"), REQUESTS, "--out", folder)
    answer = json.loads(
        run(plain_command("report"), folder, "--export", tmp_path / "charts", "--json")
    )
    names = {Path(file).name for file in answer["exported"]}
    assert {"latency-tails.csv", "latency-tails.svg"} <= names
    assert names == {path.name for path in (tmp_path / "charts").iterdir()}
