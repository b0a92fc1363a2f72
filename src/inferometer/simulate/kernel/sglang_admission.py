"""SGLang's order of the waiting queue, and its admission of requests to a prefill batch. Compiled.

The same as ``reference/sglang_order.py`` and ``reference/sglang_admission.py``, on arrays.
``State.sglang`` has the budgets of the batch that is being formed (SGLang's ``PrefillAdder``).
"""

from enum import IntEnum

from inferometer.simulate.compiling import compiled
from inferometer.simulate.kernel import sglang_cache as cache, sglang_cache as tree
from inferometer.simulate.kernel.state import NOTHING, State
from inferometer.simulate.outcome import Status
from inferometer.simulate.sglang_config import (
    CLIP_MAX_NEW_TOKENS,
    MATCHED_QUEUE,
    N_DRAWS,
    QUEUE_ORDERS,
    REFRESH_INTERVAL,
    SHARED_TOKENS,
)

_STOPPED = int(Status.STOPPED)
_FCFS, _LPM, _DFS_WEIGHT = (QUEUE_ORDERS.index(name) for name in ("fcfs", "lpm", "dfs-weight"))
_LOF, _RANDOM = (QUEUE_ORDERS.index(name) for name in ("lof", "random"))


class Verdict(IntEnum):
    """Whether the scheduler may admit another waiting request (SGLang's ``AddReqResult``)."""

    CONTINUE = 0
    NO_TOKEN = 1
    """No: there is no memory."""
    OTHER = 2
    """No: the batch's budget of tokens is spent."""


CONTINUE = int(Verdict.CONTINUE)
NO_TOKEN = int(Verdict.NO_TOKEN)
OTHER = int(Verdict.OTHER)


@compiled
def max_new_tokens(state: State, index: int) -> int:
    """Largest output length of this request."""
    config, request = state.config[0], state.requests[index]
    size = config.block_size
    paged = (request.num_prompt_tokens + size - 1) // size * size
    n_tokens: int = min(
        request.max_tokens, config.max_model_len + 5 - request.num_prompt_tokens - 1
    )
    n_tokens = min(n_tokens, config.n_kv_blocks * size - paged - size - 1)
    return max(0, n_tokens)


@compiled
def begin(state: State) -> None:
    """Set the budgets of a new batch, less the memory that decoding requests will still need."""
    config, own = state.config[0], state.sglang[0]
    n_mixed = own.n_generating if config.is_mixed_chunk else 0
    own.n_input_left = config.max_num_batched_tokens - n_mixed
    own.n_chunk_left = config.chunk_tokens - n_mixed
    own.current_offset = n_mixed
    total = float(n_mixed)
    for i_running in range(own.n_generating):
        total += n_expected(state, state.queue.running[i_running])
    own.total_offset = total


@compiled
def n_expected(state: State, index: int) -> float:
    """Expected further output tokens of a running request."""
    request, ratio = state.requests[index], 1.0
    if not state.config[0].is_reserving:
        ratio = state.sglang[0].new_token_ratio
    n_output = request.num_tokens - request.num_prompt_tokens
    n_tokens: float = min(max_new_tokens(state, index) - n_output, CLIP_MAX_NEW_TOKENS) * ratio
    return n_tokens


@compiled
def verdict(state: State) -> int:
    """May one more request be admitted?"""
    own, config = state.sglang[0], state.config[0]
    if (
        total_left(state) <= 0
        or state.counters[0].n_free * config.block_size - own.current_offset <= 0
    ):
        return NO_TOKEN
    is_full = own.n_input_left <= 0 or (config.is_chunked == 1 and own.n_chunk_left <= 0)
    return OTHER if is_full else CONTINUE


