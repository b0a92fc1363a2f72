"""Types of what is read from another tool's results: a run, or a summary without requests.

The statistics of a summary have our names but keep their tool's definitions, because tools use the
same word for different numbers. What the tool did not report is None or left out, never 0.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from inferometer.errors import RecordError
from inferometer.inputs.types import Caution, ModelSpec, Source
from inferometer.records.columns import F64, I32, Bools, Texts
from inferometer.records.imports.json_fields import JsonFields
from inferometer.records.types import (
    ABSENT,
    UNKNOWN_COUNT,
    ChunkKind,
    ChunkTable,
    EngineFacts,
    RequestStatus,
    RequestTable,
    Run,
    RunManifest,
)
from inferometer.units import NS_PER_S, format_duration

Tool: TypeAlias = Literal[
    "vllm-bench",
    "sglang-bench",
    "aiperf",
    "genai-perf",
    "genai-bench",
    "guidellm",
    "inference-perf",
    "inferencex",
    "llm-d",
    "llmservingsim",
    "llmperf",
    "trtllm-bench",
    "mlperf",
    "table",
    "inferometer",
]
PublishedLatencyName: TypeAlias = Literal["ttft", "tpot", "chunk_gap", "normalized_tpot", "e2e"]

DEFINITIONS: Final[dict[PublishedLatencyName, str]] = {
    "ttft": "first token - send",
    "tpot": "(last - first token) / (output tokens - 1), one value a request",
    "chunk_gap": "gaps between the chunks of all requests; a chunk may carry several tokens",
    "normalized_tpot": "(last token - send) / output tokens, one value a request",
    "e2e": "last token - send",
}
"""Our definition of each latency; a tool's deviation from it is noted beside its numbers."""
UNKNOWN: Final = -1
"""Marks a value in an int32 column that the file does not have."""


RAMP: Final = "ramp_up_strategy"
"""vLLM's setting of a rate that grows."""
_AT_ONCE_RATIO: Final = 100
"""Ratio of offered to completed rate from which all requests count as sent at once."""


class PublishedPercentile(NamedTuple):
    """One percentile of a latency, as published: without an interval."""

    percentile_fraction: float
    value_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedLatency:
    """One latency's statistics, as published."""

    name: PublishedLatencyName
    named: str
    """The tool's name of the latency."""
    definition: str
    mean_s: float | None = None
    std_s: float | None = None
    min_s: float | None = None
    max_s: float | None = None
    percentiles: tuple[PublishedPercentile, ...] = ()
    """Sorted by fraction."""

    def percentile_s(self, fraction: float) -> float | None:
        """The percentile of that fraction, where it was published."""
        return next(
            (
                one.value_s
                for one in self.percentiles
                if abs(one.percentile_fraction - fraction) < 1e-9
            ),
            None,
        )


def percentiles_of(
    found: Iterable[tuple[float, float | None]],
) -> tuple[PublishedPercentile, ...]:
    """The percentiles that are not None, from pairs of fraction and seconds."""
    return tuple(PublishedPercentile(at, value_s) for at, value_s in found if value_s is not None)


class StatisticKeys(NamedTuple):
    """A tool's field names of a latency's statistics; '' for those that it does not write."""

    mean: str
    std: str
    least: str
    most: str


def latency_of(
    fields: JsonFields,
    name: PublishedLatencyName,
    named: str,
    definition: str,
    *,
    keys: StatisticKeys,
    percentiles: Mapping[str, float],
    unit_s: float = 1.0,
) -> PublishedLatency:
    """The statistics of one latency, from the fields of one object.

    ``percentiles`` maps the tool's names to fractions; ``unit_s`` is its unit in seconds.
    """

    def seconds(key: str) -> float | None:
        value = fields.number(key)
        return None if value is None else value * unit_s

    return PublishedLatency(
        name=name,
        named=named,
        definition=definition,
        mean_s=seconds(keys.mean),
        std_s=seconds(keys.std),
        min_s=seconds(keys.least),
        max_s=seconds(keys.most),
        percentiles=percentiles_of((at, seconds(key)) for key, at in percentiles.items()),
    )


