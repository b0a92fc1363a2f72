"""What happened in a run: tables as arrays, and a manifest that says where and how they were made.

A ``Run`` has one type whether it was measured, simulated or published; whoever reads it cannot
tell. A load test has tables beside its requests: chunks, exchanges, how late the client itself was,
and the server's own numbers.

Absent is never 0: an absent int64 is ``ABSENT``, an absent float is NaN; both are NULL in Parquet.
Instants are nanoseconds of a monotonic clock since the start of the run. Letters of shapes: N
repetitions or requests, S steps, P parts of steps, V visits, C ceiling probes, K chunks, L lag
probes, M samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.inputs.plans import LoadPlan
from inferometer.inputs.types import Caution, ModelSpec, Source, SweepPlan
from inferometer.inputs.workload.plan import RequestPlan
from inferometer.records.columns import F64, I8, I32, I64, Bools, Texts
from inferometer.units import NS_PER_S

ValidityVerdict: TypeAlias = Literal["VALID", "SUSPECT", "INVALID"]
ABSENT: Final = int(np.iinfo(np.int64).min)
"""The int64 for *unknown*; NULL in Parquet."""

REFUSALS: Final = ("rejected", "refused")
"""Cautions on requests too long for a simulated server, or too many for its queue."""

UNKNOWN_COUNT: Final = -1
"""The int32 count for *unknown*."""

SCHEMA_VERSION: Final = 4


Origin: TypeAlias = Literal["measured", "simulated", "published"]


class ChunkKind(IntEnum):
    """Content of a chunk of an answer."""

    CONTENT = 0
    REASONING = 1
    TOOL_CALL = 2


class ChunkTable(NamedTuple):
    """One row per event with tokens (K rows), by request and then by arrival.

    Events without any (a role, usage alone, keep-alive, ``[DONE]``) are none.
    """

    request_index: I32
    """``RequestTable.request_index``"""
    arrived_ns: I64
    """End of the read that completed the event."""
    n_tokens: I64
    """ABSENT where the spread of the answer's tokens over its chunks is unknown."""
    n_characters: I32
    kind: I8
    """A ``ChunkKind``."""


class ExchangeTable(NamedTuple):
    """HTTP traffic of each request sent (N rows, in ``RequestTable`` order)."""

    request_index: I32
    process_index: I32
    """The client process that sent it."""
    connection_index: I32
    """Number of the connection within that process; -1 where none could be opened."""
    is_reused: Bools
    """The connection had carried a request before."""
    connected_ns: I64
    """Time when the new connection was open; ABSENT where reused or never open."""
    head_ns: I64
    """Arrival of the response's head; ABSENT without one."""
    last_byte_ns: I64
    """ABSENT where no byte came."""
    http_status: I64
    """ABSENT where none came."""
    error: Texts
    """'' or what went wrong, as a short stable code (``records.exchange_errors``)."""
    finish_reason: Texts
    """As reported by the server; '' where not."""
    asked_output_tokens: I32
    """``max_tokens`` of the request."""
    sent_bytes: I64
    received_bytes: I64
    """Bytes of the body."""
    n_chunks: I32
    n_coalesced_chunks: I32
    """Chunks that arrived in one read with an earlier chunk of the same answer."""
    usage_prompt_tokens: I64
    """As counted by the server; ABSENT where not reported."""
    usage_cached_tokens: I64
    usage_output_tokens: I64
    token_source: Texts
    """Source of the output token count: usage, tokenizer or chunks; '' without tokens."""
    retry_after_s: F64
    """As requested by the server; NaN where not."""


class LagTable(NamedTuple):
    """Delays of the client itself (L rows).

    A timer that should fire every few milliseconds says by how much it was late.
    """

    process_index: I32
    due_ns: I64
    lag_ns: I64
    n_in_flight: I32


