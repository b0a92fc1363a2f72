"""The simulated servers: replicas behind a router, prefill and decode pools, a gate.

**Routers.** Each rule is that of a router in use, or of the theory of load balancing. A router
knows the requests that it has sent, their ends (at once), and (prefix-affine) which prompts it sent
to which replica. Only vLLM's own two routers use reports of the engines.

``random``
    A replica drawn with equal probability: the baseline.
``round-robin``
    One after the other.
``least-loaded``
    The fewest requests in flight, waiting or running; of equals the next after the last one chosen.
    *Join the shortest queue* (Winston, J. Appl. Prob. 14, 1977); ``least_conn`` of nginx.
``power-of-two``
    The one of two randomly drawn replicas with fewer requests in flight, of equals the first
    (Mitzenmacher, IEEE Trans. Parallel Distrib. Syst. 12(10), 2001).
``prefix-affine``
    The replica that got the prompt's longest known prefix, if that is a large enough part of the
    prompt; else the one that got the fewest different blocks. While the load is uneven: as
    least-loaded. The rule and its three constants are those of ``cache_aware`` of SGLang's router
    (``sgl-router/src/policies/cache_aware.rs``). Here a prefix is known in whole KV blocks of
    prompts and is never forgotten.
``class-aware``
    Each class of requests has its own replicas; the least loaded of them gets the request.
``vllm``
    The front end of vLLM's data parallelism (``DPLBAsyncMPClient``,
    ``vllm/v1/engine/core_client.py`` of 0.32.0): the lowest score. The score is the larger of the
    requests in flight and the waiting and running ones by the last report, plus 6 · waiting
    requests · the share of the KV cache in use beyond one half. Of equals the first, from a start
    that advances with each request. Engines report their counts as their steps begin; the
    coordinator forwards them at most every ``report_interval_s``; in between the front end counts
    the requests that it sends as waiting.
``vllm-0.19``
    Its older form (0.10 to 0.26, read in 0.10.2): the score is 4 times the waiting requests plus
    the running ones, by report; of equals the first. A report replaces the counts of requests sent
    since the engine's step began.

**Disaggregation.** In all engines a prefill replica computes the prompt and one token; its KV cache
stays there until a decode replica with enough free blocks has fetched it and continues the answer.
They differ in which replica sends the client the first token:

``decode``
    vLLM 0.32.0 (``NixlConnector`` in pull mode behind ``toy_proxy_server.py``): the prefill replica
    gets a request for one token, which the proxy drops; the decode replica computes the prompt's
    last token again and samples the first token itself. In SGLang (``disaggregation/decode.py``)
    the first token travels with the KV cache: one decode step sooner.
``prefill``
    The client sees the first token when the prefill is done, as in DistServe (Zhong et al., OSDI
    2024, §3) and Splitwise (Patel et al., ISCA 2024, §4): the transfer delays the second token, not
    TTFT.

Not modelled: transfer layer by layer during the prefill, prompts that the decode replica would
better compute itself, and vLLM's blocks kept free for prefills under way
(``_inflight_prefill_reserved_blocks``).
"""

from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from inferometer import suggestions
from inferometer.errors import SpecError
from inferometer.inputs.workload.plan import RequestPlan, only_requests
from inferometer.perfmodel.steptime_terms import StepTimeArrays
from inferometer.records.columns import I32, Bools
from inferometer.simulate.demand import Demand, Route, selected
from inferometer.simulate.engine_config import EngineConfig, kv_pools_of
from inferometer.simulate.gate_config import GateConfig
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.sglang_config import SglangConfig
from inferometer.simulate.trtllm_config import TrtllmConfig

Router: TypeAlias = Literal[
    "random",
    "round-robin",
    "least-loaded",
    "power-of-two",
    "prefix-affine",
    "class-aware",
    "vllm",
    "vllm-0.19",
]
ROUTERS: Final[tuple[Router, ...]] = get_args(Router)
DRAWING_ROUTERS: Final[frozenset[Router]] = frozenset({"random", "power-of-two"})
"""Routers that choose at random."""

