"""The gate: which waiting request it releases next and when, and which it rejects. Compiled.

``simulate/gate_config.py`` describes its calls. Requests wait in lanes, one for each class and
tenant. Each tenant has a token bucket, and a count of the service that it has received.
"""

from typing import Final

from inferometer.simulate.compiling import compiled
from inferometer.simulate.gate_config import NOTHING, Reason
from inferometer.simulate.kernel.gate_state import GateState, Place
from inferometer.simulate.outcome import FAR_NS
from inferometer.units import NS_PER_S

_GATHERING = int(Place.GATHERING)
_READY = int(Place.READY)
_NS_PER_S: Final = NS_PER_S
_INSIDE = int(Place.INSIDE)
_AWAY = int(Place.AWAY)
_NONE = int(Reason.NONE)
_TOO_LATE = int(Reason.TOO_LATE)
_TOO_LARGE = int(Reason.TOO_LARGE)
_QUEUE_FULL = int(Reason.QUEUE_FULL)
_CLASS_QUEUE_FULL = int(Reason.CLASS_QUEUE_FULL)
_TOKENS_FULL = int(Reason.TOKENS_FULL)


@compiled
def is_before(gate: GateState, one: int, other: int) -> bool:
    """Does the gate release waiting request ``one`` before ``other``?

    Ordered by band, the tenants' service per weight (fair order), key, arrival time, index.
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
def join_lane(gate: GateState, index: int) -> None:
    """Add a waiting request to its lane."""
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
    """The first waiting request in this lane; ``NOTHING`` if there is none."""
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
    """Remove the first entry of a lane's heap."""
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
    """Schedule the rejection of a request in case that it still waits at ``expires_ns``."""
    counters, heap = gate.counters[0], gate.expiring
    place = counters.n_expiring
    counters.n_expiring += 1
    while place > 0 and _expires_before(gate, index, heap[(place - 1) // 2]):
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = index


@compiled
def next_expiring(gate: GateState) -> int:
    """The waiting request that expires first; ``NOTHING`` if none will."""
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
    """Remove the first entry of the heap of expiring requests."""
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


@compiled
def can_ever_pay(gate: GateState, i_tenant: int, n_tokens: int) -> bool:
    """Does the tenant's bucket hold this number of tokens when it is full?"""
    tenant = gate.tenants[i_tenant]
    can: bool = tenant.tokens_per_s == 0 or n_tokens * _NS_PER_S <= tenant.burst
    return can


@compiled
def payable_ns(gate: GateState, i_tenant: int, n_tokens: int, now_ns: int) -> int:
    """Time from which on the tenant's bucket holds ``n_tokens``; refills the bucket up to now.

    ``can_ever_pay`` must hold.
    """
    tenant = gate.tenants[i_tenant]
    rate = tenant.tokens_per_s
    if rate == 0:
        return now_ns
    to_full_ns = -((tenant.level - tenant.burst) // rate)
    if now_ns - tenant.filled_ns >= to_full_ns:  # the product could exceed int64
        tenant.level = tenant.burst
    else:
        tenant.level += (now_ns - tenant.filled_ns) * rate
    tenant.filled_ns = now_ns
    lacking = max(n_tokens * _NS_PER_S - tenant.level, 0)
    when_ns: int = now_ns - (-lacking // rate)
    return when_ns


@compiled
def pay(gate: GateState, i_tenant: int, n_tokens: int) -> None:
    """Take tokens out of the tenant's bucket, if the tenant has one."""
    tenant = gate.tenants[i_tenant]
    if tenant.tokens_per_s > 0:
        tenant.level -= n_tokens * _NS_PER_S


@compiled
def join_tenant(gate: GateState, i_tenant: int) -> None:
    """Count one more waiting request of this tenant.

    If it had none, its service is raised to that of the least served waiting tenant (the counter
    lift of the Virtual Token Counter, VTC), so that a pause gives no claim to service.
    """
    tenant = gate.tenants[i_tenant]
    tenant.n_waiting += 1
    if not gate.rules[0].is_fair or tenant.n_waiting > 1:
        return
    least = gate.counters[0].last_served
    if gate.counters[0].n_waiting > 0:
        least = _least_served(gate, i_tenant)
    if least != NOTHING:
        other = gate.tenants[least]
        tenant.service = max(tenant.service, other.service * tenant.weight // other.weight)


@compiled
def leave_tenant(gate: GateState, i_tenant: int) -> None:
    """Count one waiting request of this tenant less."""
    tenant = gate.tenants[i_tenant]
    tenant.n_waiting -= 1
    if tenant.n_waiting == 0:
        gate.counters[0].last_served = i_tenant


@compiled
def _least_served(gate: GateState, newcomer: int) -> int:
    """The waiting tenant with the least service per weight, but for ``newcomer``."""
    least = NOTHING
    for i_tenant in range(len(gate.tenants)):
        tenant = gate.tenants[i_tenant]
        if i_tenant != newcomer and tenant.n_waiting > 0:
            best = gate.tenants[max(least, 0)]
            if least == NOTHING or tenant.service * best.weight < best.service * tenant.weight:
                least = i_tenant
    return least


@compiled
def offer(gate: GateState, index: int, now_ns: int) -> bool:
    """Add an arriving request; returns False if it is rejected."""
    request, counters = gate.requests[index], gate.counters[0]
    request.arrival_ns = now_ns
    request.reason = _refusal(gate, index)
    if request.reason != _NONE:
        request.place = _AWAY
        return False
    if gate.rules[0].goes_by_deadline:
        request.key += now_ns
    join_tenant(gate, request.tenant)
    counters.n_waiting += 1
    counters.n_queued_tokens += request.prompt_tokens + request.max_tokens
    gate.classes[request.class_index].n_waiting += 1
    if gate.classes[request.class_index].window_ns > 0:
        _gather(gate, index)
    else:
        join_lane(gate, index)
    request.expires_ns = FAR_NS
    if request.patience_ns != FAR_NS:
        request.expires_ns = now_ns + request.patience_ns
        expect_expiry(gate, index)
    return True


@compiled
def shed(gate: GateState, now_ns: int) -> int:
    """Reject and return a waiting request that has expired; ``NOTHING`` if there is none."""
    index = next_expiring(gate)
    if index == NOTHING or gate.requests[index].expires_ns > now_ns:
        return NOTHING
    _leave(gate, index, _AWAY)
    gate.requests[index].reason = gate.requests[index].shed_reason
    return index


@compiled
def release(gate: GateState, now_ns: int, n_room: int) -> int:
    """Release and return the next request.

    ``NOTHING`` if none can be released; then ``wake_ns`` is the time to try again.
    """
    counters = gate.counters[0]
    window_end_ns = _open_windows(gate, now_ns)
    counters.refill_ns = FAR_NS
    index = _best(gate, now_ns) if n_room > 0 else NOTHING
    if index != NOTHING:
        _note_release(gate, index)
        return index
    counters.wake_ns = min(window_end_ns, counters.refill_ns)
    expiring = next_expiring(gate)
    if expiring != NOTHING:
        counters.wake_ns = min(counters.wake_ns, gate.requests[expiring].expires_ns)
    return NOTHING


@compiled
def gone(gate: GateState, index: int, now_ns: int) -> None:  # noqa: ARG001 -- all calls tell the time
    """Remove a request whose client has disconnected, if it waits at the gate."""
    place = gate.requests[index].place
    if place in (_GATHERING, _READY):
        _leave(gate, index, _AWAY)


@compiled
def ended(gate: GateState, index: int, n_output_tokens: int, now_ns: int) -> None:  # noqa: ARG001
    """Record that a released request has ended; charge its tenant for its true output length."""
    request = gate.requests[index]
    if request.place != _INSIDE:
        return
    request.place = _AWAY
    gate.classes[request.class_index].n_in_flight -= 1
    surplus = n_output_tokens - request.expected_tokens
    gate.tenants[request.tenant].service += gate.rules[0].output_token_weight * surplus


@compiled
def _refusal(gate: GateState, index: int) -> int:
    """The ``Reason`` to reject a request on arrival; ``Reason.NONE`` to accept it."""
    request, rules, counters = gate.requests[index], gate.rules[0], gate.counters[0]
    group = gate.classes[request.class_index]
    n_tokens = request.prompt_tokens + request.max_tokens
    if request.patience_ns <= 0:
        return _TOO_LATE
    if not can_ever_pay(gate, request.tenant, n_tokens):
        return _TOO_LARGE
    if 0 < group.max_queue <= group.n_waiting:
        return _CLASS_QUEUE_FULL
    if 0 < rules.max_queue <= counters.n_waiting:
        return _QUEUE_FULL
    return (
        _TOKENS_FULL if 0 < rules.max_queued_tokens < counters.n_queued_tokens + n_tokens else _NONE
    )


@compiled
def _gather(gate: GateState, index: int) -> None:
    """Add a request to its class's gathering window; a full window ends at once."""
    request = gate.requests[index]
    group = gate.classes[request.class_index]
    request.place, request.next_gathering = _GATHERING, NOTHING
    if group.first_gathering == NOTHING:
        group.first_gathering = index
    else:
        gate.requests[group.last_gathering].next_gathering = index
    group.last_gathering = index
    group.n_gathering += 1
    if group.n_gathering == group.window_size:
        _open(gate, request.class_index)


@compiled
def _open_windows(gate: GateState, now_ns: int) -> int:
    """End the gathering windows that are over; returns the end of the next one."""
    next_ns = FAR_NS
    for i_class in range(len(gate.classes)):
        group = gate.classes[i_class]
        if group.window_ns == 0:
            continue
        while (
            group.first_gathering != NOTHING
            and gate.requests[group.first_gathering].place != _GATHERING
        ):
            group.first_gathering = gate.requests[group.first_gathering].next_gathering
        if group.first_gathering == NOTHING:
            continue
        window_ns = group.window_ns + group.widening_ns * min(group.n_in_flight, group.widest_at)
        end_ns = gate.requests[group.first_gathering].arrival_ns + window_ns
        if end_ns <= now_ns:
            _open(gate, i_class)
        else:
            next_ns = min(next_ns, end_ns)
    return next_ns


@compiled
def _open(gate: GateState, i_class: int) -> None:
    """Move all requests in this class's gathering window to their lanes."""
    group = gate.classes[i_class]
    index = group.first_gathering
    while index != NOTHING:
        request = gate.requests[index]
        if request.place == _GATHERING:
            join_lane(gate, index)
        index = request.next_gathering
    group.first_gathering, group.n_gathering = NOTHING, 0


@compiled
def _best(gate: GateState, now_ns: int) -> int:
    """The next request to release, or ``NOTHING``.

    Its tenant's bucket has enough tokens, and its class is below its limit of requests in flight.
    """
    best = NOTHING
    for i_candidate in range(_find_candidates(gate)):
        i_tenant = gate.candidate_tenants[i_candidate]
        first = gate.tenants[i_tenant].first
        gate.tenants[i_tenant].first = NOTHING
        request = gate.requests[first]
        paid_ns = payable_ns(gate, i_tenant, request.prompt_tokens + request.max_tokens, now_ns)
        if paid_ns > now_ns:
            gate.counters[0].refill_ns = min(gate.counters[0].refill_ns, paid_ns)
        elif best == NOTHING or is_before(gate, first, best):
            best = first
    return best


@compiled
def _find_candidates(gate: GateState) -> int:
    """Find each tenant's first request in classes below their limits of requests in flight.

    Lists these tenants in ``candidate_tenants``, and returns their number.
    """
    counters, n_candidates, place = gate.counters[0], 0, 0
    while place < counters.n_busy_lanes:
        lane = gate.lanes[gate.busy[place]]
        first = first_of(gate, gate.busy[place])
        if first == NOTHING:
            lane.is_busy = 0
            counters.n_busy_lanes -= 1
            gate.busy[place] = gate.busy[counters.n_busy_lanes]
            continue
        place += 1
        group, i_tenant = gate.classes[lane.class_index], gate.requests[first].tenant
        if 0 < group.max_in_flight <= group.n_in_flight:
            continue
        tenant = gate.tenants[i_tenant]
        if tenant.first == NOTHING:
            gate.candidate_tenants[n_candidates] = i_tenant
            n_candidates += 1
            tenant.first = first
        elif is_before(gate, first, tenant.first):
            tenant.first = first
    return n_candidates


@compiled
def _note_release(gate: GateState, index: int) -> None:
    """Remove a request from the gate as released, and charge its tenant."""
    request = gate.requests[index]
    _leave(gate, index, _INSIDE)
    gate.classes[request.class_index].n_in_flight += 1
    pay(gate, request.tenant, request.prompt_tokens + request.max_tokens)
    served = request.prompt_tokens + gate.rules[0].output_token_weight * request.expected_tokens
    gate.tenants[request.tenant].service += served


@compiled
def _leave(gate: GateState, index: int, place: int) -> None:
    """Remove a waiting request from all counts; its entry in the lane is dropped later."""
    request, counters = gate.requests[index], gate.counters[0]
    if request.place == _GATHERING:
        gate.classes[request.class_index].n_gathering -= 1
    else:
        gate.lanes[request.lane].n_waiting -= 1
    request.place = place
    counters.n_waiting -= 1
    counters.n_queued_tokens -= request.prompt_tokens + request.max_tokens
    gate.classes[request.class_index].n_waiting -= 1
    leave_tenant(gate, request.tenant)
