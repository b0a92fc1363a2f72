"""Memory of several replicas with router, gate and KV links.

Replicas' arrays are stacked; arrays of requests exist once. ``new_states`` returns a ``State``
whose own arrays have R replicas as an additional first axis; ``state_of`` is a view of one replica.
The stack itself serves as a state where only ``SHARED`` arrays are used. Replicas of different
configurations share one stack, as large as the largest of them needs.
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

_NOBODY: Final = (demand([0], [1], [1]), GateConfig())
"""Placeholder without a gate: compiled code needs a value of this type."""
_UNWRITTEN: Final = frozenset({"waiting", "block_table"})
"""Arrays written before they are read, so that untouched memory is never allocated."""
_OWN: Final = frozenset(State._fields) - SHARED - {"memory", "queue"}
"""Arrays of each replica, beside those of its memory and its queue."""

Table = TypeVar("Table", State, Memory, Queue)


class Front(NamedTuple):
    """Router, gate, and links between prefill and decode replicas."""

    router: RouterState
    gate: GateState
    decode_router: RouterState
    link: LinkState


def new_front(requests: Demand, fleet: Fleet) -> Front:
    """A new router and gate of each kind that the fleet has; unused parts are left empty."""
    gate = _NOBODY if fleet.gate is None else (requests, fleet.gate)
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


def new_states(requests: Demand, fleet: Fleet) -> State:
    """The state of all replicas of a fleet, to which nothing has come yet."""
    pools = fleet.pools
    if fleet.placement is not None:
        states = _groups(requests, fleet.placement)
    elif pools is not None:
        states = _pools(requests, pools)
    else:
        states = _stacked([new_state(requests, fleet.replicas.engine)] * fleet.n_replicas)
    return states if fleet.gate is None else _behind_gate(states, fleet.gate)


def _behind_gate(states: State, gate: GateConfig) -> State:
    """The same replicas, with counters of admitted and ended requests for the gate."""
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


def _pools(requests: Demand, config: DisaggregatedConfig) -> State:
    """The memory of prefill replicas, and behind them of decode replicas."""
    n_slots = max(engine.max_num_active for engine in config.engines)
    prefill, decode = (_pool(requests, engine, n_slots) for engine in config.engines)
    prefill.config["is_prefill_pool"] = decode.config["is_decode_pool"] = 1
    decode.config["group"] = 1
    prefill.config["gives_first_token"] = config.answer_begins_at == "prefill"
    states = _stacked([prefill] * config.prefill.n_replicas + [decode] * config.decode.n_replicas)
    return states._replace(
        contents=max(prefill.contents, decode.contents, key=len),
        chances=decode.chances,
        transfers=blank(requests.n_requests, Transfer),
    )


def _groups(requests: Demand, placement: Placement) -> State:
    """The memory of replicas of several kinds, one kind behind the other."""
    replicas = list[State]()
    for number, group in enumerate(placement.groups):
        replica = new_state(requests, group.engine)
        replica.config["group"] = number
        replicas += [replica] * group.n_replicas
    return _stacked(replicas)._replace(
        contents=max((one.contents for one in replicas), key=len),
        chances=max((one.chances for one in replicas), key=len),
    )


def _pool(requests: Demand, config: EngineConfig, n_slots: int) -> State:
    """A replica whose block table has rows for requests that hold blocks without a slot.

    Each of them has a block that no other has.
    """
    state = new_state(requests, config)
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
    """The first table, with the arrays of all in these fields."""
    stacks: dict[str, Any] = {
        name: _stack(name, [getattr(table, name) for table in tables]) for name in names
    }
    return tables[0]._replace(**stacks)


def _stack(name: str, arrays: list[NDArray[np.generic]]) -> NDArray[np.generic]:
    """Stack arrays, padded to the size of the largest."""
    shape = tuple(max(array.shape[axis] for array in arrays) for axis in range(arrays[0].ndim))
    stack = np.zeros((len(arrays), *shape), arrays[0].dtype)
    for place, array in enumerate(arrays if name not in _UNWRITTEN else []):
        stack[place][tuple(slice(length) for length in array.shape)] = array
    return stack


def pointed_costs(costs: Sequence[StepTimeArrays]) -> StepTimeArrays:
    """Pointer to the step times of all groups of replicas, for ``cost_of``."""
    return pointed_stack(costs[0], costs)


def pointed_states(states: State) -> State:
    """The handle of a stack of replicas, for compiled code."""
    return pointed_stack(states, [one_of(states, row) for row in range(len(states.counters))])


def one_of(states: State, replica: int) -> State:
    """The arrays of one replica, for Python."""
    return _row_of_fields(states, replica, _OWN)._replace(
        memory=_row_of_fields(states.memory, replica, Memory._fields),
        queue=_row_of_fields(states.queue, replica, Queue._fields),
    )


def _row_of_fields(table: Table, row: int, names: Iterable[str]) -> Table:
    return table._replace(**{name: getattr(table, name)[row] for name in names})


@compiled
def state_of(states: State, replica: int) -> State:
    """The arrays of one replica."""
    state: State = row_of(states, replica)
    return state


@compiled
def cost_of(costs: StepTimeArrays, state: State) -> StepTimeArrays:
    """The step times of the group to which a replica belongs."""
    cost: StepTimeArrays = row_of(costs, state.config[0].group)
    return cost