@compiled
def go_on(state: State, index: int) -> int:
    """Add the next chunk of the partly computed prompt; returns its tokens, 0 if none fit."""
    own, request, size = state.sglang[0], state.requests[index], state.config[0].block_size
    n_left: int = min(own.n_chunk_left, int(total_left(state)))
    if n_left <= 0:
        n_left = own.n_chunk_left
    n_remaining = request.num_tokens - request.num_computed_tokens
    n_tokens: int = min(n_remaining, n_left)
    n_pages = (request.num_computed_tokens + n_tokens + size - 1) // size
    if max(n_pages - request.num_blocks, 0) * size > state.counters[0].n_free * size:
        return 0
    own.cut = index if n_tokens < n_remaining else NOTHING
    _reserve(
        state,
        n_tokens,
        0 if n_tokens < n_remaining else min(max_new_tokens(state, index), CLIP_MAX_NEW_TOKENS),
    )
    return n_tokens


@compiled
def try_to_add(state: State, index: int, node: int, num_cached_tokens: int) -> tuple[int, int]:
    """Add a waiting request with as many tokens of its prompt as fit.

    Returns the ``Verdict`` on the next request, and the number of tokens (0: not added).
    """
    request = state.requests[index]
    n_tokens = request.num_tokens - num_cached_tokens
    max_new = max_new_tokens(state, index)
    n_output = request.num_tokens - request.num_prompt_tokens
    tree.lock(state, node)
    answer, n_fitting = _fitting(
        state, n_tokens, min(max(max_new - n_output, 0), CLIP_MAX_NEW_TOKENS)
    )
    tree.unlock(state, node)
    if answer != CONTINUE:
        return answer, 0
    cache.open_row(state, index, node, num_cached_tokens)
    request.num_computed_tokens = num_cached_tokens
    state.sglang[0].n_chosen += 1
    if n_fitting < n_tokens:
        state.sglang[0].cut = index
    _reserve(state, n_fitting, 0 if n_fitting < n_tokens else min(max_new, CLIP_MAX_NEW_TOKENS))
    return verdict(state), n_fitting


@compiled
def _fitting(state: State, n_tokens: int, n_planned: int) -> tuple[int, int]:
    """The ``Verdict`` on a request, and how many of its ``n_tokens`` prompt tokens fit.

    ``n_planned``: output tokens for which memory must remain.
    """
    own, size = state.sglang[0], state.config[0].block_size
    if n_tokens + n_planned + size >= total_left(state):
        return NO_TOKEN, 0
    paged = (n_tokens + size - 1) // size * size
    if not state.config[0].is_chunked:
        if own.n_chosen > 0 and paged >= own.n_input_left:
            return OTHER, 0
        return CONTINUE, n_tokens
    if paged > own.n_chunk_left:
        n_tokens = own.n_chunk_left // size * size
    return (CONTINUE, n_tokens) if n_tokens > 0 else (OTHER, 0)


@compiled
def _reserve(state: State, n_tokens: int, n_planned: int) -> None:
    """Take a request's prompt and planned output tokens out of the batch's budgets."""
    own, size = state.sglang[0], state.config[0].block_size
    paged = (n_tokens + size - 1) // size * size
    own.total_offset += paged + size + n_planned
    own.current_offset += paged + size
    own.n_input_left -= paged
    own.n_chunk_left -= paged


@compiled
def total_left(state: State) -> float:
    """Free memory in tokens, less the expected output of all running requests."""
    left: float = (
        state.counters[0].n_free * state.config[0].block_size - state.sglang[0].total_offset
    )
    return left


@compiled
def order_queue(state: State) -> None:
    """Sort waiting requests into the order of admission."""
    config, order = state.config[0], state.config[0].queue_order
    if order == _LPM and state.counters[0].n_waiting > MATCHED_QUEUE:
        order = _FCFS
    if order == _FCFS and config.priority_sign == 0:  # the queue is in order already
        _refresh_prefixes(state)
        return
    n_waiting = _gather(state)
    if order == _FCFS:
        _sort_by_priority(state, n_waiting)
    elif order == _LOF:
        _sort_by_longest_output(state, n_waiting)
    elif order == _RANDOM:
        _shuffle(state, n_waiting)
    elif order == _LPM:
        _sort_by_longest_prefix(state, n_waiting)
    else:
        sort_by_weight(state, n_waiting)
    _write_queue(state, n_waiting)
    if order not in (_LPM, _DFS_WEIGHT):
        _refresh_prefixes(state)


