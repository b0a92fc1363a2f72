"""What did somebody else's tool say of a serving run as a whole?

A published summary has no requests, only statistics; they keep their tool's definition, put into
our words, because the same word means different numbers. What the tool did not say is None or left
out, never 0.
"""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from inferometer.spec.types import Source

Tool: TypeAlias = Literal[
    "vllm-bench", "aiperf", "guidellm", "inference-perf", "inferencex", "llm-d", "llmservingsim"
]
PublishedLatencyName: TypeAlias = Literal["ttft", "tpot", "chunk_gap", "normalized_tpot", "e2e"]

DEFINITIONS: Final[dict[PublishedLatencyName, str]] = {
    "ttft": "first token - send",
    "tpot": "(last - first token) / (output tokens - 1), one value a request",
    "chunk_gap": "gaps between the chunks of all requests; a chunk may carry several tokens",
    "normalized_tpot": "(last token - send) / output tokens, one value a request",
    "e2e": "last token - send",
}
"""What each latency is in our words; a tool's own deviation from it stands beside its numbers."""


class PublishedPercentile(NamedTuple):
    """One percentile of a latency, as published: without an interval."""

    percentile_fraction: float
    value_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedLatency:
    """One latency's statistics, as published."""

    name: PublishedLatencyName
    named: str
    """As the tool calls it."""
    definition: str
    mean_s: float | None = None
    std_s: float | None = None
    min_s: float | None = None
    max_s: float | None = None
    percentiles: tuple[PublishedPercentile, ...] = ()
    """By fraction."""

    def percentile_s(self, fraction: float) -> float | None:
        """The percentile of that fraction, where it was published."""
        return next(
            (
                one.value_s
                for one in self.percentiles
                if abs(one.percentile_fraction - fraction) < 1e-9
            ),
            None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSummary:
    """One run, or one stage of one, as its tool summarised it. None: it did not say."""

    tool: Tool
    source: Source
    tool_version: str | None = None
    label: str = ""
    """Which of the runs of its file it is."""
    model: str | None = None
    engine: str | None = None
    hardware: str | None = None
    offered_requests_per_s: float | None = None
    """As asked for; infinite: all at once."""
    concurrency: int | None = None
    """As asked for."""
    settings: tuple[tuple[str, str], ...] = ()
    """Further settings, in the tool's words, sorted."""
    duration_s: float | None = None
    n_completed: int | None = None
    n_failed: int | None = None
    mean_prompt_tokens: float | None = None
    mean_output_tokens: float | None = None
    completed_requests_per_s: float | None = None
    good_requests_per_s: float | None = None
    input_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    total_tokens_per_s: float | None = None
    latencies: tuple[PublishedLatency, ...] = ()

    def latency(self, name: PublishedLatencyName) -> PublishedLatency | None:
        """The statistics of this latency, where the tool published them."""
        return next((one for one in self.latencies if one.name == name), None)
