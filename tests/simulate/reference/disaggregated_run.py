"""What would happen if prompts and answers were computed on different servers?

The plain simulator, to hold the compiled one to.
"""

import numpy as np
from whole_fleets import PoolCosts, fleet_of_pools

from inferometer.simulate.demand import Demand
from inferometer.simulate.fleet import DisaggregatedConfig
from inferometer.simulate.gate_config import GateConfig, cut_answers
from inferometer.simulate.outcome import (
    FAR_NS,
    HandoverFacts,
    Outcome,
    Simulation,
    Stage,
    simulation,
    slots_numbered_through,
    with_handovers,
)
from inferometer.simulate.run import contents_of_fleet
from reference import (
    cluster as reference_cluster,
    log as reference_log,
    replica as reference_replica,
    router,
)
from reference.clients import Clients
from reference.disaggregated import Pools, SplitCluster
from reference.handover import DecodeScheduler, PrefillScheduler, Transfers
from reference.request import Request


def simulate_disaggregated_plainly(
    requests: Demand,
    config: DisaggregatedConfig,
    costs: PoolCosts,
    *,
    gate: GateConfig | None = None,
    until_ns: int | None = None,
    record_parts: bool = False,
) -> Simulation:
    """What becomes of these requests?

    The same as ``disaggregated.simulate_disaggregated``, some hundred times slower.
    """
    requests = contents_of_fleet(
        requests if gate is None else cut_answers(requests, gate), fleet_of_pools(config, costs)
    )
    clients, log = Clients(requests), reference_log.Log([], [])
    pools = _pools(requests, config, costs, clients, log)
    entry = reference_cluster.entry_of(gate, requests, (config.prefill, config.decode))
    cluster = SplitCluster(clients, pools, config, entry)
    outcome = cluster.run(FAR_NS if until_ns is None else until_ns)
    found = simulation(
        requests,
        clients.facts(),
        [log.step_log()],
        [log.part_log()] if record_parts else None,
        outcome=outcome,
        end_ns=until_ns if outcome is Outcome.HORIZON and until_ns is not None else cluster.now_ns,
        busy_ns=np.array([replica.busy_ns for replica in pools.replicas]),
    )._replace(evicted_blocks=np.array([one.scheduler.n_evicted for one in pools.replicas]))
    numbered = slots_numbered_through(
        found, max(engine.max_num_active for engine in config.engines)
    )
    made = with_handovers(numbered, _facts(clients, pools.transfers))
    if gate is None or entry is None:
        return made
    return made._replace(
        shed_reasons=np.array(entry.gate.reasons, np.int32), gate_classes=gate.class_names
    )


def _pools(
    requests: Demand,
    config: DisaggregatedConfig,
    costs: PoolCosts,
    clients: Clients,
    log: reference_log.Log,
) -> Pools:
    transfers, (prefill, decode) = Transfers(), config.engines
    gives_first_token = config.answer_begins_at == "prefill"
    replica_of = reference_replica.Replica
    prefilling = [
        PrefillScheduler(prefill, transfers, gives_first_token=gives_first_token)
        for _ in range(config.prefill.n_replicas)
    ]
    decoding = [DecodeScheduler(decode, transfers) for _ in range(config.decode.n_replicas)]
    replicas = [
        replica_of(prefill, costs.prefill, clients, log, number, scheduler)
        for number, scheduler in enumerate(prefilling)
    ]
    replicas += [
        replica_of(decode, costs.decode, clients, log, number, scheduler)
        for number, scheduler in enumerate(decoding, start=len(prefilling))
    ]
    routers = (
        router.RouterRule(requests, config.prefill),
        router.RouterRule(requests, config.decode),
    )
    return Pools(prefilling, decoding, replicas, transfers, routers)


def _facts(clients: Clients, transfers: Transfers) -> HandoverFacts:
    rows = [
        _row(request, clients.replica[request.index], transfers) for request in clients.requests
    ]
    return HandoverFacts._make(np.array(rows, np.int64).T)


def _row(request: Request, replica: int, transfers: Transfers) -> tuple[int, ...]:
    found = transfers.find(request.index)
    if found is None or found.stage is Stage.ABSENT:
        return (Stage.ABSENT, 0, replica, 0, 0, 0, 0, 0, 0)
    times = (
        found.arrived_ns,
        found.prefilled_ns,
        found.asked_ns,
        found.begun_ns,
        found.received_ns,
    )
    return (found.stage, found.source, replica, found.num_moved_blocks, *times)
