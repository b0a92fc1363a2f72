"""Where does each request's KV cache lie, if it has to lie in one piece? Compiled.

The same as ``reference.holes.ContiguousKvCache``, on arrays: ``by_address`` lists who has a piece,
in order of addresses; a piece begins at the first entry of its seat's row of the block table.
"""

from inferometer.simulate.compiling import compiled
from inferometer.simulate.kernel import seats
from inferometer.simulate.kernel.config import Config
from inferometer.simulate.kernel.state import NOTHING, Request, State
from inferometer.simulate.outcome import StepLog
from inferometer.simulate.status import Status

_STOPPED = int(Status.STOPPED)


@compiled
def admit(state: State, index: int) -> bool:
    """Seat a request in the first hole that holds all its tokens; False, and nothing changed, where there is none."""
    config, counters, request = state.config[0], state.counters[0], state.requests[index]
    n_blocks = _n_needed(config, request)
    if n_blocks > counters.n_free - (config.watermark_blocks if counters.n_running > 0 else 0):
        return False
    place = 0
    while place <= counters.n_pieces and _gap(state, place) < n_blocks:
        place += 1
    if place > counters.n_pieces:
        return False
    start = _end_before(state, place)
    seats.take(state, index)
    state.block_table[request.seat, 0] = start
    request.num_blocks = n_blocks
    for later in range(counters.n_pieces, place, -1):
        state.by_address[later] = state.by_address[later - 1]
    state.by_address[place] = index
    counters.n_pieces += 1
    counters.n_free -= n_blocks
    return True


@compiled
def free(state: State, index: int) -> None:
    """A request leaves a hole, and its seat."""
    counters, request = state.counters[0], state.requests[index]
    if request.seat == NOTHING:
        return
    n_kept = 0
    for place in range(counters.n_pieces):
        if state.by_address[place] != index:
            state.by_address[n_kept] = state.by_address[place]
            n_kept += 1
    counters.n_pieces = n_kept
    counters.n_free += request.num_blocks
    request.num_blocks = 0
    seats.release(state, index)


@compiled
def note(state: State, log: StepLog, row: int) -> None:
    """Log what is free, and what the largest of those that wait would need."""
    counters, largest = state.counters[0], 0
    for place in range(counters.n_pieces + 1):
        largest = max(largest, _gap(state, place))
    log.free_blocks[row] = counters.n_free
    log.largest_hole_blocks[row] = largest
    log.compaction_debt_blocks[row] = _debt(state, _largest_wanted(state))


@compiled
def _debt(state: State, wanted: int) -> int:
    """The fewest blocks between the first and the last of some neighbouring gaps that are enough together; -1 where all are not."""
    counters = state.counters[0]
    if wanted > counters.n_free:
        return -1
    least: int = state.config[0].n_kv_blocks
    first, n_free, n_moved = 0, 0, 0
    for last in range(counters.n_pieces + 1):
        if last > 0:
            n_moved += state.requests[state.by_address[last - 1]].num_blocks
        n_free += _gap(state, last)
        while first < last and n_free - _gap(state, first) >= wanted:
            n_free -= _gap(state, first)
            n_moved -= state.requests[state.by_address[first]].num_blocks
            first += 1
        if n_free >= wanted:
            least = min(least, n_moved)
    return least


@compiled
def _largest_wanted(state: State) -> int:
    """How many blocks does the largest of those that wait need?"""
    counters, size, most = state.counters[0], len(state.waiting), 0
    for i_waiting in range(counters.waiting_size):
        place = counters.waiting_head + i_waiting
        request = state.requests[state.waiting[place - size if place >= size else place]]
        if request.status < _STOPPED:
            most = max(most, _n_needed(state.config[0], request))
    return most


@compiled
def _gap(state: State, place: int) -> int:
    """The free blocks before a piece, or behind the last."""
    counters = state.counters[0]
    start: int = state.config[0].n_kv_blocks
    if place < counters.n_pieces:
        start = state.block_table[state.requests[state.by_address[place]].seat, 0]
    return start - _end_before(state, place)


@compiled
def _end_before(state: State, place: int) -> int:
    if place == 0:
        return 0
    request = state.requests[state.by_address[place - 1]]
    end: int = state.block_table[request.seat, 0] + request.num_blocks
    return end


@compiled
def _n_needed(config: Config, request: Request) -> int:
    n_tokens: int = config.max_model_len
    if not config.is_orca:
        n_tokens = min(request.num_prompt_tokens + request.max_tokens, n_tokens)
    n_blocks: int = (n_tokens + config.block_size - 1) // config.block_size
    return n_blocks
