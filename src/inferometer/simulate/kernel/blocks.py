"""Which KV blocks does which request own, which are free, and which hold a prefix that can be reused? Compiled.

The same as ``reference/blocks.py``, on arrays; both mirror
``vllm/v1/core/{block_pool,kv_cache_manager}.py`` of vLLM 0.32.0.
"""

from inferometer.simulate.compiling import compiled, inlined
from inferometer.simulate.kernel import holes, seats
from inferometer.simulate.kernel.rows import Rows
from inferometer.simulate.kernel.state import NOTHING, Block, Counters, Request, State


@compiled
def find_hits(state: State, index: int) -> int:
    """How many blocks hold a prefix of this request?

    They are noted in the next seat's row; nothing is taken yet.
    """
    seat = seats.lowest(state)
    request = state.requests[index]
    n_max: int = (request.num_tokens - 1) // state.config[0].block_size
    for i_block in range(n_max):
        block = state.first_equal[state.contents[request.content_start + i_block]]
        if block == NOTHING:
            n_max = i_block
            break
        state.block_table[seat, i_block] = block
    n_hits: int = max(n_max - state.config[0].is_recomputing_last_block, 0)
    return n_hits


@compiled
def admit(state: State, index: int, num_new_tokens: int, n_hits: int) -> bool:
    """Seat a waiting request with its hits and room for its next tokens.

    False, and nothing changed, where there is none.
    """
    config, request = state.config[0], state.requests[index]
    if config.is_contiguous:
        return holes.admit(state, index)
    seat = seats.lowest(state)
    n_spare = spare_blocks(state, seat, n_hits)
    if (
        config.is_reserving
        and max(
            _n_blocks(min(request.num_tokens, config.max_model_len), config.block_size) - n_hits, 0
        )
        > n_spare
    ):
        return False
    num_done = request.num_computed_tokens + n_hits * config.block_size
    num_slots = min(num_done + num_new_tokens + config.num_lookahead_tokens, config.max_model_len)
    n_needed = _n_blocks(
        max(num_slots, request.num_tokens) if config.is_sarathi else num_slots, config.block_size
    )
    if max(n_needed - n_hits, 0) > n_spare:
        return False
    touch(state, seat, n_hits)
    seats.take(state, index)
    request.num_cached_blocks = n_hits
    take(state, seat, n_hits, n_needed)
    request.num_blocks = max(n_hits, n_needed)
    cache_blocks(state, index, min(num_done + num_new_tokens, request.num_tokens))
    return True


@inlined
def extend(state: State, index: int, num_new_tokens: int) -> bool:
    """Room for the next tokens of a running request; False, and nothing changed, where there is none."""
    config, request = state.config[0], state.requests[index]
    if config.is_contiguous:
        return True
    num_slots = request.num_computed_tokens + num_new_tokens
    num_reserved = min(num_slots + config.num_lookahead_tokens, config.max_model_len)
    if num_reserved > request.num_blocks * config.block_size:
        n_needed = _n_blocks(num_reserved, config.block_size)
        if n_needed - request.num_blocks > state.counters[0].n_free:
            return False
        take(state, request.seat, request.num_blocks, n_needed)
        request.num_blocks = n_needed
    cache_blocks(state, index, min(num_slots, request.num_tokens))
    return True


@inlined
def cache_blocks(state: State, index: int, num_tokens: int) -> None:
    """Register the blocks that these first tokens fill."""
    config, request = state.config[0], state.requests[index]
    if not config.is_caching:
        return
    while (request.num_cached_blocks + 1) * config.block_size <= num_tokens:
        block = state.block_table[request.seat, request.num_cached_blocks]
        _register(state, block, state.contents[request.content_start + request.num_cached_blocks])
        request.num_cached_blocks += 1


