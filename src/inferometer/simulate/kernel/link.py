"""When does which KV cache arrive at its decode replica?

Compiled; the same as ``reference/link.py``, on arrays.

What travels is a heap, whoever arrives first at its top, of several at once the one with the
smaller index.
"""

from typing import NamedTuple

import numpy as np

from inferometer.records.columns import I64
from inferometer.simulate.compiling import compiled
from inferometer.simulate.disaggregation_config import KvLink
from inferometer.simulate.kernel.rows import Row, Rows, blank, i64
from inferometer.simulate.kernel.state import State
from inferometer.simulate.outcome import FAR_NS


class LinkRules(Row):
    """How does a KV cache travel?"""

    block_ps: i64
    latency_ns: i64
    is_shared: i64


class LinkState(NamedTuple):
    """The link's rules, and until when each replica's port is taken."""

    rules: Rows[LinkRules]
    """(1)"""
    free_ns: I64
    """(R) With a shared link the first alone counts."""


def new_link(link: KvLink, n_replicas: int) -> LinkState:
    """A link that nothing travels on."""
    rules = blank(1, LinkRules)
    rules["block_ps"], rules["latency_ns"], rules["is_shared"] = (
        link.block_ps,
        link.latency_ns,
        link.shape == "shared",
    )
    return LinkState(rules, np.zeros(n_replicas, np.int64))


@compiled
def begin(states: State, link: LinkState, index: int) -> None:
    """A KV cache is asked for: it travels as soon as both ports are free."""
    rules, world, transfer = link.rules[0], states.world[0], states.transfers[index]
    sender, receiver = transfer.source, states.requests[index].replica
    if rules.is_shared:
        sender = receiver = 0
    transfer.begun_ns = max(world.now_ns, link.free_ns[sender], link.free_ns[receiver])
    end_ns = transfer.begun_ns + (transfer.num_moved_blocks * rules.block_ps + 500) // 1000
    link.free_ns[sender] = end_ns
    link.free_ns[receiver] = end_ns
    transfer.received_ns = end_ns + rules.latency_ns
    _push(states, index)


@compiled
def next_ns(states: State) -> int:
    """When does something arrive? ``FAR_NS`` where nothing travels."""
    if states.world[0].n_arriving == 0:
        return FAR_NS
    when_ns: int = states.transfers[states.transfers[0].nth_arriving].received_ns
    return when_ns


@compiled
def take_next(states: State) -> int:
    """Whose KV cache arrives at ``next_ns``? Somebody's must."""
    world, heap = states.world[0], states.transfers
    first: int = heap[0].nth_arriving
    world.n_arriving -= 1
    size, last, place = world.n_arriving, heap[world.n_arriving].nth_arriving, 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _is_before(
            states, heap[child + 1].nth_arriving, heap[child].nth_arriving
        ):
            child += 1
        if not _is_before(states, heap[child].nth_arriving, last):
            break
        heap[place].nth_arriving = heap[child].nth_arriving
        place = child
    heap[place].nth_arriving = last
    return first


@compiled
def _push(states: State, index: int) -> None:
    world, heap = states.world[0], states.transfers
    place = world.n_arriving
    world.n_arriving += 1
    while place > 0 and _is_before(states, index, heap[(place - 1) // 2].nth_arriving):
        heap[place].nth_arriving = heap[(place - 1) // 2].nth_arriving
        place = (place - 1) // 2
    heap[place].nth_arriving = index


@compiled
def _is_before(states: State, one: int, other: int) -> bool:
    first, second = states.transfers[one].received_ns, states.transfers[other].received_ns
    return first < second or (first == second and one < other)
