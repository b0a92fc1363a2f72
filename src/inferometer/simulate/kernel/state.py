"""What does the compiled simulator keep in memory?

Everything it writes to is allocated here, once per simulation.

Records (numpy structured arrays) keep what is used together on the same cache line. Letters of
shapes: N requests, K contents, M seats (``max_num_seqs``), B blocks, D batches in flight.
"""

from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from inferometer.records.types import ABSENT
from inferometer.simulate.batch_config import BatchConfig
from inferometer.simulate.demand import Demand, leaving_order
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.kernel.config import config_record
from inferometer.simulate.kernel.sglang_state import node_records, sglang_record
from inferometer.simulate.outcome import FAR_NS
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.sglang_config import SglangConfig
from inferometer.simulate.status import Status

Record: TypeAlias = Any
"""One row of ``Records``, whose fields are attributes in compiled code."""
Records: TypeAlias = Any
"""A structured array; numpy's types cannot name its fields."""
Whole: TypeAlias = Any
"""An int32 or int64 array; where compiled code takes one element of it, that is an int."""

NOTHING: Final = -1
"""No block, no request, no content, no seat."""

REQUEST: Final = np.dtype(
    [
        ("num_tokens", np.int32),
        ("num_computed_tokens", np.int32),
        ("num_output_placeholders", np.int32),
        ("num_spec_tokens", np.int32),
        ("has_padded_drafts", np.int32),
        ("num_in_flight_tokens", np.int32),
        ("num_stale_output_tokens", np.int32),
        ("is_prefill_chunk", np.int32),
        ("next_decode_eligible_step", np.int32),
        ("status", np.int32),
        ("num_prompt_tokens", np.int32),
        ("stop_tokens", np.int32),
        ("max_tokens", np.int32),
        ("seat", np.int32),
        ("num_blocks", np.int32),
        ("num_cached_blocks", np.int32),
        ("num_host_blocks", np.int32),
        ("priority", np.int32),
        ("num_preemptions", np.int32),
        ("num_cached_tokens", np.int32),
        ("node", np.int32),
        ("queue_key", np.int32),
        ("turn", np.int32),
        ("num_known_tokens", np.int32),
        ("replica", np.int32),
        ("sent_ns", np.int64),
        ("arrival_ns", np.int64),
        ("admitted_ns", np.int64),
        ("first_token_ns", np.int64),
        ("finished_ns", np.int64),
        ("content_start", np.int64),
    ],
    align=True,
)
"""``sent_ns`` is when its client sends it, ``arrival_ns`` when it comes to the engine: later
where something stands in between."""

BLOCK: Final = np.dtype(
    [
        (name, np.int32)
        for name in ("ref_count", "previous", "next", "content", "previous_equal", "next_equal")
    ],
    align=True,
)
"""Free blocks form a ring through ``previous`` and ``next`` that begins and ends at the null
block, 0. Blocks of equal content form a list in order of registration."""

TRANSFER: Final = np.dtype(
    [
        (name, np.int32)
        for name in (
            "stop_tokens",
            "max_tokens",
            "source",
            "source_row",
            "num_source_blocks",
            "stage",
            "row",
            "num_blocks",
            "num_hits",
            "num_moved_blocks",
            "next_received",
            "nth_handed",
            "nth_asked",
            "nth_arriving",
        )
    ]
    + [
        (name, np.int64)
        for name in ("arrived_ns", "prefilled_ns", "asked_ns", "begun_ns", "received_ns")
    ],
    align=True,
)
"""Of a request whose prompt another replica computes. ``source_row`` and ``row`` are those of
the block table where its blocks are noted at both ends. The i-th record also keeps whose turn is
i-th: to be sent on, to be fetched, and in the heap of what travels."""

PART: Final = np.dtype(
    [
        (name, np.int32)
        for name in (
            "request",
            "num_tokens",
            "num_computed_tokens",
            "num_spec_tokens",
            "has_padded_drafts",
            "seat",
            "kind",
            "yields_token",
            "n_delivered",
        )
    ],
    align=True,
)
"""``kind`` is a ``PartKind``; ``n_delivered`` is known when the step is done."""

BATCH: Final = np.dtype(
    [
        ("n_parts", np.int64),
        ("step_index", np.int64),
        ("start_ns", np.int64),
        ("end_ns", np.int64),
        ("busy_ns", np.int64),
        ("n_prefill_requests", np.int64),
        ("n_decode_requests", np.int64),
        ("prefill_tokens", np.int64),
        ("prefill_pairs_tokens2", np.int64),
        ("decode_context_tokens", np.int64),
        ("num_spec_tokens", np.int64),
        ("n_yielding", np.int64),
        ("yielding_context_tokens", np.int64),
        ("num_swapped_blocks", np.int64),
        ("is_in_flight", np.int64),
        ("n_rows", np.int64),
        ("n_reserved_blocks", np.int64),
    ],
    align=True,
)
"""``n_rows`` and ``n_reserved_blocks`` are those of an instance that runs whole batches."""

