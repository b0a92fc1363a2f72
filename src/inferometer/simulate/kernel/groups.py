"""KV blocks of models with sliding-window layers: groups of layers with block tables. Compiled.

The same as ``reference/groups.py``, on arrays; both mirror
``vllm/v1/core/{kv_cache_coordinator,single_type_kv_cache_manager}.py`` of vLLM 0.32.0.

Each group of layers has its own blocks. Groups of sliding-window layers come first. Column
``i * n_kv_groups + group`` of a request's row of the block table has its i-th block in that group,
or 0 after the block has left the window. Contents of blocks are numbered per group in the same way.
"""

from inferometer.simulate.compiling import compiled
from inferometer.simulate.kernel import pool, requests
from inferometer.simulate.kernel.config import Config
from inferometer.simulate.kernel.state import NO_BLOCK, NOTHING, Request, State


@compiled
def find_hits(state: State, index: int) -> int:
    """The number of blocks with a prefix of this request that are cached in all groups.

    The blocks are written to the block table's row of the next slot, with 0 for blocks outside the
    windows; nothing is allocated yet.
    """
    config, request, row = state.config[0], state.requests[index], requests.lowest(state)
    n_groups, n_sliding = config.n_kv_groups, config.n_sliding_groups
    n_in_full: int = (request.num_tokens - 1) // config.block_size
    if n_groups > n_sliding:
        for i_block in range(n_in_full):
            if not _note_held(state, request, row, i_block, n_sliding, n_groups):
                n_in_full = i_block
                break
    n_hits = _n_in_windows(state, request, row, n_in_full)
    request.shared_prefix_boundary = 0
    if n_groups > n_sliding and n_in_full > n_hits:
        request.shared_prefix_boundary = n_in_full * config.block_size
    for i_block in range(max(n_hits - n_hit_blocks(config), 0)):
        for group in range(n_sliding):
            state.memory.block_table[row, i_block * n_groups + group] = 0
    return n_hits


@compiled
def _n_in_windows(state: State, request: Request, row: int, n_most: int) -> int:
    """Blocks of the longest prefix, at most ``n_most``, whose windows are cached in all groups."""
    n_sliding, n_wanted, n_in_row = (
        state.config[0].n_sliding_groups,
        n_hit_blocks(state.config[0]),
        0,
    )
    for i_block in range(n_most - 1, -1, -1):
        if not _note_held(state, request, row, i_block, 0, n_sliding):
            n_in_row = 0
            continue
        n_in_row += 1
        if n_in_row >= n_wanted:
            return i_block + n_in_row
    return n_in_row


@compiled
def _note_held(
    state: State, request: Request, row: int, i_block: int, first: int, end: int
) -> bool:
    """Write the cached i-th block of a prefix in groups ``first`` to ``end`` - 1 to a row.

    Returns False if some group has none.
    """
    n_groups = state.config[0].n_kv_groups
    content = state.contents[request.content_start + i_block] * n_groups
    for group in range(first, end):
        block = state.memory.first_equal[content + group]
        if block == NO_BLOCK:
            return False
        state.memory.block_table[row, i_block * n_groups + group] = block
    return True


@compiled
def n_hit_blocks(config: Config) -> int:
    """The number of consecutive cached blocks that a sliding-window group needs for a hit."""
    n_blocks: int = (config.sliding_window + config.block_size - 2) // config.block_size
    return n_blocks


@compiled
def n_skipped(config: Config, num_tokens: int) -> int:
    """The number of first blocks that lie outside the window after ``num_tokens`` tokens."""
    n_blocks: int = max(num_tokens - config.sliding_window + 1, 0) // config.block_size
    return n_blocks


@compiled
def n_of_request(config: Config, num_tokens: int, n_owned: int) -> int:
    """Blocks that vLLM counts for a request at admission, beyond ``n_owned`` in each group."""
    n_blocks = (num_tokens + config.block_size - 1) // config.block_size
    in_windows = max(min(n_blocks, config.most_sliding_blocks) - n_owned, 0)
    n_full = config.n_kv_groups - config.n_sliding_groups
    n_more: int = n_full * max(n_blocks - n_owned, 0) + config.n_sliding_groups * in_windows
    return n_more


