"""The waiting queue: a ring (first come, first served) or a heap (priorities). Compiled.

The heap is ordered by (priority, arrival time, index), as vLLM's by (priority, arrival time, id).
Requests that were aborted or ended while waiting stay in place until they reach the front, but
``Counters.n_waiting`` does not count them.
"""

from inferometer.simulate.compiling import compiled
from inferometer.simulate.kernel.state import NOTHING, State
from inferometer.simulate.outcome import Status

_STOPPED = int(Status.STOPPED)


@compiled
def add(state: State, index: int) -> None:
    """Add a request at the end of the queue, or at the place of its priority."""
    counters, size = state.counters[0], len(state.queue.waiting)
    counters.n_waiting += 1
    if state.config[0].is_priority:
        _push(state, index)
        return
    place = counters.waiting_head + counters.waiting_size
    state.queue.waiting[place - size if place >= size else place] = index
    counters.waiting_size += 1


@compiled
def put_back(state: State, index: int) -> None:
    """Return a request to the front of the queue, or to the place of its priority."""
    counters = state.counters[0]
    counters.n_waiting += 1
    if state.config[0].is_priority:
        _push(state, index)
        return
    counters.waiting_head = (
        counters.waiting_head - 1 if counters.waiting_head > 0 else len(state.queue.waiting) - 1
    )
    state.queue.waiting[counters.waiting_head] = index
    counters.waiting_size += 1


@compiled
def peek(state: State) -> int:
    """The first waiting request, which stays in the queue; ``NOTHING`` if none waits."""
    counters = state.counters[0]
    while counters.waiting_size > 0:
        index: int = state.queue.waiting[counters.waiting_head]
        if state.requests[index].status < _STOPPED:
            return index
        _drop(state)
    return NOTHING


@compiled
def pop(state: State) -> None:
    """Remove the request that ``peek`` has just returned."""
    _drop(state)
    state.counters[0].n_waiting -= 1


@compiled
def _drop(state: State) -> None:
    """Remove the first entry of the queue; ``Counters.n_waiting`` is not changed."""
    counters = state.counters[0]
    counters.waiting_size -= 1
    if state.config[0].is_priority:
        state.queue.waiting[0] = state.queue.waiting[counters.waiting_size]
        _sink(state)
        return
    counters.waiting_head = (
        counters.waiting_head + 1 if counters.waiting_head + 1 < len(state.queue.waiting) else 0
    )


@compiled
def _is_before(state: State, one: int, other: int) -> bool:
    first, second = state.requests[one], state.requests[other]
    if first.priority != second.priority:
        is_before: bool = first.priority < second.priority
        return is_before
    return first.arrival_ns < second.arrival_ns or (
        first.arrival_ns == second.arrival_ns and one < other
    )


@compiled
def _push(state: State, index: int) -> None:
    counters, heap = state.counters[0], state.queue.waiting
    place = counters.waiting_size
    counters.waiting_size += 1
    while place > 0:
        parent = (place - 1) // 2
        if not _is_before(state, index, heap[parent]):
            break
        heap[place] = heap[parent]
        place = parent
    heap[place] = index


@compiled
def _sink(state: State) -> None:
    """Restore the heap after its first entry was replaced."""
    heap, size = state.queue.waiting, state.counters[0].waiting_size
    if size == 0:
        return
    index, place = heap[0], 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _is_before(state, heap[child + 1], heap[child]):
            child += 1
        if not _is_before(state, heap[child], index):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = index
