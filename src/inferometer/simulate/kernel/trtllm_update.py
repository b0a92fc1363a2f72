"""What changes when a step of TensorRT-LLM is done, or when a client goes away? Compiled.

The same as ``reference.trtllm.TrtllmScheduler.update`` and ``abort``, on arrays.
"""

from inferometer.records.types import ABSENT, PartKind
from inferometer.simulate.compiling import compiled, inlined
from inferometer.simulate.kernel import arrivals, trtllm, trtllm_blocks as tree
from inferometer.simulate.kernel.state import State
from inferometer.simulate.status import Status

_CONTEXT = int(PartKind.CONTEXT)
_UNSEEN, _RUNNING, _STOPPED = int(Status.UNSEEN), int(Status.RUNNING), int(Status.STOPPED)
_LENGTH, _ABORTED = int(Status.LENGTH), int(Status.ABORTED)


@inlined
def update(state: State, slot: int) -> int:
    """Process what batch ``slot`` yielded, at the present time; returns how many tokens were delivered.

    A token that was in flight when its request was paused is delivered, unless a context yielded
    it: that comes again.
    """
    parts, counters = state.parts[slot], state.counters[0]
    n_delivered, n_ended = 0, 0
    for i_part in range(state.batches[slot].n_parts):
        part = parts[i_part]
        request = state.requests[part.request]
        is_stale = request.num_stale_output_tokens > 0
        request.num_in_flight_tokens -= part.num_tokens
        if is_stale:
            request.num_stale_output_tokens -= part.num_tokens
        part.n_delivered = 0
        if (
            request.status >= _STOPPED
            or not part.yields_token
            or (is_stale and part.kind == _CONTEXT)
        ):
            continue
        part.n_delivered = 1
        n_delivered += 1
        if request.first_token_ns == ABSENT:
            request.first_token_ns = counters.now_ns
        n_ended += _deliver_token(state, part.request, is_stale, part.kind == _CONTEXT)
    if n_ended:
        _drop_ended(state)
    return n_delivered


@compiled
def abort(state: State, index: int) -> None:
    """A client has gone. Who is in the queue stays there, uncounted."""
    status = state.requests[index].status
    if status >= _STOPPED:
        return
    if status == _UNSEEN:
        arrivals.end(state, index, _ABORTED, state.abort_ns[index])
        return
    _end(state, index, _ABORTED, state.abort_ns[index])
    _drop_ended(state)


@inlined
def _deliver_token(state: State, index: int, is_stale: bool, is_context: bool) -> int:  # noqa: FBT001 -- compiled code takes no keywords
    """A request got a token; returns 1 where that ends it."""
    config, request = state.config[0], state.requests[index]
    request.num_tokens += 1
    if is_context:
        tree.store(state, index, request.num_tokens - 1)
    if config.is_async and not is_stale:
        request.num_output_placeholders -= 1
    num_output, now_ns = request.num_tokens - request.num_prompt_tokens, state.counters[0].now_ns
    if num_output == request.stop_tokens:
        _end(
            state, index, _STOPPED if request.stop_tokens < request.max_tokens else _LENGTH, now_ns
        )
        return 1
    if num_output >= request.max_tokens or request.num_tokens >= config.max_model_len:
        _end(state, index, _LENGTH, now_ns)
        return 1
    return 0


@compiled
def _end(state: State, index: int, status: int, when_ns: int) -> None:
    if state.requests[index].status == _RUNNING:
        trtllm.release(state, index)
    else:
        state.counters[0].n_waiting -= 1
    arrivals.end(state, index, status, when_ns)


@compiled
def _drop_ended(state: State) -> None:
    """Close the gaps in the list of active requests."""
    counters, active = state.counters[0], state.running
    n_kept = 0
    for i_active in range(counters.n_active):
        index = active[i_active]
        if state.requests[index].status < _STOPPED:
            active[n_kept] = index
            n_kept += 1
    counters.n_active = n_kept
