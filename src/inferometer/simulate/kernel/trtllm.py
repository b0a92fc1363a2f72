"""TensorRT-LLM's in-flight batching: requests of the next step and their tokens. Compiled.

The same as ``reference.trtllm.TrtllmScheduler`` with ``reference/trtllm_chunks.py`` and
``reference/trtllm_blocks.py``, on arrays. Contexts are prefills, generations decodes.
``Queue.running`` has the active requests in order of arrival, whether or not they have blocks.
Cached blocks are a tree of prefixes: ``Memory.first_equal`` has the block with a content, and
``Block.previous_equal`` a block's parent.
"""

from inferometer.records.types import ABSENT, PartKind
from inferometer.simulate.compiling import compiled, inlined
from inferometer.simulate.kernel import blocks, pool, requests
from inferometer.simulate.kernel.state import NO_BLOCK, NOTHING, State
from inferometer.simulate.kernel.vllm import launch
from inferometer.simulate.outcome import Status
from inferometer.simulate.trtllm_config import CAPACITY_POLICIES, CHUNKING_POLICIES

_ROOT = 0
_WAITING = int(Status.WAITING)
_RUNNING = int(Status.RUNNING)
_BY_ARRIVAL = CHUNKING_POLICIES.index("FIRST_COME_FIRST_SERVED")
_MAX_UTILIZATION = CAPACITY_POLICIES.index("MAX_UTILIZATION")
_STATIC_BATCH = CAPACITY_POLICIES.index("STATIC_BATCH")
_CONTEXT = int(PartKind.CONTEXT)
_UNSEEN = int(Status.UNSEEN)
_STOPPED = int(Status.STOPPED)
_LENGTH = int(Status.LENGTH)
_ABORTED = int(Status.ABORTED)


