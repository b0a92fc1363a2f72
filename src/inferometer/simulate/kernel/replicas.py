"""How do several replicas lie in memory?

As the arrays of one, stacked; what is about requests is there once.

``new_states`` gives a ``State`` whose own arrays have one axis more, of R replicas in front;
``state_of`` is one of them as the steps want it, without a copy. The stack itself stands for a
state where only what is ``SHARED`` is asked for. Pools of replicas that are set up in different
ways lie in one stack, as large as the largest of them needs.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inferometer.simulate.compiling import compiled
from inferometer.simulate.demand import Demand
from inferometer.simulate.disaggregation_config import DisaggregatedConfig
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.kernel.rows import blank
from inferometer.simulate.kernel.state import SHARED, State, Transfer, new_state
from inferometer.simulate.pointers import pointed_stack, row_of

_UNWRITTEN: Final = frozenset({"waiting", "block_table"})
"""Written before it is read: memory that nobody touches is never given."""


def new_states(requests: Demand, config: EngineConfig, n_replicas: int) -> State:
    """The memory of so many equal replicas to which nothing has come yet."""
    return _stacked([new_state(requests, config)] * n_replicas)


def new_pools(requests: Demand, config: DisaggregatedConfig) -> State:
    """The memory of prefill replicas, and behind them of decode replicas."""
    n_seats = max(engine.max_num_active for engine in config.engines)
    prefill, decode = (_pool(requests, engine, n_seats) for engine in config.engines)
    prefill.config["is_prefill_pool"] = decode.config["is_decode_pool"] = 1
    prefill.config["gives_first_token"] = config.answer_begins_at == "prefill"
    states = _stacked([prefill] * config.prefill.n_replicas + [decode] * config.decode.n_replicas)
    return states._replace(
        contents=max(prefill.contents, decode.contents, key=len),
        chances=decode.chances,
        transfers=blank(requests.n_requests, Transfer),
    )


def _pool(requests: Demand, config: EngineConfig, n_seats: int) -> State:
    """A replica whose block table has rows for all who may hold blocks without a seat.

    Each of them has a block that no other has.
    """
    state = new_state(requests, config)
    n_rows = n_seats + min(requests.n_requests, config.n_kv_blocks)
    return state._replace(block_table=np.zeros((n_rows, state.block_table.shape[1]), np.int32))


def _stacked(replicas: list[State]) -> State:
    own: dict[str, Any] = {
        name: _stack(name, [getattr(one, name) for one in replicas])
        for name in State._fields
        if name not in SHARED
    }
    states = replicas[0]._replace(**own)
    states.config["replica"][:, 0] = np.arange(len(replicas))
    return states


def _stack(name: str, arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """All as large as the largest."""
    shape = tuple(max(array.shape[axis] for array in arrays) for axis in range(arrays[0].ndim))
    stack = np.zeros((len(arrays), *shape), arrays[0].dtype)
    for place, array in enumerate(arrays if name not in _UNWRITTEN else []):
        stack[place][tuple(slice(length) for length in array.shape)] = array
    return stack


def pointed_states(states: State) -> State:
    """The handle of a stack of replicas, for compiled code."""
    own = {name: getattr(states, name) for name in State._fields if name not in SHARED}
    rows = [
        states._replace(**{name: array[replica] for name, array in own.items()})
        for replica in range(len(states.counters))
    ]
    return pointed_stack(states, rows)


@compiled
def state_of(states: State, replica: int) -> State:
    """The arrays of one replica."""
    state: State = row_of(states, replica)
    return state
