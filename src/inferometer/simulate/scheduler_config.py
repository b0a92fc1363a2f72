"""Settings of vLLM's scheduler and KV cache.

Names, meanings and defaults are those of vLLM 0.32.0, the version against which the simulator was
checked. 0.33.0 has the same names and defaults. These rules of its scheduler differ and are not
modelled: with priorities, a request that is preempted for lack of its own blocks ends the step only
for itself, not for those after it; drafts of EAGLE recompute no cached block
(``num_hash_lookahead_tokens``); ``prefill_schedule_interval`` delays prefills also without data
parallelism (1, the default, never does).

The acceptance of draft tokens is drawn once for each possible output token: the draw depends only
on the request and the token's position in its answer, not on time, batch or number of drafts. So
what-ifs share the same random draws, and differ only by the changed settings.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, TypeAlias

from inferometer import suggestions
from inferometer.errors import SpecError
from inferometer.records.columns import I64

N_DRAWS: Final = 2**32
"""A draw is an integer below this, uniformly distributed."""
Policy: TypeAlias = Literal["fcfs", "priority", "srpt"]
KvAllocation: TypeAlias = Literal["paged", "contiguous"]
Rules: TypeAlias = Literal["vllm", "sarathi", "orca", "vllm-v0"]
PreemptionMode: TypeAlias = Literal["recompute", "swap"]
DraftMethod: TypeAlias = Literal["ngram", "draft_model", "eagle"]

_ENGINES: Final[dict[Rules, str]] = {
    "vllm": "vLLM 0.32.0",
    "sarathi": "Sarathi-Serve",
    "orca": "Orca",
    "vllm-v0": "vLLM v0",
}
_LEAST_WINDOW: Final = 2
_MOST_DRAFTS: Final = 10_000
_PS_PER_S: Final = 10**12
_WHERE: Final = "the scheduler's configuration"
_WITH_POOLS: Final = {
    "rules": "vllm",
    "kv_allocation": "paged",
    "preemption_mode": "recompute",
    "sliding_window": 0,
    "num_state_blocks": 0,
}
"""Settings that are allowed together with KV pools."""


def n_accepted(
    acceptance: Sequence[int] | I64, request_index: int, n_outputs: int, n_drafts: int
) -> int:
    """The number of draft tokens accepted in order, after ``n_outputs`` output tokens.

    A draft is accepted if its draw lies below ``acceptance`` at its position. The draw is two rounds
    of a 32-bit mixer (invertible multiplications by odd numbers and shifts); its products stay
    below 2^63, where Python's and compiled integers agree.

    Example
    -------
    >>> n_accepted([N_DRAWS, N_DRAWS, 0], request_index=5, n_outputs=10, n_drafts=3)
    2
    """
    for place in range(n_drafts):
        draw = (request_index * 2 + 1) & 0xFFFFFFFF
        for turn in range(2):
            draw ^= draw >> 16
            draw = (draw * 0x21F0AAAD) & 0xFFFFFFFF
            draw ^= draw >> 15
            draw = (draw * 0x735A2D97) & 0xFFFFFFFF
            draw ^= draw >> 15
            if turn == 0:
                draw ^= (n_outputs + place) & 0xFFFFFFFF
        if draw >= acceptance[place]:
            return place
    return n_drafts


def most_sliding_blocks(
    sliding_window: int, *, in_flight_tokens: int, max_model_len: int, block_size: int
) -> int:
    """The most blocks that a request holds in a group of layers with a window.

    Blocks of the window and of tokens in flight, plus one if the window begins inside a block: vLLM's
    ``SlidingWindowSpec.max_admission_blocks_per_request``.

    Example
    -------
    >>> most_sliding_blocks(1024, in_flight_tokens=4096, max_model_len=32768, block_size=16)
    321
    """
    held_tokens = min(sliding_window - 1 + in_flight_tokens, max_model_len)
    return -(-held_tokens // block_size) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPool:
    """A part of the KV cache for requests that match its rules and no earlier pool's.

    ``n_blocks``: usable blocks. ``block_millionths`` and ``token_millionths``: bytes of a block, and
    of a token's KV read by attention, relative to the server's own block and format.
    """

    n_blocks: int
    block_size: int
    block_millionths: int = 1_000_000
    token_millionths: int = 1_000_000
    kv_dtype: str | None = None
    classes: tuple[str, ...] = ()
    class_indices: tuple[int, ...] = ()
    """Indices of its classes, once the workload is known."""
    max_prompt_tokens: int | None = None

    @property
    def rule_text(self) -> str:
        """The requests of this pool, in words.

        Example
        -------
        >>> KvPool(n_blocks=1, block_size=16, classes=("chat",), max_prompt_tokens=2000).rule_text
        'class chat, prompts up to 2,000 tokens'
        """
        rules = [f"class {' or '.join(self.classes)}"] if self.classes else []
        most = self.max_prompt_tokens
        rules += [] if most is None else [f"prompts up to {most:,} tokens"]
        return ", ".join(rules) or "what is left"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Settings of vLLM's scheduler and KV cache, as in ``vllm serve``.

    ``num_blocks`` is the server's ``num_gpu_blocks``: use the value in its log, as a computed one is
    wrong by some percent. Block 0 is never allocated. ``max_num_active_seqs`` None means
    ``max_num_seqs``. ``watermark_fraction`` is vLLM's ``watermark``.

    Not in vLLM: the policy "srpt" (shortest remaining processing time, Schrage, Operations Research
    16, 1968) serves the request with the fewest tokens left to compute first (prompt and
    ``max_tokens``). While the next waiting request lacks a slot or blocks for its prompt, the running
    request with the most tokens left is preempted if it has more left than the waiting one. With
    ``one_prefill_at_a_time`` no request is admitted in a step in which another one is in its prefill.
    "contiguous" gives each request one piece of memory for its prompt and ``max_tokens``. With
    ``compaction_bytes_per_s`` (0: off), per device, pieces are then slid together in the background
    until the largest waiting request for which enough memory is free fits; a piece is used at its
    old place until it is moved completely.

    Speculation drafts ``num_speculative_tokens`` for each token sampled. ``draft_method`` is vLLM's
    ``method``: "draft_model" and "eagle" (MTP too) reserve as many slots ahead, "draft_model" one
    row of each step's budget, "eagle" recomputes the last block of a cached prefix.
    ``acceptance_fraction`` is the probability that a draft is accepted if those before it were: one
    value, or one per position. ``draft_cost_ratio`` is the time of a draft's step relative to the
    model's own for the same batch. Both are assumptions.

    With "swap", which vLLM 0.32.0 no longer has, the blocks of a preempted request are copied to
    ``swap_space_bytes`` of host memory and back before it runs again; if they do not fit, it is
    recomputed. Copies in both directions run at ``swap_bytes_per_s`` per device, and the next step
    begins when they are done.

    With ``pipeline_parallel_size`` = p stages, p batches are in flight, with ``async_scheduling`` one
    more (vLLM's default on a GPU, its model runner V2), and a request decodes once in each round of
    them.

    Layers that attend only to the last ``sliding_window`` tokens (0: all layers attend to all) free
    blocks outside their window. As in vLLM's hybrid KV cache manager, the layers are split into
    groups of equal size, each with its own block table from one pool: ``num_sliding_groups``, then
    ``num_full_groups`` (``perfmodel.kv_groups``). ``--disable-hybrid-kv-cache-manager`` also
    corresponds to 0. A request holds ``num_state_blocks`` more for the states of recurrent layers.

    Also not in vLLM: ``kv_pools`` divide the KV cache; each pool has its own block size and format
    for some of the requests. A request whose pool is full is skipped, with those of the same pool
    after it, as vLLM skips requests without a free LoRA slot. Preemption for lack of blocks chooses
    a request of the same pool, which then admits none in that step.

    ``rules`` selects older engines as simplified in simulators (Vidur's). "sarathi": decodes before
    prefill chunks, memory for the whole prompt at admission, and admissions continue in a step that
    preempts. "orca": no limit of a step's tokens, memory for ``max_model_len`` tokens per request.
    "vllm-v0": whole prompts in separate steps before any decode, padded to the longest, up to the
    larger of ``max_model_len`` and ``max_num_batched_tokens``. ``serving_config`` sets the other
    settings that belong to each.
    """

    n_instances: ClassVar[int] = 1  # batches run one after the other

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
    num_speculative_tokens: int = 0
    draft_method: DraftMethod = "ngram"
    acceptance_fraction: float | tuple[float, ...] | None = None
    draft_cost_ratio: float | None = None
    preemption_mode: PreemptionMode = "recompute"
    swap_space_bytes: int = 4 * 2**30
    swap_bytes_per_s: float | None = None
    kv_block_bytes: int | None = None
    compaction_bytes_per_s: float = 0.0
    pipeline_parallel_size: int = 1
    sliding_window: int = 0
    num_sliding_groups: int = 0
    num_full_groups: int = 1
    num_state_blocks: int = 0
    kv_pools: tuple[KvPool, ...] = ()
    rules: Rules = "vllm"

    def __post_init__(self) -> None:
        for name in (
            "max_num_seqs",
            "max_num_batched_tokens",
            "block_size",
            "max_num_active",
            "pipeline_parallel_size",
        ):
            if getattr(self, name) < 1:
                self._refuse(name, "1 or more")
        if self.max_model_len < 2:
            self._refuse("max_model_len", "2 or more: a prompt token and an output token")
        self._check_groups()
        self._check_state_blocks()
        n_least = max(2, self.n_blocks_at_most_len + bool(self.sliding_window))
        if self.num_blocks < n_least:
            self._refuse(
                "num_blocks",
                f"{n_least} or more, enough for one request of max_model_len ="
                f" {self.max_model_len}",
                try_=(
                    f"{self._shorter}more memory for the KV cache, as vLLM says when it refuses to"
                    " start"
                ),
            )
        if self.step_budget_tokens < self.max_num_seqs:
            self._refuse(
                "max_num_batched_tokens",
                f"max_num_seqs = {self.max_num_seqs} or more",
                try_=suggestions.flags("--max-num-batched-tokens", self.max_num_seqs),
            )
        if not self.enable_chunked_prefill and self.step_budget_tokens < self.max_model_len:
            self._refuse(
                "max_num_batched_tokens",
                f"max_model_len = {self.max_model_len} or more where prefill is not chunked",
            )
        if not 0 <= self.long_prefill_token_threshold <= self.max_model_len:
            self._refuse(
                "long_prefill_token_threshold", f"0 (off) to max_model_len = {self.max_model_len}"
            )
        if not 0 <= self.watermark_fraction < 1:
            self._refuse("watermark_fraction", "0 to 1, 1 excluded")
        self._check_what_is_added()

    def _check_what_is_added(self) -> None:
        if self.pipeline_parallel_size > 1 and (
            self.rules != "vllm" or self.num_speculative_tokens != 0
        ):
            self._refuse("pipeline_parallel_size", "1 with drafts, or with rules of other engines")
        if self.rules in {"orca", "vllm-v0"}:
            for name in ("enable_chunked_prefill", "long_prefill_token_threshold"):
                if getattr(self, name):
                    self._refuse(
                        name,
                        f"{type(getattr(self, name))(0)}: the rules of {self.rules} compute prompts"
                        " whole",
                    )
        if self.rules != "vllm" and self.num_speculative_tokens != 0:
            self._refuse("num_speculative_tokens", f"0 where the rules are those of {self.rules}")
        if self.policy == "srpt" and (self.rules != "vllm" or self.is_contiguous):
            self._refuse(
                "policy",
                "fcfs or priority where the rules are not vLLM's or the KV cache is contiguous",
            )
        if self.is_contiguous and self.enable_prefix_caching:
            self._refuse(
                "enable_prefix_caching",
                "False where the KV cache is contiguous: blocks cannot be shared",
                try_="--set enable_prefix_caching=false",
            )
        if self.num_speculative_tokens != 0:
            self._check_speculation()
        if self.preemption_mode == "swap":
            self._check_swap()
        self._check_compaction()
        self._check_pools()

    def _check_state_blocks(self) -> None:
        if self.num_state_blocks < 0:
            self._refuse("num_state_blocks", "0 or more")
        if self.num_state_blocks and (
            self.rules != "vllm"
            or self.is_contiguous
            or self.preemption_mode != "recompute"
            or self.sliding_window
        ):
            self._refuse(
                "num_state_blocks",
                "0 with windows, rules of other engines, a contiguous KV cache or swapping",
            )
        if self.num_state_blocks and self.max_num_seqs > self.num_blocks:
            self._refuse(
                "max_num_seqs",
                f"num_blocks = {self.num_blocks} or less: vLLM refuses to start where a state of"
                " each sequence has no block",
                try_=suggestions.flags("--max-num-seqs", self.num_blocks),
            )

    def _check_groups(self) -> None:
        if self.sliding_window == 0:
            if (self.num_sliding_groups, self.num_full_groups) != (0, 1):
                self._refuse("num_sliding_groups", "0, with num_full_groups = 1, without a window")
            return
        if self.sliding_window < _LEAST_WINDOW:
            self._refuse("sliding_window", f"0 (none), or {_LEAST_WINDOW} or more")
        if self.num_sliding_groups < 1:
            self._refuse("num_sliding_groups", "1 or more with a window")
        if self.num_full_groups < (0 if self.num_sliding_groups == 1 else 1):
            self._refuse("num_full_groups", "1 or more; 0 where one group of layers slides alone")
        if (
            self.rules != "vllm"
            or self.is_contiguous
            or self.preemption_mode != "recompute"
            or self.is_recomputing_last_block
        ):
            self._refuse(
                "sliding_window",
                "0 (blocks for the whole context) with rules of other engines, a contiguous KV"
                " cache, swapping or drafts of EAGLE",
            )

    def _check_speculation(self) -> None:
        n_drafts, acceptance = self.num_speculative_tokens, self.acceptance_fraction
        if not 0 <= n_drafts <= _MOST_DRAFTS:
            self._refuse("num_speculative_tokens", f"0 (off) to {_MOST_DRAFTS}")
        places = (
            acceptance
            if isinstance(acceptance, tuple)
            else ()
            if acceptance is None
            else (acceptance,) * n_drafts
        )
        if len(places) != n_drafts or not all(0 <= fraction <= 1 for fraction in places):
            self._refuse(
                "acceptance_fraction",
                f"0 to 1, one for all or one for each of {n_drafts} places",
                try_=f"{suggestions.flags('--set', 'acceptance_fraction=0.7')}, an assumption: measure it",
            )
        if self.draft_cost_ratio is None and self.draft_method != "ngram":
            self._refuse(
                "draft_cost_ratio",
                "0 or more; only n-grams cost nothing",
                try_=f"{suggestions.flags('--set', 'draft_cost_ratio=0.05')}: the draft's parameters over"
                " the model's",
            )
        if self.draft_cost_ratio is not None and not 0 <= self.draft_cost_ratio <= 1000:
            self._refuse("draft_cost_ratio", "0 to 1000")
        if 0 < self.long_prefill_token_threshold <= n_drafts:
            self._refuse(
                "long_prefill_token_threshold",
                f"0 (off), or more than {n_drafts} drafts: vLLM 0.32.0 fails on less",
            )
        if self.max_num_batched_tokens <= self.num_draft_slots:
            self._refuse(
                "max_num_batched_tokens",
                f"more than the {self.num_draft_slots} that a draft takes of it",
            )

    def _check_swap(self) -> None:
        for name in ("swap_bytes_per_s", "kv_block_bytes"):
            value = getattr(self, name)
            if value is None or value <= 0:
                self._refuse(name, "above 0 where blocks are swapped: that of one device")
        if self.swap_space_bytes < 0:
            self._refuse("swap_space_bytes", "0 or more")

    def _check_compaction(self) -> None:
        if self.compaction_bytes_per_s == 0:
            return
        if not self.compaction_bytes_per_s > 0:
            self._refuse("compaction_bytes_per_s", "0 (off) or more: that of one device")
        if not self.is_contiguous:
            self._refuse(
                "compaction_bytes_per_s",
                "0 (off) where the KV cache is paged: any free block will do",
                try_="kv_allocation=contiguous",
            )
        if self.kv_block_bytes is None or self.kv_block_bytes <= 0:
            self._refuse("kv_block_bytes", "above 0 where pieces are moved: that of one device")

    def _check_pools(self) -> None:
        if not self.kv_pools:
            return
        for name, usual in _WITH_POOLS.items():
            if getattr(self, name) != usual:
                self._refuse(name, f"{usual} where kv_pools divide the KV cache")
        if self.policy == "srpt":
            self._refuse("policy", "fcfs or priority where kv_pools divide the KV cache")
        for pool in self.kv_pools:
            n_tokens = pool.n_blocks * pool.block_size
            if n_tokens < self.max_model_len:
                raise SpecError(
                    f"kv_pools: {n_tokens:,} tokens for {pool.rule_text}",
                    where=_WHERE,
                    allowed=f"max_model_len = {self.max_model_len:,} or more in each pool",
                    try_="a smaller max_model_len, or a larger share",
                )

    @property
    def _shorter(self) -> str:
        """A context that the blocks hold, as a remedy; without the number where layers differ."""
        n_tokens = self.num_blocks * self.block_size
        is_plain = not (self.sliding_window or self.num_state_blocks) and self.num_full_groups == 1
        is_known = is_plain and n_tokens > 1
        return f"--max-model-len {n_tokens}, or " if is_known else "a smaller max_model_len or "

    def _refuse(self, name: str, allowed: str, *, try_: str | None = None) -> None:
        raise SpecError(f"{name} = {getattr(self, name)}", where=_WHERE, allowed=allowed, try_=try_)

    @property
    def engine(self) -> str:
        """Name of the scheduling policy."""
        changes = ", shortest remaining first" * (self.policy == "srpt")
        changes += (
            ", one prefill at a time" * self.one_prefill_at_a_time
            + ", contiguous KV cache" * (self.kv_allocation != "paged")
            + ", compaction" * self.is_compacting
            + ", KV pools" * bool(self.kv_pools)
        )
        changes += f", {self.num_speculative_tokens} drafted tokens" * (
            self.num_speculative_tokens > 0
        )
        changes += f", {self.pipeline_parallel_size} pipeline stages" * (
            self.pipeline_parallel_size > 1
        )
        return _ENGINES[self.rules] + changes + ", swapping" * (self.preemption_mode == "swap")

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt that the server takes."""
        return self.max_model_len - 1

    @property
    def max_num_active(self) -> int:
        """The largest number of requests that run at once."""
        return (
            self.max_num_seqs
            if self.max_num_active_seqs is None
            else min(self.max_num_active_seqs, self.max_num_seqs)
        )

    @property
    def is_contiguous(self) -> bool:
        """Is each request's KV cache one piece of memory?"""
        return self.kv_allocation == "contiguous" or self.rules == "orca"

    @property
    def is_compacting(self) -> bool:
        """Are pieces of memory compacted in the background?"""
        return self.compaction_bytes_per_s > 0

    @property
    def move_block_ps(self) -> int:
        """Picoseconds to move a block."""
        if self.kv_block_bytes is None or not self.is_compacting:
            return 0
        return round(self.kv_block_bytes / self.compaction_bytes_per_s * _PS_PER_S)

    @property
    def step_budget_tokens(self) -> int:
        """The largest number of tokens in a step."""
        if self.rules == "orca":
            return self.max_num_seqs * self.max_model_len
        return (
            max(self.max_num_batched_tokens, self.max_model_len)
            if self.rules == "vllm-v0"
            else self.max_num_batched_tokens
        )

    @property
    def n_kv_blocks(self) -> int:
        """The number of usable KV blocks; block 0 never holds tokens."""
        return self.num_blocks - 1

    @property
    def n_kv_groups(self) -> int:
        """The number of layer groups with block tables of their own."""
        return self.num_sliding_groups + self.num_full_groups

    @property
    def most_sliding_blocks(self) -> int:
        """The most blocks that a request holds in a group of layers with a window; 0 without one."""
        if self.sliding_window == 0:
            return 0
        return most_sliding_blocks(
            self.sliding_window,
            in_flight_tokens=self.depth * self.step_budget_tokens,
            max_model_len=self.max_model_len,
            block_size=self.block_size,
        )

    def n_blocks_of(self, num_tokens: int) -> int:
        """Blocks that vLLM counts at the admission of a request of this length."""
        n_blocks = -(-num_tokens // self.block_size)
        in_windows = min(n_blocks, self.most_sliding_blocks)
        in_windows = self.num_sliding_groups * in_windows + self.num_state_blocks
        return self.num_full_groups * n_blocks + in_windows

    @property
    def n_blocks_at_most_len(self) -> int:
        """Blocks that vLLM counts at start-up for a request of ``max_model_len`` tokens."""
        n_blocks = -(-self.max_model_len // self.block_size)
        in_windows = self.num_sliding_groups * self.most_sliding_blocks + self.num_state_blocks
        return self.num_full_groups * n_blocks + in_windows

    @property
    def n_kv_tokens(self) -> int:
        """Tokens that fit into all blocks, in requests of ``max_model_len`` (windows free blocks).

        vLLM's "GPU KV cache size", which counts block 0 too.
        """
        if self.kv_pools:
            return sum(pool.n_blocks * pool.block_size for pool in self.kv_pools)
        if self.sliding_window == 0 and self.num_state_blocks == 0:
            return self.n_kv_blocks * self.block_size
        return int(self.n_kv_blocks / self.n_blocks_at_most_len * self.max_model_len)

    @property
    def watermark_blocks(self) -> int:
        """Blocks that must stay free when a request joins running ones."""
        return int(self.watermark_fraction * self.num_blocks)

    @property
    def num_lookahead_tokens(self) -> int:
        """Tokens beyond a step's own for which the draft model stores KV."""
        return 0 if self.draft_method == "ngram" else self.num_speculative_tokens

    @property
    def num_draft_slots(self) -> int:
        """Rows of the step budget that the draft takes for each request, beside its own tokens."""
        return int(self.num_speculative_tokens > 0 and self.draft_method == "draft_model")

    @property
    def is_recomputing_last_block(self) -> bool:
        """Is the last cached block recomputed, for hidden states that the draft needs?"""
        return self.num_speculative_tokens > 0 and self.draft_method == "eagle"

    @property
    def acceptance(self) -> tuple[int, ...]:
        """Thresholds of the draws for each draft position, for ``n_accepted``."""
        given = self.acceptance_fraction
        places = (
            given if isinstance(given, tuple) else (given or 0.0,) * self.num_speculative_tokens
        )
        return tuple(round(fraction * N_DRAWS) for fraction in places)

    @property
    def mean_accepted_tokens(self) -> float:
        """Mean accepted draft tokens of a step; each needs all before it."""
        chances = [one / N_DRAWS for one in self.acceptance]
        return sum(math.prod(chances[: place + 1]) for place in range(len(chances)))

    @property
    def draft_cost_millionths(self) -> int:
        """Time of a draft step in millionths of the model's step."""
        return round(1_000_000 * (self.draft_cost_ratio or 0))

    @property
    def n_host_blocks(self) -> int:
        """The number of KV blocks in host memory."""
        if self.preemption_mode == "recompute" or self.kv_block_bytes is None:
            return 0
        return self.swap_space_bytes // self.kv_block_bytes

    @property
    def swap_block_ps(self) -> int:
        """Picoseconds to copy a block, one way."""
        if self.kv_block_bytes is None or self.swap_bytes_per_s is None:
            return 0
        return round(self.kv_block_bytes / self.swap_bytes_per_s * _PS_PER_S)

    @property
    def depth(self) -> int:
        """The largest number of batches in flight."""
        return self.pipeline_parallel_size + self.async_scheduling
