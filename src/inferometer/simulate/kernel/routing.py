"""Routing of requests to replicas, and arrays of router, gate and KV links. Compiled.

The same as ``reference/router.py``, on arrays. Random draws are made before the simulation
(``router_draws``), so that they are the same for all routers, for slow and fast step times, and for
both simulators. Letters of shapes: N requests, R replicas, K contents of blocks, C classes.

``new_states`` returns a ``State`` whose arrays of a replica have the R replicas as an additional
first axis (a stack), while arrays of requests exist once. ``state_of`` is a view of one replica.
The stack itself can be passed as a state to functions that use only ``SHARED`` arrays. Replicas of
different configurations share one stack, as large as the largest of them needs.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from inferometer.inputs.workload.arrivals import uniforms
from inferometer.perfmodel.steptime_terms import StepTimeArrays
from inferometer.records.columns import I32, I64, Bools
from inferometer.simulate.compiling import compiled
from inferometer.simulate.demand import Demand, demand
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.fleet import (
    DRAWING_ROUTERS,
    ROUTERS,
    ClusterConfig,
    DisaggregatedConfig,
    Fleet,
    KvLink,
    Placement,
    replicas_of_classes,
)
from inferometer.simulate.gate_config import GateConfig
from inferometer.simulate.kernel.gate_state import GateState, new_gate_state
from inferometer.simulate.kernel.handover import LinkState, new_link
from inferometer.simulate.kernel.state import SHARED, Memory, Queue, State, Transfer, new_state
from inferometer.simulate.pointers import Row, Rows, blank, f64, i64, pointed_stack, row_of


def router_draws(seed: int, n_requests: int, n_replicas: int) -> I32:
    """(N, 2) Two different random replicas for each request, all pairs equally likely.

    If there is only one replica, it is there twice.

    Example
    -------
    >>> draws = router_draws(0, 1000, 3)
    >>> bool((draws[:, 0] != draws[:, 1]).all())
    True
    """
    first = np.floor(uniforms(seed, "router", n_requests) * n_replicas).astype(np.int32)
    if n_replicas == 1:
        return np.stack([first, first], axis=1)
    second = np.floor(uniforms(seed, "router, second", n_requests) * (n_replicas - 1)).astype(
        np.int32
    )
    return np.stack([first, second + (second >= first)], axis=1).astype(np.int32)


class RouterRules(Row):
    """The router's rule, its parameters and its last choice.

    ``kind`` is the rule's index in ``ROUTERS``, ``first`` the index of the router's first replica,
    ``last`` the replica chosen last, counted from ``first``.
    """

    kind: i64
    first: i64
    last: i64
    balance_abs_threshold: i64
    report_interval_ns: i64
    next_report_ns: i64
    n_sent: i64
    cache_threshold_fraction: f64
    balance_rel_threshold_ratio: f64


class Report(Row):
    """A replica's load report at the start of a step."""

    n_waiting: i64
    n_running: i64
    n_kv_blocks_used: i64


class RouterState(NamedTuple):
    """All arrays of one router; arrays that its rule does not use are empty."""

    rules: Rows[RouterRules]
    """(1)"""
    draws: I32
    """(N, 2) ``router_draws``"""
    class_index: I32
    """(N)"""
    is_own: Bools
    """(C, R) May requests of this class be sent to that replica?"""
    is_known: Bools
    """(R, K) Was a prompt with this block content sent to this replica?"""
    n_known: I64
    """(R) The number of block contents that were sent to each replica."""
    reported: Rows[Report]
    """(R, or 0 if the rule uses no reports) The last load report of each replica."""
    delivered: Rows[Report]
    """(as reported) The last report that has reached the router; its waiting requests include those
    that the router has sent since."""


