"""Fast path: a run of consecutive steps in which every running request decodes one token.

Between two events (arrival, disconnection, end, completed prefill, lack of blocks) such steps
differ only in their context tokens. Each step of the run is timed and logged, but the requests are
updated only at the run's end, or when one of them needs a block. The results are the same as those
of single steps.

A lone replica knows its next event, and takes its run up to there. Of several replicas events come
from the others, too: each times its run first (``plan``), and takes it when the run is over, or as
far as it has come when something else happens to this replica (``take_planned``).
"""

from typing import Final

from inferometer.perfmodel.steptime_terms import StepTimeArrays
from inferometer.records.columns import I32
from inferometer.records.types import ABSENT, PartKind
from inferometer.simulate.compiling import compiled, inlined
from inferometer.simulate.kernel import blocks, groups, price, requests, steady
from inferometer.simulate.kernel.state import NOTHING, Batch, State
from inferometer.simulate.outcome import FAR_NS, StepLog

_GENERATION = int(PartKind.GENERATION)
LEAST_STEPS: Final = 2
"""Of a run that is worth it."""


@compiled
def take(state: State, cost: StepTimeArrays, log: StepLog, until_ns: int) -> None:
    """Run all decode steps that certainly precede any other event.

    Called before the engine schedules; with asynchronous scheduling one step is in flight then.
    Running none is always correct, since the caller goes on with single steps.
    """
    n_room = len(log.start_ns) - log.n_filled[0] - state.config[0].depth
    n_most = min(_n_certain_steps(state), n_room)
    if n_most < LEAST_STEPS:
        return
    limit_ns = min(until_ns + 1, requests.next_ns(state), requests.next_abort_ns(state))
    if state.counters[0].n_steady > 0:
        _take_steady(state, cost, log, n_most, limit_ns)
        return
    n_steps = _take_until(state, cost, log, n_most, limit_ns)
    if n_steps > 0:
        end(state, state.queue.running, n_steps)


@inlined
def _take_steady(
    state: State, cost: StepTimeArrays, log: StepLog, n_most: int, limit_ns: int
) -> None:
    """``_take_until`` where all requests are steady: none of them is touched."""
    counters, n_steps, next_due = state.counters[0], 0, state.counters[0].current_step + 1
    while n_steps < n_most:
        counters.current_step += 1
        has_room = True
        if counters.current_step == next_due:
            has_room = counters.n_free >= counters.n_running
            if has_room:
                next_due = steady.extend_all(state)
        context_tokens = steady.context_tokens(state)
        if not (has_room and take_step(state, cost, log, context_tokens, limit_ns)):
            counters.current_step -= 1
            break
        n_steps += 1
    _end_steady(state, n_steps)


@inlined
def _end_steady(state: State, n_steps: int) -> None:
    """Bring the batch in flight to where it is after a run of steady requests."""
    counters = state.counters[0]
    if n_steps > 0:
        counters.n_barren_steps = 0
        if state.config[0].is_async:
            batch = _put_batch_in_flight(state, n_steps)
            batch.n_parts, batch.n_steady = 0, counters.n_running