@compiled
def _refresh_prefixes(state: State) -> None:
    """Mark the cached prefixes of the first waiting requests as recently used."""
    own = state.sglang[0]
    if not state.config[0].is_caching or state.counters[0].n_waiting == 0:
        return
    if own.n_looks % REFRESH_INTERVAL == 0:
        n_first = min(_gather(state), MATCHED_QUEUE)
        for i_waiting in range(n_first - 1, -1, -1):
            cache.match(
                state, state.skipped[i_waiting], state.requests[state.skipped[i_waiting]].num_tokens
            )
    own.n_looks += 1


@compiled
def _sort_by_longest_prefix(state: State, n_waiting: int) -> None:
    """Sort by longest cached prefix; of those with the same uncached prefix only one is early."""
    config, own = state.config[0], state.sglang[0]
    own.n_orders += 1
    n_shared = (SHARED_TOKENS + config.block_size - 1) // config.block_size
    for i_waiting in range(n_waiting):
        request = state.requests[state.skipped[i_waiting]]
        num_cached, _ = cache.match(state, state.skipped[i_waiting], request.num_tokens)
        request.queue_key = -min(num_cached, request.num_tokens - 1)
        if num_cached <= SHARED_TOKENS and request.num_tokens // config.block_size >= n_shared:
            content = state.contents[request.content_start + n_shared - 1]
            if state.memory.last_equal[content] == own.n_orders:
                request.queue_key = 1  # behind all others
            state.memory.last_equal[content] = own.n_orders
    _sort(state, n_waiting)


@compiled
def _sort_by_longest_output(state: State, n_waiting: int) -> None:
    """Sort by priority (if enabled), then by largest output length."""
    for i_waiting in range(n_waiting):
        state.requests[state.skipped[i_waiting]].queue_key = -max_new_tokens(
            state, state.skipped[i_waiting]
        )
    sign = state.config[0].priority_sign
    for i_next in range(1, n_waiting):
        index, place = state.skipped[i_next], i_next
        urgency, key = sign * state.requests[index].priority, state.requests[index].queue_key
        while place > 0:
            before = state.requests[state.skipped[place - 1]]
            if sign * before.priority < urgency or (
                sign * before.priority == urgency and before.queue_key <= key
            ):
                break
            state.skipped[place] = state.skipped[place - 1]
            place -= 1
        state.skipped[place] = index


@compiled
def _shuffle(state: State, n_waiting: int) -> None:
    """Shuffle the waiting requests (Fisher and Yates) with the draws in ``State.chances``."""
    own, queue = state.sglang[0], state.skipped
    for place in range(n_waiting - 1, 0, -1):
        other = state.chances[own.n_drawn % len(state.chances)] * (place + 1) // N_DRAWS
        own.n_drawn += 1
        index = queue[place]
        queue[place] = queue[other]
        queue[other] = index


@compiled
def _write_queue(state: State, n_waiting: int) -> None:
    """Write the requests in ``State.skipped`` back to the waiting queue, in their order."""
    counters = state.counters[0]
    for i_waiting in range(n_waiting):
        state.queue.waiting[i_waiting] = state.skipped[i_waiting]
    counters.waiting_head = 0
    counters.waiting_size = n_waiting


@compiled
def _gather(state: State) -> int:
    """List the waiting requests in ``State.skipped``, in order; returns their number."""
    counters, n_waiting = state.counters[0], 0
    for i_place in range(counters.waiting_size):
        index = state.queue.waiting[(counters.waiting_head + i_place) % len(state.queue.waiting)]
        if state.requests[index].status < _STOPPED:
            state.skipped[n_waiting] = index
            n_waiting += 1
    return n_waiting