def new_router_state(requests: Demand, config: ClusterConfig, first: int = 0) -> RouterState:
    """Initial state of a router in front of ``config.n_replicas`` replicas from ``first`` on."""
    rules = blank(1, RouterRules)
    rules["kind"], rules["first"], rules["last"] = (
        ROUTERS.index(config.router),
        first,
        config.n_replicas - 1,
    )
    for name in (
        "report_interval_ns",
        "balance_abs_threshold",
        "cache_threshold_fraction",
        "balance_rel_threshold_ratio",
    ):
        rules[name] = getattr(config, name)
    is_drawing = config.router in DRAWING_ROUTERS
    n_reporting = config.n_replicas if config.router in {"vllm", "vllm-0.19"} else 0
    n_known = requests.n_contents if config.router == "prefix-affine" else 0
    return RouterState(
        rules=rules,
        draws=router_draws(
            config.seed, requests.n_requests if is_drawing else 0, config.n_replicas
        ),
        class_index=requests.class_index,
        is_own=_is_own(requests, config),
        is_known=np.zeros((config.n_replicas, n_known), np.bool_),
        n_known=np.zeros(config.n_replicas, np.int64),
        reported=blank(n_reporting, Report),
        delivered=blank(n_reporting, Report),
    )


def _is_own(requests: Demand, config: ClusterConfig) -> Bools:
    """``RouterState.is_own``: which replicas may get requests of each class."""
    if config.router != "class-aware":
        return np.zeros((0, config.n_replicas), np.bool_)
    replicas = replicas_of_classes(config, int(requests.class_index.max()) + 1)
    is_own = np.zeros((len(replicas), config.n_replicas), np.bool_)
    for i_class, own in enumerate(replicas):
        is_own[i_class, list(own)] = True
    return is_own


_RANDOM = ROUTERS.index("random")
_ROUND_ROBIN = ROUTERS.index("round-robin")
_POWER_OF_TWO = ROUTERS.index("power-of-two")
_PREFIX_AFFINE = ROUTERS.index("prefix-affine")
_CLASS_AWARE = ROUTERS.index("class-aware")
_VLLM = ROUTERS.index("vllm")
_VLLM_0_19 = ROUTERS.index("vllm-0.19")
_ANY_CLASS = -1


@compiled
def choose(states: State, router: RouterState, index: int) -> int:
    """Choose a request's replica by the router's rule; returns its index among all replicas."""
    rules = router.rules[0]
    if rules.kind == _RANDOM:
        chosen: int = router.draws[index, 0]
    elif rules.kind == _POWER_OF_TWO:
        chosen, other = router.draws[index, 0], router.draws[index, 1]
        if _load(states, router, other) < _load(states, router, chosen):
            chosen = other
    elif rules.kind == _ROUND_ROBIN:
        chosen = (rules.last + 1) % len(router.n_known)
    elif rules.kind == _CLASS_AWARE:
        chosen = _least_loaded(states, router, router.class_index[index])
    elif rules.kind in (_VLLM, _VLLM_0_19):
        chosen = _least_by_report(states, router)
    elif rules.kind == _PREFIX_AFFINE and not _is_unbalanced(states, router):
        chosen = _with_prefix(states, router, index)
    else:
        chosen = _least_loaded(states, router, _ANY_CLASS)
    rules.last = chosen
    if rules.kind == _PREFIX_AFFINE:
        _record_prompt(states, router, index, chosen)
    replica: int = rules.first + chosen
    return replica


@compiled
def deliver_reports(router: RouterState, now_ns: int) -> None:
    """Deliver the replicas' last load reports to the router, if the report interval is over."""
    rules = router.rules[0]
    if len(router.reported) > 0 and now_ns >= rules.next_report_ns:
        rules.next_report_ns = now_ns + rules.report_interval_ns
        for place in range(len(router.reported)):
            reported, delivered = router.reported[place], router.delivered[place]
            delivered.n_waiting, delivered.n_running, delivered.n_kv_blocks_used = (
                reported.n_waiting,
                reported.n_running,
                reported.n_kv_blocks_used,
            )


@compiled
def report(states: State, router: RouterState, replica: int) -> None:
    """Store a replica's load report, to be delivered at the end of the report interval."""
    place = replica - router.rules[0].first
    if len(router.reported) > 0:
        counters, reported = states.counters[replica, 0], router.reported[place]
        reported.n_waiting, reported.n_running = (
            counters.n_waiting,
            load(states, replica) - counters.n_waiting,
        )
        reported.n_kv_blocks_used = states.config[replica, 0].n_kv_blocks - counters.n_free