COUNTERS: Final = np.dtype(
    [
        (name, np.int64)
        for name in (
            "n_free",
            "n_host_free",
            "n_seats",
            "n_running",
            "n_active",
            "n_waiting",
            "waiting_head",
            "waiting_size",
            "n_preempted",
            "n_served",
            "now_ns",
            "current_step",
            "n_pieces",
            "wake_ns",
            "first_batch",
            "n_in_flight",
            "n_busy_in_flight",
            "n_barren_steps",
            "n_tokens_computed",
            "n_taken",
            "n_ended",
            "busy_ns",
            "ready_ns",
            "is_due",
            "is_decided",
            "n_rows",
            "first_free_row",
            "first_received",
            "last_received",
            "first_unanswered",
            "last_unanswered",
        )
    ],
    align=True,
)
"""``n_taken`` and ``n_ended`` count requests, ``busy_ns`` the time of steps that are done, on
the mean stage; ``ready_ns`` is when its oldest batch or its wait is over (``FAR_NS``: never),
``is_due``: has it anything to decide now? ``is_decided`` (one replica alone): was the next step
decided since the last event? ``n_rows`` of the block table behind the seats were
ever used. ``first_unanswered`` and ``last_unanswered`` are one more than a request, 0 for
nobody."""

KNOWN: Final = np.dtype(
    [
        ("n_rows", np.int64),
        ("n_group_rows", np.int64),
        ("n_logits", np.int64),
        ("layers_s", np.float64),
        ("head_s", np.float64),
    ],
    align=True,
)
"""How long the layers and the head of the last step took, and for how many rows."""

WORLD: Final = np.dtype(
    [
        (name, np.int64)
        for name in (
            "now_ns",
            "next_arrival",
            "n_leaving",
            "n_due",
            "n_steps",
            "n_ended",
            "n_told",
            "max_in_flight",
            "max_waiting_tokens",
            "n_handed",
            "n_joined",
            "n_asked",
            "n_begun",
            "n_arriving",
        )
    ],
    align=True,
)
"""What all replicas share beside the requests. A gate was told of ``n_told`` of those that
ended, and lets in ``max_in_flight``, of whom prompts of ``max_waiting_tokens`` may wait in the
engines. Of ``n_handed`` whose prompts are computed ``n_joined`` were sent on, of ``n_asked`` KV
caches ``n_begun`` were given a place on the link."""


class State(NamedTuple):
    """All arrays of one replica; those in ``SHARED`` are the same for all replicas of a simulation."""

    config: Records
    """(1) ``kernel.config.CONFIG``"""
    counters: Records
    """(1) ``COUNTERS``"""
    world: Records
    """(1) ``WORLD``"""
    requests: Records
    """(N) ``REQUEST``"""
    contents: Whole
    """(K) ``Demand.contents``"""
    blocks: Records
    """(B) ``BLOCK``"""
    first_equal: Whole
    """(contents) The first block registered with each content."""
    last_equal: Whole
    block_table: Whole
    """(M, blocks of the longest request) The blocks of whoever has the seat, in order; in a pool
    also rows of those that have none."""
    by_address: Whole
    """(M + 1) Whose piece of a contiguous KV cache comes after whose?"""
    free_seats: Whole
    """(M) A heap."""
    running: Whole
    """(M) In order of admission."""
    waiting: Whole
    """(N) A ring (first come, first served) or a heap (priorities). Requests that were aborted
    stay until they come up."""
    skipped: Whole
    """(N) Scratch."""
    chunks: Whole
    """(M) Scratch."""
    sglang: Records
    """(1, or 0 for other engines) ``kernel.sglang_state.SGLANG``"""
    nodes: Records
    """(B + 1, or 0 for other engines) ``kernel.sglang_state.NODE``"""
    joining: Whole
    """(M) Whose prompts SGLang computed in the step before."""
    chances: Whole
    """(drafts of a request) ``SchedulerConfig.acceptance``; ``SglangConfig.shuffle_draws``"""
    is_preferred: Whole
    """(M + 1, or 0 where there is no such rule) Is a batch of so many requests wanted?"""
    preempted: Whole
    """(M) By the last ``schedule``."""
    parts: Records
    """(D, M) ``PART``"""
    batches: Records
    """(D) ``BATCH``"""
    stages: Whole
    """(2, stages of the pipeline) When is each free? When are the tokens of each of the last
    batches known?"""
    known: Records
    """(1) ``KNOWN``"""
    abort_ns: Whole
    """(N) Of one that follows another and is not sent: how long after its sending."""
    leaving: Whole
    """A heap of requests whose client goes away at a known time."""
    arrival_order: Whole
    """Requests that come by themselves, in order of that."""
    due: Whole
    """A heap of those that follow others and whose time is known."""
    follower: Whole
    """(N, or 0 where nobody follows) Who follows each request?"""
    think_ns: Whole
    """(as follower)"""
    earliest_ns: Whole
    """(as follower)"""
    ended: Whole
    """(N, or 0 where nobody asks) Who has ended, in order of that."""
    transfers: Records
    """(N, or 0 where prompts and answers are computed by the same replicas) ``TRANSFER``"""


