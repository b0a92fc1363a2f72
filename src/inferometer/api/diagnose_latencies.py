"""Latencies of a diagnosed server: measured beside simulated, and is the SLO met?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from inferometer import suggestions
from inferometer.decide.diagnosis import causes, rebuilding
from inferometer.decide.diagnosis.replicas import Replica
from inferometer.decide.diagnosis.window import ServerWindow
from inferometer.inputs.objectives import Metric, Threshold, percentile_name
from inferometer.inputs.types import Caution
from inferometer.records.columns import F64
from inferometer.records.server_summaries import bucket_percentile
from inferometer.stats.estimate import Estimate, Verdict
from inferometer.units import format_duration

Cautions: TypeAlias = tuple[Caution, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyRow:
    """One latency: measured by the server, and simulated for the rebuilt server."""

    name: str
    """``ttft:p95``"""
    measured_low_s: float | None
    """Edges of the bucket in which it lies; None: the server has no buckets."""
    measured_high_s: float | None
    simulated_s: Estimate
    limit_s: float | None


def with_all_limits(agreement: rebuilding.Agreement, percentiles: causes.Percentiles) -> F64:
    """(draws, percentiles) Seconds of each plausible server as it is."""
    return np.stack(
        [causes.seconds_at(one.rebuilt, one.simulation, percentiles) for one in agreement.draws]
    )


def latencies_of(
    window: ServerWindow,
    percentiles: causes.Percentiles,
    now: Sequence[Estimate],
    thresholds: Sequence[Threshold],
) -> tuple[LatencyRow, ...]:
    """Each latency as the server measured it, and as it is in the simulated servers."""
    limits_s: list[float | None] = [one.limit_s for one in thresholds]
    limits_s = limits_s or [None] * len(now)
    return tuple(
        _latency(window, *which, simulated, limit_s)
        for which, simulated, limit_s in zip(percentiles, now, limits_s, strict=True)
    )


def _latency(
    window: ServerWindow,
    metric: Metric,
    fraction: float,
    simulated: Estimate,
    limit_s: float | None,
) -> LatencyRow:
    seen = None if metric == "workflow" else window.spreads.get(metric)
    bucket = None if seen is None else bucket_percentile(seen, fraction)
    return LatencyRow(
        name=f"{metric}:{percentile_name(fraction)}",
        measured_low_s=None if bucket is None else bucket.low_s,
        measured_high_s=None if bucket is None else bucket.high_s,
        simulated_s=simulated,
        limit_s=limit_s,
    )


def cautions_of(latencies: Sequence[LatencyRow]) -> Cautions:
    """Latencies that the server measured as much longer than any simulated server has them."""
    return tuple(
        Caution(
            code="longer_than_simulated",
            text=f"{words_of(row.name)} is {format_duration(low_s)} or more by the server's own histogram, and"
            f" {format_duration(high_s)} at most in the simulated servers: what delays these"
            " requests is not simulated (an order by priority, a queue from before the window,"
            " several servers)",
            remedy="do not rest on its shares; `inferometer load` with the classes of the traffic"
            " shows who waits",
        )
        for row in latencies
        if (low_s := row.measured_low_s) is not None
        and (high_s := row.simulated_s.high) is not None
        and low_s > rebuilding.WORST_RATIO * high_s
    )


def replica_cautions(replica: Replica | None) -> Cautions:
    """Which of several replicas was diagnosed, and how another one is."""
    if replica is None:
        return ()
    return (
        Caution(
            code="one_of_several_replicas",
            text=f"its page has {replica.n_replicas} replicas, which differ in"
            f" {', '.join(replica.labels)}: this is {replica.name}; latencies, limits and changes"
            " are those of this one",
            remedy=f"{suggestions.flags('--replica', replica.another)} for another one",
        ),
    )


def verdicts_of(latencies: Sequence[LatencyRow]) -> list[Verdict]:
    """Verdict on each limit by the server's buckets, and inside a bucket by simulation."""
    return [_is_met(one, one.limit_s) for one in latencies if one.limit_s is not None]


def _is_met(row: LatencyRow, limit_s: float) -> Verdict:
    low, high = row.measured_low_s, row.measured_high_s
    if high is not None and high <= limit_s:
        return "met"
    if low is not None and low > limit_s:
        return "missed"
    simulated = row.simulated_s
    if simulated.high is not None and simulated.high <= limit_s:
        return "met"
    return "missed" if simulated.low is not None and simulated.low > limit_s else "undecided"


def words_of(name: str) -> str:
    """TTFT p95 for ``ttft:p95``."""
    metric, _, percentile = name.partition(":")
    return f"{metric.upper() if metric != 'queue' else metric} {percentile}"
