"""Do the requests of another tool's log give back the statistics that the tool itself wrote, by its own definitions?"""

import csv
import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from inferometer.errors import RecordError
from inferometer.records.imports.detection import read_results
from inferometer.records.latencies import latency_samples
from inferometer.records.request_summaries import summarise_requests
from inferometer.records.types import ABSENT, UNKNOWN_COUNT, RequestStatus

RESULTS = Path(__file__).parent / "results"


def only(name):
    imported = read_results(RESULTS / name)
    return imported.summaries[0] if imported.summaries else None, (
        imported.runs[0] if imported.runs else None
    )


def times_s(run):
    """From the send: TTFT, E2E, and TPOT."""
    requests = run.requests
    ttft_s, e2e_s = (
        (column - requests.sent_ns) / 1e9
        for column in (requests.first_token_ns, requests.finished_ns)
    )
    return ttft_s, e2e_s, (e2e_s - ttft_s) / (requests.output_tokens - 1)


def test_vllm_bench():
    summary, run = only("vllm-bench-detailed.json")
    ttft_s, e2e_s, tpot_s = times_s(run)
    gaps_s = np.concatenate(
        [
            np.diff(run.chunks.arrived_ns[run.chunks.request_index == index]) / 1e9
            for index in run.requests.request_index.tolist()
        ]
    )
    for name, values_s in (
        ("ttft", ttft_s),
        ("tpot", tpot_s),
        ("chunk_gap", gaps_s),
        ("e2e", e2e_s),
    ):
        theirs = summary.latency(name)
        assert values_s.mean() == pytest.approx(theirs.mean_s, rel=1e-6)
        assert values_s.std() == pytest.approx(theirs.std_s, rel=1e-6)
        for fraction in (0.5, 0.9, 0.95, 0.99):
            assert np.quantile(values_s, fraction) == pytest.approx(
                theirs.percentile_s(fraction), rel=1e-6
            )
    assert (
        summary.n_completed,
        summary.n_failed,
        summary.concurrency,
        summary.offered_requests_per_s,
    ) == (24, 0, 6, 20.0)
    assert (run.requests.prompt_tokens.sum(), run.requests.output_tokens.sum()) == (1565, 384)
    assert summary.mean_prompt_tokens == pytest.approx(1565 / 24)
    assert summary.input_tokens_per_s == pytest.approx(1565 / summary.duration_s)
    assert summary.good_requests_per_s == pytest.approx(24 / summary.duration_s)
    assert run.manifest.origin == "published"
    assert (run.requests.intended_send_ns <= run.requests.sent_ns).all()
    assert run.requests.intended_send_ns[0] == 0
    assert summarise_requests(run).n_of(RequestStatus.LENGTH) == 24


def test_vllm_bench_without_details():
    summary, run = only("vllm-bench-summary.json")
    assert run is None
    assert summary.offered_requests_per_s == float("inf")
    assert (summary.concurrency, summary.good_requests_per_s) == (None, None), "null is absent"
    assert summary.latency("e2e") is None, "it was not asked for"
    assert summary.latency("ttft").percentiles[-1].value_s == pytest.approx(0.104, abs=1e-3)


def test_vllm_bench_writes_0_for_nothing(tmp_path):
    text = (
        (RESULTS / "vllm-bench-summary.json")
        .read_text()
        .replace('"completed": 10', '"completed": 0')
    )
    for name in ("mean_ttft_ms", "mean_tpot_ms", "mean_itl_ms"):
        before, _, after = text.partition(f'"{name}": ')
        text = f'{before}"{name}": 0.0,{after.partition(",")[2]}'
    path = tmp_path / "none.json"
    path.write_text(text)
    (summary,) = read_results(path).summaries
    assert (summary.latencies, summary.mean_prompt_tokens) == ((), None)


