"""KV blocks of a pool: free ones, and those with cached contents. Compiled.

``number`` is the pool's in a divided cache (``IS_POOLED``: ``kernel/loop.py``), else 0.

``BlockPool`` and ``FreeKVCacheBlockQueue`` of vLLM 0.32.0 (``vllm/v1/core``), on arrays: a ring of
the free blocks, and for each content a list of the blocks that hold it.
"""

from typing import Final

from inferometer.simulate.compiling import compiled, inlined
from inferometer.simulate.kernel.state import NOTHING, Block, State
from inferometer.simulate.pointers import Rows

IS_POOLED: Final = False
"""Is the KV cache divided into pools?"""
_WHOLE: Final = 1_000_000


@inlined
def number_of(state: State, index: int) -> int:
    """The pool of a request."""
    is_pooled, number = IS_POOLED, 0
    if is_pooled:
        number = state.memory.pool_of[index]
    return number


@inlined
def block_size(state: State, number: int) -> int:
    """Tokens in a block."""
    is_pooled, n_tokens = IS_POOLED, state.config[0].block_size
    if is_pooled:
        n_tokens = state.memory.pools[number].block_size
    return n_tokens


@inlined
def n_free(state: State, number: int) -> int:
    """Blocks that can be taken."""
    is_pooled, n_blocks = IS_POOLED, state.counters[0].n_free
    if is_pooled:
        n_blocks = state.memory.pools[number].n_free
    return n_blocks


@inlined
def watermark_blocks(state: State, number: int) -> int:
    """Blocks that stay free when a request joins others."""
    is_pooled, n_blocks = IS_POOLED, state.config[0].watermark_blocks
    if is_pooled:
        n_blocks = state.memory.pools[number].watermark_blocks
    return n_blocks


@inlined
def _head(state: State, number: int) -> int:
    """The block that is never allocated: begin and end of the ring of free blocks."""
    is_pooled, block = IS_POOLED, 0
    if is_pooled:
        block = state.memory.pools[number].first
    return block


@inlined
def _note_taken(state: State, number: int, n_blocks: int) -> None:
    """Count a block of the pool as taken (1) or freed (-1)."""
    is_pooled, counters = IS_POOLED, state.counters[0]
    if is_pooled:
        pool = state.memory.pools[number]
        pool.n_free -= n_blocks
        counters.n_held_millionths += n_blocks * pool.block_millionths
        n_held = (counters.n_held_millionths + _WHOLE - 1) // _WHOLE
        counters.n_free = state.config[0].n_kv_blocks - n_held
    else:
        counters.n_free -= n_blocks


@compiled
def open_all(state: State) -> None:
    """A step begins: every pool admits requests."""
    for number in range(len(state.memory.pools)):
        state.memory.pools[number].is_closed = 0


@compiled
def close(state: State, index: int, degree: int) -> None:
    """Stop admissions to this request's pool in this step; degree 2: stop its running ones too."""
    pool = state.memory.pools[state.memory.pool_of[index]]
    pool.is_closed = max(pool.is_closed, degree)


@compiled
def closed(state: State, index: int) -> int:
    """The degree to which this request's pool is closed."""
    degree: int = state.memory.pools[state.memory.pool_of[index]].is_closed
    return degree


@compiled
def are_all_closed(state: State) -> bool:
    """Is every pool closed to admissions?"""
    n_open = 0
    for number in range(len(state.memory.pools)):
        n_open += state.memory.pools[number].is_closed == 0
    return n_open == 0


@inlined
def read_millionths(state: State, index: int, n_tokens: int) -> int:
    """KV read for a context, in millionths of a token of the server's format."""
    n_read: int = n_tokens * state.memory.pools[state.memory.pool_of[index]].token_millionths
    return n_read


@compiled
def note_use(state: State, duration_ns: int) -> None:
    """Add a step of this duration to the time-weighted occupancy of the pools."""
    pools = state.memory.pools
    for number in range(len(pools)):
        pool = pools[number]
        n_used = pool.n_blocks - pool.n_free
        pool.peak_blocks = max(pool.peak_blocks, n_used)
        pool.block_ns += n_used * duration_ns
        pool.step_ns += duration_ns
    for i_running in range(state.counters[0].n_running):
        index: int = state.queue.running[i_running]
        own: int = state.memory.pool_of[index]
        request, pool = state.requests[index], pools[own]
        n_room = request.num_blocks * pool.block_size - request.num_computed_tokens
        pool.tail_token_ns += n_room * duration_ns


@compiled
def take(state: State, number: int) -> int:
    """Take the block at the front of the free queue; evict its content."""
    blocks = state.memory.blocks
    block: int = blocks[_head(state, number)].next
    unlink(blocks, block)
    if blocks[block].content != NOTHING:
        forget(state, block)
        state.counters[0].n_evicted += 1
    blocks[block].ref_count = 1
    _note_taken(state, number, 1)
    return block


@compiled
def touch(state: State, block: int, number: int) -> None:
    """Reference a block that holds a wanted prefix; a free one leaves the queue."""
    if state.memory.blocks[block].ref_count == 0:
        unlink(state.memory.blocks, block)
        _note_taken(state, number, 1)
    state.memory.blocks[block].ref_count += 1


@compiled
def give_back(state: State, block: int, after: int, number: int) -> int:
    """Give up a block of several, the last one first.

    One without content goes to the front of the queue, behind ``after`` (``NOTHING``: its begin);
    one with content to its end. Returns what the next one goes behind.
    """
    blocks = state.memory.blocks
    blocks[block].ref_count -= 1
    if blocks[block].ref_count == 0:
        _note_taken(state, number, -1)
        head = _head(state, number)
        if blocks[block].content != NOTHING:
            insert(blocks, block, blocks[head].previous)
        else:
            insert(blocks, block, head if after == NOTHING else after)
            after = block
    return after


@compiled
def unlink(blocks: Rows[Block], block: int) -> None:
    """Remove a block from the ring of free ones."""
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
def register(state: State, block: int, content: int) -> None:
    """Register the block under its content, after blocks registered before."""
    last = state.memory.last_equal[content]
    state.memory.blocks[block].content = content
    state.memory.blocks[block].previous_equal = last
    state.memory.blocks[block].next_equal = NOTHING
    if last == NOTHING:
        state.memory.first_equal[content] = block
    else:
        state.memory.blocks[last].next_equal = block
    state.memory.last_equal[content] = block


@compiled
def forget(state: State, block: int) -> None:
    """Remove a block from the list of those with its content."""
    blocks = state.memory.blocks
    content, before, after = (
        blocks[block].content,
        blocks[block].previous_equal,
        blocks[block].next_equal,
    )
    if before == NOTHING:
        state.memory.first_equal[content] = after
    else:
        blocks[before].next_equal = after
    if after == NOTHING:
        state.memory.last_equal[content] = before
    else:
        blocks[after].previous_equal = before
    blocks[block].content = NOTHING
