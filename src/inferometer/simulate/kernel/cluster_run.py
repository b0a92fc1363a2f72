"""The compiled event loop of several replicas behind a router.

All replicas share one clock in nanoseconds. ``kernel/steps.py`` has the actions of a replica,
``kernel/routing.py`` the choice of a replica for each request; this module orders the events.
Events at the same time are processed in this order: disconnections, by their time; completed steps,
by replica, each with its tokens in batch order; arrivals, by index (including followers of requests
that just ended), each routed at once; then every replica with a decision to make launches a step,
by number. A single replica gives the same result as ``kernel/one_replica.py``, to the nanosecond.
With a gate before the router: the gate processes ends before arrivals, each arrival is offered to
the gate (except prompts too long for the model), and released requests are routed in their order.

With prefill and decode pools (disaggregation): after completed steps come arriving KV caches, by
index, then requests with completed prefills, in that order, which are routed to decode replicas;
after each replica's launch the KV transfers that it requested begin.

Replicas of one group have the same step times (``front.cost_of``): prefill and decode replicas are
two groups; replicas of several kinds have one group per kind.

Replicas in lockstep (expert parallelism) decide only while no step of the group runs, and each step
takes as long as that of the slowest replica: ``reference/lockstep.py``.
"""

from typing import Final

from inferometer.perfmodel.steptime_arrays import StepTimeArrays
from inferometer.records.types import ABSENT
from inferometer.simulate.compiling import compiled, entry, inlined
from inferometer.simulate.kernel import arrivals, gating, handover, routing, steps
from inferometer.simulate.kernel.front import Front, cost_of, state_of
from inferometer.simulate.kernel.gate_state import GateState
from inferometer.simulate.kernel.routing import RouterState
from inferometer.simulate.kernel.state import NOTHING, State
from inferometer.simulate.outcome import FAR_NS, Outcome, PartLog, Stage, Status, StepLog

_UNSEEN, _STOPPED, _ABORTED, _REJECTED = (
    int(Status.UNSEEN),
    int(Status.STOPPED),
    int(Status.ABORTED),
    int(Status.REJECTED),
)
_LOG_FULL, _FINISHED, _HORIZON = int(Outcome.LOG_FULL), int(Outcome.FINISHED), int(Outcome.HORIZON)
_STUCK, _LIVELOCK = int(Outcome.STUCK), int(Outcome.LIVELOCK)
_FOR_ROOM, _MOVING, _RECEIVED = int(Stage.FOR_ROOM), int(Stage.MOVING), int(Stage.RECEIVED)


HAS_GATE: Final = False
IS_SPLIT: Final = False
"""Are prefill and decode on separate replicas?"""
IS_LOCKSTEP: Final = False
"""Do all replicas run each step together?"""


@entry
def run(
    states: State,
    front: Front,
    costs: StepTimeArrays,
    log: StepLog,
    part_log: PartLog,
    until_ns: int,
) -> int:
    """Run until all is done, the time is over, no progress is possible, or a log is full."""
    n_replicas, first = len(states.counters), state_of(states, 0)
    while steps.has_room(first, log, part_log, n_replicas):
        when_ns = _next_event_ns(states, front.gate)
        if when_ns == FAR_NS or when_ns > until_ns:
            return _end_of_run(states, front.gate, when_ns)
        states.world[0].now_ns = when_ns
        _hear(front, when_ns)
        _let_go(states, front.gate)
        if not _complete(states, part_log):
            return _LIVELOCK
        _hand_over(states, front)
        _let_come(states, front)
        _launch(states, front, costs, log)
    return _LOG_FULL


@inlined
def _next_event_ns(states: State, gate: GateState) -> int:
    """Time of the next arrival, disconnection, end of a step or end of a wait."""
    has_gate, is_split, world = HAS_GATE, IS_SPLIT, states.world[0]
    when_ns = min(arrivals.next_ns(states), arrivals.next_abort_ns(states))
    for replica in range(len(states.counters)):
        when_ns = min(when_ns, states.counters[replica, 0].ready_ns)
    if is_split:
        when_ns = min(when_ns, handover.next_ns(states))
    if has_gate:
        when_ns = min(when_ns, gate.counters[0].wake_ns)
        if world.n_told < world.n_ended:  # refused by an engine: the gate has room again
            when_ns = world.now_ns
    return when_ns


@inlined
def _hear(front: Front, now_ns: int) -> None:
    """Pass the replicas' load reports to the router."""
    is_split = IS_SPLIT
    routing.hear(front.router, now_ns)
    if is_split:
        routing.hear(front.decode_router, now_ns)


