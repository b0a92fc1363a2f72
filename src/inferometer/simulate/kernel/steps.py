"""The steps of one replica: add requests, launch batches, complete them. Compiled.

Called by the event loops (``one_replica.py``, ``cluster_run.py``).

Mirrors ``EngineCore.step`` (``depth`` 1) and ``EngineCore.step_with_batch_queue`` of vLLM 0.32.0:
batches are launched until ``depth`` of them are in flight; then the oldest is awaited. Batches pass
the pipeline stages of the device one after the other (``reference/stages.py``).
"""

from typing import Final

from inferometer.perfmodel.steptime_terms import StepTimeArrays
from inferometer.simulate.compiling import compiled, inlined
from inferometer.simulate.kernel import blocks, policy, pool, price, requests
from inferometer.simulate.kernel.state import State
from inferometer.simulate.outcome import FAR_NS, PartLog, Status, StepLog, max_barren_steps

IS_POOLED: Final = False
"""Is the KV cache divided into pools?"""
MOST_REPLICAS: Final = 1 << 20
_max_barren_steps = compiled(max_barren_steps)
_STOPPED, _REJECTED = int(Status.STOPPED), int(Status.REJECTED)


@compiled
def take(state: State, index: int) -> None:
    """Add an arriving request to this replica; reject it if its prompt is too long."""
    request, config = state.requests[index], state.config[0]
    state.counters[0].n_taken += 1
    request.replica = config.replica
    if request.num_prompt_tokens > config.max_prompt_tokens:
        requests.end(state, index, _REJECTED, request.arrival_ns)
    else:
        policy.add(state, index)


@compiled
def drop(state: State, index: int) -> None:
    """Abort a request on this replica whose client has disconnected, unless it has ended."""
    if state.requests[index].status < _STOPPED:
        policy.abort(state, index)


@compiled
def take_decodes(
    state: State, cost: StepTimeArrays, log: StepLog, part_log: PartLog, until_ns: int
) -> None:
    """Run several decode steps at once, with the same result (``kernel/decode_run.py``).

    Not if the parts of steps are logged.
    """
    if len(part_log.slot) == 0:
        policy.take_decodes(state, cost, log, until_ns)


@compiled
def plan_decodes(state: State, cost: StepTimeArrays, n_most: int) -> bool:
    """Plan up to ``n_most`` decode steps, which are taken later (``kernel/decode_run.py``)."""
    is_planned: bool = policy.plan_decodes(state, cost, n_most)
    return is_planned


@compiled
def take_planned(state: State, log: StepLog, n_steps: int) -> None:
    """Take this number of the planned steps, and drop the rest of the plan."""
    policy.take_planned(state, log, n_steps)


@compiled
def fill_once(state: State, cost: StepTimeArrays, log: StepLog) -> None:
    """``fill``, for loops that call it at several places."""
    fill(state, cost, log)


@inlined
def fill(state: State, cost: StepTimeArrays, log: StepLog) -> bool:
    """Launch batches until ``depth`` are in flight; returns whether any is in flight."""
    counters, depth = state.counters[0], state.config[0].depth
    counters.wake_ns = FAR_NS
    while counters.n_in_flight < depth and counters.n_running + counters.n_waiting > 0:
        counters.wake_ns = FAR_NS
        i_batch = policy.next_batch(state)
        policy.schedule(state, i_batch)
        _set_times(state, cost, i_batch)
        _note(state, log, i_batch)
        is_idle = not _has_work(state, i_batch) and (
            counters.n_busy_in_flight == 0 or policy.has_instances()
        )
        if is_idle and counters.n_preempted == 0:
            counters.n_in_flight = counters.n_busy_in_flight
            break
        state.batches[i_batch].is_in_flight = 1
        counters.n_in_flight += 1
        counters.n_busy_in_flight += _has_work(state, i_batch)
    is_any: bool = counters.n_in_flight > 0
    return is_any


@inlined
def _has_work(state: State, i_batch: int) -> bool:
    """Does a batch compute any token?"""
    has_work: bool = state.batches[i_batch].n_parts + state.batches[i_batch].n_steady > 0
    return has_work


