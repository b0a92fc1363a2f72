"""What stands before compiled replicas: a router, a gate where there is one, and what lies between two pools of them?"""

from typing import Final, NamedTuple

import numpy as np

from inferometer.perfmodel.steptime_arrays import StepTimeArrays
from inferometer.simulate.cluster_config import ClusterConfig
from inferometer.simulate.demand import Demand, demand
from inferometer.simulate.disaggregation_config import DisaggregatedConfig, KvLink
from inferometer.simulate.gate_config import GateConfig
from inferometer.simulate.kernel.gate_state import GateState, new_gate_state
from inferometer.simulate.kernel.link import LinkState, new_link
from inferometer.simulate.kernel.routing import RouterState, new_router_state
from inferometer.simulate.kernel.state import State

_NOBODY: Final = (demand([0], [1], [1]), GateConfig())
"""For a gate that is not there; compiled code wants one."""


class Front(NamedTuple):
    """What stands before the replicas, and between those that prefill and those that decode where they are not the same."""

    router: RouterState
    gate: GateState
    decode_router: RouterState
    link: LinkState
    decode_cost: StepTimeArrays


def new_front(
    requests: Demand, cluster: ClusterConfig, gate: GateConfig | None, cost: StepTimeArrays
) -> Front:
    """A router that has sent nothing and a gate to which nobody has come; the rest is not asked for."""
    router = new_router_state(requests, cluster)
    return Front(
        router, _gate_state(requests, gate), router, new_link(KvLink(block_bytes=1), 0), cost
    )


def new_split_front(
    requests: Demand,
    config: DisaggregatedConfig,
    gate: GateConfig | None,
    decode_cost: StepTimeArrays,
) -> Front:
    """The same before two pools."""
    decode_router = new_router_state(requests, config.decode, first=config.prefill.n_replicas)
    link = new_link(config.link, config.n_replicas)
    return Front(
        new_router_state(requests, config.prefill),
        _gate_state(requests, gate),
        decode_router,
        link,
        decode_cost,
    )


def _gate_state(requests: Demand, gate: GateConfig | None) -> GateState:
    return new_gate_state(*_NOBODY) if gate is None else new_gate_state(requests, gate)


def behind_gate(states: State, gate: GateConfig) -> State:
    """The same replicas, of which the gate wants to know how much may be inside and who has ended."""
    config = states.config[:, 0]
    n_seats = config["max_num_active"]
    states.world["max_in_flight"] = gate.max_in_flight * len(n_seats) or n_seats.sum()
    if gate.max_in_flight == 0:  # reference.cluster.entry_of says why
        takes = config["is_decode_pool"] == 0
        states.world["max_waiting_tokens"] = (config["depth"] * config["max_num_batched_tokens"])[
            takes
        ].sum()
    return states._replace(ended=np.empty(len(states.requests), np.int32))
