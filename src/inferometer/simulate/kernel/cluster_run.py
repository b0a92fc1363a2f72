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

Replicas of one group have the same step times (``routing.cost_of``): prefill and decode replicas are
two groups; replicas of several kinds have one group per kind.

Between two events of its own a replica runs decode steps that nobody else needs to know of. They
are timed at once and taken at the end of their run, or when something else happens to the replica
(``kernel/decode_run.py``): ``_take_up``. The log is then not in order of time.

Replicas in lockstep (expert parallelism) decide only while no step of the group runs, and each step
takes as long as that of the slowest replica: ``reference/lockstep.py``.
"""

from typing import Final

from inferometer.perfmodel.steptime_terms import StepTimeArrays
from inferometer.records.types import ABSENT
from inferometer.simulate.compiling import compiled, entry, inlined
from inferometer.simulate.kernel import gating, handover, requests, routing, steps
from inferometer.simulate.kernel.gate_state import GateState
from inferometer.simulate.kernel.routing import Front, RouterState, cost_of, state_of
from inferometer.simulate.kernel.state import MOST_PLANNED, NOTHING, State
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
IS_TOGETHER: Final = False
"""Do replicas in lockstep decide each step at the same time, or join when it starts (vLLM)?"""
IS_PLANNING: Final = False
"""Are runs of decode steps planned?"""
_FIRST_PLANNED: Final = 8
"""Steps of a replica's first plan."""


@entry
def run(
    states: State,
    front: Front,
    costs: StepTimeArrays,
    log: StepLog,
    part_log: PartLog,
    until_ns: int,
) -> int:
    """Process events until no request is left, ``until_ns``, a deadlock, or a full log.

    Returns the ``Outcome``.
    """
    while _has_room(states, log, part_log):
        when_ns = _next_event_ns(states, front.gate)
        if when_ns == FAR_NS or when_ns > until_ns:
            _set_time_of_plans(states, until_ns, NOTHING)
            _take_up_all(states, costs, log, 0, len(states.counters))
            _settle(states)
            return _end_of_run(states, front.gate, when_ns)
        _begin_event(states, when_ns)
        _deliver_load_reports(front, when_ns)
        _abort_disconnected(states, front.gate, costs, log)
        if not _complete(states, costs, log, part_log):
            _settle(states)
            return _LIVELOCK
        _hand_over(states, front, costs, log)
        _process_arrivals(states, front, costs, log)
        _launch(states, front, costs, log)
    return _LOG_FULL


@compiled
def _settle(states: State) -> None:
    """Update all requests to where they are now."""
    for replica in range(len(states.counters)):
        steps.settle(state_of(states, replica))


@inlined
def _has_room(states: State, log: StepLog, part_log: PartLog) -> bool:
    """Do the logs have room for all rows that the replicas may add at one instant?"""
    is_planning, n_replicas, n_rows = IS_PLANNING, len(states.counters), log.n_filled[0]
    first = state_of(states, 0)
    if is_planning:  # a replica may drop its plan, and launch a step before now and one now
        n_rows += states.world[0].n_planned + n_replicas * first.parts.shape[0]
    return n_rows + n_replicas * first.parts.shape[0] <= len(log.start_ns) and steps.has_room(
        first, log, part_log, n_replicas
    )


@inlined
def _begin_event(states: State, when_ns: int) -> None:
    """Set the clock to the next event."""
    world = states.world[0]
    world.turn = world.turn + 1 if when_ns == world.now_ns else 0
    world.now_ns = when_ns
    _set_time_of_plans(states, when_ns if world.turn > 0 else when_ns - 1, NOTHING)


@inlined
def _set_time_of_plans(states: State, taken_ns: int, due_ns: int) -> None:
    """Set ``World.taken_ns`` and ``due_ns``, of planned steps that are taken up from now on."""
    states.world[0].taken_ns, states.world[0].due_ns = taken_ns, due_ns


@inlined
def _take_up_all(states: State, costs: StepTimeArrays, log: StepLog, first: int, end: int) -> None:
    """Take up the plans of replicas ``first`` to ``end`` - 1."""
    is_planning = IS_PLANNING
    if is_planning:
        for replica in range(first, end):
            _take_up(states, costs, log, replica)