@compiled
def settle(state: State) -> None:
    """Update the requests to where they are now, at the end of a simulation."""
    policy.settle(state)


@compiled
def joins(state: State) -> bool:
    """Form this replica's part of the group's step that starts now, unless it has been formed.

    Returns whether the replica takes part. A group is the replicas that run steps in lockstep.
    """
    return state.counters[0].n_in_flight > 0 or _form_step(state)


@compiled
def form_ahead(state: State, n_most: int) -> None:
    """Form further steps while the group's step runs, up to ``n_most`` with that one."""
    while state.counters[0].n_in_flight < n_most and _form_step(state):
        pass


@compiled
def _form_step(state: State) -> bool:
    """Form the replica's next step; returns False if it would be empty."""
    counters = state.counters[0]
    if counters.n_running + counters.n_waiting == 0:
        return False
    i_batch = policy.next_batch(state)
    policy.schedule(state, i_batch)
    if state.batches[i_batch].n_parts == 0 and counters.n_preempted == 0:
        return False
    state.batches[i_batch].is_in_flight = 1
    counters.n_in_flight += 1
    counters.n_busy_in_flight += state.batches[i_batch].n_parts > 0
    return True


@compiled
def own_rows(state: State) -> int:
    """Rows that this replica adds to the group's next step."""
    return price.n_rows(state, state.counters[0].first_batch)


@compiled
def own_yielding(state: State) -> int:
    """The number of requests of this replica that yield a token in the group's next step."""
    n_yielding: int = state.batches[state.counters[0].first_batch].n_yielding
    return n_yielding


@compiled
def own_duration_ns(
    state: State, cost: StepTimeArrays, n_group_rows: int, n_group_yielding: int
) -> int:
    """Duration of this replica's part of the group's next step, without waiting for others."""
    return price.group_duration_ns(
        state, cost, state.counters[0].first_batch, n_group_rows, n_group_yielding
    )


@compiled
def begin(state: State, log: StepLog, duration_ns: int) -> None:
    """Start this replica's part of the group's step, which lasts as long as the whole step."""
    counters, i_batch = state.counters[0], state.counters[0].first_batch
    batch = state.batches[i_batch]
    batch.start_ns, batch.end_ns, batch.busy_ns = (
        counters.now_ns,
        counters.now_ns + duration_ns,
        duration_ns,
    )
    _note(state, log, i_batch)


@compiled
def ready_ns(state: State) -> int:
    """Time when the first batch in flight or the scheduler's wait ends; ``FAR_NS``: neither."""
    when_ns: int = state.counters[0].wake_ns
    if state.counters[0].n_in_flight > 0:
        when_ns = min(when_ns, state.batches[policy.first_batch(state)].end_ns)
    return when_ns


@inlined
def complete_oldest(state: State, part_log: PartLog) -> bool:
    """Process the results of the first batch in flight, if it has ended.

    Returns False if requests preempt one another forever (livelock).
    """
    counters, i_batch = state.counters[0], policy.first_batch(state)
    batch = state.batches[i_batch]
    if batch.end_ns > counters.now_ns:
        return True  # the scheduler's wait ends, not a batch
    batch.is_in_flight = 0
    n_delivered = policy.update(state, i_batch)
    if len(part_log.slot) > 0:
        _note_parts(state, part_log, i_batch)
    if n_delivered > 0:
        counters.n_barren_steps = 0
    counters.busy_ns += batch.busy_ns
    counters.n_busy_in_flight -= _has_work(state, i_batch)
    counters.first_batch = (i_batch + 1) % state.config[0].depth
    counters.n_in_flight -= 1
    is_going_on: bool = counters.n_barren_steps <= _max_barren_steps(state.config[0].max_model_len)
    return is_going_on


@compiled
def has_room(state: State, log: StepLog, part_log: PartLog, n_replicas: int) -> bool:
    """Do the logs have room for all rows that the replicas may add at one instant?"""
    n_steps, n_parts = n_replicas * state.parts.shape[0], n_replicas * state.parts.shape[1]
    has_rows = log.n_filled[0] + n_steps <= len(log.start_ns)
    return has_rows and (
        len(part_log.slot) == 0 or part_log.n_filled[0] + n_parts <= len(part_log.slot)
    )


