"""Are reports without requests read as their tools define them? Written here as the tools' sources write them."""

import json

import numpy as np
import pytest

from inferometer.errors import RecordError
from inferometer.records.imports.detection import read_results

N = 40
RNG = np.random.default_rng(3)
TTFT_S = RNG.lognormal(-1.5, 0.3, N)
TOKENS = RNG.integers(20, 200, N)
E2E_S = TTFT_S + (TOKENS - 1) * RNG.lognormal(-4, 0.1, N)
TOOK_S = 30.0


def llmperf_summary():
    """All flat, whole numbers of arrays as text."""
    series = {
        "inter_token_latency_s": E2E_S / TOKENS,
        "ttft_s": TTFT_S,
        "end_to_end_latency_s": E2E_S,
        "number_output_tokens": TOKENS.astype(float),
    }
    results = {
        f"results_{name}_{key}": value
        for name, values in series.items()
        for key, value in {
            **{f"quantiles_p{p}": np.quantile(values, p / 100) for p in (25, 50, 75, 90, 95, 99)},
            "mean": values.mean(),
            "min": values.min(),
            "max": values.max(),
            "stddev": values.std(ddof=1),
        }.items()
    }
    return results | {
        "version": "2023-08-31",
        "name": "some-model_550_150_summary",
        "model": "some/model",
        "mean_input_tokens": 550,
        "stddev_input_tokens": 0,
        "mean_output_tokens": 150,
        "num_concurrent_requests": 5,
        "results_number_input_tokens_mean": 550.0,
        "results_number_input_tokens_min": "550",
        "results_num_requests_started": N + 2,
        "results_number_errors": 2,
        "results_error_code_frequency": "{429: 2}",
        "results_mean_output_throughput_token_per_s": TOKENS.sum() / TOOK_S,
        "results_num_completed_requests": N,
        "results_num_completed_requests_per_min": N / TOOK_S * 60,
        "timestamp": 1703135943,
    }


def of_trtllm(values_s):
    """It takes the value at a place of the sorted, without interpolation."""
    ordered = np.sort(values_s) * 1000
    at = {f"p{p}": float(ordered[int(N * p / 100)]) for p in (50, 90, 95, 99)}
    ends = {"minimum": ordered[0], "maximum": ordered[-1], "average": float(ordered.mean())}
    return at | ends


def trtllm_report():
    """As PyTorch's backend writes it."""
    return {
        "engine": {
            "model": "some/model", "model_path": "/models/m", "engine_dir": "None",
            "version": "1.2.0", "backend": "Pytorch", "dtype": "bfloat16",
            "kv_cache_dtype": "FP8", "quantization": None,
        },
        "machine": {"name": "NVIDIA H100 80GB HBM3", "memory.total": 79.6, "clocks.mem": 2.6},
        "world_info": {
            "tp_size": 2, "pp_size": 1, "ep_size": None, "world_size": 2, "max_batch_size": 64,
            "max_num_tokens": 8192, "scheduling_policy": "GUARANTEED_NO_EVICT",
            "kv_cache_percentage": 0.9, "issue_rate": 1e9,
        },
        "request_info": {
            "num_requests": N, "avg_num_concurrent_requests": 7.5, "avg_input_length": 550.0,
            "avg_output_length": float(TOKENS.mean()),
        },
        "performance": {
            "total_latency_ms": TOOK_S * 1000,
            "request_throughput_req_s": N / TOOK_S,
            "system_output_throughput_tok_s": TOKENS.sum() / TOOK_S,
            "system_total_throughput_tok_s": (TOKENS.sum() + 550 * N) / TOOK_S,
            "request_latency_percentiles_ms": of_trtllm(E2E_S),
        },
        "streaming_metrics": {
            "ttft_percentiles": of_trtllm(TTFT_S),
            "tpot_percentiles": of_trtllm((E2E_S - TTFT_S) / (TOKENS - 1)),
        },
        "dataset": {},
    }  # fmt: skip


def summary_of(content, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(content, default=str))
    (summary,) = read_results(path).summaries
    return summary


