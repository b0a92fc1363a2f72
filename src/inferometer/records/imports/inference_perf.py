"""How are inference-perf's reports read?

``summary_lifecycle_metrics.json`` and ``stage_N_lifecycle_metrics.json`` hold statistics in
seconds, ``per_request_lifecycle_metrics.json`` the requests. ``*_prometheus_metrics.json`` hold the
server's own histograms: there ``mean`` of ``prompt_len`` and ``output_len`` is tokens a *second*,
not of a request (``reportgen/base.py``, ``metrics/counter/base.py``). It counts output tokens by
tokenizing the text itself: its time per output token and its throughput are wrong where that
count differs from the server's (``token_count_mismatches``). Requests are read with the
server's count. Checked against files of inference-perf 0.7.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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
    cached_tokens_of,
    file_source,
    imported_run,
    latency_of,
    percentiles_of,
)
from inferometer.records.imports.json_fields import DOOR, JsonFields, read_object, read_objects
from inferometer.records.types import RequestStatus
from inferometer.units import ns_from_s

LATENCIES: Final[dict[PublishedLatencyName, tuple[str, str]]] = {
    "ttft": ("time_to_first_token", "first token - send; of answers of two tokens or more"),
    "tpot": (
        "time_per_output_token",
        (
            "(last - first token) / (output tokens - 1), one value a request, tokens as its"
            " tokenizer counts the text"
        ),
    ),
    "chunk_gap": (
        "inter_token_latency",
        "gaps between the tokens of all requests, those of a chunk taken to come at once",
    ),
    "normalized_tpot": (
        "normalized_time_per_output_token",
        (
            "(end of the answer - send) / output tokens, one value a request, tokens as its"
            " tokenizer counts the text"
        ),
    ),
    "e2e": ("request_latency", "end of the answer - send"),
}
"""Our name of each latency -> inference-perf's, and its definition."""

