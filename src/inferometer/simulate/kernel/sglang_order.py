"""In which order do SGLang's requests wait? Compiled; the same as ``reference.sglang.SglangScheduler``'s."""

from inferometer.simulate.compiling import compiled
from inferometer.simulate.kernel import sglang_cache as cache
from inferometer.simulate.kernel.state import State
from inferometer.simulate.reference.request import Status
from inferometer.simulate.sglang_config import MATCHED_QUEUE, REFRESH_INTERVAL, SHARED_TOKENS

_STOPPED = int(Status.STOPPED)


@compiled
def order_queue(state: State) -> None:
    """In order of arrival, or those first of whose prompts most is cached, but only one of those who share what is not."""
    config, counters, own = state.config[0], state.counters[0], state.sglang[0]
    if config.priority_sign != 0:
        n_waiting = _gather(state)
        _sort_by_priority(state, n_waiting)
        _put(state, n_waiting)
    if not config.is_caching or counters.n_waiting == 0:
        return
    if not config.is_longest_prefix_first or counters.n_waiting > MATCHED_QUEUE:
        if own.n_looks % REFRESH_INTERVAL == 0:
            n_first = _gather(state)
            for i_waiting in range(min(n_first, MATCHED_QUEUE) - 1, -1, -1):
                cache.match(state, state.skipped[i_waiting], state.requests[state.skipped[i_waiting]].num_tokens)
        own.n_looks += 1
        return
    own.n_orders += 1
    n_waiting, n_shared = _gather(state), (SHARED_TOKENS + config.block_size - 1) // config.block_size
    for i_waiting in range(n_waiting):
        request = state.requests[state.skipped[i_waiting]]
        num_cached, _ = cache.match(state, state.skipped[i_waiting], request.num_tokens)
        request.queue_key = -min(num_cached, request.num_tokens - 1)
        if num_cached <= SHARED_TOKENS and request.num_tokens // config.block_size >= n_shared:
            content = state.contents[request.content_start + n_shared - 1]
            if state.last_equal[content] == own.n_orders:
                request.queue_key = 1  # behind all others
            state.last_equal[content] = own.n_orders
    _sort(state, n_waiting)
    _put(state, n_waiting)


@compiled
def _put(state: State, n_waiting: int) -> None:
    """The queue is what was gathered, in its order."""
    counters = state.counters[0]
    for i_waiting in range(n_waiting):
        state.waiting[i_waiting] = state.skipped[i_waiting]
    counters.waiting_head = 0
    counters.waiting_size = n_waiting


@compiled
def _gather(state: State) -> int:
    """Who waits, in order, into ``skipped``; returns how many."""
    counters, n_waiting = state.counters[0], 0
    for i_place in range(counters.waiting_size):
        index = state.waiting[(counters.waiting_head + i_place) % len(state.waiting)]
        if state.requests[index].status < _STOPPED:
            state.skipped[n_waiting] = index
            n_waiting += 1
    return n_waiting


@compiled
def _sort_by_priority(state: State, n_waiting: int) -> None:
    """The most urgent first, of equals who came first; whoever was sorted before is in order already."""
    sign = state.config[0].priority_sign
    for i_next in range(1, n_waiting):
        index, place = state.skipped[i_next], i_next
        key, turn = sign * state.requests[index].priority, state.requests[index].turn
        while place > 0:
            before = state.requests[state.skipped[place - 1]]
            if sign * before.priority < key or (sign * before.priority == key and before.turn < turn):
                break
            state.skipped[place] = state.skipped[place - 1]
            place -= 1
        state.skipped[place] = index


@compiled
def _sort(state: State, n_waiting: int) -> None:
    """By key; equal ones keep their order."""
    for i_next in range(1, n_waiting):
        index = state.skipped[i_next]
        key, place = state.requests[index].queue_key, i_next
        while place > 0 and state.requests[state.skipped[place - 1]].queue_key > key:
            state.skipped[place] = state.skipped[place - 1]
            place -= 1
        state.skipped[place] = index


__all__ = ["order_queue"]
