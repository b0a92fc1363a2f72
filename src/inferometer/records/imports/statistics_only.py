"""What do reports without requests say: of LLMPerf, trtllm-bench, llm-d, vLLM's offline benchmarks?

LLMPerf counts output tokens by tokenizing the text itself, and divides the whole latency, TTFT
included, by their number: a normalised TPOT (``token_benchmark_ray.py`` and
``openai_chat_completions_client.py`` of version 2023-08-31). trtllm-bench writes what
``--report_json`` asks for (``tensorrt_llm/bench/dataclasses/reporting.py``), and prints the same
numbers in blocks, with names and units of each version since 0.12; an answer of one token counts
there with a TPOT of 0. ``vllm bench latency`` and ``throughput`` write what their
``--output-json`` names, in seconds (``vllm/benchmarks`` of 0.32).
"""

import re
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Final, Never

from inferometer.errors import RecordError
from inferometer.inputs.types import Source
from inferometer.records.imports.imported import (
    DEFINITIONS,
    Imported,
    PublishedLatency,
    PublishedLatencyName,
    PublishedSummary,
    StatisticKeys,
    file_source,
    latency_of,
    percentiles_of,
    published,
)
from inferometer.records.imports.json_fields import DOOR, Json, JsonFields, read_object

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
"""Our name of each latency -> LLMPerf's, and its definition."""
_LLMPERF_PERCENTILES: Final = (25, 50, 75, 90, 95, 99)


def refuse_llmperf_responses(path: Path) -> Never:
    """Refuse them: without send times they cannot become a run."""
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
    """The statistics of a run; the report has its actual concurrency, not the requested one.

    Raises
    ------
    RecordError
        A field holds something else than it should; the message names it.
    """
    summary = _trtllm_summary(read_object(path), file_source(path, "trtllm-bench"))
    return Imported(tool="trtllm-bench", summaries=(summary,))


def _trtllm_summary(content: JsonFields, source: Source) -> PublishedSummary:
    performance, requests, streamed, engine, machine = (
        content.child(name)
        for name in ("performance", "request_info", "streaming_metrics", "engine", "machine")
    )
    total_ms = performance.number("total_latency_ms")
    return PublishedSummary(
        tool="trtllm-bench",
        source=source,
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
                _trtllm_latency(streamed, "ttft", "ttft_percentiles", "avg_ttft_ms"),
                _trtllm_latency(streamed, "tpot", "tpot_percentiles", "avg_tpot_ms"),
                _trtllm_latency(
                    performance, "e2e", "request_latency_percentiles_ms", "avg_request_latency_ms"
                ),
            )
        ),
    )


