"""The engine's configuration for compiled code, and SGLang's own state.

One record type serves all engines; fields that an engine does not use are 0.
"""

from enum import IntEnum

import numpy as np

from inferometer.inputs.workload.plan import NONE
from inferometer.records.columns import I64
from inferometer.simulate.demand import Demand
from inferometer.simulate.engine_config import (
    EngineConfig,
    kv_pools_of,
    n_kv_groups_of,
    n_stages_of,
    n_state_blocks_of,
)
from inferometer.simulate.pointers import Row, Rows, blank, f64, i32, i64
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.sglang_config import QUEUE_ORDERS, SglangConfig
from inferometer.simulate.trtllm_config import CAPACITY_POLICIES, CHUNKING_POLICIES, TrtllmConfig


class Kind(IntEnum):
    """Which scheduling rules apply."""

    VLLM = 0
    TRTLLM = 1
    BATCHES = 2
    """Whole batches: static, dynamic or none (``simulate/batch_config.py``)."""
    SGLANG = 3
    POOLED = 4
    """vLLM's, with a KV cache that is divided into pools."""


class Config(Row):
    """The engine's configuration for compiled code; unused fields are 0.

    ``is_steady``: are blocks only counted, and generating requests updated only when something
    happens to them? Set where that is nowhere seen (``simulate.run``).
    ``_ps``: picoseconds. ``draft_cost_millionths``: ``SchedulerConfig.draft_cost_ratio`` · 10^6.
    """

    kind: i64
    max_num_active: i64
    max_num_batched_tokens: i64
    max_model_len: i64
    max_prompt_tokens: i64
    block_size: i64
    n_kv_blocks: i64
    n_instances: i64
    watermark_blocks: i64
    long_prefill_token_threshold: i64
    is_adaptive: i64
    is_caching: i64
    is_chunked: i64
    is_priority: i64
    is_srpt: i64
    is_async: i64
    is_steady: i64
    is_reserving: i64
    depth: i64
    n_stages: i64
    capacity_policy: i64
    chunking_policy: i64
    is_prefix_aware: i64
    chunk_tokens: i64
    queue_order: i64
    is_mixed_chunk: i64
    priority_sign: i64
    is_preempting: i64
    preemption_threshold: i64
    is_evicting_oldest: i64
    is_one_prefill: i64
    is_contiguous: i64
    is_compacting: i64
    move_block_ps: i64
    num_spec_tokens: i64
    num_lookahead_tokens: i64
    num_state_blocks: i64
    num_draft_slots: i64
    is_recomputing_last_block: i64
    draft_cost_millionths: i64
    n_host_blocks: i64
    swap_block_ps: i64
    n_kv_groups: i64
    n_sliding_groups: i64
    sliding_window: i64
    most_sliding_blocks: i64
    is_plain: i64
    is_sarathi: i64
    is_vllm_v0: i64
    is_orca: i64
    max_delay_ns: i64
    timeout_ns: i64
    is_delaying: i64
    max_queue_size: i64
    has_levels: i64
    is_streaming: i64
    is_preserving: i64
    largest: i64
    replica: i64
    group: i64
    is_prefill_pool: i64
    is_decode_pool: i64
    gives_first_token: i64


class KvPoolRow(Row):
    """One pool of a divided KV cache.

    ``first`` is the pool's null block, where its ring of free blocks begins and ends.
    ``is_closed``: 1 if it admits no more requests in this step, 2 if its running ones wait too.
    ``block_millionths`` and ``token_millionths`` are the sizes of a block and of a token's KV in
    millionths of those of the server's own format. ``block_ns`` and ``tail_token_ns`` sum the used
    blocks, and the allocated but unused token slots, times the steps' durations; ``step_ns`` sums
    the durations.
    """

    first: i64
    n_blocks: i64
    n_free: i64
    block_size: i64
    watermark_blocks: i64
    block_millionths: i64
    token_millionths: i64
    is_closed: i64
    peak_blocks: i64
    block_ns: i64
    tail_token_ns: i64
    step_ns: i64


def pool_records(config: EngineConfig) -> Rows[KvPoolRow]:
    """Records of empty pools, one for each of the P pools; none for an undivided cache."""
    pools = kv_pools_of(config)
    records = blank(len(pools), KvPoolRow)
    for name in ("n_blocks", "block_size", "block_millionths", "token_millionths"):
        records[name] = [getattr(pool, name) for pool in pools]
    records["n_free"] = records["n_blocks"]
    records["first"] = np.cumsum(records["n_blocks"] + 1) - records["n_blocks"] - 1
    watermark_fraction = getattr(config, "watermark_fraction", 0.0)
    records["watermark_blocks"] = (watermark_fraction * (records["n_blocks"] + 1)).astype(np.int64)
    return records