def test_llmperf(tmp_path):
    summary = summary_of(llmperf_summary(), tmp_path)
    assert (summary.tool, summary.model, summary.concurrency) == ("llmperf", "some/model", 5)
    assert summary.is_closed_loop
    assert (summary.n_completed, summary.n_failed) == (N, 2)
    assert summary.duration_s == pytest.approx(TOOK_S)
    assert summary.completed_requests_per_s == pytest.approx(N / TOOK_S)
    assert summary.mean_output_tokens == pytest.approx(TOKENS.mean())
    assert summary.latency("ttft").percentile_s(0.95) == pytest.approx(np.quantile(TTFT_S, 0.95))
    assert summary.latency("e2e").mean_s == pytest.approx(E2E_S.mean())
    # what it calls the latency between tokens holds the first token's too: that is no TPOT
    assert summary.latency("tpot") is None
    assert summary.latency("normalized_tpot").mean_s == pytest.approx((E2E_S / TOKENS).mean())


def test_llmperfs_responses_are_no_run(tmp_path):
    response = {"error_code": None, "error_msg": "", "inter_token_latency_s": 0.01, "ttft_s": 0.2,
                "end_to_end_latency_s": 2.0, "request_output_throughput_token_per_s": 50.0,
                "number_total_tokens": 700, "number_output_tokens": 150,
                "number_input_tokens": 550}  # fmt: skip
    path = tmp_path / "responses.json"
    path.write_text(json.dumps([response]))
    with pytest.raises(RecordError, match="when each request was sent") as refused:
        read_results(path)
    assert "_summary.json" in str(refused.value)


def test_trtllm_bench(tmp_path):
    summary = summary_of(trtllm_report(), tmp_path)
    assert (summary.tool, summary.tool_version) == ("trtllm-bench", "1.2.0")
    assert (summary.model, summary.hardware) == ("some/model", "NVIDIA H100 80GB HBM3")
    assert summary.duration_s == TOOK_S
    assert summary.total_tokens_per_s == pytest.approx((TOKENS.sum() + 550 * N) / TOOK_S)
    settings = dict(summary.settings)
    assert (settings["tp_size"], settings["avg_num_concurrent_requests"]) == ("2", "7.5")
    assert "ep_size" not in settings, "what it left empty it did not say"
    tpot_s = np.sort((E2E_S - TTFT_S) / (TOKENS - 1))
    assert summary.latency("tpot").mean_s == pytest.approx(tpot_s.mean())
    assert summary.latency("tpot").percentile_s(0.9) == pytest.approx(tpot_s[36])
    assert summary.latency("ttft").percentile_s(0.99) == pytest.approx(np.sort(TTFT_S)[39])
    assert summary.latency("e2e").min_s == pytest.approx(E2E_S.min())


PRINTED = """\
[07/01/2026-10:00:00] [TRT-LLM] [I]

===========================================================
= PYTORCH BACKEND
===========================================================
Model:                  some/model
Model Path:             None
TensorRT-LLM Version:   1.2.0
Quantization:           None
===========================================================
= REQUEST DETAILS
===========================================================
Number of requests:             100
Number of concurrent requests:  94.5
Average Input Length (tokens):  128.0000
Average Output Length (tokens): 64.0000
===========================================================
= WORLD + RUNTIME INFORMATION
===========================================================
TP Size:                2
EP Size:                None
===========================================================
= PERFORMANCE OVERVIEW
===========================================================
Request Throughput (req/sec):                     80.0000
Total Output Throughput (tokens/sec):             \t5120.0000
Total Token Throughput (tokens/sec):              15360.0000
Total Latency (ms):                               1250.0000
Average request latency (ms):                     1000.0000
Average time-to-first-token [TTFT] (ms):   160.0
Average time-per-output-token [TPOT] (ms): 7.5

-- Per-Request Time-to-First-Token [TTFT] Breakdown (ms)

[TTFT] MINIMUM: 90.0000
[TTFT] AVERAGE: 160.0000
[TTFT] P99    : 230.0000

-- Request Latency Breakdown (ms) -----------------------

[Latency] P50    : 990.0000
[Latency] AVERAGE: 1000.0000
"""
PRINTED_ONE_BY_ONE = """\
===========================================================
= ENGINE DETAILS
===========================================================
Model:\t\t\tsome/model
===========================================================
= WORLD + RUNTIME INFORMATION
===========================================================
TP Size:\t\t4
Max Runtime Batch Size:\t1
===========================================================
= GENERAL OVERVIEW
===========================================================
Number of requests:\t\t10
Average Input Length (tokens):\t512.0000
Average Output Length (tokens):\t100.0000
Average request latency (ms):\t2000.0000

===========================================================
= THROUGHPUT OVERVIEW
===========================================================
Request Throughput (req/sec):\t\t  0.5000
Total Token Throughput (tokens/sec):\t  50.0000
Generation Token Throughput (tokens/sec): 51.0000

===========================================================
= LATENCY OVERVIEW
===========================================================
Total Latency (ms):\t\t  20000.0000
Average time-to-first-token (ms): 20.0000
Average inter-token latency (ms): 19.8000
Acceptance Rate (Speculative):\t  1.00

===========================================================
= GENERATION LATENCY BREAKDOWN
===========================================================
MIN (ms): 1900.0000
P90 (ms): 1980.0000
"""
PRINTED_BY_0_12 = """\
===========================================================
= ENGINE DETAILS
===========================================================
Model:\t\t\tolder/model
TensorRT-LLM Version:\t0.12.0
===========================================================
= STATISTICS
===========================================================
Number of requests:             3000
Average Input Length (tokens):  128.0
Average Output Length (tokens): 128.0
Token Throughput (tokens/sec):  23400.5
Request Throughput (req/sec):   182.8
Total Latency (seconds):        16.4
===========================================================
"""


