"""How is MLPerf's ``mlperf_log_summary.txt`` read?

Loadgen prints it as ``name : value``, times in nanoseconds. Its latencies start when a query is
scheduled: at its arrival in a Poisson process (Server), or at the start (Offline). Percentiles
are values of the sorted list, without interpolation. If token latencies were not recorded, the
only latency is that of the whole response. Checked against ``loadgen/results.cc`` of
mlcommons/inference 5.1, which has called TPOT *time to output token* and *time per output token*.
"""

import re
from math import inf
from pathlib import Path
from typing import Final

from inferometer import suggestions
from inferometer.errors import RecordError
from inferometer.records.imports.imported import (
    Imported,
    PublishedLatency,
    PublishedLatencyName,
    PublishedSummary,
    StatisticKeys,
    file_source,
    latency_of,
    published,
)
from inferometer.records.imports.json_fields import DOOR, Json, JsonFields

SUMMARY_NAME: Final = "mlperf_log_summary.txt"
_TITLE: Final = "MLPerf Results Summary"
_DETAIL: Final = ":::MLLOG"
_LINE: Final = re.compile(
    r"^[ *]*([A-Za-z0-9][^:\n]{0,80}?)[ \t]*:[ \t]*(\S[^\n]{0,200}?)[ \t]*$", re.MULTILINE
)
_NS: Final = 1e-9
_PERCENTILES: Final = (50, 90, 95, 97, 99, 99.9)
_LATENCIES: Final[dict[PublishedLatencyName, tuple[str, ...]]] = {
    "ttft": ("first token latency",),
    "tpot": ("time per output token", "time to output token"),
    "e2e": ("latency",),
}
"""Our name of each latency -> loadgen's names, in lower case."""
_DEFINITIONS: Final[dict[PublishedLatencyName, str]] = {
    "ttft": "first token - when the query was scheduled",
    "tpot": "(last - first token) / (output tokens - 1), one value a query",
    "e2e": "last token - when the query was scheduled",
}
_SETTINGS: Final = (
    "mode",
    "result is",
    "samples_per_query",
    "target_latency (ns)",
    "ttft_latency (ns)",
    "tpot_latency (ns)",
)


def is_mlperf(text: str) -> bool:
    """Is it loadgen's summary, or its detailed log?"""
    start = text.lstrip()
    return start.startswith(_DETAIL) or (_TITLE in text and start[:1] not in {"{", "["})


def read_mlperf(path: Path) -> Imported:
    """The statistics of a run of loadgen.

    Raises
    ------
    RecordError
        It is the detailed log or an accuracy run, or a value is not a number.
    """
    text, where = DOOR.text_of(path), str(path)
    if _TITLE not in text:
        raise RecordError(
            "this is loadgen's detailed log",
            where=where,
            allowed=f"loadgen's summary, {SUMMARY_NAME}",
            try_=suggestions.command("import", path.with_name(SUMMARY_NAME)),
        )
    found = JsonFields(content=_named_values(text[text.index(_TITLE) :]), where=where)
    scenario = found.text("scenario") or "unknown scenario"
    samples_per_s = found.number("completed samples per second") or found.number(
        "samples per second"
    )
    tokens_per_s = found.number("completed tokens per second") or found.number("tokens per second")
    latencies = published(_latency(found, name) for name in _LATENCIES)
    if samples_per_s is None and not latencies:
        raise RecordError(
            f"no throughput and no latency (mode {found.text('mode')})",
            where=where,
            allowed="the summary of a performance run",
            try_="mlperf_log_summary.txt of performance/run_1, not of accuracy",
        )
    summary = PublishedSummary(
        tool="mlperf",
        source=file_source(path, "mlperf"),
        label=f"{found.text('sut name') or 'unnamed'}, {scenario}, {found.text('result is')}",
        offered_requests_per_s=_offered(found, scenario),
        concurrency=1 if scenario.replace(" ", "") == "SingleStream" else None,
        settings=tuple(sorted(found.pairs(_SETTINGS))),
        mean_output_tokens=None
        if not samples_per_s or tokens_per_s is None
        else tokens_per_s / samples_per_s,
        completed_requests_per_s=samples_per_s,
        output_tokens_per_s=tokens_per_s,
        latencies=latencies,
    )
    return Imported(tool="mlperf", summaries=(summary,))


def _named_values(text: str) -> dict[str, Json]:
    """Each value by its name in lower case: the first of each name; titles have none."""
    found = dict[str, Json]()
    for name, value in _LINE.findall(text):
        found.setdefault(" ".join(name.lower().split()), value)
    return found


def _offered(found: JsonFields, scenario: str) -> float | None:
    """The offered rate: infinite in Offline; None in stream scenarios, which have none."""
    if scenario == "Offline":
        return inf
    return found.number("target_qps") if scenario == "Server" else None


def _latency(found: JsonFields, name: PublishedLatencyName) -> PublishedLatency | None:
    """The statistics of a latency; loadgen may name its mean and its percentiles differently."""
    words = _LATENCIES[name]
    mean = next((one for one in words if found.has(f"mean {one} (ns)")), None)
    percentiles = {
        f"{at:.2f} percentile {one} (ns)": at / 100 for at in _PERCENTILES for one in words
    }
    if mean is None and not any(map(found.has, percentiles)):
        return None
    theirs = mean or words[0]
    return latency_of(
        found,
        name,
        theirs,
        _DEFINITIONS[name],
        keys=StatisticKeys(f"mean {theirs} (ns)", "", f"min {theirs} (ns)", f"max {theirs} (ns)"),
        percentiles=percentiles,
        unit_s=_NS,
    )
