"""Scheduler of static batches, each of which runs until its last request is complete. Compiled.

The same as ``reference.batches.BatchScheduler``, on arrays. The waiting queue is a heap ordered by
``Request.priority``: twice the priority level, plus one after the queue timeout. Forming a batch
pops requests and puts back those that stay. A row of a batch is one of its requests.

If answers are delivered in the order in which requests left the queue, ``Request.node`` is 1 + the
index of the next request that left the queue, and ``Request.turn`` is 1 once its batch is over.
"""

from inferometer.perfmodel.steptime_terms import StepTimeArrays
from inferometer.records.types import ABSENT, PartKind
from inferometer.simulate.compiling import compiled, inlined
from inferometer.simulate.kernel import price, requests
from inferometer.simulate.kernel.config import Config
from inferometer.simulate.kernel.state import NOTHING, Request, State
from inferometer.simulate.outcome import FAR_NS, Status, StepLog

_CONTEXT, _GENERATION, _ENDED = int(PartKind.CONTEXT), int(PartKind.GENERATION), int(PartKind.ENDED)
_WAITING, _RUNNING, _STOPPED, _LENGTH = (
    int(Status.WAITING),
    int(Status.RUNNING),
    int(Status.STOPPED),
    int(Status.LENGTH),
)
_ABORTED, _REJECTED = int(Status.ABORTED), int(Status.REJECTED)


@compiled
def add(state: State, index: int) -> None:
    """Add an arriving request to the queue; reject it if the queue of its priority is full."""
    config, request = state.config[0], state.requests[index]
    request.priority = 2 * request.priority if config.has_levels else 0
    if config.max_queue_size > 0:
        n_queued = 0
        for place in range(state.counters[0].waiting_size):
            other = state.requests[state.queue.waiting[place]]
            n_queued += other.status == _WAITING and other.priority // 2 == request.priority // 2
        if n_queued >= config.max_queue_size:
            requests.end(state, index, _REJECTED, request.arrival_ns)
            return
    request.status = _WAITING
    requests.add(state, index)


@inlined
def schedule(state: State, i_batch: int) -> None:
    """Form the next step of an instance: of its present batch, else of a new one if it is due."""
    counters = state.counters[0]
    counters.n_preempted = 0
    if state.batches[i_batch].n_rows == 0:
        _form(state, i_batch)
    _launch(state, i_batch)


@compiled
def idle_instance(state: State) -> int:
    """Index of the next instance to schedule.

    The first idle one with an unfinished batch, else the first idle one; ``NOTHING``: all are busy.
    """
    n_instances, idle = len(state.batches), NOTHING
    for i_batch in range(n_instances - 1, -1, -1):
        if state.batches[i_batch].is_in_flight == 0 and (
            idle == NOTHING or state.batches[i_batch].n_rows > 0 or state.batches[idle].n_rows == 0
        ):
            idle = i_batch
    return idle


@compiled
def first_done(state: State) -> int:
    """Index of the instance whose step ends first; at least one step must be in flight."""
    first = NOTHING
    for i_batch in range(len(state.batches)):
        batch = state.batches[i_batch]
        if batch.is_in_flight and (first == NOTHING or batch.end_ns < state.batches[first].end_ns):
            first = i_batch
    return first


