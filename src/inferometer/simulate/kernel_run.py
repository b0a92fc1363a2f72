"""What happens when, from the first arrival to the last token? The engine's loop on a clock of nanoseconds, compiled.

Mirrors ``EngineCore.step`` (depth 1) and ``EngineCore.step_with_batch_queue`` (depth 2) of vLLM 0.32.0: whoever has arrived is
taken in before each ``schedule``; batches are launched until ``depth`` are in flight; then the oldest is awaited, those whose
client has gone are dropped, and its tokens are delivered. Batches run one after the other on the device.

Order of events at one instant: arrivals by index, then aborts, then ``schedule``; at the end of a step aborts by time, then tokens
in order of the batch, and whoever follows a request that ends by that arrives before the next ``schedule``.
"""

from inferometer.perfmodel.steptime_arrays import StepTimeArrays
from inferometer.records.types import ABSENT
from inferometer.simulate import kernel_arrivals, kernel_holes, kernel_policy, kernel_price
from inferometer.simulate.compiling import compiled
from inferometer.simulate.kernel_state import State
from inferometer.simulate.outcome import FAR_NS, Outcome, PartLog, StepLog, max_barren_steps
from inferometer.simulate.reference_request import Status

_UNSEEN, _STOPPED = int(Status.UNSEEN), int(Status.STOPPED)
_ABORTED, _REJECTED = int(Status.ABORTED), int(Status.REJECTED)

_LOG_FULL, _FINISHED, _HORIZON = int(Outcome.LOG_FULL), int(Outcome.FINISHED), int(Outcome.HORIZON)
_STUCK, _LIVELOCK = int(Outcome.STUCK), int(Outcome.LIVELOCK)


@compiled
def run(state: State, cost: StepTimeArrays, log: StepLog, part_log: PartLog, until_ns: int) -> int:
    """Go on until all is done, the time is over, no progress is possible, or a log is full; returns an ``Outcome``."""
    counters, depth = state.counters[0], state.config[0].depth
    n_parts_at_most = state.parts.shape[1] if len(part_log.seat) > 0 else 0
    while log.n_filled[0] < len(log.start_ns) and part_log.n_filled[0] + n_parts_at_most <= len(part_log.seat):
        _take_in(state)
        counters.wake_ns = FAR_NS
        if counters.n_running + counters.n_waiting > 0:
            slot = (counters.first_batch + counters.n_in_flight) % depth
            kernel_policy.schedule(state, slot)
            _price(state, cost, slot)
            _note(state, log, slot)
            if state.batches[slot].n_parts == 0 and counters.n_preempted == 0 and counters.n_busy_in_flight == 0:
                counters.n_in_flight = 0
                if not _jump(state, until_ns):
                    return _end_of_run(state)
                continue
            counters.n_in_flight += 1
            counters.n_busy_in_flight += state.batches[slot].n_parts > 0
            if counters.n_in_flight < depth:
                continue
        elif counters.n_in_flight == 0:
            if not _jump(state, until_ns):
                return _end_of_run(state)
            continue
        if state.batches[counters.first_batch].end_ns > until_ns:
            counters.now_ns = until_ns
            _drop_aborted(state)
            _take_in(state)
            return _HORIZON
        _complete_oldest(state, part_log)
        if counters.n_barren_steps > max_barren_steps(state.config[0].max_model_len):
            return _LIVELOCK
    return _LOG_FULL


@compiled
def _take_in(state: State) -> None:
    """Take in whoever has arrived. A prompt as long as the model can remember is refused by the engine's front end."""
    counters = state.counters[0]
    while kernel_arrivals.next_ns(state) <= counters.now_ns:
        index = kernel_arrivals.take_next(state)
        request = state.requests[index]
        if request.status != _UNSEEN:
            continue  # its client has gone already
        if request.num_prompt_tokens >= state.config[0].max_model_len:
            kernel_arrivals.end(state, index, _REJECTED, request.arrival_ns)
            continue
        kernel_policy.add(state, index)


