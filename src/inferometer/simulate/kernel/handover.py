"""Transfer of requests from prefill replicas to decode replicas. Compiled.

The same as ``reference/handover.py`` and ``reference/link.py``, on arrays. Each request has a
``Transfer`` record besides its ``Request``. While a request holds blocks but no slot, they are in
an extra row of the block table, after the rows of the slots; free extra rows are a linked list
through their first column. Transfers under way are a heap by arrival time, then by index.
"""

from typing import NamedTuple

import numpy as np

from inferometer.records.columns import I64
from inferometer.records.types import ABSENT
from inferometer.simulate.compiling import compiled
from inferometer.simulate.fleet import KvLink
from inferometer.simulate.kernel import blocks, requests
from inferometer.simulate.kernel.state import NOTHING, State
from inferometer.simulate.outcome import FAR_NS, Stage, Status
from inferometer.simulate.pointers import Row, Rows, blank, i64

_PREEMPTED = int(Status.PREEMPTED)
_STOPPED = int(Status.STOPPED)
_LENGTH = int(Status.LENGTH)
_PREFILLED = int(Status.PREFILLED)
_FOR_ROOM = int(Stage.FOR_ROOM)
_MOVING = int(Stage.MOVING)
_RECEIVED = int(Stage.RECEIVED)
_OVER = int(Stage.OVER)


@compiled
def shorten(state: State, index: int) -> None:
    """Set a request's output length to one token for the prefill replica; remember its own."""
    request, transfer = state.requests[index], state.transfers[index]
    transfer.stop_tokens, transfer.max_tokens = request.stop_tokens, request.max_tokens
    transfer.arrived_ns = request.arrival_ns
    request.stop_tokens = request.max_tokens = 1


@compiled
def status_after_prefill(state: State, index: int) -> int:
    """Status after the first token: finished, or ``PREFILLED``.

    Also restores the output length that the client requested.
    """
    config, request, transfer = state.config[0], state.requests[index], state.transfers[index]
    request.stop_tokens, request.max_tokens = transfer.stop_tokens, transfer.max_tokens
    if config.gives_first_token and request.stop_tokens == 1:
        return _STOPPED if request.max_tokens > 1 else _LENGTH
    return (
        _LENGTH
        if config.gives_first_token and request.num_tokens >= config.max_model_len
        else _PREFILLED
    )


@compiled
def leave(state: State, index: int) -> None:
    """Remove a request with a completed prefill from its prefill replica's batch.

    Its slot becomes free; its blocks stay allocated until the KV transfer ends.
    """
    counters, world, request, transfer = (
        state.counters[0],
        state.world[0],
        state.requests[index],
        state.transfers[index],
    )
    transfer.source, transfer.prefilled_ns = state.config[0].replica, counters.now_ns
    transfer.source_row, transfer.num_source_blocks = (
        _copy_to_extra_row(state, request.slot, request.num_blocks),
        request.num_blocks,
    )
    requests.release(state, index)
    request.num_blocks = request.num_cached_blocks = 0
    request.num_output_placeholders = 0
    if not state.config[0].gives_first_token:
        request.num_tokens -= 1
        request.first_token_ns = ABSENT
    counters.n_ended += 1
    counters.n_barren_steps = 0
    state.transfers[world.n_prefilled].nth_prefilled = index
    world.n_prefilled += 1


@compiled
def join(state: State, index: int) -> None:
    """Queue a prefilled request at a decode replica, where it resumes like a preempted one."""
    request, transfer = state.requests[index], state.transfers[index]
    state.counters[0].n_taken += 1
    request.replica = state.config[0].replica
    request.arrival_ns = transfer.prefilled_ns
    request.status = _PREEMPTED
    request.num_computed_tokens = request.num_tokens - 1
    request.next_decode_eligible_step = request.num_spec_tokens = 0
    transfer.stage = _FOR_ROOM
    transfer.asked_ns = transfer.begun_ns = transfer.received_ns = ABSENT
    requests.add(state, index)


@compiled
def is_for_room(state: State, index: int) -> bool:
    """Does this waiting request still need blocks on this decode replica for its KV transfer?"""
    is_waiting: bool = (
        state.config[0].is_decode_pool != 0 and state.transfers[index].stage == _FOR_ROOM
    )
    return is_waiting


