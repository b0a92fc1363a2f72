"""Steady requests: each gets one token in each step. Compiled.

Most requests of most steps are such: nothing but their numbers of tokens changes until they end,
need a block, or are aborted. From ``begin`` on the scheduler only counts such a request
(``Batch.n_steady``). ``end`` brings it, and the batches in flight, to where single steps would have
brought them.

Only where it makes no difference which blocks a request has: vLLM's rules without a prefix cache,
drafts, stages, windows or swapping, and where no parts of steps are recorded
(``Config.is_steady``).
Arrays of ``Queue`` have the state of the request in each place of ``Queue.running``.
"""

from inferometer.records.types import ABSENT, PartKind
from inferometer.simulate.compiling import compiled, inlined
from inferometer.simulate.kernel import blocks
from inferometer.simulate.kernel.state import State
from inferometer.simulate.outcome import FAR_NS

_GENERATION = int(PartKind.GENERATION)


@inlined
def may_be(state: State, budget: int) -> bool:
    """May running requests be steady in this step? Not if one might be preempted."""
    config, counters = state.config[0], state.counters[0]
    n_most_blocks = 2 * counters.n_running + budget // config.block_size
    is_steady: bool = config.is_steady != 0 and n_most_blocks <= counters.n_free
    if not is_steady:
        end_from(state, 0, counters.current_step - 1)
    return is_steady


@inlined
def add_part(
    state: State,
    i_batch: int,
    i_running: int,
    n_tokens: int,
    is_steady: bool,  # noqa: FBT001
) -> None:
    """Add the tokens of a running request to the step; from now on it may be steady."""
    if not (is_steady and n_tokens == 1 and begin(state, i_running)):
        batch = state.batches[i_batch]
        part = state.parts[i_batch, batch.n_parts]
        part.request = state.queue.running[i_running]
        part.num_tokens = n_tokens
        batch.n_parts += 1


@inlined
def begin(state: State, row: int) -> bool:
    """Make the request in this place steady from the step on that is being formed, if it is.

    Its blocks for that step are allocated. Steps after which it ends are scheduled singly.
    """
    config, counters, queue = state.config[0], state.counters[0], state.queue
    request = state.requests[queue.running[row]]
    num_coming = request.num_output_placeholders
    if (
        request.is_prefill_chunk
        or request.num_stale_output_tokens > 0
        or (request.first_token_ns == ABSENT and num_coming == 0)  # prefilled elsewhere
        or request.num_computed_tokens != request.num_tokens - 1 + num_coming
    ):
        return False
    n_outputs = min(request.stop_tokens, request.max_tokens)
    num_most = min(request.num_prompt_tokens + n_outputs, config.max_model_len)
    offset = request.num_computed_tokens - counters.current_step + 1
    end = num_most - 1 - offset
    if end <= counters.current_step:
        return False
    queue.steady_offset[row], queue.steady_end[row] = offset, end
    queue.steady_since[row] = counters.current_step
    _set_due(state, row)
    counters.n_steady += 1
    counters.steady_offset += offset
    return True


@inlined
def _set_due(state: State, row: int) -> None:
    """Set the step before which a steady request ends to be so, or needs a block."""
    config, queue = state.config[0], state.queue
    n_of_tokens = state.requests[queue.running[row]].num_blocks - config.num_state_blocks
    needs_block = n_of_tokens * config.block_size - queue.steady_offset[row] + 1
    queue.steady_due[row] = min(queue.steady_end[row], needs_block)


@inlined
def goes_on(state: State, row: int) -> bool:
    """Is the running request in this place steady, and also in the step that is being formed?

    Then its block for the step is allocated; else it is scheduled singly.
    """
    step, due = state.counters[0].current_step, state.queue.steady_due[row]
    if due > step:
        return True
    if due == 0:
        return False
    if state.queue.steady_end[row] <= step:
        end(state, row, step - 1)
        return False
    extend(state, row)
    return True


@compiled
def extend(state: State, row: int) -> None:
    """Allocate the block that a steady request needs for the step that is being formed."""
    index, step = state.queue.running[row], state.counters[0].current_step
    state.requests[index].num_computed_tokens = state.queue.steady_offset[row] + step - 1
    blocks.extend(state, index, 1)
    _set_due(state, row)


