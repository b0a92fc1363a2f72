"""What is there to show of several runs of requests side by side, one for each rate or number of users?"""

from dataclasses import dataclass

from inferometer.records.load_types import ValidityVerdict
from inferometer.records.request_summaries import Percentile
from inferometer.records.ttft_parts import TtftParts
from inferometer.stats.estimate import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint:
    """One run."""

    label: str
    concurrency: int | None
    """Of a closed loop, whose users wait for their answers; None where requests came whether or
    not earlier ones were done."""
    offered_requests_per_s: float | None
    """None of a closed loop, which offers what the server takes."""
    ttft_p50: Percentile | None
    ttft_p95: Percentile | None
    tpot_p50: Percentile | None
    tpot_p95: Percentile | None
    output_tokens_per_s: Estimate | None
    completed_requests_per_s: Estimate | None
    good_requests_per_s: float | None
    """None where no objective was given."""
    ttft_parts: TtftParts | None
    """Where its mean TTFT goes; None where nobody said."""
    verdict: ValidityVerdict | None
    """None for runs that are no load tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateView:
    """All that a report on several runs of requests shows."""

    title: str
    subtitle: str
    answer: str
    objective: str
    """'' where none was given."""
    points: tuple[RatePoint, ...]
    """By offered rate, or by concurrency."""
    files: tuple[tuple[str, str], ...]
    tool_version: str

    @property
    def is_closed(self) -> bool:
        """Are all runs closed loops, so that curves go with the concurrency?"""
        return all(point.concurrency is not None for point in self.points)
