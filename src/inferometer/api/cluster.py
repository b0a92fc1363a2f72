"""How many replicas of which server are there, behind which router and which gate?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from inferometer import suggestions
from inferometer.api.question import option, refuse_unused
from inferometer.errors import SpecError
from inferometer.fit.published.efficiencies import has_stated_links
from inferometer.inputs.gate import GateOrder, GateSpec, read_gate
from inferometer.inputs.types import Caution
from inferometer.inputs.workload.plan import DrawnWorkload
from inferometer.simulate import gate_config
from inferometer.simulate.demand import Route
from inferometer.simulate.deployment import PACES, Case, Deployment
from inferometer.simulate.fleet import (
    ROUTERS,
    ClusterConfig,
    Fleet,
    Placement,
    ReplicaGroup,
    Router,
)
from inferometer.simulate.gate_config import GateConfig
from inferometer.simulate.prefill_pool import PrefillPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Replicas of one server, and the router before them."""

    replicas: int | None = option(
        None,
        "Servers of this kind behind a router. [1; `size`: as many as it takes]",
        "Cluster",
        is_common=True,
        least=1,
        most=10_000,
    )
    data_parallel_size: int = option(
        1,
        "Replicas that share the experts and take each step together (vLLM's, with"
        " --enable-expert-parallel; SGLang's --enable-dp-attention; TensorRT-LLM's"
        " enable_attention_dp), each of --tp devices (SGLang counts those of all in its own). vLLM's of"
        " a dense model are independent replicas.",
        "Cluster",
        least=1,
    )
    router: Router | None = option(
        None,
        "Rule that picks the replica of a request; prefix-affine: the one that computed its prefix"
        " before; class-aware: one of its class's own; vllm: as vLLM's data parallelism does."
        " [least-loaded, HAProxy's leastconn (nginx without a rule is round-robin); with"
        " --data-parallel-size the engine's own: vllm, SGLang's round-robin]",
        "Cluster",
        is_common=True,
        choices=ROUTERS,
    )
    class_replicas: tuple[str, ...] = option(
        (),
        "class-aware: the replicas of a class, by their numbers from 0; repeatable. [divided evenly]",
        "Cluster",
        metavar="CLASS=N,...",
    )
    prefix_threshold: float = option(
        0.3,
        "prefix-affine: least share of the prompt that a computed prefix must have to count.",
        "Cluster",
        least=0,
        most=1,
    )
    balance_abs: int = option(
        64,
        "prefix-affine: balance loads instead where they differ by more requests than this, and",
        "Cluster",
        least=0,
    )
    balance_rel: float = option(
        1.5, "… by more than this factor (prefix-affine).", "Cluster", least=0
    )


_USUAL: Final[Router] = "least-loaded"
_OF_RANKS: Final[dict[str, Router]] = {"sglang": "round-robin", "trtllm": "least-loaded"}
"""How engines other than vLLM choose a rank of data-parallel attention.

SGLang: ``round_robin_scheduler`` of ``managers/data_parallel_controller.py``, its default. Of
TensorRT-LLM (``DefaultADPRouter``, ``_torch/pyexecutor/scheduler/adp_router.py``) this is an
approximation: see ``server.fit_cautions``.
"""
_OF_ROUTERS: Final[dict[Router, tuple[str, ...]]] = {
    "class-aware": ("class_replicas",),
    "prefix-affine": ("prefix_threshold", "balance_abs", "balance_rel"),
}
"""The options that one router alone has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Replicas of one kind, and which requests are theirs; an empty rule lets everybody in."""

    name: str
    deployment: Deployment
    n_replicas: int
    classes: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    min_prompt_tokens: int = 0
    max_prompt_tokens: int | None = None
    weights: tuple[tuple[str, float], ...] = ()
    """Share of each class's requests that this group gets, whatever the other rules are."""

    @property
    def rule_text(self) -> str:
        """Rules of the group, in words; earlier groups take requests first.

        Example
        -------
        >>> Group(name="a", deployment=None, n_replicas=1, max_prompt_tokens=2000).rule_text
        'prompts up to 2,000 tokens'
        """
        rules = list[str]()
        for noun, names in (("class", self.classes), ("tenant", self.tenants)):
            rules += [f"{noun} {' or '.join(names)}"] if names else []
        least, most = self.min_prompt_tokens, self.max_prompt_tokens
        rules += [f"prompts from {least:,} tokens"] if least else []
        rules += [f"prompts up to {most:,} tokens"] if most is not None else []
        text = ", ".join(rules) or "what is left"
        shared = [f"{weight:.4g} of class {name}" for name, weight in self.weights]
        return f"{', '.join(shared)}; else {text}" if shared else text

    @property
    def devices(self) -> str | None:
        """Devices of a replica; None where unknown."""
        where = self.deployment
        n_devices = f"{where.n_devices} × " if where.n_devices > 1 else ""
        return None if where.hardware is None else f"{n_devices}{where.hardware.name}"