@compiled
def plan(state: State, cost: StepTimeArrays, n_most: int) -> bool:
    """Time up to ``n_most`` coming steps, unless something is to happen before.

    There must be blocks for all of them, so that nothing but the replica's own events ends the run.
    """
    config, counters, rows = state.config[0], state.counters[0], state.queue.running
    n_steps = min(_n_certain_steps(state), n_most)
    n_blocks = counters.n_running * config.n_kv_groups * (n_steps // config.block_size + 2)
    if n_steps < LEAST_STEPS or n_blocks > counters.n_free:
        return False
    context_tokens = steady.context_tokens(state) + counters.n_steady
    if counters.n_steady == 0:
        context_tokens = begin(state, rows)
    time_plan(state, cost, context_tokens, n_steps)
    return True


@inlined
def time_plan(state: State, cost: StepTimeArrays, context_tokens: int, n_steps: int) -> None:
    """Write the times of the next steps to ``State.plan_ns``; the first one's context is given."""
    counters, plan_ns, is_async = state.counters[0], state.plan_ns, state.config[0].is_async
    n_rows = counters.n_running
    batch = state.batches[counters.first_batch]
    plan_ns[0] = batch.end_ns if is_async else counters.now_ns
    for step in range(n_steps):
        plan_ns[step + 1] = plan_ns[step] + price.step_duration_ns(
            state.known[0], cost, 0, n_rows, 0, 0, context_tokens, 0, n_rows
        )
        context_tokens += n_rows
    counters.n_planned = n_steps
    counters.wake_ns = FAR_NS
    counters.ready_ns = plan_ns[n_steps - is_async]


@compiled
def take_planned(state: State, log: StepLog, n_steps: int) -> None:
    """Take the first ``n_steps`` steps of the plan, and drop the others."""
    rows, next_touched = state.queue.running, 0
    if state.counters[0].n_steady > 0:
        _take_planned_steady(state, log, n_steps)
        return
    context_tokens = begin(state, rows)
    for step in range(n_steps):
        if step == next_touched:
            next_touched = _extend(state, step)
        take_planned_step(state, log, context_tokens, step)
        context_tokens += state.counters[0].n_running
    state.counters[0].n_planned = 0
    if n_steps > 0:
        end(state, rows, n_steps)


@inlined
def _take_planned_steady(state: State, log: StepLog, n_steps: int) -> None:
    """``take_planned`` where all requests are steady."""
    counters, next_due = state.counters[0], state.counters[0].current_step + 1
    for step in range(n_steps):
        counters.current_step += 1
        if counters.current_step == next_due:
            next_due = steady.extend_all(state)
        take_planned_step(state, log, steady.context_tokens(state), step)
    counters.n_planned = 0
    _end_steady(state, n_steps)


@inlined
def take_planned_step(state: State, log: StepLog, context_tokens: int, step: int) -> None:
    """Log a step of the plan, at whose end the replica is then."""
    plan_ns = state.plan_ns
    done_ns = plan_ns[step + 1 - state.config[0].is_async]
    _go_on(state, log, context_tokens, plan_ns[step + 1] - plan_ns[step], done_ns)


@inlined
def end(state: State, rows: I32, n_steps: int) -> None:
    """Bring the requests, and the batch in flight, to where they are after the run."""
    config, counters = state.config[0], state.counters[0]
    counters.n_barren_steps = 0
    counters.current_step += n_steps
    for row in range(counters.n_running):
        advance(state, rows, row, n_steps)
    if config.is_async:
        _put_in_flight(state, rows, n_steps)


@inlined
def _take_until(
    state: State, cost: StepTimeArrays, log: StepLog, n_most: int, limit_ns: int
) -> int:
    """Time and log up to ``n_most`` steps that end before the limit; returns their number."""
    context, n_steps, touched = begin(state, state.queue.running), 0, 0
    while n_steps < n_most:
        if n_steps == touched:
            touched = _extend(state, n_steps)
            if touched == NOTHING:
                break
        if not take_step(state, cost, log, context, limit_ns):
            break
        context += state.counters[0].n_running
        n_steps += 1
    return n_steps


@inlined
def begin(state: State, rows: I32) -> int:
    """Note the tokens of the requests in ``rows`` before the run; returns the first step's context."""
    counters, context = state.counters[0], 0
    for row in range(counters.n_running):
        state.queue.joining[row] = state.requests[rows[row]].num_tokens
        state.queue.chunks[row] = 0
        context += state.queue.joining[row] + state.config[0].is_async
    return context


@inlined
def take_step(
    state: State, cost: StepTimeArrays, log: StepLog, context_tokens: int, limit_ns: int
) -> bool:
    """Time and log one step of a run, if one ends before the limit.

    All steps use the record of the batch that was in flight first.
    """
    counters, is_async = state.counters[0], state.config[0].is_async
    batch, n_rows = state.batches[counters.first_batch], counters.n_running
    duration_ns = price.step_duration_ns(
        state.known[0], cost, 0, n_rows, 0, 0, context_tokens, 0, n_rows
    )
    done_ns = batch.end_ns if is_async else counters.now_ns + duration_ns
    if done_ns >= limit_ns:
        return False
    _go_on(state, log, context_tokens, duration_ns, done_ns)
    return True


@inlined
def _go_on(state: State, log: StepLog, context_tokens: int, duration_ns: int, done_ns: int) -> None:
    """Log a step of this duration, and go on to ``done_ns``: its end, or that of the one before it."""
    counters, is_async = state.counters[0], state.config[0].is_async
    batch = state.batches[counters.first_batch]
    counters.busy_ns += batch.busy_ns if is_async else duration_ns
    batch.start_ns = done_ns if is_async else counters.now_ns
    batch.end_ns = state.stages[0, 0] = batch.start_ns + duration_ns
    batch.busy_ns = duration_ns
    batch.decode_context_tokens = context_tokens
    _note(state, log, batch)
    counters.now_ns = done_ns


@compiled
def _n_certain_steps(state: State) -> int:
    """The number of steps in which certainly no request is prefilled, ends or is admitted."""
    config, counters, n_certain = state.config[0], state.counters[0], FAR_NS
    n_running, is_async = counters.n_running, config.is_async
    if counters.n_steady > 0:
        n_of_steady: int = steady.n_certain_steps(state)
        return n_of_steady
    if (
        not config.is_plain
        or counters.n_waiting > 0
        or not 0 < n_running <= config.max_num_batched_tokens
        or counters.n_in_flight != is_async
        or counters.n_busy_in_flight != is_async
    ):
        return 0
    batch, parts = state.batches[counters.first_batch], state.parts[counters.first_batch]
    if is_async and (batch.n_parts != n_running or batch.n_prefill_requests > 0):
        return 0
    for row in range(n_running):
        index = state.queue.running[row]
        request = state.requests[index]
        if (
            request.is_prefill_chunk
            or request.num_stale_output_tokens > 0
            or request.first_token_ns == ABSENT  # prefilled elsewhere
            or request.num_computed_tokens != request.num_tokens - 1 + is_async
            or request.num_output_placeholders != is_async
            or (is_async and parts[row].request != index)
        ):
            return 0
        n_outputs = min(request.stop_tokens, request.max_tokens)
        num_most = min(request.num_prompt_tokens + n_outputs, config.max_model_len)
        n_certain = min(n_certain, num_most - request.num_tokens - 1)
        if n_certain < LEAST_STEPS:
            return 0
    return n_certain


@compiled
def _extend(state: State, n_steps: int) -> int:
    """Allocate the blocks that the step after ``n_steps`` steps of this run needs.

    Returns the index of the step that needs blocks next; ``NOTHING`` if there are too few.
    """
    config, next_touched = state.config[0], FAR_NS
    for row in range(state.counters[0].n_running):
        if state.queue.chunks[row] == n_steps:
            index = state.queue.running[row]
            request = state.requests[index]
            advance(state, state.queue.running, row, n_steps)
            if not blocks.extend(state, index, 1):
                return NOTHING
            n_of_tokens = request.num_blocks - config.num_state_blocks
            n_left = n_of_tokens * config.block_size - request.num_computed_tokens
            if config.is_caching:
                num_next = (request.num_cached_blocks + 1) * config.block_size
                n_left = min(n_left, num_next - request.num_tokens)
            if config.sliding_window > 0:
                num_left = groups.num_processed(config, request) - config.sliding_window + 1
                num_next = (max(num_left, 0) // config.block_size + 1) * config.block_size
                n_left = min(n_left, num_next - num_left)
            state.queue.chunks[row] = n_steps + max(n_left, 1)
        next_touched = min(next_touched, state.queue.chunks[row])
    return next_touched


@inlined
def advance(state: State, rows: I32, row: int, n_steps: int) -> None:
    """Set a request's token counts to those after ``n_steps`` steps of this run."""
    config, request = state.config[0], state.requests[rows[row]]
    request.num_tokens = state.queue.joining[row] + n_steps
    request.num_computed_tokens = request.num_tokens - 1 + config.is_async


@inlined
def _note(state: State, log: StepLog, batch: Batch) -> None:
    """Log a step of this run."""
    config, counters, row = state.config[0], state.counters[0], log.n_filled[0]
    log.replica[row] = config.replica
    log.start_ns[row] = batch.start_ns
    log.duration_ns[row] = batch.busy_ns
    log.n_prefill_requests[row] = 0
    log.n_decode_requests[row] = counters.n_running
    log.n_waiting_requests[row] = counters.n_waiting
    log.n_preempted_requests[row] = 0
    log.prefill_tokens[row] = 0
    log.prefill_context_product_tokens2[row] = 0
    log.decode_context_tokens[row] = batch.decode_context_tokens
    log.kv_blocks_used[row] = config.n_kv_blocks - counters.n_free
    if config.n_host_blocks > 0:
        log.swapped_blocks[row] = 0
    if len(log.launched_ns) > 0:
        log.launched_ns[row] = counters.now_ns
        log.launch_order[row] = config.replica
    log.n_filled[0] = row + 1
    batch.step_index = state.world[0].n_steps
    state.world[0].n_steps += 1


@compiled
def _put_in_flight(state: State, rows: I32, n_steps: int) -> None:
    """Copy the run's last step to the batch in flight, with its parts (asynchronous scheduling)."""
    counters, batch = state.counters[0], _put_batch_in_flight(state, n_steps)
    batch.n_parts, batch.n_steady = counters.n_running, 0
    parts = state.parts[counters.first_batch]
    for row in range(counters.n_running):
        part, request = parts[row], state.requests[rows[row]]
        request.next_decode_eligible_step = counters.current_step + 1
        part.request = rows[row]
        part.num_tokens = part.yields_token = 1
        part.num_computed_tokens = request.num_computed_tokens - 1
        part.slot = request.slot
        part.kind = _GENERATION
        part.num_spec_tokens = part.has_padded_drafts = 0


@inlined
def _put_batch_in_flight(state: State, n_steps: int) -> Batch:
    """Copy the run's last step to the record of the batch in flight; returns it, without parts."""
    counters = state.counters[0]
    last, i_batch = state.batches[counters.first_batch], (counters.first_batch + n_steps) % 2
    last.is_in_flight = 0
    batch = state.batches[i_batch]
    batch.is_in_flight = 1
    batch.start_ns, batch.end_ns, batch.busy_ns = last.start_ns, last.end_ns, last.busy_ns
    batch.step_index, batch.decode_context_tokens = last.step_index, last.decode_context_tokens
    batch.n_decode_requests = counters.n_running
    batch.n_prefill_requests = batch.prefill_tokens = batch.prefill_pairs_tokens2 = 0
    batch.num_spec_tokens = batch.n_yielding = batch.yielding_context_tokens = 0
    batch.num_swapped_blocks = 0
    counters.first_batch = i_batch
    return batch
