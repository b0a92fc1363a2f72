"""SGLang's KV pages, owned by requests or by the radix tree. Compiled.

The same as ``reference/sglang_cache.py`` and ``reference/sglang_tree.py``, on arrays. Node 0 is the
root of the tree; all nodes are in a ring that begins there, the least recently used first.
``Memory.first_equal`` has for each content of a page the node that begins with it. Of a request,
``node`` is the end of its locked path, ``num_cached_blocks`` the number of pages on that path, and
``num_blocks`` the number of all its pages. ``Counters.n_free`` counts the pages that no request
holds: unused ones and evictable ones.
"""

from inferometer.simulate.compiling import compiled
from inferometer.simulate.kernel import requests
from inferometer.simulate.kernel.state import NO_BLOCK, State
from inferometer.simulate.sglang_config import RETRACT_DECODE_STEPS


@compiled
def match_pages(state: State, index: int, n_pages: int) -> tuple[int, int]:
    """The number of a request's first pages that are cached, and the node where they end.

    A node that matches in part is split. The nodes on the path become the most recently used.
    """
    start = state.requests[index].content_start
    node, n_matched = 0, 0
    while n_matched < n_pages:
        content: int = state.contents[start + n_matched]
        child: int = state.memory.first_equal[content]
        if child == NO_BLOCK:
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
    """Add a request's first pages to the tree.

    Returns how many of them were in the tree before, and the node where the pages end.
    """
    start = state.requests[index].content_start
    node, n_matched = 0, 0
    while n_matched < n_pages:
        content: int = state.contents[start + n_matched]
        child: int = state.memory.first_equal[content]
        if child == NO_BLOCK:
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
    """Lock the path from the root to this node for a request: it cannot be evicted."""
    while node != 0:
        at = state.memory.nodes[node]
        if at.lock_ref == 0:
            state.sglang[0].n_evictable -= at.n_pages
            state.counters[0].n_free -= at.n_pages
        at.lock_ref += 1
        node = at.parent


@compiled
def unlock(state: State, node: int) -> None:
    """Drop one request's lock on the path from the root to this node."""
    while node != 0:
        at = state.memory.nodes[node]
        at.lock_ref -= 1
        if at.lock_ref == 0:
            state.sglang[0].n_evictable += at.n_pages
            state.counters[0].n_free += at.n_pages
        node = at.parent


@compiled
def evict(state: State, n_pages: int) -> None:
    """Evict whole unlocked leaves until ``n_pages`` pages are evicted or no such leaf is left.

    The least recently used first, or the oldest (``radix_eviction_policy``: fifo).
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
        state.memory.first_equal[state.contents[nodes[leaf].start]] = NO_BLOCK
        nodes[nodes[leaf].parent].n_children -= 1
        _unlink(state, leaf)
        nodes[leaf].next = own.first_unused_node
        own.first_unused_node = leaf


@compiled
def _oldest_leaf(state: State, first: int) -> int:
    """The unlocked leaf that was created first, among ``first`` and the nodes used after it."""
    nodes, oldest, leaf = state.memory.nodes, first, first
    while leaf != 0:
        is_leaf = nodes[leaf].lock_ref == 0 and nodes[leaf].n_children == 0
        if is_leaf and nodes[leaf].born < nodes[oldest].born:
            oldest = leaf
        leaf = nodes[leaf].next
    return oldest


@compiled
def _n_same(state: State, node: int, start: int, n_most: int) -> int:
    """The number of a node's first pages that equal the contents from ``start`` on."""
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
    """Split a node after ``n_pages`` pages; returns the upper part, which is a new node.

    Both parts become the most recently used.
    """
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
    """Move a node to the end of the ring: it is the most recently used."""
    _unlink(state, node)
    nodes = state.memory.nodes
    last = nodes[0].previous
    nodes[node].previous = last
    nodes[node].next = 0
    nodes[last].next = node
    nodes[0].previous = node


@compiled
def _unlink(state: State, node: int) -> None:
    """Remove a node from the ring."""
    before, after = state.memory.nodes[node].previous, state.memory.nodes[node].next
    state.memory.nodes[before].next = after
    state.memory.nodes[after].previous = before


@compiled
def n_unused_pages(state: State) -> int:
    """The number of pages that neither a request nor the tree holds."""
    n_pages: int = state.counters[0].n_free - state.sglang[0].n_evictable
    return n_pages


@compiled
def match(state: State, index: int, num_tokens: int) -> tuple[int, int]:
    """The number of a request's first tokens in cached pages, and the node where they end."""
    size = state.config[0].block_size
    if not state.config[0].is_caching or num_tokens < size:
        return 0, 0
    n_pages, node = match_pages(state, index, num_tokens // size)
    return n_pages * size, node


@compiled
def open_row(state: State, index: int, node: int, num_cached_tokens: int) -> None:
    """Give a request the pages of its matched prefix, and lock them."""
    request = state.requests[index]
    lock(state, node)
    request.node = node
    request.num_blocks = request.num_cached_blocks = num_cached_tokens // state.config[0].block_size


@compiled
def make_room(state: State, num_tokens: int) -> None:
    """Evict pages until ``num_tokens`` tokens fit into unused ones, or nothing can be evicted."""
    size = state.config[0].block_size
    short = num_tokens - n_unused_pages(state) * size
    if short > 0:
        evict(state, (short + size - 1) // size)


@compiled
def extend(state: State, index: int, num_tokens: int) -> None:
    """Allocate the pages that a request's first ``num_tokens`` tokens need."""
    request, size = state.requests[index], state.config[0].block_size
    n_pages = max((num_tokens + size - 1) // size, request.num_blocks)
    state.counters[0].n_free -= n_pages - request.num_blocks
    request.num_blocks = n_pages


@compiled
def checkpoint(state: State, index: int, num_tokens: int) -> None:
    """Add the full pages of a request's first tokens to the tree, and free duplicates."""
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
    """Preempt a decoding request (SGLang's retraction): free its pages and its slot, and reset it.

    Also evicts pages, to leave room for some steps of the requests that still decode.
    """
    release(state, index)
    requests.release(state, index)
    state.counters[0].n_running -= 1
    make_room(state, state.sglang[0].n_generating * RETRACT_DECODE_STEPS)
    requests.lose_place(state, index)


@compiled
def queue_up(state: State, index: int) -> None:
    """Append a request to the waiting queue, and number its turn."""
    own = state.sglang[0]
    own.n_turns += 1
    state.requests[index].turn = own.n_turns
    requests.add(state, index)