def test_aiperf():
    summary, _ = only("aiperf-summary.json")
    _, run = only("aiperf-requests.jsonl")
    ttft_s, e2e_s, tpot_s = times_s(run)
    for name, values_s in (("ttft", ttft_s), ("tpot", tpot_s), ("e2e", e2e_s)):
        theirs = summary.latency(name)
        assert values_s.mean() == pytest.approx(theirs.mean_s, rel=1e-6)
        assert np.quantile(values_s, 0.9) == pytest.approx(theirs.percentile_s(0.9), rel=1e-6)
    gaps_s = np.concatenate(
        [
            np.diff(run.chunks.arrived_ns[run.chunks.request_index == index]) / 1e9
            for index in run.requests.request_index.tolist()
        ]
    )
    assert gaps_s.mean() == pytest.approx(summary.latency("chunk_gap").mean_s, rel=1e-6)
    assert (run.chunks.n_tokens == ABSENT).any(), (
        "where a chunk carries several tokens nobody can tell how many"
    )
    assert (summary.tool_version, summary.model, summary.n_completed, summary.concurrency) == (
        "0.13.0",
        "tiny",
        18,
        3,
    )
    assert summary.output_tokens_per_s == pytest.approx(12 * summary.completed_requests_per_s)
    lag_s = (run.requests.sent_ns - run.requests.intended_send_ns) / 1e9
    assert lag_s.mean() == pytest.approx(5.1235128888888894e-3), (
        "AIPerf's own credit_to_start_latency"
    )


def test_aiperf_of_its_first_versions(tmp_path):
    content = json.loads((RESULTS / "aiperf-summary.json").read_text())
    content["input_config"] = {
        "endpoint": {"model_names": ["m"], "streaming": True},
        "loadgen": {"concurrency": 7, "request_count": 20},
    }
    path = tmp_path / "profile_export_aiperf.json"
    path.write_text(json.dumps(content))
    (summary,) = read_results(path).summaries
    assert (summary.model, summary.concurrency) == ("m", 7)


STATISTICS = (
    "avg",
    "min",
    "max",
    "sum",
    *(f"p{at}" for at in (1, 5, 10, 25, 50, 75, 90, 95, 99)),
    "std",
)
NAMES_OF_CSV = {
    "time_to_first_token": "Time to First Token",
    "inter_token_latency": "Inter Token Latency",
    "inter_chunk_latency": "Inter Chunk Latency",
    "request_latency": "Request Latency",
    "output_sequence_length": "Output Sequence Length",
    "input_sequence_length": "Input Sequence Length",
    "output_token_throughput": "Output Token Throughput",
    "request_throughput": "Request Throughput",
    "request_count": "Request Count",
    "benchmark_duration": "Benchmark Duration",
}
GPUS = """

Endpoint,GPU_Index,GPU_Name,GPU_UUID,Metric,avg,min,max
localhost:9400,0,NVIDIA H200,GPU-1,GPU Power Usage (W),400.00,300.00,700.00
"""


def csv_of_aiperf():
    """The table that AIPerf 0.14 writes of the statistics in its JSON (``metrics_csv_exporter.py``)."""
    content = json.loads((RESULTS / "aiperf-summary.json").read_text())
    found = {tag: content[tag] for tag in NAMES_OF_CSV}
    rows = [["Metric", *STATISTICS]]
    values = [["Metric", "Value"]]
    for tag, one in sorted(found.items()):
        unit = "" if one["unit"] == "requests" else f" ({one['unit']})"
        if "p50" in one:
            shown = (f"{one[key]:.2f}" if key in one else "" for key in STATISTICS)
            rows.append([NAMES_OF_CSV[tag] + unit, *shown])
        else:
            values.append([NAMES_OF_CSV[tag] + unit, f"{one['avg']:.2f}"])
    return "\n".join(",".join(row) for row in (*rows, [], *values)) + GPUS


