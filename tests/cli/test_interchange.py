"""Do the verbs that read others' results and write for others do what they say, and refuse what they cannot?"""

import json
import shutil
from pathlib import Path

import pytest
from command_line import check_refused, run
from test_examples import check, check_json, examples, run_here

from inferometer.api.published import are_published
from inferometer.records.reading import read_run

RESULTS = Path(__file__).parents[1] / "records" / "imports" / "results"


@pytest.fixture
def folder(tmp_path):
    """The files and the run that the examples name."""
    shutil.copy(RESULTS / "vllm-bench-detailed.json", tmp_path / "bench-result.json")
    shutil.copy(RESULTS / "aiperf-requests.jsonl", tmp_path / "profile_export.jsonl")
    assert (
        run("import", "bench-result.json", "--out", "runs/example", folder=tmp_path).returncode == 0
    )
    return tmp_path


@pytest.mark.parametrize("line", [line for verb in ("import", "export") for line in examples(verb)])
def test_examples(line, folder):
    check(line, run_here(line, folder=folder))
    for path in (folder / "report.json", folder / "requests.csv"):
        path.unlink(missing_ok=True)
    shutil.rmtree(folder / "runs" / "aiperf", ignore_errors=True)
    check_json(line, folder)


def test_several_files_at_once_go_into_folders_of_their_own(tmp_path):
    files = [
        RESULTS / name
        for name in ("vllm-bench-detailed.json", "guidellm.json", "inference-perf-requests.json")
    ]
    outcome = run("import", *files, "--out", "runs", "--json", folder=tmp_path)
    answer = json.loads(outcome.stdout)
    folders = [tmp_path / one["folder"] for file in answer["files"] for one in file["runs"]]
    assert [len(read_run(folder).requests.status) for folder in folders] == [24, 12, 15]
    assert run("show", folders[0], folder=tmp_path).returncode == 0


def test_text_says_what_the_tool_means(tmp_path):
    outcome = run("import", RESULTS / "guidellm.json", folder=tmp_path)
    assert outcome.returncode == 0
    for word in (
        "guidellm",
        "time_per_output_token_ms",
        "normalized_tpot",
        "12 requests",
        "concurrency 3",
        "--out",
    ):
        assert word in outcome.stdout.replace("\n", " "), outcome.stdout


def test_a_published_table_is_counted(tmp_path):
    data = (
        Path(__file__).parents[3]
        / "shared"
        / "data"
        / "inferencemax-official-2025-11"
        / "agg_dsr1_1k1k.json"
    )
    if not data.exists():
        pytest.skip("the published data is not here")
    answer = json.loads(run("import", data, "--json", folder=tmp_path).stdout)
    assert sum(one["n_points"] for one in answer["files"][0]["points"]) == 95


def test_the_next_command_names_the_files_and_runs(folder):
    shown = run("import", "bench-result.json", folder=folder).stdout
    keep = "inferometer import bench-result.json --out runs/bench-result"
    assert f"NEXT   to keep the run: {keep}\n" in shown
    assert run_here(keep, folder=folder).returncode == 0
    table = "concurrency,isl,osl,request_throughput,mean_ttft_ms,mean_tpot_ms\n1,64,8,1.5,40,7\n"
    (folder / "loads.csv").write_text(table)
    shown = run("import", "loads.csv", folder=folder).stdout
    assert "1 of an unnamed model on an unnamed device" in shown
    assert "inferometer fit loads.csv --model ID --hardware ID" in shown
    summary = json.loads((RESULTS / "vllm-bench-summary.json").read_text())
    lines = [json.dumps(summary | {"max_concurrency": users}) for users in (1, 2, 4, 8)]
    for n_loads, is_suggested in ((3, False), (4, True)):
        (folder / "loads.jsonl").write_text("\n".join(lines[:n_loads]))
        shown = run("import", "loads.jsonl", folder=folder).stdout
        assert ("inferometer fit loads.jsonl" in shown) == is_suggested
        assert are_published([folder / "loads.jsonl"]), "fit reads what import read"


