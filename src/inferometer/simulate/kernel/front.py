"""Arrays of several replicas with router, gate and KV links.

``new_states`` returns a ``State`` whose arrays of a replica have the R replicas as an additional
first axis (a stack), while arrays of requests exist once. ``state_of`` is a view of one replica.
The stack itself can be passed as a state to functions that use only ``SHARED`` arrays. Replicas of
different configurations share one stack, as large as the largest of them needs.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from inferometer.perfmodel.steptime_arrays import StepTimeArrays
from inferometer.simulate.compiling import compiled
from inferometer.simulate.demand import Demand, demand
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.fleet import DisaggregatedConfig, Fleet, KvLink, Placement
from inferometer.simulate.gate_config import GateConfig
from inferometer.simulate.kernel.gate_state import GateState, new_gate_state
from inferometer.simulate.kernel.handover import LinkState, new_link
from inferometer.simulate.kernel.routing import RouterState, new_router_state
from inferometer.simulate.kernel.state import SHARED, Memory, Queue, State, Transfer, new_state
from inferometer.simulate.pointers import blank, pointed_stack, row_of

_NO_GATE: Final = (demand([0], [1], [1]), GateConfig())
"""Placeholder if there is no gate: compiled code needs a value of this type."""
_UNWRITTEN: Final = frozenset({"waiting", "block_table"})
"""Arrays whose entries are always written before they are read.

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
        stack[place][tuple(slice(length) for length in array.shape)] = array
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