def config_record(config: EngineConfig) -> Rows[Config]:
    """The configuration as an array of one record."""
    record = blank(1, Config)
    for name in (
        "max_num_active",
        "max_model_len",
        "max_prompt_tokens",
        "block_size",
        "n_kv_blocks",
        "depth",
    ):
        record[name] = getattr(config, name)
    record["n_kv_groups"] = n_kv_groups_of(config)
    record["n_stages"] = n_stages_of(config)
    record["is_caching"] = config.enable_prefix_caching
    record["n_instances"] = config.n_instances
    kind, columns = _own_columns(config)
    record["kind"] = kind
    for name, value in columns.items():
        record[name] = value
    return record


def _own_columns(config: EngineConfig) -> tuple[Kind, dict[str, int]]:
    """The kind of engine, and the values of the fields that only this kind uses."""
    if isinstance(config, SglangConfig):
        return Kind.SGLANG, {
            "max_num_batched_tokens": config.max_prefill_tokens,
            "is_chunked": config.chunked_prefill_size != -1,
            "chunk_tokens": config.chunked_prefill_size,
            "queue_order": QUEUE_ORDERS.index(config.order),
            "is_mixed_chunk": config.enable_mixed_chunk,
            "priority_sign": config.enable_priority_scheduling
            * (1 if config.schedule_low_priority_values_first else -1),
            "is_preempting": config.is_preempting,
            "preemption_threshold": config.priority_scheduling_preemption_threshold,
            "is_evicting_oldest": config.radix_eviction_policy == "fifo",
            "is_reserving": config.ignore_eos,
            "is_async": not config.disable_overlap_schedule,
        }
    if isinstance(config, TrtllmConfig):
        return Kind.TRTLLM, {
            "max_num_batched_tokens": config.max_num_tokens,
            "is_chunked": config.enable_chunked_prefill,
            "is_async": not config.disable_overlap_scheduler,
            "capacity_policy": CAPACITY_POLICIES.index(config.capacity_scheduler_policy),
            "chunking_policy": CHUNKING_POLICIES.index(config.context_chunking_policy),
            "is_prefix_aware": config.enable_prefix_aware_scheduling,
        }
    if not isinstance(config, SchedulerConfig):
        rules = config.rules
        return Kind.BATCHES, {
            "is_priority": True,  # the queue is always a heap
            "max_delay_ns": rules.max_delay_ns,
            "timeout_ns": rules.timeout_ns,
            "is_delaying": rules.is_delaying,
            "max_queue_size": rules.max_queue_size,
            "has_levels": rules.has_priorities,
            "is_streaming": rules.is_streaming,
            "is_preserving": rules.is_preserving,
            "largest": rules.largest,
        }
    return Kind.POOLED if config.kv_pools else Kind.VLLM, _vllm_columns(config)


def _vllm_columns(config: SchedulerConfig) -> dict[str, int]:
    return {
        "max_num_batched_tokens": config.step_budget_tokens,
        "watermark_blocks": config.watermark_blocks,
        "long_prefill_token_threshold": config.long_prefill_token_threshold,
        "is_adaptive": config.long_prefill_token_threshold_adaptive,
        "is_chunked": config.enable_chunked_prefill,
        "is_priority": config.policy != "fcfs",
        "is_srpt": config.policy == "srpt",
        "is_async": config.async_scheduling,
        "is_reserving": config.scheduler_reserve_full_isl,
        "is_one_prefill": config.one_prefill_at_a_time,
        "is_contiguous": config.is_contiguous,
        "is_compacting": config.is_compacting,
        "move_block_ps": config.move_block_ps,
        "is_plain": _is_plain(config),
        "is_sarathi": config.rules == "sarathi",
        "is_vllm_v0": config.rules == "vllm-v0",
        "is_orca": config.rules == "orca",
        "num_spec_tokens": config.num_speculative_tokens,
        "num_lookahead_tokens": config.num_lookahead_tokens,
        "num_state_blocks": config.num_state_blocks,
        "num_draft_slots": config.num_draft_slots,
        "is_recomputing_last_block": config.is_recomputing_last_block,
        "draft_cost_millionths": config.draft_cost_millionths,
        "n_host_blocks": config.n_host_blocks,
        "swap_block_ps": config.swap_block_ps,
        "n_sliding_groups": config.num_sliding_groups,
        "sliding_window": config.sliding_window,
        "most_sliding_blocks": config.most_sliding_blocks,
    }


