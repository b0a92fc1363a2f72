"""Which KV blocks does which request of TensorRT-LLM own, which are free, and which hold a prefix that can be reused? Compiled.

The same as ``reference/trtllm_blocks.py``, on the arrays of ``kernel/blocks.py``: a block's parent
is in ``previous_equal`` and ``first_equal`` is the tree.
"""

from inferometer.simulate.compiling import compiled
from inferometer.simulate.kernel import blocks, seats
from inferometer.simulate.kernel.state import NOTHING, State

_ROOT = 0


@compiled
def n_hits(state: State, index: int) -> int:
    """How many blocks hold a prefix of this request? Its last token stays to be computed."""
    config, request = state.config[0], state.requests[index]
    if not config.is_caching:
        return 0
    n_found, _ = _path(state, index, (request.num_tokens - 1) // config.block_size)
    return n_found


@compiled
def n_hits_in_use(state: State, index: int) -> int:
    """How many of these does somebody hold? They cost no free block."""
    config, request = state.config[0], state.requests[index]
    if not config.is_caching:
        return 0
    _, n_in_use = _path(state, index, (request.num_tokens - 1) // config.block_size)
    return n_in_use


@compiled
def first_new_content(state: State, index: int) -> int:
    """The content of its first full block that is in no block yet; ``NOTHING`` where all are."""
    config, request = state.config[0], state.requests[index]
    if not config.is_caching:
        return NOTHING
    n_full = request.num_tokens // config.block_size
    n_known, _ = _path(state, index, n_full)
    if n_known == n_full:
        return NOTHING
    content: int = state.contents[request.content_start + n_known]
    return content


@compiled
def claim(state: State, index: int, n_blocks: int) -> None:
    """A request that has a seat begins on top of its hits."""
    request, parent = state.requests[index], _ROOT
    for i_block in range(n_blocks):
        parent = _child(state, parent, state.contents[request.content_start + i_block])
        state.block_table[request.seat, i_block] = parent
    blocks.touch(state, request.seat, n_blocks)
    request.num_blocks = n_blocks


@compiled
def extend(state: State, index: int, num_tokens: int) -> None:
    """Give a request blocks for its first tokens, from the front of the queue; what they held is forgotten."""
    request, size = state.requests[index], state.config[0].block_size
    n_needed = (num_tokens + size - 1) // size
    for i_block in range(request.num_blocks, n_needed):
        block = state.blocks[0].next
        blocks.unlink(state.blocks, block)
        content = state.blocks[block].content
        if content != NOTHING:
            if state.first_equal[content] == block:
                state.first_equal[content] = NOTHING
            state.blocks[block].content = NOTHING
        state.blocks[block].ref_count = 1
        state.block_table[request.seat, i_block] = block
        state.counters[0].n_free -= 1
    request.num_blocks = max(request.num_blocks, n_needed)


@compiled
def store(state: State, index: int, num_tokens: int) -> None:
    """Put the blocks that these first tokens fill into the tree.

    What is there already stays, and the request keeps its own.
    """
    config, request, parent = state.config[0], state.requests[index], _ROOT
    if not config.is_caching:
        return
    for i_block in range(num_tokens // config.block_size):
        content = state.contents[request.content_start + i_block]
        found = _child(state, parent, content)
        if found == NOTHING:
            found = state.block_table[request.seat, i_block]
            state.blocks[found].content = content
            state.blocks[found].previous_equal = parent
            state.first_equal[content] = found
        parent = found


@compiled
def release(state: State, index: int) -> None:
    """Take all blocks and the seat, after storing what is computed: the last block goes first.

    The last token's KV is not there.
    """
    request = state.requests[index]
    store(state, index, min(request.num_tokens - 1, request.num_computed_tokens))
    for i_block in range(request.num_blocks - 1, -1, -1):
        block = state.block_table[request.seat, i_block]
        state.blocks[block].ref_count -= 1
        if state.blocks[block].ref_count == 0:
            state.counters[0].n_free += 1
            blocks.insert(state.blocks, block, state.blocks[0].previous)
    request.num_blocks = 0
    seats.release(state, index)


@compiled
def _path(state: State, index: int, n_most: int) -> tuple[int, int]:
    """How many of its first blocks are there, and how many of these does somebody hold?"""
    start, parent, n_found, n_in_use = state.requests[index].content_start, _ROOT, 0, 0
    while n_found < n_most:
        block = _child(state, parent, state.contents[start + n_found])
        if block == NOTHING:
            break
        n_found += 1
        n_in_use += state.blocks[block].ref_count > 0
        parent = block
    return n_found, n_in_use


@compiled
def _child(state: State, parent: int, content: int) -> int:
    """Which block holds this content behind its parent?

    What was stored behind a block that has been taken is lost with it.
    """
    block: int = state.first_equal[content]
    if block != NOTHING and state.blocks[block].previous_equal != parent:
        return NOTHING
    return block
