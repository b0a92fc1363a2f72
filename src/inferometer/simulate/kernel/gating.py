"""Who goes in when?

The gate before the engines, compiled; ``gate_config`` tells its calls and their contract.
"""

from inferometer.simulate.compiling import compiled
from inferometer.simulate.gate_config import NOTHING, Reason
from inferometer.simulate.kernel import gate_lanes, gate_tenants
from inferometer.simulate.kernel.gate_state import GateState, Place
from inferometer.simulate.outcome import FAR_NS

_GATHERING, _READY, _INSIDE, _AWAY = (
    int(Place.GATHERING),
    int(Place.READY),
    int(Place.INSIDE),
    int(Place.AWAY),
)
_NONE, _TOO_LATE, _TOO_LARGE = int(Reason.NONE), int(Reason.TOO_LATE), int(Reason.TOO_LARGE)
_QUEUE_FULL, _CLASS_QUEUE_FULL, _TOKENS_FULL = (
    int(Reason.QUEUE_FULL),
    int(Reason.CLASS_QUEUE_FULL),
    int(Reason.TOKENS_FULL),
)


@compiled
def offer(gate: GateState, index: int, now_ns: int) -> bool:
    """A request arrives; is it let wait?"""
    request, counters = gate.requests[index], gate.counters[0]
    request.arrival_ns = now_ns
    request.reason = _refusal(gate, index)
    if request.reason != _NONE:
        request.place = _AWAY
        return False
    if gate.rules[0].goes_by_deadline:
        request.key += now_ns
    gate_tenants.join(gate, request.tenant)
    counters.n_waiting += 1
    counters.n_queued_tokens += request.prompt_tokens + request.max_tokens
    gate.classes[request.class_index].n_waiting += 1
    if gate.classes[request.class_index].window_ns > 0:
        _gather(gate, index)
    else:
        gate_lanes.join(gate, index)
    request.expires_ns = FAR_NS
    if request.patience_ns != FAR_NS:
        request.expires_ns = now_ns + request.patience_ns
        gate_lanes.expect_expiry(gate, index)
    return True


@compiled
def shed(gate: GateState, now_ns: int) -> int:
    """Who is turned away by now? ``NOTHING`` where nobody is."""
    index = gate_lanes.next_expiring(gate)
    if index == NOTHING or gate.requests[index].expires_ns > now_ns:
        return NOTHING
    _leave(gate, index, _AWAY)
    gate.requests[index].reason = gate.requests[index].shed_reason
    return index


@compiled
def release(gate: GateState, now_ns: int, n_room: int) -> int:
    """Who goes in now? ``NOTHING`` where nobody can; then ``wake_ns`` says when to ask again."""
    counters = gate.counters[0]
    window_end_ns = _open_windows(gate, now_ns)
    counters.refill_ns = FAR_NS
    index = _best(gate, now_ns) if n_room > 0 else NOTHING
    if index != NOTHING:
        _let_in(gate, index)
        return index
    counters.wake_ns = min(window_end_ns, counters.refill_ns)
    expiring = gate_lanes.next_expiring(gate)
    if expiring != NOTHING:
        counters.wake_ns = min(counters.wake_ns, gate.requests[expiring].expires_ns)
    return NOTHING


@compiled
def gone(gate: GateState, index: int, now_ns: int) -> None:  # noqa: ARG001 -- all calls tell the time
    """The client of one who waits went away."""
    place = gate.requests[index].place
    if place in (_GATHERING, _READY):
        _leave(gate, index, _AWAY)


@compiled
def ended(gate: GateState, index: int, n_output_tokens: int, now_ns: int) -> None:  # noqa: ARG001
    """One who was let in has left the engine."""
    request = gate.requests[index]
    if request.place != _INSIDE:
        return
    request.place = _AWAY
    gate.classes[request.class_index].n_in_flight -= 1
    surplus = n_output_tokens - request.expected_tokens
    gate.tenants[request.tenant].service += gate.rules[0].output_token_weight * surplus


@compiled
def _refusal(gate: GateState, index: int) -> int:
    """Why is the newcomer turned away at once, if it is?"""
    request, rules, counters = gate.requests[index], gate.rules[0], gate.counters[0]
    group = gate.classes[request.class_index]
    n_tokens = request.prompt_tokens + request.max_tokens
    if request.patience_ns <= 0:
        return _TOO_LATE
    if not gate_tenants.can_ever_pay(gate, request.tenant, n_tokens):
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
    """Wait for the window of the class."""
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
    """Open the windows that are over; returns when the next one will be."""
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
        end_ns = gate.requests[group.first_gathering].arrival_ns + group.window_ns
        if end_ns <= now_ns:
            _open(gate, i_class)
        else:
            next_ns = min(next_ns, end_ns)
    return next_ns


@compiled
def _open(gate: GateState, i_class: int) -> None:
    """All who gathered may go in."""
    group = gate.classes[i_class]
    index = group.first_gathering
    while index != NOTHING:
        request = gate.requests[index]
        if request.place == _GATHERING:
            gate_lanes.join(gate, index)
        index = request.next_gathering
    group.first_gathering, group.n_gathering = NOTHING, 0


@compiled
def _best(gate: GateState, now_ns: int) -> int:
    """The first of those tenants whose buckets pay for their first request, of the classes that are not full."""
    best = NOTHING
    for i_asking in range(_ask_tenants(gate)):
        i_tenant = gate.asking[i_asking]
        first = gate.tenants[i_tenant].first
        gate.tenants[i_tenant].first = NOTHING
        request = gate.requests[first]
        paid_ns = gate_tenants.payable_ns(
            gate, i_tenant, request.prompt_tokens + request.max_tokens, now_ns
        )
        if paid_ns > now_ns:
            gate.counters[0].refill_ns = min(gate.counters[0].refill_ns, paid_ns)
        elif best == NOTHING or gate_lanes.is_before(gate, first, best):
            best = first
    return best


@compiled
def _ask_tenants(gate: GateState) -> int:
    """Note the first request of each tenant; returns how many tenants have one."""
    counters, n_asking, place = gate.counters[0], 0, 0
    while place < counters.n_busy_lanes:
        lane = gate.lanes[gate.busy[place]]
        first = gate_lanes.first_of(gate, gate.busy[place])
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
            gate.asking[n_asking] = i_tenant
            n_asking += 1
            tenant.first = first
        elif gate_lanes.is_before(gate, first, tenant.first):
            tenant.first = first
    return n_asking


@compiled
def _let_in(gate: GateState, index: int) -> None:
    request = gate.requests[index]
    _leave(gate, index, _INSIDE)
    gate.classes[request.class_index].n_in_flight += 1
    gate_tenants.pay(gate, request.tenant, request.prompt_tokens + request.max_tokens)
    served = request.prompt_tokens + gate.rules[0].output_token_weight * request.expected_tokens
    gate.tenants[request.tenant].service += served


@compiled
def _leave(gate: GateState, index: int, place: int) -> None:
    """One waits no more; where it stood it is passed over."""
    request, counters = gate.requests[index], gate.counters[0]
    if request.place == _GATHERING:
        gate.classes[request.class_index].n_gathering -= 1
    else:
        gate.lanes[request.lane].n_waiting -= 1
    request.place = place
    counters.n_waiting -= 1
    counters.n_queued_tokens -= request.prompt_tokens + request.max_tokens
    gate.classes[request.class_index].n_waiting -= 1
    gate_tenants.leave(gate, request.tenant)
