"""What would happen on several replicas behind a router? The compiled simulator of a cluster."""

import numpy as np

from inferometer.perfmodel.steptime_arrays import StepTimeArrays
from inferometer.simulate.cluster_config import ClusterConfig
from inferometer.simulate.demand import Demand, contents_checked
from inferometer.simulate.gate_config import GateConfig, cut_answers
from inferometer.simulate.kernel.config import Kind
from inferometer.simulate.kernel.front import behind_gate, new_front
from inferometer.simulate.kernel.logs import Wanted, facts_of, run_logged
from inferometer.simulate.kernel.loop import cluster_loop_of
from inferometer.simulate.kernel.replicas import new_states, pointed_states
from inferometer.simulate.outcome import (
    FAR_NS,
    Outcome,
    Simulation,
    seats_numbered_through,
    simulation,
)
from inferometer.simulate.pointers import pointed


def simulate_cluster(
    requests: Demand,
    cluster: ClusterConfig,
    cost: StepTimeArrays,
    *,
    gate: GateConfig | None = None,
    until_ns: int | None = None,
    record_steps: bool = True,
    record_parts: bool = False,
) -> Simulation:
    """What becomes of these requests on this cluster, if each replica's steps take so long?

    Same inputs, same outputs, to the nanosecond, as
    ``reference.cluster_run.simulate_cluster_plainly``; one replica alone is ``kernel.simulate``.
    The other keywords are those of ``kernel.simulate``. ``gate`` stands before the router and cuts
    answers as its classes say; whom it turned away, and why, is in ``shed_reasons``. Where one
    replica is in a livelock the run ends there.
    """
    engine, n_replicas = cluster.engine, cluster.n_replicas
    requests = contents_checked(requests if gate is None else cut_answers(requests, gate), engine)
    states = new_states(requests, engine, n_replicas)
    if gate is not None:
        states = behind_gate(states, gate)
    front = new_front(requests, cluster, gate, cost)
    run = cluster_loop_of(
        Kind(int(states.config["kind"][0, 0])),
        has_gate=gate is not None,
        is_lockstep=cluster.in_lockstep,
    )
    wanted = Wanted(
        record_steps, record_parts, n_replicas * engine.depth, n_replicas * engine.max_num_active
    )
    limit_ns = FAR_NS if until_ns is None else until_ns
    outcome, logs, part_logs = run_logged(
        run, (pointed_states(states), pointed(front), pointed(cost)), wanted, until_ns=limit_ns
    )
    end_ns = (
        until_ns
        if outcome is Outcome.HORIZON and until_ns is not None
        else int(states.world["now_ns"][0])
    )
    found = simulation(
        requests,
        facts_of(states),
        logs,
        part_logs,
        outcome=outcome,
        end_ns=end_ns,
        busy_ns=states.counters["busy_ns"][:, 0].astype(np.int64) // engine.n_instances,
    )
    made = seats_numbered_through(found, engine.max_num_active)
    return (
        made
        if gate is None
        else made._replace(
            shed_reasons=front.gate.requests["reason"].copy(), gate_classes=gate.class_names
        )
    )
