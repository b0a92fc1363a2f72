"""Memory of the compiled simulator: all arrays that it writes to, allocated once per simulation.

Rows of structured arrays hold fields that are used together on one cache line. Letters of shapes: N
requests, K contents, M slots (``max_num_seqs``), B blocks, D batches in flight.
"""

from typing import Final, NamedTuple

import numpy as np

from inferometer.records.columns import I32, I64
from inferometer.records.types import ABSENT
from inferometer.simulate import engine_config
from inferometer.simulate.batch_config import BatchConfig
from inferometer.simulate.demand import Demand, leaving_order
from inferometer.simulate.engine_config import EngineConfig, n_kv_groups_of
from inferometer.simulate.kernel.config import (
    Config,
    KvPoolRow,
    Node,
    Sglang,
    blocks_needed,
    config_record,
    most_blocks_at_once,
    node_records,
    pool_records,
    sglang_record,
)
from inferometer.simulate.outcome import FAR_NS, Status
from inferometer.simulate.pointers import (
    Row,
    Rows,
    RowsOfBatches,
    blank,
    blank_of_batches,
    f64,
    i32,
    i64,
)
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.sglang_config import SglangConfig

NOTHING: Final = -1
"""No block, no request, no content, no slot."""
NO_BLOCK: Final = 0
"""No cached block or node with a content: 0 is the null block, and the root of SGLang's tree.

The system gives no memory to an array of zeros until it is written to; filling those of all
contents of 160 replicas took 0.4 s a simulation.
"""
MOST_PLANNED: Final = 256
"""Steps of a planned run (``kernel/decode_run.py``)."""


class Request(Row):
    """A request: vLLM's fields under vLLM's names, and those of the simulator.

    ``sent_ns``: when the client sends it; ``arrival_ns``: when it arrives at the engine, which is
    later behind a gate or a KV transfer. ``node``, ``turn`` and ``queue_key``: SGLang's.
    """

    num_tokens: i32
    num_computed_tokens: i32
    num_output_placeholders: i32
    num_spec_tokens: i32
    has_padded_drafts: i32
    num_in_flight_tokens: i32
    num_stale_output_tokens: i32
    is_prefill_chunk: i32
    next_decode_eligible_step: i32
    status: i32
    num_prompt_tokens: i32
    stop_tokens: i32
    max_tokens: i32
    slot: i32
    num_blocks: i32
    num_cached_blocks: i32
    num_host_blocks: i32
    shared_prefix_boundary: i32
    priority: i32
    num_preemptions: i32
    num_cached_tokens: i32
    node: i32
    queue_key: i32
    turn: i32
    num_known_tokens: i32
    replica: i32
    sent_ns: i64
    arrival_ns: i64
    admitted_ns: i64
    first_token_ns: i64
    finished_ns: i64
    content_start: i64


class Block(Row):
    """A KV block.

    Free blocks are a ring through ``previous`` and ``next`` that begins and ends at the null
    block, 0. Cached blocks of equal content are a list through ``previous_equal``, ``next_equal``,
    which ends at ``NO_BLOCK``.
    """

    ref_count: i32
    previous: i32
    next: i32
    content: i32
    previous_equal: i32
    next_equal: i32


class Transfer(Row):
    """A request's KV transfer from its prefill replica (``source``) to its decode replica.

    ``source_row`` and ``row`` are its rows of their block tables. The ``nth_`` fields of all
    records are three lists: prefilled requests, requested transfers, the heap of those under way.
    """

    stop_tokens: i32
    max_tokens: i32
    source: i32
    source_row: i32
    num_source_blocks: i32
    stage: i32
    row: i32
    num_blocks: i32
    num_hits: i32
    num_moved_blocks: i32
    next_received: i32
    nth_prefilled: i32
    nth_requested: i32
    nth_arriving: i32
    arrived_ns: i64
    prefilled_ns: i64
    asked_ns: i64
    begun_ns: i64
    received_ns: i64