_PRINTED_FIELDS: Final = {
    "model": ("engine", "model", 1),
    "tensorrt-llm version": ("engine", "version", 1),
    "tensorrt llm version": ("engine", "version", 1),
    "dtype": ("engine", "dtype", 1),
    "kv cache dtype": ("engine", "kv_cache_dtype", 1),
    "quantization": ("engine", "quantization", 1),
    "tp size": ("world_info", "tp_size", 1),
    "pp size": ("world_info", "pp_size", 1),
    "ep size": ("world_info", "ep_size", 1),
    "max runtime batch size": ("world_info", "max_batch_size", 1),
    "max runtime tokens": ("world_info", "max_num_tokens", 1),
    "scheduling policy": ("world_info", "scheduling_policy", 1),
    "kv memory percentage": ("world_info", "kv_cache_percentage", 1),
    "issue rate (req/sec)": ("world_info", "issue_rate", 1),
    "number of requests": ("request_info", "num_requests", 1),
    "number of concurrent requests": ("request_info", "avg_num_concurrent_requests", 1),
    "average input length (tokens)": ("request_info", "avg_input_length", 1),
    "average output length (tokens)": ("request_info", "avg_output_length", 1),
    "request throughput (req/sec)": ("performance", "request_throughput_req_s", 1),
    "token throughput (tokens/sec)": ("performance", "system_output_throughput_tok_s", 1),
    "total output throughput (tokens/sec)": ("performance", "system_output_throughput_tok_s", 1),
    "total token throughput (tokens/sec)": ("performance", "system_total_throughput_tok_s", 1),
    "total latency (ms)": ("performance", "total_latency_ms", 1),
    "total latency (seconds)": ("performance", "total_latency_ms", 1000),
    "average request latency (ms)": ("performance", "avg_request_latency_ms", 1),
    "average time-to-first-token [ttft] (ms)": ("streaming_metrics", "avg_ttft_ms", 1),
    "average time-per-output-token [tpot] (ms)": ("streaming_metrics", "avg_tpot_ms", 1),
    "average time-to-first-token (ms)": ("streaming_metrics", "avg_ttft_ms", 1),
    "average inter-token latency (ms)": ("streaming_metrics", "avg_tpot_ms", 1),
}
"""Printed label in lower case -> part and field of the report, and what its number times gives."""
_PRINTED_LATENCIES: Final = {
    "TTFT": ("streaming_metrics", "ttft_percentiles"),
    "TPOT": ("streaming_metrics", "tpot_percentiles"),
    "Latency": ("performance", "request_latency_percentiles_ms"),
}
_ONE_BY_ONE: Final = re.compile(r"= LATENCY OVERVIEW\s*$", re.MULTILINE)
"""``trtllm-bench latency`` of 0.12 to 0.17: one request after the other. Its "Total Token Throughput"
is of output tokens, and the P90 of its breakdown is a median; newer ones print as ``throughput``."""
_PRINTED_TITLE: Final = re.compile(
    r"= (?:PERFORMANCE OVERVIEW|STATISTICS|LATENCY OVERVIEW)\s*$", re.MULTILINE
)
_PRINTED_START: Final = re.compile(
    r"^.*= (?:ENGINE DETAILS|[A-Za-z]+ backend)\s*$", re.MULTILINE | re.IGNORECASE
)
_PRINTED_LINE: Final = re.compile(
    r"^[^\w\[\n]*(?:\[(TTFT|TPOT|Latency)\] (P\d\d|MINIMUM|MAXIMUM|AVERAGE)|([A-Za-z][^:\n]*?))\s*:[ \t]+(\S.*?)\s*$",
    re.MULTILINE,
)


def is_trtllm_printed(text: str) -> bool:
    """Does the text hold blocks of results that trtllm-bench prints?"""
    return _PRINTED_TITLE.search(text) is not None and "Request Throughput (req/sec)" in text


def read_trtllm_printed(path: Path) -> Imported:
    """The summary of each block, in the order of the text.

    Raises
    ------
    RecordError
        A block lacks the number of requests, or a field holds something else.
    """
    text, source = DOOR.text_of(path), file_source(path, "trtllm-bench")
    starts = [0, *(match.start() for match in _PRINTED_START.finditer(text)), len(text)]
    blocks = [text[first:end] for first, end in pairwise(starts)]
    found = [
        replace(
            _trtllm_summary(JsonFields(content=_printed(block), where=str(path)), source),
            concurrency=1 if _ONE_BY_ONE.search(block) else None,
        )
        for block in blocks
        if _PRINTED_TITLE.search(block) is not None
    ]
    return Imported(tool="trtllm-bench", summaries=tuple(found))


def _printed(block: str) -> dict[str, Json]:
    """The block's numbers as the report has them."""
    parts: dict[str, dict[str, Json]] = {"engine": {}, "world_info": {}, "request_info": {}}
    parts |= {"performance": {}, "streaming_metrics": {}}
    latencies = {name: dict[str, Json]() for name in _PRINTED_LATENCIES}
    for latency, statistic, label, value in _PRINTED_LINE.findall(block):
        if latency:
            latencies[latency].setdefault(statistic.lower(), value)
            continue
        part, name, ratio = _PRINTED_FIELDS.get(label.lower(), ("", "", 1))
        if part and value != "None":
            scaled = DOOR.number(value, label, where="the block") * ratio if ratio != 1 else value
            parts[part].setdefault(name, scaled)
    performance = parts["performance"]
    if _ONE_BY_ONE.search(block) and "system_total_throughput_tok_s" in performance:
        performance["system_output_throughput_tok_s"] = performance.pop(
            "system_total_throughput_tok_s"
        )
    for latency, (part, name) in _PRINTED_LATENCIES.items():
        if latencies[latency]:
            parts[part][name] = dict(latencies[latency])
    return {part: dict(fields) for part, fields in parts.items()}


