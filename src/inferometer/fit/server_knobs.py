"""Which limits may a server have that we cannot see into, and how is its scheduler simulated with them?

A limit that was never reached has no upper end: beyond what all requests inside would need together, every value does the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from inferometer.fit.load_looks import Crowd
from inferometer.simulate.scheduler_config import SchedulerConfig

Limit: TypeAlias = Literal["max_num_seqs", "max_num_batched_tokens", "n_kv_blocks"]
Switch: TypeAlias = Literal["async_scheduling", "enable_chunked_prefill", "enable_prefix_caching"]

LIMITS: Final[tuple[Limit, ...]] = ("max_num_seqs", "n_kv_blocks", "max_num_batched_tokens")
SWITCHES: Final[tuple[Switch, ...]] = ("enable_prefix_caching", "async_scheduling", "enable_chunked_prefill")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKnobs:
    """Limits and switches of a server's scheduler, under vLLM's names; ``n_kv_blocks`` can hold tokens (vLLM has one more)."""

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
        return sorted({round(value) for value in np.geomspace(self.low, self.high, n_values).tolist()})

    def within(self, value: int) -> int:
        """The nearest value that is looked at."""
        return min(max(value, self.low), self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What every simulation of the server shares."""

    ranges: Mapping[Limit, Range]
    block_tokens: int
    max_model_len: int
    """Enough for the longest request: what the server allows beyond it was not asked."""
    switches: Mapping[Switch, bool]
    """Those whose position the server itself named."""


def terms_of(most: Crowd, told: ToldByServer) -> Terms:
    """The ranges that leave open all that the crowd does, but for what the server itself named."""
    block_tokens = told.block_tokens or BLOCK_TOKENS
    longest_blocks = -(-most.longest_tokens // block_tokens)
    held_blocks = int(_SURE_FRACTION * most.n_held_tokens) // block_tokens
    inside_blocks = most.n_inside_tokens // block_tokens + 2 * most.n_inside
    ranges: dict[Limit, Range] = {
        "max_num_seqs": Range(max(most.n_streaming - 1, 1), max(most.n_inside, most.n_streaming, 2)),
        "max_num_batched_tokens": Range(_LEAST_BUDGET, max(most.n_prompt_tokens, 2 * _LEAST_BUDGET)),
        "n_kv_blocks": Range(max(longest_blocks + 1, held_blocks), max(longest_blocks + 2, inside_blocks)),
    }
    named: dict[Limit, Range] = {name: Range(value, value) for name, value in told.limits.items()}
    return Terms(ranges=ranges | named, block_tokens=block_tokens, max_model_len=most.longest_tokens + 1, switches=told.switches)


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


__all__ = [
    "BLOCK_TOKENS",
    "LIMITS",
    "SWITCHES",
    "Limit",
    "Range",
    "ServerKnobs",
    "Switch",
    "Terms",
    "ToldByServer",
    "config_of",
    "terms_of",
]
