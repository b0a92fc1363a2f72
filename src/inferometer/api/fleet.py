"""Which fleet answers the requests: replicas of a server, their router, prefill replicas, a gate?

``FleetOptions`` are what every verb takes that simulates servers. From them come the servers of one
question (``servers_of``), and those of a search that tries several (``Fleets``). Prefill replicas
compute prompts alone and send the KV caches.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

from inferometer import suggestions
from inferometer.api import cluster as replicas, groups, progress, server as servers_
from inferometer.api.cluster import Gate, gate_of
from inferometer.api.question import Option, duration_option, option, refuse_unused
from inferometer.api.workload import check_answers, required_slo
from inferometer.decide import candidates, traffic
from inferometer.errors import SpecError
from inferometer.fit.published.efficiencies import known_levels
from inferometer.inputs import resolve
from inferometer.inputs.gate import GateSpec
from inferometer.inputs.objectives import ObjectiveSpec, check_workflows, parse_objective
from inferometer.inputs.workload import replay, types
from inferometer.inputs.workload.plan import DrawnWorkload, has_workflows
from inferometer.simulate import prefill_pool as pools
from inferometer.simulate.deployment import Case, Deployment, deploy
from inferometer.simulate.fleet import (
    BEGINNINGS,
    LINK_SHAPES,
    AnswerBeginsAt,
    Fleet,
    LinkShape,
    Router,
)
from inferometer.units import parse_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillReplicas:
    """Replicas that compute prompts alone (disaggregated prefill), and the link from them."""

    prefill_replicas: int | None = option(
        None,
        "Replicas for prefill only; those of --replicas then only decode (disaggregation). [0]",
        "Cluster",
        least=0,
    )
    prefill_tp: int | None = option(
        None, "Tensor-parallel devices of each prefill replica. [as --tp]", "Cluster", least=1
    )
    prefill_set: tuple[str, ...] = option(
        (),
        "Another setting of the prefill replicas; repeatable. [as --set]",
        "Cluster",
        metavar="NAME=VALUE",
    )
    kv_link: float | None = option(
        None,
        "Speed of KV transfers: '50GB/s', '400Gbit/s'. [the device's scale-up links]",
        "Cluster",
        metavar="SPEED",
        parse=lambda text, where: parse_bytes_per_s(text, where=where),
    )
    kv_link_latency: float = duration_option(
        0.0, "Time from the last byte of a KV transfer to the first decode step. [0s]", "Cluster"
    )
    kv_link_shape: LinkShape = option(
        "ports",
        "ports: each replica has its own; shared: one link for all.",
        "Cluster",
        choices=LINK_SHAPES,
    )
    first_token_from: Annotated[
        AnswerBeginsAt,
        Option(
            "Replica that sends the first token: decode, as vLLM does, or prefill, before the"
            " transfer.",
            heading="Cluster",
            choices=BEGINNINGS,
        ),
    ] = "decode"  # noqa: S105 -- a token of a model


def with_prefill_pool(servers: replicas.Servers, options: PrefillReplicas) -> replicas.Servers:
    """The servers, with prefill replicas where requested.

    Raises
    ------
    SpecError
        Flags of a pool that is not there, or two pools that do not go together.
    """
    if not options.prefill_replicas:
        refuse_unused(
            replace(options, prefill_replicas=None),
            tuple(options.__slots__),
            "no replicas that compute prompts alone",
            allowed="with --prefill-replicas",
            try_="--prefill-replicas 1",
        )
        return servers
    if servers.named_replicas:
        raise SpecError(
            "--class-replicas with prefill and decode pools",
            where="--class-replicas",
            allowed="one pool",
            try_="no --class-replicas",
        )
    decode, prefill = _pair(servers.deployment, options)
    wanted = pools.LinkAsked(
        bytes_per_s=options.kv_link, latency_s=options.kv_link_latency, shape=options.kv_link_shape
    )
    link, origin = pools.kv_link(prefill, decode, wanted)
    prefilling = replace(
        servers.cluster, engine=prefill.config, n_replicas=options.prefill_replicas
    )
    pool = pools.PrefillPool(
        deployment=prefill,
        cluster=prefilling,
        link=link,
        link_origin=origin,
        answer_begins_at=options.first_token_from,
    )
    found = servers._replace(deployment=decode, prefill=pool)
    _ = found.fleet().pools  # refuses what does not go together
    return found


def _pair(server: Deployment, options: PrefillReplicas) -> tuple[Deployment, Deployment]:
    """Decode and prefill replicas, both for sequences that fit in both."""
    framework = server.knobs.policy
    server = _with_whole_contexts(_by_rules_of_pools(server))
    prefill = _changed(server, framework, options)
    longest = min(server.config.max_model_len, prefill.config.max_model_len)
    return _limited(server, longest), _limited(prefill, longest)


def _by_rules_of_pools(server: Deployment) -> Deployment:
    """The server's step times under vLLM's scheduler, whose pools alone are simulated.

    In a pool one kind of step is left, so that the engines' schedulers differ little.

    Raises
    ------
    SpecError
        Settings that vLLM does not have.
    """
    knobs, times = server.knobs, server.step_times
    if knobs.policy not in {"sglang", "trtllm"}:
        return server
    if knobs.own:
        name, value = next(iter(knobs.own.items()))
        raise SpecError(
            f"{name}={value} of {server.config.engine} with prefill and decode pools",
            where="--set",
            allowed=f"settings that all engines have: pools of {knobs.policy} follow vLLM's scheduler",
            try_=f"the same command without {suggestions.flags('--set', f'{name}={value}')}",
        )
    times = replace(times, origin=f"{times.origin}; pools by the rules of vLLM's scheduler")
    ours = replace(knobs, policy="vllm")
    return deploy(server.model, server.engine, server.hardware, times, ours)


def _with_whole_contexts(server: Deployment) -> Deployment:
    """Without windows that give blocks back: pools that hand over KV caches keep them whole."""
    if not getattr(server.config, "sliding_window", 0):
        return server
    knobs = replace(server.knobs, own={**server.knobs.own, "sliding_window": "0"})
    return deploy(server.model, server.engine, server.hardware, server.step_times, knobs)


def _changed(server: Deployment, framework: str, options: PrefillReplicas) -> Deployment:
    engine, step_times, knobs = server.engine, server.step_times, server.knobs
    n_devices = options.prefill_tp
    if n_devices is not None and n_devices != engine.tensor_parallel_size:
        if server.hardware is None or step_times.basis == "fitted":
            raise SpecError(
                f"{n_devices} devices",
                where="--prefill-tp",
                allowed="those of --fit",
                try_="--hardware ID without --fit",
            )
        engine = replace(engine, tensor_parallel_size=n_devices)
        step_times = known_levels(
            server.model,
            engine,
            server.hardware,
            framework=framework,
            n_sharing=knobs.data_parallel_size,
            is_datasheet=step_times.basis == "datasheet",
            all_reduce_s=step_times.all_reduce_s,
        )
    named = dict(servers_.own_knob(text, where="--prefill-set") for text in options.prefill_set)
    return deploy(
        server.model,
        engine,
        server.hardware,
        step_times,
        replace(knobs, own={**knobs.own, **named}),
    )


def _limited(server: Deployment, max_model_len: int) -> Deployment:
    if server.config.max_model_len == max_model_len:
        return server
    knobs = replace(server.knobs, shared={**server.knobs.shared, "max_model_len": max_model_len})
    return deploy(server.model, server.engine, server.hardware, server.step_times, knobs)


_FEW_REQUESTS: Final = 40
"""Requests that are enough to find a workload's classes and tenants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """Replicas and router, prefill replicas, and gate of a server."""

    cluster: replicas.Cluster = field(default_factory=replicas.Cluster)
    prefill: PrefillReplicas = field(default_factory=PrefillReplicas)
    gate: Gate = field(default_factory=Gate)