@compiled
def free(state: State, index: int) -> None:
    """Take all blocks and the seat."""
    request = state.requests[index]
    drop_host_blocks(state.counters[0], request)
    if state.config[0].is_contiguous:
        holes.free(state, index)
        return
    if request.seat == NOTHING:
        return
    give_back(state, request.seat, request.num_blocks)
    seats.release(state, index)
    request.num_blocks = 0
    request.num_cached_blocks = 0


@compiled
def spare_blocks(state: State, row: int, n_hits: int) -> int:
    """How many blocks may an admission take beside its hits, which are the first blocks of a row?"""
    n_spare: int = state.counters[0].n_free
    for i_block in range(n_hits):
        n_spare -= state.blocks[state.block_table[row, i_block]].ref_count == 0
    if state.counters[0].n_running > 0:
        n_spare -= state.config[0].watermark_blocks
    return n_spare


@compiled
def touch(state: State, row: int, n_hits: int) -> None:
    """Reference the first blocks of a row, which hold a wanted prefix; a free one leaves the queue."""
    for i_block in range(n_hits):
        block = state.block_table[row, i_block]
        if state.blocks[block].ref_count == 0:
            unlink(state.blocks, block)
            state.counters[0].n_free -= 1
        state.blocks[block].ref_count += 1


@compiled
def take(state: State, row: int, n_owned: int, n_needed: int) -> None:
    """Take blocks from the front of the queue until a row has as many; what they held is forgotten."""
    blocks = state.blocks
    for i_block in range(n_owned, n_needed):
        block = blocks[0].next
        unlink(blocks, block)
        if blocks[block].content != NOTHING:
            _forget(state, block)
        blocks[block].ref_count = 1
        state.block_table[row, i_block] = block
        state.counters[0].n_free -= 1


@compiled
def give_back(state: State, row: int, n_blocks: int) -> None:
    """Give up the blocks of a row.

    Those without content to the front of the queue (last one first), the others to its end.
    """
    blocks, after = state.blocks, 0
    for i_block in range(n_blocks - 1, -1, -1):
        block = state.block_table[row, i_block]
        blocks[block].ref_count -= 1
        if blocks[block].ref_count == 0:
            state.counters[0].n_free += 1
            if blocks[block].content != NOTHING:
                insert(blocks, block, blocks[0].previous)
            else:
                insert(blocks, block, after)
                after = block


@compiled
def drop_host_blocks(counters: Counters, request: Request) -> None:
    """Forget what a request has on the host."""
    counters.n_host_free += request.num_host_blocks
    request.num_host_blocks = 0


@compiled
def _n_blocks(num_tokens: int, block_size: int) -> int:
    return (num_tokens + block_size - 1) // block_size


@compiled
def unlink(blocks: Rows[Block], block: int) -> None:
    """Take a block out of the ring of free ones."""
    before, after = blocks[block].previous, blocks[block].next
    blocks[before].next = after
    blocks[after].previous = before


@compiled
def insert(blocks: Rows[Block], block: int, before: int) -> None:
    """Put a block into the ring of free ones, behind ``before``."""
    after = blocks[before].next
    blocks[block].previous = before
    blocks[block].next = after
    blocks[before].next = block
    blocks[after].previous = block


@compiled
def _register(state: State, block: int, content: int) -> None:
    """From now on the block can be found by its content, after those that were registered before."""
    last = state.last_equal[content]
    state.blocks[block].content = content
    state.blocks[block].previous_equal = last
    state.blocks[block].next_equal = NOTHING
    if last == NOTHING:
        state.first_equal[content] = block
    else:
        state.blocks[last].next_equal = block
    state.last_equal[content] = block


@compiled
def _forget(state: State, block: int) -> None:
    """Take a block out of the list of those with its content."""
    blocks = state.blocks
    content, before, after = (
        blocks[block].content,
        blocks[block].previous_equal,
        blocks[block].next_equal,
    )
    if before == NOTHING:
        state.first_equal[content] = after
    else:
        blocks[before].next_equal = after
    if after == NOTHING:
        state.last_equal[content] = before
    else:
        blocks[after].previous_equal = before
    blocks[block].content = NOTHING
