"""Who generates a token, and who has to go for that?

SGLang's rules, compiled; the same as ``reference.sglang.SglangScheduler``'s.
"""

from inferometer.simulate.compiling import compiled
from inferometer.simulate.kernel import sglang_cache as cache
from inferometer.simulate.kernel.sglang_admission import max_new_tokens
from inferometer.simulate.kernel.state import State
from inferometer.simulate.sglang_config import RETRACT_DECODE_STEPS


@compiled
def decode(state: State) -> int:
    """How many of ``running`` generate a token now? All of them or none."""
    own, n_before = state.sglang[0], state.sglang[0].n_generating
    _drop_finishing(state)
    if own.n_generating > 0:
        if _fits(state):
            own.new_token_ratio = max(
                own.new_token_ratio - own.new_token_ratio_decay, own.least_new_token_ratio
            )
        elif own.n_generating < n_before:  # the pages of those who finish come free with this step
            return 0
        else:
            _retract(state)
    if own.n_generating < n_before:
        own.is_batch_full = 0
    if own.n_generating == 0 or not _fits(state):
        return 0
    _extend(state)
    n_decoding: int = own.n_generating
    return n_decoding


@compiled
def mix(state: State) -> bool:
    """Does everybody in ``running`` generate a token in a step of prompts?

    All or, where memory lacks, nobody.
    """
    own = state.sglang[0]
    _drop_finishing(state)
    if own.n_generating == 0 or not _fits(state):
        return False
    for i_running in range(own.n_generating):
        request = state.requests[state.running[i_running]]
        request.num_known_tokens = request.num_tokens
    _extend(state)
    return True


@compiled
def _drop_finishing(state: State) -> None:
    """Whose last token is in flight generates no more."""
    own, n_kept = state.sglang[0], 0
    for i_running in range(own.n_generating):
        index = state.running[i_running]
        if not _will_finish(state, index):
            state.running[n_kept] = index
            n_kept += 1
    if n_kept < own.n_generating:
        own.is_batch_full = 0
    own.n_generating = n_kept


@compiled
def _extend(state: State) -> None:
    """Room for one more token of each who generates."""
    n_generating = state.sglang[0].n_generating
    cache.make_room(state, n_generating * state.config[0].block_size)
    for i_running in range(n_generating):
        cache.extend(
            state,
            state.running[i_running],
            state.requests[state.running[i_running]].num_computed_tokens + 1,
        )


@compiled
def _will_finish(state: State, index: int) -> bool:
    """Is its last token in flight?"""
    request = state.requests[index]
    if request.num_output_placeholders == 0:
        return False
    will_finish: bool = request.num_tokens - request.num_prompt_tokens + 1 >= max_new_tokens(
        state, index
    )
    return will_finish


@compiled
def _fits(state: State) -> bool:
    """Is there room for one more token of each, if what nobody uses goes?"""
    size, n_tokens = state.config[0].block_size, 0
    for i_running in range(state.sglang[0].n_generating):
        n_tokens += size * (
            state.requests[state.running[i_running]].num_computed_tokens % size == 0
        )
    cache.make_room(state, n_tokens)
    is_fitting: bool = cache.n_unused_pages(state) * size >= n_tokens
    return is_fitting


@compiled
def _retract(state: State) -> None:
    """Throw out whoever has said least, of these who has the longest prompt, until the others fit; the last one stays."""
    own, counters, n_before = state.sglang[0], state.counters[0], state.counters[0].n_preempted
    _sort_by_progress(state)
    while own.n_generating > 1 and (counters.n_preempted == n_before or not _fits(state)):
        own.n_generating -= 1
        cache.throw_out(state, state.running[own.n_generating])
    for i_preempted in range(n_before, counters.n_preempted):
        cache.queue_up(state, state.preempted[i_preempted])
    n_said, n_most = 0, 0
    for i_running in range(own.n_generating):
        request = state.requests[state.running[i_running]]
        n_said += request.num_tokens - request.num_prompt_tokens
        n_most += max_new_tokens(state, state.running[i_running])
    own.new_token_ratio = min(
        (n_said + RETRACT_DECODE_STEPS * own.n_generating) / (n_most + 1), 1.0
    )


@compiled
def _sort_by_progress(state: State) -> None:
    """Whoever has said most first, of these whoever has the shortest prompt; equal ones keep their order."""
    running = state.running
    for i_next in range(1, state.sglang[0].n_generating):
        index, place = running[i_next], i_next
        while place > 0 and _is_ahead(state, index, running[place - 1]):
            running[place] = running[place - 1]
            place -= 1
        running[place] = index


@compiled
def _is_ahead(state: State, one: int, other: int) -> bool:
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
