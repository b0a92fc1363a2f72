"""SGLang's scheduler: requests of the next step and their tokens. Compiled.

The same as ``reference.sglang.SglangScheduler``, on arrays. ``Queue.running`` has the decoding
requests, ``Queue.joining`` the requests whose prompts were computed in the step before.
``Counters.n_running`` counts all requests that hold pages.
"""

from inferometer.records.types import ABSENT, PartKind
from inferometer.simulate.compiling import compiled, inlined
from inferometer.simulate.kernel import (
    requests,
    sglang_admission as admission,
    sglang_cache as cache,
    vllm,
)
from inferometer.simulate.kernel.sglang_admission import max_new_tokens, order_queue
from inferometer.simulate.kernel.state import NOTHING, State
from inferometer.simulate.outcome import Status
from inferometer.simulate.sglang_config import CLIP_MAX_NEW_TOKENS, RETRACT_DECODE_STEPS

_WAITING = int(Status.WAITING)
_RUNNING = int(Status.RUNNING)
_STOPPED = int(Status.STOPPED)
_CONTEXT = int(PartKind.CONTEXT)
_UNSEEN = int(Status.UNSEEN)
_LENGTH = int(Status.LENGTH)
_ABORTED = int(Status.ABORTED)


@compiled
def decode(state: State) -> int:
    """Prepare a decode step; returns the number of requests in ``Queue.running`` that decode.

    All of them decode, after some were retracted (preempted) if memory is short; or none.
    """
    own, n_before = state.sglang[0], state.sglang[0].n_generating
    _drop_finishing(state)
    if own.n_generating > 0:
        if _has_room_to_decode(state):
            own.new_token_ratio = max(
                own.new_token_ratio - own.new_token_ratio_decay, own.least_new_token_ratio
            )
        elif own.n_generating < n_before:  # pages of finishing requests become free with this step
            return 0
        else:
            _retract(state)
    if own.n_generating < n_before:
        own.is_batch_full = 0
    if own.n_generating == 0 or not _has_room_to_decode(state):
        return 0
    _extend(state)
    n_decoding: int = own.n_generating
    return n_decoding


@compiled
def mix(state: State) -> bool:
    """Let all requests in ``Queue.running`` decode in a prefill step (mixed chunk).

    Returns False, and none decodes, if memory is short.
    """
    own = state.sglang[0]
    _drop_finishing(state)
    if own.n_generating == 0 or not _has_room_to_decode(state):
        return False
    for i_running in range(own.n_generating):
        request = state.requests[state.queue.running[i_running]]
        request.num_known_tokens = request.num_tokens
    _extend(state)
    return True


@compiled
def _drop_finishing(state: State) -> None:
    """Remove requests whose last token is in flight from the decoding ones."""
    own, n_kept = state.sglang[0], 0
    for i_running in range(own.n_generating):
        index = state.queue.running[i_running]
        if not _will_finish(state, index):
            state.queue.running[n_kept] = index
            n_kept += 1
    if n_kept < own.n_generating:
        own.is_batch_full = 0
    own.n_generating = n_kept


@compiled
def _extend(state: State) -> None:
    """Allocate pages for one more token of each decoding request."""
    n_generating = state.sglang[0].n_generating
    cache.make_room(state, n_generating * state.config[0].block_size)
    for i_running in range(n_generating):
        cache.extend(
            state,
            state.queue.running[i_running],
            state.requests[state.queue.running[i_running]].num_computed_tokens + 1,
        )


@compiled
def _will_finish(state: State, index: int) -> bool:
    """Is the request's last token in flight?"""
    request = state.requests[index]
    if request.num_output_placeholders == 0:
        return False
    will_finish: bool = request.num_tokens - request.num_prompt_tokens + 1 >= max_new_tokens(
        state, index
    )
    return will_finish


@compiled
def _has_room_to_decode(state: State) -> bool:
    """Is there memory for one more token of each decoding request, once unused pages are evicted?

    ``ScheduleBatch.check_decode_mem`` of SGLang, which evicts too.
    """
    size, n_tokens = state.config[0].block_size, 0
    for i_running in range(state.sglang[0].n_generating):
        n_tokens += size * (
            state.requests[state.queue.running[i_running]].num_computed_tokens % size == 0
        )
    cache.make_room(state, n_tokens)
    is_fitting: bool = cache.n_unused_pages(state) * size >= n_tokens
    return is_fitting


