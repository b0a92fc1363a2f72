"""SGLang's KV pages: owned by requests or by the radix tree. Compiled.

The same as ``reference/sglang_cache.py`` and ``reference/sglang_tree.py``, on arrays. A request's
``node`` is where its locked path ends, ``num_cached_blocks`` the pages on that path and
``num_blocks`` its pages in all. Node 0 is the root; all nodes form a ring through it, the longest
unused first. ``first_equal`` is the node that begins with a content. ``n_free`` counts the pages
that no request holds: free ones and evictable.
"""

from inferometer.simulate.compiling import compiled
from inferometer.simulate.kernel import queue, slots
from inferometer.simulate.kernel.state import NOTHING, State
from inferometer.simulate.sglang_config import RETRACT_DECODE_STEPS


@compiled
def match_pages(state: State, index: int, n_pages: int) -> tuple[int, int]:
    """The number of a request's first pages that are cached, and the node where they end.

    It is split there; its path counts as used.
    """
    start = state.requests[index].content_start
    node, n_matched = 0, 0
    while n_matched < n_pages:
        content: int = state.contents[start + n_matched]
        child: int = state.memory.first_equal[content]
        if child == NOTHING:
            break
        n_same = _n_same(state, child, start + n_matched, n_pages - n_matched)
        n_matched += n_same
        if n_same < state.memory.nodes[child].n_pages:
            node = _split(state, child, n_same)
            break
        node = child
    at = node
    while at != 0:
        _touch(state, at)
        at = state.memory.nodes[at].parent
    return n_matched, node


@compiled
def insert_path(state: State, index: int, n_pages: int) -> tuple[int, int]:
    """Add a request's first pages; returns how many were there before, and the node where they end."""
    start = state.requests[index].content_start
    node, n_matched = 0, 0
    while n_matched < n_pages:
        content: int = state.contents[start + n_matched]
        child: int = state.memory.first_equal[content]
        if child == NOTHING:
            break
        _touch(state, child)
        n_same = _n_same(state, child, start + n_matched, n_pages - n_matched)
        n_matched += n_same
        node = (
            child if n_same == state.memory.nodes[child].n_pages else _split(state, child, n_same)
        )
    if n_matched < n_pages:
        leaf = _new_node(state, node, start + n_matched, n_pages - n_matched)
        state.sglang[0].n_born += 1
        state.memory.nodes[leaf].born = state.sglang[0].n_born
        state.memory.nodes[node].n_children += 1
        state.sglang[0].n_evictable += n_pages - n_matched
        state.counters[0].n_free += n_pages - n_matched
        _touch(state, leaf)
        node = leaf
    return n_matched, node


@compiled
def lock(state: State, node: int) -> None:
    """A request uses the path to this node, which may not be evicted."""
    while node != 0:
        at = state.memory.nodes[node]
        if at.lock_ref == 0:
            state.sglang[0].n_evictable -= at.n_pages
            state.counters[0].n_free -= at.n_pages
        at.lock_ref += 1
        node = at.parent


@compiled
def unlock(state: State, node: int) -> None:
    """A request no longer uses the path to this node."""
    while node != 0:
        at = state.memory.nodes[node]
        at.lock_ref -= 1
        if at.lock_ref == 0:
            state.sglang[0].n_evictable += at.n_pages
            state.counters[0].n_free += at.n_pages
        node = at.parent


@compiled
def evict(state: State, n_pages: int) -> None:
    """Evict whole unused leaves until ``n_pages`` are free or no leaf is left.

    The longest unused first, or the oldest.
    """
    own, nodes, n_evicted = state.sglang[0], state.memory.nodes, 0
    while n_evicted < n_pages:
        leaf = nodes[0].next
        while leaf != 0 and (nodes[leaf].lock_ref > 0 or nodes[leaf].n_children > 0):
            leaf = nodes[leaf].next
        if leaf == 0:
            return
        if state.config[0].is_evicting_oldest:
            leaf = _oldest_leaf(state, leaf)
        state.counters[0].n_evicted += nodes[leaf].n_pages
        n_evicted += nodes[leaf].n_pages
        own.n_evictable -= nodes[leaf].n_pages
        state.memory.first_equal[state.contents[nodes[leaf].start]] = NOTHING
        nodes[nodes[leaf].parent].n_children -= 1
        _unlink(state, leaf)
        nodes[leaf].next = own.first_unused_node
        own.first_unused_node = leaf


@compiled
def _oldest_leaf(state: State, first: int) -> int:
    """The unused leaf that was created first, from ``first`` on in order of use."""
    nodes, oldest, leaf = state.memory.nodes, first, first
    while leaf != 0:
        is_leaf = nodes[leaf].lock_ref == 0 and nodes[leaf].n_children == 0
        if is_leaf and nodes[leaf].born < nodes[oldest].born:
            oldest = leaf
        leaf = nodes[leaf].next
    return oldest


