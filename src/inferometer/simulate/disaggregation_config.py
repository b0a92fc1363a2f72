"""How are prompts and answers computed on different servers, and what lies between them?

Engines agree on the course: a prefill replica computes the prompt and one token; its KV cache stays
there until a decode replica, where blocks must be free for it, has fetched it; there the answer
goes on. They differ in who gives the client the first token:

``decode``
    vLLM 0.32.0 (``NixlConnector`` in pull mode behind ``toy_proxy_server.py``): the prefill replica
    is asked for one token, which the proxy reads and drops; the decode replica computes the
    prompt's last token again and samples the first token itself. In SGLang
    (``disaggregation/decode.py``) the first token travels with the KV cache: one decode step
    sooner.
``prefill``
    The client sees the first token when the prefill is done, as in DistServe (Zhong et al., OSDI
    2024, §3) and Splitwise (Patel et al., ISCA 2024, §4): TTFT is without the transfer, which the
    second token waits for.

Not modelled: a transfer layer by layer while the prompt is still computed, prompts that the decode
replica had better compute itself, and vLLM's blocks kept free for prefills under way
(``_inflight_prefill_reserved_blocks``).
"""

from dataclasses import dataclass
from math import inf
from typing import Final, Literal, TypeAlias, get_args

from inferometer.errors import SpecError
from inferometer.simulate.cluster_config import ClusterConfig
from inferometer.simulate.scheduler_config import SchedulerConfig

AnswerBeginsAt: TypeAlias = Literal["decode", "prefill"]
LinkShape: TypeAlias = Literal["ports", "shared"]
BEGINNINGS: Final[tuple[AnswerBeginsAt, ...]] = get_args(AnswerBeginsAt)
LINK_SHAPES: Final[tuple[LinkShape, ...]] = get_args(LinkShape)

_WHERE: Final = "the disaggregated cluster"
_PS_PER_S: Final = 10**12
_MAX_BLOCK_PS: Final = 2**40
"""A block that takes longer than a second is no link; products with it stay whole 64-bit
numbers."""
_MAX_LATENCY_NS: Final = 2**50


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLink:
    """The way of KV blocks from prefill to decode replicas.

    ``ports``: each replica has one port of this speed on a network that is never the bottleneck; a
    transfer takes the sender's and the receiver's port, whole, first asked first served.
    ``shared``: all transfers take one link, one after the other.
    """

    block_bytes: int
    """Of one KV block, on all devices of a replica together."""
    bytes_per_s: float = inf
    latency_s: float = 0.0
    """From the last byte sent to the receiver's going on, whatever else travels."""
    shape: LinkShape = "ports"

    def __post_init__(self) -> None:
        if self.shape not in LINK_SHAPES:
            raise SpecError(f"shape = {self.shape!r}", where=_WHERE, allowed=", ".join(LINK_SHAPES))
        if self.block_bytes < 1:
            raise SpecError(f"block_bytes = {self.block_bytes}", where=_WHERE, allowed="1 or more")
        if not self.bytes_per_s > 0 or self.block_ps > _MAX_BLOCK_PS:
            raise SpecError(
                f"bytes_per_s = {self.bytes_per_s}",
                where=_WHERE,
                allowed="a block within a second; inf: no time at all",
            )
        if not 0 <= self.latency_s * 1e9 <= _MAX_LATENCY_NS:
            raise SpecError(
                f"latency_s = {self.latency_s}", where=_WHERE, allowed="0 or more, up to days"
            )

    @property
    def block_ps(self) -> int:
        """How many picoseconds does a block take?"""
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
                where=_WHERE,
                allowed=", ".join(BEGINNINGS),
            )
        if self.prefill.in_lockstep or self.decode.in_lockstep:
            raise SpecError(
                "a pool in lockstep",
                where=_WHERE,
                allowed="pools whose replicas step each by itself",
            )
        for engine in self.engines:
            if engine.policy == "srpt":
                raise SpecError(
                    "a pool with the policy srpt", where=_WHERE, allowed="fcfs, priority"
                )
            if engine.rules != "vllm" or engine.is_contiguous:
                raise SpecError(
                    f"a pool with the rules of {engine.engine}",
                    where=_WHERE,
                    allowed="vLLM's, with a paged KV cache",
                )
        if self.engines[0].preemption_mode == "swap":
            raise SpecError(
                "prefill replicas that swap",
                where=_WHERE,
                allowed="preemption_mode = recompute there",
            )
        for name in ("block_size", "max_model_len"):
            first, second = (getattr(engine, name) for engine in self.engines)
            if first != second:
                raise SpecError(
                    f"{name} = {first} for prefill, {second} for decode",
                    where=_WHERE,
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
                where=_WHERE,
                allowed="vLLM's rules",
                try_="--policy vllm",
            )
        return prefill, decode

    @property
    def seats(self) -> tuple[int, ...]:
        """How many requests may run at once on each replica?"""
        prefill, decode = self.engines
        return (prefill.max_num_active,) * self.prefill.n_replicas + (
            decode.max_num_active,
        ) * self.decode.n_replicas

    @property
    def n_replicas(self) -> int:
        """How many replicas are there? Those that prefill come first."""
        return self.prefill.n_replicas + self.decode.n_replicas