_WHERE: Final = "the cluster"
_MAX_INTERVAL_S: Final = 3600.0
AnswerBeginsAt: TypeAlias = Literal["decode", "prefill"]
LinkShape: TypeAlias = Literal["ports", "shared"]
BEGINNINGS: Final[tuple[AnswerBeginsAt, ...]] = get_args(AnswerBeginsAt)
LINK_SHAPES: Final[tuple[LinkShape, ...]] = get_args(LinkShape)

_WHERE_GROUPS: Final = "the groups of replicas"
_WHERE_POOLS: Final = "the disaggregated cluster"
_PS_PER_S: Final = 10**12
_MAX_BLOCK_PS: Final = 2**40
"""A block of more than a second is no link; products with it stay whole 64-bit numbers."""
_MAX_LATENCY_NS: Final = 2**50


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """``n_replicas`` times this engine behind this router.

    ``class_replicas`` names the replicas of each class for ``class-aware``; without it the classes
    share the replicas evenly, each with its own as far as there are enough. The thresholds are
    those of ``prefix-affine``.
    """

    engine: EngineConfig
    n_replicas: int = 1
    in_lockstep: bool = False
    """Do all replicas run each step together (vLLM's --enable-expert-parallel, SGLang's
    --enable-dp-attention, TensorRT-LLM's enable_attention_dp)?"""
    router: Router = "round-robin"
    seed: int = 0
    """Seed of the routers ``random`` and ``power-of-two``."""
    class_replicas: tuple[tuple[int, ...], ...] = ()
    cache_threshold_fraction: float = 0.3
    """A known prefix counts where it is more than this part of the prompt."""
    balance_abs_threshold: int = 64
    """The load is uneven where the most and the least requests in flight differ by more than
    this, …"""
    balance_rel_threshold_ratio: float = 1.5
    """… and the most are more than this multiple of the least."""
    report_interval_s: float = 0.1
    """``vllm``: how often does the front end hear of its engines
    (``DPCoordinatorProc.stats_update_interval_ms``)?"""

    def __post_init__(self) -> None:
        if self.n_replicas < 1:
            raise SpecError(f"n_replicas = {self.n_replicas}", where=_WHERE, allowed="1 or more")
        if not 0 <= self.report_interval_s <= _MAX_INTERVAL_S:
            raise SpecError(
                f"report_interval_s = {self.report_interval_s}",
                where=_WHERE,
                allowed="0 or more, up to an hour",
            )
        if self.router not in ROUTERS:
            raise SpecError(f"router = {self.router!r}", where=_WHERE, allowed=", ".join(ROUTERS))
        if self.router == "prefix-affine" and kv_pools_of(self.engine):
            raise SpecError(
                "a prefix-affine router before KV caches that are divided into pools",
                where=_WHERE,
                allowed="other routers: blocks of a prompt differ from pool to pool",
                try_="least-loaded",
            )
        if self.router == "prefix-affine" and not self.engine.enable_prefix_caching:
            raise SpecError(
                f"a prefix-affine router before {self.engine.engine} without a prefix cache",
                where=_WHERE,
                allowed="engines that cache prefixes",
                try_="least-loaded",
            )
        if self.in_lockstep:
            _check_lockstep(self.engine)
        strangers = [
            replica
            for replicas in self.class_replicas
            for replica in replicas
            if not 0 <= replica < self.n_replicas
        ]
        if strangers or not all(self.class_replicas):
            raise SpecError(
                f"class_replicas = {self.class_replicas}",
                where=_WHERE,
                allowed=f"for each class some of 0 to {self.n_replicas - 1}",
            )

    @property
    def report_interval_ns(self) -> int:
        """The interval on the simulator's clock."""
        return round(self.report_interval_s * 1e9)