@compiled
def load(states: State, replica: int) -> int:
    """Requests sent to this replica that have not ended."""
    counters = states.counters[replica, 0]
    n_requests: int = counters.n_taken - counters.n_ended
    return n_requests


@compiled
def _load(states: State, router: RouterState, replica: int) -> int:
    """Requests sent to a replica (counted from the router's first) that have not ended."""
    return load(states, router.rules[0].first + replica)


@compiled
def _least_loaded(states: State, router: RouterState, i_class: int) -> int:
    """The least loaded replica for this class; of equals the next one after the last choice."""
    n_replicas, chosen, least = len(router.n_known), -1, 0
    for step in range(1, n_replicas + 1):
        replica = (router.rules[0].last + step) % n_replicas
        if i_class != _ANY_CLASS and not router.is_own[i_class, replica]:
            continue
        n_requests = _load(states, router, replica)
        if chosen < 0 or n_requests < least:
            chosen, least = replica, n_requests
    return chosen


@compiled
def _least_by_report(states: State, router: RouterState) -> int:
    """The replica with the lowest score by its load report (vLLM's data-parallel load balancing).

    The request is added to the waiting requests in the router's copy of the report.
    """
    rules, n_replicas = router.rules[0], len(router.n_known)
    first = rules.n_sent % n_replicas if rules.kind == _VLLM else 0
    chosen, least = first, _score(states, router, first)
    for step in range(1, n_replicas):
        replica = (first + step) % n_replicas
        score = _score(states, router, replica)
        if score < least:
            chosen, least = replica, score
    router.delivered[chosen].n_waiting += 1
    rules.n_sent += 1
    return chosen


@compiled
def _score(states: State, router: RouterState, replica: int) -> float:
    """Score of a replica by its delivered load report (vLLM's rule); the lowest is chosen."""
    rules, load_report = router.rules[0], router.delivered[replica]
    if rules.kind == _VLLM_0_19:
        return float(4 * load_report.n_waiting + load_report.n_running)
    used_fraction = (
        load_report.n_kv_blocks_used / states.config[rules.first + replica, 0].n_kv_blocks
    )
    n_requests = max(_load(states, router, replica), load_report.n_waiting + load_report.n_running)
    score: float = n_requests + load_report.n_waiting * 6.0 * max(0.0, used_fraction - 0.5)
    return score


@compiled
def _is_unbalanced(states: State, router: RouterState) -> bool:
    """Do the replicas' loads differ by more than both ``balance_`` thresholds?"""
    rules, least = router.rules[0], _load(states, router, 0)
    most = least
    for replica in range(1, len(router.n_known)):
        n_requests = _load(states, router, replica)
        least, most = min(least, n_requests), max(most, n_requests)
    is_uneven: bool = (
        most - least > rules.balance_abs_threshold
        and most > rules.balance_rel_threshold_ratio * least
    )
    return is_uneven


@compiled
def _with_prefix(states: State, router: RouterState, index: int) -> int:
    """The replica that was sent the longest prefix of the prompt, of equals the least loaded.

    If that prefix is at most ``cache_threshold_fraction`` of the prompt: the replica that was sent
    the fewest different blocks.
    """
    best, n_best, emptiest = 0, -1, 0
    for replica in range(len(router.n_known)):
        n_blocks = _n_known_blocks(states, router, index, replica)
        if n_blocks > n_best or (
            n_blocks == n_best and _load(states, router, replica) < _load(states, router, best)
        ):
            best, n_best = replica, n_blocks
        if router.n_known[replica] < router.n_known[emptiest]:
            emptiest = replica
    n_tokens = n_best * states.config[0, 0].block_size
    if (
        n_tokens
        > router.rules[0].cache_threshold_fraction * states.requests[index].num_prompt_tokens
    ):
        return best
    return emptiest