@compiled
def _retract(state: State) -> None:
    """Preempt decoding requests until the others fit (SGLang's retraction); the last one stays.

    Fewest output tokens first, of equals the longest prompt. Raises ``new_token_ratio``.
    """
    own, counters, n_before = state.sglang[0], state.counters[0], state.counters[0].n_preempted
    _sort_by_progress(state)
    while own.n_generating > 1 and (
        counters.n_preempted == n_before or not _has_room_to_decode(state)
    ):
        own.n_generating -= 1
        cache.throw_out(state, state.queue.running[own.n_generating])
    for i_preempted in range(n_before, counters.n_preempted):
        cache.queue_up(state, state.queue.preempted[i_preempted])
    n_output, n_most = 0, 0
    for i_running in range(own.n_generating):
        request = state.requests[state.queue.running[i_running]]
        n_output += request.num_tokens - request.num_prompt_tokens
        n_most += max_new_tokens(state, state.queue.running[i_running])
    own.new_token_ratio = min(
        (n_output + RETRACT_DECODE_STEPS * own.n_generating) / (n_most + 1), 1.0
    )


@compiled
def _sort_by_progress(state: State) -> None:
    """Sort the decoding requests by most output tokens, then by shortest prompt (stable)."""
    running = state.queue.running
    for i_next in range(1, state.sglang[0].n_generating):
        index, place = running[i_next], i_next
        while place > 0 and _is_ahead(state, index, running[place - 1]):
            running[place] = running[place - 1]
            place -= 1
        running[place] = index


@compiled
def _is_ahead(state: State, one: int, other: int) -> bool:
    """Does ``one`` have more output tokens, or as many and a shorter prompt?"""
    first, second = state.requests[one], state.requests[other]
    n_first, n_second = (
        first.num_tokens - first.num_prompt_tokens,
        second.num_tokens - second.num_prompt_tokens,
    )
    if n_first != n_second:
        is_ahead: bool = n_first > n_second
        return is_ahead
    has_shorter: bool = first.num_prompt_tokens < second.num_prompt_tokens
    return has_shorter


@compiled
def add(state: State, index: int) -> None:
    """Add an arriving request to the waiting queue."""
    state.requests[index].status = _WAITING
    cache.queue_up(state, index)


@inlined
def schedule(state: State, i_batch: int) -> None:
    """Form the next step as batch ``i_batch``: prefills if there are any, else decodes."""
    own, batch = state.sglang[0], state.batches[i_batch]
    batch.n_parts = 0
    state.counters[0].n_preempted = 0
    if state.counters[0].n_running == 0 and _have_all_just_arrived(state):
        own.new_token_ratio = own.initial_new_token_ratio
    _merge(state)
    _prefill(state, i_batch)
    if batch.n_parts > 0 and state.config[0].is_mixed_chunk and mix(state):
        for i_running in range(own.n_generating):
            _add_part(state, i_batch, state.queue.running[i_running], 1)
        own.n_generating = 0
    own.n_joining = batch.n_parts
    for i_part in range(batch.n_parts):
        state.queue.joining[i_part] = state.parts[i_batch, i_part].request
    if batch.n_parts == 0:
        n_decoding = decode(state)
        for i_running in range(n_decoding):
            _add_part(state, i_batch, state.queue.running[i_running], 1)
    vllm.launch(state, i_batch)


@compiled
def _have_all_just_arrived(state: State) -> bool:
    """Did all waiting requests arrive at this very time? SGLang was idle before then."""
    counters, size = state.counters[0], len(state.queue.waiting)
    for i_waiting in range(counters.waiting_size):
        request = state.requests[state.queue.waiting[(counters.waiting_head + i_waiting) % size]]
        if request.status < _STOPPED and request.arrival_ns != counters.now_ns:
            return False
    return True


@compiled
def _merge(state: State) -> None:
    """Move requests with complete prompts to the decoding ones; remove finished ones."""
    own = state.sglang[0]
    if own.cut != NOTHING:
        cache.checkpoint(state, own.cut, state.requests[own.cut].num_computed_tokens)
    n_kept = 0
    for i_running in range(own.n_generating):
        index = state.queue.running[i_running]
        if state.requests[index].status < _STOPPED:
            state.queue.running[n_kept] = index
            n_kept += 1
    n_left = own.n_generating - n_kept
    for i_joining in range(own.n_joining):
        index = state.queue.joining[i_joining]
        if state.requests[index].status < _STOPPED and index != own.cut:
            state.queue.running[n_kept] = index
            n_kept += 1
        else:
            n_left += 1
    own.n_generating = n_kept
    if n_left > 0:
        own.is_batch_full = 0


