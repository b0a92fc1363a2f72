"""What does an llm-d Benchmark Report of version 0.2 say?

Read as JSON, which its own tools write and read too. Units stand beside each number. Version 0.1
and YAML are refused with what to do.
"""

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


def is_llmd(content: JsonFields) -> bool:
    """Does it look like one?"""
    return {"run", "results"} <= set(content.content) or {"version", "scenario", "metrics"} <= set(
        content.content
    )


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
    aggregate = _descend(content, ("results", "request_performance", "aggregate"))
    requests, latency, rates = (
        None if aggregate is None else aggregate.child(name)
        for name in ("requests", "latency", "throughput")
    )
    load = _descend(content, ("scenario", "load", "standardized"))
    total, n_failed = (
        None if requests is None else requests.whole(name) for name in ("total", "failures")
    )
    incomplete = None if requests is None else requests.whole("incomplete")
    summary = PublishedSummary(
        tool="llm-d",
        source=file_source(path, "llm-d"),
        tool_version=None if load is None else f"{load.text('tool')} {load.text('tool_version')}",
        label=_text(content.child("run"), "uid") or "",
        model=_engine(content, ("model",), "name"),
        engine=_engine(content, (), "tool"),
        hardware=_engine(content, ("accelerator",), "model"),
        offered_requests_per_s=None if load is None else load.number("rate_qps"),
        concurrency=_finite_whole(load, "concurrency"),
        duration_s=None,
        n_completed=None if total is None else total - (n_failed or 0) - (incomplete or 0),
        n_failed=n_failed,
        mean_prompt_tokens=_mean(requests, "input_length"),
        mean_output_tokens=_mean(requests, "output_length"),
        completed_requests_per_s=_mean(rates, "request_rate"),
        input_tokens_per_s=_mean(rates, "input_token_rate"),
        output_tokens_per_s=_mean(rates, "output_token_rate"),
        total_tokens_per_s=_mean(rates, "total_token_rate"),
        latencies=(
            () if latency is None else published(_latency(latency, name) for name in LATENCIES)
        ),
    )
    return Imported(tool="llm-d", summaries=(summary,))


def _latency(latency: JsonFields, name: PublishedLatencyName) -> PublishedLatency | None:
    found = latency.child(LATENCIES[name])
    if found is None:
        return None
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


def _descend(content: JsonFields, path: tuple[str, ...]) -> JsonFields | None:
    found: JsonFields | None = content
    for name in path:
        found = None if found is None else found.child(name)
    return found


def _engine(content: JsonFields, path: tuple[str, ...], name: str) -> str | None:
    """Of the first component that is an inference engine."""
    scenario = content.child("scenario")
    components = () if scenario is None else scenario.children("stack")
    standardized = (component.child("standardized") for component in components)
    engines = (
        one for one in standardized if one is not None and one.text("kind") == "inference_engine"
    )
    return next((_text(_descend(engine, path), name) for engine in engines), None)


def _text(fields: JsonFields | None, name: str) -> str | None:
    return None if fields is None else fields.text(name)


def _mean(fields: JsonFields | None, name: str) -> float | None:
    found = None if fields is None else fields.child(name)
    return None if found is None else found.number("mean")


def _finite_whole(fields: JsonFields | None, name: str) -> int | None:
    """Infinite concurrency is none that was asked for."""
    value = None if fields is None else fields.number(name)
    return None if fields is None or value is None or value == float("inf") else fields.whole(name)