class ServerSampleTable(NamedTuple):
    """The server's own numbers (M rows), as scraped; names and labels are the server's."""

    scraped_ns: I64
    """Arrival of the scrape's answer."""
    name: Texts
    labels: Texts
    """In the exposition format, sorted by name: ``engine="0",le="0.5"``."""
    value: F64


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """Another host's clock relative to the driver's, read repeatedly around one instant."""

    at_ns: int
    """Instant of the run, by the driver's clock."""
    offset_ns: int
    """The host's CLOCK_MONOTONIC minus the driver's."""
    doubt_ns: int
    """The offset is that far off at most, whichever way the messages took longer."""
    n_exchanges: int

    def since(self, origin_ns: int) -> "ClockReading":
        """The same reading, its instant counted from ``origin_ns``."""
        return replace(self, at_ns=self.at_ns - origin_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostClock:
    """The clock by which one process of the client sent, where it ran on another host than the driver."""

    process_index: int
    host_hash: str
    before: ClockReading
    """Reading by which its schedule was set."""
    after: ClockReading | None
    """None: the host was gone."""

    def read_again(self, after: ClockReading | None) -> "HostClock":
        """The same clock, read after the run too."""
        return replace(self, after=after)

    @property
    def drift_ratio(self) -> float:
        """Relative rate difference from the driver's clock.

        0 where that was not measured, or lies within the uncertainty of the readings.
        """
        after = self.after
        if after is None or after.at_ns <= self.before.at_ns:
            return 0.0
        moved_ns = after.offset_ns - self.before.offset_ns
        is_seen = abs(moved_ns) > after.doubt_ns + self.before.doubt_ns
        return moved_ns / (after.at_ns - self.before.at_ns) if is_seen else 0.0

    @property
    def error_s(self) -> float:
        """Largest error of a request's due time (seconds).

        The drift during the run, and the uncertainty of both readings.
        """
        after = self.after or self.before
        return (
            abs(after.offset_ns - self.before.offset_ns) + max(after.doubt_ns, self.before.doubt_ns)
        ) / NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidityReason:
    """Result of one check of a load test."""

    check: str
    verdict: ValidityVerdict
    text: str
    """Observation and limit, in a sentence."""
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """Validity of a load test: the worst of its checks."""

    verdict: ValidityVerdict
    reasons: tuple[ValidityReason, ...]
    """Every check that was made, the worst first."""


class PointStatus(IntEnum):
    """How a repetition of a sweep point ended."""

    OK = 0
    OUT_OF_MEMORY = 1
    FAILED = 2


class Phase(IntEnum):
    """Phase of a step."""

    PREFILL = 0
    DECODE = 1
    MIXED = 2


class RequestStatus(IntEnum):
    """How a request ended, or that it did not."""

    STOPPED = 0
    """The model ended its answer."""
    LENGTH = 1
    """It reached its token limit, or the model's longest context."""
    ABORTED = 2
    """Its client disconnected."""
    REJECTED = 3
    """The engine refused it."""
    FAILED = 4
    UNFINISHED = 5
    """It was unfinished at the end of the run: its times are lower bounds."""


class PartKind(IntEnum):
    """Work of a step for one request of its batch."""

    CONTEXT = 0
    """(A chunk of) the prompt, or recomputation after a preemption."""
    GENERATION = 1
    ENDED = 2
    """Nothing: it had ended, but its row was computed on because the batch had not."""


class ProbeKind(IntEnum):
    """The ceiling of the machine that a probe measured."""

    READ = 0
    COPY = 1
    MATMUL = 2
    STEP = 3
    """Decode steps per second of one sequence; ``footprint_bytes`` are the weights stepped through,
    the model's or those of a narrow one."""
    BATCH_STEP = 4
    """As ``STEP``, with 4 sequences."""
    LARGER_BATCH_STEP = 5
    """As ``STEP``, with 8 sequences."""


SEQUENCES_OF_STEP: Final = {
    ProbeKind.STEP: 1,
    ProbeKind.BATCH_STEP: 4,
    ProbeKind.LARGER_BATCH_STEP: 8,
}
"""Sequences of each of these steps."""


class SweepTable(NamedTuple):
    """One row per repetition of a sweep point, warm-ups included (N rows, in the order run)."""

    point_index: I32
    """Index into ``manifest.plan.points``."""
    repetition: I32
    is_warmup: Bools
    status: I8
    """A ``PointStatus``. Where it is not OK the times are ABSENT."""
    prompt_tokens: I32
    batch_size: I32
    gen_tokens: I32
    """Tokens generated per sequence, including the one of the prefill."""
    started_ns: I64
    """Since the start of the run."""
    prefill_ns: I64
    """Time from the batch's submission to its first token (device synchronised)."""
    decode_ns: I64
    """Time of all decode steps together."""
    n_decode_steps: I32
    median_step_ns: I64
    """The median decode step in a table of another tool; ABSENT where steps are recorded."""
    reserved_bytes: I64
    """Peak memory reserved from the device by the engine (on a CPU: peak resident set)."""
    allocated_bytes: I64
    """Peak memory in use by tensors."""
    cpu_fraction: F64
    """CPU time of the engine's processes / (wall time · cores used)."""
    device_fraction: F64
    """Accelerator utilisation as its driver reports it."""
    energy_joule: F64
    power_watt: F64
    minor_faults: F64
    """Page faults of the engine's processes that no disk was read for: memory touched for the
    first time."""
    major_faults: F64
    """Page faults that waited for a disk: weights or swapped memory read back."""


class RequestTable(NamedTuple):
    """One row per request (N rows, by ``intended_send_ns``), refused and unfinished ones included.

    Instants are since the start of the run. Latency counts from ``intended_send_ns``: ``sent_ns``
    is what a late generator did.
    """

    intended_send_ns: I64
    sent_ns: I64
    admitted_ns: I64
    """Time when the engine first scheduled it; ABSENT: never, or unknown."""
    first_token_ns: I64
    """ABSENT where there was none."""
    finished_ns: I64
    """Time of the last token, the client's disconnection or the refusal; ABSENT: unfinished."""
    prompt_tokens: I32
    cached_tokens: I32
    """Prompt tokens found in the prefix cache at first admission; UNKNOWN_COUNT: unknown."""
    output_tokens: I32
    """Delivered."""
    n_preemptions: I32
    """UNKNOWN_COUNT: unknown."""
    status: I8
    """A ``RequestStatus``."""
    priority: I32
    """The smaller, the more urgent."""
    class_index: I32
    """Class of the request in the workload."""
    request_index: I32
    """Index of the request in the workload, the same in every run of it."""


class StepTable(NamedTuple):
    """One row per engine step (S rows).

    ``point_index`` and ``repetition`` are -1 outside sweeps.
    """

    point_index: I32
    repetition: I32
    is_warmup: Bools
    phase: I8
    """A ``Phase``."""
    start_ns: I64
    duration_ns: I64
    n_prefill_requests: I32
    n_decode_requests: I32
    n_waiting_requests: I32
    n_preempted_requests: I32
    prefill_tokens: I64
    """New prompt tokens of the step, all requests together, and drafts that it verifies: all
    rows but one of each decode."""
    prefill_context_product_tokens2: I64
    """Sum over prefilling requests of (new tokens q) · (mean context seen) = q·(c + (q + 1)/2),
    c tokens being cached before."""
    decode_context_tokens: I64
    """Sum over decoding requests of the tokens attended to, the new one included."""
    kv_blocks_used: I64
    replica: I64
    """Replica that made the step; ABSENT: unknown."""


class StepMemoryTable(NamedTuple):
    """One row per ``StepTable`` row (S) of servers that swap or are not paged; else ABSENT."""

    free_blocks: I64
    """With the next two: of a contiguous cache, after the step's admissions."""
    largest_hole_blocks: I64
    compaction_debt_blocks: I64
    """The fewest blocks to move so that the largest request that waits fits. 0: nobody waits or
    it fits; -1: moving does not help."""
    swapped_blocks: I64
    """Copied to the host or back before the step."""
    moved_blocks: I64
    """Of a cache in which each request has one piece, moved together in the background since the
    step before; ABSENT where nothing is."""


class StepPartTable(NamedTuple):
    """One row per request in a step (P rows), by step and then by place in the batch."""

    step_index: I32
    """Row of the ``StepTable``."""
    request_index: I32
    """``RequestTable.request_index``"""
    slot: I32
    """Slot of the batch, which a request keeps while it runs; those of several servers are
    numbered through."""
    kind: I8
    """A ``PartKind``."""
    n_computed_tokens: I32
    n_delivered_tokens: I32
    """Given to the client when the step was done: mostly 1 or 0; more where answers are not
    streamed."""


class VisitTable(NamedTuple):
    """One row per stay of a request at one of several servers (V rows), by request and time."""

    request_index: I32
    """``RequestTable.request_index``"""
    replica: I32
    arrived_ns: I64
    left_ns: I64
    """End of the visit, or start of the transfer; ABSENT where still there."""


class CeilingTable(NamedTuple):
    """One row per probe of the machine's ceilings, interleaved with the repetitions they judge (C rows)."""

    point_index: I32
    """The point that was being measured; -1 before the first and after the last."""
    repetition: I32
    started_ns: I64
    kind: I8
    """A ``ProbeKind``."""
    dtype: NDArray[np.str_]
    """The number format of a matmul probe; '' for the others."""
    footprint_bytes: I64
    """Bytes touched by the probe."""
    value_per_s: F64
    """Bytes/s of READ and COPY (copy counts reads plus writes), FLOP/s of MATMUL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """On which machine? Absent facts are None."""

    hostname_hash: str | None
    os: str
    kernel: str
    python: str
    cpu_model: str | None
    n_cores: int | None
    n_threads_used: int | None
    memory_bytes: int | None
    cpu_governor: str | None
    accelerator: str | None
    accelerator_driver: str | None
    accelerator_memory_bytes: int | None
    environment: tuple[tuple[str, str], ...] = ()
    """Allow-listed environment variables, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """Engine, version and settings as reported; None: not reported."""

    engine: str
    version: str
    libraries: tuple[tuple[str, str], ...] = ()
    """(name, version) of what decides its speed, sorted."""
    weight_bytes: int | None = None
    """Bytes of the weights as loaded."""
    n_parameters: int | None = None
    weights_origin: str = "unknown"
    """'file' or 'random'."""
    weights_sha256: str | None = None
    attention_implementation: str | None = None
    load_s: float | None = None
    compile_s: float | None = None
    compute_dtype: str | None = None
    """The number format it says it multiplies in."""
    weight_formats: tuple[tuple[str, int], ...] = ()
    """(format, parameters held in it), most first; empty where all are in ``compute_dtype``."""
    kv_cache_dtype: str | None = None
    n_kv_blocks: int | None = None
    kv_block_tokens: int | None = None
    replicated_parts: tuple[str, ...] = ()
    """Parts that every tensor-parallel rank computes whole, as they cannot be divided."""
    scheduler: "SchedulerFacts | None" = None
    """Scheduler of a server whose configuration was recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerFacts:
    """Scheduler settings of a server, in vLLM's names; None: not recorded."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    async_scheduling: bool | None = None
    tensor_parallel_size: int | None = None
    data_parallel_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPoolFacts:
    """One KV pool: its rules and its occupancy."""

    rule: str
    """Requests of the pool, in words; earlier pools take theirs first."""
    class_indices: tuple[int, ...]
    """Empty: those of all classes."""
    max_prompt_tokens: int | None
    kv_dtype: str | None
    block_size: int
    n_blocks: int
    """Blocks of one replica."""
    mean_used_fraction: float | None
    """Time-weighted mean share of used blocks over steps; None without steps."""
    peak_used_fraction: float
    """Peak of the fullest replica."""
    tail_waste_fraction: float | None
    """Share of room in used blocks behind the last token; None where no block was used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunManifest:
    """Where, when, with what and by which command a run was made."""

    run_id: str
    origin: Origin
    created_utc: str
    command: tuple[str, ...] = ()
    tool_version: str
    plan: SweepPlan | None = None
    model: ModelSpec | None = None
    engine: EngineFacts | None = None
    host: HostFacts | None = None
    source: Source | None = None
    """Publication of a published run; basis of a simulated one."""
    git_commit: str | None = None
    is_complete: bool = False
    ended_utc: str | None = None
    cautions: tuple[Caution, ...] = ()
    load: LoadPlan | None = None
    """Plan of a load test."""
    validity: Validity | None = None
    """Validity of a load test."""
    clocks: tuple[HostClock, ...] = ()
    """Clocks of the hosts that sent a load test, session by session."""
    client_scheduling: tuple[str, ...] = ()
    """CPU scheduling of a load test's client processes (real-time, short slices, usual)."""
    kv_pools: tuple[KvPoolFacts, ...] = ()
    """KV pools of a simulated run; older records have none."""
    refused_classes: tuple[int, ...] | None = None
    """Classes whose requests a simulated server refused; those that a gate turned away are
    rejected too. None: unknown, of older records and other tools'."""
    schema_version: int = SCHEMA_VERSION

    def refusal_of(self, rejected_classes: Sequence[int]) -> str:
        """Why a simulated server refused requests of classes with rejected ones; '' if it did not.

        A gate may have turned those away.
        """
        known = self.refused_classes
        if not any(known is None or one in known for one in rejected_classes):
            return ""
        return next((one.text for one in self.cautions if one.code in REFUSALS), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A manifest and its tables; None for tables that a run does not have."""

    manifest: RunManifest
    sweep: SweepTable | None = None
    steps: StepTable | None = None
    ceilings: CeilingTable | None = None
    requests: RequestTable | None = None
    parts: StepPartTable | None = None
    """Each request's tokens in each step, where recorded by a simulation."""
    chunks: ChunkTable | None = None
    exchanges: ExchangeTable | None = None
    lags: LagTable | None = None
    server: ServerSampleTable | None = None
    visits: VisitTable | None = None
    """Server of each request over time; None with one server, or where unknown."""
    step_memory: StepMemoryTable | None = None
    """None where the KV cache is paged and nothing is swapped, or unknown."""
    devices: ServerSampleTable | None = None
    """Counters of the accelerators while a sweep ran: power, clocks, utilisation, memory, under the
    names and in the units of dcgm-exporter. None where the driver tells nothing."""
    drawn: RequestPlan | None = None
    """The requests as they were drawn, where they have workflows: which request waits for which.
    No table of the record, which has it in the workload's file."""
