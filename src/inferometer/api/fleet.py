"""Which fleet answers the requests: replicas of a server, their router, prefill replicas, a gate?

``FleetOptions`` are what every verb takes that simulates servers. From them come the servers of one
question (``servers_of``), and those of a search that tries several (``Fleets``).
"""

from dataclasses import dataclass, field, replace
from typing import Final

from inferometer.api import cluster as replicas, prefill_pool
from inferometer.api.gate import Gate, gate_of
from inferometer.decide import fleets, traffic
from inferometer.errors import SpecError
from inferometer.inputs.gate import GateSpec
from inferometer.inputs.workload import replay, types
from inferometer.inputs.workload.plan import DrawnWorkload
from inferometer.simulate import gate_config
from inferometer.simulate.deployment import Case, Deployment
from inferometer.simulate.fleet import Fleet, Router
from inferometer.simulate.gate_config import GateConfig

_FEW_REQUESTS: Final = 40
"""That name the classes and tenants of a workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """What stands around one server: its replicas and their router, prefill replicas, a gate."""

    cluster: replicas.Cluster = field(default_factory=replicas.Cluster)
    prefill: prefill_pool.PrefillReplicas = field(default_factory=prefill_pool.PrefillReplicas)
    gate: Gate = field(default_factory=Gate)


def servers_of(options: FleetOptions, deployment: Deployment) -> replicas.Servers:
    """The servers of these options, each as this one.

    Raises
    ------
    SpecError
        Options that exclude one another.
    """
    servers = replicas.servers_of(options.cluster, deployment)
    return prefill_pool.with_prefill_pool(servers, options.prefill)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleets:
    """The fleets that a search tries: what the user asked for holds for each of them."""

    options: FleetOptions
    gate: GateSpec | None
    drawn: DrawnWorkload
    """A few requests, for the names of their classes and tenants."""
    seed: int
    is_split_searched: bool = False
    """Does the search itself say how many replicas compute prompts alone?"""

    @property
    def router(self) -> Router:
        """Who distributes requests."""
        return replicas.rules_of(self.options.cluster).router

    @property
    def n_replicas(self) -> int | None:
        """Where their number is fixed; those that share experts are one group."""
        n_sharing = self.options.cluster.data_parallel_size
        return n_sharing if n_sharing > 1 else self.options.cluster.replicas

    @property
    def n_prefill(self) -> int:
        """Replicas that compute prompts alone."""
        return 0 if self.is_split_searched else self.options.prefill.prefill_replicas or 0

    @property
    def is_plain(self) -> bool:
        """Is a part of these replicas with its part of the load like all of them?"""
        return self.gate is None and not self.n_prefill and self.can_lose_one

    @property
    def can_lose_one(self) -> bool:
        """Do the others go on where one replica dies: none shares experts or serves a class alone?"""
        one = self.options.cluster
        return one.data_parallel_size == 1 and not one.class_replicas

    def prepared(self, deployment: Deployment) -> fleets.Prepared:
        """The replica as it stands in these fleets, and the devices beside its kind.

        Raises
        ------
        SpecError
            It cannot stand in one.
        """
        servers = self.servers(deployment, self.n_replicas or 1)
        prefill = servers.prefill
        n_devices = 0 if prefill is None else prefill.deployment.n_devices * self.n_prefill
        _ = servers.cluster  # refuses a router that this engine cannot stand behind
        return fleets.Prepared(servers.deployment, n_devices)

    def fleet(
        self, deployment: Deployment, case: Case, n_replicas: int, n_prefill: int | None = None
    ) -> Fleet:
        """What is simulated: this number of these replicas, as if they were known to be these.

        ``n_prefill`` more compute prompts alone; None: as the options say.
        """
        servers = self.servers(deployment, n_replicas, n_prefill)
        return servers.at(case).fleet(self._gate_before(servers))

    def servers(
        self, deployment: Deployment, n_replicas: int | None, n_prefill: int | None = None
    ) -> replicas.Servers:
        """The same, as verbs describe them."""
        options = self.options
        n_prefill = 0 if self.is_split_searched and n_prefill is None else n_prefill
        if n_prefill == 0:
            options = replace(options, prefill=prefill_pool.PrefillReplicas())
        elif n_prefill is not None:
            prefill = replace(options.prefill, prefill_replicas=n_prefill)
            options = replace(options, prefill=prefill)
        if options.cluster.data_parallel_size == 1:
            options = replace(options, cluster=replace(options.cluster, replicas=n_replicas))
            if n_replicas == 1 and options.prefill.prefill_replicas is None:
                # The router of one replica is never asked, and may be one that its engine refuses.
                lone = replace(options.cluster, router="round-robin", class_replicas=())
                options = replace(options, cluster=lone)
        servers = servers_of(options, deployment)
        classes = servers.rules.replicas_of(self.drawn.class_names)
        return servers._replace(seed=self.seed, class_replicas=classes)

    def _gate_before(self, servers: replicas.Servers) -> GateConfig | None:
        """What the gate predicts rests on the likely step times, whatever steps then take."""
        if self.gate is None:
            return None
        pace = gate_config.first_token_pace(servers.deployment.step_times.likely)
        return gate_config.gate_rules(self.gate, self.drawn, pace, where="--gate")


def fleets_of(options: FleetOptions, workload: types.WorkloadSpec) -> Fleets:
    """The fleets that a search for this workload tries.

    Raises
    ------
    SpecError
        The gate's file cannot be read, or replicas of classes that the workload does not have.
    """
    drawn = replay.draw_workload(traffic.at_load(workload, start_load_of(workload), _FEW_REQUESTS))
    return Fleets(options=options, gate=gate_of(options.gate), drawn=drawn, seed=workload.seed)


def start_load_of(workload: types.WorkloadSpec) -> float:
    """The load of the workload as it stands: users, or requests per second."""
    arrivals = workload.arrivals
    if isinstance(arrivals, types.ClosedArrivals):
        return float(arrivals.concurrency)
    return arrivals.rate_per_s if isinstance(arrivals, types.OpenArrivals) else 1.0


def check_searched(options: FleetOptions) -> None:
    """Refuse, where the number of replicas is searched, options that name single ones.

    Raises
    ------
    SpecError
        Replicas by class, without a number of replicas.
    """
    if options.cluster.class_replicas and options.cluster.replicas is None:
        raise SpecError(
            "replicas of classes by their places, and no number of replicas",
            where="--class-replicas",
            allowed="--replicas N with it, or class-aware alone: classes share replicas evenly",
        )