def test_aiperf_has_its_statistics_as_a_table_too(tmp_path):
    path = tmp_path / "profile_export_aiperf.csv"
    path.write_text(csv_of_aiperf())
    (of_table,), (expected,) = (
        read_results(one).summaries for one in (path, RESULTS / "aiperf-summary.json")
    )
    assert (of_table.tool, of_table.model, of_table.concurrency) == ("aiperf", None, None)
    assert of_table.n_completed == expected.n_completed == 18
    for name in (
        "mean_prompt_tokens",
        "output_tokens_per_s",
        "completed_requests_per_s",
        "duration_s",
    ):
        assert getattr(of_table, name) == pytest.approx(getattr(expected, name), abs=0.006)
    assert {one.name for one in of_table.latencies} == {one.name for one in expected.latencies}
    for one in expected.latencies:
        assert of_table.latency(one.name).mean_s == pytest.approx(one.mean_s, abs=6e-6)
        for percentile in one.percentiles:
            found_s = of_table.latency(one.name).percentile_s(percentile.percentile_fraction)
            assert found_s == pytest.approx(percentile.value_s, abs=6e-6)


def test_genai_perf_has_a_table_with_its_own_words(tmp_path):
    """As in its documentation: thousands with commas, and a unit of its own for rates."""
    path = tmp_path / "profile_export_genai_perf.csv"
    path.write_text(
        "Metric,avg,min,max,p99,p95,p90,p75,p50,p25\n"
        'Time To First Token (ms),"1,146.31",249.48,"3,485.23","3,457.97","3,349.56","3,215.06",'
        '"1,330.93",640.07,286.52\n'
        'Request Latency (ms),"6,406.20","5,371.47","9,608.72","9,436.13","9,046.58","9,028.16",'
        '"7,549.60","5,690.23","5,493.63"\n'
        "\nMetric,Value\nOutput Token Throughput (per sec),261.25\nRequest Count (count),40.00\n"
    )
    (summary,) = read_results(path).summaries
    assert (summary.tool, summary.n_completed) == ("genai-perf", 40)
    assert summary.output_tokens_per_s == 261.25
    assert summary.latency("ttft").mean_s == pytest.approx(1.14631)
    assert summary.latency("e2e").percentile_s(0.75) == pytest.approx(7.5496)
    assert summary.latency("tpot") is None


def with_cached(name, change):
    """A file of the tool with the counts that a server with a prefix cache reports."""
    text = (RESULTS / name).read_text()
    if name.endswith(".jsonl"):
        lines = [json.loads(line) for line in text.splitlines()]
        for line in lines:
            change(line)
        return "\n".join(map(json.dumps, lines))
    content = json.loads(text)
    change(content)
    return json.dumps(content)


def _of_aiperf(line):
    line["metrics"]["usage_prompt_cache_read_tokens"] = {"value": 16, "unit": "tokens"}


def _of_guidellm(content):
    for one in content["benchmarks"][0]["requests"]["successful"]:
        one["cached_tokens"] = 16


def _of_vllm(content):
    content["cached_tokens"] = [16] * len(content["start_times"])


def _of_inference_perf(content):
    for one in content:
        one["info"]["response_metrics"]["server_usage"]["prompt_tokens_details"] = {
            "cached_tokens": 16
        }


CACHED = {
    "aiperf-requests.jsonl": _of_aiperf,
    "guidellm.json": _of_guidellm,
    "vllm-bench-detailed.json": _of_vllm,
    "inference-perf-requests.json": _of_inference_perf,
}


@pytest.mark.parametrize("name", CACHED)
def test_cached_tokens_of_each_request_are_read_where_a_tool_has_them(name, tmp_path):
    (tmp_path / name).write_text(with_cached(name, CACHED[name]))
    (run,) = read_results(tmp_path / name).runs
    assert set(run.requests.cached_tokens.tolist()) == {16}
    (plain,) = read_results(RESULTS / name).runs
    assert set(plain.requests.cached_tokens.tolist()) == {UNKNOWN_COUNT}


