"""Which KV blocks are free, and which hold a content? Compiled.

``BlockPool`` and ``FreeKVCacheBlockQueue`` of vLLM 0.32.0 (``vllm/v1/core``), on arrays: a ring of
the free blocks, and for each content a list of the blocks that hold it.
"""

from inferometer.simulate.compiling import compiled
from inferometer.simulate.kernel.state import NOTHING, Block, State
from inferometer.simulate.pointers import Rows


@compiled
def take(state: State) -> int:
    """Take the block at the front of the queue; what it held is forgotten."""
    blocks = state.memory.blocks
    block: int = blocks[0].next
    unlink(blocks, block)
    if blocks[block].content != NOTHING:
        forget(state, block)
        state.counters[0].n_evicted += 1
    blocks[block].ref_count = 1
    state.counters[0].n_free -= 1
    return block


@compiled
def touch(state: State, block: int) -> None:
    """Reference a block that holds a wanted prefix; a free one leaves the queue."""
    if state.memory.blocks[block].ref_count == 0:
        unlink(state.memory.blocks, block)
        state.counters[0].n_free -= 1
    state.memory.blocks[block].ref_count += 1


@compiled
def give_back(state: State, block: int, after: int) -> int:
    """Give up a block of several, the last one first.

    One without content goes to the front of the queue, behind ``after``; one with content to its
    end. Returns what the next one goes behind.
    """
    blocks = state.memory.blocks
    blocks[block].ref_count -= 1
    if blocks[block].ref_count == 0:
        state.counters[0].n_free += 1
        if blocks[block].content != NOTHING:
            insert(blocks, block, blocks[0].previous)
        else:
            insert(blocks, block, after)
            after = block
    return after


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
def register(state: State, block: int, content: int) -> None:
    """From now on the block can be found by its content, after those that were registered before."""
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
    """Take a block out of the list of those with its content."""
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
