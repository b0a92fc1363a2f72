"""How is GuideLLM's ``benchmarks.json`` read?

A list of benchmarks, each with statistics of its successful requests and the requests themselves.
GuideLLM's latencies start when it writes the request's headers, on the wall clock. Its
``time_per_output_token_ms`` is end to end / output tokens, the first token's time included; its
``inter_token_latency_ms`` is our TPOT, but means and percentiles weigh a request by its tokens.
Statistics of nothing are 0 in the file and left out here. Checked against files of GuideLLM 0.8.

Until 0.3 the strategy stood under ``args``, the instants in the request itself, and its time per
output token was (last - first token) / output tokens, which is neither TPOT nor normalised: it is
left out. Read by the source of its version 0.3.1; 0.4 to 0.6 differ in where the model stands.

``benchmarks.csv`` has the same statistics, a line for each benchmark under three lines of headings
(``guidellm/benchmark/outputs/csv.py`` of 0.8), and no requests.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from inferometer.errors import RecordError
from inferometer.inputs.types import Source
from inferometer.records.imports.imported import (
    Imported,
    ImportedRequest,
    ImportFacts,
    PublishedLatency,
    PublishedLatencyName,
    PublishedSummary,
    StatisticKeys,
    file_source,
    imported_run,
    known_count,
    latency_of,
    percentiles_of,
    published,
)
from inferometer.records.imports.json_fields import DOOR, Json, JsonFields, parse_json, read_object
from inferometer.records.types import RequestStatus, Run
from inferometer.units import NS_PER_S, ns_from_s


class _Theirs(NamedTuple):
    field: str
    unit_s: float
    definition: str


LATENCIES: Final[dict[PublishedLatencyName, _Theirs]] = {
    "ttft": _Theirs("time_to_first_token_ms", 1e-3, "first token - head of the request written"),
    "tpot": _Theirs(
        "inter_token_latency_ms",
        1e-3,
        "(last - first token) / (output tokens - 1), one value a request, weighed by its tokens"
        " less one",
    ),
    "normalized_tpot": _Theirs(
        "time_per_output_token_ms",
        1e-3,
        "(last token - head written) / output tokens, one value a request, weighed by its tokens",
    ),
    "e2e": _Theirs("request_latency", 1.0, "end of the stream - head of the request written"),
}
"""Our name of each latency -> GuideLLM's."""

_INSTANTS: Final = (
    *("request_start", "first_token_iteration", "last_token_iteration", "request_end"),
)
_OLD_INSTANTS: Final = ("start_time", "first_token_time", "last_token_time", "end_time")
"""Old field names of the send, the first and last token, and the end."""
_STATUSES: Final = {
    "successful": RequestStatus.LENGTH,
    "errored": RequestStatus.FAILED,
    "incomplete": RequestStatus.UNFINISHED,
}


def is_guidellm(content: JsonFields) -> bool:
    """Does it look like one?"""
    benchmarks = content.content.get("benchmarks")
    if not isinstance(benchmarks, list) or not benchmarks:
        return False
    first = benchmarks[0]
    metrics = first.get("metrics") if isinstance(first, dict) else None
    return isinstance(metrics, dict) and {"requests_per_second", "request_latency"} <= {*metrics}


_HEADINGS: Final = {
    ("Request Latency", "Successful Sec"): "request_latency",
    ("Time to First Token", "Successful ms"): "time_to_first_token_ms",
    ("Time per Output Token", "Successful ms"): "time_per_output_token_ms",
    ("Inter Token Latency", "Successful ms"): "inter_token_latency_ms",
    ("Server Throughput", "Successful Requests/Sec"): "requests_per_second",
    ("Token Metrics", "Successful Input Tokens"): "prompt_token_count",
    ("Token Metrics", "Successful Output Tokens"): "output_token_count",
    ("Token Throughput", "Successful Input Tokens/Sec"): "prompt_tokens_per_second",
    ("Token Throughput", "Successful Output Tokens/Sec"): "output_tokens_per_second",
    ("Token Throughput", "Successful Total Tokens/Sec"): "tokens_per_second",
}
"""Two lines of headings of the CSV -> the report's field."""
_IN_PERCENTILES: Final = (
    *("min", "p001", "p01", "p05", "p10", "p25", "p75", "p90", "p95", "p99", "max"),
)


def is_guidellm_csv(header: Sequence[str]) -> bool:
    """Is this the first line of headings of ``benchmarks.csv``?"""
    return [*header[:1]] == ["Run Info"] and "Request Latency" in header