class Part(Row):
    """The tokens that one request computes in a batch.

    ``kind`` is a ``PartKind``; ``n_delivered`` is set when the step completes.
    """

    request: i32
    num_tokens: i32
    num_computed_tokens: i32
    num_spec_tokens: i32
    has_padded_drafts: i32
    slot: i32
    kind: i32
    yields_token: i32
    n_delivered: i32


class Move(Row):
    """A move of a request's piece of a contiguous KV cache to a lower start (compaction)."""

    request: i64
    start: i64
    n_blocks: i64
    begin_ns: i64
    end_ns: i64


class Batch(Row):
    """A batch in flight: its times and its work.

    ``n_steady``: requests beside the parts (``kernel/steady.py``). ``n_yielding``: requests that
    yield a token. ``n_rows``, ``n_reserved_blocks``: whole batches.
    """

    n_parts: i64
    n_steady: i64
    step_index: i64
    start_ns: i64
    end_ns: i64
    busy_ns: i64
    n_prefill_requests: i64
    n_decode_requests: i64
    prefill_tokens: i64
    prefill_pairs_tokens2: i64
    decode_context_tokens: i64
    num_spec_tokens: i64
    n_yielding: i64
    yielding_context_tokens: i64
    read_context_tokens: i64  # context of decodes, weighted by their pools' KV format
    num_swapped_blocks: i64
    is_in_flight: i64
    n_rows: i64
    n_reserved_blocks: i64


class Counters(Row):
    """Counters and clock of a replica.

    ``n_taken``: requests sent to it. ``busy_ns``: time of completed steps, mean of the stages.
    ``ready_ns``: end of its oldest batch or wait (``FAR_NS``: none). ``is_due``: must it schedule
    now? ``is_decided`` (single replica): has it scheduled since the last event?
    ``n_barren_steps``: preempting steps since the last token. ``n_rows``: extra rows of the block
    table ever used. ``first_unanswered``, ``last_unanswered``: 1 + a request's index (0: none).
    ``is_moving``: was the first of ``n_moves`` under way at the last decision? ``n_moved_blocks``:
    since the last log row. ``n_held_millionths``: used blocks of all pools, in millionths of the
    server's own block. ``n_planned``: steps of its planned run (0: none), ``n_most_planned``: of the
    next one. ``n_steady``: steady requests, ``steady_offset``: of all of them together.
    """

    n_free: i64
    n_held_millionths: i64
    n_host_free: i64
    n_slots: i64
    n_running: i64
    n_active: i64
    n_waiting: i64
    waiting_head: i64
    waiting_size: i64
    n_preempted: i64
    now_ns: i64
    current_step: i64
    n_pieces: i64
    n_moves: i64
    is_moving: i64
    n_moved_blocks: i64
    wake_ns: i64
    first_batch: i64
    n_in_flight: i64
    n_busy_in_flight: i64
    n_barren_steps: i64
    n_taken: i64
    n_ended: i64
    busy_ns: i64
    ready_ns: i64
    is_due: i64
    is_decided: i64
    n_rows: i64
    first_free_row: i64
    first_received: i64
    last_received: i64
    first_unanswered: i64
    last_unanswered: i64
    n_evicted: i64
    n_planned: i64
    n_most_planned: i64
    n_steady: i64
    steady_offset: i64


class KnownTimes(Row):
    """Cached times of the last step's layers and head, and the row counts that they are for."""

    n_rows: i64
    n_group_rows: i64
    n_logits: i64
    layers_s: f64
    head_s: f64


class World(Row):
    """Clock and counters that all replicas share.

    ``n_ends_reported``: ended requests that were reported to the gate. ``max_in_flight``: requests
    that the gate may have released at a time; ``max_waiting_tokens``: prompt tokens of them that
    may wait in the engines (0: no limit). ``n_routed_on``: prefilled requests that were routed to
    a decode replica. ``n_transfers``: requested KV transfers, ``n_queued``: those on the link.
    ``turn``: events of this time that were processed before. ``n_planned``: planned steps of all
    replicas; those that end by ``taken_ns`` are over. One that ends at ``due_ns`` has no successor
    yet.
    """

    now_ns: i64
    next_arrival: i64
    n_leaving: i64
    n_due: i64
    n_steps: i64
    n_ended: i64
    n_ends_reported: i64
    max_in_flight: i64
    max_waiting_tokens: i64
    n_prefilled: i64
    n_routed_on: i64
    n_transfers: i64
    n_queued: i64
    n_arriving: i64
    turn: i64
    n_planned: i64
    taken_ns: i64
    due_ns: i64


