"""Lists on the command line, named studies, CSV."""

import csv
import io
import json
from pathlib import Path

import pytest
from tests.cli.command_line import check_refused, run

from inferometer.api.studies import study_options

MODEL = "llama-3.1-8b"


def test_a_list_makes_a_table_with_a_row_for_each_combination(tmp_path: Path) -> None:
    outcome = run(
        "predict", MODEL, "--hardware", "h100,a100", "--batch", "1..4", "--json", folder=tmp_path
    )
    assert outcome.returncode == 0, outcome.stderr
    answer = json.loads(outcome.stdout)
    assert [list(point["values"].values()) for point in answer["points"]] == [
        [device, batch] for device in ("h100", "a100") for batch in (1, 2, 4)
    ]


def test_csv_has_a_line_for_each_point_and_for_one_answer_too(tmp_path: Path) -> None:
    options = ("predict", MODEL, "--hardware", "h100", "--csv")
    grid = run(*options, "--batch", "1,8", folder=tmp_path)
    rows = list(csv.DictReader(io.StringIO(grid.stdout)))
    assert [row["batch"] for row in rows] == ["1", "8"]
    assert float(rows[1]["tpot_s"]) > float(rows[0]["tpot_s"])
    (alone,) = csv.DictReader(io.StringIO(run(*options, folder=tmp_path).stdout))
    assert float(alone["fitted.tpot_s.value"]) == float(rows[0]["tpot_s"])


@pytest.mark.parametrize("name", ["length", "batch", "tp", "precision"])
def test_a_study_answers_with_what_it_found_first(name: str, tmp_path: Path) -> None:
    outcome = run("study", name, MODEL, "--hardware", "h100", folder=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    first, verdict, finding, *_ = outcome.stdout.splitlines()
    assert first.startswith(f"{MODEL} on h100, by ")
    assert verdict.endswith("points fit in memory")
    assert finding.startswith("- ")


@pytest.mark.slow
def test_policies_side_by_side_over_load(tmp_path: Path) -> None:
    outcome = run(
        "study", "policies", MODEL, "--hardware", "h100", "--workload", "256x64", "--requests",
        "200", "--policy", "static,vllm", "--concurrency", "1,64", "--executor", "inline",
        folder=tmp_path,
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr
    assert "vllm completes" in outcome.stdout
    assert "the requests of static at 64 users, and no more than static up to 1" in outcome.stdout


def test_a_rate_takes_the_place_of_a_studys_users(tmp_path: Path) -> None:
    options = study_options("policies", {"model": MODEL, "rate": "2,4"})
    assert options == {"model": MODEL, "rate": "2,4", "policy": "none,static,dynamic,vllm"}
    assert "concurrency" in study_options("policies", {"model": MODEL})
    refused = run(
        "study", "concurrency", MODEL, "--hardware", "h100", "--rate", "2", folder=tmp_path
    )
    check_refused(refused, 2, "try: inferometer simulate MODEL --rate 1,2,4,8")


def test_out_of_a_grid_is_a_folder_for_each_point(tmp_path: Path) -> None:
    outcome = run(
        "simulate", MODEL, "--hardware", "h100", "--workload", "64x8", "--requests", "50",
        "--concurrency", "1,2", "--out", "runs", "--executor", "inline", folder=tmp_path,
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "concurrency=1", "concurrency=2",
    ]  # fmt: skip
    assert run("show", "runs/concurrency=2", folder=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("--batch", "1,x"), "'x'"),
        (("--batch", "8..2"), "'8..2'"),
        (("--batch", "1,,2"), "'1,,2'"),
        (("--tp", "0,1"), "0"),
        (("--hardware", "h100,h1000"), "h1000"),
    ],
)
def test_a_bad_list_is_refused_by_its_item(
    words: tuple[str, ...], wrong: str, tmp_path: Path
) -> None:
    hardware = () if "--hardware" in words else ("--hardware", "h100")
    outcome = run("predict", MODEL, *hardware, *words, folder=tmp_path)
    check_refused(outcome, 2, wrong)


@pytest.mark.parametrize(("slo", "code"), [("tpot:p95<12ms", 0), ("tpot:p95<1ms", 10)])
def test_the_exit_code_of_a_grid_says_whether_a_point_meets_the_slo(
    slo: str, code: int, tmp_path: Path
) -> None:
    words = (MODEL, "--hardware", "h100_sxm", "--batch", "1,512", "--slo", slo)
    assert run("predict", *words, folder=tmp_path).returncode == code
    assert run("study", "batch", *words, folder=tmp_path).returncode == code


def test_the_help_of_a_study_is_short_and_says_what_it_stands_for(tmp_path: Path) -> None:
    for words in (("study", "--help"), ("study", "batch", "--help"), ("predict", "--help")):
        outcome = run(*words, folder=tmp_path)
        assert outcome.returncode == 0
        assert len(outcome.stdout.splitlines()) <= 60
    assert "--batch 1..256" in run("study", "batch", "--help-all", folder=tmp_path).stdout
    assert "1..256" in run("predict", "--help", folder=tmp_path).stdout


@pytest.mark.parametrize("words", [(), ("study",)])
def test_a_table_of_commands_has_all_of_its_help_in_one(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    short = run(*words, "--help", folder=tmp_path)
    outcome = run(*words, "--help-all", folder=tmp_path)
    assert outcome.returncode == 0
    assert outcome.stdout == short.stdout


@pytest.mark.slow
def test_a_study_says_whether_splitting_is_worth_it(tmp_path: Path) -> None:
    outcome = run(
        "study", "disaggregation", MODEL, "--hardware", "h100", "--workload", "512x64",
        "--replicas", "2", "--slo", "ttft:p95<1s, tpot:p95<30ms", "--probe-requests", "200",
        "--requests", "1000", "--time-limit", "6s", "--executor", "inline",
        folder=tmp_path,
    )  # fmt: skip
    assert outcome.returncode in {0, 11}, outcome.stderr
    (finding,) = [line for line in outcome.stdout.splitlines() if "splitting" in line.lower()]
    assert "with prefill replicas 1, carries" in finding
    assert "per GPU within the SLO" in finding
    check_refused(
        run(
            "study", "disaggregation", MODEL, "--hardware", "h100", "--workload", "512x64",
            "--replicas", "1", "--prefill-replicas", "1,2", "--slo", "ttft:p95<1s",
            folder=tmp_path,
        ),
        2, "1 prefill replicas of 1 in all", "allowed: 0 to 0",
    )  # fmt: skip