def _trtllm_latency(
    fields: JsonFields, name: PublishedLatencyName, theirs: str, average: str
) -> PublishedLatency | None:
    """The percentiles, or the average alone where a report has no more."""
    definition = DEFINITIONS[name] + ("; of one token: 0" if name == "tpot" else "")
    if fields.has(theirs):
        return latency_of(
            fields.child(theirs),
            name,
            theirs,
            definition,
            keys=StatisticKeys("average", "", "minimum", "maximum"),
            percentiles=_TRTLLM_PERCENTILES,
            unit_s=1e-3,
        )
    mean_ms = fields.number(average)
    if mean_ms is None:
        return None
    return PublishedLatency(name=name, named=average, definition=definition, mean_s=mean_ms / 1e3)


# How is an llm-d Benchmark Report of version 0.2 read?
# YAML or JSON: llm-d's tools write both. Each number has its unit beside it. Version 0.1 is
# refused with what to do.


LATENCIES: Final[dict[PublishedLatencyName, str]] = {
    "ttft": "time_to_first_token",
    "tpot": "time_per_output_token",
    "chunk_gap": "inter_token_latency",
    "normalized_tpot": "normalized_time_per_output_token",
    "e2e": "request_latency",
}
"""Our name of each latency -> the report's; its definition is that of the measuring tool."""