def read_guidellm_csv(path: Path) -> Imported:
    """Read GuideLLM's ``benchmarks.csv``: a summary of each benchmark.

    Raises
    ------
    RecordError
        A line of headings is missing, or a cell holds something else.
    """
    where, source = str(path), file_source(path, "guidellm")
    lines = list(DOOR.csv_rows(DOOR.text_of(path).splitlines(), where=where))
    headings, rows = lines[:3], lines[3:]
    found = list[PublishedSummary]()
    for number, row in enumerate((row for row in rows if row), start=4):
        cells = dict(zip(zip(*headings, strict=False), row, strict=False))
        if not any(cells.get((*place, "Mean")) for place in _HEADINGS):
            continue
        benchmark = JsonFields(content=_benchmark_of(cells), where=f"{where}, line {number}")
        facts = [
            JsonFields(content=_json_cell(cells, *place), where=where)
            for place in (("Runtime Info", "Metadata"), ("Runtime Info", "Arguments"))
        ]
        model = facts[1].child("spec", "backend").text("model") or facts[1].text("model")
        found.append(_summary(benchmark, source, facts[0].text("guidellm_version"), model))
    if not found:
        raise RecordError(
            "the table has no benchmark",
            where=where,
            allowed="three lines of headings, and a line for each benchmark",
            try_="GuideLLM's benchmarks.json of the same run",
        )
    return Imported(tool="guidellm", summaries=tuple(found))


def _benchmark_of(cells: Mapping[tuple[str, str, str], str]) -> dict[str, Json]:
    """A line as the report has it."""
    totals: dict[str, Json] = {
        name: cells.get(("Request Counts", name.capitalize(), "")) for name in _STATUSES
    }
    metrics: dict[str, Json] = {"request_totals": totals}
    for (group, field), name in _HEADINGS.items():
        mean = cells.get((group, field, "Mean"))
        if not mean:
            continue
        listed = cells.get((group, field, "Percentiles"), "").strip("[]").split(",")
        at: dict[str, Json] = dict(zip(_IN_PERCENTILES, map(str.strip, listed), strict=False))
        ends: dict[str, Json] = {end: at.pop(end, None) for end in ("min", "max")}
        successful: dict[str, Json] = {
            "count": totals["successful"],
            "mean": mean,
            "std_dev": cells.get((group, field, "Std Dev")),
            **ends,
            "percentiles": {**at, "p50": cells.get((group, field, "Median"))},
        }
        metrics[name] = {"successful": successful}
    kind = cells.get(("Benchmark", "Strategy", ""), "")
    profile = _json_cell(cells, "Run Info", "Profile")
    strategy: dict[str, Json] = {"type_": kind}
    for name in ("streams", "rate"):
        values = profile.get(name)
        if isinstance(values, list) and len(values) == 1:
            strategy[name] = values[0]
    if kind == "synchronous":
        strategy["streams"] = 1
    duration = cells.get(("Timings", "Duration", "Sec"))
    return {"duration": duration, "config": {"strategy": strategy}, "metrics": metrics}


def _json_cell(cells: Mapping[tuple[str, str, str], str], *place: str) -> dict[str, Json]:
    text = cells.get((place[0], place[1], ""), "")
    value = parse_json(text, "a cell") if text.startswith("{") else None
    return value if isinstance(value, dict) else {}


def read_guidellm(path: Path) -> Imported:
    """A summary of each benchmark, and a run where the file has its requests.

    Raises
    ------
    RecordError
        A field is missing or holds something else; the message names it.
    """
    content, source = read_object(path), file_source(path, "guidellm")
    version = content.child("metadata").text("guidellm_version")
    model = content.child("config", "spec", "backend").text("model")
    model = model or content.child("args").text("model")
    benchmarks = content.children("benchmarks")
    runs = (_run(benchmark, source, version) for benchmark in benchmarks)
    return Imported(
        tool="guidellm",
        runs=tuple(run for run in runs if run is not None),
        summaries=tuple(_summary(benchmark, source, version, model) for benchmark in benchmarks),
    )


