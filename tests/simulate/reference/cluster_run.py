"""What would happen on several replicas behind a router?

The plain simulator, to hold the compiled one to.
"""

from typing import NamedTuple

import numpy as np

from inferometer.perfmodel.steptime_terms import StepTimeArrays
from inferometer.simulate.demand import Demand, contents_checked
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.fleet import ClusterConfig, Placement
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
from reference.pools import use_of
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
    engines = [config.engine] * config.n_replicas
    made = _outcome_of(
        _Built(requests, clients, replicas, cluster, log, engines),
        until_ns=until_ns,
        record_parts=record_parts,
    )
    if gate is None or entry is None:
        return made
    return made._replace(
        shed_reasons=np.array(entry.gate.reasons, np.int32), gate_classes=gate.class_names
    )


def simulate_groups_plainly(
    requests: Demand,
    placement: Placement,
    *,
    until_ns: int | None = None,
    record_parts: bool = False,
) -> Simulation:
    """The same on groups of replicas of different kinds, as ``run.simulate_groups``."""
    kinds = [group for group in placement.groups for _ in range(group.n_replicas)]
    requests = contents_checked(
        requests,
        next((one.engine for one in kinds if one.engine.enable_prefix_caching), kinds[0].engine),
    )
    clients, log = Clients(requests), Log([], [])
    replicas = [
        Replica(one.engine, one.step_times, clients, log, number)
        for number, one in enumerate(kinds)
    ]
    engines = [one.engine for one in kinds]
    groups = np.array(_groups_of(requests, placement), np.int32)
    config = placement.cluster
    router = RouterRule(requests._replace(class_index=groups), config)
    cluster = clusters.Cluster(clients, replicas, router, config, None)
    return _outcome_of(
        _Built(requests, clients, replicas, cluster, log, engines),
        until_ns=until_ns,
        record_parts=record_parts,
    )


def _groups_of(requests: Demand, placement: Placement) -> list[int]:
    """The first group whose rules let a request in, or that of the turn before."""
    groups = list[int]()
    for index in range(requests.n_requests):
        before = int(requests.follows[index])
        if placement.keeps_sessions and before >= 0:
            groups.append(groups[before])
            continue
        n_tokens = int(requests.prompt_tokens[index])
        groups.append(
            next(
                number
                for number, one in enumerate(placement.groups)
                if (not one.classes or requests.class_index[index] in one.classes)
                and (not one.tenants or requests.tenant_index[index] in one.tenants)
                and n_tokens >= one.min_prompt_tokens
                and (one.max_prompt_tokens is None or n_tokens <= one.max_prompt_tokens)
            )
        )
    return groups


class _Built(NamedTuple):
    requests: Demand
    clients: Clients
    replicas: list[Replica]
    cluster: clusters.Cluster
    log: Log
    engines: list[EngineConfig]


def _outcome_of(built: _Built, *, until_ns: int | None, record_parts: bool) -> Simulation:
    """Run it to its end, and make the tables of what was logged."""
    requests, clients, replicas, cluster, log, engines = built
    outcome = cluster.run(FAR_NS if until_ns is None else until_ns)
    end_ns = until_ns if outcome is Outcome.HORIZON and until_ns is not None else cluster.now_ns
    found = simulation(
        requests,
        clients.facts(),
        [log.step_log()],
        [log.part_log()] if record_parts else None,
        outcome=outcome,
        end_ns=end_ns,
        busy_ns=np.array(
            [
                one.busy_ns // engine.n_instances
                for one, engine in zip(replicas, engines, strict=True)
            ]
        ),
    )._replace(
        evicted_blocks=np.array([one.scheduler.n_evicted for one in replicas]),
        kv_pools=use_of([one.kv_cache for one in replicas]),
    )
    return slots_numbered_through(found, max(one.max_num_active for one in engines))