class Memory(NamedTuple):
    """KV cache of a replica: its blocks, which requests own them, and what they contain."""

    blocks: Rows[Block]
    """(B)"""
    first_equal: I32
    """(contents · groups of layers) The first cached block with each content (``NO_BLOCK``: none);
    then the last."""
    last_equal: I32
    block_table: I32
    """(M, blocks of the longest request · groups of layers) Blocks of the request in each
    slot, in order; with disaggregation also rows of requests without a slot."""
    by_address: I32
    """(M + 1) Requests in order of the addresses of their pieces of a contiguous KV cache."""
    moves: Rows[Move]
    """(M + 1, or 0 without compaction) Planned moves, in order."""
    nodes: Rows[Node]
    """(B + 1, or 0 for engines other than SGLang)"""
    pools: Rows[KvPoolRow]
    pool_of: I32
    """(N) Pool of each request; empty, like ``pools``, for an undivided cache."""


class Queue(NamedTuple):
    """Waiting and running requests of a replica."""

    waiting: I32
    """(N) A ring (first come, first served) or a heap (priorities). Aborted requests stay until
    they reach the front."""
    running: I32
    """(M) Running requests in order of admission."""
    free_slots: I32
    """(M) A heap, the lowest slot first."""
    preempted: I32
    """(M) Requests that the last ``schedule`` preempted."""
    chunks: I32
    """(M) Scratch memory: chunk sizes (TensorRT-LLM), victims (SGLang), next allocation (vLLM)."""
    joining: I32
    """(M) Requests prefilled in the last step (SGLang); tokens before a decode run (vLLM)."""
    steady_due: I32
    """(M) With the next three of running requests: ``kernel/steady.py``. The step before which one
    needs a block or ends to be steady; 0: it is not."""
    steady_end: I32
    """(M) The step before which it ends to be steady."""
    steady_offset: I32
    """(M) Its computed tokens after a step, less the step's number."""
    steady_since: I32
    """(M) The first step in which it is steady."""
    is_preferred: I32
    """(M + 1, or 0 if no size is preferred) Is this batch size a preferred one?"""


class Arrivals(NamedTuple):
    """Times of arrivals and aborts, and the requests that have ended."""

    arrival_order: I32
    """Independent requests (no followers) in order of arrival."""
    due: I32
    """A heap of followers with known arrival times."""
    follower: I32
    """(N, or 0 without followers) First request that follows each request."""
    next_follower: I32
    """(as follower) Next request that follows the same one."""
    joins: I32
    """(N, or 0 without joins) ``Demand.joins``: a later request that also waits for each one."""
    n_awaited: I32
    """(as joins) The number of requests for whose end each request still waits."""
    last_end_ns: I64
    """(as joins) The latest of these ends so far."""
    next_companion: I32
    """(N, or 0 without companions) Next request that waits for the same ends."""
    think_ns: I64
    """(as follower) ``Demand.think_ns``"""
    earliest_ns: I64
    """(as follower) Earliest arrival time of each follower."""
    abort_ns: I64
    """(N) When the client disconnects; of an unsent follower, how long after its send."""
    leaving: I32
    """A heap of requests with a known time of disconnection."""
    ended: I32
    """(N, or 0 if not recorded) Ended requests, in order of their ends."""