def test_blocks_that_trtllm_bench_prints(tmp_path):
    """With the labels and units of each version; several runs may be in one log."""
    path = tmp_path / "bench.log"
    path.write_text(PRINTED + PRINTED_BY_0_12)
    new, old = read_results(path).summaries
    assert (new.tool, new.tool_version, new.model) == ("trtllm-bench", "1.2.0", "some/model")
    assert (new.n_completed, new.duration_s) == (100, 1.25)
    assert (new.output_tokens_per_s, new.total_tokens_per_s) == (5120, 15360)
    assert dict(new.settings) == {"avg_num_concurrent_requests": "94.5", "tp_size": "2"}
    ttft = new.latency("ttft")
    assert (ttft.min_s, ttft.mean_s, ttft.percentile_s(0.99)) == pytest.approx((0.09, 0.16, 0.23))
    assert new.latency("e2e").percentile_s(0.5) == pytest.approx(0.99)
    assert new.latency("tpot").mean_s == pytest.approx(0.0075)
    assert (old.tool_version, old.n_completed, old.duration_s) == ("0.12.0", 3000, 16.4)
    assert (old.output_tokens_per_s, old.total_tokens_per_s) == (23400.5, None)
    assert old.latencies == ()


def test_requests_one_by_one_of_an_older_trtllm_bench(tmp_path):
    """Blocks of ``trtllm-bench latency`` were unread; its total throughput is of output tokens."""
    path = tmp_path / "latency.log"
    path.write_text(PRINTED_ONE_BY_ONE)
    (one,) = read_results(path).summaries
    assert (one.model, one.concurrency, one.n_completed, one.duration_s) == (
        "some/model", 1, 10, 20.0,
    )  # fmt: skip
    assert (one.output_tokens_per_s, one.total_tokens_per_s) == (50.0, None)
    means = {latency.name: (latency.mean_s, latency.percentiles) for latency in one.latencies}
    assert means == {"ttft": (0.02, ()), "tpot": (0.0198, ()), "e2e": (2.0, ())}


def test_trtllm_bench_with_averages_alone(tmp_path):
    report = trtllm_report()
    report["streaming_metrics"] = {"avg_ttft_ms": 80.0, "avg_tpot_ms": 12.5}
    summary = summary_of(report, tmp_path)
    assert {one.name: one.mean_s for one in summary.latencies if one.name != "e2e"} == {
        "ttft": 0.08,
        "tpot": 0.0125,
    }


