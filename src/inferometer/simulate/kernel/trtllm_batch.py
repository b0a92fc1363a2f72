"""Which of the requests that fit into the KV cache fit into the batch, and with how many tokens?

TensorRT-LLM's rules, compiled.

The same as ``_micro_batch`` and ``_launch`` of ``reference/trtllm.py`` and as
``reference/trtllm_chunks.py``.
"""

from inferometer.simulate.compiling import compiled, inlined
from inferometer.simulate.kernel import seats, trtllm_blocks as tree
from inferometer.simulate.kernel.state import State
from inferometer.simulate.kernel.vllm_schedule import launch
from inferometer.simulate.status import Status
from inferometer.simulate.trtllm_config import CHUNKING_POLICIES

_WAITING, _RUNNING = int(Status.WAITING), int(Status.RUNNING)
_BY_ARRIVAL = CHUNKING_POLICIES.index("FIRST_COME_FIRST_SERVED")


@inlined
def form_batch(state: State, slot: int, n_fitting: int) -> None:
    """Make batch ``slot`` of the first ``n_fitting`` requests in ``skipped``.

    Contexts, unfinished ones first, then generations.
    """
    config = state.config[0]
    n_chosen, n_tokens, n_remaining = _choose(state, n_fitting)
    budget = config.max_num_batched_tokens - n_tokens
    is_cut = config.is_chunked and n_remaining > budget
    if is_cut:
        if config.chunking_policy == _BY_ARRIVAL:
            _cut_by_arrival(state, n_chosen, budget)
        else:
            _cut_in_lockstep(state, n_chosen, budget)
    state.batches[slot].n_parts = 0
    for is_last in range(2):
        for i_chosen in range(n_chosen):
            index = state.skipped[i_chosen]
            size = state.chunks[i_chosen]
            if (
                _is_context(state, index)
                and size > 0
                and is_last == (not is_cut or size == _remaining(state, index))
            ):
                _add_part(state, slot, index, size)
    for i_chosen in range(n_chosen):
        if not _is_context(state, state.skipped[i_chosen]) and state.chunks[i_chosen] > 0:
            _add_part(state, slot, state.skipped[i_chosen], 1)
    for i_part in range(state.batches[slot].n_parts):  # all of them before anybody takes a block
        _begin(state, state.parts[slot, i_part].request)
    for i_part in range(state.batches[slot].n_parts):
        _give_blocks(state, state.parts[slot, i_part].request)
    launch(state, slot)


@compiled
def _choose(state: State, n_fitting: int) -> tuple[int, int, int]:
    """Keep those that the batch has room for.

    How many, their tokens but those to be chunked, and those. The first too many ends it.
    """
    config, chosen = state.config[0], state.skipped
    n_chosen, n_tokens, n_remaining = 0, 0, 0
    for i_fitting in range(n_fitting):
        index = chosen[i_fitting]
        if _will_complete(state, index):
            continue
        if state.requests[index].status != _RUNNING:
            state.requests[index].num_computed_tokens = (
                tree.n_hits(state, index) * config.block_size
            )
        n_own = _remaining(state, index) if _is_context(state, index) else 1
        cost = 0 if config.is_chunked and _is_context(state, index) else n_own
        if n_tokens + cost > config.max_num_batched_tokens:
            break
        n_tokens += cost
        n_remaining += n_own - cost
        chosen[n_chosen] = index
        state.chunks[n_chosen] = n_own
        n_chosen += 1
        if n_chosen >= config.max_num_active:
            break
    return n_chosen, n_tokens, n_remaining


@compiled
def _cut_by_arrival(state: State, n_chosen: int, budget: int) -> None:
    """Each context in order takes what is left; a chunk that is not the last one is a whole number of blocks."""
    unit, left = state.config[0].block_size, budget
    for i_chosen in range(n_chosen):
        if not _is_context(state, state.skipped[i_chosen]):
            continue
        if state.chunks[i_chosen] > left:
            state.chunks[i_chosen] = left // unit * unit
        left -= state.chunks[i_chosen]


@compiled
def _cut_in_lockstep(state: State, n_chosen: int, budget: int) -> None:
    """Each context in turn takes one more block of tokens, until nobody can."""
    unit, left, grows = state.config[0].block_size, budget, True
    for i_chosen in range(n_chosen):
        if _is_context(state, state.skipped[i_chosen]):
            state.chunks[i_chosen] = 0
    while grows and left > 0:
        grows = False
        for i_chosen in range(n_chosen):
            index = state.skipped[i_chosen]
            if not _is_context(state, index):
                continue
            more = min(unit, _remaining(state, index) - state.chunks[i_chosen])
            if 0 < more <= left:
                state.chunks[i_chosen] += more
                left -= more
                grows = True


@compiled
def _add_part(state: State, slot: int, index: int, n_tokens: int) -> None:
    batch = state.batches[slot]
    part = state.parts[slot, batch.n_parts]
    part.request = index
    part.num_tokens = n_tokens
    batch.n_parts += 1


@compiled
def _begin(state: State, index: int) -> None:
    """A context begins on top of what can be reused."""
    counters, request = state.counters[0], state.requests[index]
    if request.status == _RUNNING:
        return
    if request.status == _WAITING:
        request.admitted_ns = counters.now_ns
        request.num_cached_tokens = request.num_computed_tokens
    request.status = _RUNNING
    seats.take(state, index)
    tree.claim(state, index, request.num_computed_tokens // state.config[0].block_size)
    counters.n_running += 1
    counters.n_waiting -= 1


@compiled
def _give_blocks(state: State, index: int) -> None:
    """The blocks of the whole context at its first chunk, then one whenever a token needs it."""
    request = state.requests[index]
    tree.extend(
        state,
        index,
        request.num_tokens if request.is_prefill_chunk else request.num_computed_tokens + 1,
    )


@compiled
def _is_context(state: State, index: int) -> bool:
    return bool(state.requests[index].is_prefill_chunk)


@compiled
def _remaining(state: State, index: int) -> int:
    request = state.requests[index]
    n_tokens: int = request.num_tokens - request.num_computed_tokens
    return n_tokens


@compiled
def _will_complete(state: State, index: int) -> bool:
    """Is its last token in flight? It keeps its blocks and its place, and computes nothing."""
    request = state.requests[index]
    n_most = min(request.num_prompt_tokens + request.max_tokens, state.config[0].max_model_len)
    will_complete: bool = (
        request.num_output_placeholders > 0
        and request.num_tokens + request.num_output_placeholders >= n_most
    )
    return will_complete
