"""Which limits may a server have that we cannot see into, and how is its scheduler simulated with them?

A limit that was never reached has no upper end: beyond what all requests inside would need
together, every value does the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from inferometer.errors import ModelError
from inferometer.fit.load_looks import Crowd
from inferometer.simulate.scheduler_config import SchedulerConfig

Limit: TypeAlias = Literal["max_num_seqs", "max_num_batched_tokens", "n_kv_blocks"]
Switch: TypeAlias = Literal["async_scheduling", "enable_chunked_prefill", "enable_prefix_caching"]

LIMITS: Final[tuple[Limit, ...]] = ("max_num_seqs", "n_kv_blocks", "max_num_batched_tokens")
SWITCHES: Final[tuple[Switch, ...]] = (
    "enable_prefix_caching",
    "async_scheduling",
    "enable_chunked_prefill",
)
BLOCK_TOKENS: Final = 16
"""vLLM's default; another size rounds what a request holds a little more, or less."""

_LEAST_BUDGET: Final = 32
_SURE_FRACTION: Final = 0.95
"""Of what was seen at once: ends and beginnings are seen a little early and late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldByServer:
    """What the server itself named: in its metrics, or in the log of its start."""

    limits: Mapping[Limit, int] = field(default_factory=dict["Limit", int])
    switches: Mapping[Switch, bool] = field(default_factory=dict["Switch", bool])
    block_tokens: int | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKnobs:
    """Limits and switches of a server's scheduler, under vLLM's names.

    ``n_kv_blocks`` can hold tokens (vLLM has one more).
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    n_kv_blocks: int
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    async_scheduling: bool = True

    def with_limit(self, name: Limit, value: int) -> "ServerKnobs":
        """The same with another limit."""
        changes: dict[str, Any] = {name: value}
        return replace(self, **changes)

    def with_switch(self, name: Switch, *, value: bool) -> "ServerKnobs":
        """The same with a switch in this position."""
        changes: dict[str, Any] = {name: value}
        return replace(self, **changes)


class Range(NamedTuple):
    """Where a limit is looked for: below, what was seen could not be; at ``high`` and beyond nothing was held back."""

    low: int
    high: int

    def candidates(self, n_values: int) -> list[int]:
        """So many values, evenly in their logarithm."""
        return sorted(
            {round(value) for value in np.geomspace(self.low, self.high, n_values).tolist()}
        )

    def within(self, value: int) -> int:
        """The nearest value that is looked at."""
        return min(max(value, self.low), self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What every simulation of the server shares."""

    ranges: Mapping[Limit, Range]
    block_tokens: int
    max_model_len: int
    """The server's where it is known, else enough for the longest request: what the server
    allows beyond it was not requested."""
    switches: Mapping[Switch, bool]
    """Those whose position the server itself named."""
    held_blocks: int = 0
    """KV blocks of all prompts whose answers were under way at once, if none of them shared any."""
    most_blocks: int | None = None
    """KV blocks that the device's memory has room for beside the weights; None: the device or
    the model is not known."""


def terms_of(most: Crowd, told: ToldByServer, most_blocks: int | None = None) -> Terms:
    """The ranges that leave open all that the crowd does, but for what the server itself named and the device's memory allows.

    Prompts under way at once were all in the KV cache, for vLLM admits nobody while a preempted
    request waits. But prompts that begin alike may share blocks: where that is not known, only the
    longest request is a sure lower bound.

    Raises
    ------
    ModelError
        A known limit is one that the load tests show to be exceeded.
    """
    block_tokens = told.block_tokens or BLOCK_TOKENS
    held_blocks = int(_SURE_FRACTION * most.n_held_tokens) // block_tokens
    is_held = most.has_known_prefixes or told.switches.get("enable_prefix_caching") is False
    least_blocks = max(
        -(-max(most.longest_tokens, told.max_model_len or 0) // block_tokens),
        held_blocks if is_held else 0,
    )
    least_budget = max(
        _LEAST_BUDGET, most.n_streaming - 1
    )  # vLLM does not start with a budget below max_num_seqs
    inside_blocks = max(most.n_inside_tokens // block_tokens + 2 * most.n_inside, least_blocks + 2)
    if most_blocks is not None and most_blocks <= least_blocks:
        raise ModelError(
            f"the requests held {least_blocks:,} KV blocks of {block_tokens} tokens at once",
            where="the load tests",
            allowed=f"{most_blocks:,}, which is what the device's memory leaves beside the weights",
            try_="the server's own --model, --dtype, --hardware and --tp",
        )
    ranges: dict[Limit, Range] = {
        "max_num_seqs": Range(
            max(most.n_streaming - 1, 1), max(most.n_inside, most.n_streaming, 2)
        ),
        "max_num_batched_tokens": Range(least_budget, max(most.n_prompt_tokens, 2 * least_budget)),
        "n_kv_blocks": Range(
            least_blocks, inside_blocks if most_blocks is None else min(inside_blocks, most_blocks)
        ),
    }
    _check_known(told, ranges)
    named: dict[Limit, Range] = {name: Range(value, value) for name, value in told.limits.items()}
    return Terms(
        ranges=ranges | named,
        block_tokens=block_tokens,
        max_model_len=max(told.max_model_len or 0, most.longest_tokens + 1),
        switches=told.switches,
        held_blocks=held_blocks,
        most_blocks=most_blocks,
    )


def _check_known(told: ToldByServer, ranges: Mapping[Limit, Range]) -> None:
    """A limit that somebody named must hold what was seen."""
    for name, value in told.limits.items():
        least = ranges[name].low
        if value < least:
            raise ModelError(
                f"{name} = {value:,} cannot be: the load tests show {least:,} or more at once",
                where="--known, the server's log or metrics, or the imported run",
                allowed=f"{least:,} or more",
                try_="load tests of one replica, and the limits of that server",
            )


def config_of(knobs: ServerKnobs, terms: Terms, *, has_contents: bool) -> SchedulerConfig:
    """The scheduler with these knobs; without contents of prompts there is nothing for a prefix cache to find."""
    budget = knobs.max_num_batched_tokens
    if not knobs.enable_chunked_prefill:
        budget = max(budget, terms.max_model_len)
    return SchedulerConfig(
        num_blocks=max(knobs.n_kv_blocks, -(-terms.max_model_len // terms.block_tokens)) + 1,
        max_model_len=terms.max_model_len,
        max_num_seqs=min(knobs.max_num_seqs, budget),
        max_num_batched_tokens=budget,
        block_size=terms.block_tokens,
        enable_prefix_caching=knobs.enable_prefix_caching and has_contents,
        enable_chunked_prefill=knobs.enable_chunked_prefill,
        async_scheduling=knobs.async_scheduling,
    )
