"""What does an llm-d Benchmark Report of version 0.2 say?

Read as JSON, which its own tools write and read too. Units stand beside each number. Version 0.1
and YAML are refused with what to do.
"""

from math import inf
from pathlib import Path
from typing import Final

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

LATENCIES: Final[dict[PublishedLatencyName, str]] = {
    "ttft": "time_to_first_token",
    "tpot": "time_per_output_token",
    "chunk_gap": "inter_token_latency",
    "normalized_tpot": "normalized_time_per_output_token",
    "e2e": "request_latency",
}
"""Ours -> the report's, which leaves the definitions to the tool that measured."""

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
        It is of another version, or a field holds something else than it should; the message names
        it.
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
    is_bounded = load.number("concurrency") != inf  # else none was asked for
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
        duration_s=None,
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
