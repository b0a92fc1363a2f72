"""What would happen on several replicas behind a router?

The plain simulator, to hold the compiled one to.
"""

import numpy as np

from inferometer.perfmodel.steptime_arrays import StepTimeArrays
from inferometer.simulate.demand import Demand, contents_checked
from inferometer.simulate.fleet import ClusterConfig
from inferometer.simulate.gate_config import GateConfig, cut_answers
from inferometer.simulate.outcome import (
    FAR_NS,
    Outcome,
    Simulation,
    simulation,
    slots_numbered_through,
)
from reference import cluster as clusters, lockstep
from reference.clients import Clients
from reference.log import Log
from reference.replica import Replica
from reference.router import RouterRule


def simulate_cluster_plainly(
    requests: Demand,
    config: ClusterConfig,
    cost: StepTimeArrays,
    *,
    gate: GateConfig | None = None,
    until_ns: int | None = None,
    record_parts: bool = False,
) -> Simulation:
    """What becomes of these requests on this cluster?

    The same as ``cluster.simulate_cluster``, some hundred times slower.
    """
    requests = contents_checked(
        requests if gate is None else cut_answers(requests, gate), config.engine
    )
    clients, log = Clients(requests), Log([], [])
    replicas = [
        Replica(config.engine, cost, clients, log, number) for number in range(config.n_replicas)
    ]
    entry = clusters.entry_of(gate, requests, (config,))
    kind = lockstep.LockstepCluster if config.in_lockstep else clusters.Cluster
    cluster = kind(clients, replicas, RouterRule(requests, config), config, entry)
    outcome = cluster.run(FAR_NS if until_ns is None else until_ns)
    end_ns = until_ns if outcome is Outcome.HORIZON and until_ns is not None else cluster.now_ns
    found = simulation(
        requests,
        clients.facts(),
        [log.step_log()],
        [log.part_log()] if record_parts else None,
        outcome=outcome,
        end_ns=end_ns,
        busy_ns=np.array([replica.busy_ns // config.engine.n_instances for replica in replicas]),
    )._replace(evicted_blocks=np.array([one.scheduler.n_evicted for one in replicas]))
    made = slots_numbered_through(found, config.engine.max_num_active)
    if gate is None or entry is None:
        return made
    return made._replace(
        shed_reasons=np.array(entry.gate.reasons, np.int32), gate_classes=gate.class_names
    )