class State(NamedTuple):
    """The state of one replica; all replicas share the arrays named in ``SHARED``."""

    config: Rows[Config]
    """(1)"""
    counters: Rows[Counters]
    """(1)"""
    world: Rows[World]
    """(1)"""
    requests: Rows[Request]
    """(N)"""
    contents: I32
    """(K) ``Demand.contents``"""
    memory: Memory
    queue: Queue
    arrivals: Arrivals
    sglang: Rows[Sglang]
    """(1, or 0 for other engines)"""
    skipped: I32
    """(N) Scratch memory: a list of requests during a scheduling decision."""
    chances: I64
    """vLLM: ``acceptance`` of each draft position; SGLang: ``shuffle_draws`` of the queue."""
    parts: RowsOfBatches[Part]
    """(D, M)"""
    batches: Rows[Batch]
    """(D)"""
    stages: I64
    """(2, pipeline stages) When each stage is free; when the last batches' tokens are known."""
    known: Rows[KnownTimes]
    """(1)"""
    plan_ns: I64
    """(``MOST_PLANNED`` + 1) Start of the first step of a planned run, and the end of each."""
    transfers: Rows[Transfer]
    """(N, or 0 without disaggregation)"""


SHARED: Final = frozenset(
    {"world", "requests", "contents", "arrivals", "skipped", "chances", "transfers"}
)


def new_state(requests: Demand, config: EngineConfig, *, are_all: bool = True) -> State:
    """The state at the start of a simulation; ``are_all``: no other requests will come."""
    acceptance = config.acceptance if isinstance(config, SchedulerConfig) else ()
    columns, world = config_record(config), blank(1, World)
    is_sent_later = requests.follows != NOTHING
    world["n_leaving"] = np.sum((requests.abort_ns != ABSENT) & ~is_sent_later)
    return State(
        config=columns,
        counters=_counters(config, columns),
        world=world,
        requests=_request_records(requests),
        contents=requests.contents if config.enable_prefix_caching else np.empty(0, np.int32),
        memory=_memory(
            requests, config, blocks_needed(requests, config, len(acceptance)), are_all=are_all
        ),
        queue=_queue(requests, config),
        arrivals=_arrivals(requests),
        sglang=sglang_record(config),
        skipped=np.empty(requests.n_requests, np.int32),
        chances=np.array(
            config.shuffle_draws if isinstance(config, SglangConfig) else acceptance, np.int64
        ),
        parts=blank_of_batches(config.depth, config.max_num_active, Part),
        batches=blank(config.depth, Batch),
        stages=np.zeros((2, int(columns["n_stages"][0])), np.int64),
        known=blank(1, KnownTimes),
        plan_ns=np.zeros(MOST_PLANNED + 1, np.int64),
        transfers=blank(0, Transfer),
    )


def _memory(requests: Demand, config: EngineConfig, needed: I64, *, are_all: bool) -> Memory:
    n_groups = n_kv_groups_of(config)
    is_compacting = isinstance(config, SchedulerConfig) and config.is_compacting
    n_columns = (most_blocks_at_once(needed, config) + 2) * n_groups
    n_taken = int(needed.sum()) * n_groups if are_all else config.n_kv_blocks
    return Memory(
        blocks=_block_records(config, n_taken),
        first_equal=np.zeros(requests.n_contents * n_groups, np.int32),
        last_equal=np.zeros(requests.n_contents * n_groups, np.int32),
        block_table=np.zeros((config.max_num_active, n_columns), np.int32),
        by_address=np.empty(config.max_num_active + 1, np.int32),
        moves=blank((config.max_num_active + 1) * is_compacting, Move),
        nodes=node_records(config, n_taken),
        pools=pool_records(config),
        pool_of=engine_config.pool_of_requests(engine_config.kv_pools_of(config), requests),
    )


def _queue(requests: Demand, config: EngineConfig) -> Queue:
    n_slots = config.max_num_active
    return Queue(
        waiting=np.empty(requests.n_requests, np.int32),
        running=np.empty(n_slots, np.int32),
        free_slots=np.arange(n_slots, dtype=np.int32),
        preempted=np.empty(n_slots, np.int32),
        chunks=np.empty(n_slots, np.int32),
        joining=np.empty(n_slots, np.int32),
        steady_due=np.zeros(n_slots, np.int32),
        steady_end=np.zeros(n_slots, np.int32),
        steady_offset=np.zeros(n_slots, np.int32),
        steady_since=np.zeros(n_slots, np.int32),
        is_preferred=_is_preferred(config),
    )


