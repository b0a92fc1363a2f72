"""Which single numbers does a run yield, so that runs can be compared with runs?

A run of requests yields one number of each kind: its requests depend on one another, so they are no
replicates. A sweep yields one number of each kind at each of its points and repetitions. What a run
cannot tell is None (requests) or NaN (repetitions).
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from inferometer.records.columns import F64
from inferometer.records.latencies import Latency
from inferometer.records.repetitions import repetitions_of
from inferometer.records.request_summaries import RequestSummary, summarise_requests
from inferometer.records.types import Run
from inferometer.spec.types import SweepPoint
from inferometer.stats.estimate import Estimate
from inferometer.stats.quantiles import min_samples


class Metric(NamedTuple):
    """A number that a run of requests yields."""

    name: str
    unit: str
    smaller_is_better: bool
    of: Callable[[RequestSummary], float | None]
    n_needed: int = 1
    """Requests that a run must have for it: as many as an interval of independent ones needs,
    however these depend on one another."""


class PointKey(NamedTuple):
    """What makes two points of two sweeps the same."""

    prompt_tokens: int
    batch_size: int
    gen_tokens: int

    @property
    def text(self) -> str:
        """For people."""
        return f"prompt {self.prompt_tokens} x batch {self.batch_size}"


class PointTimes(NamedTuple):
    """The repetitions of one point of a sweep that ended well, in the order in which they ran (R)."""

    prefill_s: F64
    decode_step_s: F64
    """NaN where there was no decode step."""


def _percentile(latency: Latency, fraction: float) -> Metric:
    def of(summary: RequestSummary) -> float | None:
        # Whether requests of a run depend on one another so much that its own interval is open
        # depends on how fast they were: a run that were left out for it would bias those that stay.
        # Between runs the interval is that of runs.
        found = summary.latency(latency).percentile(fraction)
        is_known = (
            found is not None
            and not found.is_lower_bound
            and summary.latency(latency).n_samples >= n_needed
        )
        return found.seconds.value if found is not None and is_known else None

    n_needed = min_samples(fraction)
    return Metric(
        f"{latency}_p{fraction * 100:g}_s", "s", smaller_is_better=True, of=of, n_needed=n_needed
    )


def _rate(name: str, unit: str, of: Callable[[RequestSummary], Estimate | None]) -> Metric:
    def value(summary: RequestSummary) -> float | None:
        estimate = of(summary)
        return None if estimate is None else estimate.value

    return Metric(name, unit, smaller_is_better=False, of=value)


REQUEST_METRICS: Final = (
    *(_percentile("ttft", fraction) for fraction in (0.5, 0.95, 0.99)),
    *(_percentile("tpot", fraction) for fraction in (0.5, 0.95)),
    *(_percentile("e2e", fraction) for fraction in (0.5, 0.95)),
    _rate("output_tokens_per_s", "tok/s", lambda summary: summary.output_tokens_per_s),
    _rate(
        "completed_requests_per_s", "requests/s", lambda summary: summary.completed_requests_per_s
    ),
)


def request_numbers(run: Run) -> dict[str, float | None]:
    """The run's number for each of ``REQUEST_METRICS``.

    None where its requests are too few or too many of them were not done.
    """
    summary = summarise_requests(run)
    return {metric.name: metric.of(summary) for metric in REQUEST_METRICS}


def point_times(run: Run) -> dict[PointKey, PointTimes]:
    """The repetitions of each point of a sweep that has any."""
    return {
        _key(one.point): PointTimes(one.prefill_s, np.asarray(one.decode_step_s))
        for one in repetitions_of(run)
        if one.n_reps
    }


def _key(point: SweepPoint) -> PointKey:
    return PointKey(point.prompt_tokens, point.batch_size, point.gen_tokens)
