"""Which requests compute how many tokens in the next step? TensorRT-LLM's in-flight batching, compiled.

The same as ``reference.trtllm.TrtllmScheduler``, on arrays. ``State.running`` holds the active requests in order of arrival.
"""

from inferometer.simulate.compiling import compiled, inlined, merged
from inferometer.simulate.kernel import preemption, queue, seats
from inferometer.simulate.kernel.state import NOTHING, State
from inferometer.simulate.kernel.trtllm_batch import form_batch
from inferometer.simulate.reference.request import Status
from inferometer.simulate.trtllm_config import CAPACITY_POLICIES

_RUNNING, _PREEMPTED = int(Status.RUNNING), int(Status.PREEMPTED)
_MAX_UTILIZATION, _STATIC_BATCH = CAPACITY_POLICIES.index("MAX_UTILIZATION"), CAPACITY_POLICIES.index("STATIC_BATCH")


@merged
def schedule(state: State, slot: int) -> None:
    """Decide the next step and note it as batch ``slot``: contexts first, then generations."""
    config, counters = state.config[0], state.counters[0]
    counters.n_preempted = 0
    while counters.n_active < config.max_num_active:
        index = queue.peek(state)
        if index == NOTHING:
            break
        queue.pop(state)
        counters.n_waiting += 1  # until it is given blocks
        state.running[counters.n_active] = index
        counters.n_active += 1
    n_fitting = _fit_for_a_step(state) if config.capacity_policy == _MAX_UTILIZATION else _fit_to_completion(state)
    form_batch(state, slot, n_fitting)


@inlined
def _fit_to_completion(state: State) -> int:
    """Whoever generates, then in order whoever can be given all blocks that it may ever need. They are noted in ``skipped``."""
    counters, fitting = state.counters[0], state.skipped
    n_available, n_fitting = counters.n_free, 0
    for i_active in range(counters.n_active):
        index = state.running[i_active]
        if _is_generating(state, index):
            n_available -= _n_blocks_to_completion(state, index)
            fitting[n_fitting] = index
            n_fitting += 1
    if n_fitting > 0 and state.config[0].capacity_policy == _STATIC_BATCH:
        return n_fitting
    for i_active in range(counters.n_active):
        index = state.running[i_active]
        if _is_generating(state, index):
            continue
        n_needed = _n_blocks_to_completion(state, index)
        if n_needed > n_available:
            break
        n_available -= n_needed
        fitting[n_fitting] = index
        n_fitting += 1
    return n_fitting


@inlined
def _fit_for_a_step(state: State) -> int:
    """In order whoever can be given the blocks of its next step; for that the last one that has blocks is paused."""
    counters, fitting = state.counters[0], state.skipped
    n_scheduled, n_fitting, i_active, n_active = 0, 0, 0, counters.n_active
    while i_active < n_active:
        index = state.running[i_active]
        n_needed = _n_blocks_for_a_step(state, index)
        if n_scheduled + n_needed <= counters.n_free:
            n_scheduled += n_needed
            fitting[n_fitting] = index
            n_fitting += 1
            i_active += 1
            continue
        i_victim = n_active - 1
        while i_victim >= i_active and state.requests[state.running[i_victim]].status != _RUNNING:
            i_victim -= 1
        if i_victim < i_active:
            break
        _pause(state, state.running[i_victim])
        n_active = i_victim
    return n_fitting


@compiled
def _pause(state: State, index: int) -> None:
    """Take everything from a request but its tokens; it will compute them again."""
    release(state, index)
    state.counters[0].n_waiting += 1
    preemption.lose_place(state, index)


@compiled
def release(state: State, index: int) -> None:
    """Take the blocks and the seat of one that runs."""
    counters, request = state.counters[0], state.requests[index]
    counters.n_free += request.num_blocks
    request.num_blocks = 0
    seats.release(state, index)
    counters.n_running -= 1


@compiled
def _is_generating(state: State, index: int) -> bool:
    request = state.requests[index]
    is_generating: bool = request.status == _RUNNING and not request.is_prefill_chunk
    return is_generating


@compiled
def _n_most_tokens(state: State, index: int) -> int:
    request = state.requests[index]
    n_tokens: int = min(request.num_prompt_tokens + request.max_tokens, state.config[0].max_model_len)
    return n_tokens


@compiled
def _n_blocks(state: State, num_tokens: int) -> int:
    size = state.config[0].block_size
    n_blocks: int = (num_tokens + size - 1) // size
    return n_blocks


@compiled
def _n_blocks_to_completion(state: State, index: int) -> int:
    """How many more would it need if it went on to its last allowed token?"""
    n_more: int = _n_blocks(state, _n_most_tokens(state, index)) - state.requests[index].num_blocks
    return n_more


@compiled
def _n_blocks_for_a_step(state: State, index: int) -> int:
    """How many more does its next step need?"""
    request = state.requests[index]
    if request.status != _RUNNING:
        return _n_blocks(state, request.num_tokens)
    if request.is_prefill_chunk:
        return 0
    n_tokens = min(request.num_computed_tokens + 1, _n_most_tokens(state, index))
    n_more: int = _n_blocks(state, n_tokens) - request.num_blocks
    return n_more


__all__ = ["release", "schedule"]
