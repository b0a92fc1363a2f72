"""What do AIPerf's result files say?

``profile_export_aiperf.json`` holds statistics, ``profile_export.jsonl`` a line for each request.
``profile_export_aiperf.csv`` holds the statistics too, rounded to a hundredth, without model and
load; GenAI-Perf's ``profile_export_genai_perf.csv`` has the same form. What follows of the GPUs is
not read.
Each number carries its unit. AIPerf's latencies start before it connects. Its inter-token latency
is one value per request, our TPOT; its inter-chunk latency is of chunks. The intended send time is
when AIPerf issues the request's credit; the delay until the send is AIPerf's own lag. Checked
against files of AIPerf 0.13.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Final

from inferometer.inputs.types import Source
from inferometer.records.imports.imported import (
    DEFINITIONS,
    Imported,
    ImportedRequest,
    ImportFacts,
    PublishedLatency,
    PublishedLatencyName,
    PublishedSummary,
    StatisticKeys,
    Tool,
    file_source,
    imported_run,
    known_count,
    latency_of,
    published,
)
from inferometer.records.imports.json_fields import DOOR, Json, JsonFields, read_lines, read_object
from inferometer.records.types import RequestStatus
from inferometer.units import NS_PER_S, ns_from_s

LATENCIES: Final[dict[PublishedLatencyName, str]] = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "chunk_gap": "inter_chunk_latency",
    "e2e": "request_latency",
}
"""Our name of each latency -> AIPerf's."""

_UNIT_S: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
_PERCENTILES: Final = (1, 5, 10, 25, 50, 75, 90, 95, 99)


def read_aiperf_summary(path: Path) -> Imported:
    """The statistics of a run.

    Raises
    ------
    RecordError
        A field has a value of another kind; the message names it.
    """
    content = read_object(path)
    config = content.child("input_config")
    models = [one.text("name") for one in config.child("models").children("items")]
    models += config.child("endpoint").texts("model_names") or []  # of its first versions
    summary = statistics_of(
        content,
        tool="aiperf",
        source=file_source(path, "aiperf"),
        model=next(iter(models), None),
        load=_profiling_phase(content),
    )
    return Imported(tool="aiperf", summaries=(summary,))


def is_statistics_csv(header: Sequence[str]) -> bool:
    """Is this the heading of AIPerf's table of statistics, or of GenAI-Perf's?"""
    return [*header[:1]] == ["Metric"] and {"avg", "min", "max"} <= {*header}


def read_statistics_csv(path: Path) -> Imported:
    """The statistics of a run, from the table of AIPerf or of GenAI-Perf.

    Raises
    ------
    RecordError
        A value is no number; the message names its metric.
    """
    where, header = str(path), list[str]()
    content: dict[str, Json] = {}
    tool: Tool = "genai-perf"
    for row in DOOR.csv_rows(DOOR.text_of(path).splitlines(), where=where):
        if row[:1] == ["Metric"]:
            header = ["avg" if one == "Value" else one for one in row]
            tool = "aiperf" if "std" in header else tool
        elif row and header and len(row) == len(header):
            name, unit = _named_unit(row[0])
            values = zip(header[1:], row[1:], strict=True)
            metric: dict[str, Json] = {"unit": unit}
            content[name] = metric | {key: value.replace(",", "") for key, value in values if value}
        elif row:
            break
    none = JsonFields(content={}, where=where)
    summary = statistics_of(
        JsonFields(content=content, where=where),
        tool=tool,
        source=file_source(path, tool),
        model=None,
        load=none,
    )
    return Imported(tool=tool, summaries=(summary,))


def _named_unit(metric: str) -> tuple[str, str]:
    """The name as JSON has it, and the unit, of ``Request Latency (ms)``."""
    name, _, unit = metric.partition(" (")
    return name.strip().lower().replace(" ", "_"), unit.removesuffix(")")


def statistics_of(
    content: JsonFields, *, tool: Tool, source: Source, model: str | None, load: JsonFields
) -> PublishedSummary:
    """The statistics under AIPerf's names, as ``tool`` wrote them; ``load`` has what was requested.

    Raises
    ------
    RecordError
        A field holds something else than it should; the message names it.
    """
    return PublishedSummary(
        tool=tool,
        source=source,
        tool_version=content.text("aiperf_version"),
        model=model,
        offered_requests_per_s=load.number("rate") or load.number("request_rate"),
        concurrency=load.whole("concurrency"),
        settings=content.child("run_info").pairs(["cli_command"]),
        duration_s=_seconds(content.child("benchmark_duration"), "avg"),
        n_completed=content.child(
            "completed_request_count" if content.has("completed_request_count") else "request_count"
        ).whole("avg"),
        n_failed=content.child("error_request_count").whole("avg"),
        mean_prompt_tokens=content.child("input_sequence_length").number("avg"),
        mean_output_tokens=content.child("output_sequence_length").number("avg"),
        completed_requests_per_s=content.child("request_throughput").number("avg"),
        good_requests_per_s=content.child(
            "goodput" if content.has("goodput") else "request_goodput"
        ).number("avg"),
        input_tokens_per_s=content.child("input_token_throughput").number("avg"),
        output_tokens_per_s=content.child("output_token_throughput").number("avg"),
        total_tokens_per_s=content.child("total_token_throughput").number("avg"),
        latencies=published(_latency(content, name, tag) for name, tag in LATENCIES.items()),
    )


