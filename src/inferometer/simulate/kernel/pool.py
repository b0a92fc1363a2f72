"""A pool of KV blocks: the free queue, and the index of cached blocks. Compiled.

``BlockPool`` and ``FreeKVCacheBlockQueue`` of vLLM 0.32.0 (``vllm/v1/core``), on arrays: a ring of
the free blocks (the free queue), and for each content a list of the blocks that hold it.

The KV cache can be divided into pools (``IS_POOLED``, set by ``kernel/loop.py``); the parameter
``number`` is the index of a pool, and 0 if the cache is undivided.
"""

from typing import Final

from inferometer.simulate.compiling import compiled, inlined
from inferometer.simulate.kernel.state import NO_BLOCK, NOTHING, Block, State
from inferometer.simulate.pointers import Rows

IS_POOLED: Final = False
"""Is the KV cache divided into pools?"""
_WHOLE: Final = 1_000_000


@inlined
def number_of(state: State, index: int) -> int:
    """The number of the pool that a request uses."""
    is_pooled, number = IS_POOLED, 0
    if is_pooled:
        number = state.memory.pool_of[index]
    return number


@inlined
def block_size(state: State, number: int) -> int:
    """Tokens in a block of this pool."""
    is_pooled, n_tokens = IS_POOLED, state.config[0].block_size
    if is_pooled:
        n_tokens = state.memory.pools[number].block_size
    return n_tokens


@inlined
def n_free(state: State, number: int) -> int:
    """Free blocks of this pool, including those with cached contents that can be evicted."""
    is_pooled, n_blocks = IS_POOLED, state.counters[0].n_free
    if is_pooled:
        n_blocks = state.memory.pools[number].n_free
    return n_blocks


@inlined
def watermark_blocks(state: State, number: int) -> int:
    """Blocks that must stay free at an admission while other requests run."""
    is_pooled, n_blocks = IS_POOLED, state.config[0].watermark_blocks
    if is_pooled:
        n_blocks = state.memory.pools[number].watermark_blocks
    return n_blocks


@inlined
def _head(state: State, number: int) -> int:
    """The pool's null block, which is never allocated: begin and end of the ring of free blocks."""
    is_pooled, block = IS_POOLED, 0
    if is_pooled:
        block = state.memory.pools[number].first
    return block


@inlined
def _note_taken(state: State, number: int, n_blocks: int) -> None:
    """Count blocks of the pool as allocated (``n_blocks`` > 0) or freed (< 0)."""
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
    """Open every pool to admissions, at the begin of a scheduling decision."""
    for number in range(len(state.memory.pools)):
        state.memory.pools[number].is_closed = 0


@compiled
def close(state: State, index: int, degree: int) -> None:
    """Close this request's pool for the present step.

    ``degree`` 1: it admits no more requests; 2: its running requests are not scheduled either.
    """
    pool = state.memory.pools[state.memory.pool_of[index]]
    pool.is_closed = max(pool.is_closed, degree)


@compiled
def closed(state: State, index: int) -> int:
    """The degree to which this request's pool is closed (see ``close``); 0: open."""
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
    """KV that is read for a context, in millionths of a token in the server's own format."""
    n_read: int = n_tokens * state.memory.pools[state.memory.pool_of[index]].token_millionths
    return n_read


@compiled
def note_use(state: State, duration_ns: int) -> None:
    """Add a step to the sums and peaks of all pools' occupancy (``KvPoolRow``)."""
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
    """Allocate and return the block at the front of the free queue; evict its cached content."""
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
    """Add a reference to a cached block; if it was free, it leaves the free queue."""
    if state.memory.blocks[block].ref_count == 0:
        unlink(state.memory.blocks, block)
        _note_taken(state, number, 1)
    state.memory.blocks[block].ref_count += 1


@compiled
def give_back(state: State, block: int, after: int, number: int) -> int:
    """Drop a reference to a block; without references it returns to the free queue.

    Called for a request's blocks, the last one first. A cached block goes to the end of the queue;
    an uncached one to its front, behind ``after``, the uncached block freed by the previous call
    (``NOTHING``: none). Returns ``after`` for the next call.
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
    """Remove a block from the ring of free blocks."""
    before, after = blocks[block].previous, blocks[block].next
    blocks[before].next = after
    blocks[after].previous = before


@compiled
def insert(blocks: Rows[Block], block: int, before: int) -> None:
    """Insert a block into the ring of free blocks, behind ``before``."""
    after = blocks[before].next
    blocks[block].previous = before
    blocks[block].next = after
    blocks[before].next = block
    blocks[after].previous = block


@compiled
def register(state: State, block: int, content: int) -> None:
    """Append a block to the list of cached blocks with this content."""
    last = state.memory.last_equal[content]
    state.memory.blocks[block].content = content
    state.memory.blocks[block].previous_equal = last
    state.memory.blocks[block].next_equal = NO_BLOCK
    if last == NO_BLOCK:
        state.memory.first_equal[content] = block
    else:
        state.memory.blocks[last].next_equal = block
    state.memory.last_equal[content] = block


@compiled
def forget(state: State, block: int) -> None:
    """Remove a block from the list of cached blocks with its content."""
    blocks = state.memory.blocks
    content, before, after = (
        blocks[block].content,
        blocks[block].previous_equal,
        blocks[block].next_equal,
    )
    if before == NO_BLOCK:
        state.memory.first_equal[content] = after
    else:
        blocks[before].next_equal = after
    if after == NO_BLOCK:
        state.memory.last_equal[content] = before
    else:
        blocks[after].previous_equal = before
    blocks[block].content = NOTHING
