"""What does a request lose that has to go?

Compiled; the same as ``reference.request.Request``'s methods of these names.
"""

from inferometer.simulate.compiling import compiled
from inferometer.simulate.kernel.state import Request, State
from inferometer.simulate.status import Status

_PREEMPTED = int(Status.PREEMPTED)


@compiled
def start_over(request: Request) -> None:
    """It will compute all of its tokens again; what is in flight yields tokens that count no more."""
    request.num_computed_tokens = 0
    request.num_stale_output_tokens = request.num_in_flight_tokens
    request.num_output_placeholders = 0


@compiled
def lose_place(state: State, index: int) -> None:
    """It starts over, and is told among those that had to go for this step."""
    counters, request = state.counters[0], state.requests[index]
    request.status = _PREEMPTED
    start_over(request)
    request.is_prefill_chunk = 1
    request.num_preemptions += 1
    state.preempted[counters.n_preempted] = index
    counters.n_preempted += 1
