"""Who may join a prefill batch, and with how many tokens? SGLang's budgets, compiled.

The same as ``reference/sglang_admission.py``; ``State.sglang`` has the budgets of the batch that is
being made.
"""

from enum import IntEnum

from inferometer.simulate.compiling import compiled
from inferometer.simulate.kernel import sglang_cache as cache, sglang_tree as tree
from inferometer.simulate.kernel.state import NOTHING, State
from inferometer.simulate.sglang_config import CLIP_MAX_NEW_TOKENS


class Verdict(IntEnum):
    """Goes the queue on?"""

    CONTINUE = 0
    NO_TOKEN = 1
    """There is no memory."""
    OTHER = 2
    """The batch has enough to compute."""


CONTINUE, NO_TOKEN, OTHER = int(Verdict.CONTINUE), int(Verdict.NO_TOKEN), int(Verdict.OTHER)


@compiled
def max_new_tokens(state: State, index: int) -> int:
    """How much may this request say?"""
    config, request = state.config[0], state.requests[index]
    size = config.block_size
    paged = (request.num_prompt_tokens + size - 1) // size * size
    n_tokens: int = min(
        request.max_tokens, config.max_model_len + 5 - request.num_prompt_tokens - 1
    )
    n_tokens = min(n_tokens, config.n_kv_blocks * size - paged - size - 1)
    return max(0, n_tokens)


@compiled
def begin(state: State) -> None:
    """New budgets, less what those who generate will still need."""
    config, own = state.config[0], state.sglang[0]
    n_mixed = own.n_generating if config.is_mixed_chunk else 0
    own.n_input_left = config.max_num_batched_tokens - n_mixed
    own.n_chunk_left = config.chunk_tokens - n_mixed
    own.current_offset = n_mixed
    total = float(n_mixed)
    for i_running in range(own.n_generating):
        total += n_expected(state, state.running[i_running])
    own.total_offset = total


@compiled
def n_expected(state: State, index: int) -> float:
    """How much more will one say that generates?"""
    request, ratio = state.requests[index], 1.0
    if not state.config[0].is_reserving:
        ratio = state.sglang[0].new_token_ratio
    n_said = request.num_tokens - request.num_prompt_tokens
    n_tokens: float = min(max_new_tokens(state, index) - n_said, CLIP_MAX_NEW_TOKENS) * ratio
    return n_tokens


@compiled
def verdict(state: State) -> int:
    """May one more come?"""
    own, config = state.sglang[0], state.config[0]
    if (
        total_left(state) <= 0
        or state.counters[0].n_free * config.block_size - own.current_offset <= 0
    ):
        return NO_TOKEN
    is_full = own.n_input_left <= 0 or (config.is_chunked == 1 and own.n_chunk_left <= 0)
    return OTHER if is_full else CONTINUE


@compiled
def go_on(state: State, index: int) -> int:
    """How much more does the one compute whose prompt was cut? 0 where not even that fits."""
    own, request, size = state.sglang[0], state.requests[index], state.config[0].block_size
    n_left: int = min(own.n_chunk_left, int(total_left(state)))
    if n_left <= 0:
        n_left = own.n_chunk_left
    n_remaining = request.num_tokens - request.num_computed_tokens
    n_tokens: int = min(n_remaining, n_left)
    n_pages = (request.num_computed_tokens + n_tokens + size - 1) // size
    if max(n_pages - request.num_blocks, 0) * size > state.counters[0].n_free * size:
        return 0
    own.cut = index if n_tokens < n_remaining else NOTHING
    _reserve(
        state,
        n_tokens,
        0 if n_tokens < n_remaining else min(max_new_tokens(state, index), CLIP_MAX_NEW_TOKENS),
    )
    return n_tokens


@compiled
def try_to_add(state: State, index: int, node: int, num_cached_tokens: int) -> tuple[int, int]:
    """Add one that waits, with its whole prompt or with what the budget leaves of it, or say why not: verdict and tokens."""
    request = state.requests[index]
    n_tokens = request.num_tokens - num_cached_tokens
    max_new = max_new_tokens(state, index)
    n_said = request.num_tokens - request.num_prompt_tokens
    tree.lock(state, node)
    answer, n_fitting = _fitting(
        state, n_tokens, min(max(max_new - n_said, 0), CLIP_MAX_NEW_TOKENS)
    )
    tree.unlock(state, node)
    if answer != CONTINUE:
        return answer, 0
    cache.open_row(state, index, node, num_cached_tokens)
    request.num_computed_tokens = num_cached_tokens
    state.sglang[0].n_chosen += 1
    if n_fitting < n_tokens:
        state.sglang[0].cut = index
    _reserve(state, n_fitting, 0 if n_fitting < n_tokens else min(max_new, CLIP_MAX_NEW_TOKENS))
    return verdict(state), n_fitting


@compiled
def _fitting(state: State, n_tokens: int, n_planned: int) -> tuple[int, int]:
    """How many of these tokens fit?"""
    own, size = state.sglang[0], state.config[0].block_size
    if n_tokens + n_planned + size >= total_left(state):
        return NO_TOKEN, 0
    paged = (n_tokens + size - 1) // size * size
    if not state.config[0].is_chunked:
        if own.n_chosen > 0 and paged >= own.n_input_left:
            return OTHER, 0
        return CONTINUE, n_tokens
    if paged > own.n_chunk_left:
        n_tokens = own.n_chunk_left // size * size
    return (CONTINUE, n_tokens) if n_tokens > 0 else (OTHER, 0)


@compiled
def _reserve(state: State, n_tokens: int, n_planned: int) -> None:
    own, size = state.sglang[0], state.config[0].block_size
    paged = (n_tokens + size - 1) // size * size
    own.total_offset += paged + size + n_planned
    own.current_offset += paged + size
    own.n_input_left -= paged
    own.n_chunk_left -= paged


@compiled
def total_left(state: State) -> float:
    """How much memory is left, if everybody says what is expected?"""
    left: float = (
        state.counters[0].n_free * state.config[0].block_size - state.sglang[0].total_offset
    )
    return left