_OF_SERVER: Final = "by the server's histogram, as Prometheus added it up"
_PERCENTILES: Final = {
    "median" if at == 50 else f"p{at:g}": round(at / 100, 3)
    for at in (0.1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
}


def read_inference_perf_summary(path: Path) -> Imported:
    """The statistics of a run or a stage.

    Raises
    ------
    RecordError
        A field holds something else than it should; the message names it.
    """
    content = read_object(path)
    load, done, failed = (
        content.required(name).child(name) for name in ("load_summary", "successes", "failures")
    )
    if done.has("rate"):
        return Imported(tool="inference-perf", summaries=(_of_prometheus(done, path),))
    throughput, latency = done.child("throughput"), done.child("latency")
    summary = PublishedSummary(
        tool="inference-perf",
        source=file_source(path, "inference-perf"),
        label=_label(path),
        offered_requests_per_s=load.number("requested_rate"),
        concurrency=load.whole("concurrency"),
        settings=done.pairs(["token_count_mismatches"]),
        duration_s=content.number("benchmark_time_seconds") or load.number("send_duration"),
        n_completed=done.whole("count"),
        n_failed=failed.whole("count"),
        mean_prompt_tokens=_mean(done, ("prompt_tokens", "prompt_len")),
        mean_output_tokens=_mean(done, ("output_tokens", "output_len")),
        completed_requests_per_s=throughput.number("requests_per_sec"),
        input_tokens_per_s=throughput.number("input_tokens_per_sec"),
        output_tokens_per_s=throughput.number("output_tokens_per_sec"),
        total_tokens_per_s=throughput.number("total_tokens_per_sec"),
        latencies=tuple(_latencies(latency)),
    )
    return Imported(tool="inference-perf", summaries=(summary,))


def _of_prometheus(done: JsonFields, path: Path) -> PublishedSummary:
    """The server's own statistics of its completed requests."""
    n, per_s = done.whole("count"), done.number("rate")
    into_per_s, out_per_s = (done.child(one).number("rate") for one in ("prompt_len", "output_len"))
    return PublishedSummary(
        tool="inference-perf",
        source=file_source(path, "inference-perf"),
        label=_label(path),
        duration_s=n / per_s if n and per_s else None,
        n_completed=n,
        mean_prompt_tokens=into_per_s / per_s if into_per_s is not None and per_s else None,
        mean_output_tokens=out_per_s / per_s if out_per_s is not None and per_s else None,
        completed_requests_per_s=per_s,
        input_tokens_per_s=into_per_s,
        output_tokens_per_s=out_per_s,
        latencies=tuple(
            replace(one, definition=_OF_SERVER) for one in _latencies(done) if one.mean_s
        ),
    )


def _label(path: Path) -> str:
    return re.sub(r"_(lifecycle|prometheus)_metrics\.json(\.gz)?$", "", path.name)


def read_inference_perf_requests(path: Path) -> Imported:
    """The run of these requests; the file has no intended send times and no date.

    Raises
    ------
    RecordError
        A field is missing or holds something else; the message names it.
    """
    rows = [_request(entry) for entry in read_objects(path)]
    facts = ImportFacts(
        tool="inference-perf",
        tool_version="unknown",
        created_utc="unknown",
        source=file_source(path, "inference-perf"),
    )
    return Imported(tool="inference-perf", runs=(imported_run(rows, facts),))


def _request(entry: JsonFields) -> ImportedRequest:
    info = entry.required("info").child("info")
    answered, text = info.child("response_metrics"), info.child("request_metrics", "text")
    usage = answered.child("server_usage")
    times_s = answered.numbers("output_token_times") or []
    sent_ns = ns_from_s(entry.required("start_time").number("start_time") or 0.0)
    end_s = entry.number("end_time")
    ended_ns = None if end_s is None else ns_from_s(end_s)
    is_failed = entry.has("error")
    return ImportedRequest(
        intended_ns=sent_ns,
        sent_ns=sent_ns,
        first_token_ns=ns_from_s(times_s[0]) if times_s else None,
        finished_ns=ns_from_s(times_s[-1]) if times_s and not is_failed else ended_ns,
        prompt_tokens=usage.whole("prompt_tokens") or text.whole("input_tokens") or 0,
        output_tokens=usage.whole("completion_tokens") or answered.whole("output_tokens") or 0,
        status=RequestStatus.FAILED if is_failed else RequestStatus.LENGTH,
        cached_tokens=cached_tokens_of(usage),
    )


def _latencies(latency: JsonFields) -> Iterator[PublishedLatency]:
    for name, (theirs, definition) in LATENCIES.items():
        found = latency.child(theirs)
        if found.has("mean"):
            keys = StatisticKeys("mean", "", "min", "max")
            yield latency_of(found, name, theirs, definition, keys=keys, percentiles=_PERCENTILES)


def _mean(fields: JsonFields, names: tuple[str, ...]) -> float | None:
    means = (fields.child(name).number("mean") for name in names)
    return next((value for value in means if value is not None), None)


# What does a table of inference-perf's stages say, one line for each engine setting and rate?
# Such a table combines several lifecycle reports; times are in milliseconds. At KubeCon NA 2025
# *reported* TPOT and ITL are half of the truth, because the server sent two events a token;
# ``tpot_from_e2e_mean_ms`` beside them was made from E2E, TTFT and length.


_HEADER: Final = frozenset(
    {
        "config",
        "stage",
        "requested_rate",
        "n_success",
        "n_fail",
        "ttft_mean_ms",
        "e2e_mean_ms",
        "requests_per_sec",
    }
)
_LATENCIES: Final[dict[str, tuple[PublishedLatencyName, str]]] = {
    "ttft": ("ttft", DEFINITIONS["ttft"]),
    "tpot_from_e2e": ("tpot", "(mean E2E - mean TTFT) / (mean output tokens - 1)"),
    "itl_reported": (
        "chunk_gap",
        "gaps between stream events as reported: two events a token halve it",
    ),
    "e2e": ("e2e", DEFINITIONS["e2e"]),
}
_STAGE_PERCENTILES: Final = {"median": 0.5, "p90": 0.9, "p99": 0.99}


def is_stages(header: Sequence[str]) -> bool:
    """Does it look like such a table?"""
    return set(header) >= _HEADER


def read_stages(path: Path) -> Imported:
    """A summary of each line.

    Raises
    ------
    RecordError
        A row is malformed; the message has its line number and the column.
    """
    source = file_source(path, "inference-perf")
    rows = DOOR.csv_records(DOOR.text_of(path).splitlines(), where=str(path))
    summaries = tuple(
        _Line(row, number, str(path)).summary(source) for number, row in enumerate(rows, start=2)
    )
    return Imported(tool="inference-perf", summaries=summaries)


class _Line:
    def __init__(self, row: Mapping[str, str | None], number: int, where: str) -> None:
        self._row = row
        self._number = number
        self._where = where

    def summary(self, source: Source) -> PublishedSummary:
        n_completed, n_failed = self._value("n_success"), self._value("n_fail")
        return PublishedSummary(
            tool="inference-perf",
            source=source,
            label=f"{self._row.get('config')}, stage {self._row.get('stage')}",
            offered_requests_per_s=self._value("requested_rate"),
            n_completed=None if n_completed is None else round(n_completed),
            n_failed=None if n_failed is None else round(n_failed),
            mean_prompt_tokens=self._value("prompt_len_mean"),
            mean_output_tokens=self._value("output_len_mean"),
            completed_requests_per_s=self._value("requests_per_sec"),
            input_tokens_per_s=self._value("input_tokens_per_sec"),
            output_tokens_per_s=self._value("output_tokens_per_sec"),
            total_tokens_per_s=self._value("total_tokens_per_sec"),
            latencies=tuple(self._latency(theirs, *ours) for theirs, ours in _LATENCIES.items()),
        )

    def _latency(
        self, theirs: str, name: PublishedLatencyName, definition: str
    ) -> PublishedLatency:
        percentiles = (
            (at, self._seconds(f"{theirs}_{key}_ms")) for key, at in _STAGE_PERCENTILES.items()
        )
        return PublishedLatency(
            name=name,
            named=theirs,
            definition=definition,
            mean_s=self._seconds(f"{theirs}_mean_ms"),
            percentiles=percentiles_of(percentiles),
        )

    def _seconds(self, name: str) -> float | None:
        value = self._value(name)
        return None if value is None else value / 1e3

    def _value(self, name: str) -> float | None:
        text = self._row.get(name)
        return (
            DOOR.number(text, name, where=f"{self._where}, line {self._number}") if text else None
        )