def _check_lockstep(engine: EngineConfig) -> None:
    if isinstance(engine, SglangConfig | TrtllmConfig):
        return
    what, flag = f"replicas of {engine.engine}", ("--policy", "vllm")
    allowed = "the rules of vLLM, with a paged KV cache, of SGLang and of TensorRT-LLM"
    if isinstance(engine, SchedulerConfig) and engine.rules == "vllm" and not engine.is_contiguous:
        if engine.pipeline_parallel_size == 1:
            return
        what, flag = f"{engine.pipeline_parallel_size} pipeline stages", ("--pp", "1")
        allowed = "pipeline_parallel_size = 1"
    try_ = suggestions.flags(*flag)
    raise SpecError(f"{what} in lockstep", where=_WHERE, allowed=allowed, try_=try_)


def replicas_of_classes(config: ClusterConfig, n_classes: int) -> tuple[tuple[int, ...], ...]:
    """Replicas that serve each class.

    Raises
    ------
    SpecError
        The requests have more classes than the configuration.

    Example
    -------
    >>> from inferometer.simulate.scheduler_config import SchedulerConfig
    >>> engine = SchedulerConfig(num_blocks=100, max_model_len=64)
    >>> replicas_of_classes(ClusterConfig(engine=engine, n_replicas=5, router="class-aware"), 2)
    ((0, 2, 4), (1, 3))
    """
    if not config.class_replicas:
        n_groups = min(n_classes, config.n_replicas)
        return tuple(
            tuple(range(i_class % n_groups, config.n_replicas, n_groups))
            for i_class in range(n_classes)
        )
    if n_classes > len(config.class_replicas):
        raise SpecError(
            f"{n_classes} classes of requests",
            where=_WHERE,
            allowed=f"{len(config.class_replicas)}, as class_replicas has",
        )
    return config.class_replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLink:
    """The way of KV blocks from prefill to decode replicas.

    ``ports``: each replica has one port of this speed on a network that is never the bottleneck; a
    transfer takes the sender's and the receiver's port, whole, first asked first served.
    ``shared``: all transfers take one link, one after the other.
    """

    block_bytes: int
    """Bytes of a KV block on all devices of a replica."""
    bytes_per_s: float = inf
    latency_s: float = 0.0
    """Time from the last byte sent to the first decode step, whatever else is sent."""
    shape: LinkShape = "ports"

    def __post_init__(self) -> None:
        if self.shape not in LINK_SHAPES:
            raise SpecError(
                f"shape = {self.shape!r}", where=_WHERE_POOLS, allowed=", ".join(LINK_SHAPES)
            )
        if self.block_bytes < 1 or not self.bytes_per_s > 0 or self.block_ps > _MAX_BLOCK_PS:
            raise SpecError(
                f"blocks of {self.block_bytes} bytes with bytes_per_s = {self.bytes_per_s}",
                where=_WHERE_POOLS,
                allowed="a block of 1 byte or more within a second; inf: no time at all",
            )
        if not 0 <= self.latency_s * 1e9 <= _MAX_LATENCY_NS:
            raise SpecError(
                f"latency_s = {self.latency_s}", where=_WHERE_POOLS, allowed="0 or more, up to days"
            )

    @property
    def block_ps(self) -> int:
        """Transfer time of a block in picoseconds."""
        return round(self.block_bytes / self.bytes_per_s * _PS_PER_S)

    @property
    def latency_ns(self) -> int:
        """The latency on the simulator's clock."""
        return round(self.latency_s * 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class DisaggregatedConfig:
    """Prefill replicas behind their router, decode replicas behind theirs, and the link between them."""

    prefill: ClusterConfig
    decode: ClusterConfig
    link: KvLink
    answer_begins_at: AnswerBeginsAt = "decode"

    def __post_init__(self) -> None:
        if self.answer_begins_at not in BEGINNINGS:
            raise SpecError(
                f"answer_begins_at = {self.answer_begins_at!r}",
                where=_WHERE_POOLS,
                allowed=", ".join(BEGINNINGS),
            )
        if self.prefill.in_lockstep or self.decode.in_lockstep:
            raise SpecError(
                "a pool in lockstep",
                where=_WHERE_POOLS,
                allowed="pools of replicas that step independently",
            )
        for engine in self.engines:
            if engine.sliding_window:
                raise SpecError(
                    f"a pool with sliding_window = {engine.sliding_window}",
                    where=_WHERE_POOLS,
                    allowed="0: KV caches are handed over whole",
                )
            if engine.policy == "srpt":
                raise SpecError(
                    "a pool with the policy srpt", where=_WHERE_POOLS, allowed="fcfs, priority"
                )
            if engine.rules != "vllm" or engine.is_contiguous or engine.kv_pools:
                raise SpecError(
                    f"a pool with the rules of {engine.engine}",
                    where=_WHERE_POOLS,
                    allowed="vLLM's, with a paged KV cache that is whole",
                    try_="--policy vllm",
                )
        if self.engines[0].preemption_mode == "swap":
            raise SpecError(
                "prefill replicas that swap",
                where=_WHERE_POOLS,
                allowed="preemption_mode = recompute there",
            )
        for name in ("block_size", "max_model_len"):
            first, second = (getattr(engine, name) for engine in self.engines)
            if first != second:
                raise SpecError(
                    f"{name} = {first} for prefill, {second} for decode",
                    where=_WHERE_POOLS,
                    allowed="the same for both",
                )

    @property
    def engines(self) -> tuple[SchedulerConfig, SchedulerConfig]:
        """The engines of both pools.

        Raises
        ------
        SpecError
            One is not vLLM's.
        """
        prefill, decode = self.prefill.engine, self.decode.engine
        if not isinstance(prefill, SchedulerConfig) or not isinstance(decode, SchedulerConfig):
            raise SpecError(
                f"pools of {prefill.engine} and {decode.engine}",
                where=_WHERE_POOLS,
                allowed="vLLM's rules",
                try_="--policy vllm",
            )
        return prefill, decode

    @property
    def engine_of_replicas(self) -> tuple[EngineConfig, ...]:
        """The engine of each replica."""
        prefill, decode = self.engines
        return (prefill,) * self.prefill.n_replicas + (decode,) * self.decode.n_replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroup:
    """Replicas of one kind, and rules of their requests; empty and None mean: no such rule."""

    engine: EngineConfig
    step_times: StepTimeArrays
    n_replicas: int = 1
    classes: tuple[int, ...] = ()
    tenants: tuple[int, ...] = ()
    min_prompt_tokens: int = 0
    max_prompt_tokens: int | None = None
    max_context_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.n_replicas < 1:
            raise SpecError(
                f"n_replicas = {self.n_replicas}", where=_WHERE_GROUPS, allowed="1 or more"
            )

    def takes(self, requests: Demand | RequestPlan) -> Bools:
        """(N) Do the rules of this group accept the request?"""
        is_taken = requests.prompt_tokens >= self.min_prompt_tokens
        if self.max_prompt_tokens is not None:
            is_taken &= requests.prompt_tokens <= self.max_prompt_tokens
        if self.max_context_tokens is not None:
            is_taken &= requests.prompt_tokens < self.max_context_tokens
        if self.classes:
            is_taken &= np.isin(requests.class_index, self.classes)
        if self.tenants:
            is_taken &= np.isin(requests.tenant_index, self.tenants)
        return is_taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Groups of replicas of different kinds, and which of them gets a request: the first that may take it.

    Within a group the least loaded replica gets a request. The group follows from the request
    alone, so queues do not move requests to another group.
    """

    groups: tuple[ReplicaGroup, ...]
    keeps_sessions: bool = False
    """Do later turns of a session go to the group of the first turn, with its cache?"""
    routes: tuple[Route, ...] = ()
    """Routes whose weights decide, in place of the groups' order."""

    def __post_init__(self) -> None:
        if not self.groups:
            raise SpecError("no groups", where=_WHERE_GROUPS, allowed="1 or more")
        if any(kv_pools_of(group.engine) for group in self.groups):
            raise SpecError("kv_pools", where=_WHERE_GROUPS, allowed="none: a group each, instead")
        first, *others = (group.engine for group in self.groups)
        for other in others:
            if (type(other), other.block_size, other.n_instances) != (
                type(first),
                first.block_size,
                first.n_instances,
            ):
                raise SpecError(
                    f"groups of {first.engine} with blocks of {first.block_size} tokens and of"
                    f" {other.engine} with {other.block_size}",
                    where=_WHERE_GROUPS,
                    allowed="one engine and one size of KV blocks",
                )
        if len({draws for group in self.groups if (draws := _draws_of(group.engine))}) > 1:
            raise SpecError(
                "groups that draw differently whose drafts are accepted, or who is next",
                where=_WHERE_GROUPS,
                allowed="one acceptance_fraction and number of drafts, or none; one random_seed",
            )

    @property
    def cluster(self) -> ClusterConfig:
        """All replicas as one cluster, with the engine that has the fewest KV blocks.

        Its router knows the group of a request as its class.
        """
        last = list(accumulate(group.n_replicas for group in self.groups))
        return ClusterConfig(
            engine=min(self.engine_of_replicas, key=lambda engine: engine.n_kv_blocks),
            n_replicas=last[-1],
            router="class-aware",
            class_replicas=tuple(
                tuple(range(end - group.n_replicas, end))
                for group, end in zip(self.groups, last, strict=True)
            ),
        )

    @property
    def engine_of_replicas(self) -> tuple[EngineConfig, ...]:
        """The engine of each replica."""
        return tuple(group.engine for group in self.groups for _ in range(group.n_replicas))

    def group_of(self, requests: Demand | RequestPlan) -> I32:
        """(N) The group of each request.

        Raises
        ------
        SpecError
            No group accepts one of the requests.
        """
        chosen = np.full(requests.n_requests, -1, np.int32)
        for number in reversed(range(len(self.groups))):
            chosen[self.groups[number].takes(requests)] = number
        for route in self.routes:
            rows = np.flatnonzero(self.is_of(route, requests))
            chosen[rows] = route.shared(len(rows))
        if self.keeps_sessions:
            for index, before in enumerate(requests.follows.tolist()):
                if before >= 0:
                    chosen[index] = chosen[before]
        if (chosen < 0).any():
            index = int(np.argmax(chosen < 0))
            raise SpecError(
                f"no group takes request {index} (class {requests.class_index[index]}, tenant"
                f" {requests.tenant_index[index]}, {requests.prompt_tokens[index]:,} prompt tokens)",
                where=_WHERE_GROUPS,
                try_="a last group without rules, for all other requests",
            )
        return chosen

    def is_of(self, route: Route, requests: Demand | RequestPlan) -> Bools:
        """(N) Does this route apply to the request, by its class and by the groups' rules?"""
        is_own: Bools = requests.class_index == route.class_index
        for number, group in enumerate(self.groups if route.takers is not None else ()):
            is_own &= group.takes(requests) == (number in (route.takers or ()))
        return is_own


class Dealt(NamedTuple):
    """The requests that go to one group, so that it can be simulated by itself."""

    placement: Placement
    """All groups."""
    group: int

    def own(self, requests: Demand) -> Demand:
        """The requests of that group alone.

        Raises
        ------
        SpecError
            One of them follows a request of another group.
        """
        return selected(requests, self.placement.group_of(requests) == self.group)

    def own_plan(self, plan: RequestPlan) -> RequestPlan:
        """The drawn requests of that group alone, numbered as in a simulation of it."""
        return only_requests(plan, self.placement.group_of(plan) == self.group)


def _draws_of(engine: EngineConfig) -> tuple[int, ...]:
    """Random draws that all replicas of a simulation share."""
    if isinstance(engine, SglangConfig):
        return engine.shuffle_draws
    return tuple(engine.acceptance) if isinstance(engine, SchedulerConfig) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillReplicas:
    """Replicas that only compute prompts, and the link by which the KV caches leave them."""

    replicas: ClusterConfig
    step_times: StepTimeArrays
    link: KvLink
    answer_begins_at: AnswerBeginsAt = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All servers of one simulation: ``run.run`` simulates it."""

    replicas: ClusterConfig
    """The engine of each replica, how many there are, their router, and whether they take each
    step together. With ``prefill``: the replicas that generate the answers."""
    step_times: StepTimeArrays
    prefill: PrefillReplicas | None = None
    """None where each replica computes prompts and answers."""
    gate: GateConfig | None = None
    """Holds requests back, or turns them away, before the router."""
    placement: Placement | None = None
    """Replicas of different kinds; ``replicas`` then is the placement's ``cluster``."""
    front_end_s: float = 0.0
    """Time from the client's send until the scheduler has the request."""
    dealt: Dealt | None = None
    """Subset of the requests to simulate; None: all."""

    @property
    def n_replicas(self) -> int:
        """The number of all replicas, prefill and decode."""
        n_prefill = 0 if self.prefill is None else self.prefill.replicas.n_replicas
        return self.replicas.n_replicas + n_prefill

    @property
    def is_lone(self) -> bool:
        """Is it one replica with nothing before it, which has a loop of its own?"""
        return self.n_replicas == 1 and self.gate is None and self.replicas.engine.n_instances == 1

    @property
    def pools(self) -> DisaggregatedConfig | None:
        """The prefill and the decode replicas and the link between them; None where they are the same.

        Raises
        ------
        SpecError
            The two kinds of replica do not fit together.
        """
        if self.prefill is None:
            return None
        return DisaggregatedConfig(
            prefill=self.prefill.replicas,
            decode=self.replicas,
            link=self.prefill.link,
            answer_begins_at=self.prefill.answer_begins_at,
        )

    @property
    def rules(self) -> EngineConfig | DisaggregatedConfig | Placement:
        """Rules for ``simulated_run``: groups, pools, or the engine where there are none."""
        return self.placement or self.pools or self.replicas.engine

    @property
    def engines(self) -> tuple[EngineConfig, ...]:
        """One engine of each kind: of each group, or of prefill and decode replicas."""
        if self.placement is not None:
            return tuple(group.engine for group in self.placement.groups)
        return (self.replicas.engine,) if self.pools is None else self.pools.engines

    @property
    def engine_of_replicas(self) -> tuple[EngineConfig, ...]:
        """The engine of each replica."""
        kinds = self.placement or self.pools
        alike = (self.replicas.engine,) * self.replicas.n_replicas
        return alike if kinds is None else kinds.engine_of_replicas

    @property
    def step_times_of_groups(self) -> tuple[StepTimeArrays, ...]:
        """The step times of each of these kinds, in the same order."""
        if self.placement is not None:
            return tuple(group.step_times for group in self.placement.groups)
        prefill = () if self.prefill is None else (self.prefill.step_times,)
        return (*prefill, self.step_times)

    @property
    def has_contents(self) -> bool:
        """Does any replica cache prefixes, so that contents of prompts matter?"""
        return any(engine.enable_prefix_caching for engine in self.engines)


def lone_replica(engine: EngineConfig, step_times: StepTimeArrays) -> Fleet:
    """One replica of this engine without router and gate."""
    return Fleet(replicas=ClusterConfig(engine=engine), step_times=step_times)