@compiled
def _n_same(state: State, node: int, start: int, n_most: int) -> int:
    own = state.memory.nodes[node].start
    n_most = min(n_most, state.memory.nodes[node].n_pages)
    if own == start:
        return n_most
    n_same = 0
    while n_same < n_most and state.contents[own + n_same] == state.contents[start + n_same]:
        n_same += 1
    return n_same


@compiled
def _split(state: State, node: int, n_pages: int) -> int:
    """Cut a node in two; returns the upper part, which is new. The lower one counts as used."""
    lower = state.memory.nodes[node]
    upper = _new_node(state, lower.parent, lower.start, n_pages)
    state.memory.nodes[upper].lock_ref = lower.lock_ref
    state.memory.nodes[upper].n_children = 1
    state.memory.nodes[upper].born = lower.born
    lower.parent = upper
    lower.start += n_pages
    lower.n_pages -= n_pages
    state.memory.first_equal[state.contents[lower.start]] = node
    _touch(state, upper)
    _touch(state, node)
    return upper


@compiled
def _new_node(state: State, parent: int, start: int, n_pages: int) -> int:
    own = state.sglang[0]
    index: int = own.first_unused_node
    node = state.memory.nodes[index]
    own.first_unused_node = node.next
    node.parent = parent
    node.start = start
    node.n_pages = n_pages
    node.lock_ref = 0
    node.n_children = 0
    node.previous = index
    node.next = index
    state.memory.first_equal[state.contents[start]] = index
    return index


@compiled
def _touch(state: State, node: int) -> None:
    _unlink(state, node)
    nodes = state.memory.nodes
    last = nodes[0].previous
    nodes[node].previous = last
    nodes[node].next = 0
    nodes[last].next = node
    nodes[0].previous = node


@compiled
def _unlink(state: State, node: int) -> None:
    before, after = state.memory.nodes[node].previous, state.memory.nodes[node].next
    state.memory.nodes[before].next = after
    state.memory.nodes[after].previous = before


@compiled
def n_unused_pages(state: State) -> int:
    """The number of empty pages."""
    n_pages: int = state.counters[0].n_free - state.sglang[0].n_evictable
    return n_pages


@compiled
def match(state: State, index: int, num_tokens: int) -> tuple[int, int]:
    """The number of a request's first tokens that are cached in whole pages, and their node."""
    size = state.config[0].block_size
    if not state.config[0].is_caching or num_tokens < size:
        return 0, 0
    n_pages, node = match_pages(state, index, num_tokens // size)
    return n_pages * size, node


@compiled
def open_row(state: State, index: int, node: int, num_cached_tokens: int) -> None:
    """Start a request after its matched prefix."""
    request = state.requests[index]
    lock(state, node)
    request.node = node
    request.num_blocks = request.num_cached_blocks = num_cached_tokens // state.config[0].block_size


@compiled
def make_room(state: State, num_tokens: int) -> None:
    """Evict until ``num_tokens`` fit, or nothing is left to evict."""
    size = state.config[0].block_size
    short = num_tokens - n_unused_pages(state) * size
    if short > 0:
        evict(state, (short + size - 1) // size)


@compiled
def extend(state: State, index: int, num_tokens: int) -> None:
    """Allocate pages for a request's first tokens."""
    request, size = state.requests[index], state.config[0].block_size
    n_pages = max((num_tokens + size - 1) // size, request.num_blocks)
    state.counters[0].n_free -= n_pages - request.num_blocks
    request.num_blocks = n_pages


@compiled
def checkpoint(state: State, index: int, num_tokens: int) -> None:
    """Add the full pages of these first tokens to the tree; free duplicates."""
    request, size = state.requests[index], state.config[0].block_size
    if not state.config[0].is_caching or num_tokens <= 0:
        return
    n_pages, n_prompt = num_tokens // size, request.num_prompt_tokens // size
    n_known, node = insert_path(state, index, n_pages)
    state.counters[0].n_free += n_known - request.num_cached_blocks
    if 0 < n_prompt < n_pages:
        insert_path(state, index, n_prompt)  # so that the answer can be evicted without the prompt
    lock(state, node)
    unlock(state, request.node)
    request.node = node
    request.num_cached_blocks = n_pages


@compiled
def release(state: State, index: int) -> None:
    """Free a request's pages, except those in the tree."""
    request = state.requests[index]
    state.counters[0].n_free += request.num_blocks - request.num_cached_blocks
    unlock(state, request.node)
    request.node = 0
    request.num_blocks = 0
    request.num_cached_blocks = 0


@compiled
def throw_out(state: State, index: int) -> None:
    """Free all pages of a request that no longer decodes."""
    release(state, index)
    slots.release(state, index)
    state.counters[0].n_running -= 1
    make_room(state, state.sglang[0].n_generating * RETRACT_DECODE_STEPS)
    slots.lose_place(state, index)


@compiled
def queue_up(state: State, index: int) -> None:
    """Append a request to the queue."""
    own = state.sglang[0]
    own.n_turns += 1
    state.requests[index].turn = own.n_turns
    queue.add(state, index)