@compiled
def _take_up(states: State, costs: StepTimeArrays, log: StepLog, replica: int) -> None:
    """Bring a replica with a plan to where it is now: its next step is then under way, or due.

    Called before anything happens to it; other replicas are left alone.
    """
    is_planning = IS_PLANNING
    if is_planning and states.counters[replica, 0].n_planned > 0:
        state, world, counters = (
            state_of(states, replica),
            states.world[0],
            states.counters[replica, 0],
        )
        n_taken, is_async, turn = 0, state.config[0].is_async, world.turn
        while state.plan_ns[n_taken + 1 - is_async] <= world.taken_ns:
            n_taken += 1
        _take_planned(states, log, replica, n_taken)
        counters.n_most_planned = max(2 * n_taken, _FIRST_PLANNED)
        if n_taken > 0 and counters.now_ns == world.due_ns:
            counters.is_due = 1
            return
        world.turn = 0
        steps.fill_once(state, cost_of(costs, state), log)
        world.turn = turn
        counters.ready_ns = steps.ready_ns(state)


@inlined
def _take_planned(states: State, log: StepLog, replica: int, n_steps: int) -> None:
    """Take this number of a replica's planned steps, and drop the rest of the plan."""
    states.world[0].n_planned -= states.counters[replica, 0].n_planned
    steps.take_planned(state_of(states, replica), log, n_steps)


@inlined
def _plan(states: State, costs: StepTimeArrays, log: StepLog, replica: int) -> bool:
    """Plan a replica's next steps, if they are all decodes.

    Not in a second event of the same time, whose steps would be logged in the order of the first.
    """
    world, counters, state = states.world[0], states.counters[replica, 0], state_of(states, replica)
    n_at_once = 4 * len(states.counters) * state.parts.shape[0]
    n_room = len(log.launched_ns) - log.n_filled[0] - world.n_planned - n_at_once
    n_most = min(max(counters.n_most_planned, _FIRST_PLANNED), MOST_PLANNED, n_room)
    if world.turn > 0 or not steps.plan_decodes(state, cost_of(costs, state), n_most):
        return False
    world.n_planned += counters.n_planned
    if counters.n_planned == n_most:
        counters.n_most_planned = 2 * n_most
    return True


@inlined
def _next_event_ns(states: State, gate: GateState) -> int:
    """Time of the next event of any kind; ``FAR_NS`` if there is none."""
    has_gate, is_split, world = HAS_GATE, IS_SPLIT, states.world[0]
    when_ns = min(requests.next_ns(states), requests.next_abort_ns(states))
    for replica in range(len(states.counters)):
        when_ns = min(when_ns, states.counters[replica, 0].ready_ns)
    if is_split:
        when_ns = min(when_ns, handover.next_ns(states))
    if has_gate:
        when_ns = min(when_ns, gate.counters[0].wake_ns)
        if world.n_ends_reported < world.n_ended:  # an engine rejected one: the gate has room
            when_ns = world.now_ns
    return when_ns


@inlined
def _deliver_load_reports(front: Front, now_ns: int) -> None:
    """Deliver the replicas' load reports that are due to the routers."""
    is_split = IS_SPLIT
    routing.deliver_reports(front.router, now_ns)
    if is_split:
        routing.deliver_reports(front.decode_router, now_ns)


@compiled
def _abort_disconnected(
    states: State, gate: GateState, costs: StepTimeArrays, log: StepLog
) -> None:
    """Abort the requests whose clients disconnect now."""
    has_gate, is_split, now_ns = HAS_GATE, IS_SPLIT, states.world[0].now_ns
    while requests.next_abort_ns(states) <= now_ns:
        index = requests.take_next_abort(states)
        request = states.requests[index]
        if request.status == _UNSEEN:  # arrives at this very time, or waits at the gate
            if has_gate:
                gating.gone(gate, index, now_ns)
            requests.end_outside(states, index, _ABORTED, now_ns)
            for replica in range(len(states.counters)):
                _mark_due(states, replica)
        else:
            if request.status < _STOPPED:
                _take_up(states, costs, log, request.replica)
            if not is_split or _abort_in_transfer(states, index):
                steps.drop(state_of(states, request.replica), index)
            _mark_due(states, request.replica)


@compiled
def _abort_in_transfer(states: State, index: int) -> bool:
    """Abort a request before or during its KV transfer.

    Returns whether the request's replica must still drop it. A transfer under way is not cut short.
    """
    transfer, request = states.transfers[index], states.requests[index]
    if request.status >= _STOPPED:
        return False
    if transfer.stage == _MOVING:
        requests.end(
            state_of(states, request.replica), index, _ABORTED, states.arrivals.abort_ns[index]
        )
        return False
    if transfer.stage == _FOR_ROOM:
        handover.give_back_source(state_of(states, transfer.source), index)
        _mark_due(states, transfer.source)
    elif transfer.stage == _RECEIVED:
        handover.give_back(state_of(states, request.replica), index)
    return True