@compiled
def admit(state: State, index: int, num_new_tokens: int, n_hits: int) -> bool:
    """Allocate a slot, the prefix hits and blocks for the next tokens of a waiting request.

    Returns False and changes nothing if there are too few blocks.
    """
    config, request, counters = state.config[0], state.requests[index], state.counters[0]
    row, blocks = requests.lowest(state), state.memory.blocks
    n_spare: int = counters.n_free
    for column in range(n_hits * config.n_kv_groups):
        block = state.memory.block_table[row, column]
        n_spare -= block != 0 and blocks[block].ref_count == 0
    if counters.n_running > 0:
        n_spare -= config.watermark_blocks
    num_whole = min(request.num_tokens, config.max_model_len)
    if config.is_reserving and n_of_request(config, num_whole, n_hits) > n_spare:
        return False
    num_done = request.num_computed_tokens + n_hits * config.block_size
    num_slots = min(num_done + num_new_tokens + config.num_lookahead_tokens, config.max_model_len)
    n_needed = (num_slots + config.block_size - 1) // config.block_size
    if config.n_kv_groups * max(n_needed - n_hits, 0) > n_spare:
        return False
    for column in range(n_hits * config.n_kv_groups):
        if state.memory.block_table[row, column] != 0:
            pool.touch(state, state.memory.block_table[row, column], 0)
    requests.take(state, index)
    request.num_cached_blocks = n_hits
    _take(state, row, n_hits, n_needed)
    request.num_blocks = max(n_hits, n_needed)
    cache_blocks(state, index, min(num_done + num_new_tokens, request.num_tokens))
    return True


@compiled
def extend(state: State, index: int, num_new_tokens: int) -> bool:
    """Allocate blocks for the next tokens of a running request; returns False if too few are free.

    Blocks that have left the windows are freed in either case.
    """
    config, request = state.config[0], state.requests[index]
    _leave_windows(state, request)
    num_slots = request.num_computed_tokens + num_new_tokens
    num_reserved = min(num_slots + config.num_lookahead_tokens, config.max_model_len)
    if num_reserved > request.num_blocks * config.block_size:
        n_needed = (num_reserved + config.block_size - 1) // config.block_size
        if config.n_kv_groups * (n_needed - request.num_blocks) > state.counters[0].n_free:
            return False
        _take(state, request.slot, request.num_blocks, n_needed)
        request.num_blocks = n_needed
    cache_blocks(state, index, min(num_slots, request.num_tokens))
    return True


@compiled
def num_processed(config: Config, request: Request) -> int:
    """The number of tokens whose computation has ended: no step in flight needs earlier windows."""
    n_tokens: int = (
        min(request.num_computed_tokens, config.max_model_len) - request.num_in_flight_tokens
    )
    return n_tokens


@compiled
def _leave_windows(state: State, request: Request) -> None:
    """Free the blocks of a request that have left the sliding windows."""
    config, table = state.config[0], state.memory.block_table
    n_left = min(n_skipped(config, num_processed(config, request)), request.num_blocks)
    for group in range(config.n_sliding_groups):
        after = 0
        for i_block in range(n_left - 1, -1, -1):
            column = i_block * config.n_kv_groups + group
            block = table[request.slot, column]
            if block == 0:
                break
            after = pool.give_back(state, block, after, 0)
            table[request.slot, column] = 0


@compiled
def cache_blocks(state: State, index: int, num_tokens: int) -> None:
    """Add the full blocks of a request's first ``num_tokens`` tokens to the prefix cache.

    Of sliding-window groups only the blocks before the end of a prompt or a shared prefix, which
    another prompt can use.
    """
    config, request = state.config[0], state.requests[index]
    if not config.is_caching:
        return
    n_groups, n_full, n_wanted = (
        config.n_kv_groups,
        num_tokens // config.block_size,
        n_hit_blocks(config),
    )
    end = (request.num_prompt_tokens - 1) // config.block_size
    other = request.shared_prefix_boundary // config.block_size
    for i_block in range(request.num_cached_blocks, n_full):
        content = state.contents[request.content_start + i_block] * n_groups
        is_wanted = end - n_wanted <= i_block < end or other - n_wanted <= i_block < other
        for group in range(0 if is_wanted else config.n_sliding_groups, n_groups):
            block = state.memory.block_table[request.slot, i_block * n_groups + group]
            if block != 0:
                pool.register(state, block, content + group)
    request.num_cached_blocks = max(request.num_cached_blocks, n_full)


@compiled
def free(state: State, index: int) -> None:
    """Free all blocks of a request, group by group, and its slot."""
    config, request = state.config[0], state.requests[index]
    if request.slot == NOTHING:
        return
    for group in range(config.n_kv_groups):
        after = 0
        for i_block in range(request.num_blocks - 1, -1, -1):
            block = state.memory.block_table[request.slot, i_block * config.n_kv_groups + group]
            if block != 0:
                after = pool.give_back(state, block, after, 0)
    requests.release(state, index)
    request.num_blocks = 0
    request.num_cached_blocks = 0


@compiled
def _take(state: State, row: int, n_owned: int, n_needed: int) -> None:
    """Allocate blocks until each group has ``n_needed``."""
    n_groups = state.config[0].n_kv_groups
    for group in range(n_groups):
        for i_block in range(n_owned, n_needed):
            state.memory.block_table[row, i_block * n_groups + group] = pool.take(state, 0)