@pytest.mark.parametrize(
    ("changes", "caution"),
    [
        ({}, ""),
        ({"mean_tpot_ms": -3.0}, "TPOT: mean is below 0 (-3 ms), as published"),
        (
            {"p99_ttft_ms": 5.0, "median_ttft_ms": 50.0},
            "TTFT: p99 (5 ms) is below p50 (50 ms), as published",
        ),
    ],
)
def test_statistics_that_contradict_themselves_are_named(changes, caution, tmp_path):
    content = json.loads((RESULTS / "vllm-bench-summary.json").read_text()) | changes
    (tmp_path / "bench.json").write_text(json.dumps(content))
    shown = run("import", "bench.json", folder=tmp_path).stdout
    assert ("CAUTION" in shown) == bool(caution)
    assert caution in shown
    (file,) = json.loads(run("import", "bench.json", "--json", folder=tmp_path).stdout)["files"]
    assert [one["code"] for one in file["cautions"]] == ["CONTRADICTION"] * bool(caution)


def test_what_cannot_be_imported_is_refused(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    check_refused(
        run("import", "other.json", folder=tmp_path),
        4,
        "no known format",
        "other.json",
        "AIPerf",
    )
    check_refused(run("import", "absent.json", folder=tmp_path), 4, "cannot be read", "absent.json")
    summary = RESULTS / "aiperf-summary.json"
    check_refused(
        run("import", summary, "--out", "x", folder=tmp_path),
        4,
        "no run to write",
        "profile_export.jsonl",
        f"try: their statistics, without --out: inferometer import {summary}",
    )
    detailed = RESULTS / "vllm-bench-detailed.json"
    check_refused(
        run("import", detailed, detailed, "--out", "x", folder=tmp_path), 4, "the same run"
    )
    check_refused(run("import", folder=tmp_path), 2, "FILE")


@pytest.mark.parametrize("file", ["", "/manifest.json", "/requests.parquet"])
def test_a_run_of_ours_needs_no_import(file, folder):
    """Before, it had no known format, or was a damaged text."""
    outcome = run("import", f"runs/example{file}", folder=folder)
    check_refused(outcome, 4, "it needs no import", "try: inferometer show runs/example")


@pytest.mark.parametrize("manifest", ['{"schema_version": 2, "files": ["a.json"]}', "a: b", ""])
def test_a_folder_of_others_with_a_manifest_is_judged_by_it(manifest, tmp_path):
    """Its name alone made it a run of ours, which `show` then refused."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "manifest.json").write_text(manifest)
    (theirs / "aiperf.json").write_bytes((RESULTS / "aiperf-summary.json").read_bytes())
    outcome = run("import", "theirs", folder=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    assert "aiperf.json: aiperf" in outcome.stdout
    check_refused(run("import", "theirs/manifest.json", folder=tmp_path), 4, "manifest.json")


def test_what_cannot_be_exported_is_refused(folder):
    (folder / "there.json").write_text("mine")
    check_refused(
        run("export", "runs/example", "--format", "llm-d", "--out", "there.json", folder=folder),
        4,
        "there already",
    )
    assert (folder / "there.json").read_text() == "mine"
    check_refused(
        run("export", "runs/none", "--format", "csv", "--out", "x.csv", folder=folder),
        4,
        "runs/none",
    )
    check_refused(
        run("export", "runs/example", "--format", "xml", "--out", "x", folder=folder), 2, "xml"
    )
    check_refused(
        run("export", "runs/example", "--format", "csv", "--out", "no/such/x.csv", folder=folder),
        4,
        "no/such",
    )
    check_refused(
        run(
            "export",
            "runs/example",
            "--format",
            "llm-d",
            "--out",
            "x",
            "--slo",
            "ttft:p95<5",
            folder=folder,
        ),
        2,
        "has no unit",
    )


def test_goodput_goes_along(folder):
    arguments = (
        "export",
        "runs/example",
        "--format",
        "vllm-bench",
        "--out",
        "out.json",
        "--slo",
        "ttft:p95<12ms, tpot:p95<50ms",
        "--json",
    )
    answer = json.loads(run(*arguments, folder=folder).stdout)
    written = json.loads((folder / "out.json").read_text())
    assert 0 < answer["n_good"] < answer["n_requests"] == 24
    assert written["request_goodput"] == pytest.approx(answer["n_good"] / written["duration"])


def test_requests_of_other_tools_are_shown_and_compared_as_they_are(folder):
    """The same as by way of ``import``, whose folder the JSON names instead of the file."""
    imported = run("show", "runs/example", "--json", folder=folder)
    shown = run("show", "bench-result.json", "--json", folder=folder)
    assert shown.returncode == imported.returncode == 0
    said, by_import = (json.loads(one.stdout) for one in (shown, imported))
    assert (said["runs"], by_import["runs"]) == (["bench-result.json"], ["runs/example"])
    assert said["requests"][0]["summaries"] == by_import["requests"][0]["summaries"]
    outcome = run("compare", "bench-result.json", "profile_export.jsonl", "--json", folder=folder)
    answer = json.loads(outcome.stdout)
    assert (answer["old"], answer["new"]) == (["bench-result.json"], ["profile_export.jsonl"])
    assert answer["comparison"]["answer"]["ratio"]["value"] > 0
    run("import", "profile_export.jsonl", "--out", "runs/aiperf", folder=folder)
    again = json.loads(
        run("compare", "runs/example", "runs/aiperf", "--json", folder=folder).stdout
    )
    assert again["comparison"] == answer["comparison"]


def test_files_of_several_runs_or_of_statistics_alone_are_not_compared(folder):
    content = json.loads((RESULTS / "guidellm.json").read_text())
    content["benchmarks"] *= 2
    content["benchmarks"][1] = json.loads(
        json.dumps(content["benchmarks"][1]).replace('"output_tokens": 12', '"output_tokens": 11')
    )
    (folder / "two.json").write_text(json.dumps(content))
    check_refused(run("show", "two.json", folder=folder), 2, "holds 2 runs", "import two.json")
    shutil.copy(RESULTS / "vllm-bench-summary.json", folder / "summary.json")
    check_refused(
        run("compare", "summary.json", "bench-result.json", folder=folder),
        2,
        "inferometer import summary.json",
    )


def test_requests_that_no_statistic_is_of_are_told(tmp_path):
    """Older vLLM counts no failed requests: what is missing of ``num_prompts`` is."""
    content = json.loads((RESULTS / "vllm-bench-summary.json").read_text())
    content |= {"num_prompts": content["completed"] + 15, "failed": None}
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(content))
    told = run("import", path, folder=tmp_path).stdout.replace("\n", " ")
    assert f"completed {content['completed']} of {content['completed'] + 15}" in told
    assert "15 requests that were to be sent are neither completed" in told
    path.write_text(json.dumps(content | {"failed": 15}))
    assert "neither completed" not in run("import", path, folder=tmp_path).stdout


def test_a_folder_of_results_is_its_files(tmp_path):
    (tmp_path / "sweep").mkdir()
    for name in ("vllm-bench-summary.json", "guidellm.json", "aiperf-requests.jsonl"):
        shutil.copy(RESULTS / name, tmp_path / "sweep")
    (tmp_path / "sweep" / "plot.png").write_bytes(b"\x89PNG")
    answer = json.loads(run("import", "sweep", "--json", folder=tmp_path).stdout)
    tools = [file["tool"] for file in answer["files"]]
    assert tools == ["aiperf", "guidellm", "vllm-bench"]
    (tmp_path / "sweep" / "notes.txt").write_text("a note")
    outcome = run("import", "sweep", folder=tmp_path)
    assert outcome.returncode == 4
    assert "notes.txt" in outcome.stderr