def _arrivals(requests: Demand) -> Arrivals:
    n_followers = int(np.count_nonzero(requests.follows != NOTHING))
    is_alone = requests.accompanies == NOTHING
    follower, next_follower = _chains(np.where(is_alone, requests.follows, NOTHING))
    first, further = _chains(requests.accompanies)
    joins = requests.joins if (requests.joins != NOTHING).any() else np.empty(0, np.int32)
    n_awaited = np.bincount(joins[joins != NOTHING], minlength=len(joins)).astype(np.int32)
    return Arrivals(
        arrival_order=np.flatnonzero(requests.follows == NOTHING).astype(np.int32),
        due=np.empty(n_followers, np.int32),
        follower=follower,
        next_follower=next_follower,
        joins=joins,
        n_awaited=n_awaited + (requests.follows[: len(joins)] != NOTHING).astype(np.int32),
        last_end_ns=np.zeros(len(joins), np.int64),
        next_companion=np.where(first == NOTHING, further, first),
        think_ns=requests.think_ns[: len(follower)],
        earliest_ns=requests.arrival_ns[: len(follower)],
        abort_ns=requests.abort_ns.copy(),
        leaving=leaving_order(requests),
        ended=np.empty(0, np.int32),
    )


def _chains(leaders: I32) -> tuple[I32, I32]:
    """Lists of the requests with the same leader: the first one by leader, and the next one.

    Each (N), or (0) if no request has a leader (``NOTHING`` in ``leaders``).
    """
    rows = np.flatnonzero(leaders != NOTHING)
    if not rows.size:
        return np.empty(0, np.int32), np.empty(0, np.int32)
    first = np.full(len(leaders), NOTHING, np.int32)
    following = first.copy()
    in_order = rows[np.argsort(leaders[rows], kind="stable")]
    whose = leaders[in_order]
    is_next = np.diff(whose, prepend=NOTHING) == 0
    first[whose[~is_next]] = in_order[~is_next]
    following[in_order[:-1][is_next[1:]]] = in_order[is_next]
    return first, following


def _counters(config: EngineConfig, config_columns: Rows[Config]) -> Rows[Counters]:
    """Initial counters of a replica, with all blocks and slots free."""
    counters = blank(1, Counters)
    counters["n_free"] = config.n_kv_blocks
    counters["n_host_free"] = config_columns["n_host_blocks"]
    counters["n_slots"] = config.max_num_active
    counters["ready_ns"] = FAR_NS
    counters["first_free_row"] = counters["first_received"] = NOTHING
    return counters


def _is_preferred(config: EngineConfig) -> I32:
    if not isinstance(config, BatchConfig):
        return np.zeros(0, np.int32)
    return np.isin(np.arange(config.max_num_active + 1), config.rules.preferred_batch_size).astype(
        np.int32
    )


def _request_records(requests: Demand) -> Rows[Request]:
    records = blank(requests.n_requests, Request)
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
    records["slot"] = records["replica"] = NOTHING
    for name in ("admitted_ns", "first_token_ns", "finished_ns"):
        records[name] = ABSENT
    return records


def _block_records(config: EngineConfig, n_taken: int) -> Rows[Block]:
    """Rings of free blocks; at most ``n_taken`` are ever taken, and those behind have no record."""
    sizes = [one.n_blocks + 1 for one in engine_config.kv_pools_of(config)]
    sizes = sizes or [min(config.n_kv_blocks, n_taken) + 1]
    blocks = blank(sum(sizes), Block)
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    size, place = np.repeat(sizes, sizes), np.arange(len(blocks)) - first
    blocks["previous"], blocks["next"] = first + (place - 1) % size, first + (place + 1) % size
    blocks["content"] = NOTHING
    return blocks