def _summary(
    benchmark: JsonFields, source: Source, version: str | None, model: str | None
) -> PublishedSummary:
    metrics = _metrics(benchmark)
    is_old = not benchmark.has("config")
    totals = (benchmark if is_old else metrics).child("request_totals")
    strategy = benchmark.child("args" if is_old else "config", "strategy")
    label, rate_per_s = strategy.text("type_") or "", strategy.number("rate")
    return PublishedSummary(
        tool="guidellm",
        source=source,
        tool_version=version,
        label=label,
        model=model or benchmark.child("worker").text("backend_model"),
        offered_requests_per_s=(
            math.inf if rate_per_s is None and label == "throughput" else rate_per_s
        ),
        concurrency=strategy.whole("streams"),
        duration_s=benchmark.number("duration"),
        n_completed=totals.whole("successful"),
        n_failed=totals.whole("errored"),
        mean_prompt_tokens=_mean(metrics, "prompt_token_count"),
        mean_output_tokens=_mean(metrics, "output_token_count"),
        completed_requests_per_s=_mean(metrics, "requests_per_second"),
        good_requests_per_s=_mean(metrics, "request_goodput"),
        input_tokens_per_s=_mean(metrics, "prompt_tokens_per_second"),
        output_tokens_per_s=_mean(metrics, "output_tokens_per_second"),
        total_tokens_per_s=_mean(metrics, "tokens_per_second"),
        latencies=published(
            _latency(metrics, name, theirs)
            for name, theirs in LATENCIES.items()
            if not (is_old and name == "normalized_tpot")
        ),
    )


def _latency(
    metrics: JsonFields, name: PublishedLatencyName, theirs: _Theirs
) -> PublishedLatency | None:
    found = _of_successful(metrics, theirs.field)
    if found is None:
        return None
    listed = found.child("percentiles")
    fractions = {at: key for key in listed.content if (at := _fraction(key)) is not None}
    latency = latency_of(
        found,
        name,
        theirs.field,
        theirs.definition,
        keys=StatisticKeys("mean", "std_dev", "min", "max"),
        percentiles={},
        unit_s=theirs.unit_s,
    )
    return replace(
        latency,
        percentiles=percentiles_of(
            (at, None if (value := listed.number(key)) is None else value * theirs.unit_s)
            for at, key in sorted(fractions.items())
        ),
    )


def _run(benchmark: JsonFields, source: Source, version: str | None) -> Run | None:
    rows = list(_rows(benchmark))
    if not rows:
        return None
    began_s = min(row.sent_ns for row in rows) / NS_PER_S
    facts = ImportFacts(
        tool="guidellm",
        tool_version=version or "unknown",
        created_utc=datetime.fromtimestamp(began_s, UTC).isoformat(timespec="seconds"),
        source=source,
    )
    return imported_run(rows, facts)


def _rows(benchmark: JsonFields) -> Iterator[ImportedRequest]:
    requests = benchmark.child("requests")
    for name, status in _STATUSES.items():
        for request in requests.children(name):
            row = _request(request, status)
            if row is not None:
                yield row


def _request(request: JsonFields, status: RequestStatus) -> ImportedRequest | None:
    """One request; None if it was never sent."""
    timings, names = request.child("info", "timings"), _INSTANTS
    if not timings.content:
        timings, names = request, _OLD_INSTANTS
    sent_ns, first_ns, last_ns, ended_ns = (_ns(timings, name) for name in names)
    if sent_ns is None:
        return None
    due_ns = _ns(timings, "targeted_start") or _ns(
        request.child("scheduler_info"), "targeted_start_time"
    )
    is_done = status == RequestStatus.LENGTH
    return ImportedRequest(
        intended_ns=min(sent_ns, due_ns) if due_ns is not None and due_ns > 0 else sent_ns,
        sent_ns=sent_ns,
        first_token_ns=first_ns,
        finished_ns=(last_ns if is_done else None) or ended_ns,
        prompt_tokens=request.whole("prompt_tokens") or 0,
        output_tokens=request.whole("output_tokens") or 0,
        status=status,
        cached_tokens=known_count(request, "cached_tokens"),
    )


def _ns(timings: JsonFields, name: str) -> int | None:
    """Nanoseconds of a wall-clock float, which resolves a quarter of a microsecond."""
    value = timings.number(name)
    return None if value is None else ns_from_s(value)


def _fraction(key: str) -> float | None:
    """``p05`` is 0.05, ``p999`` 0.999, ``p001`` 0.001.

    Example
    -------
    >>> _fraction("p05"), _fraction("p50"), _fraction("p999"), _fraction("p001")
    (0.05, 0.5, 0.999, 0.001)
    """
    digits = key.removeprefix("p")
    return float(f"0.{digits}") if key.startswith("p") and digits.isdigit() else None


def _of_successful(metrics: JsonFields, name: str) -> JsonFields | None:
    found = metrics.child(name, "successful")
    return found if found.number("count") else None


def _mean(metrics: JsonFields, name: str) -> float | None:
    found = _of_successful(metrics, name)
    return None if found is None else found.number("mean")


def _metrics(benchmark: JsonFields) -> JsonFields:
    if not benchmark.has("metrics"):
        raise benchmark.refuse("metrics", "an object")
    return benchmark.child("metrics")
