"""The v1 scheduler of vLLM: requests of the next step and their tokens. Compiled.

The same as ``reference.Scheduler``, on arrays; both mirror
``vllm/v1/core/sched/{scheduler,async_scheduler}.py`` of vLLM 0.32.0.
"""

from typing import Final

from inferometer.records.types import ABSENT, PartKind
from inferometer.simulate.compiling import compiled, inlined
from inferometer.simulate.kernel import blocks, handover, pool, requests, steady
from inferometer.simulate.kernel.config import Config
from inferometer.simulate.kernel.state import NOTHING, Part, Request, State
from inferometer.simulate.outcome import Status
from inferometer.simulate.scheduler_config import n_accepted

_CONTEXT = int(PartKind.CONTEXT)
_GENERATION = int(PartKind.GENERATION)
_WAITING = int(Status.WAITING)
_RUNNING = int(Status.RUNNING)
_STOPPED = int(Status.STOPPED)
compiled_n_accepted = compiled(n_accepted)
_LENGTH = int(Status.LENGTH)
_ABORTED = int(Status.ABORTED)
_PREFILLED = int(Status.PREFILLED)

IS_POOLED: Final = False
"""Is the KV cache divided into pools?"""
IS_SPLIT: Final = False
"""Are prefill and decode on separate replicas?"""


@compiled
def add(state: State, index: int) -> None:
    """Add an arriving request to the waiting queue."""
    request = state.requests[index]
    request.status = _WAITING
    if state.config[0].is_srpt:
        request.priority = blocks.num_left(state, index)
    requests.add(state, index)


@inlined
def schedule(state: State, i_batch: int) -> None:
    """Form the next step as batch ``i_batch``: the tokens of each request, and their sums."""
    state.batches[i_batch].n_parts = state.batches[i_batch].n_steady = 0
    state.batches[i_batch].num_swapped_blocks = 0
    state.counters[0].n_preempted = 0
    state.counters[0].current_step += 1
    if state.config[0].is_compacting:
        blocks.take_moved(state)
    _choose(state, i_batch)
    if state.config[0].is_compacting:
        blocks.plan_moves(state)
    launch(state, i_batch)
    is_pooled = IS_POOLED
    if is_pooled:
        _count_reads(state, i_batch)


@compiled
def _count_reads(state: State, i_batch: int) -> None:
    """Set the context tokens that decodes and drafts read, weighted by their pools' KV formats."""
    batch, parts, read, yielding = state.batches[i_batch], state.parts[i_batch], 0, 0
    for i_part in range(batch.n_parts):
        part = parts[i_part]
        n_read = pool.read_millionths(
            state, part.request, part.num_computed_tokens + part.num_tokens
        )
        if part.kind == _GENERATION:
            read += n_read
        if part.yields_token:
            yielding += n_read
    batch.read_context_tokens = (read + 500_000) // 1_000_000
    batch.yielding_context_tokens = (yielding + 500_000) // 1_000_000


@inlined
def _choose(state: State, i_batch: int) -> None:
    """Choose the tokens of each request in the step; preempt requests if blocks are short.

    By the rules of ``SchedulerConfig.rules``: vLLM's v1, vLLM's v0, Sarathi's or Orca's.
    """
    config, threshold = state.config[0], _long_prefill_threshold(state)
    budget: int = config.max_num_batched_tokens
    if config.is_vllm_v0:
        _admit_waiting(state, i_batch, budget, threshold)
        if state.batches[i_batch].n_parts == 0:
            _schedule_running(state, i_batch, budget, threshold, NOTHING)
    elif config.is_sarathi:
        budget = _schedule_running(state, i_batch, budget, threshold, 0)
        budget = _schedule_running(state, i_batch, budget, threshold, 1)
        _admit_waiting(state, i_batch, budget, threshold)
    else:
        if config.is_srpt:
            blocks.make_room_for_waiting(state, i_batch)
        is_pooled, n_preempted_before = IS_POOLED, state.counters[0].n_preempted
        if is_pooled:
            pool.open_all(state)
        budget = _schedule_running(state, i_batch, budget, threshold, NOTHING)
        is_admitting = is_pooled or state.counters[0].n_preempted == n_preempted_before
        if is_admitting and state.counters[0].n_waiting > 0:
            _admit_waiting(state, i_batch, budget, threshold)