@compiled
def _prefill(state: State, i_batch: int) -> None:
    """Add the prompts that the batch computes, with the tokens of each, to batch ``i_batch``."""
    own, config, size, n_old = state.sglang[0], state.config[0], state.config[0].block_size, 0
    if own.n_generating == 0 or config.is_preempting:
        own.is_batch_full = 0
    if own.cut == NOTHING and (own.is_batch_full or state.counters[0].n_waiting == 0):
        return
    own.n_chosen = 0
    if own.cut == NOTHING and _n_places(state) <= 0 and not config.is_preempting:
        own.is_batch_full = 1
        return
    order_queue(state)
    admission.begin(state)
    if own.cut != NOTHING:
        index = own.cut
        n_tokens = admission.go_on(state, index)
        if n_tokens == 0:
            return
        own.n_chosen = n_old = 1
        _add_part(state, i_batch, index, n_tokens)
    _admit_waiting(state, i_batch)
    for i_part in range(n_old, state.batches[i_batch].n_parts):
        requests.take(state, state.parts[i_batch, i_part].request)
    n_tokens = 0
    for i_part in range(state.batches[i_batch].n_parts):
        n_tokens += state.parts[i_batch, i_part].num_tokens
    cache.make_room(state, n_tokens + (own.n_chosen * size if size > 1 else 0))
    for i_part in range(state.batches[i_batch].n_parts):
        part = state.parts[i_batch, i_part]
        cache.extend(
            state, part.request, state.requests[part.request].num_computed_tokens + part.num_tokens
        )
    for i_preempted in range(state.counters[0].n_preempted):
        cache.queue_up(state, state.queue.preempted[i_preempted])


@compiled
def _admit_waiting(state: State, i_batch: int) -> None:
    """Admit waiting requests in order until one does not fit."""
    own, is_preempting = state.sglang[0], state.config[0].is_preempting
    while True:
        index = requests.peek(state)
        if index == NOTHING or admission.verdict(state) == admission.OTHER:
            return
        if own.n_chosen >= _n_places(state):
            own.is_batch_full = 1
        if own.is_batch_full and not (is_preempting and preempt_for(state, index)):
            return
        num_cached, node = cache.match(state, index, state.requests[index].num_tokens - 1)
        state.requests[index].num_known_tokens = state.requests[index].num_tokens - num_cached
        verdict, n_tokens = admission.try_to_add(state, index, node, num_cached)
        if n_tokens > 0:
            requests.pop(state)
            _start(state, index)
            _add_part(state, i_batch, index, n_tokens)
        if verdict == admission.NO_TOKEN:
            own.is_batch_full = int(own.n_chosen > 0 or own.n_generating > 0)
        if verdict != admission.CONTINUE:
            return


@compiled
def _start(state: State, index: int) -> None:
    """Mark a request as running; its slot is assigned after all preemptions of this step."""
    counters, request = state.counters[0], state.requests[index]
    if request.status == _WAITING:
        request.num_cached_tokens = request.num_computed_tokens
        request.admitted_ns = counters.now_ns
    request.status = _RUNNING
    request.num_known_tokens = request.num_tokens
    counters.n_running += 1


@compiled
def _n_places(state: State) -> int:
    """The number of requests that the next batch may still take."""
    own, n_most = state.sglang[0], state.config[0].max_num_active
    n_places: int = min(
        n_most - own.n_generating, n_most - state.counters[0].n_running + own.n_chosen
    )
    return n_places


@compiled
def _add_part(state: State, i_batch: int, index: int, n_tokens: int) -> None:
    batch = state.batches[i_batch]
    part = state.parts[i_batch, batch.n_parts]
    part.request = index
    part.num_tokens = n_tokens
    batch.n_parts += 1


# SGLang's preemption for a more urgent request: the same as ``_preempt_for`` of
# ``reference.sglang.SglangScheduler``, and ``victims_of`` of ``reference.sglang_admission``.


@compiled
def preempt_for(state: State, index: int) -> bool:
    """Preempt less urgent decoding requests for a waiting one.

    Their priority differs by more than ``priority_scheduling_preemption_threshold``. Returns False
    and preempts none if they do not free enough memory.
    """
    own = state.sglang[0]
    n_victims = _mark_victims(state, index)
    if n_victims == 0:
        return False
    i_running = 0
    while i_running < own.n_generating:
        victim = state.queue.running[i_running]
        if not state.queue.chunks[i_running]:
            i_running += 1
            continue
        for i_later in range(i_running + 1, own.n_generating):
            state.queue.running[i_later - 1] = state.queue.running[i_later]
            state.queue.chunks[i_later - 1] = state.queue.chunks[i_later]
        own.n_generating -= 1
        own.total_offset -= admission.n_expected(state, victim)
        cache.throw_out(state, victim)
    return True


