"""What changes when a step is done, or when a client goes away? Compiled.

The same as ``reference.Scheduler.update`` and ``abort``, on arrays.
"""

from inferometer.records.types import ABSENT
from inferometer.simulate.acceptance import n_accepted
from inferometer.simulate.compiling import compiled, inlined
from inferometer.simulate.kernel import arrivals, blocks, handover
from inferometer.simulate.kernel.state import State
from inferometer.simulate.status import Status

_RUNNING, _STOPPED = int(Status.RUNNING), int(Status.STOPPED)
compiled_n_accepted = compiled(n_accepted)
_LENGTH, _ABORTED, _PREFILLED = int(Status.LENGTH), int(Status.ABORTED), int(Status.PREFILLED)


@inlined
def update(state: State, slot: int) -> int:
    """Process what batch ``slot`` yielded, at the present time; returns how many tokens were delivered."""
    parts, counters = state.parts[slot], state.counters[0]
    n_delivered, n_stopped = 0, 0
    num_new_drafts: int = 0 if state.config[0].is_async else state.config[0].num_spec_tokens
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
            or (is_stale and state.config[0].is_prefill_pool)
        ):
            continue
        num_tokens_before, num_accepted = request.num_tokens, 0
        if part.num_spec_tokens > 0:
            num_accepted = _verify(state, slot, i_part, is_stale)
        if request.first_token_ns == ABSENT:
            request.first_token_ns = counters.now_ns
        n_stopped += _deliver_tokens(state, part.request, 1 + num_accepted, is_stale)
        part.n_delivered = request.num_tokens - num_tokens_before
        n_delivered += part.n_delivered
        if num_new_drafts > 0:
            request.num_spec_tokens = num_new_drafts
    if n_stopped:
        _drop_finished(state)
    return n_delivered


@compiled
def abort(state: State, index: int) -> None:
    """A client has gone. Who waits stays in the queue, uncounted."""
    request = state.requests[index]
    was = request.status
    arrivals.end(state, index, _ABORTED, state.abort_ns[index])
    blocks.free(state, index)
    if was == _RUNNING:
        _drop_finished(state)
    else:
        state.counters[0].n_waiting -= 1


@compiled
def _verify(state: State, slot: int, i_part: int, is_stale: bool) -> int:  # noqa: FBT001 -- compiled code takes no keywords
    """How many drafts were accepted? The others were computed for nothing, and are taken back."""
    part = state.parts[slot, i_part]
    request, num_accepted = state.requests[part.request], 0
    if not part.has_padded_drafts:
        n_outputs = request.num_tokens - request.num_prompt_tokens
        num_accepted = compiled_n_accepted(
            state.chances, part.request, n_outputs, part.num_spec_tokens
        )
    if not is_stale:
        request.num_computed_tokens -= part.num_spec_tokens - num_accepted
        if state.config[0].is_async:
            request.num_output_placeholders -= part.num_spec_tokens - num_accepted
    return num_accepted


@inlined
def _deliver_tokens(state: State, index: int, num_tokens: int, is_stale: bool) -> int:  # noqa: FBT001 -- compiled code takes no keywords
    """A request got tokens, those beyond its end not counted; returns 1 where that finishes one that runs."""
    config, request = state.config[0], state.requests[index]
    was_running = request.status == _RUNNING
    n_wanted = request.num_prompt_tokens + request.stop_tokens - request.num_tokens
    num_tokens = min(num_tokens, n_wanted, config.max_model_len - request.num_tokens)
    request.num_tokens += num_tokens
    num_output = request.num_tokens - request.num_prompt_tokens
    status = request.status
    if num_output == request.stop_tokens:
        status = _STOPPED if request.stop_tokens < request.max_tokens else _LENGTH
    elif request.num_tokens >= config.max_model_len or num_output >= request.max_tokens:
        status = _LENGTH
    if config.is_async:
        if not is_stale:
            request.num_output_placeholders -= num_tokens
        if was_running:
            blocks.cache_blocks(
                state, index, request.num_computed_tokens - request.num_output_placeholders
            )
    return 0 if status < _STOPPED else _finish(state, index, status)


@compiled
def _finish(state: State, index: int, status: int) -> int:
    """A request is done; returns 1 where it runs."""
    was_running = state.requests[index].status == _RUNNING
    if state.config[0].is_prefill_pool:
        status = handover.status_after_prefill(state, index)
    if status == _PREFILLED:
        state.requests[index].status = _PREFILLED
        handover.leave(state, index)
    else:
        arrivals.end(state, index, status, state.counters[0].now_ns)
        blocks.free(state, index)
    if was_running:
        return 1
    state.counters[0].n_waiting -= 1
    return 0


@compiled
def _drop_finished(state: State) -> None:
    """Close the gaps in the list of those that run."""
    counters, running = state.counters[0], state.running
    n_kept = 0
    for i_running in range(counters.n_running):
        index = running[i_running]
        if state.requests[index].status < _STOPPED:
            running[n_kept] = index
            n_kept += 1
    counters.n_running = n_kept
