"""Reader of LLMServingSim's published runs of vLLM, and of its predictions of them.

A folder holds ``requests.csv`` or ``requests.jsonl`` (one row a request), ``meta.json`` (the
engine's arguments) and ``llmservingsim_prediction_summary.txt`` (their simulator beside vLLM); the
workload's prefix blocks lie beside the folders. Times are the engine core's: they exclude the time
for detokenising and sending. Letters of shapes: N requests, K prefix blocks.
"""

import hashlib
import re
from dataclasses import dataclass, field, fields
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from inferometer.errors import RecordError
from inferometer.inputs.catalog import known_model
from inferometer.inputs.types import Source
from inferometer.records.columns import F64, I64
from inferometer.records.imports.json_fields import DOOR
from inferometer.records.types import (
    EngineFacts,
    RequestStatus,
    RequestTable,
    Run,
    RunManifest,
    SchedulerFacts,
)
from inferometer.units import MOST_COUNT, MOST_S

_LOGS: Final = ("requests.csv", "requests.jsonl")
BLOCK_TOKENS: Final = 16
"""Size of the workload's prefix blocks, and vLLM's default block size."""

UNKNOWN: Final = -1
"""Marks int32 values that the log does not have: cached tokens and preemptions."""

Metric: TypeAlias = Literal["ttft", "tpot", "e2e"]
Statistic: TypeAlias = Literal["mean", "p50", "p90", "p95", "p99"]

_METRICS: Final[dict[str, Metric]] = {"TTFT": "ttft", "TPOT": "tpot", "Latency": "e2e"}
_STATISTICS: Final[dict[str, Statistic]] = {
    "Mean": "mean",
    "Median": "p50",
    "P90": "p90",
    "P95": "p95",
    "P99": "p99",
}
_CLAIM: Final = re.compile(r"(TTFT|TPOT|Latency) (Mean|Median|P90|P95|P99)\s+([\d.]+)\s+([\d.]+)")
_WHERE: Final = "github casys-kaist/LLMServingSim @5daddb2 bench/examples (MIT)"


class Claim(NamedTuple):
    """One line of the authors' summary.

    Their TTFT starts when the engine core receives the request.
    """

    metric: Metric
    statistic: Statistic
    measured_s: float
    simulated_s: float


class PrefixBlocks(NamedTuple):
    """Chained ids of full prompt blocks of N requests: equal ids mean equal tokens so far."""

    start: I64
    """(N + 1) Index of each request's first id."""
    ids: I64


class _Line(msgspec.Struct):
    """One request of ``requests.jsonl``, instants in seconds."""

    input_toks: int
    output_toks: int
    arrival_time: float
    queued_ts: float
    scheduled_ts: float
    first_token_ts: float
    last_token_ts: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArguments:
    """Arguments of the engine's start, in vLLM's names."""

    model: str
    tensor_parallel_size: int
    data_parallel_size: int
    enable_expert_parallel: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    dtype: str


