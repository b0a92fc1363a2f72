"""What did somebody else's tool say of a serving run as a whole?

A published summary has no requests, only statistics; they keep their tool's definition, put into
our words, because the same word means different numbers. What the tool did not say is None or left
out, never 0.
"""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from inferometer.inputs.types import Source
from inferometer.records.columns import F64, I32, Bools, Texts

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


# What did others measure, point by point: one row for a model on a device under a load?
# The tables of InferenceX (InferenceMAX before) and of AIConfigurator's collection of them come
# as these. Absent floats are NaN, absent counts -1. Letters of shapes: N points.


class PublishedPointTable(NamedTuple):
    """One row per published point (N rows), in the order of the files."""

    source_file: Texts
    row: I32
    """Of the file, from 0."""
    hardware: Texts
    """As the file says."""
    hardware_id: Texts
    """Of the catalogue; '' where it has no such device."""
    model: Texts
    precision: Texts
    """fp4, fp8, int4, bf16; '' where the file does not say."""
    framework: Texts
    framework_version: Texts
    is_disaggregated: Bools
    """Prefill and decode on devices of their own: the parallelism is then that of a decode worker,
    where the file states it."""
    uses_speculation: Bools
    """The file says so; where it has no column for it, False says nothing."""
    is_provisional: Bools
    tensor_parallel: I32
    expert_parallel: I32
    data_parallel: I32
    """Of attention."""
    decode_workers: I32
    """-1 where not disaggregated or not stated, as the three below."""
    prefill_workers: I32
    prefill_tensor_parallel: I32
    prefill_data_parallel: I32
    n_devices: I32
    """-1 where disaggregated."""
    prompt_tokens: I32
    """Nominal. InferenceX draws lengths from 80 to 100 % of it: the mean is 0.9 times as much."""
    output_tokens: I32
    concurrency: I32
    """Of the whole deployment, closed loop."""
    device_total_tokens_per_s: F64
    """Input and output, per device."""
    device_output_tokens_per_s: F64
    device_input_tokens_per_s: F64
    ttft_mean_s: F64
    ttft_median_s: F64
    ttft_p99_s: F64
    ttft_unnamed_s: F64
    """Of a statistic that the file does not name."""
    tpot_mean_s: F64
    tpot_median_s: F64
    tpot_p99_s: F64
    tpot_unnamed_s: F64
    e2e_mean_s: F64
    e2e_median_s: F64
    e2e_p99_s: F64
