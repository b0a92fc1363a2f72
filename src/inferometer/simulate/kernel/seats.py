"""In which slot of the batch does each request sit? The lowest free one, kept while it runs.

Compiled.

Free seats are a heap, the lowest at its top; ``reference.batch.Seats`` is the same.
"""

from inferometer.simulate.compiling import compiled
from inferometer.simulate.kernel.state import NOTHING, State


@compiled
def lowest(state: State) -> int:
    """The seat that ``take`` would give; there must be one."""
    seat: int = state.free_seats[0]
    return seat


@compiled
def take(state: State, index: int) -> None:
    """A request sits down."""
    counters, heap = state.counters[0], state.free_seats
    state.requests[index].seat = heap[0]
    counters.n_seats -= 1
    size, last, place = counters.n_seats, heap[counters.n_seats], 0
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
    """A request gets up, if it sat."""
    counters, heap, request = state.counters[0], state.free_seats, state.requests[index]
    if request.seat == NOTHING:
        return
    place = counters.n_seats
    counters.n_seats += 1
    while place > 0 and heap[(place - 1) // 2] > request.seat:
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = request.seat
    request.seat = NOTHING