def test_guidellm():
    summary, run = only("guidellm.json")
    ttft_s, e2e_s, tpot_s = times_s(run)
    assert ttft_s.mean() == pytest.approx(summary.latency("ttft").mean_s, rel=1e-5)
    assert summary.latency("tpot").mean_s == pytest.approx(
        np.average(tpot_s, weights=run.requests.output_tokens - 1), rel=1e-4
    )
    assert summary.latency("e2e").mean_s > e2e_s.mean(), (
        "its latency ends after the stream, ours with the last token"
    )
    assert summary.latency("normalized_tpot").mean_s == pytest.approx(
        np.average(e2e_s / run.requests.output_tokens, weights=run.requests.output_tokens), rel=0.05
    )
    assert summary.latency("ttft").percentile_s(0.5) == pytest.approx(
        np.quantile(ttft_s, 0.5, method="higher"), rel=1e-5
    )
    assert [one.percentile_fraction for one in summary.latency("ttft").percentiles][:3] == [
        0.001,
        0.01,
        0.05,
    ]
    assert (summary.tool_version, summary.model, summary.label, summary.concurrency) == (
        "0.8.1",
        "tiny",
        "concurrent",
        3,
    )
    assert (summary.n_completed, summary.n_failed, summary.good_requests_per_s) == (12, 0, None)
    assert run.manifest.created_utc.startswith("2026-11-21T16:51")


def test_guidellm_until_0_3(tmp_path):
    """The strategy under ``args``, instants in the request, and a time per token without its first."""

    def told(mean):
        return {"successful": {"mean": mean, "count": 2, "percentiles": {"p50": mean}}}

    request = {"prompt_tokens": 10, "output_tokens": 5}
    done = [
        request
        | {
            "scheduler_info": {"targeted_start_time": due_s},
            "start_time": at_s,
            "first_token_time": at_s + 0.5,
            "last_token_time": at_s + 0.9,
            "end_time": at_s + 1,
        }
        for due_s, at_s in ((1000.0, 1000.25), (-1, 1002.0))
    ]
    benchmark = {
        "type_": "generative_benchmark",
        "args": {"strategy": {"type_": "concurrent", "streams": 4}},
        "worker": {"backend_model": "m"},
        "request_totals": {"successful": 2, "errored": 1, "incomplete": 0, "total": 3},
        "duration": 3.0,
        "metrics": {
            "time_to_first_token_ms": told(500.0),
            "time_per_output_token_ms": told(80.0),
            "inter_token_latency_ms": told(100.0),
            "request_latency": told(1.0),
            "requests_per_second": told(0.67),
        },
        "requests": {"successful": done, "errored": [], "incomplete": []},
    }
    path = tmp_path / "benchmarks.json"
    path.write_text(json.dumps({"benchmarks": [benchmark]}))
    found = read_results(path)
    (summary,), (run,) = found.summaries, found.runs
    load = summary.model, summary.label, summary.concurrency, summary.n_completed, summary.n_failed
    assert load == ("m", "concurrent", 4, 2, 1)
    assert {one.name: one.mean_s for one in summary.latencies} == {
        "ttft": 0.5,
        "tpot": 0.1,
        "e2e": 1,
    }
    assert run.requests.sent_ns.tolist() == [250_000_000, 2_000_000_000]
    assert run.requests.finished_ns.tolist() == [1_150_000_000, 2_900_000_000]


def test_inference_perf():
    """Its TPOT divides by what its tokenizer makes of the text.

    Half of the truth here, as its stages.csv has it at KubeCon.
    """
    summary, _ = only("inference-perf-stage.json")
    _, run = only("inference-perf-requests.json")
    ttft_s, _, tpot_s = times_s(run)
    assert ttft_s.mean() == pytest.approx(summary.latency("ttft").mean_s, rel=1e-3)
    assert run.requests.output_tokens.mean() == pytest.approx(summary.mean_output_tokens) == 12.4
    assert 1.5 < tpot_s.mean() / summary.latency("tpot").mean_s < 3
    assert summary.latency("chunk_gap").percentile_s(0.5) == 0.0, (
        "half of its gaps are between tokens of one chunk"
    )
    assert (summary.n_completed, summary.n_failed, summary.offered_requests_per_s) == (15, 0, 8.0)
    assert summary.settings == (("token_count_mismatches", "15"),)
    assert run.chunks is None


