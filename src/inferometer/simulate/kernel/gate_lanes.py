"""Who is before whom, who is first in a lane, and who is turned away next? Compiled."""

from inferometer.simulate.compiling import compiled
from inferometer.simulate.gate_config import NOTHING
from inferometer.simulate.kernel.gate_state import GateState, Place

_GATHERING, _READY = int(Place.GATHERING), int(Place.READY)


@compiled
def is_before(gate: GateState, one: int, other: int) -> bool:
    """Does one of two who wait go in before the other?

    By band, the tenants' service, key, arrival, index.
    """
    first, second = gate.requests[one], gate.requests[other]
    if first.band != second.band:
        return bool(first.band < second.band)
    if gate.rules[0].is_fair and first.tenant != second.tenant:
        left, right = gate.tenants[first.tenant], gate.tenants[second.tenant]
        one_share, other_share = left.service * right.weight, right.service * left.weight
        if one_share != other_share:
            return bool(one_share < other_share)
    if first.key != second.key:
        return bool(first.key < second.key)
    return bool(
        first.arrival_ns < second.arrival_ns
        or (first.arrival_ns == second.arrival_ns and one < other)
    )


@compiled
def join(gate: GateState, index: int) -> None:
    """A request takes its place in its lane."""
    request = gate.requests[index]
    request.place = _READY
    lane = gate.lanes[request.lane]
    lane.n_waiting += 1
    if not lane.is_busy:
        counters = gate.counters[0]
        lane.is_busy = 1
        gate.busy[counters.n_busy_lanes] = request.lane
        counters.n_busy_lanes += 1
    start, place = lane.start, lane.size
    lane.size += 1
    while place > 0 and is_before(gate, index, gate.heap[start + (place - 1) // 2]):
        gate.heap[start + place] = gate.heap[start + (place - 1) // 2]
        place = (place - 1) // 2
    gate.heap[start + place] = index


@compiled
def first_of(gate: GateState, i_lane: int) -> int:
    """Who is first in this lane? ``NOTHING`` where nobody waits in it."""
    lane = gate.lanes[i_lane]
    if lane.n_waiting == 0:
        lane.size = 0
        return NOTHING
    while gate.requests[gate.heap[lane.start]].place != _READY:
        _drop_first(gate, i_lane)
    first: int = gate.heap[lane.start]
    return first


@compiled
def _drop_first(gate: GateState, i_lane: int) -> None:
    lane, heap = gate.lanes[i_lane], gate.heap
    lane.size -= 1
    start, size, place = lane.start, lane.size, 0
    last = heap[start + size]
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and is_before(gate, heap[start + child + 1], heap[start + child]):
            child += 1
        if not is_before(gate, heap[start + child], last):
            break
        heap[start + place] = heap[start + child]
        place = child
    heap[start + place] = last


@compiled
def expect_expiry(gate: GateState, index: int) -> None:
    """Note that this request will be turned away if it still waits at ``expires_ns``."""
    counters, heap = gate.counters[0], gate.expiring
    place = counters.n_expiring
    counters.n_expiring += 1
    while place > 0 and _expires_before(gate, index, heap[(place - 1) // 2]):
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = index


@compiled
def next_expiring(gate: GateState) -> int:
    """Who of those who wait is turned away first? ``NOTHING`` where nobody will be."""
    counters = gate.counters[0]
    while counters.n_expiring > 0:
        index: int = gate.expiring[0]
        place = gate.requests[index].place
        if place in (_GATHERING, _READY):
            return index
        _drop_expiring(gate)
    return NOTHING


@compiled
def _drop_expiring(gate: GateState) -> None:
    counters, heap = gate.counters[0], gate.expiring
    counters.n_expiring -= 1
    size, place = counters.n_expiring, 0
    last = heap[size]
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _expires_before(gate, heap[child + 1], heap[child]):
            child += 1
        if not _expires_before(gate, heap[child], last):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = last


@compiled
def _expires_before(gate: GateState, one: int, other: int) -> bool:
    first_ns, second_ns = gate.requests[one].expires_ns, gate.requests[other].expires_ns
    return bool(first_ns < second_ns or (first_ns == second_ns and one < other))
