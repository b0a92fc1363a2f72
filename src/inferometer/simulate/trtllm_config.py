"""Settings of TensorRT-LLM's scheduler.

Names, meanings and defaults are those of its PyTorch backend.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, Literal, TypeAlias, get_args

from inferometer.errors import SpecError

CapacityPolicy: TypeAlias = Literal["GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"]
ChunkingPolicy: TypeAlias = Literal["FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"]

CAPACITY_POLICIES: Final[tuple[CapacityPolicy, ...]] = get_args(CapacityPolicy)
CHUNKING_POLICIES: Final[tuple[ChunkingPolicy, ...]] = get_args(ChunkingPolicy)
"""Compiled code uses their indices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrtllmConfig:
    """Settings of ``trtllm-serve`` for scheduling.

    Of ``kv_cache_config``, ``enable_partial_reuse`` is off.

    ``num_blocks`` is the primary pool of the server's log: its max tokens / ``tokens_per_block``.
    Without chunked prefill (the default) the server starts with any
    ``max_seq_len`` and refuses each prompt longer than ``max_num_tokens``: ``_check_arguments`` in
    ``tensorrt_llm/llmapi/llm.py``, PyTorch backend.
    """

    n_instances: ClassVar[int] = 1  # batches run one after the other

    num_blocks: int
    max_seq_len: int
    max_batch_size: int = 2048
    max_num_tokens: int = 8192
    tokens_per_block: int = 32
    capacity_scheduler_policy: CapacityPolicy = "GUARANTEED_NO_EVICT"
    enable_chunked_prefill: bool = False
    context_chunking_policy: ChunkingPolicy = "FIRST_COME_FIRST_SERVED"
    disable_overlap_scheduler: bool = False
    enable_block_reuse: bool = True
    enable_prefix_aware_scheduling: bool = True
    """A request waits while another one computes the first block that it would have to compute
    itself."""

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_num_tokens", "tokens_per_block"):
            if getattr(self, name) < 1:
                self._refuse(name, "1 or more")
        if self.max_seq_len < 2:
            self._refuse("max_seq_len", "2 or more: a prompt token and an output token")
        n_blocks = -(-self.max_seq_len // self.tokens_per_block)
        if self.num_blocks < n_blocks:
            self._refuse(
                "num_blocks",
                f"enough for one request of max_seq_len = {self.max_seq_len}: {n_blocks}",
            )
        if (
            self.capacity_scheduler_policy == "MAX_UTILIZATION"
            and self.max_prompt_tokens < self.max_seq_len - 1
        ):
            # Whoever is paused computes its prompt and its answer so far again: as one context that
            # may never fit.
            allowed = (
                f"max_seq_len = {self.max_seq_len} or more where prefill is not chunked and"
                " requests are paused"
            )
            self._refuse("max_num_tokens", allowed, try_="--set enable_chunked_prefill=true")
        if self.enable_chunked_prefill and self.max_num_tokens < self.tokens_per_block:
            self._refuse(
                "max_num_tokens",
                f"tokens_per_block = {self.tokens_per_block} or more, the smallest chunk",
            )

    def _refuse(self, name: str, allowed: str, *, try_: str | None = None) -> None:
        raise SpecError(
            f"{name} = {getattr(self, name)}",
            where="the scheduler's configuration",
            allowed=allowed,
            try_=try_,
        )

    @property
    def engine(self) -> str:
        """Name of the scheduling policy."""
        return "TensorRT-LLM 1.3"

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and output together."""
        return self.max_seq_len

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt that the server takes."""
        longest = self.max_seq_len - 1
        return longest if self.enable_chunked_prefill else min(longest, self.max_num_tokens)

    @property
    def step_budget_tokens(self) -> int:
        """Most tokens in a step."""
        return self.max_num_tokens

    @property
    def max_num_active(self) -> int:
        """The largest number of active requests."""
        return self.max_batch_size

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.tokens_per_block

    @property
    def n_kv_blocks(self) -> int:
        """The number of usable blocks."""
        return self.num_blocks

    @property
    def enable_prefix_caching(self) -> bool:
        """Are cached prefixes reused?"""
        return self.enable_block_reuse

    @property
    def depth(self) -> int:
        """The largest number of batches in flight."""
        return 1 if self.disable_overlap_scheduler else 2