@inlined
def _complete(states: State, costs: StepTimeArrays, log: StepLog, part_log: PartLog) -> bool:
    """Complete each replica's oldest step, its planned run, or its wait, if that ends now.

    Returns False if a replica's requests preempt one another forever (livelock).
    """
    world, now_ns, n_replicas = states.world[0], states.world[0].now_ns, len(states.counters)
    due_ns = NOTHING if world.turn > 0 else now_ns
    for replica in range(n_replicas):
        counters = states.counters[replica, 0]
        if counters.ready_ns > now_ns:
            continue
        counters.is_due = 1
        if counters.n_planned > 0:
            _take_planned(states, log, replica, counters.n_planned)
            continue
        counters.now_ns = now_ns
        if counters.n_in_flight > 0 and not steps.complete_oldest(
            state_of(states, replica), part_log
        ):
            _take_up_all(states, costs, log, replica + 1, n_replicas)
            _set_time_of_plans(states, now_ns, due_ns)
            _take_up_all(states, costs, log, 0, replica)
            return False
    _set_time_of_plans(states, now_ns, due_ns)
    return True


@inlined
def _hand_over(states: State, front: Front, costs: StepTimeArrays, log: StepLog) -> None:
    """Process the KV transfers that end now, and route requests whose prefill completes now."""
    is_split, world = IS_SPLIT, states.world[0]
    if not is_split:
        return
    while handover.next_ns(states) <= world.now_ns:
        index = handover.take_next(states)
        source, replica = states.transfers[index].source, states.requests[index].replica
        handover.give_back_source(state_of(states, source), index)
        _take_up(states, costs, log, replica)
        handover.receive(state_of(states, replica), index)
        _mark_due(states, source)
        _mark_due(states, replica)
    while world.n_routed_on < world.n_prefilled:
        index = states.transfers[world.n_routed_on].nth_prefilled
        replica = routing.choose(states, front.decode_router, index)
        _take_up(states, costs, log, replica)
        handover.join(state_of(states, replica), index)
        _mark_due(states, replica)
        world.n_routed_on += 1


@inlined
def _process_arrivals(states: State, front: Front, costs: StepTimeArrays, log: StepLog) -> None:
    """Process the arrivals at this time: offer them to the gate, or route them to replicas."""
    has_gate, now_ns = HAS_GATE, states.world[0].now_ns
    if has_gate:
        _report_ends_to_gate(states, front.gate)
    while requests.next_ns(states) <= now_ns:
        # a follower may disconnect at its time of arrival
        _abort_disconnected(states, front.gate, costs, log)
        index = requests.take_next(states)
        if states.requests[index].status != _UNSEEN:
            continue  # its client disconnects at the same time
        if not has_gate:
            _route(states, front.router, index, costs, log)
        elif _is_too_long(states, index) or not gating.offer(front.gate, index, now_ns):
            requests.end_outside(states, index, _REJECTED, now_ns)
    if has_gate:
        _reject_and_release(states, front, costs, log)


@compiled
def _is_too_long(states: State, index: int) -> bool:
    """Is the prompt too long for the server? Such requests are rejected before the gate."""
    is_too_long: bool = (
        states.requests[index].num_prompt_tokens > states.config[0, 0].max_prompt_tokens
    )
    return is_too_long


@compiled
def _report_ends_to_gate(states: State, gate: GateState) -> None:
    """Report the requests that have ended since the last call to the gate."""
    world = states.world[0]
    while world.n_ends_reported < world.n_ended:
        index = states.arrivals.ended[world.n_ends_reported]
        request = states.requests[index]
        gating.ended(gate, index, request.num_tokens - request.num_prompt_tokens, world.now_ns)
        world.n_ends_reported += 1


@compiled
def _reject_and_release(states: State, front: Front, costs: StepTimeArrays, log: StepLog) -> None:
    """Reject the waiting requests that have expired; release and route those that have room."""
    world = states.world[0]
    now_ns, n_room = world.now_ns, world.max_in_flight
    index = gating.shed(front.gate, now_ns)
    while index != NOTHING:
        requests.end_outside(states, index, _REJECTED, now_ns)
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
        _route(states, front.router, index, costs, log)
        front.gate.unadmitted[front.gate.counters[0].n_unadmitted] = index
        front.gate.counters[0].n_unadmitted += 1
        n_waiting_tokens += request.num_prompt_tokens
        n_room -= 1