@compiled
def _let_go(states: State, gate: GateState) -> None:
    """Abort the requests whose clients disconnect now."""
    has_gate, is_split, now_ns = HAS_GATE, IS_SPLIT, states.world[0].now_ns
    while arrivals.next_abort_ns(states) <= now_ns:
        index = arrivals.take_next_abort(states)
        request = states.requests[index]
        if request.status == _UNSEEN:  # it would have arrived at this time, or waits at the gate
            if has_gate:
                gating.gone(gate, index, now_ns)
            arrivals.end_outside(states, index, _ABORTED, now_ns)
            for replica in range(len(states.counters)):
                _touch(states, replica)
        else:
            if not is_split or _give_up(states, index):
                steps.drop(state_of(states, request.replica), index)
            _touch(states, request.replica)


@compiled
def _give_up(states: State, index: int) -> bool:
    """Abort a request during its KV transfer; returns whether there is more to free.

    A transfer under way is not cut short.
    """
    transfer, request = states.transfers[index], states.requests[index]
    if request.status >= _STOPPED:
        return False
    if transfer.stage == _MOVING:
        arrivals.end(
            state_of(states, request.replica), index, _ABORTED, states.arrivals.abort_ns[index]
        )
        return False
    if transfer.stage == _FOR_ROOM:
        handover.give_back_source(state_of(states, transfer.source), index)
        _touch(states, transfer.source)
    elif transfer.stage == _RECEIVED:
        handover.give_back(state_of(states, request.replica), index)
    return True


@inlined
def _complete(states: State, part_log: PartLog) -> bool:
    """Complete the oldest steps and waits that end now.

    False where a replica's requests preempt one another forever (livelock).
    """
    now_ns = states.world[0].now_ns
    for replica in range(len(states.counters)):
        counters = states.counters[replica, 0]
        if counters.ready_ns > now_ns:
            continue
        counters.now_ns = now_ns
        counters.is_due = 1
        if counters.n_in_flight > 0 and not steps.complete_oldest(
            state_of(states, replica), part_log
        ):
            return False
    return True


@inlined
def _hand_over(states: State, front: Front) -> None:
    """Process KV caches that arrive now, and prefills that complete now."""
    is_split, world = IS_SPLIT, states.world[0]
    if not is_split:
        return
    while handover.next_ns(states) <= world.now_ns:
        index = handover.take_next(states)
        source, replica = states.transfers[index].source, states.requests[index].replica
        handover.give_back_source(state_of(states, source), index)
        handover.receive(state_of(states, replica), index)
        _touch(states, source)
        _touch(states, replica)
    while world.n_joined < world.n_handed:
        index = states.transfers[world.n_joined].nth_handed
        replica = routing.choose(states, front.decode_router, index)
        handover.join(state_of(states, replica), index)
        _touch(states, replica)
        world.n_joined += 1


@inlined
def _let_come(states: State, front: Front) -> None:
    """Process arrivals, gate and router at this time."""
    has_gate, now_ns = HAS_GATE, states.world[0].now_ns
    if has_gate:
        _tell_ends(states, front.gate)
    while arrivals.next_ns(states) <= now_ns:
        _let_go(states, front.gate)  # a follower may disconnect at its time of arrival
        index = arrivals.take_next(states)
        if states.requests[index].status != _UNSEEN:
            continue  # its client disconnects at the same time
        if not has_gate:
            _send(states, front.router, index)
        elif _is_too_long(states, index) or not gating.offer(front.gate, index, now_ns):
            arrivals.end_outside(states, index, _REJECTED, now_ns)
    if has_gate:
        _open_gate(states, front)


@compiled
def _is_too_long(states: State, index: int) -> bool:
    """Is the prompt too long for the server? Such requests are refused before the gate."""
    is_too_long: bool = (
        states.requests[index].num_prompt_tokens > states.config[0, 0].max_prompt_tokens
    )
    return is_too_long


@compiled
def _tell_ends(states: State, gate: GateState) -> None:
    """Inform the gate of all released requests that have ended."""
    world = states.world[0]
    while world.n_told < world.n_ended:
        index = states.arrivals.ended[world.n_told]
        request = states.requests[index]
        gating.ended(gate, index, request.num_tokens - request.num_prompt_tokens, world.now_ns)
        world.n_told += 1


@compiled
def _open_gate(states: State, front: Front) -> None:
    """Reject and release requests at the gate."""
    world = states.world[0]
    now_ns, n_room = world.now_ns, world.max_in_flight
    index = gating.shed(front.gate, now_ns)
    while index != NOTHING:
        arrivals.end_outside(states, index, _REJECTED, now_ns)
        index = gating.shed(front.gate, now_ns)
    n_free_tokens = 0
    for replica in range(len(states.counters)):
        n_room -= routing.load(states, replica)
        config = states.config[replica, 0]
        if not config.is_decode_pool:
            n_free = states.counters[replica, 0].n_free // config.n_kv_groups
            n_free_tokens += n_free * config.block_size
    n_waiting_tokens = _waiting_tokens(states, front.gate)
    while True:
        is_enough = n_waiting_tokens >= world.max_waiting_tokens or n_waiting_tokens > n_free_tokens
        index = gating.release(
            front.gate, now_ns, 0 if world.max_waiting_tokens > 0 and is_enough else n_room
        )
        if index == NOTHING:
            return
        request = states.requests[index]
        request.arrival_ns = now_ns
        _send(states, front.router, index)
        front.gate.let_in[front.gate.counters[0].n_let_in] = index
        front.gate.counters[0].n_let_in += 1
        n_waiting_tokens += request.num_prompt_tokens
        n_room -= 1