def group_words(name: str, n_replicas: int, model_id: str, devices: str | None) -> str:
    """``2 × llama-3.1-70b on 4 × NVIDIA H100 (long)``"""
    return f"{n_replicas} × {model_id}{f' on {devices}' if devices else ''} ({name})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Replicas of different kinds, and the names of classes and tenants in the requests."""

    groups: tuple[Group, ...]
    keeps_sessions: bool = False
    class_names: tuple[str, ...] = ()
    tenant_names: tuple[str, ...] = ()

    def of(self, workload: DrawnWorkload) -> "Groups":
        """The groups for the classes and tenants of this workload.

        Raises
        ------
        SpecError
            A rule names one that the workload does not have.
        """
        for noun, names in (("classes", workload.class_names), ("tenants", workload.tenant_names)):
            wanted = {name for one in self.groups for name in getattr(one, noun)}
            if noun == "classes":
                wanted |= {name for one in self.groups for name, _ in one.weights}
            if wanted - set(names):
                raise SpecError(
                    f"{noun} {', '.join(sorted(wanted - set(names)))}",
                    where="--groups",
                    allowed=f"those of the workload: {', '.join(names)}",
                )
        return replace(self, class_names=workload.class_names, tenant_names=workload.tenant_names)

    def at(self, case: Case) -> "Groups":
        """These groups on one plausible server of each kind."""
        known = (replace(one, deployment=one.deployment.at(case)) for one in self.groups)
        return replace(self, groups=tuple(known))

    @property
    def cases(self) -> tuple[Case, ...]:
        """Draws where each kind has the same number of them, else both ends of all step times."""
        first, *others = (one.deployment.cases for one in self.groups)
        return first if all(other == first for other in others) else PACES

    @property
    def words(self) -> str:
        """``2 × llama-3.1-8b on NVIDIA L4 (short) and 1 × llama-3.1-70b on 4 × NVIDIA H100 (long)``"""
        return " and ".join(
            group_words(one.name, one.n_replicas, one.deployment.model.model_id, one.devices)
            for one in self.groups
        )

    @property
    def placement(self) -> Placement:
        """The groups to simulate, with expected step times."""

        def places(wanted: tuple[str, ...], names: tuple[str, ...]) -> tuple[int, ...]:
            return tuple(names.index(name) for name in wanted if name in names)

        return Placement(
            groups=tuple(
                ReplicaGroup(
                    engine=one.deployment.config,
                    step_times=one.deployment.step_times.likely,
                    n_replicas=one.n_replicas,
                    classes=places(one.classes, self.class_names),
                    tenants=places(one.tenants, self.tenant_names),
                    min_prompt_tokens=one.min_prompt_tokens,
                    max_prompt_tokens=one.max_prompt_tokens,
                )
                for one in self.groups
            ),
            keeps_sessions=self.keeps_sessions,
            routes=self._routes,
        )

    @property
    def _routes(self) -> tuple[Route, ...]:
        """Routes of classes with weights."""
        found = list[Route]()
        for index, name in enumerate(self.class_names):
            shares = [
                (place, weight)
                for place, one in enumerate(self.groups)
                for named, weight in one.weights
                if named == name and weight > 0
            ]
            if shares:
                places = tuple(place for place, _ in shares)
                found.append(Route(index, places, tuple(weight for _, weight in shares)))
        return tuple(found)