def with_dense_ranks(options: FleetOptions, server: servers_.Server) -> FleetOptions:
    """The options, with vLLM's data-parallel ranks of a dense model as the replicas that they are.

    Only ranks that share experts step together (``EngineCoreProc.run_engine_core`` of vLLM 0.32.0);
    all stand behind the balancer of vLLM's front end.
    """
    cluster = options.cluster
    if (
        cluster.data_parallel_size == 1
        or server.fit is not None
        or server.policy not in {None, "vllm"}
    ):
        return options
    model = resolve.resolve_model(server.model, load_format="dummy").spec
    if model.moe is not None:
        return options
    n_ranks = cluster.data_parallel_size
    if cluster.replicas is not None and cluster.replicas > 1:
        raise SpecError(
            f"{cluster.replicas} replicas of {n_ranks} data-parallel ranks, each of them a replica",
            where="--replicas, --data-parallel-size",
            allowed=f"one of them: {model.model_id} is dense, and its ranks share nothing",
            try_=suggestions.flags("--replicas", cluster.replicas * n_ranks),
        )
    progress.talk(
        f"{model.model_id} is dense: its {n_ranks} data-parallel ranks are independent replicas,"
        " each on devices of its own, behind vLLM's balancer"
    )
    router = cluster.router or "vllm"
    ranks = replace(cluster, data_parallel_size=1, replicas=n_ranks, router=router)
    return replace(options, cluster=ranks)


def servers_of(options: FleetOptions, deployment: Deployment) -> replicas.Servers:
    """The servers of these options, each as this one.

    Raises
    ------
    SpecError
        Options that exclude one another.
    """
    servers = replicas.servers_of(options.cluster, deployment)
    return with_prefill_pool(servers, options.prefill)


