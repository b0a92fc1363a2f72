"""Requests of a replica: arrival, waiting queue, batch slots, disconnection and end. Compiled.

Requests come from two sources. Independent requests are sorted by arrival time. Followers (requests
that are sent after others end) are in a heap once their arrival times are known. The earliest
request of both sources arrives first; of several at the same time the one with the smallest index.
The disconnections of clients are in another heap.

A slot is a place in the batch: one of ``max_num_seqs``, with its row of the block table. A request
takes the lowest free slot and keeps it while it runs. Free slots are a heap, the lowest first, as
in ``reference.batch.Slots``; ``start_over`` and ``lose_place`` are the same as the methods of
``reference.request.Request``.

The waiting queue is a ring (first come, first served) or a heap, ordered by (priority, arrival
time, index), as vLLM's by (priority, arrival time, id). Requests that were aborted or ended while
waiting stay in place until they reach the front, but ``Counters.n_waiting`` does not count them.
"""

from inferometer.records.columns import I32
from inferometer.records.types import ABSENT
from inferometer.simulate.compiling import compiled
from inferometer.simulate.kernel.state import NOTHING, Request, State
from inferometer.simulate.outcome import FAR_NS, Status

_PREEMPTED = int(Status.PREEMPTED)


@compiled
def lowest(state: State) -> int:
    """The lowest free slot, which ``take`` would assign; there must be one."""
    slot: int = state.queue.free_slots[0]
    return slot


@compiled
def take(state: State, index: int) -> None:
    """Assign the lowest free slot to a request."""
    counters, heap = state.counters[0], state.queue.free_slots
    state.requests[index].slot = heap[0]
    counters.n_slots -= 1
    size, last, place = counters.n_slots, heap[counters.n_slots], 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= last:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = last


@compiled
def release(state: State, index: int) -> None:
    """Free a request's slot, if it has one."""
    counters, heap, request = state.counters[0], state.queue.free_slots, state.requests[index]
    if request.slot == NOTHING:
        return
    place = counters.n_slots
    counters.n_slots += 1
    while place > 0 and heap[(place - 1) // 2] > request.slot:
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = request.slot
    request.slot = NOTHING


@compiled
def start_over(request: Request) -> None:
    """Reset a request so that it computes all of its tokens again; results in flight are stale."""
    request.num_computed_tokens = 0
    request.num_stale_output_tokens = request.num_in_flight_tokens
    request.num_output_placeholders = 0


@compiled
def lose_place(state: State, index: int) -> None:
    """Preempt a request (not vLLM's): reset it, and list it in ``Queue.preempted``."""
    counters, request = state.counters[0], state.requests[index]
    request.status = _PREEMPTED
    start_over(request)
    request.is_prefill_chunk = 1
    request.num_preemptions += 1
    state.queue.preempted[counters.n_preempted] = index
    counters.n_preempted += 1


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
        and _is_earlier(
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
    _push_time(state, state.arrivals.due, state.world[0].n_due, index, 0)
    state.world[0].n_due += 1
    if state.arrivals.abort_ns[index] != ABSENT:
        state.arrivals.abort_ns[index] += sent_ns
        _push_time(state, state.arrivals.leaving, state.world[0].n_leaving, index, 1)
        state.world[0].n_leaving += 1


@compiled
def _is_earlier(state: State, one: int, other: int) -> bool:
    first, second = state.requests[one].arrival_ns, state.requests[other].arrival_ns
    return first < second or (first == second and one < other)


@compiled
def _is_before_in_heap(state: State, one: int, other: int, is_leaving: int) -> bool:
    """Does request ``one`` precede ``other`` in the heap of disconnections, or of arrivals?"""
    if is_leaving:
        first, second = state.arrivals.abort_ns[one], state.arrivals.abort_ns[other]
        return first < second or (first == second and one < other)
    return _is_earlier(state, one, other)


@compiled
def _push_time(state: State, heap: I32, size: int, index: int, is_leaving: int) -> None:
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