@compiled
def n_hits(state: State, index: int) -> int:
    """The number of cached blocks with a prefix of this request, its last token excluded."""
    config, request = state.config[0], state.requests[index]
    if not config.is_caching:
        return 0
    n_found, _ = _path(state, index, (request.num_tokens - 1) // config.block_size)
    return n_found


@compiled
def n_hits_in_use(state: State, index: int) -> int:
    """The number of prefix hits that running requests hold; they need no free block."""
    config, request = state.config[0], state.requests[index]
    if not config.is_caching:
        return 0
    _, n_in_use = _path(state, index, (request.num_tokens - 1) // config.block_size)
    return n_in_use


@compiled
def first_new_content(state: State, index: int) -> int:
    """The content of this request's first full block that is not cached; ``NOTHING``: all are."""
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
    """Give a request, which has a slot, its first ``n_blocks`` cached blocks."""
    request, parent = state.requests[index], _ROOT
    for i_block in range(n_blocks):
        parent = _child(state, parent, state.contents[request.content_start + i_block])
        state.memory.block_table[request.slot, i_block] = parent
    blocks.touch(state, request.slot, n_blocks, 0)
    request.num_blocks = n_blocks


@compiled
def extend(state: State, index: int, num_tokens: int) -> None:
    """Allocate the blocks that a request's first ``num_tokens`` tokens need from the free queue.

    What was cached in these blocks is evicted.
    """
    request, size = state.requests[index], state.config[0].block_size
    n_needed = (num_tokens + size - 1) // size
    for i_block in range(request.num_blocks, n_needed):
        block = state.memory.blocks[0].next
        pool.unlink(state.memory.blocks, block)
        content = state.memory.blocks[block].content
        if content != NOTHING:
            if state.memory.first_equal[content] == block:
                state.memory.first_equal[content] = NO_BLOCK
            state.memory.blocks[block].content = NOTHING
            state.counters[0].n_evicted += 1
        state.memory.blocks[block].ref_count = 1
        state.memory.block_table[request.slot, i_block] = block
        state.counters[0].n_free -= 1
    request.num_blocks = max(request.num_blocks, n_needed)


@compiled
def store(state: State, index: int, num_tokens: int) -> None:
    """Add the blocks that a request's first ``num_tokens`` tokens fill to the tree of prefixes.

    If the tree has a block with the same content, it stays, and the request's own is not added.
    """
    config, request, parent = state.config[0], state.requests[index], _ROOT
    if not config.is_caching:
        return
    for i_block in range(num_tokens // config.block_size):
        content = state.contents[request.content_start + i_block]
        found = _child(state, parent, content)
        if found == NOTHING:
            found = state.memory.block_table[request.slot, i_block]
            state.memory.blocks[found].content = content
            state.memory.blocks[found].previous_equal = parent
            state.memory.first_equal[content] = found
        parent = found


@compiled
def free_blocks(state: State, index: int) -> None:
    """Free a request's blocks (the last one first) and slot; its computed blocks stay cached.

    The last token is excluded: its KV has not been computed.
    """
    request = state.requests[index]
    store(state, index, min(request.num_tokens - 1, request.num_computed_tokens))
    for i_block in range(request.num_blocks - 1, -1, -1):
        block = state.memory.block_table[request.slot, i_block]
        state.memory.blocks[block].ref_count -= 1
        if state.memory.blocks[block].ref_count == 0:
            state.counters[0].n_free += 1
            pool.insert(state.memory.blocks, block, state.memory.blocks[0].previous)
    request.num_blocks = 0
    requests.release(state, index)


@compiled
def _path(state: State, index: int, n_most: int) -> tuple[int, int]:
    """The number of a request's first blocks that are cached, and how many of them are in use."""
    start, parent, n_found, n_in_use = state.requests[index].content_start, _ROOT, 0, 0
    while n_found < n_most:
        block = _child(state, parent, state.contents[start + n_found])
        if block == NOTHING:
            break
        n_found += 1
        n_in_use += state.memory.blocks[block].ref_count > 0
        parent = block
    return n_found, n_in_use


@compiled
def _child(state: State, parent: int, content: int) -> int:
    """The cached block with this content behind this parent block; ``NOTHING`` if there is none.

    Blocks behind an evicted block are no longer found.
    """
    block: int = state.memory.first_equal[content]
    is_behind = block != NO_BLOCK and state.memory.blocks[block].previous_equal == parent
    return block if is_behind else NOTHING


@inlined
def form_batch(state: State, i_batch: int, n_fitting: int) -> None:
    """Form batch ``i_batch`` from the first ``n_fitting`` requests in ``State.skipped``.

    Contexts that stay incomplete come first, then those that this step completes, then generations.
    """
    config = state.config[0]
    n_chosen, n_tokens, n_remaining = _choose(state, n_fitting)
    budget = config.max_num_batched_tokens - n_tokens
    is_cut = config.is_chunked and n_remaining > budget
    if is_cut:
        if config.chunking_policy == _BY_ARRIVAL:
            _chunk_by_arrival(state, n_chosen, budget)
        else:
            _chunk_evenly(state, n_chosen, budget)
    state.batches[i_batch].n_parts = 0
    for is_last in range(2):
        for i_chosen in range(n_chosen):
            index = state.skipped[i_chosen]
            size = state.queue.chunks[i_chosen]
            if (
                _is_context(state, index)
                and size > 0
                and is_last == (not is_cut or size == _remaining(state, index))
            ):
                _add_part(state, i_batch, index, size)
    for i_chosen in range(n_chosen):
        if not _is_context(state, state.skipped[i_chosen]) and state.queue.chunks[i_chosen] > 0:
            _add_part(state, i_batch, state.skipped[i_chosen], 1)
    # Reuse the prefixes of all requests before any block is evicted.
    for i_part in range(state.batches[i_batch].n_parts):
        _begin(state, state.parts[i_batch, i_part].request)
    for i_part in range(state.batches[i_batch].n_parts):
        _allocate_blocks(state, state.parts[i_batch, i_part].request)
    launch(state, i_batch)


@compiled
def _choose(state: State, n_fitting: int) -> tuple[int, int, int]:
    """Reduce the requests in ``State.skipped`` to those that fit in the batch.

    Returns their number, the tokens that cannot be chunked, and those that can. The first request
    that does not fit ends the choice.
    """
    config, chosen = state.config[0], state.skipped
    n_chosen, n_tokens, n_remaining = 0, 0, 0
    for i_fitting in range(n_fitting):
        index = chosen[i_fitting]
        if _will_complete(state, index):
            continue
        if state.requests[index].status != _RUNNING:
            state.requests[index].num_computed_tokens = n_hits(state, index) * config.block_size
        n_own = _remaining(state, index) if _is_context(state, index) else 1
        cost = 0 if config.is_chunked and _is_context(state, index) else n_own
        if n_tokens + cost > config.max_num_batched_tokens:
            break
        n_tokens += cost
        n_remaining += n_own - cost
        chosen[n_chosen] = index
        state.queue.chunks[n_chosen] = n_own
        n_chosen += 1
        if n_chosen >= config.max_num_active:
            break
    return n_chosen, n_tokens, n_remaining


@compiled
def _chunk_by_arrival(state: State, n_chosen: int, budget: int) -> None:
    """Divide the token budget in order of arrival, into whole blocks but for a prompt's end."""
    unit, left = state.config[0].block_size, budget
    for i_chosen in range(n_chosen):
        if not _is_context(state, state.skipped[i_chosen]):
            continue
        if state.queue.chunks[i_chosen] > left:
            state.queue.chunks[i_chosen] = left // unit * unit
        left -= state.queue.chunks[i_chosen]


@compiled
def _chunk_evenly(state: State, n_chosen: int, budget: int) -> None:
    """Divide the token budget evenly: one more block of tokens for each context in turn."""
    unit, left, grows = state.config[0].block_size, budget, True
    for i_chosen in range(n_chosen):
        if _is_context(state, state.skipped[i_chosen]):
            state.queue.chunks[i_chosen] = 0
    while grows and left > 0:
        grows = False
        for i_chosen in range(n_chosen):
            index = state.skipped[i_chosen]
            if not _is_context(state, index):
                continue
            more = min(unit, _remaining(state, index) - state.queue.chunks[i_chosen])
            if 0 < more <= left:
                state.queue.chunks[i_chosen] += more
                left -= more
                grows = True


@compiled
def _add_part(state: State, i_batch: int, index: int, n_tokens: int) -> None:
    batch = state.batches[i_batch]
    part = state.parts[i_batch, batch.n_parts]
    part.request = index
    part.num_tokens = n_tokens
    batch.n_parts += 1


@compiled
def _begin(state: State, index: int) -> None:
    """Start a request, unless it runs: a slot, and the cached blocks of its prefix."""
    counters, request = state.counters[0], state.requests[index]
    if request.status == _RUNNING:
        return
    if request.status == _WAITING:
        request.admitted_ns = counters.now_ns
        request.num_cached_tokens = request.num_computed_tokens
    request.status = _RUNNING
    requests.take(state, index)
    claim(state, index, request.num_computed_tokens // state.config[0].block_size)
    counters.n_running += 1
    counters.n_waiting -= 1


@compiled
def _allocate_blocks(state: State, index: int) -> None:
    """Allocate a request's blocks: of the whole context at once, then of one more token."""
    request = state.requests[index]
    extend(
        state,
        index,
        request.num_tokens if request.is_prefill_chunk else request.num_computed_tokens + 1,
    )


@compiled
def _is_context(state: State, index: int) -> bool:
    return bool(state.requests[index].is_prefill_chunk)


@compiled
def _remaining(state: State, index: int) -> int:
    request = state.requests[index]
    n_tokens: int = request.num_tokens - request.num_computed_tokens
    return n_tokens


@compiled
def _will_complete(state: State, index: int) -> bool:
    """Is the request's last token in flight? It then holds its blocks and computes nothing."""
    request = state.requests[index]
    n_most = min(request.num_prompt_tokens + request.max_tokens, state.config[0].max_model_len)
    will_complete: bool = (
        request.num_output_placeholders > 0
        and request.num_tokens + request.num_output_placeholders >= n_most
    )
    return will_complete


@inlined
def schedule(state: State, i_batch: int) -> None:
    """Form the next step as batch ``i_batch``: contexts first, then generations."""
    config, counters = state.config[0], state.counters[0]
    counters.n_preempted = 0
    counters.current_step += 1
    while counters.n_active < config.max_num_active:
        index = requests.peek(state)
        if index == NOTHING:
            break
        requests.pop(state)
        counters.n_waiting += 1  # counts as waiting until it gets blocks
        state.queue.running[counters.n_active] = index
        counters.n_active += 1
    n_fitting = (
        _fit_for_a_step(state)
        if config.capacity_policy == _MAX_UTILIZATION
        else _fit_to_completion(state)
    )
    form_batch(state, i_batch, n_fitting)


@inlined
def _fit_to_completion(state: State) -> int:
    """Choose all decoding requests, then others that can get all blocks they may ever need.

    Lists them in ``State.skipped``, and returns their number (policies GUARANTEED_NO_EVICT and
    STATIC_BATCH).
    """
    counters, fitting = state.counters[0], state.skipped
    n_available, n_fitting = counters.n_free, 0
    for i_active in range(counters.n_active):
        index = state.queue.running[i_active]
        if _is_generating(state, index):
            n_available -= n_blocks_to_completion(state, index)
            fitting[n_fitting] = index
            n_fitting += 1
    is_static = state.config[0].capacity_policy == _STATIC_BATCH
    if n_fitting > 0 and is_static:
        return n_fitting
    _mark_upcoming_contents(state)
    for i_active in range(counters.n_active):
        index = state.queue.running[i_active]
        if _is_generating(state, index) or (not is_static and _is_worth_waiting(state, index)):
            continue
        n_needed = n_blocks_to_completion(state, index)
        if n_needed > n_available:
            break
        n_available -= n_needed
        fitting[n_fitting] = index
        n_fitting += 1
    return n_fitting


@inlined
def _fit_for_a_step(state: State) -> int:
    """Choose requests that can get blocks for their next step; pause the last ones if needed.

    Lists them in ``State.skipped``, and returns their number (policy MAX_UTILIZATION).
    """
    counters, fitting = state.counters[0], state.skipped
    n_scheduled, n_fitting, i_active, n_active = 0, 0, 0, counters.n_active
    _mark_upcoming_contents(state)
    while i_active < n_active:
        index = state.queue.running[i_active]
        if _is_worth_waiting(state, index):
            i_active += 1
            continue
        n_needed = _n_blocks_for_a_step(state, index)
        if n_scheduled + n_needed <= counters.n_free:
            n_scheduled += n_needed
            fitting[n_fitting] = index
            n_fitting += 1
            i_active += 1
            continue
        i_victim = n_active - 1
        while (
            i_victim >= i_active
            and state.requests[state.queue.running[i_victim]].status != _RUNNING
        ):
            i_victim -= 1
        if i_victim < i_active:
            break
        _pause(state, state.queue.running[i_victim])
        n_active, n_scheduled = i_victim, 0
        for i_fitting in range(n_fitting):  # blocks they would share may be free now
            n_scheduled += _n_blocks_for_a_step(state, fitting[i_fitting])
    return n_fitting


@compiled
def _mark_upcoming_contents(state: State) -> None:
    """Mark the block content that each running context will cache next, with this step's number."""
    for i_active in range(state.counters[0].n_active):
        request = state.requests[state.queue.running[i_active]]
        if request.status == _RUNNING and request.is_prefill_chunk:
            content = first_new_content(state, state.queue.running[i_active])
            if content != NOTHING:
                state.memory.last_equal[content] = state.counters[0].current_step


@compiled
def _is_worth_waiting(state: State, index: int) -> bool:
    """Should a new request wait, since another one will cache the first block it would compute?

    If not, the block is marked as one that this request will cache.
    """
    if state.requests[index].status == _RUNNING or not state.config[0].is_prefix_aware:
        return False
    content = first_new_content(state, index)
    if content == NOTHING:
        return False
    is_coming: bool = state.memory.last_equal[content] == state.counters[0].current_step
    state.memory.last_equal[content] = state.counters[0].current_step
    return is_coming


@compiled
def _pause(state: State, index: int) -> None:
    """Preempt a request (TensorRT-LLM's pause); it computes its tokens again later."""
    release(state, index)
    state.counters[0].n_waiting += 1
    requests.lose_place(state, index)


@compiled
def release(state: State, index: int) -> None:
    """Free the blocks and the slot of a running request."""
    free_blocks(state, index)
    state.counters[0].n_running -= 1


@compiled
def _is_generating(state: State, index: int) -> bool:
    request = state.requests[index]
    is_generating: bool = request.status == _RUNNING and not request.is_prefill_chunk
    return is_generating


@compiled
def _n_most_tokens(state: State, index: int) -> int:
    request = state.requests[index]
    n_tokens: int = min(
        request.num_prompt_tokens + request.max_tokens, state.config[0].max_model_len
    )
    return n_tokens


@compiled
def _n_blocks(state: State, num_tokens: int) -> int:
    size = state.config[0].block_size
    n_blocks: int = (num_tokens + size - 1) // size
    return n_blocks


@compiled
def n_blocks_to_completion(state: State, index: int) -> int:
    """The number of free blocks that the request still needs up to its last allowed token."""
    n_more: int = _n_blocks(state, _n_most_tokens(state, index)) - _n_blocks_at_hand(state, index)
    return n_more


@compiled
def _n_blocks_for_a_step(state: State, index: int) -> int:
    """The number of free blocks that the request's next step needs."""
    request = state.requests[index]
    if request.is_prefill_chunk:
        return (
            0
            if request.status == _RUNNING
            else _n_blocks(state, request.num_tokens) - _n_blocks_at_hand(state, index)
        )
    n_tokens = min(request.num_computed_tokens + 1, _n_most_tokens(state, index))
    n_more: int = _n_blocks(state, n_tokens) - request.num_blocks
    return n_more


@compiled
def _n_blocks_at_hand(state: State, index: int) -> int:
    """The number of blocks that the request has, or can share with running requests."""
    request = state.requests[index]
    n_given: int = request.num_blocks if request.status == _RUNNING else n_hits_in_use(state, index)
    return n_given


@inlined
def update(state: State, i_batch: int) -> int:
    """Process the results of batch ``i_batch`` now; returns the number of delivered tokens.

    A token that was in flight when its request was paused is delivered, unless it is the first one
    of a context, which is computed again.
    """
    parts, counters = state.parts[i_batch], state.counters[0]
    n_delivered, n_ended = 0, 0
    for i_part in range(state.batches[i_batch].n_parts):
        part = parts[i_part]
        request = state.requests[part.request]
        is_stale = request.num_stale_output_tokens > 0
        request.num_in_flight_tokens -= part.num_tokens
        if is_stale:
            request.num_stale_output_tokens -= part.num_tokens
        part.n_delivered = 0
        if (
            request.status >= _STOPPED
            or not part.yields_token
            or (is_stale and part.kind == _CONTEXT)
        ):
            continue
        part.n_delivered = 1
        n_delivered += 1
        if request.first_token_ns == ABSENT:
            request.first_token_ns = counters.now_ns
        n_ended += _deliver_token(state, part.request, is_stale, part.kind == _CONTEXT)
    if n_ended:
        _drop_ended(state)
    return n_delivered


@compiled
def abort(state: State, index: int) -> None:
    """Abort a request; a waiting one stays in the queue, but is no longer counted."""
    status = state.requests[index].status
    if status >= _STOPPED:
        return
    if status == _UNSEEN:
        requests.end(state, index, _ABORTED, state.arrivals.abort_ns[index])
        return
    _end(state, index, _ABORTED, state.arrivals.abort_ns[index])
    _drop_ended(state)


@inlined
def _deliver_token(state: State, index: int, is_stale: bool, is_context: bool) -> int:  # noqa: FBT001
    """Deliver a token to a request; returns 1 if it is the last one, else 0."""
    config, request = state.config[0], state.requests[index]
    request.num_tokens += 1
    if is_context:
        store(state, index, request.num_tokens - 1)
    if config.is_async and not is_stale:
        request.num_output_placeholders -= 1
    num_output, now_ns = request.num_tokens - request.num_prompt_tokens, state.counters[0].now_ns
    if num_output == request.stop_tokens:
        _end(
            state, index, _STOPPED if request.stop_tokens < request.max_tokens else _LENGTH, now_ns
        )
        return 1
    if num_output >= request.max_tokens or request.num_tokens >= config.max_model_len:
        _end(state, index, _LENGTH, now_ns)
        return 1
    return 0


@compiled
def _end(state: State, index: int, status: int, when_ns: int) -> None:
    """End a request, whether or not it has blocks."""
    if state.requests[index].status == _RUNNING:
        release(state, index)
    else:
        state.counters[0].n_waiting -= 1
    requests.end(state, index, status, when_ns)


@compiled
def _drop_ended(state: State) -> None:
    """Remove ended requests from the list of active requests."""
    counters, active = state.counters[0], state.queue.running
    n_kept = 0
    for i_active in range(counters.n_active):
        index = active[i_active]
        if state.requests[index].status < _STOPPED:
            active[n_kept] = index
            n_kept += 1
    counters.n_active = n_kept
