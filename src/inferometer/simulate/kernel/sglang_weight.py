"""In which order does SGLang's policy dfs-weight put the queue?

Compiled; the same as ``reference/sglang_order.py``.

The nodes at which the prefixes of those who wait end, and all above them, are linked to a tree of
their own (``first_child``, ``next_sibling``), which is walked and taken apart: the scratch of each
node is 0 again when all its requests are noted.
"""

from inferometer.simulate.compiling import compiled
from inferometer.simulate.kernel import sglang_cache as cache
from inferometer.simulate.kernel.state import State


@compiled
def sort_by_weight(state: State, n_waiting: int) -> None:
    """Depth first, of a node's children that one first for which most requests wait, at last the node's own requests."""
    for i_waiting in range(
        n_waiting
    ):  # all of them first: a match may split the node where another one ended
        index = state.skipped[i_waiting]
        _, state.requests[index].node = cache.match(state, index, state.requests[index].num_tokens)
    for i_waiting in range(n_waiting):
        _count(state, state.skipped[i_waiting])
    node, n_noted = 0, 0
    while n_noted < n_waiting:
        child = _take_heaviest_child(state, node)
        if child != 0:
            node = child
            continue
        n_noted = _note_requests(state, node, n_noted)
        node = state.nodes[node].parent


@compiled
def _count(state: State, index: int) -> None:
    """A request waits at its node, which counts on the whole path."""
    nodes, node = state.nodes, state.requests[index].node
    if nodes[node].first_waiting == 0:
        nodes[node].first_waiting = index + 1
    else:
        state.requests[nodes[node].last_waiting - 1].queue_key = index + 1
    nodes[node].last_waiting = index + 1
    state.requests[index].queue_key = 0
    while node != 0:
        if nodes[node].weight == 0:
            nodes[node].next_sibling = nodes[nodes[node].parent].first_child
            nodes[nodes[node].parent].first_child = node
        nodes[node].weight += 1
        node = nodes[node].parent


@compiled
def _take_heaviest_child(state: State, node: int) -> int:
    """Unlink the child with the greatest weight, of equals the oldest; 0 where there is none."""
    nodes, best, before_best, before = state.nodes, 0, 0, 0
    child = nodes[node].first_child
    while child != 0:
        is_heavier = best == 0 or nodes[child].weight > nodes[best].weight
        if is_heavier or (
            nodes[child].weight == nodes[best].weight and nodes[child].born < nodes[best].born
        ):
            best, before_best = child, before
        before = child
        child = nodes[child].next_sibling
    if best == 0:
        return 0
    if before_best == 0:
        nodes[node].first_child = nodes[best].next_sibling
    else:
        nodes[before_best].next_sibling = nodes[best].next_sibling
    nodes[best].weight = 0
    nodes[best].next_sibling = 0
    return best


@compiled
def _note_requests(state: State, node: int, n_noted: int) -> int:
    """Those that wait at this node come next; returns how many are noted then."""
    at = state.nodes[node]
    waiting = at.first_waiting
    while waiting != 0:
        state.skipped[n_noted] = waiting - 1
        n_noted += 1
        waiting = state.requests[waiting - 1].queue_key
    at.first_waiting = 0
    at.last_waiting = 0
    return n_noted
