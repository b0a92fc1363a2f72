"""Are SGLang's lines and the printed block of vLLM's and SGLang's bench read as their summaries?"""

import json
from pathlib import Path

import pytest

from inferometer.errors import RecordError
from inferometer.records.imports.detection import read_results

RESULTS = Path(__file__).parent / "results"
BLOCK = """\
============ Serving Benchmark Result ============
Successful requests:                     100
Failed requests:                         2
Maximum request concurrency:             16
Benchmark duration (s):                  41.24
Total input tokens:                      99744
Total generated tokens:                  100000
Request throughput (req/s):              2.43
Output token throughput (tok/s):         2425.01
Total Token throughput (tok/s):          4843.81
---------------Time to First Token----------------
Mean TTFT (ms):                          60.77
Median TTFT (ms):                        58.02
P99 TTFT (ms):                           121.50
---------------Inter-token Latency----------------
Mean ITL (ms):                           6.40
P99.9 ITL (ms):                          9.20
==================================================
"""
SGLANG_BLOCK = """\
============ Serving Benchmark Result ============
Backend:                                 sglang
Traffic request rate:                    inf
Max request concurrency:                 not set
Successful requests:                     996
Benchmark duration (s):                  264.25
Total input tokens:                      342460
Total generated tokens:                  218257
Total generated tokens (retokenized):    218200
Request throughput (req/s):              3.77
Input token throughput (tok/s):          1295.95
Output token throughput (tok/s):         825.94
Total throughput (tok/s):                2121.89
----------------End-to-End Latency----------------
Mean E2E Latency (ms):                   2098.07
Median E2E Latency (ms):                 606.86
==================================================
"""
LINE = {
    "backend": "sglang",
    "dataset_name": "random",
    "request_rate": 4.0,
    "max_concurrency": None,
    "random_input_len": 1024,
    "duration": 30.0,
    "completed": 120,
    "total_input_tokens": 60_000,
    "total_output_tokens": 12_000,
    "total_output_tokens_retokenized": 11_990,
    "request_throughput": 4.0,
    "input_throughput": 2000.0,
    "output_throughput": 400.0,
    "mean_e2e_latency_ms": 900.0,
    "median_e2e_latency_ms": 850.0,
    "std_e2e_latency_ms": 100.0,
    "p99_e2e_latency_ms": 1500.0,
    "mean_ttft_ms": 50.0,
    "median_ttft_ms": 45.0,
    "p99_ttft_ms": 120.0,
    "mean_tpot_ms": 8.0,
    "mean_itl_ms": 8.1,
    "p95_itl_ms": 9.0,
}


def read(tmp_path, text, name="results.txt"):
    (tmp_path / name).write_text(text)
    return read_results(tmp_path / name)


def test_blocks_in_a_log_are_summaries(tmp_path):
    commented = "".join(f"# {line}\n" for line in BLOCK.splitlines())
    found = read(tmp_path, f"INFO started\n{BLOCK}\n...\n{commented}")
    assert (found.tool, len(found.summaries)) == ("vllm-bench", 2)
    one, other = found.summaries
    assert one.latencies == other.latencies
    assert (one.n_completed, one.n_failed, one.concurrency) == (100, 2, 16)
    assert one.mean_prompt_tokens == pytest.approx(997.44)
    ttft = one.latency("ttft")
    assert (ttft.mean_s, ttft.percentiles[0].value_s) == pytest.approx((0.06077, 0.05802))
    gaps = one.latency("chunk_gap").percentiles[-1]
    assert gaps == pytest.approx((0.999, 0.0092))


def test_thousands_may_be_grouped(tmp_path):
    """Before, a block that was pasted from a page with such numbers was refused."""
    (plain,) = read(tmp_path, BLOCK).summaries
    text = BLOCK.replace("2425.01", "2,425.01").replace("60.77", "1,060.77")
    (grouped,) = read(tmp_path, text).summaries
    assert grouped.output_tokens_per_s == plain.output_tokens_per_s == 2425.01
    assert grouped.latency("ttft").mean_s == pytest.approx(1.06077)


def test_a_block_of_sglang_is_told_by_its_retokenized_tokens(tmp_path):
    found = read(tmp_path, SGLANG_BLOCK)
    (one,) = found.summaries
    assert (found.tool, one.engine, one.concurrency) == ("sglang-bench", "sglang", None)
    assert one.offered_requests_per_s == float("inf")
    assert one.latency("e2e").mean_s == pytest.approx(2.09807)


def test_appended_results_of_vllm_are_a_run_and_a_summary_each(tmp_path):
    """`vllm bench serve --append-result` writes a line for each run into one file."""
    whole = json.loads((RESULTS / "vllm-bench-detailed.json").read_text())
    short = json.loads((RESULTS / "vllm-bench-summary.json").read_text())
    path = tmp_path / "all.json"
    path.write_text("\n".join(map(json.dumps, (whole, short, whole | {"request_rate": 7}))))
    found = read_results(path)
    assert (found.tool, len(found.runs)) == ("vllm-bench", 2)
    assert [one.offered_requests_per_s for one in found.summaries][::2] == [20, 7]
    alone = read_results(RESULTS / "vllm-bench-detailed.json")
    assert found.summaries[0].latencies == alone.summaries[0].latencies


def test_each_line_of_sglang_is_a_summary(tmp_path):
    lines = [LINE, LINE | {"request_rate": "trace"}, LINE | {"request_rate": float("inf")}]
    found = read(tmp_path, "\n".join(map(json.dumps, lines)), "online.jsonl")
    assert found.tool == "sglang-bench"
    assert [one.offered_requests_per_s for one in found.summaries] == [4.0, None, float("inf")]
    one = found.summaries[0]
    assert one.total_tokens_per_s == 2400.0
    assert one.latency("e2e").percentiles[-1] == pytest.approx((0.99, 1.5))