def test_inference_perf_of_prometheus(tmp_path):
    """``mean`` of the lengths there is tokens a second: by its rates a prompt has 201 tokens."""
    path = tmp_path / "stage_0_prometheus_metrics.json"
    done = {
        "count": 649,
        "rate": 8.2,
        "prompt_len": {"mean": 1492, "rate": 1648.2},
        "output_len": {"mean": 524, "rate": 524.8},
        "request_latency": {"mean": 4.6, "median": 6.4, "p90": 9.3, "p99": 9.9},
        "time_to_first_token": {"mean": 2.7, "median": 2.9, "p90": 4.6, "p99": 5.0},
        "inter_token_latency": {"mean": 0.0, "median": 0.0, "p90": 0.0, "p99": 0.0},
    }
    path.write_text(json.dumps({"load_summary": {}, "successes": done, "failures": {}}))
    (summary,) = read_results(path).summaries
    lengths = summary.mean_prompt_tokens, summary.mean_output_tokens
    assert lengths == pytest.approx((201, 64))
    assert (summary.label, summary.completed_requests_per_s) == ("stage_0", 8.2)
    assert summary.latency("ttft").percentile_s(0.99) == 5.0
    assert summary.latency("e2e").mean_s == 4.6
    assert summary.latency("chunk_gap") is None, "zeros of a histogram that the server has not"


@pytest.mark.parametrize(
    "name",
    [
        "vllm-bench-detailed.json",
        "aiperf-requests.jsonl",
        "guidellm.json",
        "inference-perf-requests.json",
    ],
)
def test_every_run_can_be_summarised(name):
    _, run = only(name)
    summary = summarise_requests(run)
    assert summary.n_requests == len(run.requests.status) >= 12
    assert summary.output_tokens_per_s.value > 0
    samples = latency_samples(run.requests, "ttft", at_ns=10**12)
    assert samples.n_bounded_below_only == 0
    assert (summary.n_preemptions, summary.cached_tokens) == (None, None), "the file tells neither"
    assert "/" not in run.manifest.source.where, "no path of the machine"


def test_inference_perf_stages():
    """KubeCon's table.

    Reported ITL is half of the TPOT that E2E tells, and E2E = TTFT + (out - 1) · TPOT on every
    line.
    """
    path = Path(__file__).parents[4] / "shared" / "data" / "inference-perf-kubecon25" / "stages.csv"
    if not path.exists():
        pytest.skip("the published data is not here")
    summaries = read_results(path).summaries
    assert len(summaries) == 14
    assert {summary.label.split(",")[0] for summary in summaries} == {"vllm", "vllm+v0_engine"}
    first = summaries[0]
    assert (
        first.offered_requests_per_s,
        first.n_completed,
        first.n_failed,
        first.latency("ttft").mean_s,
    ) == (1.0, 60, 0, 0.0311273)
    for summary in summaries:
        tpot_s = summary.latency("tpot").mean_s
        from_parts_s = summary.latency("ttft").mean_s + (summary.mean_output_tokens - 1) * tpot_s
        assert from_parts_s == pytest.approx(summary.latency("e2e").mean_s, rel=1e-3)
        assert summary.latency("chunk_gap").mean_s == pytest.approx(tpot_s / 2, rel=0.1)
        assert summary.latency("tpot").percentiles == ()


def guidellm_csv(report):
    """As GuideLLM 0.8 writes the statistics of its report: three lines of headings."""
    tables = [_guidellm_line(report, benchmark) for benchmark in report["benchmarks"]]
    keys = list(dict.fromkeys(key for line in tables for key in line))
    buffer = StringIO(newline="")
    writer = csv.writer(buffer)
    writer.writerows([key[i] for key in keys] for i in range(3))
    writer.writerows([line.get(key, "") for key in keys] for line in tables)
    return buffer.getvalue()