@compiled
def _n_known_blocks(states: State, router: RouterState, index: int, replica: int) -> int:
    """The number of a prompt's first blocks that were sent to this replica before."""
    request = states.requests[index]
    n_most: int = request.num_prompt_tokens // states.config[0, 0].block_size
    for i_block in range(n_most):
        if not router.is_known[replica, states.contents[request.content_start + i_block]]:
            return i_block
    return n_most


@compiled
def _record_prompt(states: State, router: RouterState, index: int, replica: int) -> None:
    """Record that a prompt's blocks were sent to this replica."""
    request = states.requests[index]
    for i_block in range(request.num_prompt_tokens // states.config[0, 0].block_size):
        content = states.contents[request.content_start + i_block]
        if not router.is_known[replica, content]:
            router.is_known[replica, content] = True
            router.n_known[replica] += 1


_NO_GATE: Final = (demand([0], [1], [1]), GateConfig())
"""Placeholder if there is no gate: compiled code needs a value of this type."""
_UNWRITTEN: Final = frozenset({"waiting", "block_table", "first_equal", "last_equal"})
"""Arrays that begin as zeros, or whose entries are always written before they are read.

They are not copied, so that the system allocates only the memory that is used.
"""
_OWN: Final = frozenset(State._fields) - SHARED - {"memory", "queue"}
"""Fields of ``State`` that each replica has for itself, besides ``memory`` and ``queue``."""

Table = TypeVar("Table", State, Memory, Queue)


class Front(NamedTuple):
    """What is in front of the replicas, and the KV link between prefill and decode replicas."""

    router: RouterState
    gate: GateState
    decode_router: RouterState
    link: LinkState


def new_front(requests: Demand, fleet: Fleet) -> Front:
    """Initial state of routers, gate and KV link; parts that the fleet has not are left empty."""
    gate = _NO_GATE if fleet.gate is None else (requests, fleet.gate)
    pools = fleet.pools
    if pools is None:
        router, link = new_router_state(requests, fleet.replicas), KvLink(block_bytes=1)
        return Front(router, new_gate_state(*gate), router, new_link(link, 0))
    return Front(
        new_router_state(requests, pools.prefill),
        new_gate_state(*gate),
        new_router_state(requests, pools.decode, first=pools.prefill.n_replicas),
        new_link(pools.link, fleet.n_replicas),
    )


def new_states(requests: Demand, fleet: Fleet, *, are_all: bool = True) -> State:
    """Initial state of all replicas of a fleet; ``are_all``: no other requests will come."""
    pools = fleet.pools
    if fleet.placement is not None:
        states = _groups(requests, fleet.placement, are_all=are_all)
    elif pools is not None:
        states = _pools(requests, pools, are_all=are_all)
    else:
        state = new_state(requests, fleet.replicas.engine, are_all=are_all)
        states = _stacked([state] * fleet.n_replicas)
    return states if fleet.gate is None else _behind_gate(states, fleet.gate)


def _behind_gate(states: State, gate: GateConfig) -> State:
    """The states with the gate's limits set, and with an array that records ended requests."""
    config = states.config[:, 0]
    n_slots = config["max_num_active"]
    states.world["max_in_flight"] = gate.max_in_flight * len(n_slots) or n_slots.sum()
    if gate.max_in_flight == 0:  # reference.cluster.entry_of says why
        takes = config["is_decode_pool"] == 0
        states.world["max_waiting_tokens"] = (config["depth"] * config["max_num_batched_tokens"])[
            takes
        ].sum()
    ended = np.empty(len(states.requests), np.int32)
    return states._replace(arrivals=states.arrivals._replace(ended=ended))


def _pools(requests: Demand, config: DisaggregatedConfig, *, are_all: bool) -> State:
    """Initial state of prefill replicas, followed by decode replicas."""
    n_slots = max(engine.max_num_active for engine in config.engines)
    prefill, decode = (
        _pool(requests, engine, n_slots, are_all=are_all) for engine in config.engines
    )
    prefill.config["is_prefill_pool"] = decode.config["is_decode_pool"] = 1
    decode.config["group"] = 1
    prefill.config["gives_first_token"] = config.answer_begins_at == "prefill"
    states = _stacked([prefill] * config.prefill.n_replicas + [decode] * config.decode.n_replicas)
    return states._replace(
        contents=max(prefill.contents, decode.contents, key=len),
        chances=decode.chances,
        transfers=blank(requests.n_requests, Transfer),
    )


def _groups(requests: Demand, placement: Placement, *, are_all: bool) -> State:
    """Initial state of replicas of several kinds, one kind after the other."""
    replicas = list[State]()
    for number, group in enumerate(placement.groups):
        replica = new_state(requests, group.engine, are_all=are_all)
        replica.config["group"] = number
        replicas += [replica] * group.n_replicas
    return _stacked(replicas)._replace(
        contents=max((one.contents for one in replicas), key=len),
        chances=max((one.chances for one in replicas), key=len),
    )


def _pool(requests: Demand, config: EngineConfig, n_slots: int, *, are_all: bool) -> State:
    """A replica whose block table also has rows for requests that hold blocks but no slot.

    There are at most as many such requests as blocks: each owns a block of its own.
    """
    state = new_state(requests, config, are_all=are_all)
    n_rows = n_slots + min(requests.n_requests, config.n_kv_blocks)
    table = np.zeros((n_rows, state.memory.block_table.shape[1]), np.int32)
    return state._replace(memory=state.memory._replace(block_table=table))


def _stacked(replicas: list[State]) -> State:
    states = _stacked_fields(replicas, _OWN)._replace(
        memory=_stacked_fields([one.memory for one in replicas], Memory._fields),
        queue=_stacked_fields([one.queue for one in replicas], Queue._fields),
    )
    states.config["replica"][:, 0] = np.arange(len(replicas))
    return states


def _stacked_fields(tables: list[Table], names: Iterable[str]) -> Table:
    """The first table, with the arrays of all tables stacked in the named fields."""
    stacks: dict[str, Any] = {
        name: _stack(name, [getattr(table, name) for table in tables]) for name in names
    }
    return tables[0]._replace(**stacks)


def _stack(name: str, arrays: list[NDArray[np.generic]]) -> NDArray[np.generic]:
    """The arrays stacked along a new first axis, padded with 0 to the size of the largest."""
    shape = tuple(max(array.shape[axis] for array in arrays) for axis in range(arrays[0].ndim))
    stack = np.zeros((len(arrays), *shape), arrays[0].dtype)
    for place, array in enumerate(arrays if name not in _UNWRITTEN else []):
        own = stack[place][tuple(slice(length) for length in array.shape)]
        if array.dtype.names is None:
            own[...] = array
        else:  # as bytes: NumPy copies records field by field, ten times slower
            own.view(np.uint8)[...] = array.view(np.uint8)
    return stack


def pointed_costs(costs: Sequence[StepTimeArrays]) -> StepTimeArrays:
    """Pointer to the step times of all groups of replicas, for ``cost_of``."""
    return pointed_stack(costs[0], costs)


def pointed_states(states: State) -> State:
    """Pointer to the states of all replicas, for ``state_of``."""
    return pointed_stack(states, [one_of(states, row) for row in range(len(states.counters))])


def one_of(states: State, replica: int) -> State:
    """The state of one replica, for Python code."""
    return _row_of_fields(states, replica, _OWN)._replace(
        memory=_row_of_fields(states.memory, replica, Memory._fields),
        queue=_row_of_fields(states.queue, replica, Queue._fields),
    )


def _row_of_fields(table: Table, row: int, names: Iterable[str]) -> Table:
    return table._replace(**{name: getattr(table, name)[row] for name in names})


@compiled
def state_of(states: State, replica: int) -> State:
    """The state of one replica, for compiled code."""
    state: State = row_of(states, replica)
    return state


@compiled
def cost_of(costs: StepTimeArrays, state: State) -> StepTimeArrays:
    """The step times of the group to which a replica belongs."""
    cost: StepTimeArrays = row_of(costs, state.config[0].group)
    return cost
