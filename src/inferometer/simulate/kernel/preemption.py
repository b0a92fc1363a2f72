"""vLLM's preemption (0.32.0): choice of the victim, and its state afterwards. Compiled."""

from inferometer.simulate.compiling import compiled
from inferometer.simulate.kernel import blocks, groups, queue, slots
from inferometer.simulate.kernel.state import NOTHING, Request, State
from inferometer.simulate.outcome import Status

_PREEMPTED = int(Status.PREEMPTED)


@compiled
def make_room_for_waiting(state: State, i_batch: int) -> None:
    """Preempt running requests until the next waiting one has a slot and blocks (policy "srpt").

    Only requests with more tokens left than the waiting one are preempted.
    """
    config, counters = state.config[0], state.counters[0]
    while counters.n_running > 0:
        index = queue.peek(state)
        if index == NOTHING:
            return
        request, i_victim = state.requests[index], victim(state)
        n_blocks = groups.n_of_request(config, request.num_tokens, 0) + config.watermark_blocks
        has_room = counters.n_running < config.max_num_active and n_blocks <= counters.n_free
        if (
            has_room
            or request.num_stale_output_tokens > 0
            or num_left(state, state.queue.running[i_victim]) <= request.priority
        ):
            return
        preempt(state, i_batch, i_victim)


@compiled
def victim(state: State) -> int:
    """Index in ``Queue.running`` of the request to preempt.

    First come, first served: the last admitted. Priorities: the least urgent, then the latest
    arrival. Shortest remaining first: the one with most tokens left, then the latest arrival.
    """
    n_running: int = state.counters[0].n_running
    if not state.config[0].is_priority:
        return n_running - 1
    worst, is_srpt = 0, state.config[0].is_srpt
    for i_running in range(1, n_running):
        one, other = state.queue.running[i_running], state.queue.running[worst]
        own = num_left(state, one) if is_srpt else state.requests[one].priority
        most = num_left(state, other) if is_srpt else state.requests[other].priority
        if own > most or (
            own == most and state.requests[one].arrival_ns > state.requests[other].arrival_ns
        ):
            worst = i_running
    return worst


@compiled
def victim_in_pool(state: State, index: int) -> int:
    """Index in ``Queue.running`` of the request to preempt among those of this request's pool."""
    number, worst = state.memory.pool_of[index], NOTHING
    for i_running in range(state.counters[0].n_running):
        one = state.queue.running[i_running]
        if state.memory.pool_of[one] == number and (
            worst == NOTHING
            or not state.config[0].is_priority
            or _is_less_urgent(state.requests[one], state.requests[state.queue.running[worst]])
        ):
            worst = i_running
    return worst


@compiled
def _is_less_urgent(one: Request, other: Request) -> bool:
    """Is ``one`` less urgent by priority, or the later arrival of the same priority?"""
    is_later: bool = one.arrival_ns > other.arrival_ns
    return one.priority > other.priority or (one.priority == other.priority and is_later)


@compiled
def num_left(state: State, index: int) -> int:
    """The largest number of tokens that a request may still compute, prompt included."""
    request = state.requests[index]
    n_tokens: int = (
        min(request.num_prompt_tokens + request.max_tokens, state.config[0].max_model_len)
        - request.num_computed_tokens
    )
    return n_tokens


@compiled
def drop_from_step(state: State, i_batch: int, index: int) -> int:
    """Remove a request from the step that is being formed; returns the tokens it had there."""
    batch, parts = state.batches[i_batch], state.parts[i_batch]
    n_tokens, n_kept = 0, 0
    for i_part in range(batch.n_parts):
        if parts[i_part].request == index:
            n_tokens = parts[i_part].num_tokens
        else:
            parts[n_kept].request = parts[i_part].request
            parts[n_kept].num_tokens = parts[i_part].num_tokens
            n_kept += 1
    batch.n_parts = n_kept
    return n_tokens


@compiled
def preempt(state: State, i_batch: int, i_running: int) -> None:
    """Preempt a running request: free its blocks and return it to the waiting queue.

    Its KV cache is swapped to the host if there is room, and recomputed otherwise.
    """
    counters, running = state.counters[0], state.queue.running
    index = running[i_running]
    for i_later in range(i_running + 1, counters.n_running):
        running[i_later - 1] = running[i_later]
    counters.n_running -= 1
    blocks.free(state, index)
    request = state.requests[index]
    request.status = _PREEMPTED
    request.num_spec_tokens = 0
    request.num_preemptions += 1
    if not _swap_out(state, i_batch, request):
        slots.start_over(request)
    if state.config[0].is_srpt:
        request.priority = num_left(state, index)
    queue.put_back(state, index)
    state.queue.preempted[counters.n_preempted] = index
    counters.n_preempted += 1


@compiled
def _swap_out(state: State, i_batch: int, request: Request) -> bool:
    """Copy a request's KV blocks to host memory; returns False if there is no room.

    Includes the tokens of steps in flight, which will have been computed by then.
    """
    counters, block_size = state.counters[0], state.config[0].block_size
    n_blocks = (request.num_computed_tokens + block_size - 1) // block_size
    if n_blocks > counters.n_host_free:
        return False
    request.num_host_blocks = n_blocks
    counters.n_host_free -= n_blocks
    state.batches[i_batch].num_swapped_blocks += n_blocks
    return True