@compiled
def _sort_by_priority(state: State, n_waiting: int) -> None:
    """Sort by priority, then by the time of joining the queue.

    Insertion sort: requests that were sorted in an earlier step are already in order.
    """
    sign = state.config[0].priority_sign
    for i_next in range(1, n_waiting):
        index, place = state.skipped[i_next], i_next
        key, turn = sign * state.requests[index].priority, state.requests[index].turn
        while place > 0:
            before = state.requests[state.skipped[place - 1]]
            if sign * before.priority < key or (
                sign * before.priority == key and before.turn < turn
            ):
                break
            state.skipped[place] = state.skipped[place - 1]
            place -= 1
        state.skipped[place] = index


@compiled
def _sort(state: State, n_waiting: int) -> None:
    """Sort the requests in ``State.skipped`` by ``Request.queue_key`` (stable)."""
    for i_next in range(1, n_waiting):
        index = state.skipped[i_next]
        key, place = state.requests[index].queue_key, i_next
        while place > 0 and state.requests[state.skipped[place - 1]].queue_key > key:
            state.skipped[place] = state.skipped[place - 1]
            place -= 1
        state.skipped[place] = index


# SGLang's queue order dfs-weight; the same as in ``reference/sglang_order.py``.
# The nodes at which the prefixes of waiting requests end, and their ancestors, are linked to a
# separate tree (``first_child``, ``next_sibling``). It is dismantled while it is traversed: the
# scratch fields of each node are 0 again once all its requests are listed.


@compiled
def sort_by_weight(state: State, n_waiting: int) -> None:
    """Sort by SGLang's dfs-weight: depth first through the radix tree.

    The child with most waiting requests below it comes first; a node's own requests come last.
    """
    for i_waiting in range(n_waiting):  # first match all: a match may split another's node
        index = state.skipped[i_waiting]
        _, state.requests[index].node = cache.match(state, index, state.requests[index].num_tokens)
    for i_waiting in range(n_waiting):
        _count(state, state.skipped[i_waiting])
    node, n_noted = 0, 0
    while n_noted < n_waiting:
        child = _take_heaviest_child(state, node)
        if child != 0:
            node = child
            continue
        n_noted = _note_requests(state, node, n_noted)
        node = state.memory.nodes[node].parent


@compiled
def _count(state: State, index: int) -> None:
    """Count a waiting request at its node and on the whole path up to the root."""
    nodes, node = state.memory.nodes, state.requests[index].node
    if nodes[node].first_waiting == 0:
        nodes[node].first_waiting = index + 1
    else:
        state.requests[nodes[node].last_waiting - 1].queue_key = index + 1
    nodes[node].last_waiting = index + 1
    state.requests[index].queue_key = 0
    while node != 0:
        if nodes[node].weight == 0:
            nodes[node].next_sibling = nodes[nodes[node].parent].first_child
            nodes[nodes[node].parent].first_child = node
        nodes[node].weight += 1
        node = nodes[node].parent


@compiled
def _take_heaviest_child(state: State, node: int) -> int:
    """Remove and return the child with the most waiting requests, of equals the oldest; 0: none."""
    nodes, best, before_best, before = state.memory.nodes, 0, 0, 0
    child = nodes[node].first_child
    while child != 0:
        is_heavier = best == 0 or nodes[child].weight > nodes[best].weight
        if is_heavier or (
            nodes[child].weight == nodes[best].weight and nodes[child].born < nodes[best].born
        ):
            best, before_best = child, before
        before = child
        child = nodes[child].next_sibling
    if best == 0:
        return 0
    if before_best == 0:
        nodes[node].first_child = nodes[best].next_sibling
    else:
        nodes[before_best].next_sibling = nodes[best].next_sibling
    nodes[best].weight = 0
    nodes[best].next_sibling = 0
    return best


@compiled
def _note_requests(state: State, node: int, n_noted: int) -> int:
    """Append the requests that wait at this node to the sorted list; returns the list's length."""
    at = state.memory.nodes[node]
    waiting = at.first_waiting
    while waiting != 0:
        state.skipped[n_noted] = waiting - 1
        n_noted += 1
        waiting = state.requests[waiting - 1].queue_key
    at.first_waiting = 0
    at.last_waiting = 0
    return n_noted