def published(found: Iterable[PublishedLatency | None]) -> tuple[PublishedLatency, ...]:
    """The latencies that a tool published."""
    return tuple(one for one in found if one is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSummary:
    """A tool's summary of one run, or of one stage; None marks what it did not report."""

    tool: Tool
    source: Source
    tool_version: str | None = None
    label: str = ""
    """Name of the run within its file."""
    model: str | None = None
    engine: str | None = None
    hardware: str | None = None
    offered_requests_per_s: float | None = None
    """The requested rate; infinite: all at once, which JSON has no number for."""
    is_all_at_once: bool = False
    """Is the requested rate infinite?"""
    concurrency: int | None = None
    """The requested concurrency."""
    settings: tuple[tuple[str, str], ...] = ()
    """Further settings, in the tool's words, sorted."""
    duration_s: float | None = None
    n_requested: int | None = None
    """Number of requests that were to be sent."""
    n_completed: int | None = None
    n_failed: int | None = None
    mean_prompt_tokens: float | None = None
    mean_output_tokens: float | None = None
    completed_requests_per_s: float | None = None
    good_requests_per_s: float | None = None
    input_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    total_tokens_per_s: float | None = None
    latencies: tuple[PublishedLatency, ...] = ()

    @property
    def is_closed_loop(self) -> bool:
        """Was each request sent when another ended (closed loop), rather than at a rate?

        A rate far above the completed one, such as 1e9, means that all were sent at once.
        """
        offered_per_s, done_per_s = self.offered_requests_per_s, self.completed_requests_per_s
        is_at_once = (
            offered_per_s is None
            or offered_per_s == inf
            or (done_per_s is not None and offered_per_s > _AT_ONCE_RATIO * done_per_s > 0)
        )
        is_ramp = any(name == RAMP for name, _ in self.settings)
        return self.concurrency is not None and is_at_once and not is_ramp

    def latency(self, name: PublishedLatencyName) -> PublishedLatency | None:
        """The statistics of this latency; None where the tool did not publish them."""
        return next((one for one in self.latencies if one.name == name), None)


# Published measurements, point by point: one row for a model on a device under a load.
# The tables of InferenceX (InferenceMAX before) and of AIConfigurator's collection of them come
# as these. Absent floats are NaN, absent counts -1. Letters of shapes: N points.


class PublishedPointTable(NamedTuple):
    """One row per published point (N rows), in the order of the files."""

    source_file: Texts
    row: I32
    """Row number in the file, from 0."""
    hardware: Texts
    """Name of the device in the file."""
    hardware_id: Texts
    """Id in the catalogue; '' where it has no such device."""
    model: Texts
    precision: Texts
    """fp4, fp8, int4, bf16; '' where the file does not say."""
    framework: Texts
    framework_version: Texts
    is_disaggregated: Bools
    """Prefill and decode on separate devices; the parallelism is then that of a decode server, if
    the file states it."""
    uses_speculation: Bools
    """Does the file state speculation? False also where it has no column for it."""
    is_provisional: Bools
    tensor_parallel: I32
    expert_parallel: I32
    data_parallel: I32
    """Data parallel size of attention."""
    decode_workers: I32
    """Number of decode servers. Without disaggregation: all users divided by the users that one
    server's batches hold. -1 where not stated."""
    prefill_workers: I32
    """Number of prefill servers. -1, as the two below, where not disaggregated or not stated."""
    prefill_tensor_parallel: I32
    prefill_data_parallel: I32
    n_devices: I32
    """-1 where disaggregated."""
    prompt_tokens: I32
    """Nominal length. InferenceX draws lengths from 80 to 100 % of it, on average 90 %."""
    output_tokens: I32
    concurrency: I32
    """Concurrency of the closed loop, of the whole deployment."""
    device_total_tokens_per_s: F64
    """Throughput of input and output tokens, per device."""
    device_output_tokens_per_s: F64
    device_input_tokens_per_s: F64
    ttft_mean_s: F64
    ttft_median_s: F64
    ttft_p99_s: F64
    ttft_unnamed_s: F64
    """TTFT in a statistic that the file does not name."""
    tpot_mean_s: F64
    tpot_median_s: F64
    tpot_p99_s: F64
    tpot_unnamed_s: F64
    e2e_mean_s: F64
    e2e_median_s: F64
    e2e_p99_s: F64


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Runs, summaries and points of a file."""

    tool: Tool
    runs: tuple[Run, ...] = ()
    summaries: tuple[PublishedSummary, ...] = ()
    points: PublishedPointTable | None = None
    """Points of a published table."""


def file_source(path: Path, tool: Tool) -> Source:
    """The source of a number from this file: tool, file name and content hash, no path."""
    return Source(
        kind="measured",
        where=f"{tool}: {path.name}, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}",
    )


def same_length(columns: dict[str, Sequence[object] | None], fields: JsonFields) -> int:
    """The length of these columns, without those that are absent.

    Raises
    ------
    RecordError
        The lengths differ.
    """
    lengths = {name: len(column) for name, column in columns.items() if column is not None}
    if len(set(lengths.values())) > 1:
        raise RecordError(
            f"the lists differ in length: {lengths}",
            where=fields.where,
            allowed="one value for each request in each",
            try_="the file as the tool wrote it, of a run that ended",
        )
    return next(iter(lengths.values()), 0)


class ImportedRequest(NamedTuple):
    """One request of another tool's log. Times are in nanoseconds of that tool's clock."""

    intended_ns: int
    sent_ns: int
    first_token_ns: int | None
    finished_ns: int | None
    prompt_tokens: int
    output_tokens: int
    status: RequestStatus
    chunks_ns: tuple[int, ...] = ()
    """Arrival time of each chunk; empty where the log has none."""
    cached_tokens: int = UNKNOWN_COUNT
    """Prompt tokens that the server found in its prefix cache."""


def cached_tokens_of(usage: JsonFields) -> int:
    """Cached prompt tokens by the server's ``usage`` (OpenAI's names); unknown where it has none.

    Raises
    ------
    RecordError
        It is no count.
    """
    return known_count(usage.child("prompt_tokens_details"), "cached_tokens")


def known_count(fields: JsonFields, name: str) -> int:
    """The count of this name; ``UNKNOWN_COUNT`` where there is none.

    Raises
    ------
    RecordError
        It is no whole number, or below 0.
    """
    count = fields.whole(name)
    if count is not None and count < 0:
        raise fields.refuse(name, "a whole number, 0 or more")
    return UNKNOWN_COUNT if count is None else count


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportFacts:
    """Facts about an imported run, beside its requests."""

    tool: Tool
    tool_version: str
    created_utc: str
    source: Source
    model: ModelSpec | None = None
    engine: EngineFacts | None = None
    cautions: tuple[Caution, ...] = ()


def imported_run(requests: Sequence[ImportedRequest], facts: ImportFacts) -> Run:
    """The run of these requests, in order of sending, with the first intended send at 0.

    Raises
    ------
    RecordError
        The log has no requests.
    """
    if not requests:
        raise RecordError(
            "the file has no request",
            where=facts.source.where,
            allowed="at least one",
            try_="the file of a run that ended",
        )
    _check_order(requests, facts.source.where)
    rows = sorted(requests, key=lambda request: request.intended_ns)
    start_ns = rows[0].intended_ns
    digest = hashlib.sha256(repr((facts.source.where, rows)).encode()).hexdigest()[:12]
    manifest = RunManifest(
        run_id=f"{facts.tool}-{digest}",
        origin="published",
        created_utc=facts.created_utc,
        tool_version=f"{facts.tool} {facts.tool_version}",
        model=facts.model,
        engine=facts.engine,
        source=facts.source,
        is_complete=True,
        cautions=facts.cautions,
    )
    chunks = _chunks(rows, start_ns)
    return Run(
        manifest=manifest,
        requests=_requests(rows, start_ns),
        chunks=chunks,
    )


def _check_order(requests: Sequence[ImportedRequest], where: str) -> None:
    """Check that no response begins or ends before its request was sent."""
    for number, one in enumerate(requests, start=1):
        for what, at_ns in (("begins", one.first_token_ns), ("ends", one.finished_ns)):
            early_ns = 0 if at_ns is None else max(one.intended_ns, one.sent_ns) - at_ns
            if early_ns > 0:
                raise RecordError(
                    f"request {number}: its answer {what} {format_duration(early_ns / NS_PER_S)}"
                    " before it was sent",
                    where=where,
                    allowed="instants in the order in which things happen",
                    try_="measure again, with the clocks of client and server alike",
                )


def _requests(rows: Sequence[ImportedRequest], start_ns: int) -> RequestTable:
    def instants(name: str) -> np.ndarray:
        values = (getattr(row, name) for row in rows)
        return np.array(
            [ABSENT if value is None else value - start_ns for value in values], np.int64
        )

    def counts(name: str) -> np.ndarray:
        return np.array([getattr(row, name) for row in rows], np.int32)

    n = len(rows)
    return RequestTable(
        intended_send_ns=instants("intended_ns"),
        sent_ns=instants("sent_ns"),
        admitted_ns=np.full(n, ABSENT, np.int64),
        first_token_ns=instants("first_token_ns"),
        finished_ns=instants("finished_ns"),
        prompt_tokens=counts("prompt_tokens"),
        cached_tokens=counts("cached_tokens"),
        output_tokens=counts("output_tokens"),
        n_preemptions=np.full(n, UNKNOWN_COUNT, np.int32),
        status=np.array([row.status for row in rows], np.int8),
        priority=np.zeros(n, np.int32),
        class_index=np.zeros(n, np.int32),
        request_index=np.arange(n, dtype=np.int32),
    )


def _chunks(rows: Sequence[ImportedRequest], start_ns: int) -> ChunkTable | None:
    """One token per chunk if the counts agree; else the tokens of each chunk are unknown."""
    if not any(row.chunks_ns for row in rows):
        return None
    n_chunks = [len(row.chunks_ns) for row in rows]
    tokens = [1 if len(row.chunks_ns) == row.output_tokens else ABSENT for row in rows]
    total = sum(n_chunks)
    return ChunkTable(
        request_index=np.repeat(np.arange(len(rows), dtype=np.int32), n_chunks),
        arrived_ns=np.array(
            [instant_ns - start_ns for row in rows for instant_ns in row.chunks_ns], np.int64
        ),
        n_tokens=np.repeat(np.array(tokens, np.int64), n_chunks),
        n_characters=np.full(total, UNKNOWN, np.int32),
        kind=np.full(total, ChunkKind.CONTENT, np.int8),
    )
