"""KV blocks: allocation, prefix caching, contiguous KV caches, and preemption. Compiled.

The same as ``reference/blocks.py``, on arrays; both mirror
``vllm/v1/core/{block_pool,kv_cache_manager}.py`` of vLLM 0.32.0.

Contiguous KV caches have one piece of memory per request (the same as
``reference.holes.ContiguousKvCache``). ``Memory.by_address`` lists the requests with a piece in
order of addresses. The first entry of a request's row of the block table is the first block of its
piece. A gap is the free memory between two neighbouring pieces.
"""

from typing import Final

from inferometer.records.types import ABSENT
from inferometer.simulate.compiling import compiled, inlined
from inferometer.simulate.kernel import groups, pool, requests
from inferometer.simulate.kernel.config import Config
from inferometer.simulate.kernel.state import NO_BLOCK, NOTHING, Counters, Request, State
from inferometer.simulate.outcome import Status, StepLog

_STOPPED = int(Status.STOPPED)
_ANY_NUMBER: Final = 2**40


@compiled
def admit_in_one_piece(state: State, index: int) -> bool:
    """Place a request into the first gap with room for all its tokens; False if there is none."""
    config, counters, request = state.config[0], state.counters[0], state.requests[index]
    n_blocks = _n_needed(config, request)
    if n_blocks > counters.n_free - (config.watermark_blocks if counters.n_running > 0 else 0):
        return False
    place = 0
    while place <= counters.n_pieces and _gap(state, place, 0) < n_blocks:
        place += 1
    if place > counters.n_pieces:
        return False
    start = _end_before(state, place, 0)
    requests.take(state, index)
    state.memory.block_table[request.slot, 0] = start
    request.num_blocks = n_blocks
    for later in range(counters.n_pieces, place, -1):
        state.memory.by_address[later] = state.memory.by_address[later - 1]
    state.memory.by_address[place] = index
    counters.n_pieces += 1
    counters.n_free -= n_blocks
    return True


@compiled
def free_piece(state: State, index: int) -> None:
    """Free a request's piece of memory, and its slot."""
    counters, request = state.counters[0], state.requests[index]
    if request.slot == NOTHING:
        return
    n_kept = 0
    for place in range(counters.n_pieces):
        if state.memory.by_address[place] != index:
            state.memory.by_address[n_kept] = state.memory.by_address[place]
            n_kept += 1
    counters.n_pieces = n_kept
    counters.n_free += request.num_blocks
    request.num_blocks = 0
    requests.release(state, index)


@compiled
def take_moved(state: State) -> None:
    """Complete the moves that have ended; drop all others except the one under way."""
    counters, moves, n_left = state.counters[0], state.memory.moves, 0
    for i_move in range(counters.n_moves):
        move = moves[i_move]
        request = state.requests[move.request]
        if move.end_ns <= counters.now_ns:
            counters.n_moved_blocks += move.n_blocks
            if request.slot != NOTHING:
                state.memory.block_table[request.slot, 0] = move.start
        elif move.begin_ns < counters.now_ns and request.slot != NOTHING:
            first = moves[0]
            first.request, first.start = move.request, move.start
            first.n_blocks, first.begin_ns, first.end_ns = (
                move.n_blocks,
                move.begin_ns,
                move.end_ns,
            )
            n_left = 1
    counters.n_moves = counters.is_moving = n_left


@compiled
def plan_moves(state: State) -> None:
    """Plan moves of pieces towards address 0 that make room for the largest waiting request.

    Only requests that fit into the free memory as a whole are considered.
    """
    counters = state.counters[0]
    wanted = _largest_wanted(state, counters.n_free)
    begin_ns: int = state.memory.moves[0].end_ns if counters.is_moving else counters.now_ns
    last = _last_gap(state, wanted)
    first = _first_gap(state, wanted, last)
    start = _end_before(state, first, 1)
    for place in range(first, last):
        index = state.memory.by_address[place]
        move = state.memory.moves[counters.n_moves]
        move.request, move.start, move.begin_ns = index, start, begin_ns
        move.n_blocks = state.requests[index].num_blocks
        begin_ns += (move.n_blocks * state.config[0].move_block_ps + 500) // 1000
        move.end_ns = begin_ns
        start += move.n_blocks
        counters.n_moves += 1


