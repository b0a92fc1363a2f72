"""Simulation of requests on a fleet.

``run`` takes any fleet and a workload's plan, and times requests as their clients do: the scheduler
sees each one later by the time of the server's front end. The other functions take requests as they
come to the scheduler (``Demand``). All run on the compiled loops (``kernel/loop.py``), which
allocate nothing and write into one log after the other; the same inputs give the same outputs, to
the nanosecond.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from inferometer.errors import SpecError
from inferometer.inputs.workload.plan import (
    BlockContents,
    RequestPlan,
    block_contents,
    sent_by_server,
)
from inferometer.perfmodel.steptime_terms import StepTimeArrays
from inferometer.records.columns import I64
from inferometer.records.types import ABSENT, RequestStatus
from inferometer.simulate import hooks, pointers
from inferometer.simulate.demand import Demand, contents_checked, demand_without_contents
from inferometer.simulate.engine_config import EngineConfig, kv_pools_of, pool_of_requests
from inferometer.simulate.fleet import ClusterConfig, Fleet
from inferometer.simulate.gate_config import GateConfig, cut_answers
from inferometer.simulate.kernel import loop, routing as kernel_routing
from inferometer.simulate.kernel.config import Kind, may_be_steady
from inferometer.simulate.kernel.state import State, new_state
from inferometer.simulate.outcome import (
    FAR_NS,
    HandoverFacts,
    KvPoolUse,
    Outcome,
    PartLog,
    RequestFacts,
    Simulation,
    StepLog,
    new_log,
    new_part_log,
    simulation,
    slots_numbered_through,
    with_handovers,
)
from inferometer.simulate.scheduler_config import KvPool
from inferometer.units import NS_PER_S

_ROWS: Final = 1 << 16
"""Rows of the first log; each further one has twice as many, up to 16 times."""
_PART_ROWS: Final = 1 << 18


class Logged(NamedTuple):
    """How the run ended, and the requested logs."""

    outcome: Outcome
    steps: list[StepLog] | None
    parts: list[PartLog] | None


def _logged(prepared: "_Prepared", recording: "Recording") -> Logged:
    """Call the loop on its tables, with new logs, until it has come to an end.

    Before each log it may be given up: see ``simulate.cancelling``.
    """
    config, engines = prepared.state.config, prepared.engines
    has_holes, has_swaps = (bool(config[name].any()) for name in ("is_contiguous", "n_host_blocks"))
    n_rows_at_once = 4 * len(engines) * max(engine.depth for engine in engines)
    n_parts_at_once = sum(engine.max_num_active for engine in engines)
    n_part_rows = max(_PART_ROWS, n_parts_at_once) if recording.parts else 0
    keeps_steps = recording.steps or recording.parts
    until_ns = FAR_NS if recording.until_ns is None else recording.until_ns
    logs, part_logs, outcome = list[StepLog](), list[PartLog](), Outcome.LOG_FULL
    while outcome is Outcome.LOG_FULL:
        if keeps_steps or not logs:
            n_rows = max(_ROWS << min(len(logs), 4), n_rows_at_once)
            logs.append(
                new_log(
                    n_rows,
                    has_holes=has_holes,
                    has_swaps=has_swaps,
                    has_launches=prepared.is_planning and not recording.parts,
                )
            )
            part_logs.append(new_part_log(n_part_rows))
        hooks.check_poll()
        logs[-1].n_filled[0] = 0
        tables = *prepared.tables, pointers.pointed(logs[-1]), pointers.pointed(part_logs[-1])
        outcome = Outcome(prepared.loop(*tables, until_ns))
    return Logged(outcome, logs if keeps_steps else None, part_logs if recording.parts else None)


def facts_of(state: State) -> RequestFacts:
    """Results of the requests of a finished simulation."""
    columns = {"arrival_ns": "sent_ns", "arrived_ns": "arrival_ns"}
    return RequestFacts(
        **{name: state.requests[columns.get(name, name)].copy() for name in RequestFacts._fields}
    )


class Recording(NamedTuple):
    """End of the simulation, and what to record."""

    until_ns: int | None = None
    steps: bool = True
    parts: bool = False


def run(
    fleet: Fleet,
    plan: RequestPlan,
    *,
    until_ns: int | None = None,
    record_steps: bool = True,
    record_parts: bool = False,
) -> Simulation:
    """Simulate the plan's requests, with times as their clients see them.

    ``until_ns`` ends it there: what was computed by then is delivered, requests still there are
    unfinished. ``record_steps`` keeps a row for each step, which in a long and quiet run take more
    memory than the requests; ``record_parts`` also keeps which request computed what in each.
    """
    engine = fleet.replicas.engine
    pools = kv_pools_of(engine)
    requests = demand_of(plan, engine.block_size, has_contents=fleet.has_contents and not pools)
    if pools and fleet.has_contents:
        contents = contents_in_pools(plan, pools)
        requests = requests._replace(content_start=contents.start, contents=contents.ids)
    if fleet.dealt is not None:
        requests = fleet.dealt.own(requests)
    done = simulate_fleet(
        fleet,
        delayed(requests, fleet.front_end_s),
        until_ns=until_ns,
        record_steps=record_steps,
        record_parts=record_parts,
    )
    seen = as_clients_see(done, requests, fleet.front_end_s)
    return _with_waits(seen, fleet.step_times.first_token_ratio)


def simulate_fleet(
    fleet: Fleet,
    requests: Demand,
    *,
    until_ns: int | None = None,
    record_steps: bool = True,
    record_parts: bool = False,
) -> Simulation:
    """Simulate requests as they come to the scheduler: ``front_end_s`` is not added."""
    recording = Recording(until_ns, record_steps, record_parts)
    if fleet.is_lone and fleet.placement is None:
        return _simulated_replica(requests, fleet.replicas.engine, fleet.step_times, recording)
    return simulate_replicas(fleet, requests, recording)


def simulate(
    requests: Demand,
    config: EngineConfig,
    cost: StepTimeArrays,
    *,
    until_ns: int | None = None,
    record_steps: bool = True,
    record_parts: bool = False,
    gate: GateConfig | None = None,
) -> Simulation:
    """Simulate one replica with this scheduler and these step times."""
    return simulate_fleet(
        Fleet(replicas=ClusterConfig(engine=config), step_times=cost, gate=gate),
        requests,
        until_ns=until_ns,
        record_steps=record_steps,
        record_parts=record_parts,
    )


_SOON_NS: Final = 1
"""However fast a client is, its next request is too late for the step that is decided in the instant
in which an answer ends: the answer has to reach the client first."""


class _Prepared(NamedTuple):
    """A compiled loop and the memory that it works on."""

    loop: Callable[..., int]
    state: State
    tables: tuple[object, ...]
    """The handles that it takes before the logs."""
    engines: Sequence[EngineConfig]
    """The engine of each replica."""
    is_planning: bool = False
    """May replicas run ahead of one another?"""


def _simulated_replica(
    requests: Demand, config: EngineConfig, cost: StepTimeArrays, recording: Recording
) -> Simulation:
    requests = contents_checked(requests, config)
    state = new_state(requests, config)
    state.config["is_steady"] = may_be_steady(config) and not recording.parts
    prepared = _Prepared(
        loop.loop_of(Kind(int(state.config["kind"][0]))),
        state,
        (pointers.pointed(state), pointers.pointed(cost)),
        (config,),
    )
    return _outcome_of(prepared, requests, recording, clock=state.counters["now_ns"])


def simulate_replicas(fleet: Fleet, requests: Demand, recording: Recording) -> Simulation:
    """Simulate several replicas (or one by the loop for several), numbered through.

    Where one replica is in a livelock the run ends there.

    Raises
    ------
    SpecError
        Groups of replicas, and a gate or replicas for prompts alone.
    """
    gate, pools, engines = fleet.gate, fleet.pools, fleet.engine_of_replicas
    if fleet.placement is not None and (pools is not None or gate is not None):
        raise SpecError(
            "groups of replicas behind a gate, or with replicas for prompts alone",
            where="the fleet",
            allowed="groups alone",
        )
    requests = requests if gate is None else cut_answers(requests, gate)
    requests = contents_of_fleet(requests, fleet)
    routed = requests
    if fleet.placement is not None:  # the router knows the group as the class
        routed = requests._replace(class_index=fleet.placement.group_of(requests))
    states = kernel_routing.new_states(requests, fleet)
    front = kernel_routing.new_front(routed, fleet)
    n_slots = max(engine.max_num_active for engine in engines)
    if not (recording.parts or fleet.replicas.in_lockstep):
        states.config["is_steady"][:, 0] = [may_be_steady(engine) for engine in engines]
    kind = Kind(int(states.config["kind"][0, 0]))
    has_reports = len(front.router.reported) + len(front.decode_router.reported) > 0
    prepared = _Prepared(
        loop.loop_of_fleet(kind, fleet),
        states,
        (
            kernel_routing.pointed_states(states),
            pointers.pointed(front),
            kernel_routing.pointed_costs(fleet.step_times_of_groups),
        ),
        engines,
        is_planning=loop.is_planning(kind, fleet) and not has_reports,
    )
    found = _outcome_of(prepared, requests, recording, clock=states.world["now_ns"])
    n_instances = np.array([engine.n_instances for engine in engines])
    found = slots_numbered_through(found._replace(busy_ns=found.busy_ns // n_instances), n_slots)
    if pools is not None:
        found = with_handovers(found, _handovers(states))
    if gate is None:
        return found
    reasons = front.gate.requests["reason"].copy()
    return found._replace(shed_reasons=reasons, gate_classes=gate.class_names)


def _outcome_of(
    prepared: _Prepared,
    requests: Demand,
    recording: Recording,
    *,
    clock: I64,
) -> Simulation:
    """Run the loop to its end, and make tables of its logs."""
    until_ns, state = recording.until_ns, prepared.state
    hooks.tell_of_compiling(prepared.loop)
    outcome, steps, parts = _logged(prepared, recording)
    is_cut = outcome is Outcome.HORIZON and until_ns is not None
    found = simulation(
        requests,
        facts_of(state),
        steps,
        parts,
        outcome=outcome,
        end_ns=until_ns if is_cut and until_ns is not None else int(clock[0]),
        busy_ns=state.counters["busy_ns"].reshape(-1).astype(np.int64),
    )
    return found._replace(
        evicted_blocks=state.counters["n_evicted"].reshape(-1).astype(np.int64),
        kv_pools=_pool_use(state),
    )


def _pool_use(state: State) -> KvPoolUse | None:
    pools = np.atleast_2d(state.memory.pools)
    if not pools.size:
        return None
    return KvPoolUse(*(pools[name].astype(np.int64) for name in KvPoolUse._fields))


def contents_of_fleet(requests: Demand, fleet: Fleet) -> Demand:
    """The requests with the block contents that replicas with prefix caching need."""
    return contents_checked(
        requests, max(fleet.engines, key=lambda engine: engine.enable_prefix_caching)
    )


def _handovers(states: State) -> HandoverFacts:
    columns = {
        name: states.transfers[name].astype(np.int64)
        for name in HandoverFacts._fields
        if name != "replica"
    }
    return HandoverFacts(**columns, replica=states.requests["replica"].astype(np.int64))


def demand_of(plan: RequestPlan, block_size: int, *, has_contents: bool = True) -> Demand:
    """The plan's requests; where ``has_contents`` (prefix caching), with an id per full KV block.

    Raises
    ------
    SpecError
        More blocks than can be numbered.
    """
    requests = demand_without_contents(plan)
    if not has_contents:
        return requests
    contents = block_contents(plan, block_size)
    return requests._replace(content_start=contents.start, contents=contents.ids)


def contents_in_pools(plan: RequestPlan, pools: Sequence[KvPool]) -> BlockContents:
    """Contents of full KV blocks where each request has blocks of its pool; pools share none.

    Raises
    ------
    SpecError
        No pool takes one of the requests.
    """
    number = pool_of_requests(pools, plan)
    wholes = [block_contents(plan, pool.block_size) for pool in pools]
    n_blocks = np.stack([np.diff(whole.start) for whole in wholes])[
        number, np.arange(plan.n_requests)
    ]
    start = np.concatenate([[0], np.cumsum(n_blocks)]).astype(np.int64)
    ids, n_ids = np.empty(start[-1], np.int32), 0
    for own, whole in enumerate(wholes):
        rows = np.flatnonzero(number == own)
        n_own = n_blocks[rows]
        steps = np.arange(n_own.sum()) - np.repeat(np.cumsum(n_own) - n_own, n_own)
        found = whole.ids[np.repeat(whole.start[:-1][rows], n_own) + steps]
        distinct, dense = np.unique(found, return_inverse=True)
        ids[np.repeat(start[:-1][rows], n_own) + steps] = dense + n_ids
        n_ids += len(distinct)
    return BlockContents(start=start, ids=ids)


def delayed(requests: Demand, front_end_s: float) -> Demand:
    """The requests as the scheduler gets them, delayed by HTTP, tokenizer and queues.

    One that follows another is sent when its client has seen the end of that. What a server sends
    itself comes at once: a beam search passes the front end once.

    Example
    -------
    >>> from inferometer.simulate.demand import demand
    >>> delayed(demand([0, 5], [8, 8], [2, 2]), 1e-3).arrival_ns.tolist()
    [1000000, 1000005]
    """
    delay_ns = _delay_ns(requests, front_end_s)
    is_after = requests.follows >= 0
    leaves = (requests.abort_ns != ABSENT) & ~is_after
    # a follower's patience begins with its own sending
    return requests._replace(
        arrival_ns=requests.arrival_ns + delay_ns,
        think_ns=requests.think_ns + is_after * np.maximum(delay_ns, _SOON_NS),
        abort_ns=requests.abort_ns + leaves * delay_ns,
    )


def as_clients_see(simulation: Simulation, requests: Demand, front_end_s: float) -> Simulation:
    """The same simulation of ``delayed`` requests, sent when their clients sent them."""
    table = simulation.requests
    delay_ns = _delay_ns(requests, front_end_s)[table.request_index]
    sent = table._replace(
        intended_send_ns=table.intended_send_ns - delay_ns, sent_ns=table.sent_ns - delay_ns
    )
    return simulation._replace(requests=sent)


def _with_waits(simulation: Simulation, first_token_ratio: float) -> Simulation:
    """Each answer later by what its TTFT is longer; below 1 its wait before the first step is shorter.

    The servers' steps are as they were: nobody waits for another's token, and none comes before it
    is computed. A client that left does so when it did.
    """
    if first_token_ratio == 1.0:
        return simulation
    table = simulation.requests
    has_first = (table.first_token_ns != ABSENT) & (table.admitted_ns != ABSENT)
    has_first &= table.status != RequestStatus.ABORTED
    until_ns = table.first_token_ns if first_token_ratio > 1 else table.admitted_ns
    waited_ns = np.where(has_first, until_ns - table.intended_send_ns, 0)
    more_ns = np.round((first_token_ratio - 1.0) * waited_ns).astype(np.int64)
    is_over = has_first & (table.finished_ns != ABSENT)
    seen = table._replace(
        first_token_ns=table.first_token_ns + more_ns,
        finished_ns=table.finished_ns + more_ns * is_over,
    )
    return simulation._replace(requests=seen)


def _delay_ns(requests: Demand, front_end_s: float) -> I64:
    """Front-end delay of each request (N)."""
    delay_ns = np.int64(round(front_end_s * NS_PER_S))
    return np.where(sent_by_server(requests.accompanies), np.int64(0), delay_ns)
