"""Which pages of KV cache does which request own, and which the tree?

SGLang's bookkeeping, compiled.

The same as ``reference/sglang_cache.py``. A request's ``node`` is where its locked path ends,
``num_cached_blocks`` the pages on that path and ``num_blocks`` its pages in all.
"""

from inferometer.simulate.compiling import compiled
from inferometer.simulate.kernel import preemption, queue, seats, sglang_tree as tree
from inferometer.simulate.kernel.state import State
from inferometer.simulate.sglang_config import RETRACT_DECODE_STEPS


@compiled
def n_unused_pages(state: State) -> int:
    """How many pages hold nothing?"""
    n_pages: int = state.counters[0].n_free - state.sglang[0].n_evictable
    return n_pages


@compiled
def match(state: State, index: int, num_tokens: int) -> tuple[int, int]:
    """How many of a request's first tokens are cached, in whole pages, and where?"""
    size = state.config[0].block_size
    if not state.config[0].is_caching or num_tokens < size:
        return 0, 0
    n_pages, node = tree.match(state, index, num_tokens // size)
    return n_pages * size, node


@compiled
def open_row(state: State, index: int, node: int, num_cached_tokens: int) -> None:
    """A request begins on top of what was matched."""
    request = state.requests[index]
    tree.lock(state, node)
    request.node = node
    request.num_blocks = request.num_cached_blocks = num_cached_tokens // state.config[0].block_size


@compiled
def make_room(state: State, num_tokens: int) -> None:
    """Evict until so many tokens fit, or nothing is left to evict."""
    size = state.config[0].block_size
    short = num_tokens - n_unused_pages(state) * size
    if short > 0:
        tree.evict(state, (short + size - 1) // size)


@compiled
def extend(state: State, index: int, num_tokens: int) -> None:
    """Give a request pages for its first tokens."""
    request, size = state.requests[index], state.config[0].block_size
    n_pages = max((num_tokens + size - 1) // size, request.num_blocks)
    state.counters[0].n_free -= n_pages - request.num_blocks
    request.num_blocks = n_pages


@compiled
def checkpoint(state: State, index: int, num_tokens: int) -> None:
    """Put the pages that these first tokens fill into the tree; what it has already is given back."""
    request, size = state.requests[index], state.config[0].block_size
    if not state.config[0].is_caching or num_tokens <= 0:
        return
    n_pages, n_prompt = num_tokens // size, request.num_prompt_tokens // size
    n_known, node = tree.insert(state, index, n_pages)
    state.counters[0].n_free += n_known - request.num_cached_blocks
    if 0 < n_prompt < n_pages:
        tree.insert(state, index, n_prompt)  # so that the answer may go and the prompt stay
    tree.lock(state, node)
    tree.unlock(state, request.node)
    request.node = node
    request.num_cached_blocks = n_pages


@compiled
def release(state: State, index: int) -> None:
    """Take everything from a request but what the tree has."""
    request = state.requests[index]
    state.counters[0].n_free += request.num_blocks - request.num_cached_blocks
    tree.unlock(state, request.node)
    request.node = 0
    request.num_blocks = 0
    request.num_cached_blocks = 0


@compiled
def throw_out(state: State, index: int) -> None:
    """Take everything from one that is no longer among those who generate."""
    release(state, index)
    seats.release(state, index)
    state.counters[0].n_running -= 1
    make_room(state, state.sglang[0].n_generating * RETRACT_DECODE_STEPS)
    preemption.lose_place(state, index)


@compiled
def queue_up(state: State, index: int) -> None:
    """A request comes into the queue, behind all others."""
    own = state.sglang[0]
    own.n_turns += 1
    state.requests[index].turn = own.n_turns
    queue.add(state, index)