@compiled
def note_holes(state: State, log: StepLog, row: int) -> None:
    """Log the fragmentation of a contiguous KV cache at a step.

    Free blocks, the largest gap, the blocks to move before the largest waiting request fits, and
    the blocks moved since the last step.
    """
    config, counters, largest = state.config[0], state.counters[0], 0
    for place in range(counters.n_pieces + 1):
        largest = max(largest, _gap(state, place, 0))
    wanted = _largest_wanted(state, _ANY_NUMBER)
    log.free_blocks[row] = counters.n_free
    log.largest_hole_blocks[row] = largest
    log.compaction_debt_blocks[row] = 0 if wanted <= largest else _debt(state, wanted)
    log.moved_blocks[row] = counters.n_moved_blocks if config.is_compacting else ABSENT
    counters.n_moved_blocks = 0


@compiled
def _debt(state: State, wanted: int) -> int:
    """The fewest blocks to move so that neighbouring gaps join to one of ``wanted`` blocks.

    A piece in motion counts in full. -1 if all gaps together are too small.
    """
    counters = state.counters[0]
    if wanted > counters.n_free:
        return -1
    last = _last_gap(state, wanted)
    n_moved: int = state.memory.moves[0].n_blocks if counters.is_moving else 0
    for place in range(_first_gap(state, wanted, last), last):
        n_moved += state.requests[state.memory.by_address[place]].num_blocks
    return n_moved


@compiled
def _last_gap(state: State, wanted: int) -> int:
    """Index of the last gap in the run of neighbouring gaps that is cheapest to join.

    The run has ``wanted`` free blocks, and the pieces within it have the fewest blocks to move.
    """
    counters = state.counters[0]
    least, found = state.config[0].n_kv_blocks + 1, 0
    first, n_free, n_moved = 0, 0, 0
    for last in range(counters.n_pieces + 1):
        if last > 0:
            n_moved += state.requests[state.memory.by_address[last - 1]].num_blocks
        n_free += _gap(state, last, 1)
        while first < last and n_free - _gap(state, first, 1) >= wanted:
            n_free -= _gap(state, first, 1)
            n_moved -= state.requests[state.memory.by_address[first]].num_blocks
            first += 1
        if n_free >= wanted and n_moved < least:
            least, found = n_moved, last
    return found


@compiled
def _first_gap(state: State, wanted: int, last: int) -> int:
    """Index of the first gap in the shortest run up to ``last`` with ``wanted`` free blocks."""
    first = last
    n_free = _gap(state, last, 1)
    while n_free < wanted:
        first -= 1
        n_free += _gap(state, first, 1)
    return first


@compiled
def _largest_wanted(state: State, n_most: int) -> int:
    """Blocks that the largest waiting request needs, among those that need at most ``n_most``."""
    counters, size, most = state.counters[0], len(state.queue.waiting), 0
    for i_waiting in range(counters.waiting_size):
        place = counters.waiting_head + i_waiting
        request = state.requests[state.queue.waiting[place - size if place >= size else place]]
        if request.status < _STOPPED:
            n_blocks = _n_needed(state.config[0], request)
            if n_blocks <= n_most:
                most = max(most, n_blocks)
    return most


@compiled
def _gap(state: State, place: int, is_settled: int) -> int:
    """Free blocks before the piece at this place in ``by_address``, or after the last piece.

    ``is_settled``: as after the move under way; otherwise a piece in motion occupies all blocks
    from its new start to its present end.
    """
    counters = state.counters[0]
    start: int = state.config[0].n_kv_blocks
    if place < counters.n_pieces:
        start = _start(state, place, 1)
    return start - _end_before(state, place, is_settled)


@compiled
def _end_before(state: State, place: int, is_settled: int) -> int:
    """First block after the piece before this place in ``by_address``; 0 at the first place."""
    if place == 0:
        return 0
    end: int = (
        _start(state, place - 1, is_settled)
        + state.requests[state.memory.by_address[place - 1]].num_blocks
    )
    return end


