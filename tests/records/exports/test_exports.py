"""Do exported runs say what the run says, in the other tool's words, and do their own readers and validators take them?"""

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.records.load_run import load_plan
from tests.records.server_pages import page

from inferometer.errors import RecordError
from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.workload.types import (
    AtOnce,
    ClosedArrivals,
    OpenArrivals,
    Ramp,
    TraceArrivals,
)
from inferometer.records.exports.llmd_report import llmd_report
from inferometer.records.exports.writing import HEADER, request_csv, vllm_bench_json
from inferometer.records.imports.detection import read_results
from inferometer.records.request_summaries import judge_objective, summarise_requests
from inferometer.records.server_series import sample_table
from inferometer.records.tables import select
from inferometer.records.types import ABSENT, RequestStatus, Validity, ValidityReason

RESULTS = Path(__file__).parents[1] / "imports" / "results"
OBJECTIVE = parse_objective("ttft:p95<12ms, tpot:p95<50ms")


@pytest.fixture
def run():
    """24 requests of a real vLLM server."""
    return read_results(RESULTS / "vllm-bench-detailed.json").runs[0]


@pytest.fixture
def broken(run):
    """The same, the first failed and the last three never done."""
    columns = {
        name: getattr(run.requests, name).copy()
        for name in ("status", "first_token_ns", "finished_ns")
    }
    columns["status"][0], columns["status"][-3:] = RequestStatus.FAILED, RequestStatus.UNFINISHED
    for rows in (slice(0, 1), slice(-3, None)):
        columns["first_token_ns"][rows] = columns["finished_ns"][rows] = ABSENT
    return replace(run, requests=run.requests._replace(**columns), chunks=None)


def test_vllm_bench_comes_back_as_it_was(run):
    """Read and written again, a file of vLLM's own has its numbers; only its duration ends with the last token."""
    theirs = json.loads((RESULTS / "vllm-bench-detailed.json").read_text())
    ours = json.loads(json.dumps(vllm_bench_json(run)))
    of_the_duration = {
        "duration",
        "request_throughput",
        "output_throughput",
        "total_token_throughput",
    }
    compared = 0
    for name, value in ours.items():
        if name in of_the_duration:
            assert value == pytest.approx(theirs[name], rel=0.03)
        elif isinstance(value, float | int) and not isinstance(value, bool):
            assert value == pytest.approx(theirs[name], rel=1e-6), name
            compared += 1
    assert compared > 25
    for name in ("input_lens", "output_lens", "ttfts", "latencies", "queue_times", "errors"):
        assert (
            ours[name] == pytest.approx(theirs[name], rel=1e-5)
            if name != "errors"
            else ours[name] == theirs[name]
        )
    np.testing.assert_allclose(
        np.concatenate(ours["itls"]), np.concatenate(theirs["itls"]), atol=2e-9
    )
    assert np.diff(ours["start_times"]) == pytest.approx(np.diff(theirs["start_times"]), abs=1e-6)


def test_vllm_bench_is_read_again(run, tmp_path):
    path = tmp_path / "ours.json"
    path.write_text(json.dumps(vllm_bench_json(run, judgement=judge_objective(run, OBJECTIVE))))
    imported = read_results(path)
    for name in ("intended_send_ns", "sent_ns", "first_token_ns", "finished_ns"):
        assert (
            np.abs(getattr(imported.runs[0].requests, name) - getattr(run.requests, name)).max()
            <= 2
        )
    good = judge_objective(run, OBJECTIVE).good_requests_per_s
    assert imported.summaries[0].good_requests_per_s == pytest.approx(good)