def _guidellm_line(report, benchmark):
    line = {
        ("Run Info", "Profile", ""): json.dumps({"kind": "concurrent", "streams": [3]}),
        ("Benchmark", "Strategy", ""): benchmark["config"]["strategy"]["type_"],
        ("Timings", "Duration", "Sec"): benchmark["duration"],
        ("Runtime Info", "Metadata", ""): json.dumps(report["metadata"]),
        ("Runtime Info", "Arguments", ""): json.dumps(report["config"]),
    }
    metrics = benchmark["metrics"]
    for status, n in metrics["request_totals"].items():
        line["Request Counts", status.capitalize(), ""] = n
    for group, unit, name in (
        ("Request Latency", "Sec", "request_latency"),
        ("Time to First Token", "ms", "time_to_first_token_ms"),
        ("Time per Output Token", "ms", "time_per_output_token_ms"),
        ("Inter Token Latency", "ms", "inter_token_latency_ms"),
        ("Server Throughput", "Requests/Sec", "requests_per_second"),
        ("Token Metrics", "Input Tokens", "prompt_token_count"),
        ("Token Metrics", "Output Tokens", "output_token_count"),
        ("Token Throughput", "Input Tokens/Sec", "prompt_tokens_per_second"),
        ("Token Throughput", "Output Tokens/Sec", "output_tokens_per_second"),
        ("Token Throughput", "Total Tokens/Sec", "tokens_per_second"),
    ):
        found = metrics[name]["successful"]
        at = found["percentiles"]
        listed = [found["min"], *(at[f"p{p}"] for p in ("001", "01", "05", "10", "25")),
                  *(at[f"p{p}"] for p in (75, 90, 95, 99)), found["max"]]  # fmt: skip
        field = f"Successful {unit}"
        line[group, field, "Mean"], line[group, field, "Median"] = found["mean"], found["median"]
        line[group, field, "Std Dev"] = found["std_dev"]
        line[group, field, "Percentiles"] = str(listed)
    return line


def test_guidellms_table_has_the_statistics_of_its_report(tmp_path):
    report = json.loads((RESULTS / "guidellm.json").read_text())
    (tmp_path / "benchmarks.csv").write_text(guidellm_csv(report))
    table, whole = (
        read_results(path).summaries for path in (tmp_path / "benchmarks.csv", RESULTS / "guidellm.json")
    )  # fmt: skip
    assert len(table) == len(whole)
    for one, other in zip(table, whole, strict=True):
        for latency in other.latencies:
            found = one.latency(latency.name)
            assert (found.mean_s, found.std_s, found.max_s) == (
                latency.mean_s, latency.std_s, latency.max_s)  # fmt: skip
            for fraction, value_s in found.percentiles:
                assert value_s == latency.percentile_s(fraction)
        same = ("concurrency", "label", "model", "tool_version", "duration_s", "n_completed",
                "n_failed", "mean_prompt_tokens", "mean_output_tokens", "output_tokens_per_s",
                "total_tokens_per_s", "completed_requests_per_s")  # fmt: skip
        assert [getattr(one, name) for name in same] == [getattr(other, name) for name in same]


def test_a_report_of_guidellm_without_its_requests_has_its_statistics(tmp_path):
    report = json.loads((RESULTS / "guidellm.json").read_text())
    for benchmark in report["benchmarks"]:
        del benchmark["requests"]
    (tmp_path / "short.json").write_text(json.dumps(report))
    found = read_results(tmp_path / "short.json")
    assert (found.tool, found.runs, len(found.summaries)) == (
        "guidellm", (), len(report["benchmarks"]))  # fmt: skip


def test_guidellms_table_without_a_benchmark_is_refused(tmp_path):
    report = json.loads((RESULTS / "guidellm.json").read_text())
    text = guidellm_csv(report)
    lines = text.splitlines(keepends=True)
    for left in (lines[:3], [lines[0], *lines[2:]]):  # the latter without a line of headings
        (tmp_path / "benchmarks.csv").write_text("".join(left))
        with pytest.raises(RecordError, match="has no benchmark"):
            read_results(tmp_path / "benchmarks.csv")