@compiled
def _start(state: State, place: int, is_settled: int) -> int:
    """First block of a piece: at present, or (``is_settled``) after the move under way."""
    index = state.memory.by_address[place]
    start: int = state.memory.block_table[state.requests[index].slot, 0]
    if is_settled and state.counters[0].is_moving and state.memory.moves[0].request == index:
        start = state.memory.moves[0].start
    return start


@compiled
def _n_needed(config: Config, request: Request) -> int:
    """Blocks of a request's piece: for all its tokens, or with Orca for max_model_len."""
    n_tokens: int = config.max_model_len
    if not config.is_orca:
        n_tokens = min(request.num_prompt_tokens + request.max_tokens, n_tokens)
    n_blocks: int = (n_tokens + config.block_size - 1) // config.block_size
    return n_blocks


@compiled
def find_hits(state: State, index: int) -> int:
    """The number of cached blocks with a prefix of this request (vLLM: get_computed_blocks).

    The blocks are written to the block table's row of the next slot; nothing is allocated yet.
    """
    if state.config[0].sliding_window > 0:
        return groups.find_hits(state, index)
    slot = requests.lowest(state)
    request = state.requests[index]
    n_max: int = (request.num_tokens - 1) // pool.block_size(state, pool.number_of(state, index))
    for i_block in range(n_max):
        block = state.memory.first_equal[state.contents[request.content_start + i_block]]
        if block == NO_BLOCK:
            n_max = i_block
            break
        state.memory.block_table[slot, i_block] = block
    n_hits: int = max(n_max - state.config[0].is_recomputing_last_block, 0)
    return n_hits


@compiled
def admit(state: State, index: int, num_new_tokens: int, n_hits: int) -> bool:
    """Allocate a slot for a waiting request, its prefix hits and blocks for its next tokens.

    Returns False and changes nothing if there are too few blocks.
    """
    config, request = state.config[0], state.requests[index]
    if config.is_contiguous:
        return admit_in_one_piece(state, index)
    if config.sliding_window > 0:
        return groups.admit(state, index, num_new_tokens, n_hits)
    slot, number = requests.lowest(state), pool.number_of(state, index)
    size, n_spare = pool.block_size(state, number), spare_blocks(state, slot, n_hits, number)
    n_reserved = _n_blocks(min(request.num_tokens, config.max_model_len), size)
    n_reserved += config.num_state_blocks
    if config.is_reserving and max(n_reserved - n_hits, 0) > n_spare:
        return False
    num_done = request.num_computed_tokens + n_hits * size
    num_slots = min(num_done + num_new_tokens + config.num_lookahead_tokens, config.max_model_len)
    n_needed = _n_blocks(
        max(num_slots, request.num_tokens) if config.is_sarathi else num_slots, size
    )
    n_needed += config.num_state_blocks
    if max(n_needed - n_hits, 0) > n_spare:
        return False
    touch(state, slot, n_hits, number)
    requests.take(state, index)
    request.num_cached_blocks = n_hits
    take(state, slot, n_hits, n_needed, number)
    request.num_blocks = max(n_hits, n_needed)
    cache_blocks(state, index, min(num_done + num_new_tokens, request.num_tokens))
    return True


@inlined
def extend(state: State, index: int, num_new_tokens: int) -> bool:
    """Allocate blocks for a running request's next tokens.

    Returns False and changes nothing if there are too few blocks.
    """
    config, request = state.config[0], state.requests[index]
    if config.is_contiguous:
        return True
    if config.sliding_window > 0:
        return groups.extend(state, index, num_new_tokens)
    number = pool.number_of(state, index)
    size = pool.block_size(state, number)
    num_slots = request.num_computed_tokens + num_new_tokens
    num_reserved = min(num_slots + config.num_lookahead_tokens, config.max_model_len)
    if num_reserved > (request.num_blocks - config.num_state_blocks) * size:
        n_needed = _n_blocks(num_reserved, size) + config.num_state_blocks
        if n_needed - request.num_blocks > pool.n_free(state, number):
            return False
        take(state, request.slot, request.num_blocks, n_needed, number)
        request.num_blocks = n_needed
    cache_blocks(state, index, min(num_slots, request.num_tokens))
    return True