SHARED: Final = frozenset(
    {
        "world",
        "requests",
        "contents",
        "skipped",
        "chances",
        "abort_ns",
        "leaving",
        "arrival_order",
        "due",
        "follower",
        "think_ns",
        "earliest_ns",
        "ended",
        "transfers",
    }
)


def new_state(requests: Demand, config: EngineConfig) -> State:
    """The memory of a simulation in which nothing has happened yet."""
    n_seats = config.max_num_active
    longest = int((requests.prompt_tokens.astype(np.int64) + requests.output_tokens).max()) + 1
    acceptance = config.acceptance if isinstance(config, SchedulerConfig) else ()
    longest += (config.depth + 2) * (
        1 + len(acceptance)
    )  # drafts in flight, and what is reserved beyond them
    n_columns = (
        min(-(-min(longest, config.max_model_len) // config.block_size), config.n_kv_blocks) + 2
    )
    followers = np.flatnonzero(requests.follows != NOTHING)
    leaving, world = leaving_order(requests), np.zeros(1, WORLD)
    world["n_leaving"] = len(leaving) - np.sum(requests.abort_ns[followers] != ABSENT)
    follower = np.full(requests.n_requests if followers.size else 0, NOTHING, np.int32)
    follower[requests.follows[followers]] = followers
    counters, config_columns = np.zeros(1, COUNTERS), config_record(config)
    counters["n_free"], counters["n_seats"], counters["n_host_free"] = (
        config.n_kv_blocks,
        n_seats,
        config_columns["n_host_blocks"],
    )
    counters["ready_ns"], counters["first_free_row"], counters["first_received"] = (
        FAR_NS,
        NOTHING,
        NOTHING,
    )
    return State(
        config=config_columns,
        counters=counters,
        world=world,
        requests=_request_records(requests),
        contents=requests.contents if config.enable_prefix_caching else np.empty(0, np.int32),
        blocks=_block_records(config.n_kv_blocks + 1),
        first_equal=np.full(requests.n_contents, NOTHING, np.int32),
        last_equal=np.full(requests.n_contents, NOTHING, np.int32),
        block_table=np.zeros((n_seats, n_columns), np.int32),
        by_address=np.empty(n_seats + 1, np.int32),
        free_seats=np.arange(n_seats, dtype=np.int32),
        running=np.empty(n_seats, np.int32),
        waiting=np.empty(requests.n_requests, np.int32),
        skipped=np.empty(requests.n_requests, np.int32),
        chunks=np.empty(n_seats, np.int32),
        sglang=sglang_record(config),
        nodes=node_records(config),
        joining=np.empty(n_seats, np.int32),
        chances=np.array(
            config.shuffle_draws if isinstance(config, SglangConfig) else acceptance, np.int64
        ),
        is_preferred=_is_preferred(config),
        preempted=np.empty(n_seats, np.int32),
        parts=np.zeros((config.depth, n_seats), PART),
        batches=np.zeros(config.depth, BATCH),
        stages=np.zeros((2, int(config_columns["n_stages"][0])), np.int64),
        known=np.zeros(1, KNOWN),
        abort_ns=requests.abort_ns.copy(),
        leaving=leaving,
        arrival_order=np.flatnonzero(requests.follows == NOTHING).astype(np.int32),
        due=np.empty(len(followers), np.int32),
        follower=follower,
        think_ns=requests.think_ns[: len(follower)],
        earliest_ns=requests.arrival_ns[: len(follower)],
        ended=np.empty(0, np.int32),
        transfers=np.zeros(0, TRANSFER),
    )


def _is_preferred(config: EngineConfig) -> Whole:
    if not isinstance(config, BatchConfig):
        return np.zeros(0, np.int32)
    return np.isin(np.arange(config.max_num_active + 1), config.rules.preferred_batch_size).astype(
        np.int32
    )


def _request_records(requests: Demand) -> Records:
    records = np.zeros(requests.n_requests, REQUEST)
    records["num_tokens"] = records["num_prompt_tokens"] = requests.prompt_tokens
    records["stop_tokens"] = requests.output_tokens
    records["max_tokens"] = requests.max_tokens
    records["priority"] = requests.priority
    records["sent_ns"] = records["arrival_ns"] = np.where(
        requests.follows == NOTHING, requests.arrival_ns, FAR_NS
    )
    records["content_start"] = requests.content_start[:-1]
    records["status"] = int(Status.UNSEEN)
    records["is_prefill_chunk"] = 1
    records["seat"] = records["replica"] = NOTHING
    for name in ("admitted_ns", "first_token_ns", "finished_ns"):
        records[name] = ABSENT
    return records


def _block_records(num_blocks: int) -> Records:
    blocks = np.zeros(num_blocks, BLOCK)
    numbers = np.arange(num_blocks)
    blocks["previous"], blocks["next"] = (numbers - 1) % num_blocks, (numbers + 1) % num_blocks
    for name in ("content", "previous_equal", "next_equal"):
        blocks[name] = NOTHING
    return blocks