@compiled
def _waiting_tokens(states: State, gate: GateState) -> int:
    """Prompt tokens of requests that the gate has released and no engine has admitted yet.

    Requests that have been admitted since, or have ended, are dropped from ``gate.unadmitted``.
    """
    n_tokens, n_kept = 0, 0
    for i_unadmitted in range(gate.counters[0].n_unadmitted):
        request = states.requests[gate.unadmitted[i_unadmitted]]
        if request.admitted_ns == ABSENT and request.status < _STOPPED:
            gate.unadmitted[n_kept] = gate.unadmitted[i_unadmitted]
            n_kept += 1
            n_tokens += request.num_prompt_tokens
    gate.counters[0].n_unadmitted = n_kept
    return n_tokens


@compiled
def _route(
    states: State, router: RouterState, index: int, costs: StepTimeArrays, log: StepLog
) -> None:
    """Route a request to the replica that the router chooses."""
    is_split = IS_SPLIT
    replica = routing.choose(states, router, index)
    _take_up(states, costs, log, replica)
    if is_split:
        handover.shorten(state_of(states, replica), index)
    steps.take(state_of(states, replica), index)
    _mark_due(states, replica)


@compiled
def _mark_due(states: State, replica: int) -> None:
    """Mark that this replica has changed: unless it is busy, it must schedule again now."""
    counters = states.counters[replica, 0]
    if counters.n_planned == 0 and counters.n_in_flight < states.config[replica, 0].n_instances:
        counters.is_due = 1


@inlined
def _launch(states: State, front: Front, costs: StepTimeArrays, log: StepLog) -> None:
    """Launch steps on every replica that must schedule now, and the KV transfers they request."""
    is_split, is_lockstep, is_planning = IS_SPLIT, IS_LOCKSTEP, IS_PLANNING
    world = states.world[0]
    if is_lockstep:
        _launch_in_lockstep(states, front, costs, log)
        return
    for replica in range(len(states.counters)):
        counters = states.counters[replica, 0]
        if counters.is_due:
            counters.is_due = 0
            counters.now_ns = world.now_ns
            state = state_of(states, replica)
            if not (is_planning and _plan(states, costs, log, replica)):
                steps.fill_once(state, cost_of(costs, state), log)
                counters.ready_ns = steps.ready_ns(state)
            if is_split and state.config[0].is_decode_pool:
                routing.report(states, front.decode_router, replica)
            else:
                routing.report(states, front.router, replica)
        while world.n_queued < world.n_transfers:
            handover.begin(states, front.link, states.transfers[world.n_queued].nth_requested)
            world.n_queued += 1


@compiled
def _launch_in_lockstep(states: State, front: Front, costs: StepTimeArrays, log: StepLog) -> None:
    """Start the next step on all replicas of the group at once, if no replica runs a step.

    Where the replicas decide together (``IS_TOGETHER``), a step that some of them have decided
    starts without the others, and all of them decide the next one meanwhile.
    """
    now_ns, n_rows, n_yielding, duration_ns = states.world[0].now_ns, 0, 0, 0
    is_together, is_decided, n_joined = IS_TOGETHER, False, 0
    for replica in range(len(states.counters)):
        if now_ns < states.counters[replica, 0].ready_ns < FAR_NS:
            return
        is_decided |= states.counters[replica, 0].n_in_flight > 0
    for replica in range(len(states.counters)):
        counters, state = states.counters[replica, 0], state_of(states, replica)
        counters.now_ns, counters.ready_ns = now_ns, FAR_NS
        is_closed = is_together and is_decided and counters.n_in_flight == 0
        if not is_closed and steps.joins(state):
            n_joined += 1
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
            steps.form_ahead(state, state.config[0].depth)
        elif is_together and n_joined > 0:
            steps.form_ahead(state, state.config[0].depth - 1)
        routing.report(states, front.router, replica)


@compiled
def _end_of_run(states: State, gate: GateState, when_ns: int) -> int:
    """The ``Outcome`` of a simulation that has no further event before its time limit."""
    has_gate, is_split = HAS_GATE, IS_SPLIT
    if is_split and states.world[0].n_arriving > 0:
        return _HORIZON
    if has_gate and gate.counters[0].n_waiting > 0:
        return _STUCK if when_ns == FAR_NS else _HORIZON
    for replica in range(len(states.counters)):
        counters = states.counters[replica, 0]
        if counters.n_running + counters.n_waiting > 0 or counters.n_in_flight > 0:
            return _STUCK if when_ns == FAR_NS else _HORIZON
    return _FINISHED if requests.next_ns(states) == FAR_NS else _HORIZON
