"""What would happen?

The compiled simulator, from columns of requests to tables of what became of them.
"""

import numpy as np

from inferometer.perfmodel.steptime_arrays import StepTimeArrays
from inferometer.simulate.cluster import simulate_cluster
from inferometer.simulate.cluster_config import ClusterConfig
from inferometer.simulate.demand import Demand, contents_checked
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.gate_config import GateConfig
from inferometer.simulate.kernel.config import Kind
from inferometer.simulate.kernel.logs import Wanted, facts_of, run_logged
from inferometer.simulate.kernel.loop import loop_of
from inferometer.simulate.kernel.state import new_state
from inferometer.simulate.outcome import FAR_NS, Outcome, Simulation, simulation
from inferometer.simulate.pointers import pointed


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
    """What becomes of these requests on one replica with this scheduler and these step times?

    Same inputs, same outputs, to the nanosecond, as ``reference.simulator.simulate_plainly``.
    ``until_ns`` ends it there: what was computed by then is delivered, requests still there are
    unfinished. ``record_steps`` keeps a row for each step, which in a long and quiet run take more
    memory than the requests; ``record_parts`` also keeps who did what in each of them. A ``gate``
    stands before the engine and holds requests back: see ``cluster.simulate_cluster``.
    """
    if gate is not None or config.n_instances > 1:
        alone, kept = (
            ClusterConfig(engine=config),
            {"record_steps": record_steps, "record_parts": record_parts},
        )
        return simulate_cluster(requests, alone, cost, gate=gate, until_ns=until_ns, **kept)
    requests = contents_checked(requests, config)
    state = new_state(requests, config)
    run = loop_of(Kind(int(state.config["kind"][0])))
    wanted = Wanted(record_steps, record_parts, config.depth, config.max_num_active)
    limit_ns = FAR_NS if until_ns is None else until_ns
    outcome, logs, part_logs = run_logged(
        run, (pointed(state), pointed(cost)), wanted, until_ns=limit_ns
    )
    end_ns = (
        until_ns
        if outcome is Outcome.HORIZON and until_ns is not None
        else int(state.counters["now_ns"][0])
    )
    return simulation(
        requests,
        facts_of(state),
        logs,
        part_logs,
        outcome=outcome,
        end_ns=end_ns,
        busy_ns=state.counters["busy_ns"].astype(np.int64),
    )
