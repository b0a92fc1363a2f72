"""What changes when a step of SGLang is done, or when a client goes away? Compiled.

The same as ``reference.sglang.SglangScheduler.update`` and ``abort``, on arrays.
"""

from inferometer.records.types import ABSENT, PartKind
from inferometer.simulate.compiling import compiled, inlined
from inferometer.simulate.kernel import arrivals, seats, sglang_cache as cache
from inferometer.simulate.kernel.sglang_admission import max_new_tokens
from inferometer.simulate.kernel.state import NOTHING, State
from inferometer.simulate.status import Status

_CONTEXT = int(PartKind.CONTEXT)
_UNSEEN, _RUNNING, _STOPPED = int(Status.UNSEEN), int(Status.RUNNING), int(Status.STOPPED)
_LENGTH, _ABORTED = int(Status.LENGTH), int(Status.ABORTED)


@inlined
def update(state: State, slot: int) -> int:
    """Process what batch ``slot`` yielded; returns how many tokens.

    What was in flight when its request was thrown out comes again.
    """
    parts, n_delivered = state.parts[slot], 0
    for i_part in range(state.batches[slot].n_parts):
        part = parts[i_part]
        request = state.requests[part.request]
        is_stale = request.num_stale_output_tokens > 0
        request.num_in_flight_tokens -= part.num_tokens
        if is_stale:
            request.num_stale_output_tokens -= part.num_tokens
        part.n_delivered = 0
        if request.status >= _STOPPED or is_stale or not part.yields_token:
            continue
        part.n_delivered = 1
        n_delivered += 1
        if request.first_token_ns == ABSENT:
            request.first_token_ns = state.counters[0].now_ns
        _deliver_token(state, part.request, part.kind == _CONTEXT)
    return n_delivered


@compiled
def abort(state: State, index: int) -> None:
    """A client has gone; what was computed stays in the tree.

    Who waits stays in the queue, uncounted.
    """
    status, when_ns = state.requests[index].status, state.abort_ns[index]
    if status >= _STOPPED:
        return
    if status == _RUNNING:
        _end(state, index, _ABORTED, when_ns)
        return
    if status != _UNSEEN:
        state.counters[0].n_waiting -= 1
    arrivals.end(state, index, _ABORTED, when_ns)


@inlined
def _deliver_token(state: State, index: int, is_first: bool) -> None:  # noqa: FBT001 -- compiled code takes no keywords
    request, now_ns = state.requests[index], state.counters[0].now_ns
    request.num_tokens += 1
    if state.config[0].is_async:
        request.num_output_placeholders -= 1
    num_output = request.num_tokens - request.num_prompt_tokens
    if num_output == request.stop_tokens:
        _end(
            state, index, _STOPPED if request.stop_tokens < request.max_tokens else _LENGTH, now_ns
        )
    elif num_output >= max_new_tokens(state, index):
        _end(state, index, _LENGTH, now_ns)
    elif is_first:
        cache.checkpoint(state, index, request.num_tokens - 1)


@compiled
def _end(state: State, index: int, status: int, when_ns: int) -> None:
    request = state.requests[index]
    cache.checkpoint(state, index, min(request.num_computed_tokens, request.num_tokens))
    cache.release(state, index)
    seats.release(state, index)
    state.counters[0].n_running -= 1
    if state.sglang[0].cut == index:
        state.sglang[0].cut = NOTHING
    arrivals.end(state, index, status, when_ns)