@inlined
def cache_blocks(state: State, index: int, num_tokens: int) -> None:
    """Add the blocks that a request's first ``num_tokens`` tokens fill to the prefix cache."""
    config, request = state.config[0], state.requests[index]
    if not config.is_caching:
        return
    if config.sliding_window > 0:
        groups.cache_blocks(state, index, num_tokens)
        return
    size = pool.block_size(state, pool.number_of(state, index))
    while (request.num_cached_blocks + 1) * size <= num_tokens:
        block = state.memory.block_table[request.slot, request.num_cached_blocks]
        pool.register(
            state, block, state.contents[request.content_start + request.num_cached_blocks]
        )
        request.num_cached_blocks += 1


@compiled
def free(state: State, index: int) -> None:
    """Free all blocks and the slot of a request."""
    request = state.requests[index]
    drop_host_blocks(state.counters[0], request)
    if state.config[0].is_contiguous:
        free_piece(state, index)
        return
    if state.config[0].sliding_window > 0:
        groups.free(state, index)
        return
    if request.slot == NOTHING:
        return
    give_back(state, request.slot, request.num_blocks, pool.number_of(state, index))
    requests.release(state, index)
    request.num_blocks = 0
    request.num_cached_blocks = 0


@compiled
def spare_blocks(state: State, row: int, n_hits: int, number: int) -> int:
    """Blocks that an admission may allocate besides its prefix hits (the row's first blocks)."""
    n_spare: int = pool.n_free(state, number)
    for i_block in range(n_hits):
        n_spare -= state.memory.blocks[state.memory.block_table[row, i_block]].ref_count == 0
    if state.counters[0].n_running > 0:
        n_spare -= pool.watermark_blocks(state, number)
    return n_spare


@compiled
def touch(state: State, row: int, n_hits: int, number: int) -> None:
    """Add a reference to the first ``n_hits`` blocks of a row, which hold a cached prefix.

    Blocks that were free leave the free queue.
    """
    for i_block in range(n_hits):
        pool.touch(state, state.memory.block_table[row, i_block], number)


@compiled
def take(state: State, row: int, n_owned: int, n_needed: int, number: int) -> None:
    """Allocate blocks from the front of the free queue until a row has ``n_needed``.

    What was cached in these blocks is evicted. Where requests are steady, blocks are only counted.
    """
    if state.config[0].is_steady:
        state.counters[0].n_free -= max(n_needed - n_owned, 0)
        return
    for i_block in range(n_owned, n_needed):
        state.memory.block_table[row, i_block] = pool.take(state, number)


@compiled
def give_back(state: State, row: int, n_blocks: int, number: int) -> None:
    """Free the first ``n_blocks`` blocks of a row, the last one first.

    Uncached blocks go to the front of the free queue, cached ones to its end.
    """
    if state.config[0].is_steady:
        state.counters[0].n_free += n_blocks
        return
    after = NOTHING
    for i_block in range(n_blocks - 1, -1, -1):
        after = pool.give_back(state, state.memory.block_table[row, i_block], after, number)


@compiled
def drop_host_blocks(counters: Counters, request: Request) -> None:
    """Free a request's blocks in host memory."""
    counters.n_host_free += request.num_host_blocks
    request.num_host_blocks = 0


@compiled
def _n_blocks(num_tokens: int, block_size: int) -> int:
    return (num_tokens + block_size - 1) // block_size


_PREEMPTED = int(Status.PREEMPTED)


@compiled
def make_room_for_waiting(state: State, i_batch: int) -> None:
    """Preempt running requests until the next waiting one has a slot and blocks (policy "srpt").

    Only requests with more tokens left than the waiting one are preempted.
    """
    config, counters = state.config[0], state.counters[0]
    while counters.n_running > 0:
        index = requests.peek(state)
        if index == NOTHING:
            return
        request, i_victim = state.requests[index], victim(state)
        n_blocks = groups.n_of_request(config, request.num_tokens, 0) + config.watermark_blocks
        has_room = counters.n_running < config.max_num_active and n_blocks <= counters.n_free
        if (
            has_room
            or request.num_stale_output_tokens > 0
            or num_left(state, state.queue.running[i_victim]) <= request.priority
        ):
            return
        preempt(state, i_batch, i_victim)


