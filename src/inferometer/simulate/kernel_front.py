"""What stands before compiled replicas: a router, and a gate where there is one?"""

from typing import Final, NamedTuple

import numpy as np

from inferometer.simulate.cluster_config import ClusterConfig
from inferometer.simulate.demand import Demand, demand
from inferometer.simulate.gate_config import GateConfig
from inferometer.simulate.kernel_gate_state import GateState, new_gate_state
from inferometer.simulate.kernel_router_state import RouterState, new_router_state
from inferometer.simulate.kernel_state import State

_NOBODY: Final = (demand([0], [1], [1]), GateConfig())
"""For a gate that is not there; compiled code wants one."""


class Front(NamedTuple):
    """What stands before the replicas."""

    router: RouterState
    gate: GateState


def new_front(requests: Demand, cluster: ClusterConfig, gate: GateConfig | None) -> Front:
    """A router that has sent nothing and a gate to which nobody has come."""
    gate_state = new_gate_state(*_NOBODY) if gate is None else new_gate_state(requests, gate)
    return Front(new_router_state(requests, cluster), gate_state)


def behind_gate(states: State, cluster: ClusterConfig, gate: GateConfig) -> State:
    """The same replicas, of which the gate wants to know how many may be in flight and who has ended."""
    states.world["max_in_flight"] = cluster.n_replicas * (gate.max_in_flight or cluster.engine.max_num_active)
    return states._replace(ended=np.empty(len(states.requests), np.int32))


__all__ = ["Front", "behind_gate", "new_front"]
