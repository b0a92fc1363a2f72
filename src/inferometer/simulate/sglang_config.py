"""Settings of SGLang's scheduler; names, meanings and defaults are those of SGLang 0.5.23."""

from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal, TypeAlias, get_args

import numpy as np

from inferometer.errors import SpecError
from inferometer.inputs.workload.arrivals import uniforms

SchedulePolicy: TypeAlias = Literal["fcfs", "lpm", "dfs-weight", "lof", "random"]
EvictionPolicy: TypeAlias = Literal["lru", "fifo"]
QUEUE_ORDERS: Final[tuple[SchedulePolicy, ...]] = get_args(SchedulePolicy)
"""Compiled code uses their indices."""
CACHE_AWARE: Final[frozenset[SchedulePolicy]] = frozenset({"lpm", "dfs-weight"})
"""Orders that use the radix tree; without the tree they are ``fcfs``."""
N_DRAWS: Final = 2**32
"""A draw of the policy ``random`` is a whole number below this."""
_N_SHUFFLE_DRAWS: Final = 2**16

RANK_RATIO: Final = 0.3
"""Factor of ``schedule_conservativeness`` with data-parallel attention."""
CLIP_MAX_NEW_TOKENS: Final = 4096
"""Largest planned output length, whatever the client's limit."""
RETRACT_DECODE_STEPS: Final = 20
"""Number of decode steps for which there should be room after a retraction."""
MATCHED_QUEUE: Final = 128
"""Queue length above which prefixes are not matched."""
REFRESH_INTERVAL: Final = 32
"""Number of scheduling decisions after which the first requests' prefixes are marked as used."""
SHARED_TOKENS: Final = 32
"""Uncached shared tokens above which only one of the sharing requests is preferred (lpm)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangConfig:
    """Settings of ``sglang serve`` for scheduling, with one pool of full-attention layers.

    ``max_total_num_tokens`` is in the server's log, as is ``chunked_prefill_size``, which depends
    on the device's memory (-1: off). ``ignore_eos``: every request will generate all of its
    ``max_new_tokens``, which SGLang then reserves in full. Larger priorities are more urgent, unless
    ``schedule_low_priority_values_first``. ``random_seed`` is only for the policy ``random``.
    ``radix_eviction_policy``: evict the least recently used leaf of the tree, or the oldest (both
    parts of a split leaf keep its age), which SGLang has but offers on its command line only after
    registration.

    Source of the orders: ``SchedulePolicy.calc_priority`` and ``_dfs_weight_order``
    (``sglang/srt/managers/schedule_policy.py``, ``sglang/srt/mem_cache/base_prefix_cache.py``,
    0.5.23). Not built: ``hrrn``, ``shortest-prefill-first``, ``routing-key``.
    """

    n_instances: ClassVar[int] = 1  # batches run one after the other

    max_total_num_tokens: int
    context_length: int
    max_running_requests: int = 2048
    page_size: int = 1
    chunked_prefill_size: int = 8192
    max_prefill_tokens: int = 16384
    schedule_policy: SchedulePolicy = "fcfs"
    random_seed: int = 0
    radix_eviction_policy: EvictionPolicy = "lru"
    schedule_conservativeness_ratio: float = 1.0
    enable_mixed_chunk: bool = False
    enable_priority_scheduling: bool = False
    disable_priority_preemption: bool = False
    schedule_low_priority_values_first: bool = False
    priority_scheduling_preemption_threshold: int = 10
    ignore_eos: bool = False
    disable_radix_cache: bool = False
    disable_overlap_schedule: bool = False

    def __post_init__(self) -> None:
        for name in ("max_running_requests", "page_size", "max_prefill_tokens"):
            if getattr(self, name) < 1:
                self._refuse(name, "1 or more")
        if self.random_seed < 0:
            self._refuse("random_seed", "0 or more")
        if self.max_total_num_tokens % self.page_size:
            self._refuse("max_total_num_tokens", f"a multiple of page_size = {self.page_size}")
        if self.chunked_prefill_size != -1 and (
            self.chunked_prefill_size < 1 or self.chunked_prefill_size % self.page_size
        ):
            self._refuse(
                "chunked_prefill_size", f"-1 (off) or a multiple of page_size = {self.page_size}"
            )
        if self.schedule_conservativeness_ratio <= 0:
            self._refuse("schedule_conservativeness_ratio", "above 0")
        if self.max_model_len < 2:
            self._refuse(
                "context_length",
                "8 or more, as max_total_num_tokens: the server keeps 6 tokens of each request"
                " back",
            )
        if self.ignore_eos and self.disable_radix_cache:
            self._refuse(
                "ignore_eos",
                "False where disable_radix_cache is True: SGLang admits by other rules then",
            )
        self._check_order()

    def _check_order(self) -> None:
        n_running = self.max_running_requests
        if self.enable_mixed_chunk and self.chunked_prefill_size < n_running:
            self._refuse(
                "enable_mixed_chunk",
                f"False, or a chunked_prefill_size of max_running_requests = {n_running} or more",
            )
        if self.enable_priority_scheduling and self.schedule_policy not in {"fcfs", "lof"}:
            self._refuse(
                "enable_priority_scheduling",
                f"False where schedule_policy is {self.schedule_policy}, not fcfs or lof",
            )
        if self.priority_scheduling_preemption_threshold < 0:
            self._refuse("priority_scheduling_preemption_threshold", "0 or more")

    def of_rank(
        self, n_ranks: int, *, divides_requests: bool, divides_chunks: bool
    ) -> "SglangConfig":
        """The settings of each rank of data-parallel attention, of those of the server.

        SGLang divides ``chunked_prefill_size`` and, if it is set, ``max_running_requests`` by the
        ranks; ``schedule_conservativeness`` falls: ``_handle_data_parallelism`` and
        ``max_running_requests // dp_size`` (``sglang/srt/server_args.py``,
        ``model_executor/pool_configurator.py``). What is a rank's already is not divided.
        """
        if n_ranks == 1:
            return self
        n_slots, n_chunk = self.max_running_requests, self.chunked_prefill_size
        size = self.page_size
        return replace(
            self,
            max_running_requests=max(n_slots // n_ranks, 1) if divides_requests else n_slots,
            chunked_prefill_size=max(n_chunk // n_ranks // size, 1) * size
            if divides_chunks and n_chunk != -1
            else n_chunk,
            schedule_conservativeness_ratio=self.schedule_conservativeness_ratio * RANK_RATIO,
        )

    def _refuse(self, name: str, allowed: str) -> None:
        raise SpecError(
            f"{name} = {getattr(self, name)}",
            where="the scheduler's configuration",
            allowed=allowed,
        )

    @property
    def engine(self) -> str:
        """Name of the scheduling policy."""
        return "SGLang 0.5.23"

    @property
    def max_req_len(self) -> int:
        """Most tokens of prompt and output together."""
        return min(self.context_length - 1, self.max_total_num_tokens - 1)

    @property
    def max_model_len(self) -> int:
        """Prompt length from which on requests are refused."""
        return self.max_req_len - 5

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt that the server takes."""
        return self.max_model_len - 1

    @property
    def step_budget_tokens(self) -> int:
        """Most prompt tokens in a step."""
        return self.max_prefill_tokens

    @property
    def max_num_active(self) -> int:
        """The largest number of requests that hold KV cache at once."""
        return self.max_running_requests

    @property
    def block_size(self) -> int:
        """Tokens in a page."""
        return self.page_size

    @property
    def n_kv_blocks(self) -> int:
        """The number of usable pages."""
        return self.max_total_num_tokens // self.page_size

    @property
    def enable_prefix_caching(self) -> bool:
        """Are cached prefixes reused?"""
        return not self.disable_radix_cache

    @property
    def depth(self) -> int:
        """The largest number of batches in flight."""
        return 1 if self.disable_overlap_schedule else 2

    @property
    def is_preempting(self) -> bool:
        """May a more urgent request preempt a decoding one?"""
        return self.enable_priority_scheduling and not self.disable_priority_preemption

    @property
    def order(self) -> SchedulePolicy:
        """The order of the queue: by the radix tree only where there is one."""
        return (
            "fcfs"
            if self.disable_radix_cache and self.schedule_policy in CACHE_AWARE
            else self.schedule_policy
        )

    @property
    def shuffle_draws(self) -> tuple[int, ...]:
        """Draws by which the policy ``random`` shuffles, in a cycle; empty for other policies."""
        if self.schedule_policy != "random":
            return ()
        draws = np.floor(
            uniforms(self.random_seed, "sglang random policy", _N_SHUFFLE_DRAWS) * N_DRAWS
        )
        return tuple(draws.astype(np.int64).tolist())

    @property
    def initial_new_token_ratio(self) -> float:
        """Initial expected share of the allowed output that a running request will produce."""
        return min(0.7 * self.schedule_conservativeness_ratio, 1.0)

    @property
    def least_new_token_ratio(self) -> float:
        """Lowest expected share, reached after steps without preemption."""
        return min(self.initial_new_token_ratio * 0.14, 1.0)

    @property
    def new_token_ratio_decay_ratio(self) -> float:
        """Decrease of the expected share in each step without preemption."""
        return (self.initial_new_token_ratio - self.least_new_token_ratio) / 600

    def max_new_tokens(self, prompt_tokens: int, max_tokens: int) -> int:
        """Largest output length of a request, of what its client allows."""
        paged = -(-prompt_tokens // self.page_size) * self.page_size
        longest = min(max_tokens, self.max_req_len - prompt_tokens - 1)
        return max(0, min(longest, self.max_total_num_tokens - paged - self.page_size - 1))
