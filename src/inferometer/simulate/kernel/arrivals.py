"""Arrivals of requests, disconnections of their clients, and ends of requests. Compiled.

Requests come from two sources. Independent requests are sorted by arrival time. Followers (requests
that are sent after others end) are in a heap once their arrival times are known. The earliest
request of both sources arrives first; of several at the same time the one with the smallest index.
The disconnections of clients are in another heap.
"""

from inferometer.records.columns import I32
from inferometer.records.types import ABSENT
from inferometer.simulate.compiling import compiled
from inferometer.simulate.kernel.state import NOTHING, State
from inferometer.simulate.outcome import FAR_NS


@compiled
def next_ns(state: State) -> int:
    """Time of the next arrival; ``FAR_NS`` if no arrival time is known."""
    world = state.world[0]
    when_ns = FAR_NS
    if world.next_arrival < len(state.arrivals.arrival_order):
        when_ns = state.requests[state.arrivals.arrival_order[world.next_arrival]].arrival_ns
    if world.n_due > 0:
        when_ns = min(when_ns, state.requests[state.arrivals.due[0]].arrival_ns)
    return when_ns


@compiled
def take_next(state: State) -> int:
    """Remove and return the next request to arrive; there must be one (see ``next_ns``)."""
    world = state.world[0]
    has_own = world.next_arrival < len(state.arrivals.arrival_order)
    if world.n_due > 0 and not (
        has_own
        and _is_before(
            state, state.arrivals.arrival_order[world.next_arrival], state.arrivals.due[0]
        )
    ):
        world.n_due -= 1
        return _pop(state, state.arrivals.due, world.n_due, 0)
    world.next_arrival += 1
    index: int = state.arrivals.arrival_order[world.next_arrival - 1]
    return index


@compiled
def next_abort_ns(state: State) -> int:
    """Time when the next client disconnects; ``FAR_NS`` if no such time is known."""
    if state.world[0].n_leaving == 0:
        return FAR_NS
    first: int = state.arrivals.leaving[0]
    when_ns: int = state.arrivals.abort_ns[first]
    return when_ns


@compiled
def take_next_abort(state: State) -> int:
    """Remove and return the request whose client disconnects next; there must be one."""
    state.world[0].n_leaving -= 1
    return _pop(state, state.arrivals.leaving, state.world[0].n_leaving, 1)


@compiled
def end(state: State, index: int, status: int, when_ns: int) -> None:
    """End a request of this replica with a final status, and schedule its followers."""
    state.counters[0].n_ended += 1
    if len(state.arrivals.ended) > 0:
        state.arrivals.ended[state.world[0].n_ended] = index
        state.world[0].n_ended += 1
    end_outside(state, index, status, when_ns)


@compiled
def end_outside(state: State, index: int, status: int, when_ns: int) -> None:
    """End a request that was sent to no replica, and schedule its followers."""
    request = state.requests[index]
    request.status = status
    request.finished_ns = when_ns
    if len(state.arrivals.follower) > 0:
        after: int = state.arrivals.follower[index]
        while after != NOTHING:
            _count_awaited_end(state, after, when_ns)
            after = state.arrivals.next_follower[after]
        if len(state.arrivals.joins) > 0 and state.arrivals.joins[index] != NOTHING:
            joined: int = state.arrivals.joins[index]
            _count_awaited_end(state, joined, when_ns)


@compiled
def _count_awaited_end(state: State, index: int, when_ns: int) -> None:
    """Record that one predecessor of a request has ended.

    After the last one, schedule the request and its companions, which wait for the same ends.
    """
    last_ns = when_ns
    if len(state.arrivals.joins) > 0:
        last_ns = max(state.arrivals.last_end_ns[index], when_ns)
        state.arrivals.last_end_ns[index] = last_ns
        state.arrivals.n_awaited[index] -= 1
        if state.arrivals.n_awaited[index] > 0:
            return
    _schedule_follower(state, index, last_ns)
    if len(state.arrivals.next_companion) > 0:
        beside: int = state.arrivals.next_companion[index]
        while beside != NOTHING:
            _schedule_follower(state, beside, last_ns)
            beside = state.arrivals.next_companion[beside]


@compiled
def _schedule_follower(state: State, index: int, last_end_ns: int) -> None:
    """Set the arrival time of a follower whose predecessors have all ended; add it to the heap."""
    sent_ns = max(state.arrivals.earliest_ns[index], last_end_ns + state.arrivals.think_ns[index])
    state.requests[index].sent_ns = sent_ns
    state.requests[index].arrival_ns = sent_ns
    _push(state, state.arrivals.due, state.world[0].n_due, index, 0)
    state.world[0].n_due += 1
    if state.arrivals.abort_ns[index] != ABSENT:
        state.arrivals.abort_ns[index] += sent_ns
        _push(state, state.arrivals.leaving, state.world[0].n_leaving, index, 1)
        state.world[0].n_leaving += 1


@compiled
def _is_before(state: State, one: int, other: int) -> bool:
    first, second = state.requests[one].arrival_ns, state.requests[other].arrival_ns
    return first < second or (first == second and one < other)


@compiled
def _is_before_in_heap(state: State, one: int, other: int, is_leaving: int) -> bool:
    """Does request ``one`` precede ``other`` in the heap of disconnections, or of arrivals?"""
    if is_leaving:
        first, second = state.arrivals.abort_ns[one], state.arrivals.abort_ns[other]
        return first < second or (first == second and one < other)
    return _is_before(state, one, other)


@compiled
def _push(state: State, heap: I32, size: int, index: int, is_leaving: int) -> None:
    place = size
    while place > 0 and _is_before_in_heap(state, index, heap[(place - 1) // 2], is_leaving):
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = index


@compiled
def _pop(state: State, heap: I32, size: int, is_leaving: int) -> int:
    """Remove and return the first entry of a heap that has ``size`` entries afterwards."""
    first: int = heap[0]
    last, place = heap[size], 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _is_before_in_heap(state, heap[child + 1], heap[child], is_leaving):
            child += 1
        if not _is_before_in_heap(state, heap[child], last, is_leaving):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = last
    return first
