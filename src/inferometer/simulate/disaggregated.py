"""What would happen if prompts and answers were computed on different servers?

The compiled simulator of two pools and a link.
"""

from typing import NamedTuple

import numpy as np

from inferometer.perfmodel.steptime_arrays import StepTimeArrays
from inferometer.simulate.demand import Demand, contents_checked
from inferometer.simulate.disaggregation_config import DisaggregatedConfig
from inferometer.simulate.gate_config import GateConfig, cut_answers
from inferometer.simulate.handover_outcome import HandoverFacts, with_handovers
from inferometer.simulate.kernel import (
    front as kernel_front,
    logs as kernel_logs,
    loop,
    replicas as kernel_replicas,
)
from inferometer.simulate.kernel.config import Kind
from inferometer.simulate.kernel.state import Records
from inferometer.simulate.outcome import (
    FAR_NS,
    Outcome,
    Simulation,
    seats_numbered_through,
    simulation,
)
from inferometer.simulate.pointers import pointed


class PoolCosts(NamedTuple):
    """How long do steps take in each pool?"""

    prefill: StepTimeArrays
    decode: StepTimeArrays


def simulate_disaggregated(
    requests: Demand,
    config: DisaggregatedConfig,
    costs: PoolCosts,
    *,
    gate: GateConfig | None = None,
    until_ns: int | None = None,
    record_steps: bool = True,
    record_parts: bool = False,
) -> Simulation:
    """What becomes of these requests on prefill and decode replicas, if their steps take so long?

    Same inputs, same outputs, to the nanosecond, as
    ``reference.disaggregated_run.simulate_disaggregated_plainly``. Replicas are numbered through,
    those that prefill first; the other keywords are those of ``cluster.simulate_cluster``.
    """
    requests = contents_of_pools(requests if gate is None else cut_answers(requests, gate), config)
    states = kernel_replicas.new_pools(requests, config)
    if gate is not None:
        states = kernel_front.behind_gate(states, gate)
    front = kernel_front.new_split_front(requests, config, gate, costs.decode)
    run = loop.cluster_loop_of(Kind.VLLM, has_gate=gate is not None, is_split=True)
    depth, n_seats = (
        max(getattr(engine, name) for engine in config.engines)
        for name in ("depth", "max_num_active")
    )
    wanted = kernel_logs.Wanted(
        record_steps, record_parts, config.n_replicas * depth, config.n_replicas * n_seats
    )
    limit_ns = FAR_NS if until_ns is None else until_ns
    tables = (kernel_replicas.pointed_states(states), pointed(front), pointed(costs.prefill))
    outcome, logs, part_logs = kernel_logs.run_logged(run, tables, wanted, until_ns=limit_ns)
    end_ns = (
        until_ns
        if outcome is Outcome.HORIZON and until_ns is not None
        else int(states.world["now_ns"][0])
    )
    found = simulation(
        requests,
        kernel_logs.facts_of(states),
        logs,
        part_logs,
        outcome=outcome,
        end_ns=end_ns,
        busy_ns=states.counters["busy_ns"][:, 0].astype(np.int64),
    )
    made = with_handovers(
        seats_numbered_through(found, n_seats),
        _handovers(states.transfers, states.requests["replica"]),
    )
    return (
        made
        if gate is None
        else made._replace(
            shed_reasons=front.gate.requests["reason"].copy(), gate_classes=gate.class_names
        )
    )


def contents_of_pools(requests: Demand, config: DisaggregatedConfig) -> Demand:
    """The same requests with the contents that the pools which cache prefixes ask for."""
    return contents_checked(
        requests, max(config.engines, key=lambda engine: engine.enable_prefix_caching)
    )


def _handovers(transfers: Records, replicas: Records) -> HandoverFacts:
    columns = {
        name: transfers[name].astype(np.int64)
        for name in HandoverFacts._fields
        if name != "replica"
    }
    return HandoverFacts(**columns, replica=replicas.astype(np.int64))
