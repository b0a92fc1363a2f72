"""How many servers, and which of them gets a request?

The rules of a cluster of equal replicas behind one router.

Each rule is that of a router in use, or of the theory of load balancing; what a router knows is
what it has sent, what of that has ended, and (prefix-affine) the prompts that it sent where. It
learns of an end at once and asks no engine, but for vLLM's own two.

``random``
    A replica drawn evenly: the standard that others are better than.
``round-robin``
    One after the other.
``least-loaded``
    The fewest requests in flight, waiting or running; of equals the next behind the last one
    chosen. *Join the shortest queue* (Winston, J. Appl. Prob. 14, 1977); ``least_conn`` of nginx.
``power-of-two``
    Of two different replicas drawn evenly the one with fewer requests in flight, of equals the
    first (Mitzenmacher, IEEE Trans. Parallel Distrib. Syst. 12(10), 2001).
``prefix-affine``
    Where its longest known prefix went, if that is a large enough part of the prompt; else where
    the fewest different blocks have been sent. While the load is uneven: as least-loaded. The rule
    and its three constants are those of ``cache_aware`` of SGLang's router
    (``sgl-router/src/policies/cache_aware.rs``). Here a prefix is known in whole KV blocks of
    prompts and is never forgotten.
``class-aware``
    Each class of requests has replicas of its own, the least loaded of which gets it.
``vllm``
    The front end of vLLM's data parallelism (``DPLBAsyncMPClient``,
    ``vllm/v1/engine/core_client.py`` of 0.32.0): the most of what is in flight and what was last
    reported to wait and to run, and where somebody waits 6 times as many for each part of the KV
    cache that is in use beyond a half; of equals the first from a place that goes on by one with
    each request. Engines report their counts as their steps begin; the coordinator passes them on
    at most every ``report_interval_s``, and meanwhile the front end counts as waiting what it
    sends.
``vllm-0.19``
    The same before: 4 times those that wait and those that run, by report; of equals the first
    (0.10 to 0.26, read in 0.10.2). A report makes it forget what it has sent since the engine's
    step began.
"""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from inferometer.errors import SpecError
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.scheduler_config import SchedulerConfig

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

_WHERE: Final = "the cluster"
_MAX_INTERVAL_S: Final = 3600.0


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
    """Do all begin and end each step together, as replicas that share experts do (vLLM's
    --enable-expert-parallel)?"""
    router: Router = "round-robin"
    seed: int = 0
    """Of what ``random`` and ``power-of-two`` draw."""
    class_replicas: tuple[tuple[int, ...], ...] = ()
    cache_threshold_fraction: float = 0.3
    """A known prefix counts where it is more than this part of the prompt."""
    balance_abs_threshold: int = 64
    """The load is uneven where the most and the least requests in flight differ by more than
    this, …"""
    balance_rel_threshold_ratio: float = 1.5
    """… and the most are more than so many times the least."""
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
    if not isinstance(engine, SchedulerConfig) or engine.rules != "vllm" or engine.is_contiguous:
        raise SpecError(
            f"replicas of {engine.engine} in lockstep",
            where=_WHERE,
            allowed="vLLM's rules, with a paged KV cache",
        )
    if engine.pipeline_parallel_size > 1:
        raise SpecError(
            f"{engine.pipeline_parallel_size} pipeline stages in lockstep",
            where=_WHERE,
            allowed="pipeline_parallel_size = 1",
        )


def replicas_of_classes(config: ClusterConfig, n_classes: int) -> tuple[tuple[int, ...], ...]:
    """Which replicas serve each class?

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