@compiled
def fetch(state: State, index: int) -> bool:
    """Allocate blocks for a request and request its KV transfer.

    Returns False and changes nothing if there are too few blocks.
    """
    world, request, transfer = state.world[0], state.requests[index], state.transfers[index]
    block_size = state.config[0].block_size
    n_hits = blocks.find_hits(state, index) if state.config[0].is_caching else 0
    slot = requests.lowest(state)
    n_needed = (request.num_tokens + block_size - 1) // block_size
    n_needed += state.config[0].num_state_blocks
    if n_needed - n_hits > blocks.spare_blocks(state, slot, n_hits, 0):
        return False
    blocks.touch(state, slot, n_hits, 0)
    row = _copy_to_extra_row(state, slot, n_hits)
    blocks.take(state, row, n_hits, n_needed, 0)
    transfer.row, transfer.num_blocks, transfer.num_hits = row, n_needed, n_hits
    transfer.num_moved_blocks = max(
        (request.num_prompt_tokens + block_size - 1) // block_size - n_hits, 0
    )
    transfer.num_moved_blocks += state.config[0].num_state_blocks
    transfer.stage = _MOVING
    transfer.asked_ns = state.counters[0].now_ns
    state.transfers[world.n_transfers].nth_requested = index
    world.n_transfers += 1
    return True


@compiled
def give_back_source(source: State, index: int) -> None:
    """Free a request's KV cache on its prefill replica."""
    transfer = source.transfers[index]
    blocks.give_back(source, transfer.source_row, transfer.num_source_blocks, 0)
    _free_extra_row(source, transfer.source_row)


@compiled
def receive(state: State, index: int) -> None:
    """Complete a KV transfer: the request waits for admission, or is freed if it was aborted."""
    counters, transfer = state.counters[0], state.transfers[index]
    if state.requests[index].status >= _STOPPED:
        give_back(state, index)
        return
    transfer.stage = _RECEIVED
    transfer.next_received = NOTHING
    if counters.first_received == NOTHING:
        counters.first_received = index
    else:
        state.transfers[counters.last_received].next_received = index
    counters.last_received = index
    counters.n_waiting += 1


@compiled
def give_back(state: State, index: int) -> None:
    """Free the KV cache of a request without a slot on its decode replica."""
    transfer = state.transfers[index]
    blocks.give_back(state, transfer.row, transfer.num_blocks, 0)
    _free_extra_row(state, transfer.row)
    transfer.stage = _OVER


@compiled
def peek_received(state: State) -> int:
    """The next request to admit whose KV cache has arrived; ``NOTHING`` if there is none."""
    counters = state.counters[0]
    while (
        counters.first_received != NOTHING
        and state.requests[counters.first_received].status >= _STOPPED
    ):
        counters.first_received = state.transfers[counters.first_received].next_received
    index: int = counters.first_received
    return index


@compiled
def is_received(state: State, index: int) -> bool:
    """Has this request's KV cache arrived, but the request not been admitted yet?"""
    is_here: bool = (
        state.config[0].is_decode_pool != 0 and state.transfers[index].stage == _RECEIVED
    )
    return is_here


@compiled
def adopt(state: State, index: int, num_new_tokens: int) -> bool:
    """Admit the request of ``peek_received`` with its blocks and blocks for its next tokens.

    Returns False and changes nothing if there are too few blocks.
    """
    config, counters, request, transfer = (
        state.config[0],
        state.counters[0],
        state.requests[index],
        state.transfers[index],
    )
    num_slots = min(
        request.num_computed_tokens + num_new_tokens + config.num_lookahead_tokens,
        config.max_model_len,
    )
    n_needed = (num_slots + config.block_size - 1) // config.block_size + config.num_state_blocks
    if n_needed - transfer.num_blocks > counters.n_free:
        return False
    requests.take(state, index)
    for i_block in range(transfer.num_blocks):
        state.memory.block_table[request.slot, i_block] = state.memory.block_table[
            transfer.row, i_block
        ]
    _free_extra_row(state, transfer.row)
    request.num_blocks, request.num_cached_blocks = transfer.num_blocks, transfer.num_hits
    transfer.stage = _OVER
    counters.first_received = transfer.next_received
    counters.n_waiting -= 1
    return blocks.extend(state, index, num_new_tokens)