@compiled
def _waiting_tokens(states: State, gate: GateState) -> int:
    """Prompt tokens of requests that the gate released and no engine has admitted.

    Requests that an engine has admitted are dropped from ``let_in``.
    """
    n_tokens, n_kept = 0, 0
    for i_let_in in range(gate.counters[0].n_let_in):
        request = states.requests[gate.let_in[i_let_in]]
        if request.admitted_ns == ABSENT and request.status < _STOPPED:
            gate.let_in[n_kept] = gate.let_in[i_let_in]
            n_kept += 1
            n_tokens += request.num_prompt_tokens
    gate.counters[0].n_let_in = n_kept
    return n_tokens


@compiled
def _send(states: State, router: RouterState, index: int) -> None:
    """Send a request to the replica that the router chooses."""
    is_split = IS_SPLIT
    replica = routing.choose(states, router, index)
    if is_split:
        handover.shorten(state_of(states, replica), index)
    steps.take(state_of(states, replica), index)
    _touch(states, replica)


@compiled
def _touch(states: State, replica: int) -> None:
    """Mark that this replica's state has changed: if idle, it must decide again."""
    counters = states.counters[replica, 0]
    if counters.n_in_flight < states.config[replica, 0].n_instances:
        counters.is_due = 1


@inlined
def _launch(states: State, front: Front, costs: StepTimeArrays, log: StepLog) -> None:
    """Launch steps on every replica that has a decision to make."""
    is_split, is_lockstep, world = IS_SPLIT, IS_LOCKSTEP, states.world[0]
    if is_lockstep:
        _launch_together(states, front, costs, log)
        return
    for replica in range(len(states.counters)):
        counters = states.counters[replica, 0]
        if counters.is_due:
            counters.is_due = 0
            counters.now_ns = world.now_ns
            state = state_of(states, replica)
            steps.fill(state, cost_of(costs, state), log)
            counters.ready_ns = steps.ready_ns(state)
            if is_split and state.config[0].is_decode_pool:
                routing.report(states, front.decode_router, replica)
            else:
                routing.report(states, front.router, replica)
        while world.n_begun < world.n_asked:
            handover.begin(states, front.link, states.transfers[world.n_begun].nth_asked)
            world.n_begun += 1


@compiled
def _launch_together(states: State, front: Front, costs: StepTimeArrays, log: StepLog) -> None:
    """Start the group's next step on all its replicas at once, if none runs."""
    now_ns, n_rows, n_yielding, duration_ns = states.world[0].now_ns, 0, 0, 0
    for replica in range(len(states.counters)):
        if now_ns < states.counters[replica, 0].ready_ns < FAR_NS:
            return
    for replica in range(len(states.counters)):
        counters, state = states.counters[replica, 0], state_of(states, replica)
        counters.now_ns, counters.ready_ns = now_ns, FAR_NS
        if steps.joins(state):
            n_rows += steps.own_rows(state)
            n_yielding += steps.own_yielding(state)
    for replica in range(len(states.counters)):
        if states.counters[replica, 0].n_in_flight > 0:
            state = state_of(states, replica)
            own_ns = steps.own_duration_ns(state, cost_of(costs, state), n_rows, n_yielding)
            duration_ns = max(duration_ns, own_ns)
    for replica in range(len(states.counters)):
        counters, state = states.counters[replica, 0], state_of(states, replica)
        if counters.n_in_flight > 0:
            steps.begin(state, log, duration_ns)
            counters.ready_ns = now_ns + duration_ns
            steps.decide_ahead(state)
        routing.report(states, front.router, replica)


@compiled
def _end_of_run(states: State, gate: GateState, when_ns: int) -> int:
    """The outcome of a simulation without further events, or without any before its end."""
    has_gate, is_split = HAS_GATE, IS_SPLIT
    if is_split and states.world[0].n_arriving > 0:
        return _HORIZON
    if has_gate and gate.counters[0].n_waiting > 0:
        return _STUCK if when_ns == FAR_NS else _HORIZON
    for replica in range(len(states.counters)):
        counters = states.counters[replica, 0]
        if counters.n_running + counters.n_waiting > 0 or counters.n_in_flight > 0:
            return _STUCK if when_ns == FAR_NS else _HORIZON
    return _FINISHED if arrivals.next_ns(states) == FAR_NS else _HORIZON