@compiled
def _long_prefill_threshold(state: State) -> int:
    """The largest number of tokens of one request in this step; 0: no limit.

    There is no limit if the engine has only one request.
    """
    config, counters = state.config[0], state.counters[0]
    n_eligible = counters.n_running + counters.n_waiting
    threshold: int = config.long_prefill_token_threshold if n_eligible > 1 else 0
    if threshold > 0 and config.is_adaptive:
        threshold = max(threshold, config.max_num_batched_tokens // n_eligible)
    return threshold


@compiled
def _schedule_running(
    state: State, i_batch: int, budget: int, threshold: int, is_prefill: int
) -> int:
    """Schedule running requests in order of admission; returns the token budget that is left.

    ``is_prefill``: 1 only prefills, 0 only decodes, ``NOTHING`` both (Sarathi schedules decodes
    first).
    """
    counters, batch, num_slots = (
        state.counters[0],
        state.batches[i_batch],
        state.config[0].num_draft_slots,
    )
    is_pooled, i_running, is_steady = IS_POOLED, 0, steady.may_be(state, budget)
    while i_running < counters.n_running and budget > num_slots * (batch.n_parts + 1):
        if is_steady and steady.goes_on(state, i_running):
            budget -= 1
            i_running += 1
            continue
        index = state.queue.running[i_running]
        n_tokens = _num_running_tokens(
            state, index, budget - num_slots * (batch.n_parts + 1), threshold
        )
        is_left_out = is_prefill == 1 - state.requests[index].is_prefill_chunk
        if n_tokens == 0 or is_left_out or (is_pooled and pool.closed(state, index) > 1):
            i_running += 1
            continue
        while not blocks.extend(state, index, n_tokens):
            i_victim = blocks.victim_in_pool(state, index) if is_pooled else blocks.victim(state)
            victim = state.queue.running[i_victim]
            if i_victim < i_running:
                i_running -= 1
                budget += blocks.drop_from_step(state, i_batch, victim)
            blocks.preempt(state, i_batch, i_victim)
            if is_pooled:
                pool.close(state, index, 2 if victim == index else 1)
            if victim == index:
                if is_pooled:
                    break
                return budget
        if is_pooled and state.requests[index].slot == NOTHING:
            continue  # requests of other pools may get blocks
        steady.add_part(state, i_batch, i_running, n_tokens, is_steady)
        budget -= n_tokens
        i_running += 1
    steady.end_from(state, i_running, counters.current_step - 1)
    batch.n_steady = counters.n_steady
    return budget


@compiled
def _input_budget(state: State, i_batch: int, budget: int) -> int:
    """The largest number of tokens of one more request in the step.

    Less than the budget if draft tokens take places in the batch; vLLM v0 pads all prompts to the
    longest, so that its budget is divided by the number of prompts.
    """
    if state.config[0].is_vllm_v0:
        return _padded_budget(state, i_batch)
    n_taken: int = state.config[0].num_draft_slots * (state.batches[i_batch].n_parts + 1)
    return budget - n_taken


@compiled
def _padded_budget(state: State, i_batch: int) -> int:
    """Tokens per prompt if one more joins a padded batch (vLLM v0); 0: it does not fit."""
    n_parts = state.batches[i_batch].n_parts
    n_tokens: int = state.config[0].max_num_batched_tokens // (n_parts + 1)
    for i_part in range(n_parts):
        if state.parts[i_batch, i_part].num_tokens > n_tokens:
            return 0
    return n_tokens


@inlined
def _num_running_tokens(state: State, index: int, budget: int, threshold: int) -> int:
    """The number of tokens that a running request computes in this step; 0: none."""
    request = state.requests[index]
    placeholders = request.num_output_placeholders
    is_last = (
        placeholders > 0
        and request.num_computed_tokens + 2 - placeholders
        >= request.num_prompt_tokens + request.max_tokens
    )
    if is_last or state.counters[0].current_step < request.next_decode_eligible_step:
        return 0  # its last token is in flight, or has not returned to the first pipeline stage
    n_tokens: int = (
        request.num_tokens + request.num_spec_tokens + placeholders - request.num_computed_tokens
    )
    if 0 < threshold < n_tokens:
        n_tokens = threshold
    n_left: int = state.config[0].max_model_len - request.num_computed_tokens - 1
    return min(n_tokens, budget, n_left)


@compiled
def _admit_waiting(state: State, i_batch: int, budget: int, threshold: int) -> None:
    """Admit waiting requests in order until one does not fit."""
    config, counters = state.config[0], state.counters[0]
    is_split, is_pooled = IS_SPLIT, IS_POOLED
    n_skipped, n_scheduled = 0, state.batches[i_batch].n_parts
    is_padding = config.num_spec_tokens > 0 and not _is_prefilling(state, i_batch)
    if is_split and config.is_decode_pool:
        budget = _admit_received(
            state, i_batch, budget, threshold, n_scheduled if is_padding else NOTHING
        )
    while counters.n_running < config.max_num_active and not (
        config.is_one_prefill and _is_prefilling(state, i_batch)
    ):
        input_budget = _input_budget(state, i_batch, budget)
        if input_budget <= 0:
            break
        index = requests.peek(state)
        if index == NOTHING:
            break
        if _is_skipped(state, index):
            requests.pop(state)
            state.skipped[n_skipped] = index
            n_skipped += 1
            continue
        if is_split and handover.is_for_room(state, index):
            if not handover.fetch(state, index):
                break
            requests.pop(state)
            continue
        n_tokens = _admit(
            state, i_batch, index, input_budget, threshold, n_scheduled if is_padding else NOTHING
        )
        if n_tokens == 0 or (is_pooled and pool.are_all_closed(state)):
            break
        budget -= max(n_tokens, 0)
    for i_skipped in range(n_skipped - 1, -1, -1):
        requests.put_back(state, state.skipped[i_skipped])


@inlined
def _is_skipped(state: State, index: int) -> bool:
    """Is this waiting request skipped in this step, so that later ones can be admitted?

    It waits for its stale results or its swap to the host, or its KV pool is closed.
    """
    request, is_pooled = state.requests[index], IS_POOLED
    is_waiting = request.num_stale_output_tokens > 0 or (
        request.num_host_blocks > 0 and request.num_in_flight_tokens > 0
    )
    if is_pooled and pool.closed(state, index) > 0:
        is_waiting = True
    return is_waiting


@compiled
def _admit_received(
    state: State, i_batch: int, budget: int, threshold: int, n_scheduled: int
) -> int:
    """Admit the requests whose KV cache has arrived, before all other waiting requests.

    Returns the token budget that is left; 0 if one of them does not fit.
    """
    counters = state.counters[0]
    while counters.n_running < state.config[0].max_num_active:
        index, input_budget = handover.peek_received(state), _input_budget(state, i_batch, budget)
        if index == NOTHING or input_budget <= 0:
            return budget
        n_tokens = _admit(state, i_batch, index, input_budget, threshold, n_scheduled)
        if n_tokens == 0:
            return 0
        budget -= n_tokens
    return budget


@compiled
def _is_prefilling(state: State, i_batch: int) -> bool:
    """Does the step that is being formed have a prefill?"""
    parts, is_any = state.parts[i_batch], False
    for i_part in range(state.batches[i_batch].n_parts):
        is_any |= state.requests[parts[i_part].request].is_prefill_chunk != 0
    return is_any


@compiled
def _admit(
    state: State, i_batch: int, index: int, budget: int, threshold: int, n_scheduled: int
) -> int:
    """Admit a waiting request if it fits; returns the tokens that it computes in this step.

    0 if it does not fit; ``NOTHING`` if only its pool of a divided KV cache is full.
    ``n_scheduled``: running requests scheduled before; ``NOTHING`` if draft tokens pad no decode.
    """
    config, counters = state.config[0], state.counters[0]
    request, batch = state.requests[index], state.batches[i_batch]
    is_split, is_swapped = IS_SPLIT, request.num_host_blocks > 0
    is_received = _is_kv_received(state, index)
    n_hits = (
        blocks.find_hits(state, index)
        if config.is_caching and not (is_swapped or is_received)
        else 0
    )
    size = pool.block_size(state, pool.number_of(state, index))
    num_cached = request.num_computed_tokens + n_hits * size
    n_padding = 0
    if n_scheduled != NOTHING and n_scheduled + num_cached > 0:
        n_padding = _num_padded_drafts(config, request, num_cached)
    n_tokens: int = request.num_tokens - num_cached + n_padding
    if 0 < threshold < n_tokens:
        n_tokens = threshold
    if n_tokens > budget and (n_padding > 0 or not config.is_chunked):
        return 0
    n_tokens = min(n_tokens, budget)
    if is_split and is_received:
        if not handover.adopt(state, index, n_tokens):
            return 0
    elif blocks.admit(state, index, n_tokens, n_hits):
        requests.pop(state)
    else:
        return _not_admitted(state, index)
    request.num_spec_tokens = n_padding
    request.has_padded_drafts = n_padding > 0
    state.queue.running[counters.n_running] = index
    state.queue.steady_due[counters.n_running] = 0
    counters.n_running += 1
    if request.status == _WAITING:
        request.num_cached_tokens = num_cached
        request.admitted_ns = counters.now_ns
    request.status = _RUNNING
    request.num_computed_tokens = num_cached
    if is_swapped:
        batch.num_swapped_blocks += request.num_host_blocks
        blocks.drop_host_blocks(counters, request)
    elif not is_received:
        request.is_prefill_chunk = 1
    part = state.parts[i_batch, batch.n_parts]
    part.request = index
    part.num_tokens = n_tokens
    batch.n_parts += 1
    return n_tokens


@inlined
def _not_admitted(state: State, index: int) -> int:
    """Handle a request for which blocks are short: returns 0.

    If the KV cache is divided, close the request's pool in this step and return ``NOTHING``.
    """
    is_pooled, n_tokens = IS_POOLED, 0
    if is_pooled:
        pool.close(state, index, 1)
        n_tokens = NOTHING
    return n_tokens


@inlined
def _is_kv_received(state: State, index: int) -> bool:
    """Has this waiting request's KV cache arrived from its prefill replica?"""
    is_split, is_kv_received = IS_SPLIT, False
    if is_split:
        is_kv_received = handover.is_received(state, index)
    return is_kv_received


@compiled
def _num_padded_drafts(config: Config, request: Request, num_computed_tokens: int) -> int:
    """The number of padding draft tokens that give a decode as many rows as the others have.

    Padding tokens are never accepted.
    """
    is_decode = request.num_tokens - num_computed_tokens == 1
    is_room = num_computed_tokens + config.num_spec_tokens + 2 <= config.max_model_len
    n_drafts: int = config.num_spec_tokens if is_decode and is_room else 0
    return n_drafts


@inlined
def launch(state: State, i_batch: int) -> None:
    """Set the sums of a step (``Batch``), and count its tokens as computed from now on.

    Draft tokens that the step verifies count as prefill tokens; their attention counts as that of
    the decode to which they belong.
    """
    batch, parts, counters, is_async = (
        state.batches[i_batch],
        state.parts[i_batch],
        state.counters[0],
        state.config[0].is_async,
    )
    n_prefill, prefill_tokens, pairs, num_spec, n_yielding, yielding_context = 0, 0, 0, 0, 0, 0
    n_decode, context = batch.n_steady, steady.context_tokens(state)
    n_drafts: int = state.config[0].num_spec_tokens
    for i_part in range(batch.n_parts):
        part = parts[i_part]
        request = state.requests[part.request]
        before, n_tokens = request.num_computed_tokens, part.num_tokens
        part.num_computed_tokens = before
        part.slot = request.slot
        part.kind = _CONTEXT if request.is_prefill_chunk else _GENERATION
        if n_drafts > 0:
            num_spec += _take_drafts(part, request)
        if request.is_prefill_chunk:
            n_prefill += 1
            prefill_tokens += n_tokens
            pairs += n_tokens * before + n_tokens * (n_tokens + 1) // 2
        else:
            n_decode += 1
            prefill_tokens += n_tokens - 1
            context += before + n_tokens
        request.num_computed_tokens = before + n_tokens
        request.num_in_flight_tokens += n_tokens
        request.is_prefill_chunk = int(
            before + n_tokens < request.num_tokens + request.num_output_placeholders
        )
        part.yields_token = 1 - request.is_prefill_chunk
        if is_async and not request.is_prefill_chunk:
            request.num_output_placeholders += 1 + part.num_spec_tokens
            request.num_spec_tokens, request.next_decode_eligible_step = (
                n_drafts,
                counters.current_step + state.config[0].n_stages,
            )
        if n_drafts > 0 and not request.is_prefill_chunk:
            n_yielding += 1
            yielding_context += before + n_tokens
    batch.n_prefill_requests = n_prefill
    batch.n_decode_requests = n_decode
    batch.prefill_tokens = prefill_tokens
    batch.prefill_pairs_tokens2 = pairs
    batch.decode_context_tokens = context
    batch.num_spec_tokens = num_spec
    batch.n_yielding = n_yielding
    batch.yielding_context_tokens = yielding_context


@compiled
def _take_drafts(part: Part, request: Request) -> int:
    """Move the request's draft tokens that fit into its part of the step; returns their number."""
    n_beyond = (
        part.num_tokens
        + request.num_computed_tokens
        - request.num_tokens
        - request.num_output_placeholders
    )
    n_drafts: int = max(min(request.num_spec_tokens, n_beyond), 0)
    part.num_spec_tokens = n_drafts
    part.has_padded_drafts = request.has_padded_drafts
    request.num_spec_tokens = request.has_padded_drafts = 0
    return n_drafts


@inlined
def update(state: State, i_batch: int) -> int:
    """Process the results of batch ``i_batch`` now; returns the number of delivered tokens."""
    parts, counters = state.parts[i_batch], state.counters[0]
    n_delivered, n_stopped = state.batches[i_batch].n_steady, 0
    num_new_drafts: int = 0 if state.config[0].is_async else state.config[0].num_spec_tokens
    for i_part in range(state.batches[i_batch].n_parts):
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
            num_accepted = _verify(state, i_batch, i_part, is_stale)
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
    """Abort a request; a waiting one stays in the queue, but is no longer counted."""
    request = state.requests[index]
    was = request.status
    if was == _RUNNING:
        steady.end_one(state, index)
    requests.end(state, index, _ABORTED, state.arrivals.abort_ns[index])
    blocks.free(state, index)
    if was == _RUNNING:
        _drop_finished(state)
    else:
        state.counters[0].n_waiting -= 1


@compiled
def _verify(state: State, i_batch: int, i_part: int, is_stale: bool) -> int:  # noqa: FBT001
    """Verify the draft tokens of a part: returns how many are accepted; discards the others."""
    part = state.parts[i_batch, i_part]
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
def _deliver_tokens(state: State, index: int, num_tokens: int, is_stale: bool) -> int:  # noqa: FBT001
    """Deliver tokens to a request, those beyond its end excluded.

    Returns 1 if a running request ends with them, else 0.
    """
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
    """End a request, or hand it over to a decode replica; returns 1 if it was running, else 0."""
    is_split, was_running = IS_SPLIT, state.requests[index].status == _RUNNING
    if is_split and state.config[0].is_prefill_pool:
        status = handover.status_after_prefill(state, index)
    if is_split and status == _PREFILLED:
        state.requests[index].status = _PREFILLED
        handover.leave(state, index)
    else:
        requests.end(state, index, status, state.counters[0].now_ns)
        blocks.free(state, index)
    if was_running:
        return 1
    state.counters[0].n_waiting -= 1
    return 0


@compiled
def _drop_finished(state: State) -> None:
    """Remove requests that no longer run from the list of running ones."""
    counters, running = state.counters[0], state.queue.running
    n_kept = 0
    for i_running in range(counters.n_running):
        index = running[i_running]
        if state.requests[index].status < _STOPPED:
            steady.move(state, i_running, n_kept)
            n_kept += 1
    counters.n_running = n_kept