def servers_described(
    groups_file: Path | None, server: servers_.Server, options: FleetOptions
) -> replicas.Servers:
    """The servers that a verb's options describe: replicas of one server, or the groups of a file.

    Raises
    ------
    SpecError, ModelError
        The server cannot be, or options exclude one another.
    """
    if groups_file is None:
        options = with_dense_ranks(options, server)
        n_sharing = options.cluster.data_parallel_size
        return servers_of(options, servers_.deployment_of(server, n_sharing=n_sharing))
    if options != FleetOptions():
        raise SpecError(
            "groups beside other options of the cluster",
            where="--groups",
            allowed="no --replicas, --router, --data-parallel-size, --prefill-replicas, --gate or --order",
        )
    return groups.servers_of_groups(groups_file, server)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleets:
    """The fleets that a search tries: the user's options hold for each of them."""

    options: FleetOptions
    gate: GateSpec | None
    drawn: DrawnWorkload
    """A few requests, for the names of their classes and tenants."""
    seed: int
    is_split_searched: bool = False
    """Does the search choose the number of prefill replicas?"""
    policy: str = "vllm"
    """The engine whose usual router is before ranks of data-parallel attention."""

    @property
    def router(self) -> Router:
        """The router in front of the replicas."""
        return replicas.router_of(self.options.cluster, self.policy)

    @property
    def n_replicas(self) -> int | None:
        """Fixed number of replicas (None: searched); data-parallel ones are one group."""
        n_sharing = self.options.cluster.data_parallel_size
        return n_sharing if n_sharing > 1 else self.options.cluster.replicas

    @property
    def n_prefill(self) -> int:
        """Replicas that compute prompts alone."""
        return 0 if self.is_split_searched else self.options.prefill.prefill_replicas or 0

    @property
    def is_plain(self) -> bool:
        """Does a share of the replicas under its share of the load behave like the whole fleet?"""
        return self.gate is None and not self.n_prefill and self.can_lose_one

    @property
    def can_lose_one(self) -> bool:
        """Do the others go on when one dies: no shared experts, no class on one replica?"""
        one = self.options.cluster
        return one.data_parallel_size == 1 and not one.class_replicas

    def prepared(self, deployment: Deployment) -> candidates.Prepared:
        """The replica in these fleets, and the devices of its prefill replicas.

        Raises
        ------
        SpecError
            The replica cannot run in such a fleet.
        """
        servers = self.servers(deployment, self.n_replicas or 1)
        prefill = servers.prefill
        n_devices = 0 if prefill is None else prefill.deployment.n_devices * self.n_prefill
        _ = servers.cluster  # refuses a router that this engine cannot stand behind
        return candidates.Prepared(servers.deployment, n_devices)

    def fleet(
        self, deployment: Deployment, case: Case, n_replicas: int, n_prefill: int | None = None
    ) -> Fleet:
        """The fleet to simulate: this number of replicas on one plausible server.

        ``n_prefill`` more compute prompts alone; None: as the options say.
        """
        servers = self.servers(deployment, n_replicas, n_prefill)
        return servers.at(case).fleet(servers.gate_rules(self.gate, self.drawn))

    def servers(
        self, deployment: Deployment, n_replicas: int | None, n_prefill: int | None = None
    ) -> replicas.Servers:
        """The servers with this number of replicas, as the pages describe them."""
        options = self.options
        n_prefill = 0 if self.is_split_searched and n_prefill is None else n_prefill
        if n_prefill == 0:
            options = replace(options, prefill=PrefillReplicas())
        elif n_prefill is not None:
            prefill = replace(options.prefill, prefill_replicas=n_prefill)
            options = replace(options, prefill=prefill)
        if options.cluster.data_parallel_size == 1:
            options = replace(options, cluster=replace(options.cluster, replicas=n_replicas))
            if n_replicas == 1 and not options.prefill.prefill_replicas:
                # The router of one replica is never asked, and may be one that its engine refuses.
                lone = replicas.Cluster(replicas=1, router="round-robin")
                options = replace(options, cluster=lone)
        names = self.drawn.class_names
        servers = servers_of(options, deployment.for_classes(names))
        rules = replace(servers.rules, seed=self.seed, class_replicas=servers.replicas_of(names))
        return servers._replace(rules=rules)


def fleets_of(
    options: FleetOptions, workload: types.WorkloadSpec, policy: str | None = None
) -> Fleets:
    """The fleets that a search for this workload tries.

    Raises
    ------
    SpecError
        The gate's file cannot be read, or replicas of classes that the workload does not have.
    """
    drawn = replay.draw_workload(traffic.at_load(workload, start_load_of(workload), _FEW_REQUESTS))
    return Fleets(
        options=options,
        gate=gate_of(options.gate),
        drawn=drawn,
        seed=workload.seed,
        policy=policy or "vllm",
    )


def slo_of(text: str | None, workload: types.WorkloadSpec, fleets: Fleets) -> ObjectiveSpec:
    """The SLO, which this traffic must be able to meet or to miss; without one, that of all classes.

    Raises
    ------
    SpecError
        It is no SLO, or has a limit for workflows or second tokens, and the traffic has none.
    """
    objective = parse_objective(required_slo(text, workload), has_workflows=True)
    fans_out = any(one.fan_out is not None for one in workload.classes)
    check_workflows(objective, has_workflows=fans_out or has_workflows(fleets.drawn.plan))
    check_answers(objective, fleets.drawn)
    return objective


def start_load_of(workload: types.WorkloadSpec) -> float:
    """Load of the workload: users, or requests per second."""
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
            "--class-replicas by index needs the number of replicas",
            where="--class-replicas",
            allowed="--replicas N with it, or class-aware alone: classes share replicas evenly",
        )