def test_a_run_that_streamed_nothing_has_no_ttft(tmp_path):
    report = trtllm_report()
    del report["streaming_metrics"]
    report["machine"] = None
    summary = summary_of(report, tmp_path)
    assert [one.name for one in summary.latencies] == ["e2e"]
    assert summary.hardware is None


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"performance": 3}, "performance is 3"),
        ({"request_info": {"num_requests": 1.5}}, r"request_info.num_requests is 1.5"),
        (
            {"streaming_metrics": {"ttft_percentiles": {"p50": "soon"}}},
            r"streaming_metrics.ttft_percentiles.p50 is 'soon'",
        ),
    ],
)
def test_broken_reports_are_named(change, complaint, tmp_path):
    with pytest.raises(RecordError, match=complaint):
        summary_of(trtllm_report() | change, tmp_path)


def test_batches_of_vllm_bench_latency_are_times_of_a_whole_batch(tmp_path):
    """As its ``--output-json`` writes them: percentiles by number, seconds."""
    taken_s = np.array([1.9, 2.1, 2.0, 2.4])
    at = (10, 25, 50, 75, 90, 99)
    report = {
        "model_id": "some/model",
        "avg_latency": taken_s.mean(),
        "latencies": taken_s.tolist(),
        "percentiles": dict(zip(map(str, at), np.percentile(taken_s, at).tolist(), strict=True)),
    }
    summary = summary_of(report, tmp_path)
    assert (summary.tool, summary.model, summary.n_completed) == ("vllm-bench", "some/model", None)
    assert "4 batches" in summary.label
    assert summary.latency("e2e").mean_s == pytest.approx(2.1)
    assert summary.latency("e2e").percentile_s(0.5) == pytest.approx(2.05)
    assert "one batch" in summary.latency("e2e").definition


def test_vllm_bench_throughput_counts_prompts_and_answers_together(tmp_path):
    report = {
        "elapsed_time": 10.0, "num_requests": 200, "total_num_tokens": 50_000,
        "requests_per_second": 20.0, "tokens_per_second": 5000.0,
    }  # fmt: skip
    summary = summary_of(report, tmp_path)
    assert (summary.n_completed, summary.completed_requests_per_s) == (200, 20.0)
    assert (summary.total_tokens_per_s, summary.output_tokens_per_s) == (5000.0, None)
    assert summary.offered_requests_per_s == np.inf


def genai_bench(unit):
    def stats(values):
        at = {f"p{p}": float(np.quantile(values, p / 100)) for p in (25, 50, 75, 90, 95, 99)}
        ends = {"min": values.min(), "max": values.max(), "mean": values.mean()}
        return at | {name: float(value) for name, value in ends.items()} | {"stddev": 0.1}

    scale = {"s": 1, "ms": 1000}[unit]
    return {
        "aggregated_metrics": {
            "scenario": "D(550,100)", "num_concurrency": 8, "batch_size": 1,
            "iteration_type": "num_concurrency", "run_duration": TOOK_S,
            "mean_output_throughput_tokens_per_s": float(TOKENS.sum() / TOOK_S),
            "requests_per_second": N / TOOK_S, "num_error_requests": 1,
            "num_completed_requests": N, "num_requests": N + 1,
            "stats": {
                "ttft": stats(TTFT_S * scale), "e2e_latency": stats(E2E_S * scale),
                "tpot": {"min": None, "mean": None, "p50": None},
                "num_input_tokens": {"mean": 550.0}, "num_output_tokens": stats(TOKENS),
            },
        },
        "individual_request_metrics": [],
        "_time_unit": unit,
    }  # fmt: skip


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_genai_bench(unit, tmp_path):
    summary = summary_of(genai_bench(unit), tmp_path)
    assert (summary.tool, summary.label, summary.concurrency) == ("genai-bench", "D(550,100)", 8)
    assert summary.is_closed_loop
    assert (summary.n_completed, summary.n_failed, summary.n_requested) == (N, 1, N + 1)
    assert summary.duration_s == TOOK_S
    assert summary.mean_output_tokens == pytest.approx(TOKENS.mean())
    assert summary.latency("ttft").percentile_s(0.95) == pytest.approx(np.quantile(TTFT_S, 0.95))
    assert summary.latency("e2e").mean_s == pytest.approx(E2E_S.mean())
    assert summary.latency("tpot") is None, "no answer of two tokens: absent, not 0"


def test_genai_bench_in_another_unit_is_refused(tmp_path):
    with pytest.raises(RecordError, match="_time_unit is 'min'"):
        summary_of(genai_bench("s") | {"_time_unit": "min"}, tmp_path)