@pytest.mark.parametrize(
    ("arrivals", "cap", "expected"),
    [
        (OpenArrivals(rate_per_s=12), None, (12, 1.0, None)),
        (OpenArrivals(rate_per_s=12, process="gamma", burstiness_ratio=0.3), 2, (12, 0.3, 2)),
        (OpenArrivals(rate_per_s=12, process="constant"), None, (12, None, None)),
        (
            OpenArrivals(rate_per_s=12, profile=Ramp(from_ratio=0.1, over_s=9)),
            4,
            (None, None, None),
        ),
        (ClosedArrivals(concurrency=32), None, ("inf", None, 32)),
        (AtOnce(), None, ("inf", None, None)),
        (TraceArrivals(path="trace.csv"), None, (None, None, None)),
    ],
)
def test_vllm_bench_says_how_requests_came(run, arrivals, cap, expected, tmp_path):
    workload = msgspec.structs.replace(load_plan().workload, arrivals=arrivals)
    load = load_plan(max_concurrency=cap, workload=workload)
    known = replace(run, manifest=replace(run.manifest, load=load))
    written = vllm_bench_json(known)
    names = ("request_rate", "burstiness", "max_concurrency")
    assert tuple(written[name] for name in names) == expected
    path = tmp_path / "ours.json"
    path.write_text(json.dumps(written))
    (summary,) = read_results(path).summaries
    rate = expected[0]
    assert summary.offered_requests_per_s == (None if rate is None else float(rate))
    assert summary.concurrency == expected[2]
    assert summary.is_closed_loop == isinstance(arrivals, ClosedArrivals)
    has_rate = isinstance(arrivals, OpenArrivals) and arrivals.profile is None
    load_of = llmd_report(known)["scenario"]["load"]["standardized"]
    assert load_of.get("rate_qps") == (12 if has_rate else None)


def test_vllm_bench_counts_what_failed(broken):
    written = vllm_bench_json(broken)
    assert (written["completed"], written["failed"], written["num_prompts"]) == (20, 4, 24)
    assert sum(error != "" for error in written["errors"]) == 4
    assert "itls" not in written
    assert "mean_itl_ms" not in written
    done = select(broken.requests, broken.requests.status == RequestStatus.LENGTH)
    assert written["mean_ttft_ms"] == pytest.approx(
        (done.first_token_ns - done.sent_ns).mean() / 1e6
    )


def test_the_table_has_a_line_each(broken):
    rows = list(csv.DictReader(request_csv(broken).splitlines()))
    assert tuple(rows[0]) == HEADER
    assert len(rows) == 24
    assert (rows[0]["status"], rows[0]["first_token_s"], rows[0]["ttft_s"]) == ("failed", "", "")
    second = {
        name: float(rows[1][name])
        for name in (
            "intended_send_s",
            "sent_s",
            "first_token_s",
            "finished_s",
            "ttft_s",
            "tpot_s",
            "e2e_s",
        )
    }
    assert second["ttft_s"] == pytest.approx(
        second["first_token_s"] - second["intended_send_s"], abs=2e-9
    )
    assert second["tpot_s"] == pytest.approx(
        (second["finished_s"] - second["first_token_s"]) / 15, abs=2e-9
    )


@pytest.mark.parametrize("status", [RequestStatus.REJECTED, RequestStatus.ABORTED])
def test_what_ended_without_being_done_has_no_latency_in_the_table(run, status):
    statuses = run.requests.status.copy()
    statuses[0] = status
    rows = list(
        csv.DictReader(
            request_csv(replace(run, requests=run.requests._replace(status=statuses))).splitlines()
        )
    )
    assert (rows[0]["tpot_s"], rows[0]["e2e_s"]) == ("", "")
    assert rows[0]["finished_s"]
    assert rows[0]["ttft_s"]
    assert rows[1]["tpot_s"]
    assert rows[1]["e2e_s"]


def test_the_table_is_read_again(broken, tmp_path):
    """Every number of a request comes back, what is absent too."""
    path = tmp_path / "requests.csv"
    path.write_text(request_csv(broken))
    imported = read_results(path)
    assert imported.tool == "inferometer"
    (again,) = imported.runs
    for name, column in broken.requests._asdict().items():
        np.testing.assert_array_equal(getattr(again.requests, name), column, err_msg=name)
    assert summarise_requests(again).latency("ttft") == summarise_requests(broken).latency("ttft")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("length", "done", "status 'done'"),
        ("unfinished,0,", "unfinished,1.5,", "count '1.5'"),
        ("failed,0,", "failed,0,soon", "instant"),
    ],
)
def test_a_broken_table_names_its_line(broken, tmp_path, old, new, expected):
    path = tmp_path / "requests.csv"
    path.write_text(request_csv(broken).replace(old, new, 1))
    with pytest.raises(RecordError, match=expected) as caught:
        read_results(path)
    assert "line" in caught.value.where


def test_a_sweep_has_no_requests(run):
    sweep = replace(run, requests=None, chunks=None)
    for export in (llmd_report, vllm_bench_json, request_csv):
        with pytest.raises(RecordError, match="no requests"):
            export(sweep)


