"""How is the engine's scheduler set up? Names, meanings and defaults are those of vLLM 0.32.0."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from inferometer.errors import SpecError

Policy: TypeAlias = Literal["fcfs", "priority"]
KvAllocation: TypeAlias = Literal["paged", "contiguous"]

ASYNC_DEPTH: Final = 2
"""How many batches are in flight under asynchronous scheduling, without pipeline parallelism."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The knobs of vLLM's scheduler and KV cache, as ``vllm serve`` has them.

    ``num_blocks`` is the server's ``num_gpu_blocks``: take it from its log, a computed one is wrong by whole percents. Block 0 is
    never handed out. ``max_num_active_seqs`` None means ``max_num_seqs``. ``watermark_fraction`` is vLLM's ``watermark``.
    The last two are not vLLM's: with ``one_prefill_at_a_time`` nobody is admitted in a step in which another request is in its
    prefill; "contiguous" gives each request one piece of memory for its prompt and all tokens that it may generate.
    """

    num_blocks: int
    max_model_len: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_num_active_seqs: int | None = None
    block_size: int = 16
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    policy: Policy = "fcfs"
    scheduler_reserve_full_isl: bool = True
    watermark_fraction: float = 0.0
    async_scheduling: bool = True
    one_prefill_at_a_time: bool = False
    kv_allocation: KvAllocation = "paged"

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "max_num_active"):
            if getattr(self, name) < 1:
                self._refuse(name, "1 or more")
        if self.max_model_len < 2:
            self._refuse("max_model_len", "2 or more: a prompt token and an output token")
        if self.num_blocks < max(2, -(-self.max_model_len // self.block_size)):
            self._refuse(
                "num_blocks",
                f"enough for one request of max_model_len = {self.max_model_len}: {-(-self.max_model_len // self.block_size)}",
                try_="a smaller max_model_len or more memory for the KV cache, as vLLM says when it refuses to start",
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            self._refuse("max_num_batched_tokens", f"max_num_seqs = {self.max_num_seqs} or more")
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            self._refuse("max_num_batched_tokens", f"max_model_len = {self.max_model_len} or more where prefill is not chunked")
        if not 0 <= self.long_prefill_token_threshold <= self.max_model_len:
            self._refuse("long_prefill_token_threshold", f"0 (off) to max_model_len = {self.max_model_len}")
        if self.kv_allocation == "contiguous" and self.enable_prefix_caching:
            self._refuse("enable_prefix_caching", "False where the KV cache is contiguous: blocks cannot be shared")
        if not 0 <= self.watermark_fraction < 1:
            self._refuse("watermark_fraction", "0 to 1, 1 excluded")

    def _refuse(self, name: str, allowed: str, *, try_: str | None = None) -> None:
        raise SpecError(f"{name} = {getattr(self, name)}", where="the scheduler's configuration", allowed=allowed, try_=try_)

    @property
    def engine(self) -> str:
        """Whose rules are these?"""
        changes = ", one prefill at a time" * self.one_prefill_at_a_time + ", contiguous KV cache" * (self.kv_allocation != "paged")
        return "vLLM 0.32.0" + changes

    @property
    def max_num_active(self) -> int:
        """How many requests may run at once?"""
        return self.max_num_seqs if self.max_num_active_seqs is None else min(self.max_num_active_seqs, self.max_num_seqs)

    @property
    def n_kv_blocks(self) -> int:
        """How many blocks can hold tokens? Block 0 never does."""
        return self.num_blocks - 1

    @property
    def watermark_blocks(self) -> int:
        """How many blocks must stay free when a request joins others that run?"""
        return int(self.watermark_fraction * self.num_blocks)

    @property
    def depth(self) -> int:
        """How many batches may be in flight?"""
        return ASYNC_DEPTH if self.async_scheduling else 1


__all__ = ["ASYNC_DEPTH", "KvAllocation", "Policy", "SchedulerConfig"]