@inlined
def _set_times(state: State, cost: StepTimeArrays, i_batch: int) -> None:
    """Set the start and the end of this batch on the stages of the device.

    A batch that computes no tokens lasts as long as its block swaps.
    """
    counters, batch, stages, n_stages = (
        state.counters[0],
        state.batches[i_batch],
        state.stages,
        state.config[0].n_stages,
    )
    duration_ns: int = price.duration_ns(state, cost, i_batch)
    i_sampled = counters.current_step % n_stages
    if policy.has_instances():
        stages[0, 0] = 0  # each instance has a device of its own
    end_ns: int = max(counters.now_ns, stages[1, i_sampled], stages[0, 0])
    batch.start_ns = end_ns
    for i_stage in range(n_stages):
        share_ns = duration_ns * (i_stage + 1) // n_stages - duration_ns * i_stage // n_stages
        end_ns = max(end_ns, stages[0, i_stage]) + share_ns
        stages[0, i_stage] = end_ns
    stages[1, i_sampled] = end_ns if n_stages > 1 and _is_sampling(state, i_batch) else 0
    batch.end_ns = end_ns
    batch.busy_ns = duration_ns // n_stages


@compiled
def _is_sampling(state: State, i_batch: int) -> bool:
    """Does any request get a token from this batch?"""
    parts, is_any = state.parts[i_batch], False
    for i_part in range(state.batches[i_batch].n_parts):
        is_any |= parts[i_part].yields_token != 0
    return is_any


@inlined
def _note(state: State, log: StepLog, i_batch: int) -> None:
    """Log a batch that computes tokens or whose scheduling preempted a request."""
    counters, batch, row = state.counters[0], state.batches[i_batch], log.n_filled[0]
    counters.n_barren_steps += counters.n_preempted > 0
    if not _has_work(state, i_batch) and counters.n_preempted == 0:
        return
    log.replica[row] = state.config[0].replica
    log.start_ns[row] = batch.start_ns
    log.duration_ns[row] = batch.end_ns - batch.start_ns
    log.n_prefill_requests[row] = batch.n_prefill_requests
    log.n_decode_requests[row] = batch.n_decode_requests
    log.n_waiting_requests[row] = counters.n_waiting
    log.n_preempted_requests[row] = counters.n_preempted
    log.prefill_tokens[row] = batch.prefill_tokens
    log.prefill_context_product_tokens2[row] = batch.prefill_pairs_tokens2
    log.decode_context_tokens[row] = batch.decode_context_tokens
    log.kv_blocks_used[row] = state.config[0].n_kv_blocks - counters.n_free
    is_pooled = IS_POOLED
    if is_pooled:
        pool.note_use(state, batch.end_ns - batch.start_ns)
    if state.config[0].is_contiguous:
        blocks.note_holes(state, log, row)
    if state.config[0].n_host_blocks > 0:
        log.swapped_blocks[row] = batch.num_swapped_blocks
    if len(log.launched_ns) > 0:
        log.launched_ns[row] = counters.now_ns
        log.launch_order[row] = launch_order(state)
    log.n_filled[0] = row + 1
    batch.step_index = state.world[0].n_steps
    state.world[0].n_steps += 1


@compiled
def launch_order(state: State) -> int:
    """Order of a step among those launched at the same time: by event, then by replica."""
    order: int = state.world[0].turn * MOST_REPLICAS + state.config[0].replica
    return order


@compiled
def _note_parts(state: State, log: PartLog, i_batch: int) -> None:
    """Log the tokens that each request computed and got in a completed step."""
    batch, parts = state.batches[i_batch], state.parts[i_batch]
    row = log.n_filled[0]
    for i_part in range(batch.n_parts):
        part = parts[i_part]
        log.step_index[row] = batch.step_index
        log.request_index[row] = part.request
        log.slot[row] = part.slot
        log.kind[row] = part.kind
        log.n_computed_tokens[row] = part.num_tokens
        log.n_delivered_tokens[row] = part.n_delivered
        row += 1
    log.n_filled[0] = row
