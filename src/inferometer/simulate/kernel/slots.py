"""Batch slots of requests, and what a preemption resets. Compiled.

A slot is a place in the batch: one of ``max_num_seqs``, with its row of the block table. A request
takes the lowest free slot and keeps it while it runs. Free slots are a heap, the lowest first, as
in ``reference.batch.Seats``; ``start_over`` and ``lose_place`` are the same as the methods of
``reference.request.Request``.
"""

from inferometer.simulate.compiling import compiled
from inferometer.simulate.kernel.state import NOTHING, Request, State
from inferometer.simulate.outcome import Status

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