class _WorkloadLine(msgspec.Struct, frozen=True):
    input_toks: int
    hash_runs: tuple[
        tuple[
            Annotated[int, msgspec.Meta(ge=0, le=2**62)],
            Annotated[int, msgspec.Meta(ge=0, le=MOST_COUNT)],
        ],
        ...,
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meta:
    engine_kwargs: EngineArguments
    started_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedServing:
    """A measured serving run, and its authors' summary of it."""

    run: Run
    arguments: EngineArguments
    queued_ns: I64
    """(N) Time at which the engine core received each request."""
    prefix: PrefixBlocks | None
    claims: tuple[Claim, ...]


def is_log(header: list[str]) -> bool:
    """Does it look like the ``requests.csv`` of such a folder?"""
    return {"request_id", "arrival_s", "input_toks", "output_toks"} <= set(header)


def read_llmservingsim(folder: Path, workload: Path | None = None) -> PublishedServing:
    """The run in this folder; ``workload`` is the JSONL file with the prefix blocks of its prompts.

    Raises
    ------
    RecordError
        A file is missing, or a line is malformed; the message has its number.
    """
    requests, queued_ns, digest = _requests(log_of(folder) or folder / "requests.csv")
    raw = DOOR.text_of(folder / "meta.json")
    meta = DOOR.json(raw, _Meta, where=str(folder / "meta.json"))
    arguments = meta.engine_kwargs
    claims = folder / "llmservingsim_prediction_summary.txt"
    manifest = RunManifest(
        run_id=f"published-{digest}",
        origin="published",
        created_utc=meta.started_at,
        tool_version="unknown",
        model=known_model(arguments.model.removesuffix("-Instruct-2507")),
        engine=vllm_facts(raw, str(folder / "meta.json")),
        source=Source(kind="repository", where=f"{_WHERE}: {folder.name}"),
        is_complete=True,
    )
    return PublishedServing(
        run=Run(manifest=manifest, sweep=None, steps=None, ceilings=None, requests=requests),
        arguments=arguments,
        queued_ns=queued_ns,
        prefix=None if workload is None else _prefix(workload, requests),
        claims=_claims(DOOR.text_of(claims)) if claims.is_file() else (),
    )


def log_of(folder: Path) -> Path | None:
    """The file of requests in a folder of LLMServingSim; None if the folder is not one."""
    logs = (folder / name for name in _LOGS)
    return (
        next((log for log in logs if log.is_file()), None)
        if (folder / "meta.json").is_file()
        else None
    )


def check_place(path: Path) -> None:
    """Check that the log has LLMServingSim's file name and neighbours.

    Raises
    ------
    RecordError
        It has another name, or a file that belongs to it is missing beside it.
    """
    if log_of(path.parent) != path:
        is_named = path.name in _LOGS
        raise RecordError(
            "the log of LLMServingSim "
            + ("has no meta.json beside it" if is_named else f"is called {path.name}"),
            where=str(path),
            allowed=f"{' or '.join(_LOGS)}, with meta.json beside it",
            try_="the folder that LLMServingSim wrote",
        )


def _rows(text: str, path: Path) -> list[dict[str, str]]:
    """The lines of the log: of a table, or of the JSON that vLLM's own recorder writes.

    Its ``arrival_time`` is the wall clock's, its other instants are of a monotonic clock: they are
    aligned so that no request is queued before it arrives.
    """
    if path.suffix == ".csv":
        return list(DOOR.csv_records(text.splitlines(), where=str(path)))
    lines = [
        DOOR.json(line, _Line, where=f"{path}, line {number}")
        for number, line in enumerate(text.splitlines(), start=1)
    ]
    shift_s = min((line.queued_ts - line.arrival_time for line in lines), default=0.0)
    start_s = min((line.arrival_time + shift_s for line in lines), default=0.0)
    return [
        {
            "input_toks": str(line.input_toks),
            "output_toks": str(line.output_toks),
            "arrival_s": repr(line.arrival_time + shift_s - start_s),
            "queued_s": repr(line.queued_ts - start_s),
            "scheduled_s": repr(line.scheduled_ts - start_s),
            "first_token_s": repr(line.first_token_ts - start_s),
            "last_token_s": repr(line.last_token_ts - start_s),
        }
        for line in sorted(lines, key=lambda line: line.arrival_time)
    ]


def _requests(path: Path) -> tuple[RequestTable, I64, str]:
    text = DOOR.text_of(path)
    rows = _rows(text, path)

    def column(name: str, most: float = MOST_COUNT) -> F64:
        values: list[float] = []
        for number, row in enumerate(rows, start=2):
            values.append(
                DOOR.number(row.get(name, ""), name, where=f"{path}, line {number}", most=most)
            )
        return np.array(values)

    def instants(name: str) -> I64:
        return np.round(column(name, MOST_S) * 1e9).astype(np.int64)

    n_requests, arrival_ns = len(rows), instants("arrival_s")
    late = np.flatnonzero(np.diff(arrival_ns) < 0)
    if late.size:
        raise RecordError(
            f"line {late[0] + 3} arrives before its predecessor",
            where=str(path),
            allowed="lines in the order of arrival",
            try_="sort the lines by arrival",
        )
    for before, name in pairwise(("arrival_s", "first_token_s", "last_token_s")):
        early = np.flatnonzero(instants(name) < instants(before))
        if early.size:
            row = rows[early[0]]
            raise RecordError(
                f"{name} = {row[name]}",
                where=f"{path}, line {early[0] + 2}",
                allowed=f"{before} = {row[before]}, or later",
                try_="the file as the simulator wrote it",
            )
    table = RequestTable(
        intended_send_ns=arrival_ns,
        sent_ns=arrival_ns,
        admitted_ns=instants("scheduled_s"),
        first_token_ns=instants("first_token_s"),
        finished_ns=instants("last_token_s"),
        prompt_tokens=column("input_toks").astype(np.int32),
        cached_tokens=np.full(n_requests, UNKNOWN, np.int32),
        output_tokens=column("output_toks").astype(np.int32),
        n_preemptions=np.full(n_requests, UNKNOWN, np.int32),
        status=np.full(n_requests, RequestStatus.LENGTH, np.int8),
        priority=np.zeros(n_requests, np.int32),
        class_index=np.zeros(n_requests, np.int32),
        request_index=np.arange(n_requests, dtype=np.int32),
    )
    return table, instants("queued_s"), hashlib.sha256(text.encode()).hexdigest()[:12]


def _prefix(path: Path, requests: RequestTable) -> PrefixBlocks:
    """The full blocks of each prompt."""
    start, ids = [0], list[int]()
    lines = DOOR.text_of(path).splitlines()
    if len(lines) != len(requests.prompt_tokens):
        raise RecordError(
            f"{len(lines)} requests for a log of {len(requests.prompt_tokens)}",
            where=str(path),
            allowed="the log and the requests of one run",
            try_="the requests that this log was made of",
        )
    for number, (line, prompt) in enumerate(
        zip(lines, requests.prompt_tokens.tolist(), strict=True), start=1
    ):
        row = DOOR.json(line, _WorkloadLine, where=f"{path}, line {number}")
        if row.input_toks != prompt:
            raise RecordError(
                f"line {number} has {row.input_toks} prompt tokens, the log {prompt}",
                where=str(path),
                try_="the requests that this log was made of",
            )
        runs = (range(first, first + count) for first, count in row.hash_runs)
        ids += islice(chain.from_iterable(runs), prompt // BLOCK_TOKENS)
        start.append(len(ids))
    return PrefixBlocks(start=np.array(start, np.int64), ids=np.array(ids, np.int64))


def _claims(text: str) -> tuple[Claim, ...]:
    return tuple(
        Claim(
            _METRICS[metric], _STATISTICS[statistic], float(measured) / 1e3, float(simulated) / 1e3
        )
        for metric, statistic, measured, simulated in _CLAIM.findall(text)
    )


# Which limits does a record of a vLLM server's configuration have?
# LLMServingSim's ``meta.json`` holds the arguments and the configuration that vLLM resolved.
# What vLLM resolved (``resolved_config``, ``kv_cache``) is the server's; the arguments stand in
# where it was not stored.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arguments:
    """Arguments of the server's start, or part of its resolved configuration; None: not stored."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    async_scheduling: bool | None = None
    tensor_parallel_size: int | None = None
    data_parallel_size: int | None = None
    num_gpu_blocks: int | None = None
    block_size: int | None = None
    dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resolved:
    scheduler_config: _Arguments = field(default_factory=_Arguments)
    cache_config: _Arguments = field(default_factory=_Arguments)
    model_config: _Arguments = field(default_factory=_Arguments)
    parallel_config: _Arguments = field(default_factory=_Arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunMeta:
    engine_kwargs: _Arguments
    vllm_version: str = "unknown"
    kv_cache: _Arguments = field(default_factory=_Arguments)
    resolved_config: _Resolved = field(default_factory=_Resolved)


def vllm_facts(text: str, where: str) -> EngineFacts:
    """The server's limits in a ``meta.json``.

    Raises
    ------
    RecordError
        A limit is not a number, or there are no arguments.
    """
    read = DOOR.json(text, _RunMeta, where=where)
    resolved = read.resolved_config
    parts = (
        resolved.scheduler_config,
        resolved.cache_config,
        resolved.model_config,
        resolved.parallel_config,
        read.kv_cache,
        read.engine_kwargs,
    )

    def first(name: str) -> Any:  # noqa: ANN401  # msgspec checked it
        return next((value for part in parts if (value := getattr(part, name)) is not None), None)

    return EngineFacts(
        engine="vllm",
        version=read.vllm_version,
        compute_dtype=read.engine_kwargs.dtype,
        n_kv_blocks=first("num_gpu_blocks"),
        kv_block_tokens=first("block_size"),
        scheduler=SchedulerFacts(**{one.name: first(one.name) for one in fields(SchedulerFacts)}),
    )