_UNIT_S: Final = {"s": 1.0, "ms": 1e-3, "s/token": 1.0, "ms/token": 1e-3}
_PERCENTILES: Final = {
    f"p{at:g}".replace(".", "p"): round(at / 100, 3)
    for at in (0.1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
}


def read_llmd(path: Path) -> Imported:
    """The summary.

    Raises
    ------
    RecordError
        It is of another version, or a field has a value of another kind; the message names it.
    """
    content = read_object(path)
    version = content.text("version") or ""
    if not version.startswith("0.2"):
        raise RecordError(
            f"version {version!r} of the Benchmark Report",
            where=str(path),
            allowed="0.2.x",
            try_="the package llmd-benchmark-report converts",
        )
    aggregate = content.child("results", "request_performance", "aggregate")
    requests, rates = aggregate.child("requests"), aggregate.child("throughput")
    load = content.child("scenario", "load", "standardized")
    engine = _engine(content)
    total, n_failed = requests.whole("total"), requests.whole("failures")
    is_bounded = load.number("concurrency") != inf  # else none was requested
    summary = PublishedSummary(
        tool="llm-d",
        source=file_source(path, "llm-d"),
        tool_version=f"{load.text('tool')} {load.text('tool_version')}" if load.content else None,
        label=content.child("run").text("uid") or "",
        model=engine.child("model").text("name"),
        engine=engine.text("tool"),
        hardware=engine.child("accelerator").text("model"),
        offered_requests_per_s=load.number("rate_qps"),
        concurrency=load.whole("concurrency") if is_bounded else None,
        n_completed=None
        if total is None
        else total - (n_failed or 0) - (requests.whole("incomplete") or 0),
        n_failed=n_failed,
        mean_prompt_tokens=requests.child("input_length").number("mean"),
        mean_output_tokens=requests.child("output_length").number("mean"),
        completed_requests_per_s=rates.child("request_rate").number("mean"),
        input_tokens_per_s=rates.child("input_token_rate").number("mean"),
        output_tokens_per_s=rates.child("output_token_rate").number("mean"),
        total_tokens_per_s=rates.child("total_token_rate").number("mean"),
        latencies=published(_latency(aggregate.child("latency"), name) for name in LATENCIES),
    )
    return Imported(tool="llm-d", summaries=(summary,))


def _latency(latency: JsonFields, name: PublishedLatencyName) -> PublishedLatency | None:
    if not latency.has(LATENCIES[name]):
        return None
    found = latency.child(LATENCIES[name])
    unit = found.text("units")
    if unit not in _UNIT_S:
        raise found.refuse("units", ", ".join(_UNIT_S))
    return latency_of(
        found,
        name,
        LATENCIES[name],
        f"{DEFINITIONS[name]}, unless the tool that measured means another",
        keys=StatisticKeys("mean", "stddev", "min", "max"),
        percentiles=_PERCENTILES,
        unit_s=_UNIT_S[unit],
    )


def _engine(content: JsonFields) -> JsonFields:
    """The first component that is an inference engine; empty where none is."""
    components = content.child("scenario").children("stack")
    parts = (component.child("standardized") for component in components)
    return next(
        (one for one in parts if one.text("kind") == "inference_engine"),
        JsonFields(content={}, where=content.where),
    )


_VLLM_LATENCY: Final = "prompts and answers of one batch, from its start to its end"


def read_vllm_latency(path: Path) -> Imported:
    """Statistics of ``vllm bench latency``: the time of a whole batch, in iterations.

    The file does not say how many sequences the batch had, nor their lengths.

    Raises
    ------
    RecordError
        A field holds something else than it should; the message names it.
    """
    content = read_object(path)
    percentiles = content.child("percentiles")
    latency = PublishedLatency(
        name="e2e",
        named="latency of a batch",
        definition=_VLLM_LATENCY,
        mean_s=content.number("avg_latency"),
        percentiles=percentiles_of(
            (at / 100, percentiles.number(f"{at}")) for at in (10, 25, 50, 75, 90, 99)
        ),
    )
    summary = PublishedSummary(
        tool="vllm-bench",
        source=file_source(path, "vllm-bench"),
        label=f"latency, {len(content.numbers('latencies') or ())} batches",
        model=content.text("model_id"),
        latencies=(latency,),
    )
    return Imported(tool="vllm-bench", summaries=(summary,))


def read_vllm_throughput(path: Path) -> Imported:
    """Statistics of ``vllm bench throughput``: all requests at once, prompts and answers together.

    Raises
    ------
    RecordError
        A field is missing or holds something else; the message names it.
    """
    content = read_object(path)
    n_requests = content.whole("num_requests")
    summary = PublishedSummary(
        tool="vllm-bench",
        source=file_source(path, "vllm-bench"),
        label="throughput",
        model=content.text("model_id"),
        offered_requests_per_s=inf,
        duration_s=content.number("elapsed_time"),
        n_requested=n_requests,
        n_completed=n_requests,
        completed_requests_per_s=content.number("requests_per_second"),
        total_tokens_per_s=content.number("tokens_per_second"),
    )
    return Imported(tool="vllm-bench", summaries=(summary,))


# How is a run of SGLang's genai-bench read, one scenario at one concurrency?
# Source: sgl-project/genai-bench, genai_bench/metrics/metrics.py and
# aggregated_metrics_collector.py: TPOT is (end - first token) / (output tokens - 1).


_GENAI_BENCH: Final[dict[PublishedLatencyName, str]] = {
    "ttft": "ttft",
    "tpot": "tpot",
    "e2e": "e2e_latency",
}
_GENAI_BENCH_PERCENTILES: Final = {f"p{at}": at / 100 for at in (25, 50, 75, 90, 95, 99)}


def read_genai_bench(path: Path) -> Imported:
    """The statistics of a scenario; single requests have no send times and are left out.

    Raises
    ------
    RecordError
        A field holds something else than it should; the message names it.
    """
    content = read_object(path)
    unit = content.text("_time_unit") or "s"
    if unit not in _UNIT_S:
        raise content.refuse("_time_unit", "s, ms")
    whole = content.child("aggregated_metrics")
    stats, per_minute = whole.child("stats"), whole.number("requests_per_minute")
    rate = whole.number("requests_per_second")
    is_concurrent = (whole.text("iteration_type") or "num_concurrency") == "num_concurrency"
    summary = PublishedSummary(
        tool="genai-bench",
        source=file_source(path, "genai-bench"),
        label=whole.text("scenario") or "",
        concurrency=whole.whole("num_concurrency") if is_concurrent else None,
        settings=whole.pairs(("iteration_type", "batch_size")),
        duration_s=whole.number("run_duration"),
        n_requested=whole.whole("num_requests"),
        n_completed=whole.whole("num_completed_requests"),
        n_failed=whole.whole("num_error_requests"),
        mean_prompt_tokens=stats.child("num_input_tokens").number("mean"),
        mean_output_tokens=stats.child("num_output_tokens").number("mean"),
        completed_requests_per_s=per_minute / 60 if rate is None and per_minute else rate,
        input_tokens_per_s=whole.number("mean_input_throughput_tokens_per_s"),
        output_tokens_per_s=whole.number("mean_output_throughput_tokens_per_s"),
        total_tokens_per_s=whole.number("mean_total_tokens_throughput_tokens_per_s"),
        latencies=published(
            latency_of(
                stats.child(theirs),
                name,
                theirs,
                DEFINITIONS[name],
                keys=StatisticKeys("mean", "stddev", "min", "max"),
                percentiles=_GENAI_BENCH_PERCENTILES,
                unit_s=_UNIT_S[unit],
            )
            for name, theirs in _GENAI_BENCH.items()
            if stats.child(theirs).number("mean") is not None
        ),
    )
    return Imported(tool="genai-bench", summaries=(summary,))
