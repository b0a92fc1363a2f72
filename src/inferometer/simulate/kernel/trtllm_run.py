"""TensorRT-LLM's fast path: a run of consecutive steps in which every running request generates.

As ``kernel/decode_run.py``, which has vLLM's: each step of the run is timed and logged, but the
requests are updated only at its end, or when one of them needs a block. Requests that have no blocks
may wait meanwhile: while the same ones generate, the first that waits fits no sooner, for want of
blocks or of tokens in the step, and it holds up the others. The results are those of single steps.
"""

from inferometer.perfmodel.steptime_terms import StepTimeArrays
from inferometer.simulate.compiling import compiled, inlined
from inferometer.simulate.kernel import decode_run, requests, trtllm
from inferometer.simulate.kernel.state import NOTHING, State
from inferometer.simulate.outcome import FAR_NS, Status, StepLog
from inferometer.simulate.trtllm_config import CAPACITY_POLICIES

_RUNNING = int(Status.RUNNING)
_MAX_UTILIZATION = CAPACITY_POLICIES.index("MAX_UTILIZATION")
_STATIC_BATCH = CAPACITY_POLICIES.index("STATIC_BATCH")


@compiled
def take(state: State, cost: StepTimeArrays, log: StepLog, until_ns: int) -> None:
    """Run all steps that certainly precede any other event.

    Called before the engine schedules; with the overlap scheduler one step is in flight then.
    Running none is always correct, since the caller goes on with single steps.
    """
    n_room = len(log.start_ns) - log.n_filled[0] - state.config[0].depth
    n_most = min(_n_certain_steps(state), n_room)
    if n_most < decode_run.LEAST_STEPS or not _admits_nobody(state):
        return
    limit_ns = min(until_ns + 1, requests.next_ns(state), requests.next_abort_ns(state))
    n_steps = _take_until(state, cost, log, n_most, limit_ns)
    if n_steps > 0:
        decode_run.end(state, state.skipped, n_steps)


@compiled
def plan(state: State, cost: StepTimeArrays, n_most: int) -> bool:
    """As ``decode_run.plan``; the blocks are reserved."""
    n_steps = min(_n_certain_steps(state), n_most)
    if n_steps < decode_run.LEAST_STEPS or not _admits_nobody(state):
        return False
    decode_run.time_plan(state, cost, decode_run.begin(state, state.skipped), n_steps)
    return True


@compiled
def take_planned(state: State, log: StepLog, n_steps: int) -> None:
    """As ``decode_run.take_planned``."""
    _n_certain_steps(state)  # lists the requests again: other replicas have listed theirs since
    next_touched, context_tokens = 0, decode_run.begin(state, state.skipped)
    for step in range(n_steps):
        if step == next_touched:
            next_touched = _extend(state, step)
        decode_run.take_planned_step(state, log, context_tokens, step)
        context_tokens += state.counters[0].n_running
    state.counters[0].n_planned = 0
    if n_steps > 0:
        decode_run.end(state, state.skipped, n_steps)


@compiled
def _n_certain_steps(state: State) -> int:
    """The number of steps in which certainly no request of the last batch ends.

    0 where that batch is not all running requests, in order of arrival, with a token of each. Lists
    them in ``State.skipped``.
    """
    config, counters, n_certain = state.config[0], state.counters[0], FAR_NS
    n_running, is_async = counters.n_running, config.is_async
    batch, parts = state.batches[counters.first_batch], state.parts[counters.first_batch]
    if (
        config.capacity_policy == _MAX_UTILIZATION
        or not 0 < n_running <= config.max_num_batched_tokens
        or counters.n_in_flight != is_async
        or counters.n_busy_in_flight != is_async
        or batch.n_parts != n_running
        or batch.n_prefill_requests > 0
    ):
        return 0
    for row in range(n_running):
        index = parts[row].request
        request = state.requests[index]
        if (
            request.status != _RUNNING
            or request.is_prefill_chunk
            or request.num_stale_output_tokens > 0
            or request.num_computed_tokens != request.num_tokens - 1 + is_async
            or request.num_output_placeholders != is_async
        ):
            return 0
        n_outputs = min(request.stop_tokens, request.max_tokens)
        num_most = min(request.num_prompt_tokens + n_outputs, config.max_model_len)
        n_certain = min(n_certain, num_most - request.num_tokens - 1)
        if n_certain < decode_run.LEAST_STEPS:
            return 0
        state.skipped[row] = index
    return n_certain


@compiled
def _admits_nobody(state: State) -> bool:
    """Does no request begin while those in ``State.skipped`` generate?

    Their free blocks are reserved, and no cached block is added: what the first that waits needs, in
    blocks and in tokens, can only grow.
    """
    config, counters = state.config[0], state.counters[0]
    if counters.n_active < config.max_num_active and requests.peek(state) != NOTHING:
        return False
    if counters.n_active == counters.n_running or config.capacity_policy == _STATIC_BATCH:
        return True
    i_active = 0
    while state.requests[state.queue.running[i_active]].status == _RUNNING:
        i_active += 1
    first = state.queue.running[i_active]
    n_tokens = counters.n_running
    if not config.is_chunked:
        n_cached_tokens = trtllm.n_hits(state, first) * config.block_size
        n_tokens += state.requests[first].num_tokens - n_cached_tokens
    if n_tokens > config.max_num_batched_tokens:
        return True
    n_available = counters.n_free
    for row in range(counters.n_running):
        n_available -= trtllm.n_blocks_to_completion(state, state.skipped[row])
    return trtllm.n_blocks_to_completion(state, first) > n_available


@inlined
def _take_until(
    state: State, cost: StepTimeArrays, log: StepLog, n_most: int, limit_ns: int
) -> int:
    """Time and log up to ``n_most`` steps that end before the limit; returns their number."""
    context, n_steps, touched = decode_run.begin(state, state.skipped), 0, 0
    while n_steps < n_most:
        if n_steps == touched:
            touched = _extend(state, n_steps)
        if not decode_run.take_step(state, cost, log, context, limit_ns):
            break
        context += state.counters[0].n_running
        n_steps += 1
    return n_steps


@compiled
def _extend(state: State, n_steps: int) -> int:
    """Allocate the blocks that the step after ``n_steps`` steps of this run needs.

    There are enough: they are reserved. Returns the index of the step that needs blocks next.
    """
    next_touched = FAR_NS
    for row in range(state.counters[0].n_running):
        if state.queue.chunks[row] == n_steps:
            index = state.skipped[row]
            request = state.requests[index]
            decode_run.advance(state, state.skipped, row, n_steps)
            trtllm.extend(state, index, request.num_computed_tokens + 1)
            n_left = request.num_blocks * state.config[0].block_size - request.num_computed_tokens
            state.queue.chunks[row] = n_steps + n_left
        next_touched = min(next_touched, state.queue.chunks[row])
    return next_touched