@compiled
def _mark_victims(state: State, index: int) -> int:
    """Mark the requests to preempt for this one in ``Queue.chunks``; returns their number.

    The least urgent first, then the latest in the queue; 0 if all of them together do not suffice.
    """
    own, config, request, n_victims = state.sglang[0], state.config[0], state.requests[index], 0
    for i_running in range(own.n_generating):
        state.queue.chunks[i_running] = 0
    n_wanted = (
        request.num_known_tokens
        + min(admission.max_new_tokens(state, index), CLIP_MAX_NEW_TOKENS)
        - admission.total_left(state)
    )
    while True:
        i_worst = NOTHING
        for i_running in range(own.n_generating):
            if not state.queue.chunks[i_running] and (
                i_worst == NOTHING or _is_less_urgent(state, i_running, i_worst)
            ):
                i_worst = i_running
        if i_worst == NOTHING:
            return 0
        worst = state.requests[state.queue.running[i_worst]]
        if (
            config.priority_sign * (worst.priority - request.priority)
            <= config.preemption_threshold
        ):
            return 0
        state.queue.chunks[i_worst] = 1
        n_victims += 1
        n_wanted -= admission.n_expected(state, state.queue.running[i_worst])
        if n_wanted <= 0:
            return n_victims


@compiled
def _is_less_urgent(state: State, i_one: int, i_other: int) -> bool:
    """Is ``i_one`` less urgent by priority, or queued later with the same priority?"""
    one, other = (
        state.requests[state.queue.running[i_one]],
        state.requests[state.queue.running[i_other]],
    )
    if one.priority != other.priority:
        is_less: bool = state.config[0].priority_sign * (one.priority - other.priority) > 0
        return is_less
    came_later: bool = one.turn > other.turn
    return came_later


@inlined
def update(state: State, i_batch: int) -> int:
    """Process the results of batch ``i_batch``; returns the number of delivered tokens.

    Tokens that were in flight when their request was retracted are computed again.
    """
    parts, n_delivered = state.parts[i_batch], 0
    for i_part in range(state.batches[i_batch].n_parts):
        part = parts[i_part]
        request = state.requests[part.request]
        is_stale = request.num_stale_output_tokens > 0
        request.num_in_flight_tokens -= part.num_tokens
        if is_stale:
            request.num_stale_output_tokens -= part.num_tokens
        part.n_delivered = 0
        if request.status >= _STOPPED or is_stale or not part.yields_token:
            continue
        part.n_delivered = 1
        n_delivered += 1
        if request.first_token_ns == ABSENT:
            request.first_token_ns = state.counters[0].now_ns
        _deliver_token(state, part.request, part.kind == _CONTEXT)
    return n_delivered


@compiled
def abort(state: State, index: int) -> None:
    """Abort a request; its computed pages stay in the radix tree.

    A waiting request stays in the queue, where ``Counters.n_waiting`` does not count it.
    """
    status, when_ns = state.requests[index].status, state.arrivals.abort_ns[index]
    if status >= _STOPPED:
        return
    if status == _RUNNING:
        _end(state, index, _ABORTED, when_ns)
        return
    if status != _UNSEEN:
        state.counters[0].n_waiting -= 1
    requests.end(state, index, _ABORTED, when_ns)


@inlined
def _deliver_token(state: State, index: int, is_first: bool) -> None:  # noqa: FBT001 -- compiled code takes no keywords
    """Deliver a token to a request; end the request, or cache its prompt after the first."""
    request, now_ns = state.requests[index], state.counters[0].now_ns
    request.num_tokens += 1
    if state.config[0].is_async:
        request.num_output_placeholders -= 1
    num_output = request.num_tokens - request.num_prompt_tokens
    if num_output == request.stop_tokens:
        _end(
            state, index, _STOPPED if request.stop_tokens < request.max_tokens else _LENGTH, now_ns
        )
    elif num_output >= max_new_tokens(state, index):
        _end(state, index, _LENGTH, now_ns)
    elif is_first:
        cache.checkpoint(state, index, request.num_tokens - 1)


@compiled
def _end(state: State, index: int, status: int, when_ns: int) -> None:
    """End a running request; its computed pages stay in the radix tree."""
    request = state.requests[index]
    cache.checkpoint(state, index, min(request.num_computed_tokens, request.num_tokens))
    cache.release(state, index)
    requests.release(state, index)
    state.counters[0].n_running -= 1
    if state.sglang[0].cut == index:
        state.sglang[0].cut = NOTHING
    requests.end(state, index, status, when_ns)