def test_llmd_statistics_count_from_the_send(run):
    latency = llmd_report(run)["results"]["request_performance"]["aggregate"]["latency"]
    theirs = json.loads((RESULTS / "vllm-bench-detailed.json").read_text())
    for ours, name in (
        ("time_to_first_token", "ttft"),
        ("time_per_output_token", "tpot"),
        ("request_latency", "e2el"),
    ):
        assert latency[ours]["mean"] * 1e3 == pytest.approx(theirs[f"mean_{name}_ms"], rel=1e-6)
        assert latency[ours]["stddev"] * 1e3 == pytest.approx(theirs[f"std_{name}_ms"], rel=1e-6)
    assert latency["time_to_first_token"]["units"] == "s"
    assert latency["time_per_output_token"]["units"] == "s/token"


def test_llmd_leaves_out_what_is_only_a_lower_bound(run, broken):
    aggregate = llmd_report(broken)["results"]["request_performance"]["aggregate"]
    assert (
        aggregate["requests"]["total"],
        aggregate["requests"]["failures"],
        aggregate["requests"]["incomplete"],
    ) == (24, 1, 3)
    assert {"p95", "max"} <= set(
        llmd_report(run)["results"]["request_performance"]["aggregate"]["latency"][
            "request_latency"
        ]
    )
    assert not {"p95", "p99", "max"} & set(aggregate["latency"]["request_latency"])


def test_llmd_has_no_length_for_what_was_not_answered(broken):
    tokens = broken.requests.output_tokens.copy()
    tokens[0], tokens[-3:] = 0, 1
    report = llmd_report(replace(broken, requests=broken.requests._replace(output_tokens=tokens)))
    lengths = report["results"]["request_performance"]["aggregate"]["requests"]["output_length"]
    assert (lengths["min"], lengths["mean"]) == (16, 16)
    asked = report["scenario"]["load"]["standardized"]["output_seq_len"]
    assert asked == {"distribution": "fixed", "value": 16.0}


def test_llmd_carries_what_it_has_no_place_for(run):
    judgement = judge_objective(run, OBJECTIVE)
    reason = ValidityReason(check="client lag", verdict="SUSPECT", text="late", remedy="more cores")
    judged = replace(
        run, manifest=replace(run.manifest, validity=Validity(verdict="SUSPECT", reasons=(reason,)))
    )
    report = json.loads(msgspec.json.encode(llmd_report(judged, judgement=judgement)))
    ours = report["results"]["profiling"]["inferometer"]
    assert ours["validity"]["verdict"] == "SUSPECT"
    assert ours["objective"]["n_good"] == judgement.n_good < 24
    ttft = next(one for one in ours["summary"]["latencies"] if one["latency"] == "ttft")
    assert (
        ttft["percentiles"][0]["seconds"]["value"]
        == summarise_requests(run).latency("ttft").percentile(0.5).seconds.value
    )


def test_llmd_is_read_again(run, tmp_path):
    path = tmp_path / "report.json"
    path.write_bytes(msgspec.json.encode(llmd_report(run)))
    (summary,) = read_results(path).summaries
    whole = summarise_requests(run)
    assert (summary.tool, summary.n_completed, summary.n_failed, summary.label) == (
        "llm-d",
        24,
        0,
        run.manifest.run_id,
    )
    assert summary.output_tokens_per_s == whole.output_tokens_per_s.value
    assert summary.mean_prompt_tokens == pytest.approx(1565 / 24)
    from_send = whole.latency("ttft_uncorrected").percentile(0.9).seconds.value
    assert summary.latency("ttft").percentile_s(0.9) == from_send


def test_llmd_carries_the_servers_own_numbers(run):
    pages = [
        (at_ns, page(f"vllm-0.32-{name}").encode())
        for at_ns, name in ((0, "before"), (10**9, "after"))
    ]
    report = llmd_report(replace(run, server=sample_table(pages)))
    server = json.loads(msgspec.json.encode(report))["results"]["profiling"]["inferometer"][
        "server"
    ]
    assert (server["kind"], server["n_finished"], server["running"]["highest"]) == ("vllm", 9, 0.0)
    assert server["prefix_hit_fraction"] == pytest.approx(896 / 1214)
    ttft = next(one for one in server["times"] if one["name"] == "ttft")
    assert ttft["percentiles"][0].keys() == {"percentile_fraction", "low_s", "high_s"}
    once = llmd_report(replace(run, server=sample_table(pages[:1])))
    assert "server" not in once["results"]["profiling"]["inferometer"], (
        "one scrape says nothing about a run"
    )


