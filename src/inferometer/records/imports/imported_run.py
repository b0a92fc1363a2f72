"""How do the requests of somebody else's log become a run?"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from inferometer.errors import RecordError
from inferometer.inputs.types import ModelSpec, Source
from inferometer.records.imports.imported import UNKNOWN
from inferometer.records.load_types import ChunkKind, ChunkTable
from inferometer.records.published import Tool
from inferometer.records.types import (
    ABSENT,
    UNKNOWN_COUNT,
    EngineFacts,
    RequestStatus,
    RequestTable,
    Run,
    RunManifest,
)


class ImportedRequest(NamedTuple):
    """One request of somebody else's log. Instants in nanoseconds of whatever clock it had."""

    intended_ns: int
    sent_ns: int
    first_token_ns: int | None
    finished_ns: int | None
    prompt_tokens: int
    output_tokens: int
    status: RequestStatus
    chunks_ns: tuple[int, ...] = ()
    """When each chunk came; empty where the log does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportFacts:
    """What is known of an imported run beside its requests."""

    tool: Tool
    tool_version: str
    created_utc: str
    source: Source
    model: ModelSpec | None = None
    engine: EngineFacts | None = None


def imported_run(requests: Sequence[ImportedRequest], facts: ImportFacts) -> Run:
    """The run of these requests: in order of sending, the first intended send at 0.

    Raises
    ------
    RecordError
        There is no request.
    """
    if not requests:
        raise RecordError(
            "the file has no request", where=facts.source.where, allowed="at least one"
        )
    rows = sorted(requests, key=lambda request: request.intended_ns)
    start_ns = rows[0].intended_ns
    digest = hashlib.sha256(repr((facts.source.where, rows)).encode()).hexdigest()[:12]
    manifest = RunManifest(
        run_id=f"{facts.tool}-{digest}",
        origin="published",
        created_utc=facts.created_utc,
        command=(),
        tool_version=f"{facts.tool} {facts.tool_version}",
        plan=None,
        model=facts.model,
        engine=facts.engine,
        host=None,
        source=facts.source,
        is_complete=True,
    )
    chunks = _chunks(rows, start_ns)
    return Run(
        manifest=manifest,
        sweep=None,
        steps=None,
        ceilings=None,
        requests=_requests(rows, start_ns),
        chunks=chunks,
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
        cached_tokens=np.full(n, UNKNOWN_COUNT, np.int32),
        output_tokens=counts("output_tokens"),
        n_preemptions=np.full(n, UNKNOWN_COUNT, np.int32),
        status=np.array([row.status for row in rows], np.int8),
        priority=np.zeros(n, np.int32),
        class_index=np.zeros(n, np.int32),
        request_index=np.arange(n, dtype=np.int32),
    )


def _chunks(rows: Sequence[ImportedRequest], start_ns: int) -> ChunkTable | None:
    """A token a chunk where there are as many; else nobody can tell how the tokens are spread."""
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