@compiled
def victim(state: State) -> int:
    """Index in ``Queue.running`` of the request to preempt.

    First come, first served: the last admitted. Priorities: the least urgent, then the latest
    arrival. Shortest remaining first: the one with most tokens left, then the latest arrival.
    """
    n_running: int = state.counters[0].n_running
    if not state.config[0].is_priority:
        return n_running - 1
    worst, is_srpt = 0, state.config[0].is_srpt
    for i_running in range(1, n_running):
        one, other = state.queue.running[i_running], state.queue.running[worst]
        own = num_left(state, one) if is_srpt else state.requests[one].priority
        most = num_left(state, other) if is_srpt else state.requests[other].priority
        if own > most or (
            own == most and state.requests[one].arrival_ns > state.requests[other].arrival_ns
        ):
            worst = i_running
    return worst


@compiled
def victim_in_pool(state: State, index: int) -> int:
    """Index in ``Queue.running`` of the request to preempt among those of this request's pool."""
    number, worst = state.memory.pool_of[index], NOTHING
    for i_running in range(state.counters[0].n_running):
        one = state.queue.running[i_running]
        if state.memory.pool_of[one] == number and (
            worst == NOTHING
            or not state.config[0].is_priority
            or _is_less_urgent(state.requests[one], state.requests[state.queue.running[worst]])
        ):
            worst = i_running
    return worst


@compiled
def _is_less_urgent(one: Request, other: Request) -> bool:
    """Is ``one`` less urgent by priority, or the later arrival of the same priority?"""
    is_later: bool = one.arrival_ns > other.arrival_ns
    return one.priority > other.priority or (one.priority == other.priority and is_later)


@compiled
def num_left(state: State, index: int) -> int:
    """The largest number of tokens that a request may still compute, prompt included."""
    request = state.requests[index]
    n_tokens: int = (
        min(request.num_prompt_tokens + request.max_tokens, state.config[0].max_model_len)
        - request.num_computed_tokens
    )
    return n_tokens


@compiled
def drop_from_step(state: State, i_batch: int, index: int) -> int:
    """Remove a request from the step that is being formed; returns the tokens it had there."""
    batch, parts = state.batches[i_batch], state.parts[i_batch]
    n_tokens, n_kept = 0, 0
    for i_part in range(batch.n_parts):
        if parts[i_part].request == index:
            n_tokens = parts[i_part].num_tokens
        else:
            parts[n_kept].request = parts[i_part].request
            parts[n_kept].num_tokens = parts[i_part].num_tokens
            n_kept += 1
    batch.n_parts = n_kept
    return n_tokens


@compiled
def preempt(state: State, i_batch: int, i_running: int) -> None:
    """Preempt a running request: free its blocks and return it to the waiting queue.

    Its KV cache is swapped to the host if there is room, and recomputed otherwise.
    """
    counters, running = state.counters[0], state.queue.running
    index = running[i_running]
    for i_later in range(i_running + 1, counters.n_running):
        running[i_later - 1] = running[i_later]
    counters.n_running -= 1
    free(state, index)
    request = state.requests[index]
    request.status = _PREEMPTED
    request.num_spec_tokens = 0
    request.num_preemptions += 1
    if not _swap_out(state, i_batch, request):
        requests.start_over(request)
    if state.config[0].is_srpt:
        request.priority = num_left(state, index)
    requests.put_back(state, index)
    state.queue.preempted[counters.n_preempted] = index
    counters.n_preempted += 1


@compiled
def _swap_out(state: State, i_batch: int, request: Request) -> bool:
    """Copy a request's KV blocks to host memory; returns False if there is no room.

    Includes the tokens of steps in flight, which will have been computed by then.
    """
    counters, block_size = state.counters[0], state.config[0].block_size
    n_blocks = (request.num_computed_tokens + block_size - 1) // block_size
    if n_blocks > counters.n_host_free:
        return False
    request.num_host_blocks = n_blocks
    counters.n_host_free -= n_blocks
    state.batches[i_batch].num_swapped_blocks += n_blocks
    return True