@compiled
def _first_row(state: State, i_batch: int) -> int:
    """Index in ``Queue.running`` of the first request in an instance's batch."""
    row: int = i_batch * (state.config[0].max_num_active // state.config[0].n_instances)
    return row


@inlined
def update(state: State, i_batch: int) -> int:
    """Process the results of a step; returns the number of delivered tokens.

    Each incomplete row gets a token; the batch ends when the last row is complete.
    """
    config, counters, parts, batch = (
        state.config[0],
        state.counters[0],
        state.parts[i_batch],
        state.batches[i_batch],
    )
    is_over, first = True, _first_row(state, i_batch)
    for row in range(batch.n_rows):
        request = state.requests[state.queue.running[first + row]]
        if request.status == _RUNNING and _n_outputs(request) < _n_wanted(config, request):
            is_over = False
    n_delivered = 0
    for row in range(batch.n_rows):
        index = state.queue.running[first + row]
        request = state.requests[index]
        parts[row].n_delivered = 0
        if (
            request.status != _RUNNING
            or config.is_preserving
            or not (config.is_streaming or is_over)
        ):
            continue
        parts[row].n_delivered = 1 if config.is_streaming else _n_wanted(config, request)
        n_delivered += parts[row].n_delivered
        _deliver(state, index, parts[row].n_delivered)
    if is_over and config.is_preserving:
        n_delivered = _answer_in_order(state, i_batch)
    if is_over:
        for row in range(batch.n_rows):
            requests.release(state, state.queue.running[first + row])
        counters.n_running -= batch.n_rows
        counters.n_free += batch.n_reserved_blocks
        batch.n_rows = 0
    return n_delivered


@compiled
def take_decodes(state: State, cost: StepTimeArrays, log: StepLog, until_ns: int) -> None:
    """Run the steps of a batch at once that end no request, until the next event.

    The results are those of single steps; running none is always correct.
    """
    config, counters, batch = state.config[0], state.counters[0], state.batches[0]
    is_plain = config.depth == 1 and config.n_stages == 1 and config.draft_cost_millionths == 0
    if not is_plain or config.is_contiguous or config.n_host_blocks > 0:
        return
    n_most = min(_n_certain_steps(state), len(log.start_ns) - log.n_filled[0] - 1)
    if n_most < 2:
        return
    limit_ns = min(until_ns + 1, requests.next_ns(state), requests.next_abort_ns(state))
    n_steps, context, n_rows = 0, 0, batch.n_rows
    for row in range(n_rows):
        context += state.requests[state.queue.running[row]].num_computed_tokens + 1
    while n_steps < n_most:
        duration_ns = price.step_duration_ns(
            state.known[0], cost, 0, n_rows, 0, 0, context, 0, n_rows
        )
        if counters.now_ns + duration_ns >= limit_ns:
            break
        _note_decodes(state, log, duration_ns, context)
        counters.now_ns += duration_ns
        context += n_rows
        n_steps += 1
    gives = config.is_streaming and not config.is_preserving
    for row in range(n_rows):
        request = state.requests[state.queue.running[row]]
        request.num_computed_tokens += n_steps
        if gives and request.status == _RUNNING:
            request.num_tokens += n_steps


@compiled
def _n_certain_steps(state: State) -> int:
    """Steps of the only instance's batch in which certainly no request gets its last token."""
    config, counters, batch = state.config[0], state.counters[0], state.batches[0]
    if counters.n_in_flight > 0 or batch.n_rows == 0:
        return 0
    gives = config.is_streaming and not config.is_preserving
    least, most = FAR_NS, 0
    for row in range(batch.n_rows):
        request = state.requests[state.queue.running[row]]
        if request.num_computed_tokens == 0:
            return 0
        if request.status == _RUNNING:
            n_left = _n_wanted(config, request) - _n_outputs(request)
            if n_left > 0 or not gives:
                least, most = min(least, n_left), max(most, n_left)
    return (least if gives and least < FAR_NS else most) - 1


@inlined
def _note_decodes(state: State, log: StepLog, duration_ns: int, context_tokens: int) -> None:
    """Log a step that computes one token of each row."""
    config, counters, row = state.config[0], state.counters[0], log.n_filled[0]
    counters.busy_ns += duration_ns
    log.replica[row] = config.replica
    log.start_ns[row] = counters.now_ns
    log.duration_ns[row] = duration_ns
    log.n_prefill_requests[row] = 0
    log.n_decode_requests[row] = state.batches[0].n_rows
    log.n_waiting_requests[row] = counters.n_waiting
    log.n_preempted_requests[row] = 0
    log.prefill_tokens[row] = 0
    log.prefill_context_product_tokens2[row] = 0
    log.decode_context_tokens[row] = context_tokens
    log.kv_blocks_used[row] = config.n_kv_blocks - counters.n_free
    log.n_filled[0] = row + 1
    state.world[0].n_steps += 1


@compiled
def _answer_in_order(state: State, i_batch: int) -> int:
    """Deliver answers in the order in which requests left the queue; returns the tokens delivered.

    Called at the end of a batch. An answer waits until all earlier ones have been delivered.
    """
    config, counters, parts, batch = (
        state.config[0],
        state.counters[0],
        state.parts[i_batch],
        state.batches[i_batch],
    )
    n_delivered, first = 0, _first_row(state, i_batch)
    for row in range(batch.n_rows):
        state.requests[state.queue.running[first + row]].turn = 1
    while counters.first_unanswered > 0 and state.requests[counters.first_unanswered - 1].turn == 1:
        index = counters.first_unanswered - 1
        request = state.requests[index]
        counters.first_unanswered = request.node
        if request.status == _RUNNING:
            n_tokens = _n_wanted(config, request)
            n_delivered += n_tokens
            _deliver(state, index, n_tokens)
    for row in range(batch.n_rows):
        request = state.requests[state.queue.running[first + row]]
        if request.status in (_STOPPED, _LENGTH):
            parts[row].n_delivered = _n_wanted(config, request)
    return n_delivered


@compiled
def _deliver(state: State, index: int, n_tokens: int) -> None:
    """Deliver tokens to a request, and end the request if it has all its tokens."""
    request, now_ns = state.requests[index], state.counters[0].now_ns
    n_wanted = _n_wanted(state.config[0], request)
    request.num_tokens += n_tokens
    if request.first_token_ns == ABSENT:
        request.first_token_ns = now_ns
    if request.num_tokens - request.num_prompt_tokens == n_wanted:
        is_stopped = n_wanted == request.stop_tokens and n_wanted < request.max_tokens
        requests.end(state, index, _STOPPED if is_stopped else _LENGTH, now_ns)


@compiled
def abort(state: State, index: int) -> None:
    """Abort a request; if it is in a batch, its row is computed until the batch ends."""
    if state.requests[index].status == _WAITING:
        state.counters[0].n_waiting -= 1
    requests.end(state, index, _ABORTED, state.arrivals.abort_ns[index])


@compiled
def _form(state: State, i_batch: int) -> None:
    """Choose the requests of the next batch; start the batch if it is due, else set ``wake_ns``."""
    config, counters = state.config[0], state.counters[0]
    n_pending, best, is_full, longest, most = 0, 0, False, 0, 0
    max_batch_size, num_blocks = (
        config.max_num_active // config.n_instances,
        config.n_kv_blocks // config.n_instances,
    )
    oldest_ns, timeout_ns = FAR_NS, FAR_NS
    while True:
        index = _next_in_time(state)
        if index == NOTHING:
            break
        request = state.requests[index]
        longest, most = (
            max(longest, request.num_prompt_tokens),
            max(most, _n_allowed(config, request)),
        )
        n_blocks = (n_pending + 1) * ((longest + most + config.block_size - 1) // config.block_size)
        is_full = n_pending == max_batch_size or n_blocks > num_blocks
        if is_full:
            break
        requests.pop(state)
        state.skipped[n_pending] = index
        n_pending += 1
        oldest_ns = min(oldest_ns, request.arrival_ns)
        if config.timeout_ns > 0 and request.priority % 2 == 0:
            timeout_ns = min(timeout_ns, request.arrival_ns + config.timeout_ns + 1)
        if state.queue.is_preferred[n_pending]:
            best = n_pending
    n_sent = n_pending
    due_ns = oldest_ns + config.max_delay_ns
    if best > 0 and (config.max_delay_ns == 0 or counters.now_ns < due_ns):
        n_sent = best
    elif n_pending > 0 and not (
        is_full or n_pending >= config.largest or counters.now_ns >= due_ns
    ):
        n_sent = 0
        counters.wake_ns = min(due_ns, timeout_ns)
    for i_kept in range(n_sent, n_pending):
        requests.put_back(state, state.skipped[i_kept])
    _begin(state, i_batch, n_sent)


@compiled
def _next_in_time(state: State) -> int:
    """The next waiting request that has not timed out; ``NOTHING`` if there is none.

    Requests that have timed out are rejected, or moved behind the others of their priority.
    """
    config, counters = state.config[0], state.counters[0]
    while True:
        index = requests.peek(state)
        if index == NOTHING:
            return NOTHING
        request = state.requests[index]
        is_expired = (
            0 < config.timeout_ns < counters.now_ns - request.arrival_ns
            and request.priority % 2 == 0
        )
        if not is_expired:
            return index
        requests.pop(state)
        if config.is_delaying:
            request.priority += 1
            requests.put_back(state, index)
        else:
            requests.end(state, index, _REJECTED, counters.now_ns)


@compiled
def _begin(state: State, i_batch: int, n_sent: int) -> None:
    """Start a batch of the first ``n_sent`` requests in ``State.skipped``: slots and KV memory."""
    config, counters, batch = state.config[0], state.counters[0], state.batches[i_batch]
    longest, most, first = 0, 0, _first_row(state, i_batch)
    for row in range(n_sent):
        index = state.skipped[row]
        request = state.requests[index]
        longest, most = (
            max(longest, request.num_prompt_tokens),
            max(most, _n_allowed(config, request)),
        )
        request.status = _RUNNING
        request.admitted_ns = counters.now_ns
        requests.take(state, index)
        state.queue.running[first + row] = index
        if config.is_preserving:
            _append_unanswered(state, index)
    counters.n_running += n_sent
    batch.n_rows = n_sent
    batch.n_reserved_blocks = n_sent * (
        (longest + most + config.block_size - 1) // config.block_size
    )
    counters.n_free -= batch.n_reserved_blocks


@compiled
def _append_unanswered(state: State, index: int) -> None:
    """Append a request that left the queue to the list of those whose answer is undelivered."""
    counters = state.counters[0]
    if counters.first_unanswered > 0:
        state.requests[counters.last_unanswered - 1].node = index + 1
    else:
        counters.first_unanswered = index + 1
    counters.last_unanswered = index + 1


@inlined
def _launch(state: State, i_batch: int) -> None:
    """Set the parts and the work of the step.

    Rows of complete requests are computed too, and all prompts are padded to the longest.
    """
    config, batch, parts = state.config[0], state.batches[i_batch], state.parts[i_batch]
    n_prefill, n_decode, longest, pairs, context, first = 0, 0, 0, 0, 0, _first_row(state, i_batch)
    for row in range(batch.n_rows):
        index = state.queue.running[first + row]
        request, part = state.requests[index], parts[row]
        before = request.num_computed_tokens
        is_live = request.status == _RUNNING and (
            before == 0 or _n_outputs(request) < _n_wanted(config, request)
        )
        n_tokens = 1 if before > 0 else request.num_prompt_tokens
        if before == 0:
            n_prefill += 1
            longest = max(longest, n_tokens)
            pairs += n_tokens * (n_tokens + 1) // 2
        else:
            n_decode += 1
            context += before + 1
        part.kind = _CONTEXT if before == 0 else (_GENERATION if is_live else _ENDED)
        part.request = index
        part.num_tokens = n_tokens
        part.num_computed_tokens = before
        part.slot = request.slot
        part.yields_token = int(is_live)
        request.num_computed_tokens = before + n_tokens
    batch.n_parts = batch.n_rows
    batch.n_prefill_requests = n_prefill
    batch.n_decode_requests = n_decode
    batch.prefill_tokens = n_prefill * longest
    batch.prefill_pairs_tokens2 = pairs
    batch.decode_context_tokens = context


@compiled
def _n_wanted(config: Config, request: Request) -> int:
    """The number of tokens after which this request stops."""
    n_tokens: int = min(request.stop_tokens, _n_allowed(config, request))
    return n_tokens


@compiled
def _n_allowed(config: Config, request: Request) -> int:
    """The largest number of output tokens of a request."""
    n_tokens: int = min(request.max_tokens, config.max_model_len - request.num_prompt_tokens)
    return n_tokens


@compiled
def _n_outputs(request: Request) -> int:
    """The number of tokens computed for a request, including those after its end.

    The step that computes the prompt yields the first one.
    """
    n_tokens: int = request.num_computed_tokens - request.num_prompt_tokens + 1
    return n_tokens