@compiled
def extend_all(state: State) -> int:
    """Allocate blocks for the step that is being formed; returns the next one that needs some.

    All running requests are steady.
    """
    next_due, queue, step = FAR_NS, state.queue, state.counters[0].current_step
    for row in range(state.counters[0].n_running):
        if queue.steady_due[row] == step:
            extend(state, row)
        next_due = min(next_due, queue.steady_due[row])
    return next_due


@inlined
def context_tokens(state: State) -> int:
    """Context tokens of the steady requests in the step that is being formed."""
    counters = state.counters[0]
    n_tokens: int = counters.n_steady * counters.current_step + counters.steady_offset
    return n_tokens


@compiled
def n_certain_steps(state: State) -> int:
    """The number of steps before one after which a request ends, if all running ones are steady."""
    config, counters, n_running = state.config[0], state.counters[0], state.counters[0].n_running
    batch = state.batches[counters.first_batch]
    if (
        counters.n_waiting > 0
        or n_running == 0
        or counters.n_steady != n_running
        or n_running > config.max_num_batched_tokens
        or counters.n_in_flight != config.is_async
        or counters.n_busy_in_flight != config.is_async
        or (config.is_async and batch.n_steady != n_running)
    ):
        return 0
    first_end = FAR_NS
    for row in range(n_running):
        first_end = min(first_end, state.queue.steady_end[row])
    n_steps: int = first_end - 1 - counters.current_step
    return n_steps


@compiled
def end(state: State, row: int, last_step: int) -> None:
    """Update a steady request whose last step was ``last_step``; it is scheduled singly again."""
    config, counters, queue = state.config[0], state.counters[0], state.queue
    index, n_in_flight = queue.running[row], counters.n_in_flight
    request, num_computed = state.requests[index], queue.steady_offset[row] + last_step
    n_steps = last_step + 1 - queue.steady_since[row]
    n_flying = min(n_in_flight, n_steps)
    request.num_computed_tokens = num_computed
    request.num_tokens += n_steps - n_flying
    request.num_in_flight_tokens += n_flying
    if config.is_async and n_steps > 0:
        request.num_output_placeholders += n_flying
        request.next_decode_eligible_step = last_step + 1
    for i_flying in range(n_in_flight):
        n_later = n_in_flight - 1 - i_flying
        if n_later < n_flying:
            i_batch = (counters.first_batch + i_flying) % config.depth
            batch = state.batches[i_batch]
            part = state.parts[i_batch, batch.n_parts]
            part.request = index
            part.num_tokens = part.yields_token = 1
            part.num_computed_tokens = num_computed - 1 - n_later
            part.slot, part.kind = request.slot, _GENERATION
            part.num_spec_tokens = part.has_padded_drafts = 0
            batch.n_parts += 1
            batch.n_steady -= 1
    queue.steady_due[row] = 0
    counters.n_steady -= 1
    counters.steady_offset -= queue.steady_offset[row]


@compiled
def end_from(state: State, first: int, last_step: int) -> None:
    """``end`` all steady requests from this place on."""
    if state.counters[0].n_steady > 0:
        for row in range(first, state.counters[0].n_running):
            if state.queue.steady_due[row] > 0:
                end(state, row, last_step)


@compiled
def end_one(state: State, index: int) -> None:
    """``end`` this request, if it is steady."""
    if state.counters[0].n_steady > 0:
        for row in range(state.counters[0].n_running):
            if state.queue.running[row] == index and state.queue.steady_due[row] > 0:
                end(state, row, state.counters[0].current_step)


@inlined
def move(state: State, row: int, other: int) -> None:
    """Move the running request in one place to another."""
    queue = state.queue
    queue.running[other] = queue.running[row]
    queue.steady_due[other] = queue.steady_due[row]
    queue.steady_end[other] = queue.steady_end[row]
    queue.steady_offset[other] = queue.steady_offset[row]
    queue.steady_since[other] = queue.steady_since[row]