@pytest.mark.parametrize(
    "text",
    [
        BLOCK.replace("Successful requests:                     100\n", ""),
        BLOCK.replace("41.24", "soon"),
        json.dumps(LINE) + "\n[1]",
        json.dumps(LINE | {"duration": "soon"}),
    ],
)
def test_what_is_broken_is_refused(tmp_path, text):
    with pytest.raises(RecordError):
        read(tmp_path, text)


def test_results_of_an_old_vllm_and_a_list_of_results_are_read(tmp_path):
    """Before 0.6 the file had ``input_throughput``; 0.6.3 to 0.7 wrote ``request_goodput:``."""
    now = json.loads((RESULTS / "vllm-bench-summary.json").read_text())
    old = now | {"input_throughput": 500.0, "request_goodput:": 1.5}
    del old["total_token_throughput"]
    old.pop("request_goodput", None)
    found = read(tmp_path, json.dumps(old), "old.json")
    assert found.tool == "vllm-bench"
    (one,) = found.summaries
    assert (one.input_tokens_per_s, one.good_requests_per_s) == (500.0, 1.5)
    assert one.total_tokens_per_s == 500.0 + one.output_tokens_per_s
    both = read(tmp_path, json.dumps([now, old], indent=2), "both.json")
    assert [each.good_requests_per_s for each in both.summaries] == [
        now.get("request_goodput"),
        1.5,
    ]
    assert len(read(tmp_path, json.dumps(now, indent=2), "now.json").summaries) == 1


def test_a_total_below_its_output_tells_nothing_of_the_input(tmp_path):
    now = json.loads((RESULTS / "vllm-bench-summary.json").read_text())
    (one,) = read(tmp_path, json.dumps(now | {"total_token_throughput": 1.0}), "odd.json").summaries
    assert (one.input_tokens_per_s, one.total_tokens_per_s) == (None, 1.0)


def summary_of_vllm(tmp_path, **fields):
    content = json.loads((RESULTS / "vllm-bench-summary.json").read_text()) | fields
    return read(tmp_path, json.dumps(content), "one.json").summaries[0]


def test_statistics_without_a_unit_are_seconds(tmp_path):
    """As InferenceX writes vLLM's fields: without a mean, and without ``_ms``."""
    content = {
        "model_id": "m",
        "request_rate": "inf",
        "max_concurrency": 8,
        "duration": 54.77,
        "completed": 80,
        "request_throughput": 1.4606,
        "input_throughput": 14956.6,
        "output_throughput": 186.96,
        "median_ttft": 1.834,
        "p99_ttft": 4.951,
        "median_tpot": 0.0208,
    }
    (one,) = read(tmp_path, json.dumps(content), "x.json").summaries
    assert (one.latency("ttft").percentile_s(0.5), one.latency("ttft").mean_s) == (1.834, None)
    assert one.latency("tpot").percentile_s(0.5) == 0.0208
    with pytest.raises(RecordError, match=r"median_ttft is 1834") as refused:
        read(tmp_path, json.dumps(content | {"median_ttft": 1834.0}), "x.json")
    assert "54.77 at most" in str(refused.value)


def test_a_mean_that_is_not_there_takes_no_median_along(tmp_path):
    one = summary_of_vllm(tmp_path, mean_ttft_ms=float("nan"), median_ttft_ms=58.0)
    assert one.latency("ttft").mean_s is None
    assert one.latency("ttft").percentile_s(0.5) == pytest.approx(0.058)


def test_a_rate_that_is_never_reached_is_a_closed_loop(tmp_path):
    """Ray's tests bound the users and write 1e9 requests/s."""
    bounded = {"max_concurrency": 8, "request_throughput": 3.2}
    assert summary_of_vllm(tmp_path, request_rate=1e9, **bounded).is_closed_loop
    assert not summary_of_vllm(tmp_path, request_rate=4.0, **bounded).is_closed_loop


def test_the_same_fields_as_a_table_are_a_summary_each(tmp_path):
    one = json.loads((RESULTS / "vllm-bench-summary.json").read_text())
    one = {name: value for name, value in one.items() if not isinstance(value, list)}
    rows = [one, one | {"max_concurrency": 7}]
    cells = [[*one], *([str(cell or "") for cell in row.values()] for row in rows)]
    found = read(tmp_path, "\n".join(map(",".join, cells)), "sweep.csv")
    whole = read(tmp_path, json.dumps(rows), "sweep.json")
    assert [each.concurrency for each in found.summaries] == [one["max_concurrency"], 7]
    assert [each.latencies for each in found.summaries] == [
        each.latencies for each in whole.summaries
    ]


def test_a_rate_that_grew_is_no_request_of_all_at_once(tmp_path):
    """VLLM then writes the rate as inf: with a cap of requests in flight it looked like a closed loop."""
    content = json.loads((RESULTS / "vllm-bench-summary.json").read_text())
    content |= {"request_rate": "inf", "max_concurrency": 8, "ramp_up_strategy": "linear",
                "ramp_up_start_rps": 5, "ramp_up_end_rps": 20}  # fmt: skip
    (tmp_path / "ramp.json").write_text(json.dumps(content))
    (summary,) = read_results(tmp_path / "ramp.json").summaries
    assert (summary.offered_requests_per_s, summary.is_closed_loop) == (None, False)
    assert ("ramp_up_end_rps", "20") in summary.settings
