"""What do reports say that hold statistics and no requests: LLMPerf's summary, trtllm-bench's report?

LLMPerf counts output tokens with its own tokenizer from the text, and spreads the whole time to the
last of them, TTFT too, over all: a normalised TPOT (``token_benchmark_ray.py`` and
``openai_chat_completions_client.py`` of version 2023-08-31). trtllm-bench writes what
``--report_json`` asks for (``tensorrt_llm/bench/dataclasses/reporting.py``); an answer of one token
counts there with a TPOT of 0.
"""

from pathlib import Path
from typing import Final, Never

from inferometer.errors import RecordError
from inferometer.records.imports.imported import (
    DEFINITIONS,
    Imported,
    PublishedLatency,
    PublishedLatencyName,
    PublishedSummary,
    StatisticKeys,
    file_source,
    latency_of,
    published,
)
from inferometer.records.imports.json_fields import JsonFields, read_object

_LLMPERF: Final[dict[PublishedLatencyName, tuple[str, str]]] = {
    "ttft": ("ttft_s", "first text - send"),
    "normalized_tpot": (
        "inter_token_latency_s",
        (
            "(last text - send) / output tokens, one value a request, tokens as its tokenizer"
            " counts the text"
        ),
    ),
    "e2e": ("end_to_end_latency_s", "end of the answer - send"),
}
"""Ours -> LLMPerf's, and what it is."""
_LLMPERF_PERCENTILES: Final = (25, 50, 75, 90, 95, 99)


def refuse_llmperf_responses(path: Path) -> Never:
    """Nothing in them says when a request was sent: they make no run."""
    raise RecordError(
        "LLMPerf's individual responses do not tell when each request was sent",
        where=str(path),
        allowed="a log with instants, or a summary",
        try_="the file beside it whose name ends in _summary.json",
    )


def read_llmperf_summary(path: Path) -> Imported:
    """The statistics of a closed loop at one concurrency.

    Raises
    ------
    RecordError
        A field holds something else than it should; the message names it.
    """
    content = read_object(path)
    per_minute = content.number("results_num_completed_requests_per_min")
    rate = None if per_minute is None else per_minute / 60
    n_completed = content.whole("results_num_completed_requests")
    version = content.text("version")
    summary = PublishedSummary(
        tool="llmperf",
        source=file_source(path, "llmperf"),
        tool_version=None if version is None else f"results of {version}",
        label=content.text("name") or "",
        model=content.text("model"),
        engine=content.text("framework"),
        concurrency=content.whole("num_concurrent_requests"),
        settings=content.pairs(("mean_input_tokens", "mean_output_tokens")),
        duration_s=n_completed / rate if n_completed and rate else None,
        n_completed=n_completed,
        n_failed=content.whole("results_number_errors"),
        mean_prompt_tokens=content.number("results_number_input_tokens_mean"),
        mean_output_tokens=content.number("results_number_output_tokens_mean"),
        completed_requests_per_s=rate,
        output_tokens_per_s=content.number("results_mean_output_throughput_token_per_s"),
        latencies=published(_llmperf_latency(content, name) for name in _LLMPERF),
    )
    return Imported(tool="llmperf", summaries=(summary,))


def _llmperf_latency(content: JsonFields, name: PublishedLatencyName) -> PublishedLatency | None:
    theirs, definition = _LLMPERF[name]
    if not content.has(f"results_{theirs}_mean"):
        return None
    keys = (f"results_{theirs}_{of}" for of in ("mean", "stddev", "min", "max"))
    return latency_of(
        content,
        name,
        theirs,
        definition,
        keys=StatisticKeys(*keys),
        percentiles={f"results_{theirs}_quantiles_p{at}": at / 100 for at in _LLMPERF_PERCENTILES},
    )


_TRTLLM_PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_TRTLLM_SETTINGS: Final = {
    "engine": ("backend", "dtype", "kv_cache_dtype", "quantization"),
    "world_info": (
        "ep_size",
        "issue_rate",
        "kv_cache_percentage",
        "max_batch_size",
        "max_num_tokens",
        "pp_size",
        "scheduling_policy",
        "tp_size",
    ),
    "request_info": ("avg_num_concurrent_requests",),
}


def read_trtllm_report(path: Path) -> Imported:
    """The statistics of a run. How many at once were asked for, it does not say; how many were, it does.

    Raises
    ------
    RecordError
        A field holds something else than it should; the message names it.
    """
    content = read_object(path)
    performance, requests, streamed, engine, machine = (
        content.child(name)
        for name in ("performance", "request_info", "streaming_metrics", "engine", "machine")
    )
    total_ms = performance.number("total_latency_ms")
    summary = PublishedSummary(
        tool="trtllm-bench",
        source=file_source(path, "trtllm-bench"),
        tool_version=engine.text("version"),
        model=engine.text("model"),
        engine="tensorrt-llm",
        hardware=machine.text("name"),
        settings=tuple(
            sorted(
                pair
                for part, names in _TRTLLM_SETTINGS.items()
                for pair in content.child(part).pairs(names)
            )
        ),
        duration_s=None if total_ms is None else total_ms / 1000,
        n_completed=requests.whole("num_requests"),
        mean_prompt_tokens=requests.number("avg_input_length"),
        mean_output_tokens=requests.number("avg_output_length"),
        completed_requests_per_s=performance.number("request_throughput_req_s"),
        output_tokens_per_s=performance.number("system_output_throughput_tok_s"),
        total_tokens_per_s=performance.number("system_total_throughput_tok_s"),
        latencies=published(
            (
                _trtllm_latency(streamed, "ttft", "ttft_percentiles"),
                _trtllm_latency(streamed, "tpot", "tpot_percentiles"),
                _trtllm_latency(performance, "e2e", "request_latency_percentiles_ms"),
            )
        ),
    )
    return Imported(tool="trtllm-bench", summaries=(summary,))


def _trtllm_latency(
    fields: JsonFields, name: PublishedLatencyName, theirs: str
) -> PublishedLatency | None:
    if not fields.has(theirs):
        return None
    return latency_of(
        fields.child(theirs),
        name,
        theirs,
        DEFINITIONS[name] + ("; of one token: 0" if name == "tpot" else ""),
        keys=StatisticKeys("average", "", "minimum", "maximum"),
        percentiles=_TRTLLM_PERCENTILES,
        unit_s=1e-3,
    )