def read_aiperf_requests(path: Path) -> Imported:
    """The run of these requests; those of a warm-up phase are left out.

    Raises
    ------
    RecordError
        A field is missing or holds something else; the message names its line.
    """
    lines = tuple(read_lines(path))
    rows = [
        _request(line)
        for line in lines
        if line.required("metadata").child("metadata").text("benchmark_phase")
        in {None, "", "profiling"}
    ]
    began_ns = min((row.sent_ns for row in rows), default=0)
    facts = ImportFacts(
        tool="aiperf",
        tool_version="unknown",
        created_utc=datetime.fromtimestamp(began_ns / NS_PER_S, UTC).isoformat(timespec="seconds"),
        source=file_source(path, "aiperf"),
    )
    return Imported(tool="aiperf", runs=(imported_run(rows, facts),))


def _request(line: JsonFields) -> ImportedRequest:
    metadata, metrics = line.child("metadata"), line.required("metrics").child("metrics")
    sent_ns = metadata.required("request_start_ns").whole("request_start_ns") or 0
    ttft_ns = _duration_ns(metrics, "time_to_first_token")
    e2e_ns = _duration_ns(metrics, "request_latency")
    first_ns = None if ttft_ns is None else sent_ns + ttft_ns
    is_cancelled, is_failed = metadata.content.get("was_cancelled") is True, line.has("error")
    return ImportedRequest(
        intended_ns=min(sent_ns, metadata.whole("credit_issued_ns") or sent_ns),
        sent_ns=sent_ns,
        first_token_ns=first_ns,
        finished_ns=sent_ns + e2e_ns if e2e_ns is not None else metadata.whole("request_end_ns"),
        prompt_tokens=_tokens(metrics, ("usage_prompt_tokens", "input_sequence_length")),
        output_tokens=_tokens(metrics, ("usage_completion_tokens", "output_sequence_length")),
        status=RequestStatus.ABORTED
        if is_cancelled
        else RequestStatus.FAILED
        if is_failed
        else RequestStatus.LENGTH,
        chunks_ns=() if first_ns is None else _chunks_ns(metrics, first_ns),
        cached_tokens=known_count(metrics.child("usage_prompt_cache_read_tokens"), "value"),
    )


def _chunks_ns(metrics: JsonFields, first_ns: int) -> tuple[int, ...]:
    tag = metrics.child("inter_chunk_latency")
    gaps = tag.numbers("value")
    if gaps is None:
        return ()
    unit_s = _unit_s(tag)
    return tuple(accumulate([first_ns, *(ns_from_s(gap * unit_s) for gap in gaps)]))


def _tokens(metrics: JsonFields, names: tuple[str, ...]) -> int:
    tags = (metrics.child(name) for name in names)
    return next((tag.whole("value") or 0 for tag in tags if tag.has("value")), 0)


def _duration_ns(metrics: JsonFields, name: str) -> int | None:
    value_s = _seconds(metrics.child(name), "value")
    return None if value_s is None else ns_from_s(value_s)


def _latency(content: JsonFields, name: PublishedLatencyName, tag: str) -> PublishedLatency | None:
    if not content.has(tag):
        return None
    found = content.child(tag)
    return latency_of(
        found,
        name,
        tag,
        DEFINITIONS[name],
        keys=StatisticKeys("avg", "std", "min", "max"),
        percentiles={f"p{at}": at / 100 for at in _PERCENTILES},
        unit_s=_unit_s(found),
    )


def _unit_s(tag: JsonFields) -> float:
    unit = tag.text("unit")
    if unit not in _UNIT_S:
        raise tag.refuse("unit", ", ".join(_UNIT_S))
    return _UNIT_S[unit]


def _seconds(tag: JsonFields, name: str) -> float | None:
    value = tag.number(name)
    return None if value is None else value * _unit_s(tag)


def _profiling_phase(content: JsonFields) -> JsonFields:
    config = content.child("input_config")
    if config.has("loadgen"):
        return config.child("loadgen")
    phases = config.children("phases")
    return next(
        (phase for phase in phases if phase.text("name") == "profiling"),
        JsonFields(content={}, where=content.where),
    )
