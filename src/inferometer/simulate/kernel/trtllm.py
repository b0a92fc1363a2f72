"""Which requests compute how many tokens in the next step?

TensorRT-LLM's in-flight batching, compiled.

The same as ``reference.trtllm.TrtllmScheduler``, on arrays. ``State.running`` holds the active
requests in order of arrival.
"""

from inferometer.simulate.compiling import compiled, inlined
from inferometer.simulate.kernel import preemption, queue, trtllm_blocks as tree
from inferometer.simulate.kernel.state import NOTHING, State
from inferometer.simulate.kernel.trtllm_batch import form_batch
from inferometer.simulate.status import Status
from inferometer.simulate.trtllm_config import CAPACITY_POLICIES

_RUNNING = int(Status.RUNNING)
_MAX_UTILIZATION, _STATIC_BATCH = (
    CAPACITY_POLICIES.index("MAX_UTILIZATION"),
    CAPACITY_POLICIES.index("STATIC_BATCH"),
)


@inlined
def schedule(state: State, slot: int) -> None:
    """Decide the next step and note it as batch ``slot``: contexts first, then generations."""
    config, counters = state.config[0], state.counters[0]
    counters.n_preempted = 0
    counters.current_step += 1
    while counters.n_active < config.max_num_active:
        index = queue.peek(state)
        if index == NOTHING:
            break
        queue.pop(state)
        counters.n_waiting += 1  # until it is given blocks
        state.running[counters.n_active] = index
        counters.n_active += 1
    n_fitting = (
        _fit_for_a_step(state)
        if config.capacity_policy == _MAX_UTILIZATION
        else _fit_to_completion(state)
    )
    form_batch(state, slot, n_fitting)


@inlined
def _fit_to_completion(state: State) -> int:
    """Whoever generates, then in order whoever can be given all blocks that it may ever need.

    They are noted in ``skipped``.
    """
    counters, fitting = state.counters[0], state.skipped
    n_available, n_fitting = counters.n_free, 0
    for i_active in range(counters.n_active):
        index = state.running[i_active]
        if _is_generating(state, index):
            n_available -= _n_blocks_to_completion(state, index)
            fitting[n_fitting] = index
            n_fitting += 1
    is_static = state.config[0].capacity_policy == _STATIC_BATCH
    if n_fitting > 0 and is_static:
        return n_fitting
    _note_contents_that_come(state)
    for i_active in range(counters.n_active):
        index = state.running[i_active]
        if _is_generating(state, index) or (not is_static and _is_worth_waiting(state, index)):
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
    _note_contents_that_come(state)
    while i_active < n_active:
        index = state.running[i_active]
        if _is_worth_waiting(state, index):
            i_active += 1
            continue
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
        n_active, n_scheduled = i_victim, 0
        for i_fitting in range(n_fitting):  # what they would share may have come free
            n_scheduled += _n_blocks_for_a_step(state, fitting[i_fitting])
    return n_fitting


@compiled
def _note_contents_that_come(state: State) -> None:
    """Mark what those will leave first whose contexts are computed in chunks, by the number of this step."""
    for i_active in range(state.counters[0].n_active):
        request = state.requests[state.running[i_active]]
        if request.status == _RUNNING and request.is_prefill_chunk:
            content = tree.first_new_content(state, state.running[i_active])
            if content != NOTHING:
                state.last_equal[content] = state.counters[0].current_step


@compiled
def _is_worth_waiting(state: State, index: int) -> bool:
    """Will another one leave the first block that this one, which has not begun, would compute?

    If not, this one will.
    """
    if state.requests[index].status == _RUNNING or not state.config[0].is_prefix_aware:
        return False
    content = tree.first_new_content(state, index)
    if content == NOTHING:
        return False
    is_coming: bool = state.last_equal[content] == state.counters[0].current_step
    state.last_equal[content] = state.counters[0].current_step
    return is_coming


@compiled
def _pause(state: State, index: int) -> None:
    """Take everything from a request but its tokens; it will compute them again."""
    release(state, index)
    state.counters[0].n_waiting += 1
    preemption.lose_place(state, index)


@compiled
def release(state: State, index: int) -> None:
    """Take the blocks and the seat of one that runs."""
    tree.release(state, index)
    state.counters[0].n_running -= 1


@compiled
def _is_generating(state: State, index: int) -> bool:
    request = state.requests[index]
    is_generating: bool = request.status == _RUNNING and not request.is_prefill_chunk
    return is_generating


@compiled
def _n_most_tokens(state: State, index: int) -> int:
    request = state.requests[index]
    n_tokens: int = min(
        request.num_prompt_tokens + request.max_tokens, state.config[0].max_model_len
    )
    return n_tokens


@compiled
def _n_blocks(state: State, num_tokens: int) -> int:
    size = state.config[0].block_size
    n_blocks: int = (num_tokens + size - 1) // size
    return n_blocks


@compiled
def _n_blocks_to_completion(state: State, index: int) -> int:
    """How many more free blocks would it need if it went on to its last allowed token?"""
    n_more: int = _n_blocks(state, _n_most_tokens(state, index)) - _n_blocks_given(state, index)
    return n_more


@compiled
def _n_blocks_for_a_step(state: State, index: int) -> int:
    """How many more does its next step need?"""
    request = state.requests[index]
    if request.is_prefill_chunk:
        return (
            0
            if request.status == _RUNNING
            else _n_blocks(state, request.num_tokens) - _n_blocks_given(state, index)
        )
    n_tokens = min(request.num_computed_tokens + 1, _n_most_tokens(state, index))
    n_more: int = _n_blocks(state, n_tokens) - request.num_blocks
    return n_more


@compiled
def _n_blocks_given(state: State, index: int) -> int:
    """What it has, or could have without taking a free block."""
    request = state.requests[index]
    n_given: int = (
        request.num_blocks if request.status == _RUNNING else tree.n_hits_in_use(state, index)
    )
    return n_given