@compiled
def _copy_to_extra_row(state: State, row: int, n_blocks: int) -> int:
    """Copy the first ``n_blocks`` blocks of a row to a free extra row; returns that row's index."""
    counters = state.counters[0]
    own_row: int = counters.first_free_row
    if own_row == NOTHING:
        own_row = len(state.queue.free_slots) + counters.n_rows
        counters.n_rows += 1
    else:
        counters.first_free_row = state.memory.block_table[own_row, 0]
    for i_block in range(n_blocks):
        state.memory.block_table[own_row, i_block] = state.memory.block_table[row, i_block]
    return own_row


@compiled
def _free_extra_row(state: State, row: int) -> None:
    """Add an extra row of the block table to the list of free ones."""
    state.memory.block_table[row, 0] = state.counters[0].first_free_row
    state.counters[0].first_free_row = row


class LinkRules(Row):
    """Speed, latency and shape of the KV link."""

    block_ps: i64
    latency_ns: i64
    is_shared: i64


class LinkState(NamedTuple):
    """The link's rules, and the time until which each replica's port is busy."""

    rules: Rows[LinkRules]
    """(1)"""
    free_ns: I64
    """(R) End of the last transfer on each port; a shared link uses only the first."""


def new_link(link: KvLink, n_replicas: int) -> LinkState:
    """A link without transfers."""
    rules = blank(1, LinkRules)
    rules["block_ps"], rules["latency_ns"], rules["is_shared"] = (
        link.block_ps,
        link.latency_ns,
        link.shape == "shared",
    )
    return LinkState(rules, np.zeros(n_replicas, np.int64))


@compiled
def begin(states: State, link: LinkState, index: int) -> None:
    """Schedule a KV transfer, which starts when the ports of both replicas are free."""
    rules, world, transfer = link.rules[0], states.world[0], states.transfers[index]
    sender, receiver = transfer.source, states.requests[index].replica
    if rules.is_shared:
        sender = receiver = 0
    transfer.begun_ns = max(world.now_ns, link.free_ns[sender], link.free_ns[receiver])
    end_ns = transfer.begun_ns + (transfer.num_moved_blocks * rules.block_ps + 500) // 1000
    link.free_ns[sender] = end_ns
    link.free_ns[receiver] = end_ns
    transfer.received_ns = end_ns + rules.latency_ns
    _push(states, index)


@compiled
def next_ns(states: State) -> int:
    """Time when the next KV cache arrives; ``FAR_NS`` if no transfer is under way."""
    if states.world[0].n_arriving == 0:
        return FAR_NS
    when_ns: int = states.transfers[states.transfers[0].nth_arriving].received_ns
    return when_ns


@compiled
def take_next(states: State) -> int:
    """Remove and return the request whose KV cache arrives next; there must be one."""
    world, heap = states.world[0], states.transfers
    first: int = heap[0].nth_arriving
    world.n_arriving -= 1
    size, last, place = world.n_arriving, heap[world.n_arriving].nth_arriving, 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _is_before(
            states, heap[child + 1].nth_arriving, heap[child].nth_arriving
        ):
            child += 1
        if not _is_before(states, heap[child].nth_arriving, last):
            break
        heap[place].nth_arriving = heap[child].nth_arriving
        place = child
    heap[place].nth_arriving = last
    return first


@compiled
def _push(states: State, index: int) -> None:
    world, heap = states.world[0], states.transfers
    place = world.n_arriving
    world.n_arriving += 1
    while place > 0 and _is_before(states, index, heap[(place - 1) // 2].nth_arriving):
        heap[place].nth_arriving = heap[(place - 1) // 2].nth_arriving
        place = (place - 1) // 2
    heap[place].nth_arriving = index


@compiled
def _is_before(states: State, one: int, other: int) -> bool:
    first, second = states.transfers[one].received_ns, states.transfers[other].received_ns
    return first < second or (first == second and one < other)
