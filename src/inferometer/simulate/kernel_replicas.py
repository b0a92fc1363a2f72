"""How do several replicas lie in memory? As the arrays of one, stacked; what is about requests is there once.

``new_states`` gives a ``State`` whose own arrays have one axis more, of R replicas in front; ``state_of`` is one of them as the steps
want it, without a copy. The stack itself stands for a state where only what is ``SHARED`` is asked for.
"""

import numpy as np

from inferometer.simulate.compiling import compiled
from inferometer.simulate.demand import Demand
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.kernel_state import SHARED, State, Whole, new_state


def new_states(requests: Demand, config: EngineConfig, n_replicas: int) -> State:
    """The memory of so many equal replicas to which nothing has come yet."""
    one = new_state(requests, config)
    own = {name: _stacked(name, array, n_replicas) for name, array in zip(State._fields, one, strict=True) if name not in SHARED}
    states = one._replace(**own)
    states.config["replica"][:, 0] = np.arange(n_replicas)
    return states


def _stacked(name: str, array: Whole, n_replicas: int) -> Whole:
    if name == "waiting":  # written before it is read: memory that nobody touches is never given
        return np.empty((n_replicas, *array.shape), array.dtype)
    return np.stack([array] * n_replicas)


@compiled
def state_of(states: State, replica: int) -> State:
    """The arrays of one replica."""
    return State(
        config=states.config[replica],
        counters=states.counters[replica],
        world=states.world,
        requests=states.requests,
        contents=states.contents,
        blocks=states.blocks[replica],
        first_equal=states.first_equal[replica],
        last_equal=states.last_equal[replica],
        block_table=states.block_table[replica],
        by_address=states.by_address[replica],
        free_seats=states.free_seats[replica],
        running=states.running[replica],
        waiting=states.waiting[replica],
        skipped=states.skipped,
        chunks=states.chunks[replica],
        sglang=states.sglang[replica],
        nodes=states.nodes[replica],
        joining=states.joining[replica],
        acceptance=states.acceptance,
        is_preferred=states.is_preferred[replica],
        preempted=states.preempted[replica],
        parts=states.parts[replica],
        batches=states.batches[replica],
        abort_ns=states.abort_ns,
        abort_order=states.abort_order,
        arrival_order=states.arrival_order,
        due=states.due,
        follower=states.follower,
        think_ns=states.think_ns,
        earliest_ns=states.earliest_ns,
        ended=states.ended,
    )


__all__ = ["new_states", "state_of"]