@pytest.fixture(scope="module")
def llmd_python(tmp_path_factory):
    """An environment of its own with the package llmd-benchmark-report."""
    folder = tmp_path_factory.mktemp("llmd") / "environment"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    installed = subprocess.run(
        [python, "-m", "pip", "install", "-q", "llmd-benchmark-report>=0.2.1,<0.3"],
        check=False,
        capture_output=True,
    )
    if installed.returncode:
        pytest.skip("the package llmd-benchmark-report cannot be installed here")
    return python


def run_python(python, program, *arguments):
    ran = subprocess.run(
        [python, "-c", program, *arguments], check=False, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-3000:]


VALIDATE = """
import json, sys
from llmd_benchmark_report.schema_v0_2 import BenchmarkReportV02
for path in sys.argv[1:]:
    given = json.load(open(path))
    kept = BenchmarkReportV02(**given).model_dump(mode="json", by_alias=True)
    assert kept["results"]["profiling"] == given["results"]["profiling"]
    read = kept["results"]["request_performance"]["aggregate"]["latency"]
    for name, statistics in given["results"]["request_performance"]["aggregate"]["latency"].items():
        told = {key: value for key, value in read[name].items() if value is not None}
        assert told == statistics, (name, told, statistics)
"""
AS_JSON = (
    "import json, sys, yaml; json.dump(yaml.safe_load(open(sys.argv[1])), open(sys.argv[2], 'w'),"
    " default=str)"
)


@pytest.mark.slow
def test_llmd_s_own_validator_takes_it(run, broken, llmd_python, tmp_path):
    paths = [tmp_path / "run.json", tmp_path / "broken.json"]
    for path, one in zip(paths, (run, broken), strict=True):
        path.write_bytes(
            msgspec.json.encode(llmd_report(one, judgement=judge_objective(one, OBJECTIVE)))
        )
    run_python(llmd_python, VALIDATE, *paths)


@pytest.mark.slow
def test_llmd_s_own_example_is_read(llmd_python, tmp_path):
    (example,) = llmd_python.parents[1].rglob("br_v0_2_example.yaml")
    run_python(llmd_python, AS_JSON, example, tmp_path / "example.json")
    (summary,) = read_results(tmp_path / "example.json").summaries
    assert (summary.model, summary.engine, summary.hardware) == (
        "Qwen/Qwen3-0.6B",
        "llm-d",
        "NVIDIA-H100-80GB-HBM3",
    )
    assert (summary.offered_requests_per_s, summary.concurrency, summary.n_completed) == (
        10.0,
        None,
        500,
    )
    assert summary.latency("ttft").percentile_s(0.999) == 0.057014757215045425


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "name"),
    [
        ("vllm-benchmark", "vllm-bench-detailed.json"),
        ("aiperf", "aiperf-summary.json"),
        ("inference-perf", "inference-perf-stage.json"),
    ],
)
def test_the_way_over_llmd_s_own_converters_gives_the_same(llmd_python, tmp_path, tool, name):
    """Their reading of a tool's file and ours agree in every digit.

    Only AIPerf's ITL, one value a request, has the name of gaps there.
    """
    report = tmp_path / "report.yaml"
    converter = llmd_python.parent / "benchmark-report"
    subprocess.run(
        [converter, "-w", tool, "-b", "0.2", RESULTS / name, report],
        check=True,
        capture_output=True,
    )
    run_python(llmd_python, AS_JSON, report, tmp_path / "report.json")
    (theirs,), (ours,) = (
        read_results(tmp_path / "report.json").summaries,
        read_results(RESULTS / name).summaries,
    )
    for field in (
        "n_completed",
        "output_tokens_per_s",
        "total_tokens_per_s",
        "completed_requests_per_s",
    ):
        assert getattr(theirs, field) == pytest.approx(getattr(ours, field), rel=1e-12), field
    assert len(theirs.latencies) >= 3
    for latency in theirs.latencies:
        named = "tpot" if (tool, latency.name) == ("aiperf", "chunk_gap") else latency.name
        assert latency.mean_s == pytest.approx(ours.latency(named).mean_s, rel=1e-12)
        assert latency.percentile_s(0.9) == pytest.approx(
            ours.latency(named).percentile_s(0.9), rel=1e-12
        )