def _is_plain(config: SchedulerConfig) -> bool:
    """Does each step of a generating request compute one token of it, in blocks?"""
    return (
        config.rules == "vllm"
        and config.pipeline_parallel_size == 1
        and config.num_speculative_tokens == 0
        and not config.is_contiguous
    )


def may_be_steady(config: EngineConfig) -> bool:
    """``Config.is_steady``: nothing depends on which blocks a request has, or on what is left of it."""
    if not isinstance(config, SchedulerConfig):
        return False
    is_any_block_alike = not (
        config.enable_prefix_caching or config.sliding_window or config.kv_pools
    )
    is_never_moved = config.n_host_blocks == 0 and config.policy != "srpt"
    return _is_plain(config) and is_any_block_alike and is_never_moved


def blocks_needed(requests: Demand, config: EngineConfig, n_drafts: int) -> I64:
    """(N) The largest number of blocks that each request may ever take, of each group of layers."""
    longest = requests.prompt_tokens.astype(np.int64) + requests.output_tokens + 1
    longest += (config.depth + 2) * (1 + n_drafts)  # in flight, and reserved beyond them
    sizes = [pool.block_size for pool in kv_pools_of(config)]
    needed: I64 = -(
        -np.minimum(longest, config.max_model_len) // min(sizes, default=config.block_size)
    )
    if isinstance(config, SchedulerConfig) and (config.sliding_window or sizes):
        return needed
    needed += n_state_blocks_of(config)
    return needed


def most_blocks_at_once(needed: I64, config: EngineConfig) -> int:
    """The largest number of blocks in a row of the block table."""
    if isinstance(config, SchedulerConfig) and (config.sliding_window or kv_pools_of(config)):
        return int(needed.max())  # may exceed n_kv_blocks: most blocks have left the window
    return min(int(needed.max()), config.n_kv_blocks)


class Node(Row):
    """A node of SGLang's radix tree: a run of KV pages.

    ``start``: index of its first page in ``State.contents``; ``born``: order of creation.
    ``weight`` and the fields after it are scratch memory of the queue order dfs-weight: indices of
    nodes, and of requests + 1 (0: none).
    """

    start: i64
    parent: i32
    n_pages: i32
    lock_ref: i32
    n_children: i32
    previous: i32
    next: i32
    born: i32
    weight: i32
    first_child: i32
    next_sibling: i32
    first_waiting: i32
    last_waiting: i32


class Sglang(Row):
    """State of SGLang's scheduler.

    ``cut``: the request with a partly computed prompt (chunked prefill). ``n_turns`` counts queued
    requests, ``n_orders`` sorts of the queue, ``n_drawn`` used draws, ``n_born`` created nodes.
    """

    new_token_ratio: f64
    initial_new_token_ratio: f64
    least_new_token_ratio: f64
    new_token_ratio_decay: f64
    total_offset: f64
    current_offset: i64
    n_input_left: i64
    n_chunk_left: i64
    n_chosen: i64
    cut: i64
    n_generating: i64
    n_joining: i64
    is_batch_full: i64
    n_looks: i64
    n_turns: i64
    n_orders: i64
    n_drawn: i64
    n_born: i64
    n_evictable: i64
    first_unused_node: i64


def sglang_record(config: EngineConfig) -> Rows[Sglang]:
    """SGLang's initial state as an array of one record; an empty array for other engines."""
    if not isinstance(config, SglangConfig):
        return blank(0, Sglang)
    record = blank(1, Sglang)
    record["new_token_ratio"] = record["initial_new_token_ratio"] = config.initial_new_token_ratio
    record["least_new_token_ratio"] = config.least_new_token_ratio
    record["new_token_ratio_decay"] = config.new_token_ratio_decay_ratio
    record["cut"] = NONE
    record["first_unused_node"] = 1
    return record


def node_records(config: EngineConfig, n_most: int) -> Rows[Node]:
    """The tree's root and its unused nodes, linked through ``next``; empty for other engines."""
    if not isinstance(config, SglangConfig):
        return blank(0, Node)
    nodes = blank(min(config.n_kv_blocks, n_most) + 2, Node)
    nodes["next"][1:-1] = np.arange(2, len(nodes))
    return nodes