class Servers(NamedTuple):
    """Servers behind a router, and prefill replicas; before them others may compute the prompts."""

    deployment: Deployment
    rules: ClusterConfig
    """Number of replicas and router; ``cluster`` is the same with the deployment's engine."""
    named_replicas: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Names of classes, and which replicas are theirs."""
    prefill: PrefillPool | None = None
    groups: Groups | None = None
    """Replicas of different kinds; ``deployment`` then is that of the first group."""
    is_router_named: bool = True
    """Else it is the usual one, which the deployed router may not be."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken to be so without having been given, in words."""
        if self.is_router_named or self.n_replicas == 1 or self.groups is not None:
            return ()
        if self.rules.in_lockstep:
            engine = self.deployment.config.engine
            return (f"router {self.rules.router}, as the data parallelism of {engine} has it",)
        text = (
            f"router {self.rules.router}: each request to the replica with the fewest in flight;"
            " nginx without a rule takes turns (--router round-robin), and vLLM's own balancer"
            " counts waiting and running requests (--router vllm)"
        )
        return (text,)

    @property
    def n_replicas(self) -> int:
        """The number of replicas; with prefill replicas, of those that generate."""
        return self.rules.n_replicas

    @property
    def cases(self) -> tuple[Case, ...]:
        """Plausible servers to simulate, the likely one first."""
        return self.deployment.cases if self.groups is None else self.groups.cases

    def known(self, workload: DrawnWorkload) -> "Servers":
        """The servers for the classes and tenants of this workload.

        Raises
        ------
        SpecError
            A rule names one that the workload does not have, or leaves one out.
        """
        return self._replace(
            deployment=self.deployment.for_classes(workload.class_names),
            rules=replace(self.rules, class_replicas=self.replicas_of(workload.class_names)),
            groups=None if self.groups is None else self.groups.of(workload),
        )

    def replicas_of(self, class_names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The replicas of each class of the workload, in its order; empty where they share them evenly.

        Raises
        ------
        SpecError
            A class of the workload has none, or a name is of no class.
        """
        named = dict(self.named_replicas)
        if named and set(named) != set(class_names):
            raise SpecError(
                f"replicas for the classes {', '.join(sorted(named))}",
                where="--class-replicas",
                allowed=f"each class of the workload once: {', '.join(class_names)}",
            )
        return tuple(named[name] for name in class_names) if named else ()

    def seeded(self, seed: int) -> "Servers":
        """The servers with this seed of routers that choose at random."""
        return self._replace(rules=replace(self.rules, seed=seed))

    @property
    def words(self) -> str:
        """The model; for groups of replicas, all groups."""
        return self.deployment.model.model_id if self.groups is None else self.groups.words

    @property
    def n_in_all(self) -> int:
        """The number of all replicas."""
        return self.n_replicas + (0 if self.prefill is None else self.prefill.cluster.n_replicas)

    @property
    def n_devices(self) -> int:
        """The number of devices of all replicas."""
        if self.groups is not None:
            return sum(one.n_replicas * one.deployment.n_devices for one in self.groups.groups)
        pool = self.prefill
        beside = 0 if pool is None else pool.cluster.n_replicas * pool.deployment.n_devices
        return self.n_replicas * self.deployment.n_devices + beside

    def at(self, case: Case) -> "Servers":
        """These servers on one plausible draw."""
        return self._replace(
            deployment=self.deployment.at(case),
            groups=None if self.groups is None else self.groups.at(case),
            prefill=None if self.prefill is None else self.prefill.at(case),
        )

    @property
    def cluster(self) -> ClusterConfig:
        """The cluster's rules; with disaggregation, of the decode replicas."""
        if self.groups is not None:
            return self.groups.placement.cluster
        return replace(self.rules, engine=self.deployment.config)

    def fleet(self, gate: GateConfig | None = None) -> Fleet:
        """The fleet to simulate, with expected step times, behind this gate."""
        return Fleet(
            replicas=self.cluster,
            step_times=self.deployment.step_times.likely,
            prefill=None if self.prefill is None else self.prefill.replicas,
            gate=gate,
            placement=None if self.groups is None else self.groups.placement,
            front_end_s=self.front_end_s,
        )

    def gate_rules(self, gate: GateSpec | None, names: gate_config.Names) -> GateConfig | None:
        """The gate's rules; its predictions use likely step times, whatever steps really take."""
        if gate is None:
            return None
        pace = gate_config.first_token_pace(self.deployment.step_times.likely)
        return gate_config.gate_rules(gate, names, pace)

    @property
    def kinds(self) -> tuple[Deployment, ...]:
        """One replica of each kind."""
        if self.groups is None:
            return (self.deployment,)
        return tuple(one.deployment for one in self.groups.groups)

    @property
    def front_end_s(self) -> float:
        """Between a request's sending and a scheduler's sight of it; of groups the longest."""
        return max(one.front_end_s for one in self.kinds)


def servers_of(options: Cluster, deployment: Deployment) -> Servers:
    """The cluster of this deployment.

    Raises
    ------
    SpecError
        Options that exclude one another.
    """
    n_replicas, n_sharing = options.replicas or 1, options.data_parallel_size
    if n_replicas > 1 and n_sharing > 1:
        raise SpecError(
            f"{n_replicas} groups of {n_sharing} replicas",
            where="--replicas, --data-parallel-size",
            allowed="one of them",
            try_=suggestions.flags("--data-parallel-size", n_replicas * n_sharing),
        )
    rules = ClusterConfig(
        engine=deployment.config,
        n_replicas=max(n_replicas, n_sharing),
        in_lockstep=n_sharing > 1,
        router=router_of(options, deployment.knobs.policy),
        cache_threshold_fraction=options.prefix_threshold,
        balance_abs_threshold=options.balance_abs,
        balance_rel_threshold_ratio=options.balance_rel,
    )
    return Servers(
        deployment,
        rules,
        tuple(map(_class_replicas, options.class_replicas)),
        is_router_named=options.router is not None,
    )


def router_of(options: Cluster, policy: str) -> Router:
    """The router that is named, or the usual one of this engine.

    Raises
    ------
    SpecError
        Thresholds, or replicas of classes, for a router that does not know them.
    """
    is_shared = options.data_parallel_size > 1
    chosen = options.router or (_OF_RANKS.get(policy, "vllm") if is_shared else _USUAL)
    for router, names in _OF_ROUTERS.items():
        if chosen != router:
            what, other = f"--router {chosen}", f"--router {router}"
            refuse_unused(options, names, what, allowed=router, try_=other)
    return chosen


def _class_replicas(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, numbers = text.partition("=")
    listed = [number.strip() for number in numbers.split(",")]
    if not equals or not name.strip() or not all(number.isdigit() for number in listed):
        raise SpecError(
            f"{text!r}",
            where="--class-replicas",
            allowed="CLASS=N,... with replicas from 0",
            try_="--class-replicas chat=0,1",
        )
    return name.strip(), tuple(int(number) for number in listed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The gate in front of the engines."""

    gate: Path | None = option(
        None,
        "Order, windows, limits, buckets and admission before the engine: a .toml file, see"
        " docs/gates.md.",
        "Cluster",
        metavar="FILE",
    )
    order: GateOrder | None = option(
        None,
        "Order of waiting requests: a gate of its own, or the order of --gate.",
        "Cluster",
        is_common=True,
    )


def gate_of(options: Gate) -> GateSpec | None:
    """The gate, if there is one.

    Raises
    ------
    SpecError
        Its file cannot be read.
    """
    if options.gate is None:
        return None if options.order is None else GateSpec(order=options.order)
    gate = read_gate(options.gate)
    return gate if options.order is None else msgspec.structs.replace(gate, order=options.order)


def gate_text(gate: GateSpec) -> str:
    """The gate's order and how much else it decides.

    Example
    -------
    >>> gate_text(GateSpec(order="fair", priority_bands=True, max_in_flight=8))
    'fair in priority bands, at most 8 in flight, 0 classes and 0 tenants with rules'
    """
    bands = " in priority bands" if gate.priority_bands and gate.order != "priority" else ""
    room = "" if gate.max_in_flight is None else f", at most {gate.max_in_flight} in flight"
    lengths = ", an oracle's lengths" if gate.lengths == "oracle" else ""
    over = gate.oversized
    moved = (
        f", prompts above {over.above_prompt_tokens:,} tokens as class {over.class_name}"
        if over is not None
        else ""
    )
    return (
        f"{gate.order}{bands}{lengths}{room}, {len(gate.classes)} classes and {len(gate.tenants)}"
        f" tenants with rules{moved}"
    )


def equals_cautions(gate: GateSpec | None, workload: DrawnWorkload) -> tuple[Caution, ...]:
    """A caution where an order by tenant or priority is the order of arrival."""
    if gate is None:
        return ()
    has_bands = any(one.priority is not None for one in gate.classes)
    if gate.order == "fair" and len(np.unique(workload.plan.tenant_index)) < 2:
        what, remedy = "all requests are of one tenant", "a workload file with tenants"
    elif gate.order == "priority" and not has_bands and len(np.unique(workload.plan.priority)) < 2:
        what = "all requests have the same priority"
        remedy = "a workload file whose classes have a priority"
    else:
        return ()
    return (
        Caution(
            code="order unused",
            text=f"the order {gate.order} changed nothing: {what}",
            remedy=remedy,
        ),
    )


def unused_cautions(servers: Servers) -> tuple[Caution, ...]:
    """Cautions of a router that has one replica, and of a stated link that joins no devices."""
    found, one = list[Caution](), servers.deployment
    pool = servers.prefill
    most = max(servers.n_replicas, 0 if pool is None else pool.cluster.n_replicas)
    is_one = servers.groups is None and most == 1
    if is_one and servers.rules.router != _USUAL:
        found += [
            Caution(
                code="router unused",
                text=f"the router {servers.rules.router} changed nothing: there is one replica",
                remedy=suggestions.flags("--replicas", 2),
            )
        ]
    is_alone = is_one and pool is None and one.n_devices == 1
    swaps = one.knobs.own.get("preemption_mode") == "swap"
    if is_alone and not swaps and one.hardware is not None and has_stated_links(one.hardware):
        found += [
            Caution(
                code="link unused",
                text="the stated link carries nothing: there is one device",
                remedy=f"{suggestions.flags('--tp', 2)}, or no --link, so that published rows count",
            )
        ]
    return tuple(found)
