"""What would happen? The plain simulator, to be read and to hold the compiled one to."""

import numpy as np

from inferometer.perfmodel.steptime_terms import StepTimeArrays
from inferometer.simulate.demand import Demand, contents_checked
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.fleet import ClusterConfig
from inferometer.simulate.gate_config import GateConfig
from inferometer.simulate.outcome import FAR_NS, Outcome, Simulation, simulation
from reference.clients import Clients
from reference.cluster_run import simulate_cluster_plainly
from reference.engine import Engine
from reference.log import Log
from reference.pools import use_of
from reference.replica import Replica


def simulate_plainly(
    requests: Demand,
    config: EngineConfig,
    cost: StepTimeArrays,
    *,
    until_ns: int | None = None,
    record_parts: bool = False,
    gate: GateConfig | None = None,
) -> Simulation:
    """What becomes of these requests?

    The same as ``kernel.simulate``, some hundred times slower.
    """
    if gate is not None or config.n_instances > 1:
        alone = ClusterConfig(engine=config)
        return simulate_cluster_plainly(
            requests, alone, cost, gate=gate, until_ns=until_ns, record_parts=record_parts
        )
    requests = contents_checked(requests, config)
    clients, log = Clients(requests), Log([], [])
    replica = Replica(config, cost, clients, log)
    outcome = Engine(clients, replica, FAR_NS if until_ns is None else until_ns).run()
    end_ns = until_ns if outcome is Outcome.HORIZON and until_ns is not None else replica.now_ns
    return simulation(
        requests,
        clients.facts(),
        [log.step_log()],
        [log.part_log()] if record_parts else None,
        outcome=outcome,
        end_ns=end_ns,
        busy_ns=np.array([replica.busy_ns]),
    )._replace(
        evicted_blocks=np.array([replica.scheduler.n_evicted]), kv_pools=use_of([replica.kv_cache])
    )