@compiled
def _drop_aborted(state: State) -> None:
    """Drop whoever has gone by now."""
    counters = state.counters[0]
    while counters.next_abort < len(state.abort_order):
        index = state.abort_order[counters.next_abort]
        if state.abort_ns[index] > counters.now_ns:
            return
        counters.next_abort += 1
        status = state.requests[index].status
        if status == _UNSEEN:
            kernel_arrivals.end(state, index, _ABORTED, state.abort_ns[index])
        elif status < _STOPPED:
            kernel_policy.abort(state, index)


@compiled
def _price(state: State, cost: StepTimeArrays, slot: int) -> None:
    """When does the device begin this batch, and when is it done? A batch without tokens takes the time of what it swaps."""
    counters, batch = state.counters[0], state.batches[slot]
    batch.start_ns = max(counters.now_ns, counters.device_free_ns)
    batch.end_ns = batch.start_ns + kernel_price.duration_ns(state, cost, slot)
    counters.device_free_ns = batch.end_ns


@compiled
def _note(state: State, log: StepLog, slot: int) -> None:
    """Log a batch that computes or that cost somebody his place."""
    counters, batch, row = state.counters[0], state.batches[slot], log.n_filled[0]
    counters.n_barren_steps += counters.n_preempted > 0
    if batch.n_parts == 0 and counters.n_preempted == 0:
        return
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
    log.free_blocks[row] = log.largest_hole_blocks[row] = log.compaction_debt_blocks[row] = ABSENT
    if state.config[0].is_contiguous:
        kernel_holes.note(state, log, row)
    log.n_filled[0] = row + 1
    batch.step_index = counters.n_steps
    counters.n_steps += 1


@compiled
def _note_parts(state: State, log: PartLog, slot: int) -> None:
    """Log who did what in a step that is done."""
    batch, parts = state.batches[slot], state.parts[slot]
    row = log.n_filled[0]
    for i_part in range(batch.n_parts):
        part = parts[i_part]
        log.step_index[row] = batch.step_index
        log.request_index[row] = part.request
        log.seat[row] = part.seat
        log.kind[row] = part.kind
        log.n_computed_tokens[row] = part.num_tokens
        log.n_delivered_tokens[row] = part.n_delivered
        row += 1
    log.n_filled[0] = row


@compiled
def _complete_oldest(state: State, part_log: PartLog) -> None:
    """Wait for the oldest batch in flight and process what it yielded."""
    counters, slot = state.counters[0], state.counters[0].first_batch
    counters.now_ns = max(counters.now_ns, state.batches[slot].end_ns)
    _drop_aborted(state)
    n_delivered = kernel_policy.update(state, slot)
    if len(part_log.seat) > 0:
        _note_parts(state, part_log, slot)
    if n_delivered > 0:
        counters.n_barren_steps = 0
    counters.n_busy_in_flight -= state.batches[slot].n_parts > 0
    counters.first_batch = (slot + 1) % state.config[0].depth
    counters.n_in_flight -= 1


@compiled
def _next_event_ns(state: State) -> int:
    """When does the next request arrive or go away, or a wait end?"""
    counters = state.counters[0]
    when_ns: int = min(counters.wake_ns, kernel_arrivals.next_ns(state))
    if counters.next_abort < len(state.abort_order):
        when_ns = min(when_ns, state.abort_ns[state.abort_order[counters.next_abort]])
    return when_ns


@compiled
def _jump(state: State, until_ns: int) -> bool:
    """Nothing can be done now: go to when something can; False where that is never, or not in time."""
    when_ns = _next_event_ns(state)
    if when_ns == FAR_NS or when_ns > until_ns:
        return False
    state.counters[0].now_ns = max(state.counters[0].now_ns, when_ns)
    _take_in(state)
    _drop_aborted(state)
    return True


@compiled
def _end_of_run(state: State) -> int:
    """Nothing will happen any more, or not in time: how did it end?"""
    counters = state.counters[0]
    if counters.n_running + counters.n_waiting > 0:
        return _STUCK if _next_event_ns(state) == FAR_NS else _HORIZON
    return _FINISHED if kernel_arrivals.next_ns(state) == FAR_NS else _HORIZON


__all__ = ["run"]
