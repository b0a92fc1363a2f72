"""How is the engine's scheduler set up?

Names, meanings and defaults are those of vLLM 0.32.0, the version that was run.

0.33.0 has the same names and defaults. Its scheduler differs in these rules, which are not built:
with priorities, a request that is preempted for lack of its own blocks ends the step for itself
alone, not for those behind it; drafts of EAGLE recompute no cached block
(``num_hash_lookahead_tokens``); ``prefill_schedule_interval`` holds prompts back without data
parallelism too (1, the default, never does).

How many drafted tokens the model accepts is drawn once for each token that may come, the same in
every simulation: what is drawn depends on the request and on the place of the token in its answer
alone, not on the time, the batch or the number of drafts. Two what-ifs so see the same luck, and
what differs between them is what was changed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, TypeAlias

from inferometer import suggestions
from inferometer.errors import SpecError
from inferometer.records.columns import I64

N_DRAWS: Final = 2**32
"""A draw is a whole number below this, all equally likely."""
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

    ``acceptance`` has for each place below which number the draw must lie. The draw is a mixer of
    32 bits (multiplications by odd numbers and shifts, each of them invertible), twice; its
    products stay below 2^63, where plain and compiled integers agree.

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

    The window, what is in flight, and one more where the window begins inside a block: vLLM's
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

    ``n_blocks`` can hold tokens. ``block_millionths`` and ``token_millionths``: bytes of a block,
    and of what attention reads of a token, against those of the server's own block and format.
    """

    n_blocks: int
    block_size: int
    block_millionths: int = 1_000_000
    token_millionths: int = 1_000_000
    kv_dtype: str | None = None
    classes: tuple[str, ...] = ()
    class_indices: tuple[int, ...] = ()
    """Classes of the workload, once it is known."""
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
    """The knobs of vLLM's scheduler and KV cache, as ``vllm serve`` has them.

    ``num_blocks`` is the server's ``num_gpu_blocks``: take it from its log, a computed one is wrong
    by whole percents. Block 0 is never handed out. ``max_num_active_seqs`` None means
    ``max_num_seqs``. ``watermark_fraction`` is vLLM's ``watermark``. Not vLLM's: with the policy
    "srpt" (shortest remaining processing time, Schrage, Operations Research 16, 1968) the fewest
    tokens left to compute, prompt and ``max_tokens``, are the most urgent, and as long as the next
    in the queue lacks a slot or blocks for its prompt whoever runs and has more left than it, the
    most of all, is preempted. With ``one_prefill_at_a_time`` nobody is admitted in a step in which
    another request is in its prefill; "contiguous" gives each request one piece of memory for its
    prompt and all tokens that it may generate. Then ``compaction_bytes_per_s`` (0: off), of each
    device, slides pieces together in the background until the largest that waits, of those for whom
    enough is free, fits; a piece is in use where it was until all of it is moved.

    Speculation drafts ``num_speculative_tokens`` for each token sampled. ``draft_method`` is vLLM's
    ``method``: "draft_model" and "eagle" (MTP too) reserve as many slots ahead, "draft_model" one
    row of each step's budget, "eagle" recomputes the last block of a cached prefix.
    ``acceptance_fraction`` is the chance that a draft is accepted if those before it were, one or
    for each place; ``draft_cost_ratio`` the time of a draft's step against the model's own for the
    same batch. Both are assumptions.

    With "swap", which vLLM 0.32.0 has no more, the blocks of whoever is preempted go to
    ``swap_space_bytes`` of host memory and come back before he runs again; where they do not fit he
    computes all again. Both ways take ``swap_bytes_per_s`` on each device, and the step that
    follows begins when the copies are done.

    With ``pipeline_parallel_size`` stages as many batches are in flight, under ``async_scheduling``
    one more (vLLM's default on a GPU, its model runner V2), and a request decodes in every so
    manieth of them.

    Layers that attend to the last ``sliding_window`` tokens alone (0: all layers attend to all)
    give blocks back. As vLLM's hybrid KV cache manager does, the layers are split into groups of
    equal size, each with a table of blocks of its own from one pool: ``num_sliding_groups``, then
    ``num_full_groups`` (``perfmodel.kv_groups``). 0 is also what ``--disable-hybrid-kv-cache-manager``
    does. A request holds ``num_state_blocks`` more for the states of recurrent layers.

    Not vLLM's either: ``kv_pools`` divide the KV cache, each part with blocks of its own size and
    format for some of the requests. Who finds its pool full waits as vLLM lets wait whoever lacks
    a slot of its LoRA adapter: stepped over, with those behind it of the same pool. Who has to go
    for want of blocks is one of the same pool, from which nobody is admitted in that step.

    ``rules`` are those of older engines, in the short form that simulators give them (Vidur's).
    "sarathi": decodes before prefill chunks, memory for the whole prompt at the admission, which
    goes on in a step that preempts. "orca": no limit of a step's tokens, memory for
    ``max_model_len`` tokens each. "vllm-v0": whole prompts in steps of their own, before any
    decode, ``max_model_len`` tokens of them or ``max_num_batched_tokens`` if that is more, padded
    to the longest. ``serving_config`` sets what goes with each.
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
                    "a smaller max_model_len or more memory for the KV cache, as vLLM says when it"
                    " refuses to start"
                ),
            )
        if self.step_budget_tokens < self.max_num_seqs:
            self._refuse("max_num_batched_tokens", f"max_num_seqs = {self.max_num_seqs} or more")
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
                try_="0.7, which is an assumption: measure it",
            )
        if self.draft_cost_ratio is None and self.draft_method != "ngram":
            self._refuse(
                "draft_cost_ratio",
                "0 or more; only n-grams cost nothing",
                try_="0.05, or the draft's parameters over the model's",
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
        """Are pieces of memory moved together in the background?"""
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
        """How many tokens can all blocks hold, where windows give blocks back in requests of ``max_model_len``?

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
        """Tokens beyond a step's own for which the draft stores KV."""
        return 0 if self.draft_method == "ngram" else self.num_speculative_tokens

    @property
    def num_draft_slots(self) -> int:
        """Rows of the step budget that the draft takes for each request, besides its tokens."""
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
